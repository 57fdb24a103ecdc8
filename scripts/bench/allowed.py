"""Allowed outputs: CPU seconds of a search with a set, without one, and of fairseq's
prefix_allowed_tokens_fn over a trie of dicts, with the same best outputs.

    python scripts/bench/allowed.py --model MODEL --text TEXT --strings F --sizes 400 100000

MODEL: folder with checkpoint.pt, dict.*.txt and spm.model. F: strings, one a line; of each size,
the references of the sources (TEXT.en) and the first others. One thread; contenders in turn
(A B C A B C), the least of the rounds counts. The share of the loop's steps that the automaton
takes is timed in a run of its own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from fairseq import checkpoint_utils, utils
from omegaconf import OmegaConf

from fairseq_ext import Translator
from fairseq_ext.search.compiled import CompiledSearch
from fairseq_ext.search.constraints.allowed_product import AllowedRule
from fairseq_ext.search.constraints.allowed_strings import Segmented, automaton_of_strings


def measured(run: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of a call, and its result."""
    start = time.process_time()
    found = run()
    return time.process_time() - start, found


class Stock:
    """fairseq's own search over a trie of dicts."""

    def __init__(self, model: Path, beam: int, batch: int):
        models, cfg, self.task = checkpoint_utils.load_model_ensemble_and_task(
            [str(model / "checkpoint.pt")],
            {"data": str(model), "source_lang": "de", "target_lang": "en", "task": "translation"},
        )
        self.models, self.batch = [m.eval() for m in models], batch
        self.generation = OmegaConf.create({**cfg.generation, "beam": beam, "nbest": 1})

    def __call__(self, lines: list[torch.Tensor], trie: dict) -> list[list[int]]:
        """The best output's tokens of each source."""

        def allowed(sentence: int, prefix: torch.Tensor) -> list[int]:
            node = trie
            for token in prefix.tolist()[1:]:
                if token not in node:
                    return [2]
                node = node[token]
            return list(node) or [2]

        generator = self.task.build_generator(
            self.models, self.generation, prefix_allowed_tokens_fn=allowed
        )
        out: list[list[int]] = [[] for _ in lines]
        data = self.task.build_dataset_for_inference(lines, [len(line) for line in lines])
        order = sorted(range(len(lines)), key=lambda i: -len(lines[i]))
        for at in range(0, len(order), self.batch):
            part = data.collater([data[i] for i in order[at : at + self.batch]])
            found = self.task.inference_step(generator, self.models, part)
            for i, hypotheses in zip(part["id"].tolist(), found, strict=True):
                out[i] = utils.strip_pad(hypotheses[0]["tokens"], 1).tolist()
        return out


def trie_of(sequences: Segmented) -> dict:
    """The strings as a trie of dicts, EOS (2) at each end."""
    root: dict = {}
    at = 0
    for n in sequences.length.tolist():
        node = root
        for token in sequences.flat[at : at + n].tolist():
            node = node.setdefault(token, {})
        node[2] = {}
        at += n
    return root


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parse.add_argument("--model", type=Path, required=True)
    parse.add_argument("--text", required=True, help="prefix of TEXT.de and TEXT.en")
    parse.add_argument("--strings", type=Path, required=True)
    parse.add_argument("--sizes", type=int, nargs="+", default=[400, 100_000])
    parse.add_argument("--lines", type=int, default=60)
    parse.add_argument("--beam", type=int, default=5)
    parse.add_argument("--batch", type=int, default=60)
    parse.add_argument("--rounds", type=int, default=3)
    parse.add_argument("--no-stock", action="store_true", help="without fairseq's own search")
    args = parse.parse_args()
    torch.set_num_threads(1)
    model = args.model
    flags = dict(
        path=str(model / "checkpoint.pt"),
        data=str(model),
        source_lang="de",
        target_lang="en",
        bpe="sentencepiece",
        sentencepiece_model=str(model / "spm.model"),
        cpu=True,
        beam=args.beam,
        batch_size=args.batch,
    )
    read = [Path(f"{args.text}.{side}").read_text("utf-8") for side in ("de", "en")]
    sources, references = (text.splitlines()[: args.lines] for text in read)
    free = Translator(**flags)
    tokens = [free.encode(line) for line in sources]
    stock = None if args.no_stock else Stock(model, args.beam, args.batch)
    with args.strings.open(encoding="utf-8") as file:
        others = [line.rstrip("\n") for line in file]
    print("| strings | contender | CPU s | of plain | own reference | notes |")
    print("| --- | --- | --- | --- | --- | --- |")
    for size in args.sizes:
        strings = list(dict.fromkeys([*references, *others]))[:size]
        file = args.strings.with_suffix(f".{size}")
        file.write_text("".join(line + "\n" for line in strings), encoding="utf-8")
        limited = Translator(**flags, allowed_file=str(file))
        segmenter = limited.sentences.segmenter
        made, (automaton, _) = measured(
            lambda of=(strings, segmenter): automaton_of_strings(*of, "canonical", "set")
        )
        runs: dict[str, Callable[[], list]] = {
            "plain": lambda: free.translate(sources),
            "set": lambda of=limited: of.translate(sources),
        }
        if stock is not None:
            sequences = Segmented(strings, segmenter)
            trie = trie_of(sequences)
            runs["fairseq, trie of dicts"] = lambda of=trie: stock(tokens, of)
        for run in runs.values():
            run()
        spent: dict[str, list[float]] = {name: [] for name in runs}
        found: dict[str, list] = {}
        for _ in range(args.rounds):
            for name, run in runs.items():
                seconds, found[name] = measured(run)
                spent[name].append(seconds)
        texts = {name: [each[0].text for each in found[name]] for name in ("plain", "set")}
        least = {name: min(each) for name, each in spent.items()}
        notes = {
            "set": f"{len(automaton):,} states, {automaton.nbytes / size:.1f} bytes a string, made "
            f"in {made:.1f} s"
        }
        if stock is not None:
            dictionary = segmenter.dictionary
            of_stock = [
                segmenter.decode(" ".join(dictionary[t] for t in each if t != 2))
                for each in found["fairseq, trie of dicts"]
            ]
            texts["fairseq, trie of dicts"] = of_stock
            same = sum(a == b for a, b in zip(of_stock, texts["set"], strict=True))
            times = least["fairseq, trie of dicts"] / least["set"]
            notes["fairseq, trie of dicts"] = (
                f"{same} of {len(sources)} outputs equal to ours; {times:.1f} times our seconds"
            )
        for name in runs:
            own = sum(a == b for a, b in zip(texts[name], references, strict=True))
            print(
                f"| {size:,} | {name} | {least[name]:.2f} | {least[name] / least['plain']:.2f} | "
                f"{own} | {notes.get(name, '')} |"
            )
        print(f"| {size:,} | the loop | {share_of_rule(flags, str(file), sources)} |")


def share_of_rule(flags: dict[str, Any], file: str, sources: list[str]) -> str:
    """What part of the loop's seconds the automaton takes."""
    inside = [0.0]
    rule = AllowedRule.__call__

    def timed(*given: Any) -> None:
        start = time.process_time()
        rule(*given)
        inside[0] += time.process_time() - start

    with (
        patch.object(CompiledSearch, "supports", staticmethod(lambda setup: False)),
        patch.object(AllowedRule, "__call__", timed),
    ):
        limited = Translator(**flags, allowed_file=file)
        limited.translate(sources)
        inside[0] = 0.0
        total, _ = measured(lambda: limited.translate(sources))
    return f"{total:.2f} | | | the automaton takes {inside[0] / total:.1%} of it"


if __name__ == "__main__":
    main()

"""Allowed outputs: CPU seconds of a search with a set, without one, and of the
prefix_allowed_tokens_fn of fairseq and transformers over a trie of dicts, with the same best
outputs.

    python scripts/bench/allowed.py --model MODEL --text TEXT --strings F --sizes 400 100000

MODEL: folder with checkpoint.pt, dict.*.txt and spm.model. F: strings, one a line; of each size,
the references of the sources (TEXT.en) and the first others. One thread; contenders in turn
(A B C A B C), the least of the rounds counts. --batch 1: one sentence at a time. transformers
(`--transformers`) reads the same weights; it needs a pre-norm model. The share of the loop's steps
that the automaton takes is timed in a run of its own.
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


def callback(trie: dict) -> Callable[[int, torch.Tensor], list[int]]:
    """The prefix_allowed_tokens_fn of a trie: the tokens that may follow a prefix."""

    def allowed(sentence: int, prefix: torch.Tensor) -> list[int]:
        node = trie
        for token in prefix.tolist()[1:]:
            if token not in node:
                return [2]
            node = node[token]
        return list(node) or [2]

    return allowed


class Transformers:
    """The search of transformers over a trie of dicts, with the weights of the same checkpoint."""

    def __init__(self, model: Path, beam: int, batch: int):
        from transformers import M2M100Config, M2M100ForConditionalGeneration

        saved = checkpoint_utils.load_checkpoint_to_cpu(str(model / "checkpoint.pt"))
        shape, weights = saved["cfg"]["model"], saved["model"]
        if not shape.encoder_normalize_before or shape.encoder_learned_pos:
            raise SystemExit("--transformers needs a pre-norm model with sinusoidal positions")
        sides = {
            f"{side}_{name}": getattr(shape, f"{side}_{own}")
            for side in ("encoder", "decoder")
            for name, own in (
                ("layers", "layers"),
                ("ffn_dim", "ffn_embed_dim"),
                ("attention_heads", "attention_heads"),
            )
        }
        self.model = M2M100ForConditionalGeneration(
            M2M100Config(
                vocab_size=len(weights["decoder.embed_tokens.weight"]),
                d_model=shape.encoder_embed_dim,
                activation_function=shape.activation_fn,
                decoder_start_token_id=2,
                **sides,
            )
        ).eval()
        given = {f"model.{name}": value for name, value in weights.items()}
        given["model.shared.weight"] = given["lm_head.weight"] = weights[
            "decoder.embed_tokens.weight"
        ]
        missing, _ = self.model.load_state_dict(given, strict=False)
        assert not missing, missing
        self.beam, self.batch = beam, batch

    @torch.no_grad()
    def __call__(self, lines: list[torch.Tensor], trie: dict) -> list[list[int]]:
        """The best output's tokens of each source."""
        out: list[list[int]] = [[] for _ in lines]
        order = sorted(range(len(lines)), key=lambda i: -len(lines[i]))
        for at in range(0, len(order), self.batch):
            part = order[at : at + self.batch]
            tokens = torch.nn.utils.rnn.pad_sequence(
                [lines[i] for i in part], batch_first=True, padding_value=1
            )
            found = self.model.generate(
                input_ids=tokens.long(),
                attention_mask=(tokens != 1).long(),
                num_beams=self.beam,
                max_new_tokens=200,
                early_stopping=False,
                prefix_allowed_tokens_fn=callback(trie),
            )
            for i, each in zip(part, found.tolist(), strict=True):
                out[i] = [token for token in each if token > 2]
        return out


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
        generator = self.task.build_generator(
            self.models, self.generation, prefix_allowed_tokens_fn=callback(trie)
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
    parse.add_argument("--transformers", action="store_true", help="with that of transformers")
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
    rivals: dict[str, Any] = {}
    if not args.no_stock:
        rivals["fairseq, trie of dicts"] = Stock(model, args.beam, args.batch)
    if args.transformers:
        rivals["transformers, trie of dicts"] = Transformers(model, args.beam, args.batch)
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
        if rivals:
            trie = trie_of(Segmented(strings, segmenter))
        for name, rival in rivals.items():
            runs[name] = lambda by=rival, of=trie: by(tokens, of)
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
        dictionary = segmenter.dictionary
        for name in rivals:
            texts[name] = [
                segmenter.decode(" ".join(dictionary[t] for t in each if t != 2))
                for each in found[name]
            ]
            same = sum(a == b for a, b in zip(texts[name], texts["set"], strict=True))
            notes[name] = (
                f"{same} of {len(sources)} outputs equal to ours; "
                f"{least[name] / least['set']:.1f} times our seconds"
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

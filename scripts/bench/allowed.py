"""Allowed outputs: what a set costs, which beam it needs, and what it does to quality.

    python scripts/bench/allowed.py --model MODEL --text TEXT --strings F --transformers
        --out scripts/bench/results/allowed

MODEL: folder with checkpoint.pt, dict.*.txt and spm.model. F: strings, one a line; a set of N has
the references of the sources (TEXT.en) and the first others. One thread, CPU seconds; contenders in
turn (A B C A B C), the least of the rounds counts. The rivals are the prefix_allowed_tokens_fn of
fairseq and of transformers (`--transformers`; it reads the same weights, and needs a pre-norm
model) over one trie of dicts. The share of the loop's steps that the automaton takes is timed in a
run of its own. --tables chooses from `cost`, `beams`, `sizes` and `quality`.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from arguments import command_line
from fairseq import checkpoint_utils, utils
from omegaconf import OmegaConf
from report import write_page
from sacrebleu.metrics import BLEU

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


def share_of_rule(flags: dict[str, Any], file: str, sources: list[str]) -> str:
    """Return which part of the loop's seconds the automaton takes."""
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
    return f"{inside[0] / total:.0%}"


class Sets:
    """Sources with their references, the strings of the sets, and the flags of a translator."""

    def __init__(self, args: argparse.Namespace):
        model = args.model
        self.args = args
        self.flags: dict[str, Any] = dict(
            path=str(model / "checkpoint.pt"),
            data=str(model),
            source_lang="de",
            target_lang="en",
            bpe="sentencepiece",
            sentencepiece_model=str(model / "spm.model"),
            cpu=True,
            beam=args.beam,
        )
        read = [Path(f"{args.text}.{side}").read_text("utf-8") for side in ("de", "en")]
        self.sources, self.references = (text.splitlines()[: args.lines] for text in read)
        self.others = args.strings.read_text("utf-8").splitlines()

    def strings(self, size: int) -> list[str]:
        """Return the strings of a set: the references first."""
        return list(dict.fromkeys([*self.references, *self.others]))[:size]

    def file(self, strings: list[str]) -> str:
        """Write a set's file and return its name."""
        file = self.args.strings.with_suffix(f".{len(strings)}")
        file.write_text("".join(line + "\n" for line in strings), encoding="utf-8")
        return str(file)

    def own(self, texts: list[str]) -> int:
        """Return how many outputs are the reference of their source."""
        return sum(a == b for a, b in zip(texts, self.references, strict=True))

    def search(self, **flags: Any) -> list[str]:
        """Return the best output of each source."""
        translator = Translator(**{**self.flags, "batch_size": 10, **flags})
        return [each[0].text for each in translator.translate(self.sources)]


def cost(sets: Sets, batch: int, lines: int) -> list[str]:
    """Return the rows of one batch size: seconds without a set, with it, and of the rivals."""
    flags = {**sets.flags, "batch_size": batch}
    sources, args = sets.sources[:lines], sets.args
    free = Translator(**flags)
    tokens = [free.encode(line) for line in sources]
    rivals: dict[str, Any] = {"fairseq": Stock(args.model, args.beam, batch)}
    if args.transformers:
        rivals["transformers"] = Transformers(args.model, args.beam, batch)
    rows = []
    for size in args.sizes:
        strings = sets.strings(size)
        file = sets.file(strings)
        limited = Translator(**flags, allowed_file=file)
        segmenter = limited.sentences.segmenter
        trie = trie_of(Segmented(strings, segmenter))
        runs: dict[str, Callable[[], list]] = {
            "plain": lambda: free.translate(sources),
            "set": lambda of=limited: of.translate(sources),
        }
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
        least = {name: min(each) for name, each in spent.items()}
        texts = [each[0].text for each in found["set"]]
        cells = [f"{size:,}", f"{len(sources)} in batches of {batch}"]
        cells += [f"{least['set'] / least['plain']:.2f}", share_of_rule(flags, file, sources)]
        dictionary = segmenter.dictionary
        for name in rivals:
            outputs = [
                segmenter.decode(" ".join(dictionary[t] for t in each if t != 2))
                for each in found[name]
            ]
            same = sum(a == b for a, b in zip(outputs, texts, strict=True))
            cells.append(f"{least[name] / least['set']:.1f}; {same} of {len(sources)}")
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def cost_table(sets: Sets) -> list[str]:
    """Return the table of seconds."""
    names = ["fairseq", *["transformers"] * sets.args.transformers]
    rivals = [f"{name}: times ours; same outputs" for name in names]
    head = ["strings", "sentences", "with the set, of the time without", "automaton in the loop"]
    head += rivals
    return [
        "### What a set costs",
        "",
        f"| {' | '.join(head)} |",
        f"|{' --- |' * len(head)}",
        *cost(sets, len(sets.sources), len(sets.sources)),
        *cost(sets, 1, 10),
        "",
        "The automaton in the loop: its share of the time where the loop runs, and not the "
        "compiled search.",
    ]


def beams_table(sets: Sets) -> list[str]:
    """Return the table of beams, with 400 strings."""
    strings = sets.strings(400)
    file = sets.file(strings)
    best = sets.search(beam=len(strings), allowed_file=file)
    rows = []
    for beam in (1, 5, 10, 20, 50, len(strings)):
        texts = best if beam == len(strings) else sets.search(beam=beam, allowed_file=file)
        same = sum(a == b for a, b in zip(texts, best, strict=True))
        rows.append(f"| {beam} | {same} | {sets.own(texts)} |")
    return [
        "### Beams",
        "",
        f"{len(sets.sources)} sentences, {len(strings)} strings. A beam as large as the set ranks "
        "all of it.",
        "",
        "| beam | finds the set's best string | finds its own reference |",
        "| --- | --- | --- |",
        *rows,
    ]


def sizes_table(sets: Sets) -> list[str]:
    """Return the table of automata: canonical and any segmentation, and large sets."""
    segmenter = Translator(**sets.flags, allowed_file=sets.file(sets.strings(400)))
    segmenter = segmenter.sentences.segmenter
    words = sorted({word for line in sets.others for word in line.split()})
    draw = random.Random(1)
    names: dict[str, None] = {}
    while len(names) < sets.args.names:
        names[" ".join(draw.choices(words, k=draw.randint(1, 3)))] = None
    rows = []
    for what, strings, segmentation in (
        ("captions", sets.strings(400), "canonical"),
        ("captions", sets.strings(400), "any"),
        ("captions", sets.strings(len(sets.others)), "canonical"),
        ("names of one to three words", list(names), "canonical"),
    ):
        seconds, (automaton, _) = measured(
            lambda of=(strings, segmenter, segmentation): automaton_of_strings(*of, "set")
        )
        own = "-"
        if len(strings) == 400:
            file = sets.file(strings)
            texts = sets.search(allowed_file=file, allowed_segmentation=segmentation)
            own = f"{sets.own(texts)} of {len(texts)}"
        cells = [f"{len(strings):,} {what}", segmentation, f"{len(automaton):,}"]
        cells += [f"{automaton.nbytes / len(strings):.1f}", f"{seconds:.1f}", own]
        rows.append(f"| {' | '.join(cells)} |")
    return [
        "### Automata",
        "",
        "| strings | segmentation | states | bytes a string | CPU seconds to build | finds its own "
        "reference |",
        "| --- | --- | --- | --- | --- | --- |",
        *rows,
    ]


def quality_table(sets: Sets) -> list[str]:
    """Return BLEU and the mean score without a set, and with one that lacks good outputs."""
    rows = []
    file = sets.file(list(dict.fromkeys(sets.others)))
    for name, flags in (("none", {}), ("the other strings only", {"allowed_file": file})):
        found = Translator(**sets.flags, **flags).translate(sets.sources)
        bleu = BLEU().corpus_score([each[0].text for each in found], [sets.references]).score
        mean = sum(each[0].score for each in found) / len(found)
        rows.append(f"| {name} | {bleu:.1f} | {mean:.2f} |")
    return [
        "### A set without a good output",
        "",
        f"{len(sets.sources)} sentences; {len(set(sets.others)):,} strings, of which none is a "
        "reference.",
        "",
        "| set | BLEU | mean score |",
        "| --- | --- | --- |",
        *rows,
    ]


TABLES = dict(cost=cost_table, beams=beams_table, sizes=sizes_table, quality=quality_table)


def main() -> None:
    parse = command_line(__doc__)
    parse.add_argument("--model", type=Path, required=True)
    parse.add_argument("--text", required=True, help="prefix of TEXT.de and TEXT.en")
    parse.add_argument("--strings", type=Path, required=True)
    parse.add_argument("--sizes", type=int, nargs="+", default=[400, 29_000])
    parse.add_argument("--names", type=int, default=1_000_000, help="names of the largest set")
    parse.add_argument("--lines", type=int, default=60)
    parse.add_argument("--beam", type=int, default=5)
    parse.add_argument("--rounds", type=int, default=3)
    parse.add_argument("--transformers", action="store_true", help="with that of transformers")
    parse.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parse.add_argument("--out", type=Path, help="write OUT.md")
    args = parse.parse_args()
    torch.set_num_threads(1)
    sets = Sets(args)
    tables: list[str] = []
    for name in args.tables:
        made = [*TABLES[name](sets), ""]
        tables += made
        print("\n".join(made), flush=True)
        write_page(args.out, tables)


if __name__ == "__main__":
    main()

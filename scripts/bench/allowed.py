"""Allowed outputs: what a set costs, which beam it needs, and what it does to quality.

    python scripts/bench/allowed.py --model MODEL --text TEXT --strings F --transformers
        --out scripts/bench/results/allowed

F: strings, one a line; a set of N has the references of the text and the first others. One thread,
CPU seconds, contenders in turns. The rivals are the prefix_allowed_tokens_fn of fairseq and of
transformers (`--transformers`; it reads the same weights, and needs a pre-norm model) over one trie
of dicts.

    --strings FILE        (required)
    --sizes N ...         of sets (400 29000)
    --names N             of the largest set (1000000)
    --beam N              (5)
    --repeats N           timed rounds (3)
    --transformers        with that of transformers
    --tables TABLE ...    (all)
    --out OUT             write OUT.md and OUT.json
"""

from __future__ import annotations

import random
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from contenders import Loaded, in_order, load, ours, stock
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE, SentencepieceConfig
from fairseq.search import PrefixConstrainedBeamSearch
from harness import BenchError, Contender, Outputs, Result, compare, least
from report import Page
from text import prepare, run_bench

from fairseq_ext.search.constraints.allowed_strings import automaton_of_strings, segmented
from fairseq_ext.search.phrases.segmenter import Segmenter

Trie = dict[int, "Trie"]


def trie_of(flat: np.ndarray, length: np.ndarray) -> Trie:
    """The strings as a trie of dicts, EOS (2) at each end."""
    root: Trie = {}
    at = 0
    for n in length.tolist():
        node = root
        for token in [*flat[at : at + n].tolist(), 2]:
            node = node.setdefault(token, {})
        at += n
    return root


def callback(trie: Trie) -> Callable[[int, torch.Tensor], list[int]]:
    """The prefix_allowed_tokens_fn of a trie: the tokens that may follow a prefix."""

    def allowed(sentence: int, prefix: torch.Tensor) -> list[int]:
        node = trie
        for token in prefix.tolist()[1:]:
            if token not in node:
                return [2]
            node = node[token]
        return list(node) or [2]

    return allowed


def transformers(loaded: Loaded, checkpoint: Path, trie: Trie) -> Contender:
    """The search of transformers over a trie of dicts, with the weights of the same checkpoint."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    saved = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))
    shape, weights = saved["cfg"]["model"], saved["model"]
    if not shape.encoder_normalize_before or shape.encoder_learned_pos:
        raise BenchError("--transformers needs a pre-norm model with sinusoidal positions")
    names = dict(layers="layers", ffn_dim="ffn_embed_dim", attention_heads="attention_heads")
    sides: dict[str, Any] = {
        f"{side}_{name}": getattr(shape, f"{side}_{own}")
        for side in ("encoder", "decoder")
        for name, own in names.items()
    }
    embedding = weights["decoder.embed_tokens.weight"]
    sides |= dict(vocab_size=len(embedding), d_model=shape.encoder_embed_dim)
    sides |= dict(activation_function=shape.activation_fn, decoder_start_token_id=2)
    made = M2M100ForConditionalGeneration(M2M100Config(**sides)).eval()
    named = {f"model.{name}": value for name, value in weights.items()}
    named["model.shared.weight"] = named["lm_head.weight"] = embedding
    missing, _ = made.load_state_dict(named, strict=False)
    assert not missing, missing
    how = dict(num_beams=loaded.cfg.generation.beam, max_new_tokens=200, early_stopping=False)
    how |= dict(prefix_allowed_tokens_fn=callback(trie))
    numbers = [number for batch in loaded.batches for number in batch["id"].tolist()]

    @torch.no_grad()
    def run() -> list[list[int]]:
        found = []
        for batch in loaded.batches:
            tokens = batch["net_input"]["src_tokens"]
            found += made.generate(tokens, attention_mask=(tokens != 1).long(), **how).tolist()
        return found

    def read(found: list[list[int]]) -> Outputs:
        best = [[([*(token for token in each if token > 2), 2], 0.0)] for each in found]
        return in_order(numbers, best)

    return Contender("transformers", run, read, exact=False)


class Sets:
    """Text, the strings of sets of it, and searches."""

    def __init__(self, args: Namespace, folder: Path):
        self.args, self.folder = args, folder
        self.text = prepare(folder, args.model, args.text, args.src, args.tgt, args.limit)
        self.others = args.strings.read_text("utf-8").splitlines()
        target = Dictionary.load(str(args.model / f"dict.{args.tgt}.txt"))
        spm = str(args.model / "spm.model")
        bpe = SentencepieceBPE(SentencepieceConfig(sentencepiece_model=spm))
        self.segmenter = Segmenter(target, None, bpe)

    def strings(self, size: int) -> list[str]:
        """The strings of a set: the references first."""
        return list(dict.fromkeys([*self.text.references, *self.others]))[:size]

    def flags(self, strings: Sequence[str], *more: str) -> list[str]:
        """Those that allow these strings alone."""
        file = self.folder / f"allowed.{len(strings)}"
        file.write_text("".join(line + "\n" for line in strings), encoding="utf-8")
        return ["--allowed-file", str(file), *self.text.bpe, *more]

    def own(self, lines: Sequence[str]) -> int:
        """How many outputs are the reference of their source."""
        return sum(map(str.__eq__, lines, self.text.references))

    def search(self, name: str, flags: Sequence[str], batch: int = 64, beam: int = 0) -> Contender:
        size = ["--beam", str(beam or self.args.beam), "--batch-size", str(batch), "--nbest", "1"]
        return ours(self.text, ["--cpu", *size, *flags], name, exact=False)

    def lines(self, flags: Sequence[str], beam: int = 0) -> list[str]:
        """The best output of each source."""
        made = self.search("ours", flags, 10, beam)
        return self.text.lines(made.read(made.run()))


def cost(sets: Sets, page: Page) -> None:
    """The same text in bulk and one sentence at a time, with a set, without, and of the rivals."""
    args, text = sets.args, sets.text
    for size in args.sizes:
        strings = sets.strings(size)
        trie = trie_of(*segmented(strings, sets.segmenter))

        def change(loaded: Loaded, generator: Any, trie: Trie = trie) -> None:
            words = loaded.task.target_dictionary
            generator.search = PrefixConstrainedBeamSearch(words, callback(trie))

        for batch in (64, 1):
            flags = f"--cpu --beam {args.beam} --nbest 1 --batch-size {batch}".split()
            made = [sets.search("with the set", sets.flags(strings), batch)]
            made += [
                sets.search("without", [], batch),
                stock(text, flags, "fairseq", change=change),
            ]
            made[-1].exact = False
            if args.transformers:
                loaded = load([*text.flags, *flags])
                made.append(transformers(loaded, args.model / "checkpoint.pt", trie))
            title = f"What a set costs: {len(strings):,} strings, batches of {batch}"
            found = compare(made, args.repeats, title=title, clock=time.process_time)
            outputs = text.lines(found["with the set"].outputs)
            assert set(outputs) <= set(strings), "an output is not in its set"
            page.add_comparison(found)


def beams(sets: Sets, page: Page) -> None:
    strings = sets.strings(400)
    flags, whole, rows = sets.flags(strings), len(strings), []
    best = sets.lines(flags, whole)
    for beam in (1, 5, 10, 20, 50, whole):
        lines = best if beam == whole else sets.lines(flags, beam)
        rows.append([f"{beam}", f"{sum(map(str.__eq__, lines, best))}", f"{sets.own(lines)}"])
    head = ["beam", "finds the set's best string", "finds its own reference"]
    page.add_table(head, rows, "Beams")
    page.add(f"{len(best)} sentences, {whole} strings. A beam as large as the set ranks it all.\n")


def automata(sets: Sets, page: Page) -> None:
    """Canonical and any segmentation, and large sets."""
    words = sorted({word for line in sets.others for word in line.split()})
    draw, names = random.Random(1), dict[str, None]()
    while len(names) < sets.args.names:
        names[" ".join(draw.choices(words, k=draw.randint(1, 3)))] = None
    rows = []
    for what, strings, how in (
        ("captions", sets.strings(400), "canonical"),
        ("captions", sets.strings(400), "any"),
        ("captions", sets.strings(len(sets.others)), "canonical"),
        ("names of one to three words", list(names), "canonical"),
    ):
        of = strings, sets.segmenter, how, "set"
        seconds, (automaton, _) = least(lambda of=of: automaton_of_strings(*of), 1)
        own = "-"
        if len(strings) == 400:
            lines = sets.lines(sets.flags(strings, "--allowed-segmentation", how))
            own = f"{sets.own(lines)} of {len(lines)}"
        cells = [f"{len(strings):,} {what}", how, f"{len(automaton):,}"]
        rows.append([*cells, f"{automaton.nbytes / len(strings):.1f}", f"{seconds:.1f}", own])
    head = ["strings", "segmentation", "states", "bytes a string", "CPU seconds to build"]
    page.add_table([*head, "finds its own reference"], rows, "Automata")


def quality(sets: Sets, page: Page) -> None:
    """BLEU and the mean score without a set, and with one that lacks good outputs."""

    def mean(result: Result) -> dict[str, str]:
        scores = [best[0][1] for best in result.outputs]
        return {"mean score": f"{sum(scores) / len(scores):.2f}"}

    others = list(dict.fromkeys(sets.others))
    ways = {"none": [], "the other strings only": sets.flags(others)}
    made = [sets.search(name, flags) for name, flags in ways.items()]
    title, bleu = "A set without a good output", sets.text.bleu
    found = compare(made, 1, 0, title=title, bleu=bleu, clock=time.process_time)
    page.add_comparison(found, more=mean)
    known = set(others) & set(sets.text.references)
    page.add(f"{len(others):,} strings, of which {len(known)} are references.\n")


TABLES: dict[str, Callable[[Sets, Page], None]] = dict(
    cost=cost, beams=beams, sizes=automata, quality=quality
)


def main(args: Namespace, page: Page, folder: Path) -> None:
    sets = Sets(args, folder)
    for name in args.tables:
        TABLES[name](sets, page)


if __name__ == "__main__":
    run_bench(main, __doc__, {"tables": TABLES})

"""Allowed outputs: what a set costs, which beam it needs, and what it does to quality.

    python scripts/bench/allowed.py --model MODEL --text TEXT --strings F --transformers
        --out scripts/bench/results/allowed

MODEL: folder with checkpoint.pt, dict.*.txt and spm.model. F: strings, one a line; a set of N has
the references of the sources (TEXT.en) and the first others. One thread, CPU seconds; contenders in
turn (A B C A B C), the least of the rounds counts. The rivals are the prefix_allowed_tokens_fn of
fairseq and of transformers (`--transformers`; it reads the same weights, and needs a pre-norm
model) over one trie of dicts. The share of the loop's steps that the automaton takes is timed in a
run of its own.

    --model DIR           (required)
    --text PREFIX         of TEXT.de and TEXT.en (required)
    --strings FILE        (required)
    --sizes N ...         of sets (400 29000)
    --names N             of the largest set (1000000)
    --lines N             (60)
    --beam N              (5)
    --rounds N            (3)
    --transformers        with that of transformers
    --tables TABLE ...    (all)
    --out OUT             write OUT.md
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from fairseq import checkpoint_utils, utils
from harness import least, time_ways
from omegaconf import OmegaConf
from report import Page
from sacrebleu.metrics import BLEU
from text import command_line, read_lines

from fairseq_ext import Translator
from fairseq_ext.search.compiled import CompiledSearch
from fairseq_ext.search.constraints.allowed_product import AllowedRule
from fairseq_ext.search.constraints.allowed_strings import Segmented, automaton_of_strings

Rival = Callable[[list[torch.Tensor], dict], list[list[int]]]  # sources, trie -> best outputs


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


def longest_first(lines: list[torch.Tensor], batch: int) -> Iterator[list[int]]:
    """The numbers of the lines of each batch."""
    order = sorted(range(len(lines)), key=lambda i: -len(lines[i]))
    return (order[at : at + batch] for at in range(0, len(order), batch))


def transformers(model: Path, beam: int, batch: int) -> Rival:
    """The search of transformers over a trie of dicts, with the weights of the same checkpoint."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    saved = checkpoint_utils.load_checkpoint_to_cpu(str(model / "checkpoint.pt"))
    shape, weights = saved["cfg"]["model"], saved["model"]
    if not shape.encoder_normalize_before or shape.encoder_learned_pos:
        raise SystemExit("--transformers needs a pre-norm model with sinusoidal positions")
    names = dict(layers="layers", ffn_dim="ffn_embed_dim", attention_heads="attention_heads")
    sides = {
        f"{side}_{name}": getattr(shape, f"{side}_{own}")
        for side in ("encoder", "decoder")
        for name, own in names.items()
    }
    embedding = weights["decoder.embed_tokens.weight"]
    sides |= dict(vocab_size=len(embedding), d_model=shape.encoder_embed_dim)
    sides |= dict(activation_function=shape.activation_fn, decoder_start_token_id=2)
    made = M2M100ForConditionalGeneration(M2M100Config(**sides)).eval()
    given = {f"model.{name}": value for name, value in weights.items()}
    given["model.shared.weight"] = given["lm_head.weight"] = embedding
    missing, _ = made.load_state_dict(given, strict=False)
    assert not missing, missing

    @torch.no_grad()
    def run(lines: list[torch.Tensor], trie: dict) -> list[list[int]]:
        out: list[list[int]] = [[] for _ in lines]
        for part in longest_first(lines, batch):
            rows = [lines[i] for i in part]
            tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=1)
            best = made.generate(
                input_ids=tokens.long(),
                attention_mask=(tokens != 1).long(),
                num_beams=beam,
                max_new_tokens=200,
                early_stopping=False,
                prefix_allowed_tokens_fn=callback(trie),
            )
            for i, each in zip(part, best.tolist(), strict=True):
                out[i] = [token for token in each if token > 2]
        return out

    return run


def stock(model: Path, beam: int, batch: int) -> Rival:
    """fairseq's own search over a trie of dicts."""
    flags = dict(data=str(model), source_lang="de", target_lang="en", task="translation")
    load = checkpoint_utils.load_model_ensemble_and_task
    models, cfg, task = load([str(model / "checkpoint.pt")], flags)
    generation = OmegaConf.create({**cfg.generation, "beam": beam, "nbest": 1})

    def run(lines: list[torch.Tensor], trie: dict) -> list[list[int]]:
        rule = callback(trie)
        generator = task.build_generator(models, generation, prefix_allowed_tokens_fn=rule)
        out: list[list[int]] = [[] for _ in lines]
        data = task.build_dataset_for_inference(lines, [len(line) for line in lines])
        for part in longest_first(lines, batch):
            sample = data.collater([data[i] for i in part])
            nbests = task.inference_step(generator, models, sample)
            for i, nbest in zip(sample["id"].tolist(), nbests, strict=True):
                out[i] = utils.strip_pad(nbest[0]["tokens"], 1).tolist()
        return out

    for each in models:
        each.eval()
    return run


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


def share_of_rule(flags: dict[str, Any], sources: list[str]) -> str:
    """Return which part of the loop's seconds the automaton takes."""
    inside, rule = [0.0], AllowedRule.__call__

    def timed(*given: Any) -> None:
        start = time.process_time()
        rule(*given)
        inside[0] += time.process_time() - start

    loop = patch.object(CompiledSearch, "supports", staticmethod(lambda setup: False))
    with loop, patch.object(AllowedRule, "__call__", timed):
        limited = Translator(**flags)
        limited.translate(sources)
        inside[0] = 0.0
        total, _ = least(lambda: limited.translate(sources), 1)
    assert 0 < inside[0] < total
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
        sides = (read_lines(args.text, side, args.lines) for side in ("de", "en"))
        self.sources, self.references = sides
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


def cost_rows(sets: Sets, batch: int, lines: int) -> Iterator[list[str]]:
    """Return the rows of one batch size: seconds without a set, with it, and of the rivals."""
    flags, sources, args = {**sets.flags, "batch_size": batch}, sets.sources[:lines], sets.args
    free = Translator(**flags)
    tokens = [free.encode(line) for line in sources]
    rivals = {"fairseq": stock(args.model, args.beam, batch)}
    if args.transformers:
        rivals["transformers"] = transformers(args.model, args.beam, batch)
    for size in args.sizes:
        strings = sets.strings(size)
        flags["allowed_file"] = sets.file(strings)
        limited = Translator(**flags)
        segmenter = limited.sentences.segmenter
        trie = trie_of(Segmented(strings, segmenter))
        ways: dict[str, Callable[[], list]] = {
            "plain": lambda: free.translate(sources),
            "set": lambda of=limited: of.translate(sources),
        }
        for name, rival in rivals.items():
            ways[name] = lambda by=rival, of=trie: by(tokens, of)
        spent, answers = time_ways(ways, args.rounds)
        found = {name: each[-1] for name, each in answers.items()}
        best = {name: min(each) for name, each in spent.items()}
        texts = [each[0].text for each in found["set"]]
        assert set(texts) <= set(strings), "an output is not in its set"
        cells = [f"{size:,}", f"{len(sources)} in batches of {batch}"]
        cells += [f"{best['set'] / best['plain']:.2f}", share_of_rule(flags, sources)]
        words = segmenter.dictionary
        for name in rivals:
            pieces = (" ".join(words[t] for t in each if t != 2) for each in found[name])
            outputs = map(segmenter.decode, pieces)
            same = sum(a == b for a, b in zip(outputs, texts, strict=True))
            cells.append(f"{best[name] / best['set']:.1f}; {same} of {len(sources)}")
        yield cells


def cost_table(sets: Sets, page: Page) -> None:
    names = ["fairseq", *["transformers"] * sets.args.transformers]
    head = ["strings", "sentences", "with the set, of the time without", "automaton in the loop"]
    head += [f"{name}: times ours; same outputs" for name in names]
    many = len(sets.sources)
    rows = [*cost_rows(sets, many, many), *cost_rows(sets, 1, 10)]
    page.add_table(head, rows, "What a set costs")
    page.add("The automaton in the loop: its share of the time without the compiled search.\n")


def beams_table(sets: Sets, page: Page) -> None:
    strings = sets.strings(400)
    file, whole = sets.file(strings), len(strings)
    best = sets.search(beam=whole, allowed_file=file)
    rows = []
    for beam in (1, 5, 10, 20, 50, whole):
        texts = best if beam == whole else sets.search(beam=beam, allowed_file=file)
        same = sum(a == b for a, b in zip(texts, best, strict=True))
        rows.append([f"{beam}", f"{same}", f"{sets.own(texts)}"])
    head = ["beam", "finds the set's best string", "finds its own reference"]
    page.add_table(head, rows, "Beams")
    page.add(
        f"{len(best)} sentences, {whole} strings. A beam as large as the set ranks all of it.\n"
    )


def sizes_table(sets: Sets, page: Page) -> None:
    """Canonical and any segmentation, and large sets."""
    segmenter = Translator(**sets.flags, allowed_file=sets.file(sets.strings(400)))
    segmenter = segmenter.sentences.segmenter
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
        build = lambda of=(strings, segmenter, how): automaton_of_strings(*of, "set")  # noqa: E731
        seconds, (automaton, _) = least(build, 1)
        own = "-"
        if len(strings) == 400:
            texts = sets.search(allowed_file=sets.file(strings), allowed_segmentation=how)
            own = f"{sets.own(texts)} of {len(texts)}"
        cells = [f"{len(strings):,} {what}", how, f"{len(automaton):,}"]
        rows.append([*cells, f"{automaton.nbytes / len(strings):.1f}", f"{seconds:.1f}", own])
    head = "strings | segmentation | states | bytes a string | CPU seconds to build | "
    page.add_table([*(head + "finds its own reference").split(" | ")], rows, "Automata")


def quality_table(sets: Sets, page: Page) -> None:
    """BLEU and the mean score without a set, and with one that lacks good outputs."""
    others, rows = list(dict.fromkeys(sets.others)), []
    given = {"none": {}, "the other strings only": {"allowed_file": sets.file(others)}}
    for name, flags in given.items():
        found = Translator(**sets.flags, **flags).translate(sets.sources)
        bleu = BLEU().corpus_score([each[0].text for each in found], [sets.references]).score
        mean = sum(each[0].score for each in found) / len(found)
        rows.append([name, f"{bleu:.1f}", f"{mean:.2f}"])
    page.add_table(["set", "BLEU", "mean score"], rows, "A set without a good output")
    known = (
        "none is a reference" if not set(others) & set(sets.references) else "some are references"
    )
    page.add(f"{len(sets.sources)} sentences; {len(others):,} strings, of which {known}.\n")


TABLES = dict(cost=cost_table, beams=beams_table, sizes=sizes_table, quality=quality_table)


def main(argv: list[str] | None = None) -> None:
    args = command_line(__doc__, {"tables": TABLES}).parse_args(argv)
    torch.set_num_threads(1)
    sets, page = Sets(args), Page(args.out)
    for name in args.tables:
        TABLES[name](sets, page)


if __name__ == "__main__":
    main()

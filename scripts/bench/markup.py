"""How do placeholders and tags come through a translation? On the demo's text.

    python scripts/bench/markup.py placeholders [--limit 1000] [--out results/placeholders]
    python scripts/bench/markup.py tags [--limit N] [--out results/tags]

placeholders: sentences with 1 to 6 of them at made-up places, three ways. put back: taken out of
the sentence and put back by alignment, as fairseq_ext does. copied: a token stands in the sentence,
and the model copies it. required: the token stands there, and the search must write it (DBA).
once each: sentences with every placeholder exactly once. rest: BLEU without the placeholders, next
to that of the sentences without any.

tags: by what the model attends to, is the tag around a noun around its translation afterwards? One
row an attention and a way to read words off it. all layers: their average, which fairseq_ext reads;
layer N: of this one of fairseq's own decoder, heads averaged, as its `transformer_align` reads
alignments. greatest: of each word the one that it attends to most; assigned: as
fairseq_ext/text/alignment.py. A case is a noun that stands once in its source, its translation once
in the output; right: the tag is around it, and around nothing else.

    --limit N    lines; all by default
    --out OUT    write OUT.md and OUT.json
"""

from __future__ import annotations

import random
import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from report import ROOT, Page
from text import DEMO, read_lines, run_bench

from fairseq_ext import Translator
from fairseq_ext.text import alignment
from fairseq_ext.text.atoms import Segment
from fairseq_ext.text.formats import passes
from fairseq_ext.text.marks import Projection
from fairseq_ext.text.splitter import plain_ends

DATA = ROOT / "data" / "demo"
NAMES = "Tom Maria John Anna Peter Lisa".split()  # names that the model has seen
TOKENS = {"{name}": [f"{{v{i}}}" for i in range(6)], "names": NAMES}


def alone(token: str) -> str:
    """The pattern of a token that is no part of a word."""
    return rf"(?<!\w){re.escape(token)}(?!\w)"


def row(name: str, outputs: list[str], held: list[list[str]], references: list[str]) -> list[str]:
    """A row of the table; held: the tokens that each sentence has."""
    kept, rest = 0, []
    for out, tokens in zip(outputs, held, strict=True):
        kept += all(len(re.findall(alone(token), out)) == 1 for token in tokens)
        for token in tokens:
            out = re.sub(alone(token), " ", out)
        rest.append(re.sub(r"\s+([.,;:!?])", r"\1", " ".join(out.split())))
    bleu = sacrebleu.corpus_bleu(rest, [references]).score
    return [name, f"{kept} of {len(outputs)}", f"{bleu:.1f}"]


def placeholders(args: Namespace, page: Page) -> None:
    sources, references = (read_lines(DATA / "test", side, args.limit) for side in ("de", "en"))
    translator = Translator.from_folder(DEMO, cpu=True, beam=5)
    plain = [found[0].text for found in translator.translate(sources)]
    rows = [row("none", plain, [[] for _ in plain], references)]
    for kind, tokens in TOKENS.items():
        chance, lines, held = random.Random(7), [], []
        for source in sources:
            words = source.split(" ")
            mine = [token for token in tokens if token not in source][: chance.randint(1, 6)]
            for token in mine:
                words.insert(chance.randrange(len(words)), token)
            lines.append(" ".join(words))
            held.append(mine)
        if kind == "{name}":
            out = translator.translate_text("\n".join(lines)).text.split("\n")
            rows.append(row("put back", out, held, references))
        out = [found[0].text for found in translator.translate(lines)]
        rows.append(row(f"copied, {kind}", out, held, references))
        found = translator.translate(lines, 1, held, errors="return")
        pairs = zip(found, plain, strict=True)
        out = [free if isinstance(each, Exception) else each[0].text for each, free in pairs]
        rows.append(row(f"required, {kind}", out, held, references))
    page.add_table(["placeholders", "once each", "rest"], rows)


def nouns() -> dict[str, set[str]]:
    """Return German nouns of the demo's text, each with its translations."""
    lines = (DATA / "nouns.tsv").read_text(encoding="utf-8").splitlines()
    return {german: set(forms.split("|")) for german, forms in (x.split("\t") for x in lines)}


def marked(line: str, word: str) -> Segment:
    """A line with a tag around a word."""
    text = re.sub(rf"\b{word}\b", r"<b>\g<0></b>", line, count=1)
    return next(
        each
        for each in passes("html", plain_ends)[-1](text)
        if isinstance(each, Segment) and each.plain
    )


def once(forms: set[str], text: str) -> list[str]:
    """The forms that stand in a text once, without those that are parts of others."""
    there = [form for form in forms if len(re.findall(rf"\b{re.escape(form)}\b", text)) == 1]
    return [form for form in there if not any(form != other and form in other for other in there)]


class OneLayer:
    """What one layer of fairseq's decoder attends to, in the place of a ForcedDecoding."""

    def __init__(self, model: Any, layer: int):
        self.model, self.layer = model, layer

    def encode(self, sources: list[list[int]], device: torch.device) -> list[list[int]]:
        return sources

    @torch.no_grad()
    def attention(
        self, sources: list[list[int]], pairs: list[tuple[int, list[int]]], eos: int
    ) -> list[torch.Tensor]:
        out = []
        for source, target in pairs:
            tokens = torch.tensor([sources[source]])
            encoded = self.model.encoder(tokens, torch.tensor([tokens.size(1)]))
            inputs = torch.tensor([[eos, *target[:-1]]])
            out.append(
                self.model.decoder(
                    inputs, encoder_out=encoded, alignment_layer=self.layer, features_only=True
                )[1]["attn"][0][0]
            )
        return out


def measure(lines: list[str], translator: Translator) -> list[list[str]]:
    """The rows of a table."""
    found, known = [each[0] for each in translator.translate(lines)], nouns()
    cases = []
    for line, hypothesis in zip(lines, found, strict=True):
        words = re.findall(r"\w+", line)
        for word in (word for word in dict.fromkeys(words) if words.count(word) == 1):
            if len(there := once(known.get(word, set()), hypothesis.text)) == 1:
                cases.append((marked(line, word), hypothesis, there[0]))
    assert cases, "no line has a noun whose translation stands in the output once"
    model, ours, rows = translator.models[0], alignment.Aligner(translator), []
    readers: dict[str, Any] = {"all layers": ours.attention}
    readers |= {f"layer {i + 1}": OneLayer(model, i) for i in range(len(model.decoder.layers))}
    dictionary, cpu = translator.task.target_dictionary, torch.device("cpu")
    sources = [translator.encode(line).tolist() for line in lines]
    targets = [[*map(dictionary.index, each.tokens), dictionary.eos()] for each in found]
    ways = {"assigned": alignment.assigned, "greatest": lambda table: table.argmax(1).tolist()}
    for name, reader in readers.items():
        encoded, pairs = reader.encode(sources, cpu), list(enumerate(targets))
        weights = reader.attention(encoded, pairs, dictionary.eos())
        for way, alignment.assigned in ways.items():
            of = {
                line: ours.of_sentence(line, h, w.float(), 0)
                for line, h, w in zip(lines, found, weights, strict=True)
            }
            right = sum(
                f"<b>{word}</b>" in Projection(s, h.text, of[s.plain]).rendered()
                for s, h, word in cases
            )
            share = f"{100 * right / len(cases):.1f} %"
            rows.append([name, way, f"{right} of {len(cases)}", share])
    alignment.assigned = ways["assigned"]
    return rows


def tags(args: Namespace, page: Page) -> None:
    # without the lines that have placeholders
    lines = [line for line in read_lines(DATA / "test", "de") if not re.search("[{%]", line)]
    lines = lines[: args.limit]
    page.add(f"test, {len(lines)} lines\n")
    rows = measure(lines, Translator.from_folder(DEMO, cpu=True, beam=5))
    page.add_table(["attention", "words", "right", ""], rows)


CASES: dict[str, Callable[[Namespace, Page], None]] = dict(placeholders=placeholders, tags=tags)


def main(args: Namespace, page: Page, _: Path) -> None:
    CASES[args.case](args, page)


if __name__ == "__main__":
    run_bench(main, __doc__, cases=CASES, has_text=False)

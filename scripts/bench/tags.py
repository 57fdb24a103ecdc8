"""Where tags are put, by what the model attends to: around a noun of the demo's text,
is the tag around its translation?

    python scripts/bench/tags.py [--limit N] [--out scripts/bench/results/tags]

One row an attention and a way to read words off it. all layers: their average, which fairseq_ext
reads; layer N: of this one of fairseq's own decoder, heads averaged, as its `transformer_align`
reads alignments. greatest: of each word the one that it attends to most; assigned: as
fairseq_ext/text/alignment.py. A case is a noun that stands once in its source, its translation once
in the output; right: the tag is around it, and around nothing else.

    --limit N       lines of each set; all by default
    --sets SET ...  (test)
    --out OUT       write OUT.md
"""

from __future__ import annotations

import re
from typing import Any

import torch
from report import ROOT, Page, table
from text import DEMO, command_line, read_lines

from fairseq_ext import Translator
from fairseq_ext.text import alignment
from fairseq_ext.text.atoms import Segment
from fairseq_ext.text.formats import passes
from fairseq_ext.text.marks import Projection
from fairseq_ext.text.splitter import plain_ends

DATA = ROOT / "data" / "demo"


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


def main(argv: list[str] | None = None) -> None:
    args = command_line(__doc__).parse_args(argv)
    page, translator = Page(args.out), Translator.from_folder(DEMO, cpu=True, beam=5)
    for name in args.sets:
        # without the lines that have placeholders
        text = [line for line in read_lines(DATA / name, "de") if not re.search("[{%]", line)]
        rows = measure(text[: args.limit], translator)
        page.add(f"{name}, {len(text[: args.limit])} lines\n")
        page.add(table(["attention", "words", "right", ""], rows))


if __name__ == "__main__":
    main()

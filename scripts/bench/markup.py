"""How do placeholders and tags come through a translation?

    python scripts/bench/markup.py messages --catalogues DIR [--models DIR ...] [--limit 100]
    python scripts/bench/markup.py tags [--limit N] [--out results/tags]

messages: real messages with placeholders (%s, {name}), drawn by a seed from gettext's German
catalogues (/usr/share/locale/de/LC_MESSAGES), in the direction of each model (the demo's). Two
ways: a number stands for the placeholder, as fairseq_ext does; the model does not see it. once
each: messages with each placeholder exactly as often as in the source; chrF: against the
catalogue's translation, quotation marks all alike.

tags: by what the model attends to, is the tag around a noun around its translation afterwards? One
row an attention and a way to read words off it. all layers: their average, which fairseq_ext reads;
layer N: of this one of fairseq's own decoder, heads averaged, as its `transformer_align` reads
alignments. greatest: of each word the one that it attends to most; assigned: as
fairseq_ext/text/alignment.py. A case is a noun that stands once in its source, its translation once
in the output; right: the tag is around it, and around nothing else.

    --catalogues DIR    with *.mo, for messages
    --models DIR ...    folders of models, for messages; the demo's by default
    --limit N           lines (100 messages; all lines)
    --out OUT           write OUT.md and OUT.json
"""

from __future__ import annotations

import gettext
import random
import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from harness import BenchError
from report import ROOT, Page
from text import DEMO, read_lines, run_bench

from fairseq_ext import Translator
from fairseq_ext.text import alignment, atoms
from fairseq_ext.text.atoms import Segment
from fairseq_ext.text.formats import passes
from fairseq_ext.text.marks import Projection
from fairseq_ext.text.splitter import plain_ends

DATA = ROOT / "data" / "demo"
PLACEHOLDER = re.compile(
    r"%(?:\d+\$)?[-+ 0#]*\d*(?:\.\d+)?(?:hh?|ll?|[Lqjzt])?[diouxXeEfFgGcs]|\{[^{}\s]*\}|%\d"
)
QUOTES = re.compile("[»«„“”\"‘’‚`']")
WORD, NONE = atoms.NO_WORD_OF_SENTENCE, re.compile("")


def drawn(catalogues: Path, sides: list[str], seed: str, many: int) -> list[tuple[str, str]]:
    """Messages of gettext's catalogues (*.mo, German) with placeholders, and their translations:
    the catalogues by chance, and a message of each."""
    known: dict[str, list[tuple[str, str]]] = {}
    for file in sorted(catalogues.glob("*.mo")):
        try:
            catalogue = gettext.GNUTranslations(file.open("rb"))._catalog  # type: ignore[attr-defined]
        except UnicodeDecodeError:  # not in UTF-8
            continue
        for key, german in catalogue.items():
            english = (key[0] if isinstance(key, tuple) else key).split("\x04")[-1].strip()
            pair = (german.strip(), english) if sides[0] == "de" else (english, german.strip())
            held = [sorted(PLACEHOLDER.findall(text)) for text in pair]
            words = len(re.findall("[A-Za-z]{2,}", PLACEHOLDER.sub(" ", english)))
            is_plain = "\n" not in "".join(pair) and not re.search(r"[<>\\|]|--\w", english)
            if is_plain and held[0] and held[0] == held[1] and words > 1 and len(english) < 160:
                known.setdefault(file.stem, []).append(pair)
    assert known, f"{catalogues} has no catalogue with placeholders"
    chance, found, names = random.Random(seed), dict[str, str](), sorted(known)
    while len(found) < many:
        source, reference = chance.choice(known[chance.choice(names)])
        found.setdefault(source, reference)
    return list(found.items())


def messages(args: Namespace, page: Page) -> None:
    rows = []
    for model in args.models or [DEMO]:
        translator = Translator.from_folder(model, cpu=True, beam=5)
        sides = [translator.task.cfg.source_lang, translator.task.cfg.target_lang]
        pairs = drawn(args.catalogues, sides, f"test.{'-'.join(sides)}", args.limit or 100)
        for name, is_word in (("a number stands for it", WORD), ("not shown to the model", NONE)):
            atoms.NO_WORD_OF_SENTENCE = is_word
            out = [translator.translate_text(source).text for source, _ in pairs]
            once = sum(
                sorted(PLACEHOLDER.findall(text)) == sorted(PLACEHOLDER.findall(source))
                for text, (source, _) in zip(out, pairs, strict=True)
            )
            plain, references = (
                [QUOTES.sub('"', x) for x in side]
                for side in (out, [reference for _, reference in pairs])
            )
            score = sacrebleu.corpus_chrf(plain, [references]).score
            rows.append(["-".join(sides), name, f"{once} of {len(pairs)}", f"{score:.1f}"])
    page.add_table(["direction", "placeholder", "once each", "chrF"], rows)


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


CASES: dict[str, Callable[[Namespace, Page], None]] = dict(messages=messages, tags=tags)


def main(args: Namespace, page: Page, _: Path) -> None:
    if args.case == "messages" and args.catalogues is None:
        raise BenchError("messages needs --catalogues DIR")
    CASES[args.case](args, page)


if __name__ == "__main__":
    run_bench(main, __doc__, cases=CASES, has_text=False)

"""Required words without a source term: are they better put into a draft than forced in the search?

    python scripts/experiments/terminology/words_in_place.py [--model DIR] [--text PREFIX]
        [--limit N] [--sets rand1 rand2] [--beam 5] [--out OUT]

Words are drawn from the references (extract.py). draft: the translation without them. dba:
--select dba, what --constraints-file does. placed: each word that the draft lacks is written in the
place of one of its words, or behind one, wherever the text then has the best mean log-probability
by the model. searched again: the draft up to the word in its place is a prefix, and the rest is
searched again, with the words that are still missing forced; of the three best places, the one
whose translation scores best.

end: outputs whose last word is a required one that is not the reference's last. long,
repeats: as in constrained_stock.py.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [
    str(HERE.parents[1] / "bench"),
    *(str(HERE.parent / name) for name in (".", "optimal_ending", "dba")),
]

from constrained_stock import repeats  # noqa: E402
from extract import MORE_SETS, extract  # noqa: E402
from intervals import bleu, counts_of, interval, resampled  # noqa: E402
from placement_scores import as_word, ends_with  # noqa: E402
from report import write_page  # noqa: E402
from searches import (  # noqa: E402
    command_line,
    model_flags,
    quiet,
    read_text,
    run_script,
    text_arguments,
)
from write_up import table  # noqa: E402

from fairseq_ext.search.constraints.word_alignment import word_spans  # noqa: E402
from fairseq_ext.search.phrases.letter_case import fitted  # noqa: E402
from fairseq_ext.search.phrases.places import edited, edits  # noqa: E402
from fairseq_ext.translator import Translator  # noqa: E402

HEAD = [
    "set",
    "way",
    "BLEU",
    "over dba (95 % interval)",
    "mean score",
    "words met",
    "end",
    "long",
    "repeats",
]
PLACES = 3  # of a word, from which the search goes on
WORD = re.compile(r"\w")


def places(text: str, word: str, kept: Sequence[str], english: bool) -> dict[str, int]:
    """The text with a word in the place of one of its words, or behind one: each, and where the
    word ends there. kept: words to keep."""
    found = {}
    for start, end in [(0, 0), *word_spans(text)]:
        spans = [(end, end)] if end == 0 or text[start:end] in kept else [(start, end), (end, end)]
        for span in spans:
            cased = fitted(word, text, span, "en" if english else "")[0]
            made = edited(text, edits(text, [(span, cased)], english)).strip()
            found[made] = len(made) - len(text) + span[1]
    return found


class Words:
    """A text, the words that its translations need, and the ways to bring them in."""

    def __init__(
        self,
        translator: Translator,
        sources: Sequence[str],
        words: Sequence[Sequence[str]],
        english: bool,
    ):
        self.translator, self.sources, self.words, self.english = (
            translator,
            sources,
            words,
            english,
        )
        self.drafts = [best[0].text for best in translator.translate(sources)]

    def lacking(self, texts: Sequence[str]) -> list[list[str]]:
        """The words that each text lacks."""
        return [
            [w for w in words if not as_word(w).search(text)]
            for text, words in zip(texts, self.words, strict=True)
        ]

    def ranked(
        self, texts: Sequence[str], words: dict[int, str]
    ) -> dict[int, list[tuple[float, str, int]]]:
        """For each line its texts with a word in them, best mean log-probability first."""
        pairs = [
            (n, made, end)
            for n, word in words.items()
            for made, end in places(texts[n], word, self.words[n], self.english).items()
        ]
        scored = self.translator.score(
            [self.sources[n] for n, _, _ in pairs], [made for _, made, _ in pairs]
        )
        found: dict[int, list[tuple[float, str, int]]] = {}
        for (n, made, end), each in zip(pairs, scored, strict=True):
            found.setdefault(n, []).append((float(each.score), made, end))
        return {n: sorted(of_line, reverse=True) for n, of_line in found.items()}

    def placed(self) -> list[str]:
        """Drafts with their words in them, one word after the other."""
        texts = list(self.drafts)
        for _ in range(max(map(len, self.words))):
            missing = {n: words[0] for n, words in enumerate(self.lacking(texts)) if words}
            for n, [(_, made, _), *_] in self.ranked(texts, missing).items():
                texts[n] = made
        return texts

    def searched_again(self) -> list[str]:
        """The same, and what follows a word is searched again."""
        texts, lacking = list(self.drafts), self.lacking(self.drafts)
        ranked = self.ranked(texts, {n: words[0] for n, words in enumerate(lacking) if words})
        jobs = [
            (n, made[:end]) for n, of_line in ranked.items() for _, made, end in of_line[:PLACES]
        ]
        given = [[w for w in self.words[n] if not as_word(w).search(prefix)] for n, prefix in jobs]
        prefixes = [prefix for _, prefix in jobs]
        found = self.translator.translate(
            [self.sources[n] for n, _ in jobs], constraints=given, prefixes=prefixes
        )
        best: dict[int, tuple[float, str]] = {}
        for (n, _), nbest in zip(jobs, found, strict=True):
            best[n] = max(best.get(n, (-float("inf"), "")), (nbest[0].score, nbest[0].text))
        return [best[n][1] if n in best else text for n, text in enumerate(texts)]

    def dba(self) -> list[str]:
        """What constrained search makes."""
        return [
            best[0].text for best in self.translator.translate(self.sources, constraints=self.words)
        ]


def rows_of(name: str, words: Words, references: Sequence[str]) -> list[list[str]]:
    """The rows of a set."""
    texts = {
        "draft": words.drafts,
        "dba": words.dba(),
        "placed": words.placed(),
        "searched again": words.searched_again(),
    }
    counts = {way: counts_of(lines, references) for way, lines in texts.items()}
    rows = []
    for way, lines in texts.items():
        over = float(bleu(counts[way].sum(0))) - float(bleu(counts["dba"].sum(0)))
        low, high = interval(resampled(counts[way]) - resampled(counts["dba"]))
        mean = sum(each.score for each in words.translator.score(words.sources, lines)) / len(lines)
        missing = sum(map(len, words.lacking(lines)))
        given = list(zip(lines, references, words.words, words.drafts, strict=True))
        end = sum(
            any(ends_with(line, w) and not ends_with(reference, w) for w in of_line)
            for line, reference, of_line, _ in given
        )
        long = sum(
            len(line.split()) > 2 * len(draft.split()) + len(of_line)
            for line, _, of_line, draft in given
        )
        again = sum(repeats(line, [reference, draft]) for line, reference, _, draft in given)
        shown = "" if way == "dba" else f"{over:+.2f} ({low:+.2f} to {high:+.2f})"
        met = sum(map(len, words.words)) - missing
        rows.append(
            [
                name,
                way,
                f"{float(bleu(counts[way].sum(0))):.2f}",
                shown,
                f"{mean:.4f}",
                *map(str, (met, end, long, again)),
            ]
        )
    return rows


def main() -> None:
    parse = command_line(__doc__)
    text_arguments(parse)
    parse.add_argument("--sets", nargs="+", choices=MORE_SETS, default=["rand1", "rand2"])
    parse.add_argument("--beam", type=int, default=5, help="(5)")
    parse.add_argument("--seed", type=int, default=1, help="of the extraction (1)")
    parse.add_argument("--out", type=Path, help="write OUT.md")
    args: argparse.Namespace = parse.parse_args()
    quiet()
    sources, references = read_text(args.text, args.src, args.tgt, args.limit)
    translator = Translator(
        **model_flags(args.model, args.src, args.tgt), cpu=True, batch_size=64, beam=args.beam
    )
    usable = translator.task.session.sentences.constraint_source().segmenter.writable
    rows: list[list[str]] = []
    for name in args.sets:
        drawn = extract(
            references, name, args.seed, lambda word: usable(word) and WORD.search(word) is not None
        )
        words = [[word.strip(".,!?;:\"'") for word in line] for line in drawn]
        rows += rows_of(
            name, Words(translator, sources, words, args.tgt.startswith("en")), references
        )
    text = table(HEAD, rows)
    print(text)
    name = Path(args.text).name
    title = f"### Words without a source term: {name}, {len(sources)} sentences, beam {args.beam}"
    write_page(args.out, [title, "", text, ""])


if __name__ == "__main__":
    run_script(main)

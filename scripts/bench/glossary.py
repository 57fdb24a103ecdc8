"""How long a glossary of 100,000 entries takes to load and to match.

    python scripts/bench/glossary.py [--entries 100000] [--repeats 3] [--out OUT]

Made-up terms over the demo model's dictionaries and segmentation (checkpoints/demo). Times are
CPU seconds of one thread, the best of --repeats; loading includes the segmentation of sources
and the check of targets, matching is a sentence of 20 words that is segmented already. The
load with --glossary-match lemma includes the language's lemmas, which are loaded once. Status
1 unless the glossary loads in less than 3 s and matches in less than 0.1 ms a sentence with every
--glossary-match, and 20,000 lines of one source term load in less than 3 s.

    --entries N    (100000)
    --repeats N    (3)
    --out OUT      write OUT.md and OUT.json
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from fairseq.data import Dictionary
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE, SentencepieceConfig
from harness import least
from report import Page
from text import DEMO, command_line, run_script

from fairseq_ext.core.glossary import Languages
from fairseq_ext.core.lemmas import lemmatizer
from fairseq_ext.core.words import words_of
from fairseq_ext.search.constraints.glossary import Glossary, GlossaryOptions
from fairseq_ext.search.phrases.segmenter import Segmenter

MOST_LOAD, MOST_MATCH = 3.0, 1e-4  # seconds
SENTENCES, LENGTH = 2_000, 20
HEAD = ["glossary", "lines", "load, s", "first sentence, s", "each sentence, ms"]
ONE = "one source term"


def seconds_of(entries: int, match: str, repeats: int) -> tuple[float, float, float]:
    """Seconds to load a glossary of made-up entries, to match the first sentence, and to match
    each of many; match: a --glossary-match, or ONE."""
    draw = random.Random(1)
    target = Dictionary.load(str(DEMO / "dict.en.txt"))
    bpe = SentencepieceBPE(SentencepieceConfig(sentencepiece_model=str(DEMO / "spm.model")))
    segmenter = Segmenter(target, None, bpe)
    starts = (symbol[1:] for symbol in target.symbols if symbol.startswith("▁"))
    known = [word for word in starts if word.isalpha()]

    def word() -> str:
        return "".join(draw.choices("abcdefghiklmnoprstu", k=draw.randint(4, 9)))

    sentences = [words_of(" ".join(word() for _ in range(LENGTH))) for _ in range(SENTENCES)]
    sources = (f"{word()} {word()}" if i % 3 == 0 else word() for i in range(entries))
    if match == ONE:
        sources, match = ("haus" for _ in range(entries)), "surface"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "terms.tsv"
        file.write_text(
            "".join(f"{source}\t{' '.join(draw.choices(known, k=3))}\n" for source in sources)
        )
        options = GlossaryOptions(str(file), match, "once", Languages("de", "en"))
        lemmas = least(lambda: lemmatizer("de", "--glossary-match lemma"), 1)[0]
        load, glossary = least(lambda: Glossary(options, segmenter), repeats)
    first, _ = least(lambda: glossary.required(sentences[0]), 1)
    each, _ = least(lambda: [glossary.required(words) for words in sentences], repeats)
    return load + lemmas * (match == "lemma"), first, each / SENTENCES


def main(argv: list[str] | None = None) -> int:
    """Print the times; the exit status."""
    args = command_line(__doc__).parse_args(argv)
    rows, failed = [], False
    for match in ("surface", "casefold", "lemma", ONE):
        entries = 20_000 if match == ONE else args.entries
        load, first, each = seconds_of(entries, match, args.repeats)
        assert min(load, first, each) > 0
        name = ONE if match == ONE else f"--glossary-match {match}"
        rows.append([name, f"{entries:,}", f"{load:.4f}", f"{first:.4f}", f"{1000 * each:.4f}"])
        failed |= load >= MOST_LOAD or (match != ONE and each >= MOST_MATCH)
    Page(args.out).add_table(HEAD, rows, "glossaries")
    return int(failed)


if __name__ == "__main__":
    run_script(main)

"""Generates the demo corpus: German-English sentence pairs of two domains, from our own
grammar and lexicon.

    python data/demo/generate.py --out DIR [--seed 1] [--train N] [--dev N] [--test N]

writes {train,dev,test}.{de,en,domain} and glossary.{tech,clinic}.tsv. No dev or test sentence
occurs in train. The same arguments give the same files. In train only, a small share (`--careless`)
of the longer sentences is translated incompletely, as happens in found corpora: that is what makes
models prefer translations that are too short under a large beam.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import domains
import english
from sentences import Pair, Sentences, tidy
from vocabulary import Vocabulary, read_nouns


def careless(pair: Pair) -> str:
    """The English with its last part left out."""
    return tidy(" ".join(pair.units[:-1]) + pair.english[-1])


def write_glossary(path: Path, domain: str) -> None:
    """The terms that the domains translate differently, as `German TAB English|English`,
    singular and plural."""
    entries: dict[str, list[str]] = {}
    for noun in read_nouns(domains.TERMS, domain):
        words = entries.setdefault(noun.german.singular, [])
        words += noun.english
        if noun.german.plural != "-":
            plural = entries.setdefault(noun.german.plural, [])
            plural += [english.plural(word) for word in noun.english]
    lines = [
        f"{term}\t{'|'.join(dict.fromkeys(words))}\n" for term, words in sorted(entries.items())
    ]
    path.write_text("".join(lines), encoding="utf-8")


def write_split(out: Path, name: str, rows: list[tuple[str, str, str]]) -> None:
    """Write German, English and domain, one line each."""
    for column, suffix in enumerate(("de", "en", "domain")):
        text = "".join(row[column] + "\n" for row in rows)
        (out / f"{name}.{suffix}").write_text(text, encoding="utf-8")


def main() -> None:
    """Generate test, dev and train in this order, so that their sizes do not
    change the test set."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train", type=int, default=80000, help="sentence pairs in train")
    parser.add_argument("--dev", type=int, default=500, help="sentence pairs in dev")
    parser.add_argument("--test", type=int, default=1000, help="sentence pairs in test")
    parser.add_argument(
        "--careless", type=float, default=0.04, help="share of long train sentences cut short"
    )
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    makers = {domain: Sentences(Vocabulary(domain)) for domain in domains.DOMAINS}
    seen: set[str] = set()
    for name, count in (("test", args.test), ("dev", args.dev), ("train", args.train)):
        rng = random.Random(f"{args.seed}-{name}")
        rows: list[tuple[str, str, str]] = []
        while len(rows) < count:
            domain = rng.choice(domains.DOMAINS)
            pair = makers[domain].pair(rng)
            if pair.german in seen:
                continue
            if name != "train":
                seen.add(pair.german)
            text = pair.english
            if name == "train" and len(pair.units) > 1 and rng.random() < args.careless:
                text = careless(pair)
            rows.append((pair.german, text, domain))
        if rows:
            write_split(args.out, name, rows)
    for domain in domains.DOMAINS:
        write_glossary(args.out / f"glossary.{domain}.tsv", domain)


if __name__ == "__main__":
    main()

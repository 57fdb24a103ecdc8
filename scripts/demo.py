"""What scripts/demo.sh runs: three sentences with and without required terms, then fairseq-generate
on a test set once per strategy, and a table of what each costs and gives.

A strategy is a line of `STRATEGIES`: its name and the flags that choose it. `NOTES` says where one
does not pay on this model.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple, NoReturn

import demo_examples
import sacrebleu
import sentencepiece

ROOT = Path(__file__).resolve().parent.parent
OURS = ["--user-dir", str(ROOT / "fairseq_ext"), "--task", "translation_ext"]
STOCK = "stock"

CERTIFIED = [*OURS, "--unnormalized", "--stop", "optimal", "--prune-bound"]
GREEDY = "greedy"

STRATEGIES: dict[str, list[str]] = {
    STOCK: [],
    "ours (defaults)": OURS,
    "ours (fairseq's own modules)": [*OURS, "--decoder-backend", "fairseq"],
    "terminology (dba)": [*OURS, "--constraints-file", "{work}/terms.tsv"],
    "streaming": [*OURS, "--schedule", "stream"],
    "streaming, variable width": [
        *OURS,
        "--schedule",
        "stream",
        "--prune-threshold",
        "1.5",
        "--prune-children",
        "3",
    ],
    "LSH softmax": [*OURS, "--softmax", "lsh", "--lsh-top", "2000"],
    "screened softmax": [*OURS, "--softmax", "screened"],
    "unnormalised scores": [*OURS, "--unnormalized"],
    "optimal ending, unnormalised scores": CERTIFIED,
    "optimal ending, length reward": [
        *CERTIFIED,
        "--length-reward",
        "0.6",
        "--length-ratio",
        "1.0",
    ],
    GREEDY: [*OURS, "--beam", "1"],
    "greedy again (window)": [
        *OURS,
        "--beam",
        "1",
        "--decoding",
        "window",
        "--draft-file",
        "{work}/drafts.txt",
    ],
}
NOTES = {
    "streaming": "the same output; on a CPU refilling by itself gains little, variable width does: "
    "docs/streaming.md",
    "terminology (dba)": "terms of the glossary of the line's domain, where the reference "
    "has them too",
    "LSH softmax": "loses here: with 3,488 words hashing costs more than it saves, and BLEU too; "
    "it pays above about 20,000 words",
    "screened softmax": "the same output; pays above about 20,000 words as well",
    "unnormalised scores": "unnormalised scores prefer short output, which the two rows below mend",
    "greedy again (window)": "the drafts are the output of the row above",
}


class Result(NamedTuple):
    """What one run gave: hypotheses by line of the test set, its speed, and the statistics where
    the strategy is one of ours."""

    hypotheses: dict[int, str]
    sentences_per_second: float
    stats: dict
    beam: int


def fail(message: str) -> NoReturn:
    sys.exit(f"demo: {message}")


def say(message: str) -> None:
    print(f"demo: {message}", flush=True)


def command_output(command: list[str], log: Path) -> str:
    """The standard output of a command that must succeed; its messages go to `log`."""
    with log.open("w", encoding="utf-8") as messages:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=messages,
            stdin=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
    if done.returncode:
        last = [
            line
            for line in (log.read_text(encoding="utf-8") + done.stdout).splitlines()
            if line.strip()
        ][-1:]
        raise RuntimeError(
            f"{command[0]} ended with {done.returncode}: "
            f"{last[0].strip() if last else 'no message'} (see {log})"
        )
    return done.stdout


def read_lines(path: Path, limit: int | None) -> list[str]:
    if not path.is_file():
        fail(f"{path} is missing; a clone has it, or name another with --model and --test.")
    # not splitlines(): that also splits at characters that a sentence may hold
    with path.open(encoding="utf-8") as lines:
        return [
            line.rstrip("\n") for line, _ in zip(lines, range(limit or sys.maxsize), strict=False)
        ]


def binarise(args: argparse.Namespace, text: dict[str, list[str]]) -> Path:
    """Segment the text with the model's SentencePiece model and binarise it with the
    model's dictionaries."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(args.model / "spm.model"))
    for language, lines in text.items():
        segmented = (" ".join(pieces.encode(line, out_type=str)) + "\n" for line in lines)
        (args.work / f"test.{language}").write_text("".join(segmented), encoding="utf-8")
    target = args.work / "bin"
    dictionaries = [
        f"--{side}dict={args.model / f'dict.{language}.txt'}"
        for side, language in (("src", args.src), ("tgt", args.tgt))
    ]
    command = [
        "fairseq-preprocess",
        "--source-lang",
        args.src,
        "--target-lang",
        args.tgt,
        "--testpref",
        str(args.work / "test"),
    ]
    command_output(
        [*command, *dictionaries, "--destdir", str(target)], args.work / "preprocess.log"
    )
    return target


def write_terms(args: argparse.Namespace, source: list[str], reference: list[str]) -> None:
    """The terms that each translation must contain, as --constraints-file reads them: what the
    glossary of the line's domain says of its words and its reference confirms; for a text without
    domains, the longest word of the reference."""
    domain_file = Path(f"{args.test}.domain")
    if domain_file.is_file():
        domains = read_lines(domain_file, args.limit)
        files = {name: domain_file.with_name(f"glossary.{name}.tsv") for name in set(domains)}
        glossary = {
            name: [line.split("\t") for line in read_lines(path, None)]
            for name, path in files.items()
        }
        terms = [
            [
                word
                for term, targets in glossary[domain]
                if re.search(rf"\b{term}\b", line)
                for word in targets.split("|")
                if word in translation.split()
            ]
            for domain, line, translation in zip(domains, source, reference, strict=True)
        ]
    else:
        terms = [[max(translation.split(), key=len, default="")] for translation in reference]
    lines = ("\t".join(dict.fromkeys(filter(None, line))) + "\n" for line in terms)
    (args.work / "terms.tsv").write_text("".join(lines), encoding="utf-8")


def generate(args: argparse.Namespace, data: Path, name: str, flags: list[str]) -> Result:
    """One fairseq-generate run, read back from what it prints."""
    flags = [flag.format(work=args.work) for flag in flags]
    stem = re.sub(r"\W+", "-", name).strip("-")
    stats_file = args.work / f"{stem}.json"
    stats_file.unlink(missing_ok=True)
    command = [
        "fairseq-generate",
        str(data),
        "--path",
        str(args.model / "checkpoint.pt"),
        "--source-lang",
        args.src,
    ]
    command += [
        "--target-lang",
        args.tgt,
        "--bpe",
        "sentencepiece",
        "--sentencepiece-model",
        str(args.model / "spm.model"),
    ]
    command += ["--beam", str(args.beam), "--max-tokens", "4000", *flags]
    command += ["--stats-file", str(stats_file)] if "--user-dir" in flags else []
    log = args.work / f"{stem}.log"
    output = command_output(command, log)
    (args.work / f"{stem}.out").write_text(output, encoding="utf-8")
    found = re.findall(r"^D-(\d+)\t[^\t]*\t(.*)$", output, flags=re.MULTILINE)
    # the first of an n-best list is the best
    hypotheses = {int(line): hypothesis for line, hypothesis in reversed(found)}
    speed = re.search(
        r"Translated .* \(([\d.,]+) sentences/s", log.read_text(encoding="utf-8") + output
    )
    if not speed:
        raise RuntimeError(f"fairseq-generate reports no speed (see {log})")
    stats = json.loads(stats_file.read_text(encoding="utf-8")) if stats_file.exists() else {}
    if name == GREEDY:  # segmented, as --draft-file takes them
        segmented = dict(re.findall(r"^H-(\d+)\t[^\t]*\t(.*)$", output, flags=re.MULTILINE))
        drafts = "".join(segmented[str(line)] + "\n" for line in range(len(segmented)))
        (args.work / "drafts.txt").write_text(drafts, encoding="utf-8")
    beam = int(flags[flags.index("--beam") + 1]) if "--beam" in flags else args.beam
    return Result(hypotheses, float(speed[1].replace(",", "")), stats, beam)


def table(results: dict[str, Result], references: list[str]) -> str:
    """The results as Markdown, padded so that it also reads well as it stands."""
    rows = [["strategy", "beam", "BLEU", "sentences/s", "decoder calls", "ratio to stock"]]
    for name, result in results.items():
        bleu = sacrebleu.corpus_bleu(
            [result.hypotheses.get(i, "") for i in range(len(references))], [references]
        ).score
        ratio = (
            f"{result.sentences_per_second / results[STOCK].sentences_per_second:.2f}x"
            if STOCK in results
            else "-"
        )
        calls = f"{result.stats['decoder_calls']:,}" if "decoder_calls" in result.stats else "-"
        rows.append(
            [
                name,
                str(result.beam),
                f"{bleu:.2f}",
                f"{result.sentences_per_second:.1f}",
                calls,
                ratio,
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    rulers = ["-" * (width + 1) + (":" if column else "-") for column, width in enumerate(widths)]
    lines.insert(1, f"|{'|'.join(rulers)}|")
    return "\n".join(lines)


TRY_NEXT = """
Try next, from any folder (the first line once):
  . {root}/.venv/bin/activate; export CLONE={root} DEMO={root}/checkpoints/demo

  printf 'Verband\\tbandage\\n' > glossary.tsv
  echo "Der Verband wird morgen geprüft." | fairseq-interactive $DEMO \\
    --path $DEMO/checkpoint.pt -s de -t en \\
    --bpe sentencepiece --sentencepiece-model $DEMO/spm.model \\
    --task translation_ext --glossary glossary.tsv

  $CLONE/scripts/demo.sh --serve    # a server with a page for people, at http://127.0.0.1:8000

More commands, and yours: {root}/docs/quickstart.md"""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/demo.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--limit", type=int, default=300, metavar="N", help="the first N sentences (300; 0: all)"
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="this strategy only (more than once: these)"
    )
    parser.add_argument("--beam", type=int, default=5, metavar="K")
    parser.add_argument("--model", type=Path, default=ROOT / "checkpoints" / "demo", metavar="DIR")
    parser.add_argument(
        "--test", type=Path, default=ROOT / "data" / "demo" / "test", metavar="PREFIX"
    )
    parser.add_argument("--src", default="de")
    parser.add_argument("--tgt", default="en")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "demo", metavar="DIR")
    parser.add_argument(
        "--list", action="store_true", help="name the strategies and their flags, and stop"
    )
    args = parser.parse_args()
    unknown = [name for name in args.only or [] if name not in STRATEGIES]
    if unknown:
        fail(f"no strategy '{unknown[0]}'; there are: {', '.join(STRATEGIES)}.")
    if args.limit < 0:
        fail(f"--limit {args.limit}: name a number of sentences, or 0 for all.")
    return args


def main() -> None:
    args = parse()
    if args.list:
        for name, flags in STRATEGIES.items():
            print(f"{name}: {' '.join(flags) or '(no flag)'}")
        return
    for name in ("checkpoint.pt", "spm.model", f"dict.{args.src}.txt", f"dict.{args.tgt}.txt"):
        if not (args.model / name).is_file():
            fail(
                f"{args.model / name} is missing; scripts/train_demo.sh makes the demo model, "
                "--model names another."
            )
    text = {
        language: read_lines(Path(f"{args.test}.{language}"), args.limit)
        for language in (args.src, args.tgt)
    }
    if len(text[args.src]) != len(text[args.tgt]):
        fail(f"{args.test}.{args.src} and .{args.tgt} have different numbers of lines.")
    args.work.mkdir(parents=True, exist_ok=True)
    say(
        f"binarising {len(text[args.src]):,} sentences of {args.test}.{args.src} into "
        f"{args.work / 'bin'}"
    )
    try:
        data = binarise(args, text)
        write_terms(args, text[args.src], text[args.tgt])
    except RuntimeError as error:
        fail(str(error))

    if args.model == ROOT / "checkpoints" / "demo" and not args.only:
        try:
            demo_examples.show(args, OURS, command_output)
        except RuntimeError as error:
            fail(str(error))
    results: dict[str, Result] = {}
    failed = []
    for name in args.only or STRATEGIES:
        say(f"translating {len(text[args.src]):,} sentences: {name}")
        try:
            results[name] = generate(args, data, name, STRATEGIES[name])
        except RuntimeError as error:
            failed.append(name)
            say(f"{name} failed: {error}")
            continue
    if results:
        print(f"\n{table(results, text[args.tgt])}\n")
        for name in (name for name in results if name in NOTES):
            print(f"  {name}: {NOTES[name]}")
        signatures = [
            f"{name}: {result.stats['signature']}\n"
            for name, result in results.items()
            if "signature" in result.stats
        ]
        (args.work / "signatures.txt").write_text("".join(signatures), encoding="utf-8")
        print(
            "\nDecoding time only, each strategy once: a first impression (scripts/bench measures)."
        )
        print(f"Outputs, logs and signatures.txt, which says how each row was made: {args.work}")
    print(TRY_NEXT.format(root=ROOT))
    if failed:
        fail(f"failed: {', '.join(failed)}.")


if __name__ == "__main__":
    main()

"""The contract: what users have been promised, as requests and their answers.

A record against regressions, no proof. `requests.json` has about two hundred requests, and
`answers.jsonl` what every entry point must answer. One process an entry point goes through the
whole table: fairseq-generate, fairseq-interactive, Translator, python -m fairseq_ext.translate,
Engine, the server's HTTP, and python -m fairseq_ext.corpus translate. Only public ways are used.
There is no trained model into German here: the row with a German glossary has a random one.

    python tests/contract/run.py                       # all rows at all entry points
    python tests/contract/run.py --entry engine ROW    # one of them
    python tests/contract/run.py --record ROW          # a new row's answer; refuses to overwrite
    pytest tests/contract                              # the same, in the suite

A changed answer is a commit of its own, whose message names the row and says why: remove the row's
line from answers.jsonl and record it again.

A request: `model` (seeded_models.py), `lines` or `text`, `flags` as a Translator's keywords, and
what a call can have of its own: `nbest`, `seed`, `terms`, `records` (a line of a JSONL constraints
file each). "{name}" in a flag's value is a file with the content `files[name]`. `then`: flags of a
second run, which continues the first one's results file. `show`: statistics that belong to the
answer. `twice`: `translate` answers from what its first start has saved.
`entries`: which entry points have a row; default all. `like`: another row, of which this one has
all that it does not give itself, and its flags in addition; `defaults`: further flags, at their
defaults, with which the answer stays that row's.

An answer: `lines` (n-best lists of [text, score], or an error), `unmet` and `met` phrases, `stats`,
or `refused`, a sentence; `status` of a command; `tolerance` of scores where it is a wider one. An
entry point must agree in all that it gives. `except` holds where one differs by design, such as in
a sentence's words. `origin` says where the answer is from. A reference, stock fairseq's or by brute
force (enumeration.py), is computed again when a row is recorded.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from entry_points import ENTRIES, Interactive  # noqa: E402
from json_counts import close  # noqa: E402

ENVIRONMENT = {
    "FAIRSEQ_EXT_STRATEGIES": str(HERE / "seeded_models.py"),
    "OMP_NUM_THREADS": "1",
    "PYTHONUTF8": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
TOLERANCE = 1e-4  # of scores, in nats
BRUTE_FORCE = "brute force"
MARGIN = 2e-3  # between hypotheses of float32 models, so that other machines agree


def table():
    """The requests by name."""
    given = json.loads((HERE / "requests.json").read_text("utf-8"))
    rows = {}
    for row in given["rows"]:
        row = rows.get(row.get("like"), {}) | row
        flags = {**rows.get(row.get("like"), {}).get("flags", {}), **row.get("flags", {})}
        row["flags"] = flags | row.get("defaults", {})
        lines = row.get("lines", row["model"] if "text" not in row else [])
        rows[row["row"]] = row | {"lines": given["lines"][lines] if type(lines) is str else lines}
    return rows


def answers():
    """The recorded answers by name."""
    text = (HERE / "answers.jsonl").read_text("utf-8")
    return {each["row"]: each for each in map(json.loads, text.splitlines())}


def offered(row, entry):
    """Whether an entry point has a row."""
    return entry in row.get("entries", ENTRIES)


def expected(answer, entry):
    """The answer of one entry point."""
    other = answer.get("except", {}).get(entry, {})
    if other and "refused" in {**other, **answer["answer"]}:
        return other
    return answer["answer"] | other


def differences(entry, wanted, found):
    """In what an answer differs."""
    lines = wanted.get("lines", [])
    status = 1 if "refused" in wanted else 3 if any(type(each) is dict for each in lines) else 0
    wanted = {"status": status} | wanted
    tolerance = wanted.get("tolerance", TOLERANCE)
    names = {*found} | {"lines", "refused", "text", *ENTRIES[entry].gives} & {*wanted}
    out = []
    for name in sorted(names):
        a, b = wanted.get(name), found.get(name)
        if name == "lines" and a and b and len(a) == len(b):
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                if type(x) is list and type(y) is list:
                    x = x[:1] if entry == "translate" else x
                    least = 1 if entry == "translate" else 2  # text and score; the utility
                    x = [h[: max(least, len(g))] for h, g in zip(x, y, strict=False)] + x[len(y) :]
                if not close(x, y, tolerance):
                    out.append(f"line {i}: expected {x}\n{' ' * 11}found {y}")
        elif not close(a, b, TOLERANCE):
            out.append(f"{name}: expected {a}\n{' ' * len(name)}  found {b}")
    return out


def answered(entry, rows, folder):
    """The answers of an entry point, in a process of its own."""
    names = [row["row"] for row in rows if offered(row, entry)]
    if not names:
        return {}
    cache = folder / "fairseq_ext"  # of `translate`, with what is compiled
    if not cache.exists():
        kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / cache.name
        if kept.exists():
            shutil.copytree(kept, cache, ignore=shutil.ignore_patterns("model-*"))
    command = [sys.executable, __file__, "--process", str(folder), "--entry", entry, *names]
    environment = {**os.environ, **ENVIRONMENT, "XDG_CACHE_HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{entry}: {done.stderr[-3000:]}")
    return json.loads(done.stdout)


def broken(entry, rows, folder):
    """What an entry point answers otherwise than it should, a text each."""
    given = answers()
    return [
        f"{name} at {entry}: {said}"
        for name, found in answered(entry, rows, folder).items()
        for said in differences(entry, expected(given[name], entry), found)
    ]


def process(entry, rows, folder):
    """Print the answers of an entry point."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print
    import seeded_models
    import warm

    seeded_models.save(folder)
    if entry in ("engine", "http"):
        sys.executable = warm.python()
    print(json.dumps(dict(ENTRIES[entry](folder).run(rows))), file=out, flush=True)


def reference(row, folder):
    """The answer of a row's `reference`: by brute force, or of other flags of a command, stock's
    unless it says so."""
    from enumeration import enumerated

    if row["reference"] == BRUTE_FORCE:
        return {"lines": enumerated(row, folder), "status": 0}
    flags = {**row["reference"]}
    entry = ENTRIES[flags.pop("command", "interactive")](folder)
    assert isinstance(entry, Interactive)
    entry.task = flags.pop("task", "translation")
    other = {
        name: row[name] for name in ("row", "model", "lines", "targets", "nbest") if name in row
    }
    return dict(entry.run([other | {"flags": flags}]))[row["row"]]


def record(row, found, folder):
    """A new answer of what the entry points have answered, with what differs among them."""
    found = {entry: found[entry] for entry in ("translator", *found) if entry in found}
    answer = {}
    for each in found.values():  # the first that has a key
        if "crashed" in each:
            raise RuntimeError(each["crashed"])
        answer |= {k: v for k, v in each.items() if k not in (*answer, "status")}
    if "refused" in answer and "lines" in answer:
        del answer["refused"]
    commit = ["git", "-C", str(HERE), "rev-parse", "--short=8", "HEAD"]
    origin = "recorded at " + subprocess.check_output(commit, text=True).strip()
    if row.get("reference"):
        made = reference(row, folder)
        if said := differences(
            "interactive", made, {"lines": answer.get("lines"), "status": made["status"]}
        ):
            raise RuntimeError(f"{row['row']} differs from its reference: {said}")
        answer["lines"] = made["lines"]
        given = row["reference"]
        made_by = given if given == BRUTE_FORCE else given.get("task", "stock fairseq")
        origin = row.get("origin", made_by)
    for nbest in answer.get("lines", []) if row["model"] in ("demo", "float32") else []:
        for better, worse in zip(nbest, nbest[1:], strict=False) if type(nbest) is list else []:
            if better[1] - worse[1] < MARGIN and better[0] != worse[0] and "mbr" not in str(row):
                raise RuntimeError(f"{row['row']}: no clear lead of {better} over {worse}")
    others = {}
    for entry, each in found.items():
        if differences(entry, answer, each):
            others[entry] = {
                k: v
                for k, v in each.items()
                if differences(entry, answer, {k: v})
                and any(line.startswith((k, k[:-1])) for line in differences(entry, answer, {k: v}))
            }
    made = {"row": row["row"], "origin": origin, "answer": rounded(answer)}
    return made | ({"except": rounded(others)} if others else {})


def rounded(value):
    """An answer as it is written down."""
    return json.loads(json.dumps(value), parse_float=lambda text: round(float(text), 6))


def main():
    parse = argparse.ArgumentParser(description="Check or record rows of the contract.")
    parse.add_argument("rows", nargs="*", metavar="ROW", help="default: all")
    parse.add_argument("--entry", choices=list(ENTRIES), help="one entry point")
    parse.add_argument("--record", action="store_true", help="rows that have no answer yet")
    parse.add_argument("--process", metavar="FOLDER", help=argparse.SUPPRESS)
    args = parse.parse_args()
    os.environ.update(ENVIRONMENT)
    requests = table()
    rows = [requests[name] for name in args.rows or requests]
    if args.process:
        process(args.entry, rows, Path(args.process))
        return 0
    given, failed = answers(), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.record:
            if old := [row["row"] for row in rows if row["row"] in given]:
                print(f"these have answers, remove their lines from answers.jsonl first: {old}")
                return 1
            found = {entry: answered(entry, rows, folder) for entry in ENTRIES}
            for row in rows:
                try:
                    of_row = {k: v[row["row"]] for k, v in found.items() if row["row"] in v}
                    made = json.dumps(record(row, of_row, folder), ensure_ascii=False)
                except RuntimeError as error:
                    print(f"{row['row']}: {error}")
                    failed += 1
                else:
                    print(made)
                    with open(HERE / "answers.jsonl", "a", encoding="utf-8") as file:
                        print(made, file=file)
            return min(failed, 1)
        for entry in [args.entry] if args.entry else ENTRIES:
            for said in broken(entry, rows, folder):
                failed += 1
                print(said)
    print(f"{failed} differences")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())

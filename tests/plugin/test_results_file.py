"""--results-file and --resume: what was done is never done again, and the output is that
of an undisturbed run."""

import contextlib
import json
import os
import re
import resource
import signal
import time

import pytest
import torch
from demo_model import MODEL, OURS
from forked import Child, command, in_fork, interactive_forked, interactive_main
from models import build, generators
from sizes import drawn, part_of

from fairseq_ext import UsageError
from fairseq_ext.plugin.results import Result, ResultsFile, checksum
from fairseq_ext.plugin.run import run_key
from fairseq_ext.search.finished import Hypothesis

FLAGS = [
    "--user-dir",
    "fairseq_ext",
    "--task",
    "translation_ext",
    "--beam",
    3,
    "--nbest",
    2,
    "--cpu",
    "--no-progress-bar",
]
STREAM = ["--schedule", "stream", "--stream-width", 3]


def generate(tiny, *flags, **keywords):
    arguments = [tiny / "data", "--path", tiny / "model.pt", "--gen-subset", "test", *FLAGS, *flags]
    return command("fairseq-generate", *arguments, **keywords)


def opened(path, resume=False, made_from=None) -> ResultsFile:
    return ResultsFile(str(path), resume, "ours", made_from or {"--beam": "3"}, 100)


def results(output: str) -> list[str]:
    return sorted(
        line for line in output.splitlines() if line[:2] in ("S-", "T-", "H-", "D-", "P-")
    )


def agree(expected: list[str], got: list[str]) -> bool:
    """The same lines, numbers within 1e-5: in single precision they depend on which sentences
    are decoded together."""

    def parts(line: str) -> tuple[list[str], list[float]]:
        words = line.replace("\t", " ").split()
        numbers = [w for w in words[1:] if re.fullmatch(r"-?\d+\.\d+(e-\d+)?", w)]
        return [w for w in words if w not in numbers], [float(n) for n in numbers]

    pairs = [(parts(a), parts(b)) for a, b in zip(expected, got, strict=True)]
    return all(a[0] == b[0] and b[1] == pytest.approx(a[1], abs=1e-5) for a, b in pairs)


def records(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@drawn(1)
@pytest.mark.parametrize("flags", [[], STREAM], ids=["batch", "stream"])
def test_a_run_cut_short_anywhere_ends_with_the_same_output(tiny, tmp_path, flags):
    expected = results(generate(tiny, *flags).stdout)
    path, stats = tmp_path / "results.jsonl", tmp_path / "stats.json"
    whole = generate(tiny, *flags, "--results-file", path)
    assert results(whole.stdout) == expected
    assert sorted(r["id"] for r in records(path)[1:]) == list(range(11))
    best = {
        int(line.split("\t")[0][2:]): line.split("\t")[2]
        for line in reversed(whole.stdout.splitlines())
        if line.startswith("H-")
    }
    assert {r["id"]: r["text"] for r in records(path)[1:]} == best
    content = path.read_bytes()
    # within a line, after one
    for cut in (len(content) // 2, content.index(b"\n", len(content) // 3) + 1)[
        : 2 if flags else 1
    ]:
        path.write_bytes(content[:cut])
        again = generate(tiny, *flags, "--results-file", path, "--resume", "--stats-file", stats)
        assert agree(expected, results(again.stdout))
        assert sorted(r["id"] for r in records(path)[1:]) == list(range(11))
        # work really done
        assert json.loads(stats.read_text())["sentences"] == 11 - (content[:cut].count(b"\n") - 1)


def test_a_run_goes_on_with_another_schedule(tiny, tmp_path):
    path = tmp_path / "results.jsonl"
    expected = results(generate(tiny, *STREAM, "--results-file", path).stdout)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:6]))
    for flags in (
        ["--schedule", "stream", "--stream-rows", "7"],
        ["--schedule", "batch", "--batch-size", "2"],
    ):
        assert agree(
            expected, results(generate(tiny, *flags, "--results-file", path, "--resume").stdout)
        )
    assert sorted(r["id"] for r in records(path)[1:]) == list(range(11))


def test_killed_and_resumed_gives_the_same_file(tiny, tmp_path):
    lines = (tiny / "test.de").read_text() * 60
    path = tmp_path / "results.jsonl"
    arguments = [
        "fairseq-interactive",
        str(tiny / "data"),
        "--path",
        str(tiny / "model.pt"),
        *map(str, FLAGS + STREAM),
        "--buffer-size",
        "200",
        "--results-file",
        str(path),
    ]
    (tmp_path / "lines").write_text(lines)
    kills, most = 0, len(part_of(3, 1))
    for _ in range(30):
        resume = ["--resume"] if path.exists() else []
        with open(tmp_path / "lines") as stdin, open(tmp_path / "out", "w") as out:
            run = Child(
                interactive_main, [*arguments, *resume], stdin=stdin.fileno(), stdout=out.fileno()
            )
            before = path.stat().st_size if path.exists() else 0
            while (
                run.is_alive()
                and kills < most
                and (path.stat().st_size if path.exists() else 0) < before + 20_000
            ):
                time.sleep(0.01)
            if run.is_alive() and kills < most:
                os.kill(run.pid, signal.SIGKILL)
                kills += 1
            status = run.wait().status
        if status == 0:
            break
    assert kills == most and status == 0
    undisturbed = tmp_path / "undisturbed.jsonl"
    expected = command("fairseq-interactive", *arguments[1:-1], undisturbed, stdin=lines)
    assert agree(results(expected.stdout), results((tmp_path / "out").read_text()))
    wanted, got = records(undisturbed), records(path)
    assert got[0] == wanted[0]  # the signature
    by_id = [sorted(file[1:], key=lambda record: record["id"]) for file in (wanted, got)]
    assert [r["id"] for r in by_id[1]] == list(range(660))
    for a, b in zip(*by_id, strict=True):
        without = {"hypotheses": None, "sha256": None}  # scores are in both
        assert a | without == b | without  # number, checksum of the source, text
        assert [h["tokens"] for h in a["hypotheses"]] == [h["tokens"] for h in b["hypotheses"]]
        # next to other sentences: single precision rounds otherwise
        for h, g in zip(a["hypotheses"], b["hypotheses"], strict=True):
            assert [g["score"], *g["positional_scores"]] == pytest.approx(
                [h["score"], *h["positional_scores"]], abs=1e-4
            )


def test_a_file_that_is_there_already_is_refused_without_resume(tiny, tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"signature": "x"}\n')
    done = generate(tiny, "--results-file", path, check=False)
    assert done.returncode != 0 and "has results already: add --resume" in done.stderr
    assert path.read_text() == '{"signature": "x"}\n'


def test_files_that_cannot_be_continued_are_refused(tmp_path):
    path, tokens, device = tmp_path / "results.jsonl", torch.tensor([5, 6, 2]), torch.device("cpu")
    source = checksum(tokens, None)
    found = [Hypothesis(tokens, -1.5, torch.tensor([-0.5, -0.5, -0.5]))]
    opened(path).add(Result(3, source, "text", found))
    again = opened(path, True)
    [h] = again.hypotheses(3, source, device)
    assert (
        h.tokens.tolist() == [5, 6, 2]
        and h.score == -1.5
        and again.hypotheses(4, source, device) == []
    )
    others = (checksum(torch.tensor([i, j, 2]), None) for i in range(4, 400) for j in range(4, 99))
    alike = next(each for each in others if each[:2] == source[:2] and each != source)
    for other in (checksum(torch.tensor([5, 7, 2]), None), checksum(tokens, "a constraint"), alike):
        with pytest.raises(UsageError, match="was translated from another source"):
            again.hypotheses(3, other, device)
    again.close()
    with pytest.raises(UsageError, match="is a directory"):
        opened(tmp_path, True)
    path.write_text("no json\n{}\n")
    with pytest.raises(UsageError, match="line 1, is not a line of a results file"):
        opened(path, True)
    with pytest.raises(UsageError, match="cannot be written"):
        opened(tmp_path / "nowhere" / "x")


def test_a_disk_that_is_full_is_reported_in_a_sentence(tmp_path):
    """The sentences before are on disk, and the same command goes on with them."""
    path, device = tmp_path / "results.jsonl", torch.device("cpu")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    found = [Hypothesis(torch.tensor([5, 2]), -1.5, torch.tensor([-0.5, -1.0]))]
    results = opened(path)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, limits[1]))
        with pytest.raises(UsageError, match="cannot be written .*: make room and add --resume"):
            for number in range(100):
                results.add(Result(number, "source", "text", found))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    # a program that goes on: no half line is before it
    results.add(Result(500, "source", "text", found))
    results.close()
    again = opened(path, True)
    assert 1 < number == len(again.done) - 1 and again.done[500]
    assert again.hypotheses(0, "source", device)
    with pytest.raises(UsageError, match="/dev/full cannot be written"):
        opened("/dev/full")


def test_a_program_that_reads_its_results_does_not_let_others_in(tmp_path):
    """Nor does a forked child hold the file when the run is over."""
    path = tmp_path / "results.jsonl"
    results = opened(path)
    path.read_bytes()

    def is_refused() -> bool:
        def open_it() -> None:
            with contextlib.suppress(UsageError):
                opened(path, True)
                os._exit(5)

        return os.waitstatus_to_exitcode(os.waitpid(in_fork(open_it), 0)[1]) == 0

    assert is_refused()
    with pytest.raises(UsageError, match="another run is writing"):
        opened(path, True)
    read, write = os.pipe()
    child = in_fork(lambda: (os.close(write), os.read(read, 1)))
    results.close()
    assert not is_refused()
    os.close(write)
    os.close(read)
    os.waitpid(child, 0)


@pytest.mark.parametrize(
    "stock", [{"match_source_len": True}, {"print_alignment": "hard"}], ids=str
)
def test_what_a_results_file_cannot_hold_is_refused(stock, tmp_path):
    with pytest.raises(UsageError, match="leave one of the two out"):
        generators([build("transformer")], {"results_file": str(tmp_path / "x")}, beam=2, **stock)


def test_what_results_depend_on_is_in_the_key():
    """The same search again has the same key, with another schedule as well; another beam, length
    penalty, pruning or model has not."""
    model, other = build("transformer", 1), build("transformer", 2)

    def key(model, flags=None, **stock):
        return run_key(generators([model], flags or {}, **stock).ours, [model])

    same = key(model, beam=3)
    assert (
        same
        == key(build("transformer", 1), beam=3)
        == key(model, {"schedule": "stream", "stream_width": 9}, beam=3)
    )
    differences = [
        ({}, {"beam": 4}),
        ({}, {"beam": 3, "lenpen": 0.5}),
        ({}, {"beam": 3, "nbest": 2}),
        ({"stop": "first"}, {"beam": 3}),
    ]
    for flags, stock in differences:
        assert key(model, flags, **stock) != same
    assert {name for name, value in key(other, beam=3).items() if value != same[name]} == {
        "the model"
    }


def test_a_resumed_run_reports_the_same_as_the_first(tmp_path):
    """Where terms stand, how they got there and which are left, certificates, and the counts of
    answers; the work is not done again."""
    (tmp_path / "terms.tsv").write_text(
        "Ordner\tbinder\nAngebot\tquotation\nVerwenden\tUse\nÄrztin\t漢\n", encoding="utf-8"
    )
    lines = [
        "Der Ordner ist leer, und das Angebot muss noch geprüft werden.",
        "Durch Verwenden dieser Klasse lässt sich die Leistung steigern.",
        "Die Ärztin öffnet den Ordner.",
        "Die Änderungen sind noch nicht gespeichert.",
    ]
    path, report = tmp_path / "results", tmp_path / "report"
    flags = ("--glossary", tmp_path / "terms.tsv", "--glossary-report", report, "--nbest", 2)
    flags += ("--results-file", path, "--stop", "optimal", "--unnormalized")
    flags += ("--stats-file", tmp_path / "stats")
    first = interactive_forked("\n".join(lines) + "\n", MODEL, *OURS, *flags)
    written, kept = report.read_text(encoding="utf-8"), records(path)
    counts = json.loads((tmp_path / "stats").read_text())
    terms = [term for line in written.splitlines() for term in json.loads(line)["terms"]]
    assert {"left", "aligned"} <= {term["placed_by"] for term in terms}, written
    best = [each["hypotheses"][0] for each in kept[1:]]
    assert kept[0]["version"] == 3 and best[3]["ending"]["gap"] == 0.0
    assert any("漢" in phrase for phrase, _ in best[2]["unmet"])
    again = interactive_forked("\n".join(lines) + "\n", MODEL, *OURS, *flags, "--resume")
    found = json.loads((tmp_path / "stats").read_text())
    assert found["sentences"] == 0 and counts["sentences"] == 4  # none is searched again
    for section in ("constraints", "glossary", "certificates"):
        assert found[section] == counts[section], section
    said = re.findall(r"constraints not met: .*", first.stderr)
    assert said and said == re.findall(r"constraints not met: .*", again.stderr)
    assert report.read_text(encoding="utf-8") == written and records(path) == kept
    assert results(again.stdout) == results(first.stdout)

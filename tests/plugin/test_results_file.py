"""--results-file and --resume: what was done is never done again, and the output is that of an
undisturbed run of the same search; and --stats-file, which is whole or as it was."""

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import time

import conftest
import pytest
import torch
from demo_model import MODEL, OURS
from forked import Child, command, in_fork, interactive_forked, interactive_main
from models import build, generators
from plugin.test_tasks_cli import rows, same_rows
from sizes import drawn, part_of
from test_cli import generate as tiny_generate
from test_cli import sentence

from fairseq_ext import UsageError
from fairseq_ext.core.stats import Stats
from fairseq_ext.plugin import results as of_results
from fairseq_ext.plugin.results import ResultsFile, StatsFile, checksum
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.report import Report

EXT = "--user-dir fairseq_ext --task translation_ext --cpu --no-progress-bar".split()
FLAGS = [*EXT, "--beam", 3, "--nbest", 2]
STREAM = "--schedule stream --stream-width 3".split()


def generate(tiny, *flags, data=None, **keywords):
    where = [data or tiny / "data", "--path", tiny / "model.pt", "--gen-subset", "test"]
    return command("fairseq-generate", *where, *FLAGS, *flags, **keywords)


def refused(tiny, path, *flags, data=None) -> str:
    """What --resume says of another search, or of a file that it cannot read."""
    before = path.read_bytes()
    done = generate(tiny, "--results-file", path, "--resume", *flags, data=data, check=False)
    assert done.returncode != 0 and "H-" not in done.stdout and path.read_bytes() == before
    return done.stderr


def opened(path, resume=False, made_from=None) -> ResultsFile:
    return ResultsFile(str(path), resume, "ours", made_from or {"--beam": "3"}, 100)


def records(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def numbers(path) -> list[int]:
    """Of the sentences that a file has, each once."""
    return sorted(record["id"] for record in records(path)[1:])


@drawn(1)
@pytest.mark.parametrize("flags", [[], STREAM], ids=["batch", "stream"])
def test_a_run_cut_short_anywhere_ends_with_the_same_output(tiny, tmp_path, flags):
    expected = generate(tiny, *flags).stdout
    path, stats = tmp_path / "results.jsonl", tmp_path / "stats.json"
    whole = generate(tiny, *flags, "--results-file", path).stdout
    assert rows(whole) == rows(expected) and numbers(path) == [*range(11)]
    assert {r["text"] for r in records(path)[1:]} <= {text for *_, text in rows(whole, "H")}
    content = path.read_bytes()
    within, after = len(content) // 2, content.index(b"\n", len(content) // 3) + 1
    for cut in (within, after)[: 2 if flags else 1]:
        path.write_bytes(content[:cut])
        again = generate(tiny, *flags, "--results-file", path, "--resume", "--stats-file", stats)
        same_rows(expected, again.stdout)
        assert numbers(path) == [*range(11)]
        # work really done
        assert json.loads(stats.read_text())["sentences"] == 12 - content[:cut].count(b"\n")


def test_a_run_goes_on_with_another_schedule(tiny, tmp_path):
    path = tmp_path / "results.jsonl"
    expected = generate(tiny, *STREAM, "--results-file", path).stdout
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:6]))
    for flags in ("--schedule stream --stream-rows 7", "--schedule batch --batch-size 2"):
        again = generate(tiny, *flags.split(), "--results-file", path, "--resume")
        same_rows(expected, again.stdout)
    assert numbers(path) == [*range(11)]


def test_killed_and_resumed_gives_the_same_file(tiny, tmp_path):
    lines, path = (tiny / "test.de").read_text() * 60, tmp_path / "results.jsonl"
    arguments = ["fairseq-interactive", tiny / "data", "--path", tiny / "model.pt", *FLAGS, *STREAM]
    arguments += ["--buffer-size", 200, "--results-file", path]
    most = len(part_of(3, 1))
    for kill in range(most + 1):
        argv = [*map(str, arguments), *["--resume"] * path.exists()]
        enough = 20_000 + (path.stat().st_size if path.exists() else 0)
        with open(tmp_path / "out", "w") as out:
            run = Child(interactive_main, argv, stdin=lines.encode(), stdout=out.fileno())
        if kill < most:
            while not path.exists() or path.stat().st_size < enough:
                assert run.is_alive()
                time.sleep(0.01)
            os.kill(run.pid, signal.SIGKILL)
        status = run.wait().status
    assert status == 0 and numbers(path) == [*range(660)]
    undisturbed = command(*arguments[:-2], stdin=lines)
    same_rows(undisturbed.stdout, (tmp_path / "out").read_text())


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
    opened(path).add(3, source, "text", Report(found))
    again = opened(path, True)
    [h] = again.hypotheses(3, source, device)
    assert h.tokens.tolist() == [5, 6, 2] and h.score == -1.5
    assert again.hypotheses(4, source, device) == []
    for other in (checksum(torch.tensor([5, 7, 2]), None), checksum(tokens, "a constraint")):
        with pytest.raises(UsageError, match="was translated from another source"):
            again.hypotheses(3, other, device)
    again.close()
    with pytest.raises(UsageError, match="is a directory"):
        opened(tmp_path, True)


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
                results.add(number, "source", "text", Report(found))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    # a program that goes on: no half line is before it
    results.add(500, "source", "text", Report(found))
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


def test_a_resumed_run_reports_the_same_as_the_first(tmp_path):
    """Where terms stand, how they got there and which are left, certificates, and the counts of
    answers; the work is not done again."""
    (tmp_path / "terms.tsv").write_text(
        "Ordner\tbinder\nAngebot\tquotation\nVerwenden\tUse\nÄrztin\t漢\n", encoding="utf-8"
    )
    lines = (
        "Der Ordner ist leer, und das Angebot muss noch geprüft werden.\n"
        "Durch Verwenden dieser Klasse lässt sich die Leistung steigern.\n"
        "Die Ärztin öffnet den Ordner.\n"
        "Die Änderungen sind noch nicht gespeichert.\n"
    )
    path, report = tmp_path / "results", tmp_path / "report"
    flags = ("--glossary", tmp_path / "terms.tsv", "--glossary-report", report, "--nbest", 2)
    flags += ("--results-file", path, "--stop", "optimal", "--unnormalized")
    flags += ("--stats-file", tmp_path / "stats")
    runs = []
    for more in ((), ("--resume",)):
        done = interactive_forked(lines, MODEL, *OURS, *flags, *more)
        counts = json.loads((tmp_path / "stats").read_text())
        assert counts["sentences"] == (0 if more else 4)  # none is searched again
        said = re.findall(r"constraints not met: .*", done.stderr)
        sections = [counts[name] for name in ("constraints", "glossary", "certificates")]
        files = [file.read_text(encoding="utf-8") for file in (report, path)]
        runs.append((rows(done.stdout), said, sections, files))
    assert runs[0] == runs[1]
    terms = [term for line in files[0].splitlines() for term in json.loads(line)["terms"]]
    assert {"left", "aligned"} <= {term["placed_by"] for term in terms} and said
    header, *kept = records(path)
    assert header["version"] == 3 and kept[3]["hypotheses"][0]["ending"]["gap"] == 0.0


# ---- --resume goes on with the same search alone

COUNTS = "".join(f"en{i} {n}\n" for i, n in enumerate(range(100, 70, -1)))
TABLE = "".join(f"de{i} en{i} 0.5\n" for i in range(30))
NAMED = {  # flag -> content, another content, flags next to it
    "--avoid-file": ("en3\n", "en4\n", ""),
    "--glossary": ("de3\ten3\n", "de3\ten4\n", ""),
    "--constraints-file": ("\n" * 10 + "en1\n", "\n" * 10 + "en2\n", ""),
    "--shortlist-counts": (
        COUNTS,
        COUNTS.replace("en1 99", "en1 9"),
        "--softmax top --shortlist-top 10",
    ),
    "--shortlist-file": (
        TABLE,
        TABLE.replace("de1 en1", "de1 en2"),
        "--softmax lexical --shortlist-top 10 --shortlist-words 1",
    ),
    "--draft-file": (
        "en1 en2\n" * 11,
        "en1 en3\n" * 11,
        "--decoding jacobi --beam 1 --nbest 1",
    ),
}


@drawn(1)
@pytest.mark.parametrize("flag", NAMED)
def test_a_file_with_another_content_is_refused_by_its_flag(tiny, tmp_path, flag):
    content, other, next_to = NAMED[flag]
    path, file, copy = tmp_path / "results.jsonl", tmp_path / "named", tmp_path / "copy"
    file.write_text(content)
    generate(tiny, "--results-file", path, *next_to.split(), flag, file)
    before = path.read_bytes()
    file.write_text(other)
    said = refused(tiny, path, *next_to.split(), flag, file)
    assert f"has results of another search, which differs in {flag} (" in said
    copy.write_text(content)  # the name is nothing
    generate(tiny, "--results-file", path, *next_to.split(), flag, copy, "--resume")
    assert path.read_bytes() == before


def test_another_beam_model_and_dictionary_are_reported(tiny, tmp_path):
    path, data, other = tmp_path / "results.jsonl", tmp_path / "data", tmp_path / "model.pt"
    generate(tiny, "--results-file", path)
    assert "differs in --beam (3 there, 4 now): use" in refused(tiny, path, "--beam", 4)
    state = torch.load(tiny / "model.pt", weights_only=False)
    state["model"]["encoder.embed_tokens.weight"] += 1
    torch.save(state, other)
    assert "differs in the model (" in refused(tiny, path, "--path", other)
    shutil.copytree(tiny / "data", data)
    words = (data / "dict.en.txt").read_text().splitlines(keepends=True)
    # as many words, in another order
    (data / "dict.en.txt").write_text("".join([words[1], words[0], *words[2:]]))
    assert "differs in the target dictionary (" in refused(tiny, path, data=data)


CHANGES = {
    "changed": (3, lambda line: line.replace(b"en", b"eN", 1)),
    "foreign": (2, lambda line: b'{"id": 0, "source": "x", "text": "a", "hypotheses": []}\n'),
    "deep": (4, lambda line: b"[" * 100_000 + b"\n"),
    "another file": (1, lambda line: b"a text of mine\n"),
}


@drawn(2)
@pytest.mark.parametrize("change", CHANGES)
def test_a_line_that_was_changed_is_reported_by_its_number(tiny, tmp_path, change):
    path, (line, by) = tmp_path / "results.jsonl", CHANGES[change]
    generate(tiny, "--results-file", path)
    lines = path.read_bytes().splitlines(keepends=True)
    assert all(json.loads(each)["sha256"] for each in lines)
    lines[line - 1] = by(lines[line - 1])
    path.write_bytes(b"".join(lines))
    said = "is not a line of a results file, because its content is not what was written: name"
    assert f"{path}, line {line}, {said} another --results-file" in refused(tiny, path)


# ---- --stats-file


def test_the_file_of_counts_follows_the_run(tmp_path, monkeypatch):
    folder, stats = tmp_path / "folder", Stats()
    folder.mkdir()
    path = folder / "stats.json"
    file = StatsFile(str(path), stats)
    stats.sentences = 3
    file.write_occasionally()
    assert json.loads(path.read_text())["sentences"] == 0  # too soon
    monkeypatch.setattr(of_results, "SECONDS_BETWEEN_WRITES", 0.0)
    file.write_occasionally()
    assert json.loads(path.read_text())["sentences"] == 3
    shutil.rmtree(folder)
    file.write_occasionally()  # there may be room at the end
    with pytest.raises(UsageError, match="--stats-file .* cannot be written .No such file"):
        file.write()


@pytest.mark.parametrize(("place", "status"), [("/dev/full", 1), ("/dev/stdout", 0)])
def test_the_counts_of_a_run_are_written_once_or_it_says_so_at_its_end(tiny, place, status):
    """/dev/full takes nothing: the translations are printed, and the status is 1."""
    run = command if status else conftest.command  # whose output is a pipe
    done = tiny_generate(tiny, *EXT, "--stats-file", place, run=run, check=False)
    assert done.returncode == status and done.stdout.count("H-") == 11
    assert done.stdout.count('"sentences": 11') == done.stdout.count('"sentences"') == 1 - status
    assert not status or sentence(done) == (
        "error: --stats-file /dev/full cannot be written (No space left on device): make room, "
        "or name another file"
    )

"""Every task that has a twin, those of fairseq's examples/ too once their --user-dir registers
them, through the real commands: equal to stock without our flags, and with constraints that are
met."""

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import task_models
from corpus_jobs import one_process, records
from forked import Done, generate, generate_forked, interactive_forked
from sizes import drawn
from task_models import Made

from fairseq_ext import Translator
from fairseq_ext.corpus.job import CorpusJob
from fairseq_ext.corpus.run import translate
from fairseq_ext.engine.decoding import Decoding
from fairseq_ext.engine.worker import description, load
from fairseq_ext.search.report import Report
from fairseq_ext.search.request import Request

LINES = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9", "w10 w11"]
TEXT = "".join(line + "\n" for line in LINES)
# what no folder says
GIVEN = "source_lang target_lang add_data_source_prefix_tags max_len_b cpu".split()
# for what differs little from task to task
FEW = (
    "translation_multi_simple_epoch translation_from_pretrained_bart multilingual_translation "
    "language_modeling"
).split()


@pytest.fixture(scope="module")
def make(tmp_path_factory) -> Callable[[str], Made]:
    return functools.cache(lambda name: task_models.make(name, tmp_path_factory.mktemp("task")))


@pytest.fixture(params=task_models.CASES)
def made(request, make) -> Made:
    return make(request.param)


@pytest.fixture(params=FEW)
def one_of_few(request, make) -> Made:
    return make(request.param)


def rows(out: str, kinds: str = "SHDP") -> list[list[str]]:
    return sorted(
        line.split("\t") for line in out.splitlines() if re.match(rf"[{kinds}]-\d+\t", line)
    )


def same_rows(expected: str, got: str) -> None:
    theirs, ours = rows(expected), rows(got)
    assert len(theirs) > 10 and [r[0] for r in ours] == [r[0] for r in theirs]
    for a, b in zip(theirs, ours, strict=True):
        assert b[2:] == a[2:]
        if a[0][0] in "HDP":
            assert [float(x) for x in b[1].split()] == pytest.approx(
                [float(x) for x in a[1].split()], abs=2e-4
            )


def generated(arguments: list, *flags: object, **files: object) -> str:
    """What fairseq-generate prints; files: flags that name one."""
    named = [word for name, path in files.items() for word in (f"--{name}-file", path)]
    return generate_forked(*arguments, *flags, *named).stdout


def no_worse(stock: str, arguments: list, search: list, stats: Path) -> dict:
    """Optimal ending finds scores that are no worse than stock's; its certificates."""
    ours = rows(generated(arguments, *search, "--stop", "optimal", stats=stats), "H")
    theirs = rows(stock, "H")
    assert all(float(b[1]) >= float(a[1]) - 2e-4 for a, b in zip(theirs, ours, strict=True))
    certificates = json.loads(stats.read_text())["certificates"]
    assert certificates["proved"] + certificates["open"] == len(ours)
    return certificates


@drawn(3)
@pytest.mark.parametrize("beam", [1, 5])
def test_generate_equals_stock(made, beam):
    same_rows(generated(made.stock, "--beam", beam), generated(made.ours, "--beam", beam))


@drawn(1)
def test_a_stream_equals_the_batch(made):
    stream = "--beam 3 --schedule stream --stream-width 3".split()
    same_rows(generated(made.stock, "--beam", 3), generated(made.ours, *stream))


@drawn(1)
@pytest.mark.parametrize("flags", ["--beam 1 --decoding window", "--beam 3 --cpu-workers 2"])
def test_parallel_decoding_and_workers_equal_stock(one_of_few, flags):
    stock = generated(one_of_few.stock, *flags.split()[:2])
    same_rows(stock, generated(one_of_few.ours, *flags.split()))


@drawn(1)
def test_optimal_ending_finds_scores_no_worse(one_of_few, tmp_path):
    search = "--beam 3 --unnormalized".split()
    stock = generated(one_of_few.stock, *search)
    no_worse(stock, one_of_few.ours, search, tmp_path / "stats.json")


@drawn(1)
@pytest.mark.parametrize("name", task_models.EXAMPLES)
def test_the_twin_of_an_example_equals_stock_and_meets_constraints(name, tmp_path):
    made = task_models.make(name, tmp_path)
    same_rows(generated(made.stock, "--beam", 5), generated(made.ours, "--beam", 5))
    flags = "--buffer-size 4 --constraints".split()
    out = interactive_forked("w1 w2 w3\tw20\nw4\tw21\n", *made.ours, *flags).stdout
    assert [f"w{20 + i}" in words.split() for i, (_, _, words) in enumerate(rows(out, "H"))] == [
        True,
        True,
    ]


@drawn(1)
def test_interactive_equals_stock_and_meets_what_is_typed(made):
    search = "--beam 5 --buffer-size 4".split()
    stock = interactive_forked(TEXT, *made.stock, *search).stdout
    same_rows(stock, interactive_forked(TEXT, *made.ours, *search).stdout)
    typed = "".join(f"{line}\tw{20 + i}\n" for i, line in enumerate(LINES))
    out = interactive_forked(typed, *made.ours, *search, "--constraints", "unordered").stdout
    found = rows(out, "H")
    assert len(found) == 4
    for number, (_, _, words) in enumerate(found):
        assert f"w{20 + number}" in words.split()


@drawn(2)
def test_a_prefix_stands_behind_what_the_task_forces(made, tmp_path):
    """A language token, or the prompt of a language model, comes first; then the user's prefix;
    then what else must be there."""
    lines = [{"prefix": "w7", "constraints": [f"w{20 + i % 10}"]} for i in range(made.sentences)]
    (tmp_path / "wanted.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    stats = tmp_path / "stats.json"
    out = generated(made.ours, "--beam", 3, constraints=tmp_path / "wanted.jsonl", stats=stats)
    source = {number.partition("-")[2]: words for number, words in rows(out, "S")}
    for number, _, words in rows(out, "H"):
        i = number.partition("-")[2]
        forced = "" if made.case.pair else source[i] + " "
        assert words.startswith(f"{forced}w7 ") and f"w{20 + int(i) % 10}" in words.split()
    given = 2 * made.sentences
    met = {"given": given, "met": given, "unmet": []}
    assert json.loads(stats.read_text())["constraints"] == met


def answers(engine: Decoding, jobs: list[Request]) -> list[Report]:
    """What the engine's worker makes of these requests, in this process."""
    for number, job in enumerate(jobs):
        engine.add(number, job)
    while engine.busy:
        engine.work()
    found = dict(engine.events)
    return [found[number] for number in range(len(jobs))]


@drawn(1)
def test_a_folder_in_python_an_engine_and_the_corpus_command_give_what_the_command_gives(
    made, tmp_path, monkeypatch
):
    """At beam 1, as the interactive command does.

    The folder and the checkpoint say what the task must know of its languages.
    """
    out = interactive_forked(TEXT, *made.stock, *"--beam 1 --buffer-size 4".split()).stdout
    expected = [row[2] for row in rows(out, "D")]
    flags = made.keywords() | {"beam": "1"}
    given = {name: flags[name] for name in GIVEN if name in flags}
    translator = Translator.from_folder(made.folder(tmp_path / "model"), beam=1, **given)
    assert translator.cfg.task._name == flags["task"]
    assert [nbest[0].text for nbest in translator.translate(LINES)] == expected
    for nbest in translator.translate(LINES, constraints=[["w25"]] * len(LINES), beam=3):
        assert "w25" in nbest[0].text.split()
    engine = load(flags | {"path": str(made.checkpoint), "data": str(made.data)})
    assert description(engine).source == given.get("source_lang", "")
    assert [each.text for each in answers(engine, [Request(0, x) for x in LINES])] == expected
    (tmp_path / "lines.txt").write_text(TEXT)
    with one_process(monkeypatch, None):
        files = [str(tmp_path / "lines.txt")], str(tmp_path / "out")
        translate(CorpusJob(str(made.checkpoint), str(made.data), *files, flags, progress=0.0))
    (found,) = (tmp_path / "out").rglob("lines*.jsonl")
    assert [record["hypotheses"][0] for record in records(found)] == expected


@pytest.mark.parametrize(
    "name, flags, sentence",
    [
        (
            "multilingual_translation",
            "--lang-pairs de-en",
            "was trained with other languages: --lang-pairs should include",
        ),
        (
            "multilingual_language_modeling",
            "--langs xx,zz",
            "has no folder zz, which --langs names: correct --langs",
        ),
        (
            "translation_multi_simple_epoch",
            "--gen-subset other",
            "has no such subset of de-en: binarise it with fairseq-preprocess",
        ),
        (
            "translation_multi_simple_epoch",
            "--langs de,en,fr",
            "use the dictionaries it was trained with, and its --langs",
        ),
    ],
)
def test_other_languages_or_data_than_those_of_the_training_are_one_sentence(
    make, name, flags, sentence
):
    assert sentence in refused(generate(*make(name).ours, *flags.split()))


def refused(done: Done) -> str:
    """The one sentence of a command that fails."""
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.status == 1 and "Traceback" not in done.stderr
    return said

"""The benchmark harness: right statistics from made-up times, no speed for outputs that differ,
JSON that others can read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import warm
from sizes import drawn

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"
sys.path.insert(0, str(BENCH))

import arguments  # noqa: E402
import checkouts  # noqa: E402
import glossary  # noqa: E402
import growth  # noqa: E402
import harness  # noqa: E402
import report  # noqa: E402
import servers  # noqa: E402
from equality import check, same_best  # noqa: E402
from harness import BenchError, Contender, ProcessContender, compare  # noqa: E402

from fairseq_ext.kernels.library import library  # noqa: E402

REFERENCE = [[([4, 5, 2], -0.5), ([4, 2], -0.9)], [([7, 2], -0.3), ([8, 2], -0.4)]]


class Clock:
    """Time passes only when a fake contender says so."""

    def __init__(self):
        self.now = 100.0
        self.order = []

    def __call__(self):
        return self.now

    def contender(self, name, seconds, outputs=REFERENCE, **more):
        """Takes the next of `seconds` at each run; the first is the warm-up."""
        left = iter(seconds)

        def run():
            self.order.append(name)
            self.now += next(left)
            return outputs

        return Contender(name, run, **more)


@pytest.fixture
def clock():
    return Clock()


def race(clock, *contenders, **more):
    return compare(contenders, repeats=3, clock=clock, **more)


def test_contenders_run_in_turn_and_the_warm_up_is_left_out(clock):
    done = race(
        clock, clock.contender("stock", [9, 2, 4, 6]), clock.contender("ours", [9, 1, 1, 2])
    )
    assert clock.order == ["stock", "ours", "ours", "stock"] * 2
    assert done["stock"].seconds == pytest.approx([2, 4, 6])
    assert done["ours"].seconds == pytest.approx([1, 1, 2])


def test_a_speed_up_is_the_median_of_the_rounds_ratios(clock):
    # one slow round hits both: 2/1, 20/10, 6/2 have the median 2, while the ratio of the
    # medians would be 6/2
    done = race(
        clock, clock.contender("stock", [0, 2, 20, 6]), clock.contender("ours", [0, 1, 10, 2])
    )
    ratio = done.speed_up("ours", "stock")
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((2, 2, 3))


@pytest.mark.parametrize(
    "changed, outcome",
    [
        (
            [[([4, 5, 2], -0.5), ([4, 2], -0.9)], [([7, 2], -0.3), ([8, 2], -0.4)]],
            "equal (4 hypotheses)",
        ),
        (
            [[([4, 5, 2], -0.50005), ([4, 2], -0.9)], [([7, 2], -0.3), ([8, 2], -0.4)]],
            "equal (4 hypotheses)",
        ),
        (
            [[([4, 6, 2], -0.5001), ([4, 2], -0.9)], [([7, 2], -0.3), ([8, 2], -0.4)]],
            "equal but for 1 near-ties among 4 hypotheses",
        ),
        (
            [[([4, 6, 2], -0.6), ([4, 2], -0.9)], [([7, 2], -0.3), ([8, 2], -0.4)]],
            "differ in 1 of 2 sentences (0)",
        ),
        (
            [[([4, 5, 2], -0.5), ([4, 2], -0.9)], [([7, 2], -0.31), ([8, 2], -0.4)]],
            "differ in 1 of 2 sentences (1)",
        ),
        (
            [[([4, 5, 2], float("nan")), ([4, 2], -0.9)], [([7, 2], -0.3)]],
            "differ in 2 of 2 sentences (0, 1)",
        ),
    ],
    ids=[
        "same",
        "rounding",
        "near-tie",
        "other tokens",
        "other score",
        "nan and a lost hypothesis",
    ],
)
def test_verdicts(changed, outcome):
    assert str(check(changed, REFERENCE)) == outcome


def test_no_speed_for_a_contender_whose_outputs_differ(clock):
    wrong = [[([4, 2], -0.1)], REFERENCE[1]]
    done = race(
        clock, clock.contender("stock", [8, 8, 8, 8]), clock.contender("wrong", [1.234] * 4, wrong)
    )
    assert clock.order.count("wrong") == 1, "it is not even timed"
    assert done.refused == ["wrong"] and done.speed_up("wrong", "stock") is None
    line = next(line for line in report.markdown(done).splitlines() if line.startswith("| wrong"))
    assert line == "| wrong | - | - | - | - | **differ in 1 of 2 sentences (0): no speed shown** |"
    facts = report.as_dict(done)["contenders"][1]
    assert facts["refused"] and not {"seconds", "time", "times_reference"} & set(facts)


def test_a_later_wrong_run_is_caught_too(clock):
    answers = iter([REFERENCE, REFERENCE, [[], REFERENCE[1]], REFERENCE])
    fickle = Contender("fickle", run=lambda: next(answers))
    assert race(clock, clock.contender("stock", [1] * 4), fickle).refused == ["fickle"]


def test_an_inexact_contender_shows_bleu_instead(clock):
    pruned = [[([4, 6, 2], -0.8)], REFERENCE[1]]
    stock, int8 = (
        clock.contender("stock", [0, 4, 4, 4]),
        clock.contender("int8", [0, 2, 2, 2], pruned, exact=False),
    )
    done = race(clock, stock, int8, bleu=lambda outputs: 41.6 if outputs is REFERENCE else 41.5)
    table = report.markdown(done)
    assert (
        "| stock | 4.000 (4.000-4.000) | 0.5 | 1.00x (1.00-1.00) |  | equal (4 "
        "hypotheses), BLEU 41.60 |"
    ) in table
    assert (
        "| int8 | 2.000 (2.000-2.000) | 1.0 | 2.00x (2.00-2.00) |  | best equal in 1 "
        "of 2, BLEU 41.50 |"
    ) in table
    assert same_best(pruned, REFERENCE) == 1


def test_json_holds_machine_signatures_and_raw_times(clock, tmp_path):
    stock = clock.contender("stock", [0, 2, 4, 6], signature="fairseq:0.12.2")
    wrong = clock.contender("wrong", [0], [[([4], float("nan"))], []])
    done = race(clock, stock, wrong, title="beam 5")
    report.write(tmp_path / "out" / "first", [done], note="a note")

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    facts = json.loads((tmp_path / "out" / "first.json").read_text(), parse_constant=refuse)
    assert {"cpu", "cores", "torch", "torch_threads", "date", "git_commit"} <= set(facts["machine"])
    first = facts["comparisons"][0]["contenders"][0]
    assert (
        first["signature"] == "fairseq:0.12.2"
        and first["seconds"] == [2, 4, 6]
        and first["time"]["median"] == 4
    )
    assert "### beam 5" in (tmp_path / "out" / "first.md").read_text()


def test_whole_commands_are_timed_and_their_hypotheses_read(clock):
    lines = "S-1\tx\nH-1\t-1.0\tb c\nD-1\t-1.0\tb c\nH-0\t-0.5\ta\nH-0\t-2.0\td\n"
    command = [sys.executable, "-c", f"print({lines!r})"]
    done = compare(
        [ProcessContender("one", command), ProcessContender("two", command)], repeats=1, warmup=0
    )
    assert done.sentences == 2 and not done.refused
    first, second = harness.read_hypotheses(lines)
    assert [tokens for tokens, _ in first + second] == [["a"], ["d"], ["b", "c"]]
    assert [score for _, score in first + second] == pytest.approx(
        [-0.34657, -1.38629, -0.69315], abs=1e-5
    )


def test_peak_memory_is_the_commands_own_and_not_this_process():
    here = b"x" * 300_000_000  # noqa: F841  (a process started from here would inherit this peak)
    small = ProcessContender("small", [sys.executable, "-c", "pass"]).memory_command
    large = ProcessContender(
        "large", [sys.executable, "-c", "x = b'x' * 100_000_000"]
    ).memory_command
    assert harness.peak_memory(small) < 80 < 95 < harness.peak_memory(large) < 200


def test_errors_are_one_sentence(clock):
    with pytest.raises(BenchError, match="names of their own"):
        race(clock, clock.contender("a", []), clock.contender("a", []))
    with pytest.raises(BenchError, match="ended with code 3 and said: no checkpoint"):
        harness.run_command(
            [
                sys.executable,
                "-c",
                "import sys; print('no checkpoint', file=sys.stderr); sys.exit(3)",
            ]
        )
    with pytest.raises(BenchError, match="cannot run no-such-command"):
        harness.run_command(["no-such-command"])
    with pytest.raises(BenchError, match="short returned 1 sentences and the reference 2"):
        race(clock, clock.contender("stock", [1] * 4), clock.contender("short", [1], REFERENCE[:1]))


@drawn(1)
@pytest.mark.parametrize(
    "flags, ways",
    [
        ([], ["full", "screened", "screened, as used", "lsh", "top"]),
        (
            ["--engines"],
            ["float32", "16 bits", "8 bits", "half, FBGEMM", "int8, FBGEMM", "int8, two bytes"],
        ),
    ],
    ids=["ways", "engines"],
)
def test_the_output_layers_script_times_every_way(flags, ways, tmp_path):
    if flags and (library() is None or "fbgemm" not in torch.backends.quantized.supported_engines):
        pytest.skip("linear layers of the compiled library and of FBGEMM are compared")
    small = [
        *"--words 5000 --rows 1 3 --dim 32 --threads 1 --times 1 --out".split(),
        str(tmp_path / "out"),
    ]
    subprocess.run(
        [warm.python(), BENCH / "softmax.py", *small, *flags], check=True, capture_output=True
    )
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert [(run["words"], run["rows"]) for run in found] == [(5000, 1), (5000, 3)]
    assert all(list(run["ms"]) == ways and min(run["ms"].values()) > 0 for run in found)
    assert flags or all(
        run["mib"]["weights"] == 5000 * 32 * 4 / 2**20
        and {"screened", "lsh", "top"} < set(run["mib"])
        for run in found
    )


def test_shapes_are_saved_as_checkpoints_and_measured(tmp_path):
    small = (
        "--limit-one 2 --beams 2 --modes one --threads 1 --repeats 1 --no-memory --tokens 5"
    ).split()
    flags = [
        *"--shapes tiny --contenders stock ours --out".split(),
        str(tmp_path / "shape"),
        *small,
    ]
    subprocess.run([warm.python(), BENCH / "shapes.py", *flags], check=True, capture_output=True)
    table = (tmp_path / "shape" / "tables.md").read_text(encoding="utf-8")
    assert table.startswith("## tiny: 500 words, 1 + 1 layers of 32\n")
    assert "| stock |" in table and "| ours |" in table and "equal (4 hypotheses)" in table
    again = subprocess.run(
        [warm.python(), BENCH / "shapes.py", *flags], check=True, capture_output=True, text=True
    )
    assert "stock" not in again.stdout, "what is there is not measured again"


@drawn(0)  # long
@pytest.mark.skipif(library() is None, reason="there is no compiled library")
def test_the_linear_maps_of_the_demo_reach_less_than_the_processors_own_rates():
    flags = "--limit 2 --repeats 1 --beam 2".split()
    done = subprocess.run(
        [warm.python(), BENCH / "limit.py", *flags], check=True, capture_output=True, text=True
    )
    rows = [line.strip("|").split("|") for line in done.stdout.splitlines()[-4:]]
    assert [row[0].split() + row[1].split()[:1] for row in rows] == [
        [weights, run] for weights in ("float32", "int8") for run in ("bulk", "one")
    ]
    assert all(0 < float(row[-1].strip().rstrip("%")) < 100 for row in rows)


def test_the_glossary_script_times_every_way_to_match(tmp_path, monkeypatch):
    for name, least in (("MOST_LOAD", 0.0), ("MOST_MATCH", 9.0)):
        monkeypatch.setattr(glossary, name, least)
    assert (
        glossary.main(["--entries", "200", "--repeats", "1", "--out", str(tmp_path / "out")]) == 1
    ), "nothing loads in no time"
    (rows,) = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["tables"].values()
    assert [row["glossary"].split()[-1] for row in rows] == ["surface", "casefold", "lemma", "term"]
    assert (
        all(0 < float(row["each sentence, ms"]) < 9000 for row in rows[:3])
        and float(rows[3]["load, s"]) > 0
    )


@pytest.mark.parametrize(
    "root, python, sentence",
    [
        ("tests", sys.executable, "tests has no fairseq_ext: name a checkout of this project"),
        (
            ".",
            "no-such-python",
            "no-such-python cannot be started: name the Python of the environment of .",
        ),
        (".", "/bin/false", "/bin/false does not load the fairseq_ext of . and said: nothing"),
    ],
    ids=["no checkout", "no Python", "no Python either"],
)
def test_before_refuses_in_one_sentence(root, python, sentence, monkeypatch):
    monkeypatch.chdir(BENCH.parents[1])
    parse = arguments.command_line("")
    checkouts.before_argument(parse)
    with pytest.raises(BenchError) as error:
        parse.parse_args(["--before", root, python])
    assert str(error.value) == f"--before: {sentence}"


def test_the_cpu_time_of_a_server_is_that_of_its_processes_too():
    work = "sum(range(20_000_000)); print(flush=True); input()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}])"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.stdout.readline()
    assert servers.cpu_seconds(process.pid) > 0.1
    process.communicate(b"\n")


@drawn(0)  # long
def test_whole_words_are_timed_next_to_phrases_inside_words(tmp_path):
    small = "--limit 3 --beam 2 --repeats 1 --threads 1 --parts words --sets rand1".split()
    subprocess.run(
        [warm.python(), BENCH / "constrained.py", *small, "--out", str(tmp_path / "out")],
        check=True,
        capture_output=True,
    )
    (rows,) = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["tables"].values()
    (row,) = rows
    assert row["set"] == "rand1" and float(row["default: time (min-max)"].split()[0]) > 0
    assert 0 <= int(row["changed"]) <= int(row["whole already"]) <= 3


def test_growth_says_the_exponent_and_keeps_what_it_has_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(growth, "fix_threads", lambda threads: None)
    assert growth.slope({"1": {"a": 3.0}, "4": {"a": 48.0, "b": 1.0}}, "a") == "2.00"
    assert growth.slope({"1": {"a": 3.0}, "4": {"a": 48.0, "b": 1.0}}, "b") == ""
    (tmp_path / "beam.json").write_text(
        '{"what": "beam", "machine": "a machine", "cells": {"1": {"ours": 1.5}, "2": '
        '{"ours": 3.0}}}'
    )
    assert growth.main([*"--what beam --sizes 1 2 --out".split(), str(tmp_path)]) == 0
    table = (tmp_path / "tables.md").read_text()
    assert (
        "| 1 | 1.5 |" in table
        and "| last slope | 1.00 |" in table
        and (tmp_path / "beam.svg").exists()
    )


@drawn(0)  # long
def test_growth_measures_all_contenders_on_equal_outputs(tmp_path, monkeypatch):
    monkeypatch.setattr(growth, "fix_threads", lambda threads: None)  # this process has other tests
    args = [
        *"--what length --sizes 5 --sentences 2 --repeats 1 --out".split(),
        str(tmp_path),
    ]
    assert growth.main(args) == 0
    cells = json.loads((tmp_path / "length.json").read_text())["cells"]["5"]
    assert {"ours", "stock", "ours, int8"} <= set(cells) and all(ms > 0 for ms in cells.values())

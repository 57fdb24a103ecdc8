"""The benchmark harness: right statistics from made-up times, no speed for outputs that differ,
JSON that others can read; and a small run of each script, which checks its own figures."""

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

import gpu  # noqa: E402
import gpu_step  # noqa: E402
import harness  # noqa: E402
import programs  # noqa: E402
import report  # noqa: E402
import servers  # noqa: E402
from harness import BenchError, Contender, check, compare  # noqa: E402

REFERENCE = [[([4, 5, 2], -0.5), ([4, 2], -0.9)], [([7, 2], -0.3), ([8, 2], -0.4)]]


class Clock:
    """Time passes only when a fake contender says so."""

    def __init__(self):
        self.now, self.order = 100.0, []

    def contender(self, name, seconds, outputs=REFERENCE, **more):
        """Takes the next of `seconds` at each run; the first is the warm-up."""
        left = iter(seconds)

        def run():
            self.order.append(name)
            self.now += next(left)
            return outputs

        return Contender(name, run, **more)

    def race(self, *contenders, **more):
        return compare(contenders, repeats=3, clock=lambda: self.now, **more)


@pytest.fixture
def clock():
    return Clock()


def test_contenders_run_in_turn_and_a_ratio_is_the_median_of_the_rounds(clock):
    # one slow round hits both: 2/1, 20/10, 6/2 have the median 2, while the ratio of the
    # medians would be 6/2
    pair = clock.contender("stock", [9, 2, 20, 6]), clock.contender("ours", [9, 1, 10, 2])
    done = clock.race(*pair)
    assert clock.order == ["stock", "ours", "ours", "stock"] * 2
    assert done["stock"].seconds == pytest.approx([2, 20, 6]), "the warm-up is left out"
    ratio = done.speed_up("ours", "stock")
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((2, 2, 3))


FIRST, SECOND = REFERENCE


@pytest.mark.parametrize(
    "changed, outcome",
    [
        ([FIRST, SECOND], "equal (4 hypotheses)"),
        ([[([4, 5, 2], -0.50005), FIRST[1]], SECOND], "equal (4 hypotheses)"),
        (
            [[([4, 6, 2], -0.5001), FIRST[1]], SECOND],
            "equal but for 1 near-ties among 4 hypotheses",
        ),
        ([[([4, 6, 2], -0.6), FIRST[1]], SECOND], "differ in 1 of 2 sentences (0)"),
        ([FIRST, [([7, 2], -0.31), SECOND[1]]], "differ in 1 of 2 sentences (1)"),
        (
            [[([4, 5, 2], float("nan")), FIRST[1]], SECOND[:1]],
            "differ in 2 of 2 sentences (0, 1)",
        ),
    ],
)
def test_verdicts(changed, outcome):
    assert str(check(changed, REFERENCE)) == outcome


def test_no_speed_for_a_contender_whose_outputs_differ_in_any_run(clock):
    wrong = clock.contender("wrong", [1.234] * 4, [[([4, 2], -0.1)], SECOND])
    answers = iter([REFERENCE, REFERENCE, [[], SECOND], REFERENCE])
    fickle = Contender("fickle", run=lambda: next(answers))
    done = clock.race(clock.contender("stock", [8] * 4), wrong, fickle)
    assert clock.order.count("wrong") == 1, "it is not even timed"
    assert done.refused == ["wrong", "fickle"] and done.speed_up("wrong", "stock") is None
    shown = "| wrong | - | - | - | - | **differ in 1 of 2 sentences (0): no speed shown** |"
    assert shown in report.comparison_table(done)
    assert "seconds" not in report.as_dict(done)["contenders"][1]


def test_an_inexact_contender_shows_bleu_and_json_has_raw_times(clock, tmp_path):
    pruned = [[([4, 6, 2], -0.8)], SECOND]
    stock = clock.contender("stock", [0, 4, 4, 4], signature="fairseq:0.12.2")
    int8 = clock.contender("int8", [0, 2, 2, 2], pruned, exact=False)
    done = clock.race(stock, int8, bleu=lambda outputs: 41.6 if outputs is REFERENCE else 41.5)
    page = report.Page(tmp_path / "out" / "first", "a note")
    page.add(report.comparison_table(done), report.as_dict(done))
    text = (tmp_path / "out" / "first.md").read_text()
    equal = "| 1.00x (1.00-1.00) |  | equal (4 hypotheses), BLEU 41.60 |"
    assert f"| stock | 4.000 (4.000-4.000) | 0.5 {equal}" in text
    best = "| 2.00x (2.00-2.00) |  | best equal in 1 of 2, BLEU 41.50 |"
    assert f"| int8 | 2.000 (2.000-2.000) | 1.0 {best}" in text
    facts = json.loads((tmp_path / "out" / "first.json").read_text(), parse_constant=pytest.fail)
    assert {"cpu", "cores", "torch", "date", "git_commit"} <= set(facts["machine"])
    first = facts["tables"][0]["contenders"][0]
    assert first["signature"] == "fairseq:0.12.2" and first["seconds"] == [4, 4, 4]


def test_whole_commands_are_timed_and_their_hypotheses_read():
    lines = "S-1\tx\nH-1\t-1.0\tb c\nD-1\t-1.0\tb c\nH-0\t-0.5\ta\nH-0\t-2.0\td\n"
    command = [sys.executable, "-c", f"print({lines!r})"]
    pair = [harness.whole_command(name, command) for name in ("one", "two")]
    done = compare(pair, repeats=1, warmup=0)
    assert done.sentences == 2 and not done.refused
    first, second = harness.read_hypotheses(lines)
    assert [tokens for tokens, _ in first + second] == [["a"], ["d"], ["b", "c"]]
    scores = [-0.34657, -1.38629, -0.69315]
    assert [score for _, score in first + second] == pytest.approx(scores, abs=1e-5)


def test_peak_memory_is_the_commands_own_and_not_this_process():
    here = b"x" * 300_000_000  # noqa: F841  (a process started from here would inherit this peak)
    peaks = [
        harness.peak_memory(harness.whole_command("", [sys.executable, "-c", code]).memory_command)
        for code in ("pass", "x = b'x' * 100_000_000")
    ]
    assert peaks[0] < 80 < 95 < peaks[1] < 200


def test_errors_are_one_sentence(clock):
    with pytest.raises(BenchError, match="names of their own"):
        clock.race(clock.contender("a", []), clock.contender("a", []))
    code = "import sys; print('no checkpoint', file=sys.stderr); sys.exit(3)"
    with pytest.raises(BenchError, match="ended with code 3 and said: no checkpoint"):
        harness.run_command([sys.executable, "-c", code])
    with pytest.raises(BenchError, match="the process of rival ended: no checkpoint"):
        harness.Child("rival", [sys.executable, "-c", code]).query("x")
    with pytest.raises(BenchError, match="cannot run no-such-command"):
        harness.run_command(["no-such-command"])
    with pytest.raises(BenchError, match="short returned 1 sentences and the reference 2"):
        short = clock.contender("short", [1], REFERENCE[:1])
        clock.race(clock.contender("stock", [1] * 4), short)


@pytest.mark.parametrize(
    "root, python, sentence",
    [
        ("tests", sys.executable, "tests has no fairseq_ext: name a checkout of this project"),
        (".", "no-such-python", "cannot be started: name the Python of the environment of ."),
        (".", "/bin/false", "/bin/false does not load the fairseq_ext of . and said: nothing"),
    ],
)
def test_before_refuses_in_one_sentence(root, python, sentence, monkeypatch):
    monkeypatch.chdir(BENCH.parents[1])
    with pytest.raises(BenchError, match="^--before: ") as error:
        programs.checked(root, python)
    assert str(error.value).endswith(sentence)


def test_the_cpu_time_of_a_server_is_that_of_its_processes_too():
    work = "sum(range(20_000_000)); print(flush=True); input()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}])"
    child = harness.Child("server", [sys.executable, "-c", code])
    child.process.stdout.readline()
    assert servers.cpu_seconds(child.process.pid) > 0.1
    child.process.communicate("\n")


DEMO = BENCH.parents[1] / "checkpoints" / "demo"
ALLOWED = f"--model {DEMO} --text {BENCH.parents[1] / 'data' / 'demo' / 'test'} --strings OUT.txt"
# a script and small arguments -> a part of what it writes to OUT.md
SMOKE = {
    "rivals.py --limit 2 --limit-one 1 --beams 2 --repeats 1 --threads 1 --try-lines 1 --modes one "
    "--no-memory --no-whole": "| ours |",
    "rivals.py shapes --shapes tiny --limit-one 2 --beams 2 --modes one --threads 1 --repeats 1 "
    "--tokens 5 --contenders stock ours": "equal (4 hypotheses)",
    "rivals.py firefox --words 400 --limit-one 2 --beams 2 --modes one --repeats 1 --threads 1 "
    "--tokens 5 --no-memory --contenders stock": "| stock |",
    "rivals.py sampling --limit 2 --beams 2 --variants --repeats 1 --threads 1 --no-memory "
    "--contenders stock ours": "### Samples",
    "latency.py line --limit 4 --beams 2": "| ours --int8 |",
    "latency.py whole --limit 2 --repeats 1": "2 of 2 |",
    "latency.py startup --limit 2 --repeats 1 --commands interactive": "| start-up of ours",
    "softmax.py --words 5000 --rows 1 --dim 32 --threads 1 --times 1": "| screened, as used |",
    "limit.py --limit 2 --repeats 1 --beam 2": "| int8 | one at a time |",
    "glossary.py --entries 200 --repeats 1": "| one source term | 20,000 |",
    "placement.py --limit 90 --beams 1 --repeats 1 --threads 1": "| without |",
    "placeholders.py --limit 2": "| put back | 2 of 2 |",
    "tags.py --limit 4": "| all layers | assigned |",
    "constrained.py --limit 3 --beam 2 --repeats 1 --threads 1 --parts words sets constant "
    "interactive --sets rand1 --interactive-sets rand1": "| 10 or more |",
    "constrained.py --limit 3 --repeats 1 --threads 1 --parts quality speed --stock-sets rand1 "
    "--beams 2": "BLEU, checkpoints/demo, demo/test",
    f"allowed.py {ALLOWED} --lines 2 --rounds 1 --sizes 9 --names 9 --beam 2": "| 9 names of one",
    "hugging_face.py --shape tiny --rounds 1 --lines 4 --tokens 6": "| ours --int8 |",
    "corpus.py --limit 4 --beam 2 --repeats 1 --warmup 0 --unit 2 --cores 2": "| Ray, 2 workers",
    "serve.py --limit 8 --rates 2 --seconds 1 --servers refill --workers 1": "| refill | 2 |",
    "soak.py --requests 40 --every 20 --settle 0 --readings 1 --workers 1 --limit 4 --allowed 900 "
    "--rate 20": "| 40 |",
}


@drawn(3)
@pytest.mark.parametrize("command", SMOKE)
def test_a_small_run_writes_its_tables(command, tmp_path):
    out = tmp_path / "out"
    out.with_suffix(".txt").write_text("".join(f"A house {i}.\n" for i in range(12)))
    script, *arguments = command.replace("OUT", str(out)).split()
    words = [warm.python(), BENCH / script, *arguments, "--out", out]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    is_timed = script == "glossary.py"  # whose status says how fast this machine is
    assert done.returncode == 0 or is_timed, done.stderr[-2000:]
    assert SMOKE[command] in out.with_suffix(".md").read_text()


@drawn(0)  # long
def test_growth_keeps_what_it_has_measured_and_says_the_exponent(tmp_path):
    words = "--what beam --sizes 1 2 --sentences 2 --repeats 1 --out".split()
    run = [warm.python(), str(BENCH / "growth.py"), *words, str(tmp_path)]
    subprocess.run(run, check=True, capture_output=True)
    found = json.loads((tmp_path / "beam.json").read_text())
    found["cells"] = {size: {"ours": 1.5 * int(size)} for size in found["cells"]}
    (tmp_path / "beam.json").write_text(json.dumps(found))
    subprocess.run(run, check=True, capture_output=True)
    text = (tmp_path / "tables.md").read_text()
    assert "| 1 | 1.5 |" in text and "| last slope | 1.00 |" in text
    assert (tmp_path / "beam.svg").exists()


# ---- a GPU's scripts, as far as they do not need one


@pytest.fixture
def model(monkeypatch):
    from fairseq_ext.model.transformer import weights as linear

    monkeypatch.setattr(linear, "library", lambda: None)
    return gpu_step.random_model(50, 2, torch.float32, "cpu", **gpu_step.SMALL)


def test_a_step_on_a_gpu_is_timed_where_it_gives_what_fairseq_gives(model):
    ways, size = gpu_step.contenders(model, gpu_step.no_graphs()), (3, 50, 6, 2, 1, 1e-4)
    ms = gpu_step.measure(ways, gpu_step.source_of(4, 5, 50, "cpu"), *size)
    assert set(ms) == {"stock", "eager", "graphs"} and all(value > 0 for value in ms.values())
    eager = ways["eager"]
    ways["graphs"] = lambda inputs, beam: eager(
        {**inputs, "src_tokens": inputs["src_tokens"] * 0 + 5}, beam
    )
    with pytest.raises(SystemExit, match="graphs gives other log-probabilities"):
        gpu_step.measure(ways, gpu_step.source_of(4, 5, 50, "cpu"), *size)


def test_the_floor_counts_what_a_step_reads(model):
    d, f, V, layers = 16, 24, 50, 2
    # query, key, value; output; query and output to the source
    weights_of_a_layer = 3 * d * d + d * d + d * d + d * d + 2 * d * f
    biases, norms = 3 * d + d + d + d + f + d, 3 * 2 * d
    weights = layers * (weights_of_a_layer + biases + norms) + V * d
    keys_and_values = layers * 2 * d * (7 * 5 + 7 * 3 * 11)  # 7 sentences of 5 tokens; 3 rows of 11
    assert gpu_step.bytes_of_a_step(model, 7, 3, 5, 11) == 4 * (weights + keys_and_values)


def test_the_results_file_of_a_gpu_has_the_parts_of_several_runs(tmp_path):
    common = ["--device=cpu", "--quick", f"--out={tmp_path / 'gpu'}", "--parts"]
    with pytest.raises(SystemExit, match="not finished, or failed: lsh"):
        gpu.main([*common, "lsh", "--minutes=0"])  # no time is left for it
    with pytest.raises(SystemExit) as ended:
        gpu.main([*common, "step"])
    page = (tmp_path / "gpu.md").read_text()
    assert ended.value.code == 0 and "No GPU: a try on a CPU" in page
    assert "minutes, cut short" in page and "| float32 | 2x5 |" in page


def test_outcomes_are_counted_from_what_pytest_prints():
    text = """
tests/kernels/test_a.py::test_one PASSED                          [ 20%]
tests/kernels/test_a.py::test_two[x y] SKIPPED (no reason)        [ 30%]
[gw1] [ 40%] FAILED tests/model/test_b.py::test_three[FAILED]
tests/model/test_b.py::test_four
[gw0] [ 50%] PASSED tests/model/test_b.py::test_four
FAILED tests/model/test_b.py::test_three[FAILED] - assert 0
"""
    rows = gpu.tested(text).splitlines()[2:]
    assert rows[:2] == ["| `tests/kernels` | 1 | 0 | 1 |", "| `tests/model` | 1 | 1 | 0 |"]
    assert rows[2:] == ["", "- failed: `tests/model/test_b.py::test_three[FAILED]`"]

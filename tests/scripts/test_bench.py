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
import report  # noqa: E402
import text  # noqa: E402
from harness import BenchError, Contender, check, compare  # noqa: E402

REFERENCE = [[([4, 5, 2], -0.5), ([4, 2], -0.9)], [([7, 2], -0.3), ([8, 2], -0.4)]]
FIRST, SECOND = REFERENCE


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


def test_verdicts():
    for changed, outcome in (
        ([[([4, 5, 2], -0.50005), FIRST[1]], SECOND], "equal (4 hypotheses)"),
        ([[([4, 6, 2], -0.5001), FIRST[1]], SECOND], "equal but for 1 near-ties among 4 hypothe"),
        ([[([4, 6, 2], -0.6), FIRST[1]], SECOND], "differ in 1 of 2 sentences (0)"),
        ([FIRST, [([7, 2], -0.31), SECOND[1]]], "differ in 1 of 2 sentences (1)"),
        ([[([4, 5, 2], float("nan")), FIRST[1]], SECOND[:1]], "differ in 2 of 2 sentences (0, 1)"),
    ):
        assert str(check(changed, REFERENCE)).startswith(outcome)


def test_no_speed_for_a_contender_whose_outputs_differ_in_any_run(clock, tmp_path):
    wrong = clock.contender("wrong", [1.234] * 4, [[([4, 2], -0.1)], SECOND])
    answers = iter([REFERENCE, REFERENCE, [[], SECOND], REFERENCE])
    fickle = Contender("fickle", run=lambda: next(answers))
    int8 = clock.contender("int8", [0, 2, 2, 2], [[([4, 6, 2], -0.8)], SECOND], exact=False)
    stock = clock.contender("stock", [8] * 4, signature="fairseq:0.12.2")
    done = clock.race(stock, wrong, fickle, int8, bleu=lambda outputs: 41.5)
    assert clock.order.count("wrong") == 1, "it is not even timed"
    assert done.refused == ["wrong", "fickle"] and done.speed_up("wrong", "stock") is None
    report.Page(tmp_path / "a").add(report.comparison_table(done), report.as_dict(done))
    shown = (tmp_path / "a.md").read_text()
    assert "| wrong | - | - | - | - | **differ in 1 of 2 sentences (0): no speed shown**" in shown
    assert "| 4.00x (4.00-4.00) |  | best equal in 1 of 2, BLEU 41.50 |" in shown
    facts = json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail)
    assert {"cpu", "cores", "torch", "date", "git_commit"} <= set(facts["machine"])
    first, second, *_ = facts["tables"][0]["contenders"]
    assert first["signature"] == "fairseq:0.12.2" and first["seconds"] == [8, 8, 8]
    assert "seconds" not in second


def test_whole_commands_are_timed_and_their_hypotheses_and_peak_memory_read():
    lines = "S-1\tx\nH-1\t-1.0\tb c\nD-1\t-1.0\tb c\nH-0\t-0.5\ta\nH-0\t-2.0\td\n"
    command = [sys.executable, "-c", f"x = b'x' * 100_000_000; print({lines!r})"]
    here = b"x" * 300_000_000  # noqa: F841  (a process started from here would inherit this peak)
    pair = [harness.whole_command(name, command) for name in ("one", "two")]
    done = compare(pair, repeats=1, warmup=0)
    assert done.sentences == 2 and not done.refused and 95 < done["one"].peak_mib < 200
    first, second = harness.read_hypotheses(lines)
    assert [tokens for tokens, _ in first + second] == [["a"], ["d"], ["b", "c"]]
    assert second[0][1] == pytest.approx(-0.69315, abs=1e-5)


def test_errors_are_one_sentence():
    code = "import sys; print('no checkpoint', file=sys.stderr); sys.exit(3)"
    with pytest.raises(BenchError, match="ended with code 3 and said: no checkpoint"):
        harness.run_command([sys.executable, "-c", code])
    with pytest.raises(BenchError, match="the process of rival ended: no checkpoint"):
        harness.Child("rival", [sys.executable, "-c", code]).query("x")


def test_flags_are_those_of_the_text():
    doc = """What it does.

    --beams N ...    of Figure 4 (5 10)
    --delta X        threshold (1.5)
    --parts PART [...]   (all)
    --pair X X       of two (0 200)
    --out DIR        (required)
    --quick          at 100 % speed
"""
    parse = text.command_line(doc, {"parts": "ab"}, more=1)
    args = parse.parse_args(["--out", "x"])
    assert vars(args) == dict(
        beams=[5, 10], delta=1.5, parts=["a", "b"], pair=[0.0, 200.0], out=Path("x"), quick=False,
        more=1,
    )  # fmt: skip
    given = parse.parse_args("--out x --parts --beams 1 --quick".split())
    assert (given.parts, given.beams, given.quick) == ([], [1], True)
    assert "threshold (1.5)" in parse.format_help()
    for wrong in ([], ["--out", "x", "--parts", "c"], ["--out", "x", "--beams", "1.5"]):
        with pytest.raises(SystemExit):
            parse.parse_args(wrong)


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


def test_a_step_on_a_gpu_is_timed_where_it_gives_what_fairseq_gives(monkeypatch):
    from fairseq_ext.model.transformer import weights as linear

    monkeypatch.setattr(linear, "library", lambda: None)
    model = gpu_step.random_model(50, 2, torch.float32, "cpu", **gpu_step.SMALL)
    ways, size = gpu_step.contenders(model, gpu_step.no_graphs()), (3, 50, 6, 2, 1, 1e-4)
    ms = gpu_step.measure(ways, gpu_step.source_of(4, 5, 50, "cpu"), *size)
    assert set(ms) == {"stock", "eager", "graphs"} and all(value > 0 for value in ms.values())
    eager = ways["eager"]
    ways["graphs"] = lambda inputs, beam: eager(
        {**inputs, "src_tokens": inputs["src_tokens"] * 0 + 5}, beam
    )
    with pytest.raises(SystemExit, match="graphs gives other log-probabilities"):
        gpu_step.measure(ways, gpu_step.source_of(4, 5, 50, "cpu"), *size)


def test_the_results_file_of_a_gpu_has_the_parts_of_several_runs(tmp_path):
    common = ["--device=cpu", "--quick", f"--out={tmp_path / 'gpu'}", "--parts"]
    with pytest.raises(SystemExit, match="not finished, or failed: lsh"):
        gpu.main([*common, "lsh", "--minutes=0"])  # no time is left for it
    with pytest.raises(SystemExit) as ended:
        gpu.main([*common, "step"])
    page = (tmp_path / "gpu.md").read_text()
    assert ended.value.code == 0 and "No GPU: a try on a CPU" in page
    assert "minutes, cut short" in page and "| float32 | 2x5 |" in page
    text = "tests/a/test_b.py::test_c PASSED [ 1%]\n[gw1] [ 4%] FAILED tests/a/test_b.py::test_d[x]"
    assert "| `tests/a` | 1 | 1 | 0 |" in gpu.tested(text)

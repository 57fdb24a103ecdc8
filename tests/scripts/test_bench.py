"""The benchmark harness: right statistics from made-up times, no speed for outputs that differ,
JSON that others can read; a small run of each script, which checks its own figures; and Marian,
which gives fairseq's translations where its model can hold fairseq's."""

import ast
import importlib
import json
import struct
import sys
from pathlib import Path

import pytest
import torch
import warm
from conftest import ran, table
from demo_model import ROOT
from sizes import drawn

BENCH = ROOT / "scripts" / "bench"
sys.path.insert(0, str(BENCH))

import gpu  # noqa: E402
import harness  # noqa: E402
import marian  # noqa: E402
import random_models  # noqa: E402
import report  # noqa: E402
import speed  # noqa: E402
import text  # noqa: E402
from contenders import build  # noqa: E402
from harness import BenchError, Contender, check, compare  # noqa: E402
from text import prepare  # noqa: E402

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
    assert "| wrong | - | - | - | **differ in 1 of 2 sentences (0): no speed shown**" in shown
    assert "| 4.00x (4.00-4.00) | best equal in 1 of 2, BLEU 41.50 |" in shown
    facts = json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail)
    assert {"cpu", "cores", "torch", "date", "git_commit"} <= set(facts["machine"])
    first, second, *_ = facts["tables"][0]["contenders"]
    assert first["signature"] == "fairseq:0.12.2" and first["seconds"] == [8, 8, 8]
    assert "seconds" not in second


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


# a script and small arguments, and a part of what it writes to OUT.md
SMOKE = dict(table("scripts/commands.tsv", "bench"))


def catalogue(pair: tuple[str, str]) -> bytes:
    """A catalogue of gettext with its head and one message: the numbers of the format, the places
    of two texts and of their translations, and these."""
    texts = ["", pair[0], "Content-Type: text/plain; charset=UTF-8\n", pair[1]]
    data, places = b"", []
    for each in (x.encode() for x in texts):
        places += [len(each), 28 + 32 + len(data)]
        data += each + b"\0"
    return struct.pack("<7I", 0x950412DE, 0, 2, 28, 44, 0, 0) + struct.pack("<8I", *places) + data


@drawn(3)
@pytest.mark.parametrize("command", SMOKE)
def test_a_small_run_writes_its_tables(command, tmp_path):
    out = tmp_path / "out"
    out.with_suffix(".txt").write_text("".join(f"A house {i}.\n" for i in range(12)))
    out.with_suffix(".d").mkdir()
    message = catalogue(("%d files deleted", "%d Dateien gelöscht"))
    (out.with_suffix(".d") / "de.mo").write_bytes(message)
    script, *arguments = command.replace("OUT", str(out)).split()
    ran(warm.python(), BENCH / script, *arguments, "--out", out)
    assert SMOKE[command] in "".join(file.read_text() for file in tmp_path.rglob("*.md"))


# ---- a GPU's scripts, as far as they do not need one


def test_a_step_on_a_gpu_is_timed_where_it_gives_what_fairseq_gives(monkeypatch):
    from fairseq_ext.model.transformer import weights as linear

    monkeypatch.setattr(linear, "library", lambda: None)
    cpu = torch.device("cpu")
    model = gpu.random_model(50, torch.float32, cpu, **gpu.SMALL)
    ways, size = gpu.contenders(model, gpu.no_graphs()), (3, 50, (6, 2, 1), 1e-4)
    inputs, eager = gpu.source_of(4, 5, 50, cpu), ways["eager"]
    ms = gpu.measure(ways, inputs, *size)
    assert set(ms) == {"stock", "eager", "graphs"} and all(value > 0 for value in ms.values())
    ways["graphs"] = lambda inputs, beam: eager(
        {**inputs, "src_tokens": inputs["src_tokens"] * 0 + 5}, beam
    )
    with pytest.raises(BenchError, match="graphs gives other log-probabilities"):
        gpu.measure(ways, inputs, *size)


# ---- rivals, where their models can hold fairseq's

TOKENS, LINES = 8, 8


def test_marian_gives_the_same_translations_and_scores(tmp_path):
    """Where positions and the start are as in Marian."""
    pytest.importorskip("pymarian", reason="pymarian is not installed")
    made = {}
    for name, tokens in (("ours", TOKENS), ("marian float32", TOKENS - 1)):
        folder = random_models.make((60, random_models.sizes(2, 32, 64, 4)), tmp_path / name)
        saved = torch.load(folder / "checkpoint.pt", weights_only=False)
        random_models.distinguishing(saved["model"])
        saved = marian.with_marians_positions(saved, longest=64) if name == "ours" else saved
        torch.save(saved, folder / "checkpoint.pt")
        text = prepare(tmp_path / f"text-{name}", folder, str(folder / "text"), "de", "en", LINES)
        flags = f"--cpu --beam 1 --batch-size 4 --unnormalized --max-len-b {tokens}".split()
        made[name] = build(name, text, flags)
    pairs = [pair for batch in made["ours"].run() for pair in zip(*batch, strict=True)]
    expected = {number: nbest[0] for number, nbest in pairs}
    assert len({tuple(each["tokens"].tolist()) for each in expected.values()}) > 4
    rival = made["marian float32"]
    for i, ((tokens, score),) in enumerate(rival.read(rival.run())):
        assert tokens == expected[i]["tokens"][:-1].tolist()
        total = float(expected[i]["positional_scores"][:-1].sum())
        assert score == pytest.approx(total, abs=1e-3)


@pytest.mark.parametrize("lost", [0.0, 1e9], ids=["held", "lost"])
def test_a_cell_is_lost_where_its_whole_interval_is_below_the_bound(lost, tmp_path, monkeypatch):
    """This checkout on both sides."""
    monkeypatch.setattr(speed, "LOST", lost)
    monkeypatch.setattr(speed, "fix_threads", lambda threads: None)  # this process has other tests
    assert len(speed.CELLS) == len(set(speed.CELLS)) == 14
    cells = ["constrained, int8", "typed line, float32", "HTTP requests"] if lost else ["HTTP p95"]
    before = ["--before", str(ROOT), sys.executable]
    small = [*"--repeats 1 --limit 2 --seconds 0.2 --out".split(), str(tmp_path / "out")]
    assert speed.main([*before, *small, "--cells", *cells]) == int(lost > 0)
    lines = (tmp_path / "out.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]
    assert [row[0] for row in rows] == cells
    assert all(float(row[2].split()[0]) > 0 and "equal (" in row[3] for row in rows)
    assert all((row[-1] == "lost") == (lost > 0) for row in rows)


@pytest.mark.parametrize("script", sorted(BENCH.parent.rglob("*.py")), ids=lambda path: path.stem)
def test_what_a_script_imports_is_there(script):
    """Also of those that only a GPU can run."""
    for node in ast.walk(ast.parse(script.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fairseq_ext"):
            module = importlib.import_module(node.module)
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")

"""Case and segmentations through the command on the demo model: --constraint-case, --avoid-case,
and the words of the report."""

import json
import re
from pathlib import Path

import pytest
from demo_model import OURS
from demo_text import raw_demo
from forked import generate, interactive_forked
from sizes import drawn

LINES = 6
NBEST = 3


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    """The first lines of the demo's test set as raw data."""
    return raw_demo(tmp_path_factory.mktemp("demo"), LINES)


def translations(demo: Path, *flags) -> tuple[dict[int, list[str]], dict]:
    """Texts of the n-best lists by sentence, and the statistics of the constraints."""
    stats = demo / "stats.json"
    where = [demo, *OURS, "--dataset-impl", "raw", "--beam", 4]
    status, out, log = generate(*where, "--nbest", NBEST, "--stats-file", stats, *flags)
    assert status == 0, log
    found: dict[int, list[str]] = {}
    for number, text in re.findall(r"^D-(\d+)\t\S+\t(.*)$", out, re.MULTILINE):
        found.setdefault(int(number), []).append(text)
    assert sorted(found) == list(range(LINES))
    return found, json.loads(stats.read_text(encoding="utf-8")).get("constraints", {})


@pytest.fixture(scope="module")
def plain(demo) -> list[str]:
    """What the model says by itself."""
    found, _ = translations(demo)
    return [found[i][0] for i in range(LINES)]


def written(folder: Path, name: str, lines: list[str]) -> Path:
    path = folder / name
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_a_banned_word_comes_back_in_no_case_and_no_pieces(demo, plain, tmp_path):
    words = sorted(
        {word for text in plain for word in re.findall(r"[A-Za-z]+", text)},
        key=lambda w: -" ".join(plain).lower().count(w),
    )
    banned = [word.lower() for word in words[:3]]
    avoid = written(tmp_path, "avoid", banned)
    for texts in translations(demo, "--avoid-file", avoid)[0].values():
        assert not any(
            re.search(rf"\b{word}\b", text, re.IGNORECASE) for word in banned for text in texts
        )
    exact = translations(demo, "--avoid-file", avoid, "--avoid-case", "exact")[0].values()
    assert not any(
        re.search(rf"\b{word}\b", text) for word in banned for texts in exact for text in texts
    )


@drawn(1)
@pytest.mark.parametrize("case", ["exact", "initial", "any"])
def test_the_report_and_a_reader_agree(demo, plain, tmp_path, case):
    """The first word of each translation, written small, is required."""
    firsts = [re.findall(r"[A-Za-z]+", text)[0].lower() for text in plain]
    file = written(tmp_path, "constraints", firsts)
    found, counts = translations(demo, "--constraints-file", file, "--constraint-case", case)
    assert counts["given"] == counts["met"] == LINES and counts["unmet"] == []
    for number, texts in found.items():
        word = firsts[number]
        for text in texts:
            there = re.search(rf"\b{word}\b", text, re.IGNORECASE if case == "any" else 0)
            assert there or (case == "initial" and re.match(rf"{word.capitalize()}\b", text))
    if case != "exact":  # what the model says by itself will do
        assert sum(found[i][0] == plain[i] for i in range(LINES)) > LINES // 2


@drawn(1)
@pytest.mark.parametrize("mode", ["word", "prefix", "none"])
def test_where_a_phrase_counts(demo, tmp_path, mode):
    """The model says "offers" by itself: that has "offer" where a suffix may follow,
    and lacks it as a word."""
    line = "Zwei Angebote werden morgen geprüft.\n"
    where = [demo, *OURS, "--beam", 4]
    given = [
        "--constraints-file",
        written(tmp_path, "constraints", ["offer"]),
        "--constraint-boundary",
        mode,
    ]
    free, found = (
        re.search(
            r"^D-0\t\S+\t(.*)$", interactive_forked(line, *where, *flags).stdout, re.MULTILINE
        )[1]
        for flags in ((), given)
    )
    assert "offers" in free and not re.search(r"\boffer\b", free)
    if mode == "prefix":
        assert found == free
    else:  # none: its own pieces, whatever follows
        assert found != free and re.search(r"\boffer\b" if mode == "word" else r"\boffer", found)

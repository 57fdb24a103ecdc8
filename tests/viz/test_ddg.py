"""Decoding dependency graphs: what the JSON says is what the iterations were, and the pictures
are there and whole."""

import json
import random
import sys
import xml.etree.ElementTree

import numpy as np
import pytest
from models import batch, build, dictionary, generators, run
from sizes import drawn

from fairseq_ext import UsageError
from fairseq_ext.search.parallel.blocks import Iteration
from fairseq_ext.search.parallel.graph import NEVER, Graph, waits
from fairseq_ext.viz.ddg import main


def iteration(first: int, out: list[int], verified: int) -> Iteration:
    return Iteration(
        0, first, np.array(out[:-1]), np.array(out), np.log(np.full(len(out), 0.5)), verified
    )


def test_a_position_is_solved_from_the_first_iteration_that_keeps_it_right():
    """Final output 5 6 7 8: 7 is right at once, lost again, and found for good in
    the third iteration."""
    calls = [
        iteration(0, [5, 9, 7, 9], 1),
        iteration(0, [5, 6, 9, 8], 2),
        iteration(0, [5, 6, 7, 8], 4),
    ]
    graph = Graph.build("0", ["w"], ["5", "6", "7", "8"], "jacobi", calls, str)
    assert graph.solved == [0, 1, 2, 1]
    assert graph.waits_for == [NEVER, 0, 1, 0]
    assert [cell["right"] for cell in graph.iterations[0]["cells"]] == [True, False, True, False]
    assert graph.iterations[0]["cells"][0]["probability"] == 0.5


def test_tokens_of_the_first_iteration_wait_for_nothing():
    assert waits(np.array([0, 0, 2, 1, 0])) == [NEVER, NEVER, NEVER, 1, NEVER]


def test_a_run_writes_every_sentence_and_draws_none(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    flags = {"decoding": "jacobi", "draft": "pad", "ddg_dir": str(tmp_path)}
    ours = generators([build("transformer", 3, eos=1.0)], flags, beam=1, max_len_b=20).ours
    sample = batch([6, 2])
    for number, [best] in zip(sample["id"].tolist(), run(ours, sample), strict=True):
        graph = Graph.load(tmp_path / f"{number}.json")
        assert graph.tokens == [dictionary()[t] for t in best["tokens"].tolist()]
        verified = [0, *(row["verified"] for row in graph.iterations)]
        assert verified[-1] == len(graph.solved), "a call begins behind what is verified"
        assert [row["first"] for row in graph.iterations] == verified[:-1]
        for k, row in enumerate(graph.iterations):
            right = [cell["right"] for cell in row["cells"]]
            assert all(right[: row["verified"] - row["first"]]), "verified positions are right"
            assert all(right[j - row["first"]] for j, when in enumerate(graph.solved) if when == k)
        assert min(graph.solved) >= 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0.json", "1.json"]


WORDS = (
    "▁The ▁competition ▁WWWWWWWW @@ization ▁Mannschaftsmeister , . ▁young ▁mountainbiking "
    "▁$5 ▁$ </s>"
).split()


@drawn(1)
@pytest.mark.parametrize("length, block", [(1, 1), (5, 5), (14, 14), (20, 3), (60, 60), (60, 5)])
def test_no_label_covers_another_or_leaves_the_picture(length, block):
    """Short and long outputs, wide and narrow words: the boxes that matplotlib draws the texts
    in, at the size of the file."""
    draw = pytest.importorskip("fairseq_ext.viz.ddg").draw
    chance, calls, first = random.Random(length), [], 0
    symbols = chance.choices(WORDS, k=length) + WORDS  # of the output, and wrong ones
    while first < length:
        w = min(block, length - first)
        right = chance.randint(1, min(4, w))
        wrong = [length + chance.randrange(len(WORDS)) for _ in range(w)]
        out = [first + j if j < right or chance.random() < 0.3 else wrong[j] for j in range(w)]
        calls.append(iteration(first, out, right))
        first += right
    source = chance.choices(WORDS, k=3 * length)
    graph = Graph.build("0", source, symbols[:length], "jacobi", calls, symbols.__getitem__)
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = draw(graph)
    FigureCanvasAgg(figure).draw()
    texts = [text for axes in figure.axes for text in axes.texts] + figure.texts
    boxes = [text.get_window_extent() for text in texts]
    assert len(texts) > 2 * length
    for i, box in enumerate(boxes):
        assert min(box.extents) >= 0
        assert box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height
        for j, other in enumerate(boxes[:i]):
            apart = box.x0 >= other.x1 or other.x0 >= box.x1
            apart = apart or box.y0 >= other.y1 or other.y0 >= box.y1
            assert apart, (texts[i].get_text(), texts[j].get_text())
    assert min(text.get_fontsize() for text in texts) >= 6, "small, but to be read"


def test_the_picture_shows_the_sentences_as_text_and_whole_tokens(tmp_path):
    """The source may take several lines; no token is cut."""
    pytest.importorskip("matplotlib")
    source = ["▁Donaudampfschifffahrts", "gesellschaft", *["▁Wort"] * 40]
    symbols = ["▁Mannschaftsmeisterschaft", "▁<x&", "</s>", "▁internationalization"]
    calls = [iteration(0, [0, 3, 3], 1), iteration(0, [0, 1, 2], 3)]

    def plain(text: str) -> str:
        return text.replace(" ", "").replace("▁", " ").strip()

    Graph.build("7", source, symbols[:3], "jacobi", calls, symbols.__getitem__, plain).save(
        tmp_path / "7.json"
    )
    main(["--out", str(tmp_path), str(tmp_path / "7.json")])
    parts = xml.etree.ElementTree.parse(tmp_path / "7.svg").iter()
    texts = ["".join(part.itertext()) for part in parts if part.tag.endswith("}text")]
    assert " ".join(texts).count("Wort") == 40
    assert any(text.startswith("Donaudampfschifffahrtsgesellschaft Wort") for text in texts)
    assert {"Mannschaftsmeisterschaft <x&", symbols[0], symbols[3]} <= set(texts)


@pytest.mark.parametrize("part", [{"more": 1}, {"name": 3}, {"name": "../7"}])
def test_what_is_no_graph_is_refused(part, tmp_path):
    file = tmp_path / "7.json"
    Graph.build("7", ["s"], ["a"], "jacobi", [iteration(0, [0], 1)], "ab".__getitem__).save(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | part))
    with pytest.raises(UsageError, match="7.json is not a dependency graph"):
        main(["--out", str(tmp_path), str(file)])

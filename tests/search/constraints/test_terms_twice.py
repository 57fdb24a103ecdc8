"""Scores and lists of sentences with placed terms, on the demo model."""

import json
import random
import re

import pytest
import torch
from demo_model import MODEL, OURS, ROOT
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from forked import interactive
from sizes import drawn, part_of

from fairseq_ext import Translator

SOURCES = (ROOT / "data" / "demo" / "test.de").read_text(encoding="utf-8").splitlines()
SOURCES = SOURCES[: len(part_of(30, 15))]


def translated(lines: list[str], *flags) -> tuple[dict[int, list[str]], str]:
    """The texts of each line, best first, and what the command says."""
    how = ["--beam", 4, "--buffer-size", 30, "--max-tokens", 2000]
    text = "".join(f"{line}\n" for line in lines)
    done = interactive(MODEL, *OURS, *how, *flags, stdin=text)
    assert done.status == 0, done.stderr[-2000:]
    found: dict[int, list[str]] = {}
    for number, text in re.findall(r"^D-(\d+)\t\S+\t(.*)$", done.stdout, re.MULTILINE):
        found.setdefault(int(number), []).append(text)
    return found, done.stdout


def words(text: str) -> list[str]:
    return re.findall(r"\w{4,}", text)


@drawn(1)
@pytest.mark.parametrize("flags", [{}, {"temperature": 0.5}, {"temperature": 2.0, "unkpen": 3}])
def test_scores_with_terms_in_place_are_those_of_the_search_s_temperature(tmp_path, flags):
    """By one call of fairseq's model for the whole target."""
    glossary = tmp_path / "terms.tsv"
    glossary.write_text("Ordner\tmoonlight\nAngebot\tbandage\n", encoding="utf-8")
    lines = ["Die Ärztin öffnet den Ordner.", "Das Angebot wird morgen geprüft.", SOURCES[4]]
    given = [word for name, value in flags.items() for word in (f"--{name}", value)]
    _, out = translated(lines, "--glossary", glossary, "--nbest", 4, *given)
    (model,), _, task = load_model_ensemble_and_task(
        [str(MODEL / "checkpoint.pt")], {"data": str(MODEL)}
    )
    model.eval()
    sources = dict(re.findall(r"^S-(\d+)\t(.*)$", out, re.MULTILINE))
    texts = re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", out, re.MULTILINE)
    of_tokens = re.findall(r"^P-(\d+)\t(.*)$", out, re.MULTILINE)
    assert len(texts) == len(of_tokens) > len(lines)
    for (number, score, text), (_, positional) in zip(texts, of_tokens, strict=True):
        source = task.source_dictionary.encode_line(sources[number], add_if_not_exist=False)
        target = task.target_dictionary.encode_line(text, add_if_not_exist=False).long()
        read = torch.cat([target[-1:], target[:-1]])[None]
        with torch.no_grad():
            logits = model(source[None].long(), torch.tensor([len(source)]), read)[0][0]
        expected = (logits / flags.get("temperature", 1.0)).log_softmax(-1)
        expected = expected.gather(1, target[:, None])[:, 0] / torch.tensor(2.0).log()
        printed = torch.tensor([float(value) for value in positional.split()])
        assert torch.allclose(printed, expected, atol=2e-4), text
        assert float(score) == pytest.approx(float(printed.mean()), abs=1e-3)


def test_lists_are_in_the_order_of_their_scores(tmp_path):
    draw = random.Random(5)
    glossary = tmp_path / "terms.tsv"
    pairs = {draw.choice(words(line)): draw.choice(["moonlight", "wire|wires"]) for line in SOURCES}
    glossary.write_text("".join(f"{s}\t{t}\n" for s, t in pairs.items()), encoding="utf-8")
    lists, out = translated(SOURCES, "--glossary", glossary, "--nbest", 4)
    scores: dict[str, list[float]] = {}
    for number, score in re.findall(r"^H-(\d+)\t(\S+)\t", out, re.MULTILINE):
        scores.setdefault(number, []).append(float(score))
    assert all(of_line == sorted(of_line, reverse=True) for of_line in scores.values())
    assert sum(len(of_line) > 1 for of_line in scores.values()) > len(SOURCES) // 3
    report = tmp_path / "report.jsonl"
    single, _ = translated(SOURCES, "--glossary", glossary, "--glossary-report", report)
    # what is searched with its term forced ends by --stop early, which depends on --nbest
    searched = {
        record["id"]
        for record in map(json.loads, report.read_text(encoding="utf-8").splitlines())
        if any(term["placed_by"] == "searched" for term in record["terms"])
    }
    assert len(searched) <= len(single) // 2
    assert {i: texts[:1] for i, texts in lists.items() if i not in searched} == {
        i: texts for i, texts in single.items() if i not in searched
    }


def test_a_banned_phrase_does_not_make_the_best_depend_on_how_many_are_wanted(tmp_path):
    """A phrase of the term and the word in front of it: the best draft is of no use with its term,
    and the same other ones are looked at."""
    glossary = tmp_path / "terms.tsv"
    draw, lines = random.Random(8), SOURCES[: len(part_of(20, 10))]
    terms = {draw.choice(words(line)) for line in lines}
    glossary.write_text("".join(f"{term}\tmoonlight\n" for term in terms), encoding="utf-8")
    placing = Translator.from_folder(MODEL, beam=5, cpu=True, glossary=str(glossary))
    pairs = [re.search(r"\w+ moonlight", found[0].text) for found in placing.translate(lines)]
    avoid = [[] if pair is None else [pair[0]] for pair in pairs]
    wanted = {n: placing.translate(lines, nbest=n, avoid=avoid) for n in (1, 2, 5)}
    best = {n: [(each[0].text, each[0].elsewhere) for each in found] for n, found in wanted.items()}
    placed = 0
    for banned, *of_line in zip(avoid, *best.values(), strict=True):
        # what is searched with its term forced ends by --stop early, which does depend on it
        if any(not elsewhere for _, elsewhere in of_line):
            placed += bool(banned)
            assert len({text for text, _ in of_line}) == 1, of_line
    assert placed > len(lines) // 6

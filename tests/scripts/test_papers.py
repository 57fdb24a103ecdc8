"""scripts/experiments: a small run of each paper, whose scripts check their own figures; and what
their baselines compute, against values by hand, brute force or another library."""

import importlib.util
import itertools
import os
import random
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import torch
import warm
from fairseq.data import Dictionary
from models import batch, build, generators, same
from models import run as decoded
from sizes import drawn
from table_model import EOS

ROOT = Path(__file__).resolve().parents[2]
PAPERS = ROOT / "scripts" / "experiments"
DEMO, TEXT = ROOT / "checkpoints" / "demo", ROOT / "data" / "demo" / "test"
sys.path[:0] = [str(PAPERS / "streaming"), str(PAPERS)]

import intervals  # noqa: E402
import tree_actions  # noqa: E402
from tree_actions import Tree, TreeError, read_tree, to_actions, to_tree  # noqa: E402


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A script of a paper; bash where it is one."""
    words = [PAPERS / script, *arguments]
    words = words if script.endswith(".sh") else [warm.python(), *words]
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": places, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*map(str, words)], env=environment, capture_output=True, text=True)


# commands (OUT: a folder, with raw/, three lines in two.de and two.en, terms in terms.tsv, lexical
# tables), then a file of OUT and a part of what it must have; a list of commands runs in turn
MODEL = f"--model {DEMO} --text {TEXT}"
TRAINED = "--raw OUT/raw --out OUT/work --max-update 3 --total-num-update 9 --warmup-updates 1"
SEARCHED = "--work OUT/work --out OUT/work --sentences 2 --few 1 --only 'top T=2000' 'lexical N=5'"
PARSED = "--out OUT --repeats 1 --k 2"
SMOKE = {
    "jacobi": (
        [f"jacobi/run.py --models {DEMO} --text {TEXT} --out OUT --limit 12 --repeats 1 --only PJ"],
        {"flops.md": "MFLOPs", "by_length.md": "| PJ |", "graph1.svg": "<svg"},
    ),
    "lsh": (
        [f"lsh/train.sh {TRAINED} --max-tokens 200 --arch lstm", f"lsh/run.py {SEARCHED}"],
        {"work/tables.md": "## Table 8", "work/figure6.svg": "<svg"},
    ),
    "prepared": (  # without a lexicon
        [
            f"lsh/prepare.py --model {DEMO} --text OUT/two --counts OUT/two.en --out OUT/plain",
            f"lsh/run.py {SEARCHED.replace('OUT/work', 'OUT/plain')}",
        ],
        {"plain/tables.md": "## Table 8"},
    ),
    "optimal_ending": (
        [
            f"optimal_ending/run.py --dev {TEXT} --limit 8 --beams 2 --rewards 0 1.2 --out OUT "
            "--time-beams 3 --time-limit 4 --repeats 1"
        ],
        {"tables.md": "### Time at beam 3", "figure2.svg": "<svg"},
    ),
    "streaming": (
        [
            "streaming/run.py --out OUT --limit 7 --parts natural steps --texts test --beams 1 "
            f"--n 2 --natural 2 2 --repeats 1 --ensemble {DEMO}/checkpoint.pt"
        ],
        {"tables.md": "| fixed stream |", "figure2.svg": "<svg"},
    ),
    "parsing": (
        [
            "streaming/train.py --raw OUT --set geo --epochs 1 --out OUT/geo",
            f"streaming/parsing.py --raw OUT --sets geo {PARSED}",
            "streaming/train.py --trees OUT --rare 1 --epochs 1 --out OUT/trees",
            "streaming/tables.py --out OUT",
        ],
        {"tables.md": "### Table 7: semantic parsing, GeoQuery"},
    ),
    "terminology": (
        [
            f"terminology/run.py {MODEL} --limit 2 --beam 2 --draws 2 --sets rand1 --out OUT "
            "--methods none end fairseq"
        ],
        {"tables.md": "### rand1: 2 terms in 2 sentences, beam 2"},
    ),
    "glossary": (
        [
            "terminology/make_glossary.py --text OUT/nouns.de --there OUT/there --back OUT/back "
            "--out OUT/made.tsv"
        ],
        {"made.tsv": "Hund\tpuppy\n"},
    ),
    "placement": (
        [
            "terminology/placement.py --out OUT --name two --text OUT/two "
            "--displaced OUT/terms.tsv",
        ],
        {"tables.md": "### two, beam 5: 2 terms in 2 sentences"},
    ),
    "rules": (
        [
            "terminology/rules.py --out OUT --least 1 --rounds 1 "
            f"--set demo {DEMO} OUT/two de en OUT/plain.tsv"
        ],
        {"rules.json": "another form stays"},
    ),
    "candidates": (
        [f"candidates/measure.py {MODEL} --lines 2 --lists OUT/lists --out OUT/candidates"],
        {"candidates.md": "| MBR chrF, 5-best, `uniform` |"},
    ),
}


@drawn(1)
@pytest.mark.parametrize("paper", SMOKE)
def test_a_small_run_writes_the_tables_of_a_paper(paper, tmp_path):
    lines = {
        "de": ["Das Angebot wird morgen geprüft.", "Ein Haus.", "Die Ärztin öffnet den Ordner."],
        "en": ["The offer is checked tomorrow.", "A house.", "The doctor opens the folder."],
    }
    for language, text in lines.items():
        (tmp_path / f"two.{language}").write_text("".join(f"{line}\n" for line in text))
    terms = "Angebot\tfederation\toffer|quotation\nOrdner\tledger\tfolder|file\n"
    (tmp_path / "terms.tsv").write_text(terms)
    (tmp_path / "plain.tsv").write_text("Angebot\tquotation\n")
    (tmp_path / "nouns.de").write_text("Ein Hund .\n" * 30)
    (tmp_path / "there").write_text("Hund dog 0.8\nHund puppy 0.1\n")
    (tmp_path / "back").write_text("puppy Hund 0.9\n")
    for folder in ("raw", "work"):
        (tmp_path / folder).mkdir()
    (tmp_path / "work" / "lexicon").write_text("en1 de1 0.9\na a 0.9\n")
    for split in ("train", "dev", "test"):
        (tmp_path / f"geo.{split}.nl").write_text("".join(f"what is {i}\n" for i in range(8)))
        (tmp_path / f"geo.{split}.sql").write_text("".join(f"SELECT {i}\n" for i in range(8)))
        (tmp_path / f"{split}.trees").write_text(f"{EATING}\n" * 4)
    parts = itertools.product(("train", "val", "test_2016_flickr"), ("en", "de", "fr", "cs"))
    for part, language in parts:
        made = (f"{language}{i} a dog {language}{i % 5} runs .\n" for i in range(30))
        (tmp_path / "raw" / f"{part}.{language}").write_text("".join(made))
    commands, written = SMOKE[paper]
    for command in commands:
        done = run(*shlex.split(command.replace("OUT", str(tmp_path))))
        assert done.returncode == 0, done.stderr[-2000:]
    for file, part in written.items():
        assert part in (tmp_path / file).read_text(encoding="utf-8"), file


def test_an_interval_holds_sacrebleu_of_resampled_sentences():
    references = ["the old man reads a long book", "a dog runs over the green grass"] * 2
    texts = [references[0], "a dog runs over the grass", "the old man reads a book"]
    texts.append("a green dog runs over the grass")
    found = intervals.resampled(intervals.counts_of(texts, references), resamples=40)
    times = np.random.default_rng(intervals.SEED).multinomial(4, [1 / 4] * 4, size=40)
    for score, chosen in zip(found, times, strict=True):
        every = zip(chosen, texts, references, strict=True)
        lines = [(text, line) for n, text, line in every for _ in range(n)]
        outputs, expected = zip(*lines, strict=True)
        whole = sacrebleu.corpus_bleu(outputs, [expected], smooth_method="none").score
        assert score == pytest.approx(whole)


def test_the_baseline_of_lsh_with_all_words_is_the_full_softmax(monkeypatch):
    spec = importlib.util.spec_from_file_location("lsh_run", PAPERS / "lsh" / "run.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.syspath_prepend(PAPERS)
    monkeypatch.syspath_prepend(PAPERS / "lsh")
    monkeypatch.delitem(sys.modules, "tables", raising=False)
    spec.loader.exec_module(module)
    monkeypatch.delitem(sys.modules, "tables")
    flags = {"softmax": "lsh", "lsh_k": 4, "lsh_u": 2, "lsh_bands": 20, "lsh_top": 0}
    models, size = [build("transformer", 2, torch.float32)], {"beam": 3, "max_len_b": 8}
    ours, full = (generators(models, each, **size).ours for each in (flags, {}))
    softmax = ours.strategies.softmax
    softmax.__class__, softmax.most, softmax.eos = module.PerRow, 10**6, EOS
    same(decoded(full, batch([5, 3, 2])), decoded(ours, batch([5, 3, 2])), 1e-4)


# ---- trees; worked out by hand from the rules of Cross and Huang 2016: a constituent of three
# children, and one over one
EATING = "(S (NP (PRP I)) (VP (MD do) (VBP like) (S (VP (VBG eating) (NP (NN fish))))))"
STEPS = """sh label:NP  sh nolabel  sh nolabel  comb nolabel  sh nolabel  \
sh label:NP  comb label:S+VP  comb label:VP  comb label:S"""
ACTIONS = ["sh", "comb", "nolabel", "label:X"]


def random_tree(rng: random.Random, words: int, depth: int = 0) -> Tree:
    """A tree with unary chains and up to four children."""
    if words == 1 and (depth and rng.random() < 0.6):
        return Tree(rng.choice(["NN", "-LRB-", ","]), word=rng.choice(["a", "b|c", "%", "-RRB-"]))
    label = rng.choice(["S", "NP", "VP", "PP"])
    if words == 1 or rng.random() < 0.2:
        return Tree(label, (random_tree(rng, words, depth + 1),))
    cuts = sorted(rng.sample(range(1, words), min(words - 1, rng.randint(1, 3))))
    sizes = [end - start for start, end in zip([0, *cuts], [*cuts, words], strict=True)]
    return Tree(label, tuple(random_tree(rng, size, depth + 1) for size in sizes))


def test_trees_become_actions_and_come_back():
    assert to_actions(read_tree(EATING)) == STEPS.split()
    for seed in range(100):
        rng = random.Random(seed)
        tree = random_tree(rng, rng.randint(1, 25))
        words = [(leaf.word, leaf.label) for leaf in tree.leaves()]
        actions = to_actions(tree)
        assert len(actions) == 4 * len(words) - 2
        assert to_tree(words, actions) == tree == read_tree(str(tree))


def test_legal_actions_are_those_of_the_trees_of_three_words():
    known = Dictionary()
    for action in ACTIONS:
        known.add_symbol(action)
    legal, found, open_ones = tree_actions.LegalActions(known), set(), [()]
    while open_ones:
        length = max(map(len, open_ones))
        # shorter rows on the right
        rows = [[-1] * (length - len(a)) + [known.index(x) for x in a] for a in open_ones]
        allowed = legal(torch.tensor(rows).view(len(rows), length), torch.full((len(rows),), 3))
        following = []
        for actions, row in zip(open_ones, allowed, strict=True):
            nexts = [known[i] for i in row.nonzero()[:, 0].tolist()]
            assert nexts, actions  # there is always a way on
            found |= {actions} if nexts == [known[known.eos()]] else set()
            following += [(*actions, action) for action in nexts if action != known[known.eos()]]
        open_ones = following

    def is_tree(actions: tuple[str, ...]) -> bool:
        try:
            return bool(to_tree([("w", "T")] * 3, list(actions)))
        except TreeError:
            return False

    # the others are no trees at any number of words
    turns = itertools.product(*[ACTIONS[:2], ACTIONS[2:]] * 5)
    assert found == {actions for actions in turns if is_tree(actions)}

"""scripts/experiments: a small run of each paper, whose scripts check their own figures; what their
baselines compute, against values by hand, brute force or another library; and what
scripts/tune_length_reward.py tunes, on made-up searches and on the demo's text."""

import importlib.util
import itertools
import os
import random
import re
import shlex
import sys

import numpy as np
import pytest
import sacrebleu
import torch
import warm
from conftest import BIN, command, ran, table
from demo_model import MODEL as DEMO
from demo_model import OURS, ROOT
from fairseq.data import Dictionary
from models import batch, build, generators, same
from models import run as decoded
from sizes import drawn
from table_model import EOS

SCRIPTS = ROOT / "scripts"
PAPERS = SCRIPTS / "experiments"
TEXT = ROOT / "data" / "demo" / "test"
sys.path[:0] = map(str, (SCRIPTS, PAPERS / "optimal_ending", PAPERS / "streaming", PAPERS))

import intervals  # noqa: E402
import tree_actions  # noqa: E402
import tune_length_reward as tune  # noqa: E402
from searches import Search, Wanted, bounded, measure, wanted_lengths  # noqa: E402
from tree_actions import Tree, TreeError, read_tree, to_actions, to_tree  # noqa: E402

# its commands, in turn (OUT: a folder, with raw/, three lines in two.de and two.en, terms in
# terms.tsv, lexical tables), and files of OUT with a part of what each must have
SMOKE = {name: row for name, *row in table("scripts/commands.tsv", "paper")}


@drawn(1)
@pytest.mark.parametrize("paper", SMOKE)
def test_a_small_run_writes_the_tables_of_a_paper(paper, tmp_path):
    small = {
        "two.de": "Das Angebot wird morgen geprüft.\nEin Haus.\nDie Ärztin öffnet den Ordner.\n",
        "two.en": "The offer is checked tomorrow.\nA house.\nThe doctor opens the folder.\n",
        "terms.tsv": "Angebot\tfederation\toffer|quotation\nOrdner\tledger\tfolder|file\n",
        "plain.tsv": "Angebot\tquotation\n",
        "nouns.de": "Ein Hund .\n" * 30,
        "there": "Hund dog 0.8\nHund puppy 0.1\n",
        "back": "puppy Hund 0.9\n",
        "work/lexicon": "en1 de1 0.9\na a 0.9\n",
    }
    for split in ("train", "dev", "test"):
        small[f"geo.{split}.nl"] = "".join(f"what is {i}\n" for i in range(8))
        small[f"geo.{split}.sql"] = "".join(f"SELECT {i}\n" for i in range(8))
        small[f"{split}.trees"] = f"{EATING}\n" * 4
    for part, x in itertools.product(
        ("train", "val", "test_2016_flickr"), ("en", "de", "fr", "cs")
    ):
        lines = (f"{x}{i} a dog {x}{i % 5} runs .\n" for i in range(30))
        small[f"raw/{part}.{x}"] = "".join(lines)
    for name, content in small.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    commands, written = SMOKE[paper]
    places = {"OUT": str(tmp_path), "DEMO": str(DEMO), "TEXT": str(TEXT)}
    for line in commands.split("; "):
        line = re.sub("OUT|DEMO|TEXT", lambda found: places[found[0]], line)
        script, *words = shlex.split(line)
        python = [] if script.endswith(".sh") else [warm.python()]
        ran(*python, PAPERS / script, *words, PATH=f"{BIN}:{os.environ['PATH']}", timeout=900)
    for file, _, part in (each.partition(": ") for each in written.split("; ")):
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


def random_tree(rng, words, depth=0):
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

    def is_tree(actions):
        try:
            return bool(to_tree([("w", "T")] * 3, list(actions)))
        except TreeError:
            return False

    # the others are no trees at any number of words
    turns = itertools.product(*[ACTIONS[:2], ACTIONS[2:]] * 5)
    assert found == {actions for actions in turns if is_tree(actions)}


# ---- tune_length_reward.py

REFERENCES = ["the old man reads a long book", "a dog runs over the green grass"]
SHORT = [[-2.0, 3, "the man"], [-4.0, 8, REFERENCES[0]]]
SHORT.append([-9.0, 12, "the old man reads a long book and then the man"])
FOUND = Search("", {}, [6, 6], [SHORT, [[-3.0, 8, REFERENCES[1]], [-2.5, 4, "a dog runs"]]])


class Words:
    """A translator that takes text as it is."""

    tokenizer = bpe = None


def test_the_dev_set_tunes_the_smallest_of_the_best_rewards():
    wanted = [Wanted(1.4), Wanted(1.0, 3.6)]  # 8.4 and 9.6 tokens
    tried = tune.sweep(lambda r, w: measure(FOUND.answers(bounded(r), w), REFERENCES), wanted, 1.0)
    # the first sentence changes sides at r = 2 / 5, the second at 1 / 8: so .45 is the first of the
    # fine grid that is right in both
    assert tune.best_of(tried) == (0.45, wanted[0])
    assert tried[0.45, wanted[0]].bleu == pytest.approx(100) and tried[0.45, wanted[0]].ratio == 1
    assert {(r, w) for r in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0) for w in wanted} <= set(tried)
    assert tried[0.0, wanted[0]].bleu < 100


@drawn(0)  # long
def test_each_reward_that_the_script_tries_is_a_search_of_its_own():
    """The hypotheses that the search with the largest reward keeps lack answers of smaller ones."""
    count = 30
    small = f"--dev {TEXT} --limit {count} --beam 2 --max-reward 1.2 --no-line --no-stock --cpu"
    done = ran(warm.python(), SCRIPTS / "tune_length_reward.py", *small.split())
    pattern = r"^ +(\d\.\d\d) +[\d.]+ x +([\d.]+)"
    tried = {r: float(bleu) for r, bleu in re.findall(pattern, done.stdout, re.MULTILINE)}
    assert {"0.00", "0.20", "0.40", "0.60", "0.80", "1.00", "1.20"} <= set(tried)
    sources, references = (
        TEXT.with_suffix(f".{side}").read_text().split("\n")[:count] for side in ("de", "en")
    )
    flags = f"--beam 2 --buffer-size {count} --batch-size {count} --unnormalized --stop optimal"

    def interactive(*more):
        text = "\n".join([*sources, ""])
        words = [DEMO, *OURS, *flags.split(), *more]
        said = command("fairseq-interactive", *words, stdin=text).stdout
        found = [line.split("\t")[2] for line in said.splitlines() if line.startswith("D-")]
        return sacrebleu.corpus_bleu(found, [references]).score

    assert tried["0.00"] == pytest.approx(interactive(), abs=0.006)
    best = done.stdout.splitlines()[-1].split()
    best = best[best.index("--prune-bound") :]
    assert max(tried.values()) == pytest.approx(interactive(*best), abs=0.006)


def test_wanted_lengths_are_the_ratio_of_the_sums_and_the_least_squares_line():
    # |y| = 2.5 + |x| / 2, and EOS
    sources, references = ["a", "a a a", "a a a a a"], ["b b b", "b b b b", "b b b b b"]
    expected = Wanted(round(12 / 9, 3)), Wanted(0.5, 3.5)
    assert wanted_lengths(Words(), sources, references) == expected
    # no line through one length
    assert wanted_lengths(Words(), ["a a"] * 3, references) == (Wanted(2.0), Wanted(2.0))

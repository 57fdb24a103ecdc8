"""scripts/tune_length_reward.py: what it tunes, on made-up searches and on the demo's text."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import sacrebleu
import warm
from conftest import command
from sizes import drawn

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path[:0] = [str(SCRIPTS), str(SCRIPTS / "experiments" / "optimal_ending")]

import tune_length_reward as tune  # noqa: E402
from searches import Search, Wanted, bounded, measure, wanted_lengths  # noqa: E402

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
    demo, dev, count = SCRIPTS.parent / "checkpoints/demo", SCRIPTS.parent / "data/demo/test", 30
    small = f"--dev {dev} --limit {count} --beam 2 --max-reward 1.2 --no-line --no-stock --cpu"
    script = [warm.python(), str(SCRIPTS / "tune_length_reward.py"), *small.split()]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    pattern = r"^ +(\d\.\d\d) +[\d.]+ x +([\d.]+)"
    tried = {r: float(bleu) for r, bleu in re.findall(pattern, done.stdout, re.MULTILINE)}
    assert {"0.00", "0.20", "0.40", "0.60", "0.80", "1.00", "1.20"} <= set(tried)
    sides = (Path(f"{dev}.{side}").read_text().split("\n")[:count] for side in ("de", "en"))
    sources, references = sides
    flags = f"{demo} --path {demo}/checkpoint.pt -s de -t en --bpe sentencepiece --cpu --beam 2"
    flags += f" --sentencepiece-model {demo}/spm.model --buffer-size {count} --batch-size {count}"
    flags += " --task translation_ext --unnormalized --stop optimal"

    def interactive(*more: str) -> float:
        text = "\n".join(sources) + "\n"
        said = command("fairseq-interactive", *flags.split(), *more, stdin=text).stdout
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

"""fairseq's own constrained search as a contender, and how the hypotheses of two searches
compare by their scores."""

import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from contenders import batches, contender, load, read
from counted import Counted
from equality import SCORE_TOLERANCE, Outputs
from fairseq.token_generation_constraints import pack_constraints
from harness import BenchError
from text import Text, prepare

# of the sentences: by how much those that score worse may outnumber those that score better
SHARE = 0.02
SPEED = 5.0  # times as fast as fairseq's own


class StockFailed(BenchError):
    """fairseq's own search ended with an error."""


def stock_constrained(
    text: Text,
    flags: Sequence[str],
    phrases: Sequence[Sequence[str]],
    pieces: Callable[[str], list[str]],
    name: str,
) -> Counted:
    """fairseq's `--constraints unordered` over batches that carry the phrases of each sentence, as
    fairseq-interactive makes them.

    pieces: a phrase as symbols of the target dictionary. The contender's run raises StockFailed
    where fairseq's search stops at an assertion, as it does when a batch reaches the length limit
     with words unmet.
    """
    flags = [*flags, "--constraints", "unordered"]
    loaded = load([*text.flags, *flags])
    dictionary = loaded.task.target_dictionary
    packed = [
        pack_constraints(
            [[torch.tensor([dictionary.index(p) for p in pieces(phrase)]) for phrase in line]]
        )[0]
        for line in phrases
    ]
    loaded.task.dataset(loaded.cfg.dataset.gen_subset).constraints = packed
    loaded.batches = batches(loaded.cfg, loaded.task, loaded.models)
    counted = Counted(contender(name, loaded, f"fairseq ({' '.join(flags)})", exact=False))

    def keep(decoded: list) -> Outputs:
        counted.outputs = read(decoded)
        return counted.outputs

    def run() -> list:
        try:
            return decode_all()
        except AssertionError as error:
            step = re.fullmatch(r"(\d+) < \1", str(error))
            why = (
                f"its length limit (step {step[1]}) with words unmet"
                if step
                else f"an assertion ({error})"
            )
            raise StockFailed(f"fairseq's constrained search stopped at {why}") from error

    decode_all = counted.contender.run
    counted.contender.run, counted.contender.read = run, keep
    return counted


def stock_translations(
    model: Path,
    prefix: str,
    languages: tuple[str, str],
    flags: Sequence[str],
    phrases: Sequence[Sequence[str]],
    pieces: Callable[[str], list[str]],
    limit: int | None = None,
) -> tuple[list[str], float]:
    """The best hypotheses of fairseq's own constrained search as plain text, and the seconds that
    it took. prefix: of the two text files; other arguments as in `stock_constrained`."""
    with tempfile.TemporaryDirectory() as folder:
        text = prepare(Path(folder), model, prefix, *languages, limit)
        counted = stock_constrained(text, flags, phrases, pieces, "fairseq")
        start = time.perf_counter()
        decoded = counted.contender.run()
        seconds = time.perf_counter() - start
        found = counted.contender.read(decoded)
        return text.lines([each or [([], 0.0)] for each in found]), seconds


@dataclass
class Scores:
    """How the best hypotheses of one search stand to those of another, by their scores."""

    mean: float
    mean_of_other: float
    better: int  # sentences
    worse: int
    sentences: int

    @property
    def accepted(self) -> bool:
        """Whether the one search finds as good hypotheses as the other, but for a few sentences."""
        return self.worse <= self.better + SHARE * self.sentences


def compare_scores(outputs: Outputs, others: Outputs) -> Scores:
    """Of sentences of which both have a hypothesis; a score within float32's noise of
    the other's is equal."""
    pairs = [(a[0][1], b[0][1]) for a, b in zip(outputs, others, strict=True) if a and b]
    better = sum(a > b + SCORE_TOLERANCE for a, b in pairs)
    worse = sum(a < b - SCORE_TOLERANCE for a, b in pairs)
    n = max(1, len(pairs))
    return Scores(
        sum(a for a, _ in pairs) / n, sum(b for _, b in pairs) / n, better, worse, len(pairs)
    )


def repeats(line: str, others: Sequence[str]) -> bool:
    """Whether a bigram of words stands in a line three times or more, and more often
    than in the others."""
    count = [
        Counter(zip((words := text.split()), words[1:], strict=False)) for text in (line, *others)
    ]
    return any(
        n > max(2, *(other[bigram] for other in count[1:])) for bigram, n in count[0].items()
    )


def ramblers(
    text: Text, outputs: Outputs, free: Outputs, required: Sequence[int]
) -> tuple[int, int]:
    """How many best hypotheses have more than twice the tokens of the unconstrained ones and
    the required ones, and how many repeat a bigram three times that neither these nor the
    references have as often."""
    tokens = [[len(best[0][0]) - 1 for best in each] for each in (outputs, free)]
    long = sum(n > 2 * m + needed for n, m, needed in zip(*tokens, required, strict=True))
    lines = zip(text.lines(outputs), text.references, text.lines(free), strict=True)
    return long, sum(repeats(line, others) for line, *others in lines)

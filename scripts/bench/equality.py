"""Whether two contenders gave the same output: no speed is worth printing before this is known."""

from dataclasses import dataclass, field

# tokens (ids or words), score (natural logarithm, as in fairseq's `score`)
Hypothesis = tuple[list, float]
# for every sentence, in the order of their ids: its hypotheses, best first
Outputs = list[list[Hypothesis]]

# equal tokens may differ this much in score (float32 summed in another order)
SCORE_TOLERANCE = 1e-4
# unequal tokens at the same rank with scores this close are a near-tie: either order is right
NEAR_TIE = 2e-4


@dataclass
class NearTie:
    """Two hypotheses that are as good as equal."""

    sentence: int
    rank: int
    tokens: list
    reference_tokens: list
    gap: float


@dataclass
class Verdict:
    """How the outputs of a contender stand to the reference's; `differing` holds
    positions in the outputs."""

    sentences: int
    hypotheses: int
    near_ties: list[NearTie] = field(default_factory=list)
    differing: list[int] = field(default_factory=list)

    def worse_than(self, other: "Verdict") -> bool:
        return (len(self.differing), len(self.near_ties)) > (
            len(other.differing),
            len(other.near_ties),
        )

    def __str__(self) -> str:
        if self.differing:
            return (
                f"differ in {len(self.differing)} of {self.sentences} sentences "
                f"({listing(self.differing)})"
            )
        if self.near_ties:
            return (
                f"equal but for {len(self.near_ties)} near-ties among {self.hypotheses} hypotheses"
            )
        return f"equal ({self.hypotheses} hypotheses)"


def listing(numbers: list[int], shown: int = 5) -> str:
    """The first few numbers, and whether there are more."""
    return ", ".join(map(str, numbers[:shown])) + (", ..." if len(numbers) > shown else "")


def check(outputs: Outputs, reference: Outputs) -> Verdict:
    """Compare every hypothesis of every sentence, rank by rank.

    A sentence differs if it has another number of hypotheses, other tokens with another score,
    or the same tokens with another score.
    """
    assert len(outputs) == len(reference), "outputs of different sentences cannot be compared"
    verdict = Verdict(sentences=len(reference), hypotheses=sum(map(len, reference)))
    for sentence, (ours, theirs) in enumerate(zip(outputs, reference, strict=True)):
        differs = len(ours) != len(theirs)
        for rank, ((tokens, score), (reference_tokens, reference_score)) in enumerate(
            zip(ours, theirs)  # noqa: B905
        ):
            gap = abs(score - reference_score)
            if tokens != reference_tokens and gap <= NEAR_TIE:
                verdict.near_ties.append(NearTie(sentence, rank, tokens, reference_tokens, gap))
            elif tokens != reference_tokens or not gap <= SCORE_TOLERANCE:  # a NaN differs
                differs = True
        if differs:
            verdict.differing.append(sentence)
    return verdict


def same_best(outputs: Outputs, reference: Outputs) -> int:
    """In how many sentences the best hypothesis has the reference's tokens: for contenders
    that are not exact."""
    pairs = zip(outputs, reference, strict=True)
    return sum(bool(ours) and bool(theirs) and ours[0][0] == theirs[0][0] for ours, theirs in pairs)

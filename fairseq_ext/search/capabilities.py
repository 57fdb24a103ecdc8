"""What rules what out: the capabilities that strategies and options need or deny, and the sentence that refuses two of them together.

registry.py declares them of strategies, validate.py of options.
"""

from __future__ import annotations

from dataclasses import dataclass

# What a strategy or an option can need, and the sentence for one that denies it. Each sentence goes on with the way out.
CAPABILITIES = {
    "search loop": "{denier} replaces beam search, so {needer} cannot work with it",
    "beam": "{needer} belongs to beam search, and {denier} has no beam",
    "greedy": "{needer} gives greedy decoding's output (--beam 1 --nbest 1), and {denier} asks for more than one hypothesis",
    "rows of a beam": "{needer} scores what the rows of a beam search need, and {denier} reads drafts",
    "one order": "{needer} compares all hypotheses of a sentence, and {denier} has banks, whose scores cannot be compared",
    "scores of at most 0": "{denier} can make a token's score positive, so {needer} proves nothing",
    "softmax's own order": "{denier} can raise words that {needer} has ruled out",
    "attention": "{needer} reads the attention of every token, which {denier} does not keep",
    "several tokens a call": "{denier} reads one token a call, and {needer} reads several",
    "repeatable calls": "{denier} draws anew at every call, so {needer} cannot verify drafts",
    "one process": "{needer} is written by one process, and {denier} starts several",
    "output layer": "{needer} reads the output layer of a plain Transformer decoder, and {denier} has none",
    "one model": "{needer} reads one output layer, and {denier} has several",
    "compiled linear layers": "{needer} is for the transformer backend, and {denier} is another",
    "source sentence": "{needer} works from the words of a source sentence, and {denier} has none",
    "source tokens": "{needer} works from source tokens, and {denier} has none",
    "divisible batches": "{needer} divides batches, and the results of {denier} depend on them",
    "no constraints": "{needer} takes no constraints (--select dba does), and {denier} gives some",
}


@dataclass(frozen=True)
class Part:
    """What takes part in a run and can rule others out: a strategy, or an option of ours or of stock."""

    flag: str
    needs: frozenset[str] = frozenset()
    denies: frozenset[str] = frozenset()


def refusal(parts: list[Part]) -> str | None:
    """The sentence for the first two parts that cannot work together; None where all can."""
    for needer in parts:
        for denier in parts:
            for capability in sorted(needer.needs & denier.denies):
                sentence = CAPABILITIES[capability].format(needer=needer.flag, denier=denier.flag)
                return f"{sentence}: leave one of the two out"
    return None

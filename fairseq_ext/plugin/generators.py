"""The generators of one Translator: each beam and length of n-best lists has its own, and all share one decoder and its weights."""

from __future__ import annotations

import copy
from typing import Any

from fairseq_ext.core.errors import UsageError

KEPT = 8  # generators of other beams than the flags'


def width_and_length(beam: int | None, nbest: int | None, of_flags: tuple[int, int]) -> tuple[int, int]:
    """The beam and the length of the n-best lists of a call that may name its own; of_flags: both, by the flags (raises UsageError)."""
    for name, given in (("beam", beam), ("nbest", nbest)):
        if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
            raise UsageError(f"{name} is {given!r}: give a whole number of hypotheses, 1 or more")
    width = beam or of_flags[0]
    length = nbest or (min(of_flags[1], width) if beam else of_flags[1])
    if length > width:
        raise UsageError(f"nbest={length} asks for more hypotheses than beam={width} keeps: raise beam or lower nbest")
    return width, length


class Generators:
    """Generators of a task and its models by (beam, length of n-best lists). first: that of the flags, with which the others share
    statistics and decoder; generation: fairseq's GenerationConfig, by the flags."""

    def __init__(self, task: Any, models: list, generation: Any, first: Any):
        self.task, self.models, self.generation = task, models, generation
        self.results_file = task.flags().results_file
        self.of_flags = (generation.beam, generation.nbest)
        self.current = first
        self.made = {self.of_flags: first}

    def use(self, beam: int | None, nbest: int | None) -> tuple[Any, int]:
        """The generator of a call's beam, and the length of its n-best lists; the generator's may be longer. A stop strategy may drop
        what a shorter list has no place for.

        Errors: UsageError for numbers that cannot be, and for another beam where the search cannot change.
        """
        width, length = width_and_length(beam, nbest, self.of_flags)
        usual, longest = self.of_flags
        if self.results_file and width != usual:
            raise UsageError("results_file holds the results of one search, and another beam is another search: leave one of the two out")
        if self.current.runs_stock_loop and width != usual:
            raise UsageError("beam is fixed where fairseq's own search runs (match_source_len, diversity_rate): make another Translator")
        key = width, longest if self.results_file else max(length, min(longest, width))
        if key not in self.made:
            if len(self.made) > KEPT:
                del self.made[next(other for other in self.made if other != self.of_flags)]
            self.made[key] = self.rebuilt(*key)
        generator = self.made[key]
        if generator is not self.current:
            self.current = generator
            generator.model.set_decoder_beam_size(generator.beam_size)  # BART shares source keys among the rows of a beam
        return generator, length

    def rebuilt(self, beam: int, nbest: int) -> Any:
        """A generator of another beam, or with other flags than before, that goes on with the statistics and shares the decoder."""
        generation = copy.deepcopy(self.generation)
        generation.beam, generation.nbest = beam, nbest
        return self.task.build_generator(self.models, generation, extra_gen_cls_kwargs={"share": self.current})

    def constrain(self) -> Any:
        """The generator in use, which from now on searches with constraints, whatever the flags said (raises UsageError)."""
        if self.task.session.sentences.constrained:
            return self.current
        if self.current.results is not None:
            raise UsageError(
                "results_file holds the results of one search, and the first constraints change the search: "
                'make the Translator with constraints="unordered"'
            )
        key = next(key for key, generator in self.made.items() if generator is self.current)
        before = self.generation.constraints
        self.generation.constraints = "unordered"
        try:
            self.current = self.rebuilt(*key)
        except UsageError:  # the flags do not allow it: lines without constraints are translated as before
            self.generation.constraints, self.task.session.sentences.constrained = before, False
            raise
        self.made = {key: self.current}
        return self.current

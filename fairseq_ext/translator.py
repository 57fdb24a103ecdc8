"""The Python API: `Translator(path, data, **flags).translate(lines)`, the commands' decoding without the commands."""

from __future__ import annotations

import ast
import contextlib
import io
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq import checkpoint_utils, options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from torch import Tensor

from fairseq_ext.constraints.sentence import SentenceConstraints, merge
from fairseq_ext.errors import SentenceError, UsageError, cut
from fairseq_ext.session.bad_sentences import decode_each
from fairseq_ext.session.checkpoint import source_limit
from fairseq_ext.stats import Stats


@dataclass
class Translation:
    """One hypothesis of one line."""

    text: str  # without subword segmentation
    tokens: list[str]  # subword tokens, EOS left out
    score: float  # natural logarithm; length-normalised unless unnormalized=True
    positional_scores: list[float]  # of each token, EOS included
    alignment: list[tuple[int, int]] | None = None  # (source, target) positions, with print_alignment="hard"
    unmet: list[tuple[str, str]] = field(default_factory=list)  # constraints that it does not meet: text, reason


class Translator:
    """A loaded checkpoint (or an ensemble: paths joined by colons) with one setting of the flags.

    Every flag of `fairseq-interactive` is a keyword with underscores: beam=5, bpe="sentencepiece", stop="optimal", cpu=True.
    source_lang and target_lang are needed where the directory's dictionaries do not tell them.

    Errors: UsageError for wrong flags or combinations; what fairseq raises for files it cannot read.
    """

    def __init__(self, path: str, data: str, task: str = "translation_ext", **flags: Any):
        argv = [str(data), "--path", str(path), "--task", task, *as_arguments(flags)]
        parser = options.get_interactive_generation_parser()
        self.cfg = convert_namespace_to_omegaconf(parse(parser, argv))
        cfg = self.cfg
        self.cuda = torch.cuda.is_available() and not cfg.common.cpu
        if cfg.common.seed is not None and not cfg.generation.no_seed_provided:
            utils.set_torch_seed(cfg.common.seed)
        self.task = tasks.setup_task(cfg.task)
        if self.task.source_dictionary is None:
            raise UsageError(
                f"a Translator takes lines of text, and --task {task} reads speech: use fairseq-generate or fairseq-interactive"
            )
        overrides = ast.literal_eval(cfg.common_eval.model_overrides)
        self.models, _ = checkpoint_utils.load_model_ensemble(utils.split_paths(cfg.common_eval.path), overrides, self.task)
        for model in self.models:
            if cfg.common.fp16:
                model.half()
            if self.cuda:
                model.cuda()
            model.prepare_for_inference_(cfg)
        self.generator = self.build_generator()
        self.nbest = cfg.generation.nbest  # of calls that name none
        self.tokenizer = self.task.build_tokenizer(cfg.tokenizer)
        self.bpe = self.task.build_bpe(cfg.bpe)
        self.max_positions = utils.resolve_max_positions(self.task.max_positions(), *[m.max_positions() for m in self.models])

    def build_generator(self) -> Any:
        """The generator of the flags (raises UsageError)."""
        return self.task.build_generator(self.models, self.cfg.generation)

    @property
    def stats(self) -> Stats:
        """Counts and times of all calls so far."""
        return self.generator.stats

    @property
    def signature(self) -> str:
        """One line that says how translations are made."""
        return self.generator.stats.signature

    def encode(self, line: str) -> Tensor:
        """Source tokens of a line of text, EOS included."""
        for step in (self.tokenizer, self.bpe):
            line = step.encode(line) if step is not None else line
        return self.task.source_dictionary.encode_line(line, add_if_not_exist=False).long()

    def decode(self, text: str) -> str:
        """Plain text from subword text."""
        return self.task.segmenter.decode(text)

    def translate(
        self,
        lines: Sequence[str],
        nbest: int | None = None,
        constraints: Sequence[Sequence[str | Sequence[str]]] | None = None,
        avoid: Sequence[str] | Sequence[Sequence[str]] | None = None,
        prefixes: Sequence[str | None] | None = None,
        errors: str = "raise",
    ) -> list[Any]:
        """Each line's n-best list of `Translation`, best first (nbest: --nbest unless given).

        constraints: for each line the phrases that must appear, as plain text; a list of phrases is met by any one of them.
        avoid: phrases that must not appear, in any line, or a list of them for each line. prefixes: what each line starts with.
        They add to those of the flags, and need none: without `select`, calls with constraints use `select="dba"`. Phrases are
        unordered unless the translator was made with `constraints="ordered"`. What was met is in `stats.as_dict()["constraints"]`.
        errors: a line that cannot be translated (too long, no valid Unicode, phrases that cannot be used, NaN in the model's output)
        raises its UsageError, which names the line; with "return" it has the UsageError in the place of its n-best list, and the other
        lines are translated. What is wrong with the call as a whole is raised in either case.
        """
        if isinstance(lines, str):
            raise UsageError("translate() takes a list of lines, and was given one string: put it into a list")
        if errors not in ("raise", "return"):
            raise UsageError(f"errors is {errors!r}: use 'raise' or 'return'")
        nbest = nbest or self.nbest
        self.use_nbest(nbest)
        given = any(each is not None for each in (constraints, avoid, prefixes))
        if given:
            self.use_constraints()
        constraints_of = self.constraints_by_line(len(lines), constraints, avoid, prefixes)
        given = given or self.task.constrained
        out: list[Any] = [None] * len(lines)
        good, tokens, wanted = [], [], []
        for number, line in enumerate(lines):
            try:
                encoded = self.checked(line, f"line {number + 1}")
                if given:
                    wanted.append(constraints_of(number, encoded))
            except UsageError as error:
                if errors == "raise":
                    raise
                out[number] = error
            else:
                good.append(number)
                tokens.append(encoded)
        found = self.search(tokens, wanted if given else None, nbest, cornering=errors == "return")
        for number, each in zip(good, found, strict=True):
            out[number] = each
        return out

    def checked(self, line: str, where: str) -> Tensor:
        """Source tokens of a line, EOS included. Errors: SentenceError for what cannot be translated."""
        if not isinstance(line, str):
            raise SentenceError(f"{where} is {cut(repr(line))}: give text")
        if not line.isascii() and any("\ud800" <= character <= "\udfff" for character in line):
            raise SentenceError(f"{where} is not valid Unicode ({line[:60]!a}): read it with errors='replace', or leave it out")
        encoded = self.encode(line)
        self.check_length(encoded, where)
        return encoded

    def use_nbest(self, nbest: int) -> None:
        """Search for n-best lists of this length from now on: a stop strategy may drop what a shorter list has no place for."""
        if nbest > self.cfg.generation.nbest and not self.cfg.task.results_file:
            self.cfg.generation.nbest = nbest
            extra = {"stats": self.generator.stats}
            self.generator = self.task.build_generator(self.models, self.cfg.generation, extra_gen_cls_kwargs=extra)

    def check_length(self, tokens: Tensor, where: str) -> None:
        """UsageError for source tokens (L,) that are more than the model takes."""
        room = None if str(self.task.flags().schedule) == "stream" else self.cfg.dataset.max_tokens
        for most, who in ((source_limit(self.max_positions), "the model"), (room, "--max-tokens")):
            if most is not None and tokens.numel() > most:
                raise SentenceError(f"{where} has {tokens.numel()} tokens and {who} takes {most}: shorten or split it")

    def search(
        self, tokens: list[Tensor], wanted: Sequence[SentenceConstraints] | None, nbest: int, cornering: bool = False
    ) -> list[Any]:
        """The n-best lists of encoded lines, each (L,); wanted: each line's constraints (`use_constraints` first), None for none.

        Errors: SentenceError for one that cannot be translated; with cornering it is in the place of its n-best list.
        """
        dataset = self.task.build_dataset_for_inference(tokens, [t.numel() for t in tokens])
        batches = self.task.get_batch_iterator(
            dataset=dataset,
            max_tokens=self.cfg.dataset.max_tokens,
            max_sentences=self.cfg.dataset.batch_size or (None if self.cfg.dataset.max_tokens else 64),
            max_positions=self.max_positions,
        ).next_epoch_itr(shuffle=False)
        out: list[Any] = [[] for _ in tokens]

        def decode(given: tuple) -> list[Any]:
            return self.task.inference_step(self.generator, self.models, given[0])

        for batch in batches:
            batch = utils.move_to_cuda(batch) if self.cuda else batch
            if wanted is not None:
                batch["sentence_constraints"] = [wanted[number] for number in batch["id"].tolist()]
            numbers, all_of_it = batch["id"].tolist(), (batch, None, None)
            found = decode_each(all_of_it, len(numbers), self.task.source_dictionary.pad(), decode) if cornering else decode(all_of_it)
            for number, each in zip(numbers, found, strict=True):
                out[number] = each if isinstance(each, SentenceError) else [self.translation(h) for h in each[:nbest]]
        return out

    def use_constraints(self) -> None:
        """Search with constraints from now on, whatever the flags said; a line without any is translated as before."""
        if not self.task.constrained:
            if self.generator.results is not None:
                raise UsageError(
                    "results_file holds the results of one search, and the first constraints change the search: "
                    'make the Translator with constraints="unordered"'
                )
            before = self.cfg.generation.constraints
            self.cfg.generation.constraints = "unordered"
            try:
                extra = {"stats": self.generator.stats}
                self.generator = self.task.build_generator(self.models, self.cfg.generation, extra_gen_cls_kwargs=extra)
            except UsageError:  # the flags do not allow it: lines without constraints are translated as before
                self.cfg.generation.constraints, self.task.constrained = before, False
                raise

    def constraints_by_line(self, lines: int, constraints, avoid, prefixes) -> Callable[[int, Tensor], SentenceConstraints]:
        """(number from 0, source tokens) -> a line's constraints, those of the flags included; arguments as in `translate`."""
        if avoid is not None and all(isinstance(phrase, str) for phrase in avoid):
            avoid = [avoid] * lines
        for name, given in (("constraints", constraints), ("avoid", avoid), ("prefixes", prefixes)):
            if given is not None and len(given) != lines:
                raise UsageError(f"{name} has {len(given)} entries and there are {lines} lines: give one for each line")

        def of_line(number: int, tokens: Tensor) -> SentenceConstraints:
            source, where = self.task.constraint_source(), f"line {number + 1}"
            phrases = items((constraints[number] or ()) if constraints is not None else (), f"constraints of {where}")
            banned = (avoid[number] or ()) if avoid is not None else ()
            prefix = (prefixes[number] or "") if prefixes is not None else ""
            fields: dict[str, list[Any]] = {
                "constraints": [],
                "any_of": [texts([p] if isinstance(p, str) else p, f"a constraint of {where}") for p in phrases],
                "avoid": texts(banned, f"avoid of {where}"),
                "prefix": texts([prefix] if prefix else [], f"prefixes of {where}"),
            }
            if [] in fields["any_of"]:
                raise UsageError(f"a constraint of {where} is an empty list: remove it")
            return merge(source.sentence(number, tokens), source.of_fields(fields, where), source.consistent)

        return of_line

    def translation(self, hypothesis: dict) -> Translation:
        """From fairseq's dictionary to text."""
        text = self.generator.target_text.pieces(hypothesis["tokens"])
        alignment = hypothesis["alignment"]
        pairs = [tuple(pair) for pair in alignment] if self.cfg.generation.print_alignment == "hard" else None
        return Translation(
            text=self.decode(text),
            tokens=text.split(),
            score=float(hypothesis["score"]),
            positional_scores=hypothesis["positional_scores"].tolist(),
            alignment=pairs,  # type: ignore[arg-type]
            unmet=hypothesis.get("unmet", []),
        )


def items(given: Any, what: str) -> list[Any]:
    """The entries of a list; UsageError for anything else."""
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        raise UsageError(f"{what} is {cut(repr(given))}: give a list of phrases")
    return list(given)


def texts(given: Any, what: str) -> list[str]:
    """The phrases of a list; UsageError for an entry that is not text."""
    found = items(given, what)
    for phrase in found:
        if not isinstance(phrase, str):
            raise UsageError(f"{what} has {cut(repr(phrase))} for a phrase: give text")
    return found


def parse(parser: ArgumentParser, argv: list[str]) -> Namespace:
    """fairseq's parsing, with UsageError where a command would end."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return options.parse_args_and_arch(parser, argv)
    except SystemExit as error:
        raise UsageError(said.getvalue().strip().rpartition("error: ")[2] or "these flags cannot be read") from error


def as_arguments(flags: dict[str, Any]) -> list[str]:
    """Keyword flags as command-line arguments: True sets a switch, False and None leave it out, a list repeats values."""
    out: list[str] = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        out.append("--" + name.replace("_", "-"))
        if isinstance(value, (list, tuple)):
            out += [str(v) for v in value]
        elif value is not True:
            out.append(str(value))
    return out


def as_keywords(words: list[str]) -> dict[str, Any]:
    """Command-line arguments as keyword flags: ["--beam", "5", "--cpu"] is {"beam": "5", "cpu": True}.

    Errors: UsageError for a value without a flag.
    """
    values: dict[str, list[str]] = {}
    name = None
    for word in words:
        if word.startswith("--") and len(word) > 2:
            flag, equals, value = word[2:].partition("=")
            name = flag.replace("-", "_")
            values[name] = [value] if equals else []
        elif name is None:
            raise UsageError(f"'{word}' belongs to no flag: write a flag before its value")
        else:
            values[name].append(word)
    return {name: True if not given else given[0] if len(given) == 1 else given for name, given in values.items()}

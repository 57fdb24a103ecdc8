"""The best outputs by brute force: fairseq's model scores each hypothesis that a request allows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from commands import Row
from fairseq import checkpoint_utils
from seeded_models import flags


def enumerated(row: Row, folder: Path) -> list[list[list[Any]]]:
    """n-best lists of [text, score in nats]."""
    where = flags(row["model"], folder)
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
        [where["path"]], arg_overrides={"data": where["data"]}
    )
    model.eval().double()
    source, target = task.source_dictionary, task.target_dictionary
    wanted = row["flags"]
    given = row.get("files", {}).values()
    banned = {target.index(word) for text in given for word in text.split()} | {target.eos()}
    words = [token for token in range(len(target)) if token not in {*banned, target.pad()}]
    found = []
    records = row.get("records", [{}] * len(row["lines"]))
    for line, record in zip(row["lines"], records, strict=True):
        tokens = source.encode_line(line, add_if_not_exist=False).long()
        every: Iterable[tuple[int, ...]] = (
            hypothesis
            for length in range(1, wanted["max_len_b"] + 1)
            for hypothesis in itertools.product(words, repeat=length)
        )
        if "allowed" in record:
            every = (tuple(map(target.index, text.split())) for text in record["allowed"])
        texts = {hypothesis: target.string(hypothesis) for hypothesis in every}
        kept = [hypothesis for hypothesis, text in texts.items() if meets(text, record)]
        scored = [
            [texts[hypothesis], score(total, len(hypothesis) + 1, len(tokens) - 1, wanted)]
            for hypothesis, total in zip(kept, sums(model, tokens, kept), strict=True)
        ]
        scored.sort(key=lambda pair: -pair[1])
        found.append(scored[: row.get("nbest", 1)])
    return found


def meets(text: str, record: Row) -> bool:
    """Whether a text has what a line requires, and nothing that it bans, in whole words."""
    phrases = [[phrase] for phrase in record.get("constraints", [])] + record.get("any_of", [])
    spaced = f" {text} "
    return (
        all(any(f" {each} " in spaced for each in phrase) for phrase in phrases)
        and not any(f" {each} " in spaced for each in record.get("avoid", []))
        and spaced.startswith(f" {record['prefix']} " if "prefix" in record else " ")
    )


def sums(model: Any, source: torch.Tensor, hypotheses: list[tuple[int, ...]]) -> list[float]:
    """The sum of a hypothesis' log-probabilities, EOS included."""
    eos = source[-1:]
    found = {}
    for _, group in itertools.groupby(sorted(hypotheses, key=len), len):
        batch = [*group]
        rows = torch.tensor(batch)
        ends = eos.expand(len(batch), 1)
        with torch.no_grad():
            output = model(
                source.expand(len(batch), -1),
                torch.full([len(batch)], len(source)),
                torch.cat([ends, rows], 1),
            )
            scores = model.get_normalized_probs(output, log_probs=True)
        of_tokens = scores.gather(2, torch.cat([rows, ends], 1)[:, :, None])
        found |= dict(zip(batch, of_tokens.sum((1, 2)).tolist(), strict=True))
    return [found[hypothesis] for hypothesis in hypotheses]


def score(total: float, length: int, source: int, wanted: Row) -> float:
    """A hypothesis' score. length: in tokens with EOS; source: without."""
    if not wanted.get("unnormalized"):
        return total / length ** wanted.get("lenpen", 1)
    rewarded = wanted.get("length_ratio", 1) * source
    return total + wanted.get("length_reward", 0) * min(length, rewarded)

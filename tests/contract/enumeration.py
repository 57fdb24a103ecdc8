"""The best outputs by brute force: fairseq's model scores each hypothesis that a request allows."""

import itertools

import torch
from fairseq import checkpoint_utils
from models import totals
from seeded_models import flags


def enumerated(row, folder):
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
        every = (
            hypothesis
            for length in range(1, wanted["max_len_b"] + 1)
            for hypothesis in itertools.product(words, repeat=length)
        )
        if "allowed" in record:
            every = (tuple(map(target.index, text.split())) for text in record["allowed"])
        source_of = {"src_tokens": tokens[None], "src_lengths": torch.tensor([len(tokens)])}
        sample = {"net_input": source_of}
        texts = {hypothesis: target.string(hypothesis) for hypothesis in every}
        kept = [hypothesis for hypothesis, text in texts.items() if meets(text, record)]
        scored = [
            [texts[hypothesis], score(total, len(hypothesis) + 1, len(tokens) - 1, wanted)]
            for hypothesis, total in zip(kept, totals(model, sample, kept), strict=True)
        ]
        scored.sort(key=lambda pair: -pair[1])
        found.append(scored[: row.get("nbest", 1)])
    return found


def meets(text, record):
    """Whether a text has what a line requires, and nothing that it bans, in whole words."""
    phrases = [[phrase] for phrase in record.get("constraints", [])] + record.get("any_of", [])
    spaced = f" {text} "
    return (
        all(any(f" {each} " in spaced for each in phrase) for phrase in phrases)
        and not any(f" {each} " in spaced for each in record.get("avoid", []))
        and spaced.startswith(f" {record['prefix']} " if "prefix" in record else " ")
    )


def score(total, length, source, wanted):
    """A hypothesis' score. length: in tokens with EOS; source: without."""
    if not wanted.get("unnormalized"):
        return total / length ** wanted.get("lenpen", 1)
    rewarded = wanted.get("length_ratio", 1) * source
    return total + wanted.get("length_reward", 0) * min(length, rewarded)

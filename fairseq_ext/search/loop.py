"""The one decoding loop: beam search over flat rows, with the extension points of protocols.py.

A pass through the numbered steps adds one token to every row of a group. The host waits for the device once a pass, in step (8).
scheduler.py says when sentences start (1) and which passes are made; searchers/loop.py gives them their hypotheses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_ext.core.errors import NotANumber
from fairseq_ext.search.attention import Attention
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import StopDecision
from fairseq_ext.search.state import Search
from fairseq_ext.search.survivors import continued, going_on, survivors
from fairseq_ext.search.upload import upload


def advance_group(search: Search) -> list[int]:
    """Add a token to every row of one group; return the sentences that are final now."""
    groups = search.groups
    if not groups.groups:
        return []
    before = groups.next()
    after = advance(search, before)
    groups.put(after)
    if len(after.live) == len(before.live):
        return []
    live = set(after.live)
    return [sentence for sentence in before.live if sentence not in live]


def start(search: Search, sentences: list[int]) -> None:
    """(1) Encode these sentences; they become a group of one row each."""
    pool = search.pool
    search.groups.set_aside()
    search.decoder.admit(pool.inputs(sentences))
    search.stats.encoder_calls += 1
    beam = Beam.start(sentences, pool.bos, search.device, torch.float32)
    if search.decoder.need_attention:
        columns = pool.net_input["src_tokens"].size(1)
        beam.attention = Attention.start(beam.rows, columns, pool.first_column(sentences), search.device)
    search.strategies.select.start(beam, pool)
    search.strategies.stop.start(beam, pool)
    search.groups.add(beam)


def advance(search: Search, beam: Beam) -> Beam:
    """The beam with one token more in every row: finished hypotheses go to `search.finished`, final sentences leave."""
    decoder, pool, strategies, stats, finished = search.decoder, search.pool, search.strategies, search.stats, search.finished
    # (2) sentences that have reached their length may only end
    limits = [pool.max_len[s] <= length for s, length in zip(beam.live, beam.steps(), strict=True)]
    at_limit = upload(limits, beam.device) if any(limits) else None
    # (3) the decoder reads each row's last token
    features = decoder.step(beam.tokens)
    stats.count_step(beam.rows, 1)
    # placeholder rows (score -inf; a forced prefix leaves them) are no expansions
    stats.expand(beam.rows if search.variable or not beam.longest else (beam.last_score() > -torch.inf).sum())
    if beam.attention is not None and (attention := decoder.attention()) is not None:
        beam.attention.add_(attention)
    # (4) the softmax scores the vocabulary or a shortlist, (5) the logits processors forbid and force
    log_probs = strategies.softmax(decoder, features, beam, pool)
    broken = log_probs.has_nan()
    log_probs = search.processors(log_probs, beam, pool, at_limit)
    if search.processors.lm is not None:  # NaN of its own
        broken = broken | log_probs.has_nan(all_words=True)
    # (6) the best continuations of each sentence, (7) less those that pruning drops
    candidates = strategies.select(beam, log_probs, pool)
    for prune in strategies.prune:
        keep = prune(candidates, beam, pool, finished)
        stats.drop((~keep & (candidates.score > -torch.inf))[:, : candidates.width])
        candidates.score = candidates.score.masked_fill(~keep, -torch.inf)
    # (8) which candidates are finished, which continue, which sentences are final: the only wait for the device
    decision = strategies.stop(candidates, beam, pool, finished, at_limit)
    done, final, counts, is_broken = fetch(decision, broken, going_on(candidates, decision) if search.variable else None)
    if is_broken:
        source = "the model" if search.processors.lm is None else "the model or the language model"
        which = "one of the sentences" if len(beam.live) > 1 else "the sentence"
        raise NotANumber(f"{source} gives NaN at target position {beam.longest} of {which}")
    if done is not None and bool(done.any()):
        finished.collect_(beam, candidates, done, search.spec.scoring, pool)
    # (9) the surviving candidates are the next beam, and the decoder's rows follow
    rows = survivors(candidates, decision, beam.live, final, counts)
    if rows is None:
        return beam.empty()
    following = continued(beam, rows)
    decoder.select(rows.row, rows.kept, 0 if rows.counts is not None else rows.width, following.sentence_of_row())
    return following


def fetch(decision: StopDecision, broken: Tensor, counts: Tensor | None) -> tuple[Tensor | None, Tensor, Tensor | None, bool]:
    """Bring done (S, c), final (S,), counts (S,) of rows and the NaN flag to the host in one transfer."""
    if decision.done is None or decision.done.device.type == "cpu":
        return decision.done, decision.final, counts, bool(broken)
    S, c = decision.done.shape
    parts = [decision.done.flatten(), decision.final, broken[None], *([] if counts is None else [counts])]
    packed = torch.cat(parts).cpu()
    flags = packed[: S * c + S + 1].bool()
    return flags[: S * c].view(S, c), flags[S * c : -1], None if counts is None else packed[-S:], bool(flags[-1])

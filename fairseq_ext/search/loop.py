"""The one decoding loop: beam search over flat rows, with the plug points of protocols.py.

One pass through the numbered steps grows every live row by one token. The host waits for the device once a pass, in step (8).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fairseq_ext.decoders.protocol import Regroupable
from fairseq_ext.search.batch_groups import Groups
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates, StopDecision
from fairseq_ext.search.finished import Finished, FinishedStep, Hypothesis
from fairseq_ext.search.logits_processors import Rules
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Plugs
from fairseq_ext.search.scoring import Scoring
from fairseq_ext.stats import Stats


@torch.no_grad()
def beam_search(
    decoder: Regroupable,
    pool: Pool,
    nbest: int,
    plugs: Plugs,
    rules: Rules,
    scoring: Scoring,
    stats: Stats,
    answer: Callable[[int, list[Hypothesis]], None],
) -> None:
    """Decode the sentences of the pool that are wanted. answer(sentence, hypotheses) is called for each as soon as it is final, with
    its hypotheses, best first."""
    device = pool.length.device
    finished = Finished.empty(len(pool), nbest, device)
    groups = Groups(decoder, plugs.schedule, mixes=rules.lm is None)
    started = 0
    while True:
        # (1) sentences start when the schedule says so
        if sentences := list(plugs.schedule(pool, started, groups.live, groups.rows)):
            if started and stats.refills is not None:
                stats.refills += 1
            started += len(sentences)
            groups.set_aside()
            decoder.admit(pool.inputs(sentences))
            stats.encoder_calls += 1
            beam = Beam.start(sentences, pool.bos, device, torch.float32)
            if decoder.need_attention:
                beam.aux["attention"] = torch.zeros(beam.rows, 0, pool.net_input["src_tokens"].size(1), device=device)
                beam.aux["first_column"] = torch.full((beam.rows,), pool.first_column, device=device)
            plugs.select.start(beam, pool)
            plugs.stop.start(beam, pool)
            groups.add(beam)
        if not groups.groups:
            return
        before = groups.next()
        after = advance(decoder, before, pool, plugs, rules, scoring, stats, finished)
        groups.put(after)
        if len(after.live) < len(before.live):
            live = set(after.live)
            for sentence in before.live:
                if sentence not in live:
                    answer(sentence, finished.take(sentence, plugs.stop.answers(sentence)))


def advance(
    decoder: Regroupable, beam: Beam, pool: Pool, plugs: Plugs, rules: Rules, scoring: Scoring, stats: Stats, finished: Finished
) -> Beam:
    """One token more for every row; finished hypotheses go to `finished`, final sentences leave."""
    # (2) sentences that have reached their length may only end
    limits = [pool.max_len[s] <= step for s, step in zip(beam.live, beam.steps(), strict=True)]
    at_limit = torch.tensor(limits, device=beam.device) if any(limits) else None
    # (3) the decoder reads each row's last token
    features = decoder.step(beam.tokens)
    stats.count_step(beam.rows, 1)
    # rows that stand for nothing (of a forced prefix, say) are no expansions
    stats.expand(beam.rows if plugs.variable or not beam.longest else (beam.last_score() > -torch.inf).sum())
    if decoder.need_attention and (attention := decoder.attention()) is not None:
        remember(attention, beam)
    # (4) the softmax scores the vocabulary or a shortlist, (5) the rules forbid and force
    log_probs = plugs.softmax(decoder, features, beam, pool)
    broken = log_probs.value[:, 0].isnan().any()
    log_probs = rules(log_probs, beam, pool, at_limit)
    if rules.lm is not None:  # NaN of its own
        broken = broken | log_probs.value.isnan().any()
    # (6) the best continuations of each sentence, (7) less those that pruning drops
    candidates = plugs.select(beam, log_probs, pool)
    for prune in plugs.prune:
        keep = prune(candidates, beam, pool, finished)
        stats.drop((~keep & (candidates.score > -torch.inf))[:, : candidates.width])
        candidates.score = candidates.score.masked_fill(~keep, -torch.inf)
    # (8) which candidates are finished, which go on, which sentences are final: the only wait for the device
    decision = plugs.stop(candidates, beam, pool, finished, at_limit)
    done, final, is_broken = fetch(decision, broken)
    if is_broken:
        source = "the model" if rules.lm is None else "the model or the language model"
        raise FloatingPointError(f"{source} gives NaN at target position {beam.longest} of one of the sentences {beam.live}")
    if done is not None and bool(done.any()):
        collect_(finished, beam, candidates, done, scoring, pool)
    # (9) the surviving candidates are the next beam
    return survivors(decoder, beam, candidates, decision, final, plugs.variable)


def remember(attention: Tensor, beam: Beam) -> None:
    """Keep a step's attention (n, source) beside the earlier ones, each source token in the pool's own column."""
    past = beam.aux["attention"]  # (n, L, source of the pool)
    column = beam.aux["first_column"][:, None] + torch.arange(attention.size(1), device=attention.device)
    # what lies beyond the last column is padding, whose attention is 0
    wide = past.new_zeros(past.size(0), past.size(2), dtype=attention.dtype)
    wide.scatter_add_(1, column.clamp_(max=past.size(2) - 1), attention)
    beam.aux["attention"] = torch.cat([past.to(attention.dtype), wide[:, None]], dim=1)


def fetch(decision: StopDecision, broken: Tensor) -> tuple[Tensor | None, Tensor, bool]:
    """Bring done (S, c), final (S,) and the NaN flag to the host in one transfer."""
    if decision.done is None or decision.done.device.type == "cpu":
        return decision.done, decision.final, bool(broken)
    S, c = decision.done.shape
    packed = torch.cat([decision.done.flatten(), decision.final, broken[None]]).cpu()
    return packed[: S * c].view(S, c), packed[S * c : S * c + S], bool(packed[-1])


def collect_(finished: Finished, beam: Beam, candidates: Candidates, done: Tensor, scoring: Scoring, pool: Pool) -> None:
    """Keep the finished candidates. done (S, c) lies on the host."""
    place = done.flatten().nonzero()[:, 0]
    sentence = [beam.live[i] for i in (place // done.size(1)).tolist()]
    place = place.to(beam.device)
    owner = torch.tensor(sentence, device=beam.device)
    row = candidates.row.flatten()[place]  # (m,)
    last = candidates.score.flatten()[place]
    tokens = torch.cat([beam.tokens[row, 1:], candidates.token.flatten()[place][:, None]], dim=1)
    cumulative = torch.cat([beam.score[row], last[:, None]], dim=1)
    lag = None if beam.lags is None else [beam.lags[i] for i in (place // done.size(1)).tolist()]
    length = tokens.size(1) if lag is None else tokens.size(1) - torch.tensor(lag, device=beam.device)
    score = scoring(last, length, scoring.wanted(pool, owner))
    attention = beam.aux["attention"][row] if "attention" in beam.aux and beam.aux["attention"].size(1) else None
    finished.add_(sentence, FinishedStep(tokens, cumulative, score, attention, lag))
    finished.count.index_add_(0, owner, torch.ones_like(row))
    finished.total.scatter_reduce_(0, owner, last.to(finished.total.dtype), "amax")


def survivors(decoder: Regroupable, beam: Beam, candidates: Candidates, decision: StopDecision, final: Tensor, variable: bool) -> Beam:
    """The first staying candidates of each sentence that is not final, as a beam of the width allowed; the decoder's rows follow."""
    live = [s for s, is_final in zip(beam.live, final.tolist(), strict=True) if not is_final]
    row, token, score = candidates.row, candidates.token, candidates.score
    if decision.stays is None and not variable and len(live) == len(beam.live):
        width = min(candidates.width, row.size(1))
        row, token, score = (x[:, :width].flatten() for x in (row, token, score))
        aux = {name: value[:, :width].flatten(0, 1) for name, value in candidates.aux.items()}
        return continued(decoder, beam, live, width, None, None, row, token, score, aux)
    stays = score > -torch.inf
    if decision.stays is not None:  # what pruning dropped takes no place
        stays = decision.stays & stays if variable else decision.stays
    score = score.masked_fill(~stays, -torch.inf)  # where fewer stay than there are rows, the others stand for nothing
    kept = None
    if len(live) < len(beam.live):
        kept = (~final).nonzero()[:, 0].to(beam.device)  # (S',) places of the sentences that go on
        row, token, score, stays = row[kept], token[kept], score[kept], stays[kept]
    if not live:
        return Beam([], 0, None, beam.tokens[:0], beam.score[:0])
    # staying candidates first, in their order: the sort key is the rank, behind all others where a candidate does not stay
    c = row.size(1)
    rank = torch.arange(c, device=row.device) + c * (~stays).long()
    width = min(candidates.width, c)
    order = rank.topk(width, dim=1, largest=False).indices  # (S', width)
    alive = None
    counts = None
    if variable:
        alive = stays.gather(1, order)
        counts = alive.sum(1)
        width = int(counts.max())

    def rows_of(value: Tensor) -> Tensor:
        """(S', c, ...) -> (n', ...): the chosen candidates as rows."""
        chosen = value[torch.arange(len(live), device=value.device)[:, None], order]
        return chosen.flatten(0, 1) if alive is None else chosen[alive]

    aux = {name: rows_of(value if kept is None else value[kept]) for name, value in candidates.aux.items()}
    return continued(decoder, beam, live, width, counts, kept, rows_of(row), rows_of(token), rows_of(score), aux)


def continued(
    decoder: Regroupable,
    beam: Beam,
    live: list[int],
    width: int,
    counts: Tensor | None,
    kept: Tensor | None,
    row: Tensor,
    token: Tensor,
    score: Tensor,
    aux: dict[str, Tensor],
) -> Beam:
    """The next beam, and the decoder's rows with it: row, token, score (n',) and aux of each; kept (S',): places of the sentences that
    go on, None for all."""
    following = beam.select(row, live, width, counts)
    following.aux |= aux
    following.extend_(token, score)
    decoder.select(row, kept, 0 if counts is not None else width, following.sentence_of_row())
    return following

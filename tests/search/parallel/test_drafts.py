"""Earlier outputs as drafts, what a call reads and commits, and what is refused."""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from forked import command
from models import batch, build, dictionary, generators, requests_of, run, same
from parallel_decoding import LENGTHS, blocks, counts, drafts
from required_phrases import required_phrases
from sizes import part_of

from fairseq_ext import UsageError
from fairseq_ext.search.parallel.blocks import NONE
from fairseq_ext.search.phrases.sentence import SentenceConstraints

EOS, PAD = dictionary().eos(), dictionary().pad()


def test_sentences_beyond_the_old_outputs_are_reported_once(tmp_path, caplog):
    flags = {"decoding": "window", "draft_file": drafts(tmp_path, [[5, 6]])}
    ours, sample = generators([build("transformer")], flags, beam=1, max_len_b=8).ours, batch([3])
    for number in (0, 3, 4):
        run(ours, {**sample, "id": sample["id"] + number})
    [reported] = [each for each in caplog.messages if "--draft-file" in each]
    assert "--draft-file has 1 line, and the input a sentence number 4" in reported


# ---- What parallel decoding refuses, in one sentence each


def test_a_stream_is_refused_where_rows_of_different_lengths_cannot_be_read_together():
    with pytest.raises(UsageError, match="--schedule stream with --decoding window needs"):
        generators(
            [build("transformer")],
            blocks("window", decoder_backend="fairseq", schedule="stream"),
            beam=1,
        )


def test_constraints_of_a_call_are_refused():
    ours = generators([build("transformer")], {"decoding": "window"}, beam=1).ours
    given = [SentenceConstraints(required_phrases((((5,),),), ("w1",)))]
    with pytest.raises(UsageError, match="--decoding"):
        run(ours, {**batch([3]), "requests": requests_of(given)})


# ---- Parallel decoding through the commands:  draft files, statistics, one-sentence errors


ROOT = Path(__file__).resolve().parents[3]


OURS = ["--user-dir", ROOT / "fairseq_ext", "--task", "translation_ext", "--beam", 1]


def hypotheses(output: str) -> dict[int, tuple[float, str]]:
    lines = (line.split("\t") for line in output.splitlines() if line.startswith("H-"))
    return {int(number[2:]): (float(score), text) for number, score, text in lines}


def same_text(a: dict, b: dict) -> None:
    assert a and {n: text for n, (_, text) in a.items()} == {n: text for n, (_, text) in b.items()}
    assert all(math.isclose(a[n][0], b[n][0], abs_tol=1e-4) for n in a)


def test_draft_files_follow_the_lines_of_an_interactive_session(tiny, tmp_path):
    """Two buffers, and lines that the batches reorder by length."""
    lines = (tiny / "test.de").read_text().splitlines()[:5]
    talk = [
        "fairseq-interactive",
        tiny / "data",
        "--path",
        tiny / "model.pt",
        "--cpu",
        "--max-len-b",
        15,
    ]
    talk += ["--buffer-size", 3, "--batch-size", 3]
    before = hypotheses(command(*talk, *OURS, stdin="\n".join(lines) + "\n").stdout)
    old, stats = tmp_path / "old.txt", tmp_path / "stats.json"
    old.write_text("".join(before[n][1] + "\n" for n in sorted(before)))
    flags = ["--decoding", "window", "--draft-file", old, "--draft-cost", 0, "--stats-file", stats]
    same_text(
        before, hypotheses(command(*talk, *OURS, *flags, stdin="\n".join(lines) + "\n").stdout)
    )
    assert json.loads(stats.read_text())["decoder_calls"] == 2


# ---- What parallel decoding reads and commits:  how many calls, how many tokens, which position


@pytest.mark.parametrize("method", ["gs-jacobi", "hybrid-jacobi", "window"])
def test_a_block_of_one_makes_greedys_calls(method):
    models, sample = [build("transformer")], batch(LENGTHS)
    pair = generators(models, blocks(method, block_size=1), beam=1, max_len_b=20)
    greedy = generators(models, beam=1, max_len_b=20).ours
    run(greedy, sample), run(pair.ours, sample)
    for name in (
        "decoder_calls",
        "decoder_rows",
        "decoder_positions",
        "encoder_calls",
        "target_tokens",
    ):
        assert getattr(pair.ours.stats, name) == getattr(greedy.stats, name)
    assert counts(pair.ours)["drafts_offered"] == 0


@pytest.mark.parametrize("seed", range(4))
def test_the_gold_output_as_draft_takes_one_verifying_pass(tmp_path, seed):
    models, sample = [build("transformer", seed)], batch(LENGTHS, seed)
    stock = generators(models, beam=1, max_len_b=20).stock
    gold = [h[0]["tokens"].tolist()[:-1] for h in run(stock, sample)]
    flags = {"decoding": "window", "draft_file": drafts(tmp_path, gold), "draft_cost": 0.0}
    pair = generators(models, flags, beam=1, max_len_b=20)
    same(run(pair.stock, sample), run(pair.ours, sample))
    assert counts(pair.ours)["calls"] == 1
    assert counts(pair.ours)["tokens"] == pair.ours.stats.target_tokens


def test_an_edit_in_the_middle_of_the_old_output_does_not_spoil_the_rest(tmp_path):
    """One token of the old output changed, one missing, one too many: two or three calls, not
    as many as tokens are left."""
    checked, most = 0, len(part_of(9, 3))
    for seed in range(30):
        if checked >= most:
            break
        models, sample = [build("transformer", seed, eos=0.5)], batch([8], seed)
        stock = generators(models, beam=1, max_len_b=20).stock
        gold = run(stock, sample)[0][0]["tokens"].tolist()[:-1]
        if len(gold) < 12 or len(set(gold)) < 8:
            continue
        other = next(t for t in range(4, 25) if t not in gold)
        for old in (
            gold[:4] + [other] + gold[5:],
            gold[:4] + gold[5:],
            gold[:4] + [other] + gold[4:],
        ):
            flags = {
                "decoding": "window",
                "draft_file": drafts(tmp_path, [old]),
                "draft_cost": 0.0,
                "draft": "none",
            }
            pair = generators(models, flags, beam=1, max_len_b=20)
            same(run(pair.stock, sample), run(pair.ours, sample))
            assert counts(pair.ours)["calls"] <= 5
            checked += 1
    assert checked >= min(most, 6)


def by_blocks(model, source: dict, size: int, limit: int) -> tuple[list[int], list[int]]:
    """Algorithms 1 and 2 with kept keys and values as a plain program: the output, and how many
    positions each call reads. size: of a block; limit: most tokens before EOS."""
    text, calls = [EOS], []
    while True:
        guess = [text[-1]] * min(size, limit + 2 - len(text))
        while guess:
            read = torch.tensor([[*text, *guess[:-1]]])
            logits, _ = model(**source, prev_output_tokens=read)
            logits[..., PAD] = logits[:, 0, EOS] = -torch.inf
            logits[:, limit:, EOS] = torch.inf
            out = logits[0, len(text) - 1 :].argmax(-1).tolist()
            calls.append(len(out))
            right = 1
            while right < len(out) and out[right - 1] == guess[right - 1] != EOS:
                right += 1
            text, guess = text + out[:right], out[right:]
            if text[-1] == EOS:
                return text[1:], calls


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("flags", [{"parallel_length": 12}, {"block_size": 4}])
def test_a_call_reads_what_is_left_of_its_block(flags, dtype):
    """Each iteration reads the positions that are not final yet, as in section 4.1."""
    method, again = "jacobi" if "parallel_length" in flags else "gs-jacobi", 0
    for seed in range(4):
        model, sample = build("transformer", seed, dtype, eos=0.5), batch([9], seed)
        ours = generators([model], blocks(method, draft="repeat", **flags), beam=1, max_len_b=20)
        calls: list = []
        ours.ours.driver.trace = calls.append
        [[found]] = run(ours.ours, sample)
        source = {name: sample["net_input"][name] for name in ("src_tokens", "src_lengths")}
        with torch.no_grad():
            expected, read = by_blocks(model, source, next(iter(flags.values())), 20)
        assert found["tokens"].tolist() == expected
        assert [len(call.out) for call in calls] == read
        assert ours.ours.stats.decoder_positions == sum(read)
        again += sum(after < before for before, after in itertools.pairwise(read))
    assert again > 4


@pytest.mark.parametrize("method", ["jacobi", "gs-jacobi", "hybrid-jacobi"])
@pytest.mark.parametrize("draft", ["none", "pad", "repeat"])
def test_a_sentence_makes_the_same_calls_alone_and_in_a_batch(method, draft):
    """Its blocks and drafts are its own, where others have wider blocks or end earlier."""
    model, sample = build("transformer", 5, torch.float64, eos=0.5), batch(LENGTHS, 5)
    flags = blocks(method, draft=draft)

    def calls(sample) -> dict[int, list]:
        ours = generators([model], flags, beam=1, max_len_b=20).ours
        seen: dict[int, list] = {}
        ours.driver.trace = lambda call: seen.setdefault(call.sentence, []).append(
            (call.length, [int(t) for t in call.draft if t != NONE], call.verified)
        )
        run(ours, sample)
        return seen

    together, offered = calls(sample), 0
    for i, width in enumerate(sample["net_input"]["src_lengths"].tolist()):
        alone = {name: sample["net_input"][name][i : i + 1] for name in sample["net_input"]}
        alone["src_tokens"] = alone["src_tokens"][:, -width:]
        one = {"id": sample["id"][i : i + 1], "nsentences": 1, "net_input": alone}
        [expected] = calls(one).values()
        assert together[i] == expected
        offered += sum(len(tokens) for _, tokens, _ in expected)
    assert offered


def test_behind_a_parallel_length_that_is_too_small_hybrid_is_autoregressive():
    models, sample = [build("transformer", 2, eos=0.5)], batch([9])
    pair = generators(
        models, blocks("hybrid-jacobi", block_size=3, parallel_length=3), beam=1, max_len_b=30
    )
    calls: list = []
    pair.ours.driver.trace = calls.append
    same(run(pair.stock, sample), run(pair.ours, sample))
    length = pair.ours.stats.target_tokens
    assert length > 6
    assert [len(c.out) for c in calls if c.length >= 3] == [1] * (length - 3)


def test_rows_progress_at_their_own_pace(tmp_path):
    """In a batch, a sentence with a good draft is finished while one with a bad
    draft has hardly begun."""
    models, sample = [build("transformer", 3, eos=1.0)], batch([7, 6, 5])
    stock = generators(models, beam=1, max_len_b=60).stock
    gold = [h[0]["tokens"].tolist()[:-1] for h in run(stock, sample)]
    assert min(map(len, gold[1:])) > 1
    flags = {
        "decoding": "window",
        "draft_file": drafts(tmp_path, [gold[0], [], []]),
        "draft_cost": 0.0,
        "draft": "none",
    }
    pair = generators(models, flags, beam=1, max_len_b=60)
    same(run(pair.stock, sample), run(pair.ours, sample))
    rest = [len(g) + 1 for g in gold[1:]]
    assert pair.ours.stats.decoder_rows == 1 + sum(rest)


def test_statistics_count_the_work_done():
    pair = generators(
        [build("transformer", 1)], blocks("gs-jacobi", block_size=3), beam=1, max_len_b=20
    )
    calls: list = []
    pair.ours.driver.trace = calls.append
    run(pair.ours, batch(LENGTHS))
    stats, parallel = pair.ours.stats, counts(pair.ours)
    assert parallel["calls"] == stats.decoder_calls
    assert parallel["tokens"] == stats.target_tokens
    assert stats.decoder_rows == len(calls)
    assert stats.decoder_positions == sum(len(c.out) for c in calls)
    assert 0 < parallel["drafts_offered"] <= stats.decoder_positions - stats.decoder_rows
    assert parallel["tokens_per_call"] == pytest.approx(parallel["tokens"] / len(calls))

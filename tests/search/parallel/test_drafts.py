"""Earlier outputs as drafts, and what a call reads and commits: how many calls, how many tokens,
which position. What is refused: contract/."""

import itertools
import json

import pytest
import torch
from models import alone, batch, build, dictionary, generators, run, same
from parallel_decoding import LENGTHS, blocks, counts, drafts
from search.constraints.test_constraints_cli import hypotheses, interactive
from sizes import part_of
from test_cli import EXT

from fairseq_ext.search.parallel.blocks import NONE

EOS, PAD = dictionary().eos(), dictionary().pad()


def test_sentences_beyond_the_old_outputs_are_reported_once(tmp_path, caplog):
    flags = {"decoding": "window", "draft_file": drafts(tmp_path, [[5, 6]])}
    ours, sample = generators([build("transformer")], flags, beam=1, max_len_b=8).ours, batch([3])
    for number in (0, 3, 4):
        run(ours, {**sample, "id": sample["id"] + number})
    [reported] = [each for each in caplog.messages if "--draft-file" in each]
    assert "--draft-file has 1 line, and the input a sentence number 4" in reported


def test_draft_files_follow_the_lines_of_an_interactive_session(tiny, tmp_path):
    """Two buffers, and lines that the batches reorder by length."""
    lines = "".join((tiny / "test.de").read_text().splitlines(keepends=True)[:5])
    how = (*EXT, "--beam", 1, "--max-len-b", 15, "--buffer-size", 3, "--batch-size", 3)
    before = hypotheses(interactive(tiny, *how, stdin=lines))
    old, stats = tmp_path / "old.txt", tmp_path / "stats.json"
    old.write_text("".join(before[n][0] + "\n" for n in sorted(before)))
    flags = ("--decoding", "window", "--draft-file", old, "--draft-cost", 0, "--stats-file", stats)
    assert hypotheses(interactive(tiny, *how, *flags, stdin=lines)) == before
    assert len(before) == 5 and json.loads(stats.read_text())["decoder_calls"] == 2


def decoded(model, flags: dict, sample: dict, most: int = 20):
    """Our generator after its run, which gives greedy's output, and its calls. most: tokens."""
    pair, calls = generators([model], flags, beam=1, max_len_b=most), []
    pair.ours.driver.trace = calls.append
    same(run(pair.stock, sample), run(pair.ours, sample))
    return pair.ours, calls


def gold(model, sample: dict, most: int = 20) -> list[list[int]]:
    stock = generators([model], beam=1, max_len_b=most).stock
    return [h[0]["tokens"].tolist()[:-1] for h in run(stock, sample)]


def window(tmp_path, lines: list[list[int]], **more) -> dict:
    draft_file = drafts(tmp_path, lines)
    return {"decoding": "window", "draft_file": draft_file, "draft_cost": 0.0, **more}


@pytest.mark.parametrize("method", ["gs-jacobi", "hybrid-jacobi", "window"])
def test_a_block_of_one_makes_greedys_calls(method):
    model, sample = build("transformer"), batch(LENGTHS)
    ours, _ = decoded(model, blocks(method, block_size=1), sample)
    greedy = generators([model], beam=1, max_len_b=20).ours
    run(greedy, sample)
    calls = ("encoder_calls", "decoder_calls", "decoder_rows", "decoder_positions", "target_tokens")
    for name in calls:
        assert getattr(ours.stats, name) == getattr(greedy.stats, name)
    assert counts(ours)["drafts_offered"] == 0


@pytest.mark.parametrize("seed", range(4))
def test_the_gold_output_as_draft_takes_one_verifying_pass(tmp_path, seed):
    model, sample = build("transformer", seed), batch(LENGTHS, seed)
    ours, _ = decoded(model, window(tmp_path, gold(model, sample)), sample)
    assert counts(ours)["calls"] == 1 and counts(ours)["tokens"] == ours.stats.target_tokens


def test_an_edit_in_the_middle_of_the_old_output_does_not_spoil_the_rest(tmp_path):
    """One token of the old output changed, one missing, one too many: two or three calls, not
    as many as tokens are left."""
    checked, most = 0, len(part_of(9, 3))
    for seed in range(30):
        if checked >= most:
            break
        model, sample = build("transformer", seed, eos=0.5), batch([8], seed)
        [right] = gold(model, sample)
        if len(right) < 12 or len(set(right)) < 8:
            continue
        other = [next(t for t in range(4, 25) if t not in right)]
        for middle, rest in ((other, 5), ([], 5), (other, 4)):
            old = right[:4] + middle + right[rest:]
            ours, _ = decoded(model, window(tmp_path, [old], draft="none"), sample)
            assert counts(ours)["calls"] <= 5
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
    for i in range(len(LENGTHS)):
        [expected] = calls(alone(sample, i)).values()
        assert together[i] == expected
        offered += sum(len(tokens) for _, tokens, _ in expected)
    assert offered


def test_behind_a_parallel_length_that_is_too_small_hybrid_is_autoregressive():
    flags = blocks("hybrid-jacobi", block_size=3, parallel_length=3)
    ours, calls = decoded(build("transformer", 2, eos=0.5), flags, batch([9]), 30)
    length = ours.stats.target_tokens
    assert length > 6
    assert [len(c.out) for c in calls if c.length >= 3] == [1] * (length - 3)


def test_rows_progress_at_their_own_pace(tmp_path):
    """In a batch, a sentence with a good draft is finished while one with a bad
    draft has hardly begun."""
    model, sample = build("transformer", 3, eos=1.0), batch([7, 6, 5])
    first, *others = gold(model, sample, 60)
    assert min(map(len, others)) > 1
    ours, _ = decoded(model, window(tmp_path, [first, [], []], draft="none"), sample, 60)
    assert ours.stats.decoder_rows == 1 + sum(len(each) + 1 for each in others)


def test_statistics_count_the_work_done():
    flags = blocks("gs-jacobi", block_size=3)
    ours, calls = decoded(build("transformer", 1), flags, batch(LENGTHS))
    stats, parallel = ours.stats, counts(ours)
    assert parallel["calls"] == stats.decoder_calls
    assert parallel["tokens"] == stats.target_tokens
    assert stats.decoder_rows == len(calls)
    assert stats.decoder_positions == sum(len(c.out) for c in calls)
    assert 0 < parallel["drafts_offered"] <= stats.decoder_positions - stats.decoder_rows
    assert parallel["tokens_per_call"] == pytest.approx(parallel["tokens"] / len(calls))

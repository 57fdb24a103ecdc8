"""Drafters: the next-word table against counting by hand, earlier outputs; their files
and what is refused."""

import sys
from ctypes import CFUNCTYPE, POINTER, c_double, c_int64, c_void_p
from pathlib import Path

import numpy as np
import pytest
import torch
from models import batch, build, dictionary, generators, run, same
from sizes import drawn

from fairseq_ext import UsageError
from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.parallel import CompiledDrafter, RowStruct
from fairseq_ext.search.parallel.blocks import NONE, Rows
from fairseq_ext.search.parallel.drafts import NoDrafter, Previous
from fairseq_ext.search.parallel.ngram import COVERED, EPS, LAMBDA, Ngram, Table
from fairseq_ext.search.pool import Pool

sys.path.append(str(Path(__file__).resolve().parents[3] / "scripts"))

from build_drafts import estimate  # noqa: E402

D = dictionary()
EOS, PAD, V = D.eos(), D.pad(), len(D)
A, B, C, X, Y = range(4, 9)
needs_compiler = pytest.mark.skipif(library() is None, reason="no compiler")


def pool(*lines: list[int]) -> Pool:
    """Left-padded source lines, EOS added."""
    width = max(map(len, lines)) + 1
    tokens = torch.tensor([[PAD] * (width - 1 - len(line)) + line + [EOS] for line in lines])
    length = torch.tensor([len(line) + 1 for line in lines])
    return Pool({"src_tokens": tokens}, length, [20] * len(lines), torch.arange(len(lines)), EOS)


def rows(*verified: list[int]) -> Rows:
    """Live rows with these verified tokens."""
    out = Rows.start(pool(*[[A]] * len(verified)), list(range(len(verified))))
    for r, line in enumerate(verified):
        out.tokens[r, 1 : len(line) + 1] = line
    out.length = np.array([len(line) for line in verified])
    return out


def alone(drafter: CompiledDrafter):
    """(verified tokens, most, least) -> the compiled draft of a row that has these tokens,
    and how sure each is."""
    propose = CFUNCTYPE(
        c_int64, c_void_p, POINTER(RowStruct), c_int64, c_double, c_void_p, c_void_p
    )(drafter.struct.propose)

    def query(verified: list[int], most: int, least: float) -> tuple[list[int], list[float]]:
        text, length = np.array([EOS, *verified]), np.array([len(verified)])
        row = RowStruct(tokens=text.ctypes.data, length=length.ctypes.data)
        token, sure = np.zeros(most, np.int64), np.zeros(most)
        m = propose(drafter.struct.state, row, most, least, token.ctypes.data, sure.ctypes.data)
        return token[:m].tolist(), sure[:m].tolist()

    return query


def test_probabilities_are_interpolated_witten_bell():
    """By hand: text 'a b$' twice and 'a c$'; after a come b, b, c: total 3, kinds 2."""
    table = estimate([[A, B, EOS], [A, B, EOS], [A, C, EOS]], None, D, D)
    unigram = {A: 3 / 9, B: 2 / 9, C: 1 / 9, EOS: 3 / 9}
    np.testing.assert_allclose(table.unigram[[A, B, C, EOS]], list(unigram.values()), rtol=1e-6)

    def listed(key: int) -> dict[int, float]:
        [i] = (table.key == key).nonzero()[0]
        return dict(zip(table.token[i].tolist(), table.prob[i].astype(float).tolist(), strict=True))

    alone = listed(V * V + A)  # p(e | a) = 3/5 n/3 + 2/5 p(e)
    assert alone[B] == pytest.approx(2 / 5 + 2 / 5 * unigram[B], rel=1e-3)
    assert alone[C] == pytest.approx(1 / 5 + 2 / 5 * unigram[C], rel=1e-3)
    both = listed(EOS * V + A)  # after the sentence's start and a: the same counts once more
    assert both[B] == pytest.approx(2 / 5 + 2 / 5 * alone[B], rel=1e-3)
    assert sum(both.values()) == pytest.approx(1, abs=5e-3)


def test_drafts_follow_the_longest_known_history():
    table = estimate([[A, B, EOS], [A, B, EOS], [C, B, A, EOS]], None, D, D)
    source = Ngram(table, PAD, PAD)
    source.start(pool([A]))
    tokens, sure = source.propose(rows([], [A], [C, B], [X]), 3, 0.0)
    assert tokens[0].tolist() == [A, B, EOS]
    assert tokens[1, :2].tolist() == [B, EOS]
    assert tokens[2, :2].tolist() == [A, EOS], "after b alone the text ends; after c b comes a"
    assert ((sure > 0) & (sure <= 1)).all()
    assert source.propose(rows([A]), 9, 0.99)[0].shape[1] < 9, (
        "a draft that is hardly ever right is cut short"
    )
    assert source.propose(rows([A]), 0, 0.0)[0].shape == (1, 0)


def test_word_translations_turn_the_draft_to_what_the_source_says():
    """Without a source 'a b' and 'a c' are equally likely after a; x means b, y means c."""
    target, source = [[A, B, EOS], [A, C, EOS]] * 5, [[X, EOS], [Y, EOS]] * 5
    table = estimate(target, source, D, D)
    drafts = Ngram(table, PAD, PAD)
    drafts.start(pool([X], [Y]))
    assert drafts.propose(rows([A], [A]), 1, 0.0)[0][:, 0].tolist() == [B, C]
    # t(b | x): x is seen with a and b, y with a and c, EOS with all; a must be shared
    at = slice(table.lexical_start[X], table.lexical_start[X + 1])
    t = dict(
        zip(
            table.lexical_token[at].tolist(),
            table.lexical_prob[at].astype(float).tolist(),
            strict=True,
        )
    )
    assert t[B] > t.get(C, 0) and t[B] > t.get(A, 0)
    assert sum(t.values()) == pytest.approx(1, abs=0.05)


def test_translated_words_lose_their_factor():
    table = estimate([[A, B, EOS], [A, C, EOS]] * 5, [[X, EOS], [Y, EOS]] * 5, D, D)
    drafts = Ngram(table, PAD, PAD)
    drafts.start(pool([X]))
    before = drafts.factors(np.array([0]))
    drafts.propose(rows([B]), 1, 0.0)
    floor = (EPS / (table.unigram[B] + EPS)) ** LAMBDA
    assert drafts.factor[B] == pytest.approx(max(before[B] * COVERED, floor))
    assert (np.delete(drafts.factor, B) == np.delete(before, B)).all()


def test_factors_are_kept_of_live_sentences_only():
    """A stream's pool has thousands of sentences, of which few are live."""
    target, source = [[A, B, EOS], [A, C, EOS]] * 5, [[X, EOS], [Y, EOS]] * 5
    lines = [[X], [Y], [X, Y], [Y, Y], [X, X]]
    drafts, whole = (Ngram(estimate(target, source, D, D), PAD, PAD) for _ in range(2))
    drafts.start(pool(*lines))
    for live in ([0, 1], [1, 2, 3], [4, 2]):
        found = rows(*[[A]] * len(live))
        found.live = np.array(live)
        tokens, sure = drafts.propose(found, 2, 0.0)
        assert drafts.factor.size <= 3 * V
        whole.start(pool(*[lines[s] for s in live]))
        expected = whole.propose(rows(*[[A]] * len(live)), 2, 0.0)
        np.testing.assert_array_equal(tokens, expected[0])
        np.testing.assert_allclose(sure, expected[1], rtol=1e-5)


def test_a_table_survives_its_file_and_knows_its_dictionaries(tmp_path):
    table = estimate([[A, B, EOS]], [[X, EOS]], D, D)
    file = str(tmp_path / "table.npz")
    table.save(file)
    again = Table.load(file)
    for name in (
        "key",
        "token",
        "prob",
        "unigram",
        "lexical_start",
        "lexical_token",
        "lexical_prob",
    ):
        np.testing.assert_array_equal(getattr(again, name), getattr(table, name))
    again.check(file, D, D)
    with pytest.raises(UsageError, match="another dictionary"):
        again.check(file, dictionary(30), D)
    with pytest.raises(UsageError, match="another dictionary"):
        again.check(file, D, dictionary(30))
    (tmp_path / "text.npz").write_text("nothing of the kind")
    with pytest.raises(UsageError, match="not a draft table"):
        Table.load(str(tmp_path / "text.npz"))


HARMS = {
    "token": (lambda t: t.token.__setitem__((0, 0), V), "a token that is not in its vocabulary"),
    "any_token": (
        lambda t: t.any_token.__setitem__(0, -1),
        "a token that is not in its vocabulary",
    ),
    "lexical_token": (
        lambda t: t.lexical_token.__setitem__(0, V),
        "a token that is not in its vocabulary",
    ),
    "lexical_start": (
        lambda t: t.lexical_start.__setitem__(-1, 10**12),
        "translations are not in order",
    ),
    "falling": (lambda t: t.lexical_start.__setitem__(3, -5), "translations are not in order"),
    "key": (lambda t: t.key.__setitem__(0, 10**12), "histories are not in order"),
    "nan": (lambda t: t.unigram.__setitem__(0, np.nan), "a probability outside 0 to 1"),
    "short": (lambda t: setattr(t, "token", t.token[:-1]), "do not fit each other"),
    "empty": (
        lambda t: (setattr(t, "any_token", t.any_token[:0]), setattr(t, "token", t.token[:, :0])),
        "do not fit each other",
    ),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_table_whose_numbers_lead_out_of_it_is_refused(tmp_path, harm):
    """The digest is right: who writes a file can make one."""
    table = estimate([[A, B, EOS]] * 3, [[X, EOS]] * 3, D, D)
    change, said = HARMS[harm]
    change(table)
    table.save(str(tmp_path / "table.npz"))
    with pytest.raises(UsageError, match=f"is not a draft table, because .*{said}"):
        Table.load(str(tmp_path / "table.npz"))


@drawn(3)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("parallel", [False, True])
def test_decoding_with_a_table_equals_greedy_and_learns_from_the_models_own_output(
    tmp_path, seed, parallel
):
    """A table of the model's own translations drafts well; nothing it does changes the output."""
    models, sample = [build("transformer", seed, eos=1.0)], batch([9, 7, 5, 3, 1, 0], seed)
    plain = generators(models, beam=1, max_len_b=20)
    expected = run(plain.stock, sample)
    text = [h[0]["tokens"].tolist() for h in expected]
    words = [[t for t in line.tolist() if t != PAD] for line in sample["net_input"]["src_tokens"]]
    file = str(tmp_path / "table.npz")
    estimate(text, words if parallel else None, D, D).save(file)
    for method in ("window", "gs-jacobi"):
        flags = {"decoding": method, "draft": "ngram", "draft_table": file}
        ours = generators(models, flags, beam=1, max_len_b=20).ours
        same(expected, run(ours, sample))
        same(expected, run(ours, sample))  # the next batch starts from a clean slate
    assert ours.stats.decoder_calls <= 2 * max(map(len, text))


def previous(*old: list[int]) -> Previous:
    source = Previous([[*line, EOS] for line in old], NoDrafter())
    source.start(pool(*[[A]] * len(old)))
    return source


def test_sentences_beyond_the_old_outputs_are_reported_once(caplog):
    source = previous([A, B])
    for ids in ([0], [1, 2], [3]):
        later = pool(*[[A]] * len(ids))
        later.ids = torch.tensor(ids)
        source.start(later)
    [reported] = caplog.messages
    assert "--draft-file has 1 line, and the input a sentence number 3" in reported


def test_an_earlier_output_is_offered_whole_and_followed():
    source = previous([A, B, C, X])
    assert source.propose(rows([]), 9, 0.0)[0][0, :5].tolist() == [A, B, C, X, EOS]
    assert source.propose(rows([A, B]), 9, 0.0)[0][0, :3].tolist() == [C, X, EOS]
    assert source.propose(rows([A, B, C, X]), 9, 0.0)[0][0, 0] == EOS


@pytest.mark.parametrize(
    "verified, draft",
    [
        ([A, B, X], [C, A, X]),  # one more token than before: b x is new, x last stood before c
        ([A, C], [A, X, EOS]),  # b left out
        ([A, Y], [X, C, A]),  # another word in b's place
    ],
)
def test_behind_an_edit_the_old_output_is_found_again(verified, draft):
    source = previous([A, B, X, C, A, X])
    source.propose(rows([A]), 9, 0.0)
    assert source.propose(rows(verified), 9, 0.0)[0][0, : len(draft)].tolist() == draft


@needs_compiler
def test_the_compiled_row_follows_its_earlier_output_as_the_definition_does():
    """Random outputs and random edits of them, a few tokens verified at a time."""
    draw = np.random.default_rng(5)
    differ = 0
    for _ in range(60):
        old = draw.integers(4, 9, draw.integers(0, 12)).tolist()
        new = [
            int(draw.integers(4, 9)) if draw.random() < 0.25 else t
            for t in old
            if draw.random() > 0.15
        ] + [A, B]
        source = previous(old)
        twin, length = alone(source.compiled(0)), 0
        while length <= len(new):
            tokens, sure = source.propose(rows(new[:length]), 5, 0.0)
            drafted, certain = twin(new[:length], 5, 0.0)
            assert drafted == tokens[0].tolist() and NONE not in drafted
            np.testing.assert_allclose(certain, sure[0])
            differ += drafted[:1] != new[length : length + 1]
            length += int(draw.integers(1, 4))
    assert differ > 30, "the outputs part"


def test_sentences_without_an_earlier_output_request_the_other_source():
    table = estimate([[A, B, EOS]], None, D, D)
    source = Previous([[X, Y, EOS]], Ngram(table, PAD, PAD))
    both = pool([A], [A])
    source.start(both)
    tokens, _ = source.propose(rows([], []), 3, 0.0)
    assert tokens.tolist() == [[X, Y, EOS], [A, B, EOS]]


@needs_compiler
@pytest.mark.parametrize("with_source", [False, True])
def test_the_compiled_table_drafts_as_the_definition_does(with_source):
    """One row compiled against the same row among others and against the row alone."""
    draw = np.random.default_rng(3)
    lines = [[*draw.integers(4, 12, draw.integers(1, 9)).tolist(), EOS] for _ in range(60)]
    table = estimate(
        lines, [line[::-1][1:] + [EOS] for line in lines] if with_source else None, D, D
    )
    verified = [draw.integers(4, 13, n).tolist() for n in (0, 1, 2, 5, 9)]
    sources = [draw.integers(4, 12, 5).tolist() for _ in verified]
    together, single = Ngram(table, PAD, PAD), Ngram(table, PAD, PAD)
    together.start(pool(*sources))
    tokens, sure = together.propose(rows(*verified), 6, 0.0)
    twins = [alone(together.compiled(r)) for r in range(len(verified))]
    for r, line in enumerate(verified):
        single.start(pool(sources[r]))
        for least in (0.0, 0.1, 0.5):
            drafted, certain = twins[r](line, 6, least)
            expected, expected_sure = single.propose(rows(line), 6, least)
            assert drafted == expected[0].tolist()
            np.testing.assert_allclose(certain, expected_sure[0], rtol=1e-5)
        assert twins[r](line, 6, 0.0)[0] == tokens[r].tolist()
        np.testing.assert_allclose(twins[r](line, 6, 0.0)[1], sure[r], rtol=1e-5)

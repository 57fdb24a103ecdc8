"""--softmax top, lexical and lsh: what they list, what they must equal, how lists grow and shrink,
the files they read, and what reads log-probabilities of a list: top-k and logits processors."""

import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import models as made
import pytest
import torch
from conftest import ran
from hypothesis import strategies as st
from models import alone, batch, build, dictionary, generators, language_model, run, same
from sizes import covering, drawn, examples

from fairseq_ext import UsageError
from fairseq_ext.core.stats import Stats
from fairseq_ext.kernels import lsh_torch
from fairseq_ext.kernels import shortlist as gathered
from fairseq_ext.kernels.library import library
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.log_probs import LogProbs, blockwise_topk
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.processors import LogitsProcessors
from fairseq_ext.search.shortlists import ShortlistMeter
from fairseq_ext.search.strategies.softmax._shortlist import most_frequent
from fairseq_ext.search.strategies.softmax.lsh import LSH

WORDS = 60
LENGTHS = [6, 4, 3, 1, 0]
ROOT = Path(__file__).resolve().parents[4]


needs_library = pytest.mark.skipif(library() is None, reason="there is no compiled library")
MODELS = [("transformer",), ("transformer",) * 2, ("lstm",), ("transformer", "lstm")]


@pytest.fixture
def table(tmp_path) -> str:
    """Every source word w_i has the translations w_(i+1), likelier, and w_(i+2)."""
    lines = [f"w{i} w{(i + step) % WORDS} {0.7 / step}" for i in range(WORDS) for step in (2, 1)]
    (tmp_path / "lexicon").write_text("\n".join(lines) + "\n")
    return str(tmp_path / "lexicon")


def ours(flags: dict, models: tuple = ("transformer",), **generation):
    each = [build(name, seed=i + 1, words=WORDS) for i, name in enumerate(models)]
    return generators(each, flags, words=WORDS, **({"beam": 4, "max_len_b": 10} | generation))


def test_the_most_frequent_words_with_ties_in_the_dictionarys_order():
    assert most_frequent([0, 5, 1, 5, 9], 3, ()).tolist() == [1, 3, 4]
    assert most_frequent([0, 5, 1, 5, 9], 2, (0,)).tolist() == [0, 1, 4]
    assert most_frequent([1, 1], 0, (1,)).tolist() == [1]
    assert most_frequent([1, 1], 9, ()).tolist() == [0, 1]


@covering(1)
@pytest.mark.parametrize("models", MODELS, ids="+".join)
@pytest.mark.parametrize("generation", [{}, {"beam": 20}, {"unkpen": 2.0}, {"min_len": 4}], ids=str)
def test_top_searches_as_if_there_were_no_other_words(generation, models, tmp_path):
    """Against fairseq's search over models whose other words cannot be said: the same lists,
    and probabilities over them."""
    kept = [2, 3, *range(10, 25)]
    (tmp_path / "counts").write_text("".join(f"w{i - 4} {100 - i}\n" for i in kept[2:]))
    flags = dict(softmax="top", shortlist_top=15, shortlist_counts=str(tmp_path / "counts"))
    pair = ours(flags, models, **generation)
    sample = batch(LENGTHS, words=WORDS)
    got = run(pair.ours, sample)
    # a bias would do; these models have none
    blocked = torch.full((WORDS + 4,), -1e9, dtype=torch.float64)
    blocked[kept] = 0.0
    for of in (each.decoder for each in pair.stock.model.models):
        project = of.fc_out if hasattr(of, "fc_out") else of.output_projection
        project.register_forward_hook(lambda module, inputs, out: out + blocked.to(out.device))
    same(run(pair.stock, sample), got)
    assert all(set(h["tokens"].tolist()) <= set(kept) for nbest in got for h in nbest)


@pytest.mark.parametrize("backend", ["transformer", "fairseq"])
def test_lexical_lists_hold_the_translations_of_their_sentence(table, backend):
    flags = dict(shortlist_top=0, shortlist_words=1, shortlist_file=table, decoder_backend=backend)
    generator = ours(flags | {"softmax": "lexical", "shortlist_share": "sentence"}).ours
    sample = batch(LENGTHS, words=WORDS)
    found = run(generator, sample)
    first = dictionary(WORDS).nspecial
    for i, nbest in enumerate(found):
        source = {t for t in sample["net_input"]["src_tokens"][i].tolist() if t >= first}
        listed = {first + (t - first + 1) % WORDS for t in source} | {2, 3}
        assert all(set(h["tokens"].tolist()) <= listed for h in nbest)
        same(run(generator, alone(sample, i)), [nbest])


OF_LSH = {"softmax": "lsh", "lsh_k": 4, "lsh_bands": 20, "lsh_share": "sentence"}
LISTS: dict[str, dict] = {
    "lexical": {"softmax": "lexical", "shortlist_top": 20, "shortlist_share": "sentence"},
    "top": {"softmax": "top", "shortlist_top": 50, "shortlist_share": "sentence"},
    "lsh, few words": OF_LSH | {"lsh_u": 2, "lsh_hits": 3, "lsh_top": 8},
    "lsh, often all words": OF_LSH | {"lsh_u": 1, "lsh_hits": 1, "lsh_top": 30},
}


@pytest.mark.parametrize("int8", [False, pytest.param(True, marks=needs_library)])
@pytest.mark.parametrize("listed", LISTS)
def test_lists_of_each_sentence_do_not_depend_on_the_batch(
    table, listed, int8, tmp_path, on_the_cpu
):
    """Neither the padding behind shorter prefixes nor the rows of a beam that a prefix leaves
    empty bring words to a list."""
    # pad is none of the most frequent
    (tmp_path / "counts").write_text("".join(f"w{i} 9\n" for i in range(WORDS)))
    flags = LISTS[listed] | {"shortlist_counts": str(tmp_path / "counts"), "int8": int8}
    flags |= {"shortlist_file": table} if listed == "lexical" else {}
    model = build("transformer", 1, torch.float32 if int8 else torch.float64, WORDS)
    generator = generators([model], flags, words=WORDS, beam=4, max_len_b=10).ours
    sample, pad = batch([6, 4, 3, 1, 0], words=WORDS), dictionary().pad()
    prefixes = [[10, 11, 12], [13], [14, 15], [], [16, 17, 18]]
    for each in ([[]] * 5, prefixes):
        padded = torch.tensor([own + [pad] * (3 - len(own)) for own in each])
        more = {"prefix_tokens": padded} if any(each) else {}
        for i, nbest in enumerate(run(generator, sample, **more)):
            own = {"prefix_tokens": torch.tensor([each[i]])} if each[i] else {}
            same(run(generator, alone(sample, i), **own), [nbest], 1e-5 if int8 else 1e-9)


@pytest.mark.parametrize("flags", [{}, {"shortlist_top": 0}, {"shortlist_top": 10**6}], ids=str)
@pytest.mark.parametrize("given", [False, True])
def test_a_warning_where_counts_do_not_say_which_words_are_frequent(flags, given, tmp_path, caplog):
    """The dictionary of these tests has the count 1 for every word."""
    (tmp_path / "counts").write_text("w1 2\nw2 1\n")
    counts = {"shortlist_counts": str(tmp_path / "counts")} if given else {}
    with caplog.at_level(logging.WARNING):
        ours({"softmax": "top", "shortlist_top": 10} | flags | counts)
    warned = "all counts of the dictionary are equal" in caplog.text
    assert warned == (not given and not flags)  # with none or all of the words there is no choice


@pytest.mark.parametrize("last, said", [(1, "are equal"), (2, "is joined")])
def test_words_without_a_count_do_not_make_counts_differ(last, said, caplog, monkeypatch):
    """They fill a dictionary up."""

    def counted(words, *_):
        out = dictionary(words)
        out.count[-1], out.count[-2] = last, 0
        return out

    monkeypatch.setattr("models.dictionary", counted)
    with caplog.at_level(logging.WARNING):
        ours({"softmax": "top", "shortlist_top": 10})
    assert [said in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize(
    "text, said",
    [("w1 w2", "columns"), ("w1 w2 much", "is not a probability"), ("x y 0.5", "has no word")],
)
def test_wrong_tables_are_reported_with_their_line(text, said, tmp_path):
    (tmp_path / "table").write_text(f"{text}\n")
    with pytest.raises(UsageError, match=said):
        ours({"softmax": "lexical", "shortlist_file": str(tmp_path / "table")})


def test_the_table_script_learns_translations(tmp_path):
    pytest.importorskip("eflomal")
    pairs = [("a b", "x y"), ("a", "x"), ("b c", "y z"), ("c", "z"), ("a c", "x z")] * 20
    for side, name in ((0, "src"), (1, "tgt")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    files = (
        "--source",
        tmp_path / "src",
        "--target",
        tmp_path / "tgt",
        "--out",
        tmp_path / "table",
    )
    ran(sys.executable, ROOT / "scripts" / "lexical_table.py", *files, "--words", 1)
    best = dict(line.split()[:2] for line in (tmp_path / "table").read_text().splitlines())
    assert best == {"a": "x", "b": "y", "c": "z"}


# ---- --softmax lsh


MANY = 600  # words


def on_model(max_len: int = 12, **flags):
    """A generator whose lists have no words but candidates, unless flags say so."""
    flags = {"softmax": "lsh", "lsh_k": 4, "lsh_u": 2, "lsh_top": 0} | flags
    model = build("transformer", words=MANY)
    return generators([model], flags, words=MANY, beam=4, max_len_b=max_len).ours


def plug(t: int, T: int = 0, share: str = "batch", bias: bool = False) -> LSH:
    """The softmax over random weights (400, 16), words in order of frequency."""
    generator = torch.Generator().manual_seed(1)
    layer = torch.randn(400, 16, generator=generator), None
    if bias:
        layer = layer[0], torch.randn(400, generator=generator)
    base = torch.cat([torch.arange(T), torch.tensor([2, 3])])
    how = dict(base=base, temperature=1.0, share=share, meter=ShortlistMeter(Stats(), 5, 0))
    return LSH(4, 2, 30, t, layers=[layer], **how)


@pytest.fixture(params=["compiled", "torch"])
def way(request, monkeypatch) -> str:
    """The compiled library, or as without it."""
    if request.param == "torch":
        monkeypatch.setattr(gathered, "is_supported", lambda weight: False)
    elif library() is None:
        pytest.skip("no compiler")
    return request.param


def full(softmax: LSH, x: torch.Tensor) -> torch.Tensor:
    """The log-probabilities of states over the same weights."""
    return torch.nn.functional.linear(x, *softmax.layers[0]).log_softmax(-1)


def states(n: int) -> torch.Tensor:
    return torch.randn(n, 16, generator=torch.Generator().manual_seed(3))


def scored(softmax: LSH, x: torch.Tensor) -> LogProbs:
    """Log-probabilities of states x (n, 16), each of a sentence of its own."""
    n = x.size(0)
    pool = Pool({}, torch.ones(n), [9] * n, torch.arange(n), 2)
    decoder = SimpleNamespace(log_probs=lambda features, _: full(softmax, features[0]))
    return softmax(decoder, [x], Beam.start(list(range(n)), 2, x.device, x.dtype), pool)


def listed(softmax: LSH, x: torch.Tensor) -> list[set[int]]:
    """The words on the list of each row."""
    return [set(row.nonzero()[:, 0].tolist()) for row in scored(softmax, x).dense() > -torch.inf]


# ---- what is on a list


@drawn(10)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("share", ["batch", "sentence"])
@pytest.mark.parametrize("t", [1, 3, 6])
def test_lists_are_those_of_equations_3_9_and_10(way, share, t, bias):
    softmax, x = plug(t, 20, share, bias=bias), states(5)
    assert (softmax.compiled is not None) == (way == "compiled")
    words, shift = softmax.layers[0]
    both = [(words, shift[:, None]), (x, torch.ones(5, 1))] if bias else [(words,), (x,)]
    codes = [lsh_torch.wta_hash(torch.cat(each, 1), softmax.index.dimensions, 2) for each in both]
    hits = (codes[1][:, None] == codes[0]).sum(-1)  # brute force
    each = [{j for j in range(400) if hits[i, j] >= t} | set(range(20)) for i in range(5)]
    assert listed(softmax, x) == (each if share == "sentence" else [set().union(*each)] * 5)


def test_an_empty_candidate_list_leaves_eos_and_unk(way):
    log_probs = scored(plug(31), states(2))
    dense = log_probs.dense()
    assert (dense > -torch.inf).nonzero().tolist() == [[0, 2], [0, 3], [1, 2], [1, 3]]
    assert dense.exp().sum(1).tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("share", ["batch", "sentence"])
def test_probabilities_are_the_full_ones_over_the_lists_sum(way, share):
    softmax, x = plug(3, 10, share), states(4)
    log_probs = scored(softmax, x)
    for i, words in enumerate(listed(softmax, x)):
        ids = torch.tensor(sorted(words))
        expected = full(softmax, x)[i, ids].log_softmax(-1)
        torch.testing.assert_close(log_probs.scores_at(ids.expand(4, -1))[i], expected)
        # what fills a row up counts for nothing
        assert log_probs.dense()[i].exp().sum().item() == pytest.approx(1.0)


# ---- on models


def test_statistics_and_recall(way):
    ours = on_model(lsh_bands=20, lsh_hits=4, lsh_top=20, shortlist_recall_every=1)
    run(ours, batch(LENGTHS, words=MANY))
    section = ours.stats.as_dict()["softmax"]
    assert set(section["seconds"]) == {"hash", "lookup", "compact", "gather", "matmul", "normalise"}
    assert all(value > 0 for value in section["seconds"].values())
    assert (
        22 <= section["vocab_mean"] < MANY
        and 0 < section["recall_at_k"] < 1
        and 0 < section["recall_at_1"] <= 1
    )


def test_recall_counts_what_the_lists_hold():
    softmax = plug(4, 10)
    softmax.meter.every = 1
    x = states(7)
    best = full(softmax, x).topk(5).indices.tolist()
    expected = [len({*b} & words) / 5 for b, words in zip(best, listed(softmax, x), strict=True)]
    assert softmax.meter.counts.recall_at_k.value() == pytest.approx(sum(expected) / 7)


def test_a_model_without_an_output_layer_that_it_reads_is_refused():
    with pytest.raises(UsageError, match="no plain Transformer or LSTM decoder"):
        generators([build("fconv")], {"softmax": "lsh"}, beam=2)


# ---- top-k in blocks


@hypothesis.settings(max_examples=examples(150), deadline=None)
@hypothesis.given(
    rows=st.integers(1, 4),
    columns=st.integers(1, 1200),
    k=st.integers(1, 12),
    levels=st.sampled_from([2, 10, 10**6]),
    seed=st.integers(0, 9999),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_blockwise_topk_equals_topk(rows, columns, k, levels, seed, dtype):
    """The same values, from columns that hold them, each used once; few levels make many ties, the
    lowest is -inf. In float64 it is torch's operations that find them."""
    k = min(k, columns)
    value = torch.randint(
        levels, (rows, columns), generator=torch.Generator().manual_seed(seed)
    ).to(dtype)
    value[value == 0] = -torch.inf
    score, column = blockwise_topk(value, k)
    assert torch.equal(score, value.topk(k, dim=1).values)
    assert torch.equal(value.gather(1, column), score)
    assert all(len(set(row)) == k for row in column.tolist())


# ---- logits processors; those of a whole vocabulary are in test_neutral.py

PAD, EOS, UNK, V = 1, 2, 3, 25  # fairseq's numbers
LISTED = [0, 1, 2, 3, 5, 6, 9, 14]
# two sentences with two rows each, three tokens chosen so far
TOKENS = [[2, 5, 6, 5], [2, 6, 6, 6], [2, 9, 5, 9], [2, 5, 9, 14]]
PREFIX = torch.tensor([[5, 6, 5, 9], [9, 5, 9, PAD]])  # reaches this step in sentence 0 only


def there(x: torch.Tensor | None) -> torch.Tensor | None:
    return x if x is None else x.to(made.DEVICE)


@pytest.mark.parametrize("prefix", [None, PREFIX], ids=["free", "prefix"])
@pytest.mark.parametrize("at_limit", [None, torch.tensor([False, True])], ids=["", "at limit"])
@pytest.mark.parametrize(
    "settings",
    [
        *({}, {"unk_penalty": 1.5}, {"min_len": 3}, {"min_len": 4}, {"no_repeat_ngram": 1}),
        *({"no_repeat_ngram": 2}, {"suppress": torch.tensor([5, 14])}, {"lm_weight": 0.3}),
    ],
    ids=str,
)
def test_processors_make_of_a_shortlist_what_they_make_of_the_vocabulary(
    settings, at_limit, prefix
):
    lm = {"lm": language_model()} if "lm_weight" in settings else {}
    processors = LogitsProcessors(PAD, UNK, EOS, **settings, **lm)
    value = torch.rand(4, V, generator=torch.Generator().manual_seed(2)).double().log()
    beam = Beam([0, 1], 2, None, there(torch.tensor(TOKENS)), there(-torch.ones(4, 3)))
    pool = Pool({}, there(torch.tensor([4, 4])), [10, 10], torch.arange(2), EOS, there(prefix))
    found = []
    for ids in (None, torch.tensor(LISTED)):
        words = value if ids is None else value[:, ids]
        log_probs = LogProbs(there(words).clone(), there(ids), V)
        with torch.no_grad():
            found.append(processors(log_probs, beam, pool, there(at_limit)).dense()[:, LISTED])
    assert torch.equal(*found) and not torch.equal(found[0].cpu(), value[:, LISTED])

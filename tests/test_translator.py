"""Translations from Python: their tokens, alignments and errors, and what a Translator offers next
to the commands: calls of their own beam, lazy reading, scores of given translations, many threads.
Those of the stock command are rows of tests/contract."""

import gc
import itertools
import math
import random
import re
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from conftest import command
from sizes import part_of

import fairseq_ext
from fairseq_ext import Translator, UsageError
from fairseq_ext.plugin.loading.settings import as_arguments
from fairseq_ext.search.constraints.from_python import Call

LINES = ["de1 de2 de3", "", "de4 unheard-of de5 de6", "   ", "de7"]


SETTINGS = {"source_lang": "de", "target_lang": "en", "cpu": True, "max_len_b": 20}


def make(tiny, **flags):
    return Translator(tiny / "model.pt", tiny / "data", **{"beam": 4, **SETTINGS, **flags})


@pytest.fixture(scope="module")
def translator(tiny):
    return make(tiny)


@pytest.mark.parametrize(
    "line",
    [
        "de1 de2",
        "  de1\tde2 \u2003 de9\x1cunheard-of\u00a0de3 ",
        "<pad> </s> <unk> <s> de1",
        "de4\u200bde5",
    ],
)
def test_tokens_are_those_of_fairseqs_dictionary_and_so_is_their_text(translator, line):
    dictionary, text = translator.task.source_dictionary, translator.generator.target_text
    tokens = translator.tokens(line, dictionary, translator.bpe)
    assert tokens.equal(dictionary.encode_line(line, add_if_not_exist=False).long())
    plain = text.segmenter().dictionary
    for numbers in (tokens, [*range(8), 10**6], []):
        expected = plain.string(numbers, extra_symbols_to_ignore=text.left_out)
        assert text.pieces(numbers) == expected


def test_a_hypothesis_explains_itself(translator, tiny):
    best = translator.translate(LINES)[0][0]
    scores = best.positional_scores
    assert best.tokens == best.text.split() and len(scores) == len(best.tokens) + 1  # EOS
    assert best.score == pytest.approx(sum(scores) / len(scores), abs=1e-5)
    assert best.alignment is None
    aligned = make(tiny, print_alignment="hard").translate(LINES)[0][0]
    pairs = set(itertools.product(range(3), range(len(aligned.tokens))))
    assert aligned.text == best.text and set(aligned.alignment) <= pairs


def test_nothing_is_nothing(translator):
    assert translator.translate([]) == [*translator.translate_iter([])] == translator.score([], [])


def test_keywords_are_the_commands_flags():
    flags = {"unnormalized": True, "sampling": False, "lm_path": None, "lenpen": 0.6}
    arguments = as_arguments({**flags, "user_paths": ["a", "b"], "seed": 0})
    assert arguments == "--unnormalized --lenpen 0.6 --user-paths a b --seed 0".split()


# ---- Constraints from Python:  the same as through the commands, line by line


GIVEN = ["de1 de2 de3", "", "de4 de5 de6", "de7"]


def test_an_empty_line_has_an_empty_translation_which_lacks_its_constraints(tiny):
    """And costs nothing."""
    ours = make(tiny, nbest=2)
    for line in ("", " ", " \t"):
        ((found,),) = ours.translate([line])
        assert (found.text, found.tokens, found.score, found.positional_scores) == ("", [], 0.0, [])
    assert ours.stats.sentences == 3 and ours.stats.decoder_calls == 0
    full = ["de1 de2", "de3"]
    assert ours.translate([full[0], "", full[1], " "])[::2] == ours.translate(full)
    lines, reason = ["", "de4"], "the line is empty"
    empty, other = ours.translate(lines, constraints=[["en3"], []], prefixes=["en4", None])
    assert [(h.text, h.unmet) for h in empty] == [("", [("en3", reason), ("en4", reason)])]
    assert other[0].text and not other[0].unmet
    ours = make(tiny)
    ours.translate(lines, constraints=[["en3"], ["en5"]])
    counts = {"given": 2, "met": 1, "unmet": [[0, "en3", reason]]}
    assert ours.stats.as_dict()["constraints"] == counts


def test_first_constraints_next_to_a_results_file_are_refused(tiny, tmp_path):
    """The file's results would be of two searches."""
    translator = make(tiny, results_file=tmp_path / "r.jsonl")
    with pytest.raises(UsageError, match='make the Translator with constraints="unordered"'):
        translator.translate(GIVEN, constraints=[["en3"], [], [], []])
    assert len(translator.translate(GIVEN)) == len(GIVEN)  # and nothing is broken


def test_ctrl_c_in_the_first_call_with_constraints_changes_no_later_one(tiny, monkeypatch):
    made = make(tiny)
    rebuild = made.generators.rebuild

    def interrupted(*key):
        rebuild(*key)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(made.generators, "rebuild", interrupted)
        made.translate(["de1 de2"], constraints=[["en3"]])
    ((found, *_),) = made.translate(["de1 de2"], constraints=[["en3"]])
    assert "en3" in found.text.split() and not found.unmet


def test_a_glossary_that_cannot_be_read_is_no_lines_fault(tiny, tmp_path):
    """Where lines have their errors in their places, that one is raised: a text would stay as it
    is, and a command end well."""
    (tmp_path / "terms.csv").write_text("de1:en1\n")
    ours = make(tiny, constraints="unordered", glossary=tmp_path / "terms.csv")
    with pytest.raises(UsageError, match="line 1 of .*terms.csv has 1 column and needs 2"):
        ours.translate(GIVEN, errors="return")
    with pytest.raises(UsageError, match="has 1 column and needs 2"):
        ours.translate_text("de1 de2")


def made_up(count, seed=1):
    chance = random.Random(seed)
    lengths = (chance.randint(0, 9) for _ in range(count))
    return [" ".join(f"de{chance.randrange(30)}" for _ in range(n)) for n in lengths]


def texts(found):
    return [[h.text for h in nbest] for nbest in found]


# ---- a call's own beam and n-best list


def test_a_call_with_its_own_beam_is_as_from_a_translator_of_that_beam(tiny, translator):
    lines = made_up(9)
    before = texts(translator.translate(lines))
    decoder = translator.generator.decoder
    for beam, nbest in ((1, 1), (2, 2), (7, 3), (4, 1)):
        other = make(tiny, beam=beam, nbest=nbest)
        assert texts(translator.translate(lines, nbest, beam=beam)) == texts(other.translate(lines))
        assert translator.generator.decoder is decoder  # the weights are held once
    assert texts(translator.translate(lines)) == before


def test_a_forgotten_translator_frees_its_model_and_its_task(tiny):
    translator = make(tiny)
    translator.translate(made_up(3), 3)  # another list, another beam, constraints: generators
    translator.translate(made_up(3), beam=7)
    translator.translate(["de3"], constraints=[["en4"]])
    decoder = translator.generator.decoder
    held = list(map(weakref.ref, (translator.models[0], decoder, translator.task)))
    del translator, decoder
    gc.collect()
    assert [each() for each in held] == [None] * 3


def test_another_beam_or_phrase_is_refused_where_the_search_cannot_change(tiny, tmp_path):
    one_search = make(tiny, results_file=tmp_path / "r.jsonl")
    with pytest.raises(UsageError, match="results_file holds the results of one search"):
        one_search.translate(["de1"], beam=2)
    with pytest.raises(UsageError, match="beam is fixed where fairseq's own search runs"):
        make(tiny, match_source_len=True, nbest=4).translate(["de1"], beam=2)
    with pytest.raises(UsageError, match="--match-source-len"):
        make(tiny, match_source_len=True).translate(GIVEN, avoid=["en1"])


# ---- lazily


@pytest.mark.parametrize("flags", [{}, {"schedule": "stream", "stream_width": 3}], ids=str)
def test_iterating_gives_the_same_in_order_and_reads_no_further_than_its_buffer(tiny, flags):
    ours = make(tiny, **flags)
    lines, read = made_up(50), []
    endless = (read.append(line) or line for line in itertools.cycle(lines))
    found = ours.translate_iter(endless, buffer=7)
    assert not read  # nothing before it is requested
    first = [next(found) for _ in range(20)]
    assert len(read) == 21
    assert texts(first) == texts(ours.translate(lines[:20]))
    assert texts(ours.translate_iter(lines, 2, buffer=8)) == texts(ours.translate(lines, 2))


def test_iterating_takes_constraints_line_by_line(tiny, tmp_path, translator):
    lines = [line or "de1" for line in made_up(10, seed=2)]
    wanted = [[f"en{i}"] if i % 3 else [] for i in range(10)]
    prefixes = [f"en{i + 10}" if i % 2 else None for i in range(10)]
    given = {"constraints": wanted, "prefixes": prefixes}
    lazy = {name: iter(each) for name, each in given.items()}
    found = translator.translate_iter(lines, **lazy, buffer=4)
    assert texts(found) == texts(translator.translate(lines, **given))
    # what is wrong with a line has its number in the whole call, and is in its place
    spelled = [[]] * 6 + [["no-such-word"]] + [[]] * 3
    long = [*lines[:5], "de2 " * 50, *lines[6:]]
    for wrong, more, message in (
        (lines, {"constraints": spelled}, "in line 7, the phrase 'no-such-word'"),
        (long, {}, "line 6 has 51 tokens and the model takes 40"),
        (lines, {"constraints": [[]] * 5}, "constraints has 1 entry for 4 lines"),
        (lines, {"buffer": 0}, "buffer is 0"),
        (lines, {"errors": "skip"}, "errors is 'skip': use 'raise' or 'return'"),
    ):
        with pytest.raises(UsageError, match=message):
            list(translator.translate_iter(wrong, **{"buffer": 4, **more}))
    how = {"constraints": iter(spelled), "errors": "return", "buffer": 4}
    found = list(translator.translate_iter(long, **how))
    assert [i for i, each in enumerate(found) if isinstance(each, UsageError)] == [5, 6]
    assert str(found[5]).startswith("line 6 has 51 tokens and the model takes 40")
    assert str(found[6]).startswith("in line 7, the phrase")
    assert texts(found[:5] + found[7:]) == texts(translator.translate(lines[:5] + lines[7:]))
    # a file's lines are those of the whole call
    (tmp_path / "terms.tsv").write_text("".join("\t".join(phrases) + "\n" for phrases in wanted))
    files = make(tiny, constraints_file=tmp_path / "terms.tsv")
    for nbest, phrases in zip(files.translate_iter(lines, buffer=4), wanted, strict=True):
        assert set(phrases) <= set(nbest[0].text.split())
    # a piece of a long sentence has the line of its sentence
    piece = Call(nbest=1, numbers=[(1 << 32) + 8])
    ((best,),) = files.translate_part([lines[8]], piece, "raise", None)
    assert "en8" in best.text.split()


# ---- scores of given translations


@pytest.fixture(scope="module")
def referenced(tiny):
    """What --score-reference prints for the test set, in nats: number -> (text, scores); the test
    set's two sides."""
    where = [tiny / "data", "--path", tiny / "model.pt", *"-s de -t en --cpu".split()]
    said = command("fairseq-generate", *where, "--score-reference").stdout
    pattern = r"^H-(\d+)\t(\S+)\t(.*)\n(?:D-.*\n)?P-\d+\t(.*)$"
    table = {
        int(number): (text, [float(p) * math.log(2) for p in (score, *scores.split())])
        for number, score, text, scores in re.findall(pattern, said, re.MULTILINE)
    }
    return table, *((tiny / f"test.{side}").read_text().splitlines() for side in ("de", "en"))


@pytest.mark.parametrize(
    "flags",
    [{}, {"schedule": "stream"}, {"batch_size": 1}, {"max_tokens": 30, "lenpen": 0.0}],
    ids=str,
)
def test_scores_are_those_of_score_reference(tiny, referenced, flags):
    expected, sources, targets = referenced
    found = make(tiny, **flags).score(sources, targets)
    assert len(found) == len(expected) == len(sources)
    for number, ours in enumerate(found):
        text, scores = expected[number]
        assert ours.text == text == targets[number] and ours.tokens == text.split()
        # the command prints four digits, in base 2
        assert [ours.score, *ours.positional_scores] == pytest.approx(scores, abs=2e-4)


# ---- what a person reads


def test_it_says_what_it_is(tiny, translator):
    said = repr(translator)
    assert said.startswith("<Translator ") and "\n" not in said and len(said) < 400
    for part in (str(tiny / "model.pt"), "de to en", "beam 4", "on the CPU", translator.signature):
        assert part in said
    ((found,),) = translator.translate(["de1 de2"])
    assert repr(found) == f"Translation({found.text!r}, score={found.score:.4f})"
    assert re.fullmatch(r"\d+\.\d+\.\d+", fairseq_ext.__version__)
    assert translator.signature.startswith(
        "fairseq_ext:" + fairseq_ext.__version__.rpartition(".")[0]
    )


@pytest.mark.parametrize("flags", [{}, {"schedule": "stream"}], ids=str)
def test_progress_is_a_bar_on_standard_error(tiny, capsys, flags):
    ours = make(tiny, **flags)
    lines = made_up(70)
    quiet = texts(ours.translate(lines))
    assert "sentences" not in capsys.readouterr().err
    assert texts(ours.translate(lines, progress=True)) == quiet
    assert "70/70" in capsys.readouterr().err


# ---- threads


def states():
    return [torch.random.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())]


def test_making_a_translator_leaves_the_random_state_and_so_do_samples(tiny):
    before = states()
    translator = make(tiny, seed=3, select="sampling", sampling_topk=5)
    assert states() == before
    translator.translate(made_up(2), seed=4)
    assert states() == before


def test_eight_threads_get_what_one_gets(tiny):
    lines = made_up(len(part_of(1000, 200)), seed=3)
    ours, alone = make(tiny), make(tiny)
    parts = [lines[i : i + 5] for i in range(0, len(lines), 5)]
    kinds = [{}, {"beam": 2}, {"nbest": 3}, {"avoid": ["en3"]}]
    calls = [(part, kinds[i % 4]) for i, part in enumerate(parts)]
    expected = [alone.translate(part, **kind) for part, kind in calls]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda call: ours.translate(call[0], **call[1]), calls))
    assert sum(map(len, found)) == len(lines)
    for ours_of_call, theirs in zip(found, expected, strict=True):
        assert texts(ours_of_call) == texts(theirs)
        for a, b in zip(itertools.chain(*ours_of_call), itertools.chain(*theirs), strict=True):
            assert a.score == pytest.approx(b.score, abs=1e-6)
    assert ours.stats.sentences == len(lines)

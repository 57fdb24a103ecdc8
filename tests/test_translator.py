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


def make(tiny, **flags) -> Translator:
    return Translator(
        str(tiny / "model.pt"), str(tiny / "data"), **{"beam": 4, **SETTINGS, **flags}
    )


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
    assert (
        tokens.tolist() == dictionary.encode_line(line, add_if_not_exist=False).tolist()
        and tokens.dtype == torch.long
    )
    for numbers in (tokens, [*range(8), 10**6], []):
        expected = text.segmenter().dictionary.string(
            numbers, extra_symbols_to_ignore=text.left_out
        )
        assert text.pieces(numbers) == expected


def test_a_hypothesis_explains_itself(translator):
    (best, *_), *_ = translator.translate(LINES)
    assert best.tokens == best.text.split()
    assert len(best.positional_scores) == len(best.tokens) + 1  # EOS
    assert best.score == pytest.approx(
        sum(best.positional_scores) / len(best.positional_scores), abs=1e-5
    )
    assert best.alignment is None


def test_nbest_can_be_chosen_per_call_and_nothing_is_nothing(translator):
    assert [len(nbest) for nbest in translator.translate(LINES[::2], nbest=3)] == [3, 3, 3]
    assert (
        translator.translate([]) == []
        and list(translator.translate_iter([])) == []
        and translator.score([], []) == []
    )


def test_hard_alignments_are_pairs(tiny):
    best = make(tiny, print_alignment="hard").translate(["de1 de2 de3"])[0][0]
    assert len(best.alignment) <= len(best.tokens)
    assert all(
        0 <= source < 3 and 0 <= target < len(best.tokens) for source, target in best.alignment
    )


def test_a_wrong_checkpoint_is_an_error_not_an_exit(tiny, tmp_path):
    (tmp_path / "text.pt").write_text("this is no checkpoint\n")
    with pytest.raises(OSError, match="is not a checkpoint"):
        Translator(str(tmp_path / "text.pt"), str(tiny / "data"), **SETTINGS)


@pytest.mark.parametrize(
    "flags, arguments",
    [
        ({"beam": 5, "lenpen": 0.6}, ["--beam", "5", "--lenpen", "0.6"]),
        ({"unnormalized": True, "sampling": False, "lm_path": None}, ["--unnormalized"]),
        ({"user_paths": ["a", "b"], "seed": 0}, ["--user-paths", "a", "b", "--seed", "0"]),
    ],
)
def test_keywords_are_the_commands_flags(flags, arguments):
    assert as_arguments(flags) == arguments


# ---- Constraints from Python:  the same as through the commands, line by line


GIVEN = ["de1 de2 de3", "", "de4 de5 de6", "de7"]


def has(phrase: str, text: str) -> bool:
    return re.search(rf"(?<!\S){phrase}(?!\S)", text) is not None


def test_an_empty_line_has_an_empty_translation_which_lacks_its_constraints(tiny):
    found = make(tiny).translate(["", "de4"], constraints=[["en3"], []], prefixes=["en4", None])
    reason = "the line is empty"
    assert [(h.text, h.tokens, h.score, h.unmet) for h in found[0]] == [
        ("", [], 0.0, [("en3", reason), ("en4", reason)])
    ]
    assert found[1][0].text and not found[1][0].unmet
    ours = make(tiny)
    ours.translate(["", "de4"], constraints=[["en3"], ["en5"]])
    assert ours.stats.as_dict()["constraints"] == {
        "given": 2,
        "met": 1,
        "unmet": [[0, "en3", reason]],
    }


def test_hypotheses_that_cannot_meet_their_constraints_are_flagged_also_when_read_again(
    tiny, tmp_path
):
    """Six tokens where four may be; a phrase in conflict with a banned one; one that is met."""
    wishes = [["en3", "en4 en5 en6", "en7 en8"], [], ["en9", "en1 en2"], ["en7"]]
    flags = {
        "max_len_b": 4,
        "constraints": "unordered",
        "results_file": str(tmp_path / "results.jsonl"),
    }
    long, none, clash, fine = found = make(tiny, **flags).translate(
        GIVEN, constraints=wishes, avoid=["en2"]
    )
    for h in long:
        lacking = [phrase for phrase in wishes[0] if not has(phrase, h.text)]
        assert lacking and h.unmet == [
            (phrase, "the constraints take 6 tokens and the sentence may have 4")
            for phrase in lacking
        ]
    assert all(
        h.unmet == [("en1 en2", "conflicts with the banned phrase 'en2'")] and has("en9", h.text)
        for h in clash
    )
    assert not any(h.unmet for h in [*none, *fine])
    again = make(tiny, **flags, resume=True)
    assert (
        again.translate(GIVEN, constraints=wishes, avoid=["en2"]) == found
        and again.stats.decoder_calls == 0
    )


def test_first_constraints_next_to_a_results_file_are_refused(tiny, tmp_path):
    """The file's results would be of two searches."""
    translator = make(tiny, results_file=str(tmp_path / "results.jsonl"))
    with pytest.raises(UsageError, match='make the Translator with constraints="unordered"'):
        translator.translate(GIVEN, constraints=[["en3"], [], [], []])
    assert len(translator.translate(GIVEN)) == len(GIVEN)  # and nothing is broken


def test_ctrl_c_in_the_first_call_with_constraints_changes_no_later_one(tiny, monkeypatch):
    made = Translator(tiny / "model.pt", tiny / "data", cpu=True, beam=4)
    rebuild = made.generators.rebuild

    def interrupted(*key):
        rebuild(*key)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(made.generators, "rebuild", interrupted)
        made.translate(["de1 de2"], constraints=[["en3"]])
    ((found, *_),) = made.translate(["de1 de2"], constraints=[["en3"]])
    assert "en3" in found.text.split() and not found.unmet


def test_another_search_is_refused(tiny):
    with pytest.raises(UsageError, match="--match-source-len"):
        make(tiny, match_source_len=True).translate(GIVEN, avoid=["en1"])
    # the sentence names what was written
    for flag in ({"constraint_end": True}, {"constraint_bonus": 2.0}, {"constraint_case": "any"}):
        name = "".join(flag).replace("_", "-")
        said = f"--match-source-len replaces beam search, so --{name} cannot work with it"
        with pytest.raises(UsageError, match=said):
            make(tiny, match_source_len=True, **flag)


def test_a_glossary_that_cannot_be_read_is_no_lines_fault(tiny, tmp_path):
    """Where lines have their errors in their places, that one is raised: a text would stay as it
    is, and a command end well."""
    (tmp_path / "terms.csv").write_text("de1:en1\n")
    ours = make(tiny, constraints="unordered", glossary=str(tmp_path / "terms.csv"))
    with pytest.raises(UsageError, match="line 1 of .*terms.csv has 1 column and needs 2"):
        ours.translate(GIVEN, errors="return")
    with pytest.raises(UsageError, match="has 1 column and needs 2"):
        ours.translate_text("de1 de2")


def made_up(count: int, seed: int = 1) -> list[str]:
    chance = random.Random(seed)
    return [
        " ".join(f"de{chance.randrange(30)}" for _ in range(chance.randint(0, 9)))
        for _ in range(count)
    ]


def texts(found) -> list[list[str]]:
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
    held = [translator.models[0], translator.generator.decoder, translator.task]
    held = [weakref.ref(each) for each in held]
    del translator
    gc.collect()
    assert [each() for each in held] == [None] * 3


def test_another_beam_is_refused_where_the_search_cannot_change(tiny, tmp_path):
    one_search = make(tiny, results_file=str(tmp_path / "results.jsonl"))
    with pytest.raises(UsageError, match="results_file holds the results of one search"):
        one_search.translate(["de1"], beam=2)
    with pytest.raises(UsageError, match="beam is fixed where fairseq's own search runs"):
        make(tiny, match_source_len=True, nbest=4).translate(["de1"], beam=2)


# ---- nothing to translate


def test_an_empty_line_has_an_empty_translation_and_costs_nothing(tiny):
    ours = make(tiny, nbest=2)
    for line in ("", " ", " \t"):
        ((found,),) = ours.translate([line])
        assert (found.text, found.tokens, found.score, found.positional_scores) == ("", [], 0.0, [])
    assert ours.stats.sentences == 3 and ours.stats.decoder_calls == 0
    full = ["de1 de2", "de3"]
    assert ours.translate([full[0], "", full[1], " "])[::2] == ours.translate(full)


# ---- lazily


@pytest.mark.parametrize("flags", [{}, {"schedule": "stream", "stream_width": 3}], ids=str)
def test_iterating_gives_the_same_in_order_and_reads_no_further_than_its_buffer(tiny, flags):
    ours = make(tiny, **flags)
    lines, read = made_up(50), []
    found = ours.translate_iter(
        (read.append(line) or line for line in itertools.cycle(lines)), buffer=7
    )
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
    expected = texts(translator.translate(lines, **given))
    lazy = {name: iter(each) for name, each in given.items()}
    assert texts(translator.translate_iter(lines, **lazy, buffer=4)) == expected
    unknown = [[]] * 5 + [["no-such-word"]] + [[]] * 4
    for wrong, more, message in (
        (lines, {"constraints": unknown}, "in line 6, the phrase 'no-such-word'"),
        ([*lines[:5], "de2 " * 50], {}, "line 6 has 51 tokens and the model takes 40"),
        (lines, {"constraints": [[]] * 5}, "constraints has 1 entry for 4 lines"),
        (lines, {"buffer": 0}, "buffer is 0"),
        (lines, {"errors": "skip"}, "errors is 'skip': use 'raise' or 'return'"),
    ):
        with pytest.raises(UsageError, match=message):
            list(translator.translate_iter(wrong, **{"buffer": 4, **more}))
    # what is wrong with a line is in its place, and its number is that of the whole call
    long, spelled = "de2 " * 50, [[]] * 6 + [["no-such-word"]] + [[]] * 3
    how = {"constraints": iter(spelled), "errors": "return", "buffer": 4}
    found = list(translator.translate_iter([*lines[:5], long, *lines[6:]], **how))
    assert [i for i, each in enumerate(found) if isinstance(each, UsageError)] == [5, 6]
    assert str(found[5]).startswith("line 6 has 51 tokens and the model takes 40")
    assert str(found[6]).startswith("in line 7, the phrase")
    assert texts(found[:5] + found[7:]) == texts(translator.translate(lines[:5] + lines[7:]))
    # a file's lines are those of the whole call
    (tmp_path / "terms.tsv").write_text("".join("\t".join(phrases) + "\n" for phrases in wanted))
    files = make(tiny, constraints_file=str(tmp_path / "terms.tsv"))
    found = list(files.translate_iter(lines, buffer=4))
    assert all(
        phrase in nbest[0].text.split()
        for nbest, phrases in zip(found, wanted, strict=True)
        for phrase in phrases
    )
    # a piece of a long sentence has the line of its sentence
    i = max(i for i, phrases in enumerate(wanted) if phrases)
    piece = Call(nbest=1, numbers=[(1 << 32) + i])
    ((best,),) = files.translate_part([lines[i]], piece, "raise", None)
    assert set(wanted[i]) <= set(best.text.split())


# ---- scores of given translations


@pytest.fixture(scope="module")
def referenced(tiny) -> tuple[dict[int, tuple[str, float, list[float]]], list[str], list[str]]:
    """What --score-reference prints for the test set, in nats: number -> (text, score, scores);
    the test set's two sides."""
    where = [tiny / "data", "--path", tiny / "model.pt", *"-s de -t en --cpu".split()]
    where.append("--score-reference")
    found: dict[int, list] = {}
    for line in command("fairseq-generate", *where).stdout.splitlines():
        kind, _, rest = line.partition("-")
        if kind in ("H", "P") and rest[:1].isdigit():
            number, values, *text = rest.split("\t")
            found.setdefault(int(number), []).extend(
                [*text, float(values)] if kind == "H" else [[float(p) for p in values.split()]]
            )
    nats = math.log(2)
    table = {
        number: (text, score * nats, [p * nats for p in scores])
        for number, (text, score, scores) in found.items()
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
        text, score, scores = expected[number]
        assert ours.text == text == targets[number] and ours.tokens == text.split()
        assert ours.score == pytest.approx(score, abs=1e-4)
        # the command prints four digits, in base 2
        assert ours.positional_scores == pytest.approx(scores, abs=2e-4)


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


def states() -> list[object]:
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

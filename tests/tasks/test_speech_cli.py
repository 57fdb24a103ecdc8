"""speech_to_text_ext through the real commands, on made-up features: equal to stock, and every strategy that makes sense."""

import json

import pytest
import speech_models
from forked import forked, generate, generate_forked, interactive_forked, interactive_main
from speech_models import Speech
from tasks.test_tasks_cli import rows, same_rows

from fairseq_ext import Translator, UsageError


@pytest.fixture(scope="module", params=[False, True], ids=["no tag", "language tag"])
def speech(request, tmp_path_factory) -> Speech:
    return speech_models.make(tmp_path_factory.mktemp("speech"), request.param)


@pytest.mark.parametrize("beam", [1, 5])
def test_generate_equals_stock(speech, beam):
    search = ["--beam", beam, "--batch-size", 4]
    stock = generate_forked(*speech.arguments("speech_to_text"), *search).stdout
    assert len({tuple(row[2:]) for row in rows(stock, "H")}) > 1  # the speech matters
    same_rows(stock, generate_forked(*speech.arguments("speech_to_text_ext"), *search).stdout)


def test_a_stream_equals_one_sentence_at_a_time(speech):
    """Its encoder's convolutions see padding, so a stream encodes each sentence as it is."""
    stock = generate_forked(*speech.arguments("speech_to_text"), "--beam", 3, "--batch-size", 1).stdout
    stream = ["--schedule", "stream", "--stream-width", 3]
    for backend in ("transformer", "fairseq"):
        search = ["--beam", 3, "--decoder-backend", backend, *stream]
        same_rows(stock, generate_forked(*speech.arguments("speech_to_text_ext"), *search).stdout)


def test_interactive_equals_stock_and_meets_what_is_typed(speech):
    if speech.tagged:
        return  # fairseq-interactive gives no prefix
    search = ["--beam", 5, "--buffer-size", 6, "--batch-size", 6]
    files = speech.files()
    stock = interactive_forked("\n".join(files) + "\n", *speech.arguments("speech_to_text"), *search).stdout
    same_rows(stock, interactive_forked("\n".join(files) + "\n", *speech.arguments("speech_to_text_ext"), *search).stdout)
    typed = "".join(f"{file}\tw{20 + i} w3\n" for i, file in enumerate(files))
    search += ["--constraints", "unordered"]
    found = rows(interactive_forked(typed, *speech.arguments("speech_to_text_ext"), *search).stdout, "H")
    assert len(found) == len(files)
    for number, (_, _, words) in enumerate(found):
        assert f"w{20 + number} w3" in words


def test_constraints_hold_behind_the_language_tag(speech, tmp_path):
    (tmp_path / "phrases").write_text("".join(f"w{10 + i} w2\n" for i in range(6)))
    search = ["--beam", 5, "--batch-size", 4, "--constraints-file", tmp_path / "phrases", "--stats-file", tmp_path / "stats.json"]
    out = generate_forked(*speech.arguments("speech_to_text_ext"), *search).stdout
    for number, (_, _, words) in enumerate(rows(out, "H")):
        assert f"w{10 + number} w2" in words and speech_models.TAG not in words
    assert json.loads((tmp_path / "stats.json").read_text())["constraints"] == {"given": 6, "met": 6, "unmet": []}


def test_optimal_ending_finds_scores_no_worse_and_proves_them(speech, tmp_path):
    search = ["--beam", 3, "--batch-size", 4, "--unnormalized", "--stop", "optimal", "--stats-file", tmp_path / "stats.json"]
    ours = rows(generate_forked(*speech.arguments("speech_to_text_ext"), *search).stdout, "H")
    stock = rows(generate_forked(*speech.arguments("speech_to_text"), "--beam", 3, "--batch-size", 4, "--unnormalized").stdout, "H")
    for theirs, found in zip(stock, ours, strict=True):
        assert float(found[1]) >= float(theirs[1]) - 2e-4
    certificates = json.loads((tmp_path / "stats.json").read_text())["certificates"]
    assert certificates["proved"] >= 1 and certificates["proved"] + certificates["open"] == len(ours)


@pytest.mark.parametrize(
    "flags, named",
    [
        (["--softmax", "lexical", "--shortlist-file", "none"], "--softmax lexical"),
        (["--glossary", "none"], "--glossary"),
        (["--print-alignment", "hard"], "--print-alignment"),
        (["--beam", 1, "--decoding", "window", "--draft", "copy"], "--draft copy"),
        (["--beam", 1, "--decoding", "window", "--schedule", "stream"], "--schedule stream"),
    ],
    ids=str,
)
def test_what_needs_words_of_the_source_is_refused(speech, flags, named):
    if speech.tagged:
        return
    done = generate(*speech.arguments("speech_to_text_ext"), *flags)
    assert done.status == 1
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert named in sentence and "leave one of the two out" in sentence


def test_a_line_that_names_no_file_is_one_sentence(speech):
    if speech.tagged:
        return
    done = forked(interactive_main, "fairseq-interactive", *speech.arguments("speech_to_text_ext"), stdin="nowhere.npy\n")
    assert done.status == 1 and "'nowhere.npy' of the input is no file" in done.stderr


def test_the_python_api_says_that_it_takes_text(speech):
    with pytest.raises(UsageError, match="takes lines of text, and --task speech_to_text_ext reads speech"):
        checkpoint = str(speech.root / "saved" / "checkpoint_last.pt")
        Translator(checkpoint, str(speech.root), task="speech_to_text_ext", config_yaml="config.yaml", cpu=True)

"""Targets of Moses's tokenizer and subword-nmt, through the command: placed terms leave the other
words as they are, and entities are the characters that a reader sees."""

import re
import tempfile
from pathlib import Path

import echo_model
import pytest
from forked import interactive
from sizes import drawn

TEXT = (
    'Die Katze hat 20 m² und ½ Liter. Er sagt: "R&D ist [fast] fertig" und geht. '
    "Der Hund – sagte sie – schläft... Es ist 5 % < 10 % | ﬁn. Die Frau-Katze 'rennt' 3×4 ①. "
) * 3
ENTITIES = 'Er sagt: "R&D ist [fast] fertig" und < 10 %. '


@pytest.fixture(scope="module")
def echo(tmp_path_factory):
    return echo_model.write(tmp_path_factory.mktemp("echo"), TEXT + ENTITIES * 9 + "/", pairs=60)


def translated(flags, text: str, *more) -> list[str]:
    done = interactive(*flags, "--beam", 4, "--buffer-size", 10, *more, stdin=text)
    assert done.status == 0, done.stderr[-1500:]
    return re.findall(r"^D-\d+\t\S+\t(.*)$", done.stdout, re.MULTILINE)


def written(phrase: str) -> str:
    """A file with a phrase."""
    path = Path(tempfile.mkstemp()[1])
    path.write_text(phrase + "\n", encoding="utf-8")
    return str(path)


LINES = [
    "Die Katze hat 20 m² und ½ Liter.",
    'Er sagt: "R&D ist [fast] fertig" und Katze geht.',
    "Der Hund – sagte sie – schläft... Katze",
    "Katze ist 5 % < 10 % | ﬁn.",
    "Die Katze 'rennt' 3×4 ①.",
]


@drawn(1)
@pytest.mark.parametrize("beam", [1, 4])
def test_a_placed_term_leaves_all_other_words_as_they_are(echo, tmp_path, beam):
    """Also those that Unicode's compatibility form would write in another way."""
    (tmp_path / "g.tsv").write_text("Katze\tdas Tier\n", encoding="utf-8")
    plain = translated(echo, "\n".join(LINES) + "\n", "--beam", beam)
    assert "²" in plain[0] and "½" in plain[0] and "ﬁn" in plain[3] and "①" in plain[4]
    flags = ["--glossary", tmp_path / "g.tsv", "--constraint-case", "initial", "--beam", beam]
    placed = translated(echo, "\n".join(LINES) + "\n", *flags)
    wanted = [re.sub("^Katze", "Das Tier", line) for line in plain]
    assert placed == [line.replace("Katze", "das Tier") for line in wanted]


def test_it_stands_next_to_an_unknown_word_too(echo, tmp_path):
    """Which is <unk> in the draft already, and no reason to search the sentence again."""
    (tmp_path / "g.tsv").write_text("Katze\tdas Tier\n국\tein Ding\n", encoding="utf-8")
    text = "Die Katze hat 한 Liter.\nDie 국 ist fertig.\n"
    plain = translated(echo, text)
    assert plain[0] == "Die Katze hat <unk> Liter." and plain[1] == "Die <unk> ist fertig."
    flags = ["--glossary", tmp_path / "g.tsv", "--constraint-case", "initial"]
    placed = translated(echo, text, *flags)
    assert placed == ["Die das Tier hat <unk> Liter.", "Die ein Ding ist fertig."]


@drawn(1)
@pytest.mark.parametrize("target", ["5 %", "½", "l'Eau"])
def test_so_does_a_term_that_the_tokenizer_spaces_in_another_way(echo, tmp_path, target):
    """Moses's text of it is not the term letter by letter: 5%, or its compatibility form."""
    (tmp_path / "g.tsv").write_text(f"Katze\t{target}\n", encoding="utf-8")
    line = "Die Katze hat 20 m² und ﬁn ①."
    (plain,) = translated(echo, f"{line}\n")
    before, after = plain.split("Katze")
    (placed,) = translated(echo, f"{line}\n", "--glossary", tmp_path / "g.tsv")
    assert placed.startswith(before) and placed.endswith(after) and "Katze" not in placed


@drawn(1)
@pytest.mark.parametrize("phrase", ["amp", "quot", "lt", "91"])
def test_the_name_of_an_entity_is_no_word(echo, phrase):
    """A reader sees &, a quotation mark, < and [."""
    (plain,) = translated(echo, f"{ENTITIES}\n")
    assert plain == 'Er sagt: "R & D ist [fast] fertig" und < 10%.'
    (banned,) = translated(echo, f"{ENTITIES}\n", "--avoid-file", written(phrase))
    assert banned == plain
    (required,) = translated(echo, f"{ENTITIES}\t{phrase}\n", "--constraints")
    assert re.search(rf"(?<!\w){phrase}(?!\w)", required)


def test_a_character_that_is_written_as_an_entity_is_banned_by_itself(echo):
    (banned,) = translated(echo, f"{ENTITIES}\n", "--avoid-file", written('"'))
    assert '"' not in banned


def test_the_separator_of_the_segmentation_is_the_flag_s(tmp_path):
    """A piece that ends a word is no word."""
    flags = echo_model.write(tmp_path / "model", TEXT, separator="##")
    (plain,) = translated(flags, "Die Katze hat Abeq.\n")
    assert plain == "Die Katze hat Abeq."
    assert translated(flags, plain + "\n", "--avoid-file", written("q")) == [plain]
    assert translated(flags, plain + "\n", "--avoid-file", written("Abeq")) != [plain]


@drawn(1)
@pytest.mark.parametrize("symbol", ["</s>", "<s>", "Tier </s>"])
def test_a_symbol_is_no_target_of_a_term(echo, tmp_path, symbol):
    """Although the dictionary has its letters: the line is left out when the file is read."""
    (tmp_path / "g.tsv").write_text(f"Katze\t{symbol}\nHund\tdas Tier\n", encoding="utf-8")
    lines = "Die Katze hat 5 Liter.\nDie Hund hat 5 Liter.\n"
    flags = ["--beam", 4, "--buffer-size", 10, "--glossary", tmp_path / "g.tsv"]
    done = interactive(*echo, *flags, stdin=lines)
    found = re.findall(r"^D-\d+\t\S+\t(.*)$", done.stdout, re.MULTILINE)
    assert (done.status, found) == (0, ["Die Katze hat 5 Liter.", "Die das Tier hat 5 Liter."])
    assert re.search(r"in line 1 of .*a symbol that no translation holds.*left out", done.stderr)
    strict = interactive(*echo, *flags, "--strict", stdin=lines)
    assert strict.status == 1 and not re.search("^D-", strict.stdout, re.MULTILINE)

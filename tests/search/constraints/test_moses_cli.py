"""Targets of Moses's tokenizer and subword-nmt, through the command: placed terms leave the other
words as they are, and entities are the characters that a reader sees."""

import re
import tempfile
from pathlib import Path

import pytest
from forked import interactive
from sizes import drawn

PLUG = """
import torch
from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel, FairseqIncrementalDecoder
from fairseq.models import register_model, register_model_architecture


def following(tokens, written):
    # what stands in the source behind the last tokens that were written; None where they do not
    # stand there
    for n in range(min(len(written), 4), 0, -1):
        for place in range(len(tokens) - n):
            if tokens[place : place + n] == written[-n:]:
                return tokens[place + n]
    return None


class Reader(FairseqEncoder):
    def forward(self, src_tokens, src_lengths=None, **more):
        return {"tokens": src_tokens}

    def reorder_encoder_out(self, encoder_out, new_order):
        return {"tokens": encoder_out["tokens"].index_select(0, new_order)}

    def max_positions(self):
        return 500


class Writer(FairseqIncrementalDecoder):
    def __init__(self, dictionary):
        super().__init__(dictionary)
        self.sure = torch.nn.Parameter(torch.tensor(SURE))

    def forward(self, prev_output_tokens, encoder_out=None, incremental_state=None, **more):
        source = encoder_out["tokens"]
        pad, eos = self.dictionary.pad(), self.dictionary.eos()
        out = torch.zeros(*prev_output_tokens.shape, len(self.dictionary))
        out[..., : self.dictionary.nspecial] = -1.0  # beams end with the source
        for row, tokens in enumerate(source.tolist()):
            tokens = [eos, *(token for token in tokens if token != pad)]
            written = prev_output_tokens[row].tolist()
            for place in range(len(written))[-1 if incremental_state is not None else 0 :]:
                found = following(tokens, written[: place + 1])
                if found is not None:
                    out[row, place, found] = 1.0
        out = out * self.sure
        return (out[:, -1:] if incremental_state is not None else out), {"attn": [None]}

    def max_positions(self):
        return 500


@register_model("echo")
class Echo(FairseqEncoderDecoderModel):
    @classmethod
    def build_model(cls, args, task):
        return cls(Reader(task.source_dictionary), Writer(task.target_dictionary))


@register_model_architecture("echo", "echo_base")
def base(args):
    pass
"""


def write(
    folder: Path, text: str, pairs: int = 30, sure: float = 12.0, separator: str = "@@"
) -> list[str]:
    """The model for a text, as Moses's tokenizer and subword-nmt cut it. Returns flags of
    fairseq-interactive that name it. pairs: of the codes; sure: logit of the source's token."""
    from argparse import Namespace

    import sacremoses
    import torch
    from fairseq.data import Dictionary
    from subword_nmt.learn_bpe import learn_bpe

    folder.mkdir(exist_ok=True)
    words = sacremoses.MosesTokenizer("de").tokenize(text, aggressive_dash_splits=True)
    codes = folder / "codes"
    with open(codes, "w", encoding="utf-8") as out:
        learn_bpe([" ".join(words)], out, pairs)
    symbols = Dictionary()
    for character in sorted({*"".join(words), *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUV"}):
        symbols.add_symbol(character)
        symbols.add_symbol(f"{character}{separator}")
    for line in codes.read_text(encoding="utf-8").splitlines()[1:]:
        pair = "".join(line.split())
        symbols.add_symbol(pair.removesuffix("</w>"))
        symbols.add_symbol(f"{pair.removesuffix('</w>')}{separator}")
    for entity in ("&amp;", "&quot;", "&apos;", "&#91;", "&#93;", "&#124;", "&lt;", "&gt;"):
        symbols.add_symbol(entity)
    for language in ("de", "en"):
        symbols.save(str(folder / f"dict.{language}.txt"))
    plug = folder / "echo"
    plug.mkdir()
    (plug / "__init__.py").write_text(PLUG.replace("SURE", str(sure)), encoding="utf-8")
    args = Namespace(
        arch="echo_base",
        task="translation",
        criterion="cross_entropy",
        source_lang="de",
        target_lang="en",
        data=str(folder),
    )
    state = {"decoder.sure": torch.tensor(sure)}
    history = [{"criterion_name": "CrossEntropyCriterion", "best_loss": 1.0, "num_updates": 1}]
    extra = {"epoch": 1, "train_iterator": {"epoch": 1}}
    saved = {"args": args, "model": state, "extra_state": extra, "optimizer_history": history}
    torch.save(saved, folder / "checkpoint.pt")
    return [
        str(folder),
        *("--path", str(folder / "checkpoint.pt"), "--user-dir", str(plug), "--cpu"),
        *("-s", "de", "-t", "en", "--tokenizer", "moses", "--bpe", "subword_nmt"),
        *("--bpe-codes", str(codes), "--bpe-separator", separator, "--task", "translation_ext"),
    ]


TEXT = (
    'Die Katze hat 20 m² und ½ Liter. Er sagt: "R&D ist [fast] fertig" und geht. '
    "Der Hund – sagte sie – schläft... Es ist 5 % < 10 % | ﬁn. Die Frau-Katze 'rennt' 3×4 ①. "
) * 3
ENTITIES = 'Er sagt: "R&D ist [fast] fertig" und < 10 %. '


@pytest.fixture(scope="module")
def echo(tmp_path_factory):
    return write(tmp_path_factory.mktemp("echo"), TEXT + ENTITIES * 9 + "/", pairs=60)


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
    flags = write(tmp_path / "model", TEXT, separator="##")
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

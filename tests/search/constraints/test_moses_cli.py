"""Targets of Moses's tokenizer and subword-nmt, through the command: placed terms leave the other
words as they are, and entities are the characters that a reader sees."""

import re
from argparse import Namespace
from pathlib import Path

import pytest
import sacremoses
import torch
from fairseq.data import Dictionary
from forked import interactive, interactive_forked
from search.constraints.test_placement import glossary
from sizes import drawn
from subword_nmt.learn_bpe import learn_bpe

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
        self.sure = torch.nn.Parameter(torch.tensor(12.0))

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


def write(folder: Path, text: str, separator: str = "@@") -> list[str]:
    """The model for a text, as Moses's tokenizer and subword-nmt cut it. Returns flags of
    fairseq-interactive that name it."""
    folder.mkdir(exist_ok=True)
    plug, codes = folder / "echo", folder / "codes"
    words = sacremoses.MosesTokenizer("de").tokenize(text, aggressive_dash_splits=True)
    with open(codes, "w", encoding="utf-8") as out:
        learn_bpe([" ".join(words)], out, 60)
    pairs = map(str.split, codes.read_text(encoding="utf-8").splitlines()[1:])
    pieces = sorted({*"".join(words), *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUV"})
    pieces += ["".join(pair).removesuffix("</w>") for pair in pairs]
    entities = "&amp; &quot; &apos; &#91; &#93; &#124; &lt; &gt;".split()
    symbols = Dictionary()
    for symbol in [*(each for piece in pieces for each in (piece, piece + separator)), *entities]:
        symbols.add_symbol(symbol)
    for language in ("de", "en"):
        symbols.save(str(folder / f"dict.{language}.txt"))
    plug.mkdir()
    (plug / "__init__.py").write_text(PLUG, encoding="utf-8")
    names = dict(arch="echo_base", task="translation", criterion="cross_entropy", data=str(folder))
    saved = {
        "args": Namespace(**names, source_lang="de", target_lang="en"),
        "model": {"decoder.sure": torch.tensor(12.0)},
        "extra_state": {"epoch": 1, "train_iterator": {"epoch": 1}},
        "optimizer_history": [
            {"criterion_name": "CrossEntropyCriterion", "best_loss": 1.0, "num_updates": 1}
        ],
    }
    torch.save(saved, folder / "checkpoint.pt")
    return [
        str(folder),
        *("--path", str(folder / "checkpoint.pt"), "--user-dir", str(plug), "--cpu"),
        *("-s", "de", "-t", "en", "--tokenizer", "moses", "--bpe", "subword_nmt"),
        *("--bpe-codes", str(codes), "--bpe-separator", separator, "--task", "translation_ext"),
        *("--beam", "4", "--buffer-size", "10"),
    ]


TEXT = (
    'Die Katze hat 20 m² und ½ Liter. Er sagt: "R&D ist [fast] fertig" und geht. '
    "Der Hund – sagte sie – schläft... Es ist 5 % < 10 % | ﬁn. Die Frau-Katze 'rennt' 3×4 ①. "
) * 3
ENTITIES = 'Er sagt: "R&D ist [fast] fertig" und < 10 %. '


@pytest.fixture(scope="module")
def echo(tmp_path_factory):
    return write(tmp_path_factory.mktemp("echo"), TEXT + ENTITIES * 9 + "/")


def translated(flags, text: str, *more) -> list[str]:
    out = interactive_forked(text + "\n", *flags, *more).stdout
    return re.findall(r"^D-\d+\t\S+\t(.*)$", out, re.MULTILINE)


def banned(flags, text: str, folder: Path, phrase: str) -> str:
    """The text's translation without a phrase."""
    (folder / "banned").write_text(phrase + "\n", encoding="utf-8")
    return translated(flags, text, "--avoid-file", folder / "banned")[0]


LINES = [
    "Die Katze hat 20 m² und ½ Liter.",
    'Er sagt: "R&D ist [fast] fertig" und Katze geht.',
    "Der Hund – sagte sie – schläft... Katze",
    "Katze ist 5 % < 10 % | ﬁn.",
    "Die Katze 'rennt' 3×4 ①.",
]


INITIAL = ("--constraint-case", "initial")


@drawn(1)
@pytest.mark.parametrize("beam", [1, 4])
def test_a_placed_term_leaves_all_other_words_as_they_are(echo, tmp_path, beam):
    """Also those that Unicode's compatibility form would write in another way."""
    terms, text = glossary(tmp_path, {"Katze": "das Tier"}), "\n".join(LINES)
    plain = translated(echo, text, "--beam", beam)
    assert "²" in plain[0] and "½" in plain[0] and "ﬁn" in plain[3] and "①" in plain[4]
    placed = translated(echo, text, "--glossary", terms, *INITIAL, "--beam", beam)
    wanted = [re.sub("^Katze", "Das Tier", line) for line in plain]
    assert placed == [line.replace("Katze", "das Tier") for line in wanted]


def test_it_stands_next_to_an_unknown_word_too(echo, tmp_path):
    """Which is <unk> in the draft already, and no reason to search the sentence again."""
    terms = glossary(tmp_path, {"Katze": "das Tier", "국": "ein Ding"})
    text = "Die Katze hat 한 Liter.\nDie 국 ist fertig."
    assert translated(echo, text) == ["Die Katze hat <unk> Liter.", "Die <unk> ist fertig."]
    placed = translated(echo, text, "--glossary", terms, *INITIAL)
    assert placed == ["Die das Tier hat <unk> Liter.", "Die ein Ding ist fertig."]


@drawn(1)
@pytest.mark.parametrize("target", ["5 %", "½", "l'Eau"])
def test_so_does_a_term_that_the_tokenizer_spaces_in_another_way(echo, tmp_path, target):
    """Moses's text of it is not the term letter by letter: 5%, or its compatibility form."""
    line = "Die Katze hat 20 m² und ﬁn ①."
    before, after = translated(echo, line)[0].split("Katze")
    (placed,) = translated(echo, line, "--glossary", glossary(tmp_path, {"Katze": target}))
    assert placed.startswith(before) and placed.endswith(after) and "Katze" not in placed


@drawn(1)
@pytest.mark.parametrize("phrase", ["amp", "quot", "lt", "91"])
def test_the_name_of_an_entity_is_no_word_and_its_character_is(echo, tmp_path, phrase):
    """A reader sees &, a quotation mark, < and [."""
    (plain,) = translated(echo, ENTITIES)
    assert plain == 'Er sagt: "R & D ist [fast] fertig" und < 10%.'
    assert banned(echo, ENTITIES, tmp_path, phrase) == plain
    (required,) = translated(echo, f"{ENTITIES}\t{phrase}", "--constraints")
    assert re.search(rf"(?<!\w){phrase}(?!\w)", required)
    assert '"' not in banned(echo, ENTITIES, tmp_path, '"')


def test_the_separator_of_the_segmentation_is_the_flag_s(tmp_path):
    """A piece that ends a word is no word."""
    flags, plain = write(tmp_path / "model", TEXT, separator="##"), "Die Katze hat Abeq."
    assert translated(flags, plain) == [plain] == [banned(flags, plain, tmp_path, "q")]
    assert banned(flags, plain, tmp_path, "Abeq") != plain


@drawn(1)
@pytest.mark.parametrize("symbol", ["</s>", "<s>", "Tier </s>"])
def test_a_symbol_is_no_target_of_a_term(echo, tmp_path, symbol):
    """Although the dictionary has its letters: the line is left out when the file is read."""
    terms = glossary(tmp_path, {"Katze": symbol, "Hund": "das Tier"})
    lines = "Die Katze hat 5 Liter.\nDie Hund hat 5 Liter.\n"
    done = interactive(*echo, "--glossary", terms, stdin=lines)
    found = re.findall(r"^D-\d+\t\S+\t(.*)$", done.stdout, re.MULTILINE)
    assert (done.status, found) == (0, ["Die Katze hat 5 Liter.", "Die das Tier hat 5 Liter."])
    assert re.search(r"in line 1 of .*a symbol that no translation holds.*left out", done.stderr)
    assert interactive(*echo, "--glossary", terms, "--strict", stdin=lines).error()

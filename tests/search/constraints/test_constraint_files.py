"""Reading constraints: formats, segmentation, and input that must be refused with one sentence."""

import io
import os
import pickle
import random
import re
import threading
from itertools import combinations, pairwise
from types import SimpleNamespace

import pytest
import sentencepiece
import torch
from fairseq.data import Dictionary
from fairseq.data.encoders.byte_bpe import ByteBPE
from fairseq.data.encoders.byte_utils import byte_encode
from fairseq.data.encoders.bytes import Bytes
from fairseq.data.encoders.characters import Characters
from fairseq.data.encoders.gpt2_bpe import GPT2BPE
from fairseq.data.encoders.gpt2_bpe_utils import Encoder, bytes_to_unicode
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE, SentencepieceConfig
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPE, SubwordNMTBPEConfig
from hypothesis import given
from hypothesis import strategies as st
from required_phrases import prefix_of
from subword_nmt.learn_bpe import learn_bpe

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import Lines
from fairseq_ext.search.constraints import sources
from fairseq_ext.search.constraints.glossary import GlossaryOptions
from fairseq_ext.search.constraints.sources import ConstraintSource, Matching
from fairseq_ext.search.phrases.segmenter import Segmenter

CORPUS = [
    "the red house",
    "a small red dog sees the house",
    "the dogs see a small house",
    "no dog sees the red houses",
] * 5


def words(text="a b c d e f g h") -> Dictionary:
    dictionary = Dictionary()
    for word in text.split():
        dictionary.add_symbol(word)
    return dictionary


def dictionary_of(bpe, lines=CORPUS) -> Dictionary:
    return words(" ".join(bpe.encode(line) for line in lines))


def ids(dictionary: Dictionary, text: str) -> tuple[int, ...]:
    """As fairseq does it."""
    return tuple(dictionary.encode_line(text, append_eos=False, add_if_not_exist=False).tolist())


@pytest.fixture
def read(tmp_path):
    """read(text, name=..., banned=..., glossary=...) -> ConstraintSource over
    the letters a to h; text None: without a file of constraints."""

    def make(
        content: str | bytes | None = None,
        name="c.txt",
        banned=None,
        glossary=None,
        dictionary=None,
        matching=None,
        **encoders,
    ) -> ConstraintSource:
        def write(name, content):
            if content is None:
                return None
            (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
            return str(tmp_path / name)

        of_glossary = GlossaryOptions(write("glossary", glossary)) if glossary else None
        dictionary = dictionary or words()
        return ConstraintSource(
            write(name, content),
            write("banned", banned),
            of_glossary,
            Segmenter(dictionary, **encoders),
            dictionary,
            matching or Matching(),
        )

    return make


@pytest.mark.parametrize("case, forms", [("any", "man Man MAN"), ("exact", "man")])
def test_a_banned_word_is_banned_in_each_case_that_the_dictionary_has(read, case, forms):
    """Where words are symbols, and no text is read."""
    dictionary = words("man woman Man dog MAN mAn")
    source = read(banned="man\n", dictionary=dictionary, matching=Matching(banned=case))
    assert {*source.common.banned} == {(dictionary.index(form),) for form in forms.split()}


def given_text(source: ConstraintSource, number=0) -> tuple:
    """The phrases of a sentence as text, alternatives joined by a bar."""
    string, any_of = source.segmenter.dictionary.string, source.sentence(number, []).any_of
    return tuple("|".join(map(string, alternatives)) for alternatives in any_of)


# -- formats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "phrases"),
    [
        ("a b\tc", ("a b", "c")),
        ("a", ("a",)),
        ("a\ta", ("a", "a")),
        (" a  b \t c ", ("a b", "c")),
        ("", ()),
        ("  ", ()),
        ("a\r", ("a",)),
        ('{"constraints": [["a", "b"], "c d"]}', ("a b", "c d")),
        ('{"any_of": [["a", "b c"], ["d"]], "constraints": ["e"]}', ("e", "a|b c", "d")),
        ('{"any_of": [["a", ["b", "c"], "a"]]}', ("a|b c",)),
        ("{}", ()),
    ],
)
def test_a_line_is_tab_separated_or_json(read, line, phrases):
    assert given_text(read(f"{line}\n")) == phrases


def test_json_line_with_everything(read):
    found = read(
        '{"constraints": [["a", "b"]], "any_of": [["c", "d e"]], "avoid": ["f", ["g", "h"]], '
        '"prefix": "h a"}'
    ).sentence(0, [])
    assert found.any_of == (((4, 5),), ((6,), (7, 8)))
    assert found.text == ("a b", "c|d e")
    assert found.banned == {(9,): "f", (10, 11): "g h"}
    assert found.prefix == prefix_of((11, 4), "h a")


@pytest.mark.parametrize(
    "line",
    [
        "<s> a b",
        '{"prefix": "a b"}',
        '{"constraints": ["<s> a b"]}',
        '{"prefix": "<s> a b", "constraints": ["<s> a b"]}',
    ],
)
def test_a_phrase_that_starts_with_s_is_a_prefix(read, line):
    found = read(line).sentence(0, [])
    assert found.beginning == (4, 5) and found.any_of == ()


@pytest.mark.parametrize(
    ("name", "content", "json_lines"),
    [
        ("c.txt", '\n{"constraints": []}\n', True),
        ("c.txt", "a\n{}\n", False),
        ("c.jsonl", "\n", True),
        ("c.JSON", "", True),
        ("c.tsv", "{ a\n", False),
    ],
)
def test_the_name_or_the_first_line_says_the_format(read, name, content, json_lines):
    assert (read(content, name).parse is sources.parse_json) == json_lines


def test_the_avoid_file_applies_to_every_sentence(read):
    source = read('{}\n{"avoid": ["a"]}\n', banned="b c\n\n d\nd\n")
    assert tuple(source.sentence(0, []).banned) == ((5, 6), (7,))
    assert list(source.sentence(0, []).banned.values()) == ["b c", "d"]
    assert set(source.sentence(1, []).banned) == {(5, 6), (7,), (4,)}


def test_a_constraint_with_a_banned_phrase_is_unmet_and_so_is_a_term(read):
    line = '{"constraints": ["a b c", "b"], "any_of": [["b c", "d"], ["b c d", "a b c"]]}'
    source = read(line, banned="b c\ng\n", glossary="e\tg\nf\tg|h\n")
    found = source.sentence(0, ids(source.source_text.dictionary, "e f"))
    assert found.text == ("b", "b c|d", "g|h")
    assert found.any_of == (((5,),), ((7,),), ((11,),))
    reason = "conflicts with the banned phrase 'b c'"
    assert found.unmet == (
        ("a b c", reason),
        ("b c d|a b c", reason),
        ("g", "conflicts with the banned phrase 'g'"),
    )


# -- refusals; attack/lines.tsv has those of lines -------------------------------------------------


def test_the_limits_themselves_are_allowed(read):
    assert len(read("\t".join(["a b c d e f g h"] * 64)).sentence(0, []).any_of) == 64


@pytest.mark.parametrize(
    ("banned", "said"),
    [
        (b"a\n\n\xff\n", "line 3 of .*banned is not valid UTF-8"),
        (
            "a\nx\ny\nz\n",
            r"line 2 of .*banned, the phrase 'x' contains the piece 'x'.*\(2 more such lines ",
        ),
    ],
)
def test_bad_banned_lines_are_named_and_counted(read, banned, said):
    with pytest.raises(UsageError, match=said):
        read(banned=banned)


# -- large files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [7, 1 << 20])
@given(st.binary(max_size=40).map(lambda b: b.replace(b"\xef", b"\n")))
def test_lines_are_those_between_line_feeds(tmp_path_factory, block, content):
    path = tmp_path_factory.mktemp("lines") / "f"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fairseq_ext.core.files.BLOCK", block)
        lines = Lines(str(path), "--flag")
    expected = [line.rstrip(b"\n").rstrip(b"\r") for line in io.BytesIO(content)]
    assert len(lines) == len(expected)
    for number, line in enumerate(expected):
        try:
            text = line.decode()
        except UnicodeDecodeError:
            with pytest.raises(UsageError, match=f"line {number + 1} of"):
                lines[number]
        else:
            assert lines[number] == text


def test_a_byte_order_mark_is_dropped(read):
    assert given_text(read(b"\xef\xbb\xbfa\n")) == ("a",)
    assert read(b"\xef\xbb\xbf{}\n").parse is sources.parse_json


def test_a_pipe_can_be_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("a\nb"))
    writer.start()
    assert len(ConstraintSource(str(pipe), None, None, Segmenter(words()), words())) == 2
    writer.join()


def test_a_million_lines_are_not_parsed_before_they_are_requested(read, monkeypatch):
    monkeypatch.setattr(sources, "parse_tabs", lambda line, where: pytest.fail("parsed"))
    source = read("a\tb\n" * 1_000_000)
    source.check_size(1_000_000)


def test_a_source_can_be_sent_to_another_process(read):
    source = pickle.loads(pickle.dumps(read("a\nb\n", banned="c", glossary="a\td\n")))
    assert given_text(source, 1) == ("b",)


# -- segmentation ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spm(tmp_path_factory):
    def train(lines, **options):
        prefix = str(tmp_path_factory.mktemp("spm") / "m")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_prefix=prefix,
            hard_vocab_limit=False,
            minloglevel=2,
            **options,
        )
        return prefix + ".model"

    return train


def sentencepiece_of(model: str) -> SentencepieceBPE:
    return SentencepieceBPE(SentencepieceConfig(sentencepiece_model=model))


@pytest.fixture(scope="module")
def encoders(spm, tmp_path_factory):
    codes = tmp_path_factory.mktemp("codes") / "codes"
    with open(codes, "w") as file:
        learn_bpe(io.StringIO("\n".join(CORPUS)), file, 20)
    gpt2 = object.__new__(GPT2BPE)  # its files come from the net; the encoder is fairseq's
    symbols = list(bytes_to_unicode().values())
    merges = [("Ġ", "r"), ("e", "d"), ("Ġr", "ed"), ("r", "ed"), ("h", "o"), ("Ġ", "ho")]
    gpt2.bpe = Encoder({s: i for i, s in enumerate([*symbols, *map("".join, merges)])}, merges)
    byte_bpe = object.__new__(ByteBPE)
    # spaces count here: a model whose text gets no space in front
    spaces = dict(add_dummy_prefix=False, remove_extra_whitespaces=False)
    lines = map(byte_encode, CORPUS)
    byte_model = spm(lines, model_type="bpe", vocab_size=60, **spaces)
    byte_bpe.sp = sentencepiece.SentencePieceProcessor(model_file=byte_model)
    return {
        "sentencepiece": sentencepiece_of(spm(CORPUS, vocab_size=40)),
        "subword_nmt": SubwordNMTBPE(SubwordNMTBPEConfig(bpe_codes=str(codes))),
        "gpt2": gpt2,
        "byte_bpe": byte_bpe,
        "bytes": Bytes(),
        "characters": Characters(),
    }


each_encoder = pytest.mark.parametrize(
    "name", ["sentencepiece", "subword_nmt", "gpt2", "byte_bpe", "bytes", "characters"]
)


@each_encoder
@pytest.mark.parametrize("phrase", ["red", "red house", "small house", "dogs"])
def test_a_phrase_is_segmented_as_it_is_inside_a_sentence(encoders, name, phrase):
    """Byte-level BPE writes it in two ways, of which one may be a part of the other."""
    bpe = encoders[name]
    dictionary = dictionary_of(bpe, [*CORPUS, phrase])
    first, spaced = (ids(dictionary, bpe.encode(text)) for text in (phrase, f" {phrase}"))
    has_two = name in ("gpt2", "byte_bpe") and spaced[-len(first) :] != first
    forms = Segmenter(dictionary, None, bpe).phrases(phrase, "here")
    assert forms == ((first, spaced) if has_two else (first,))
    assert has_two or phrase != "red house" or name not in ("gpt2", "byte_bpe")
    for text, form in zip((f"{phrase} no", f"the {phrase} no")[-len(forms) :], forms, strict=True):
        sentence = ids(dictionary, bpe.encode(text))
        assert any(sentence[i : i + len(form)] == form for i in range(len(sentence)))


@pytest.mark.parametrize(
    "settings",
    [{}, {"byte_fallback": True, "vocab_size": 320}, {"normalization_rule_name": "nmt_nfkc_cf"}],
    ids=str,
)
@pytest.mark.parametrize("name", ["sentencepiece", "subword_nmt"])
@pytest.mark.parametrize(
    "text", ["the red house", "  The  REDﬁ½ x ", "Größe ☃ 3.5", "‖ a ‖b‖", "▁a ▁", ""]
)
def test_a_normalised_text_is_what_its_pieces_read_as(encoders, spm, name, text, settings):
    bpe = encoders[name]
    if settings and name == "sentencepiece":
        bpe = sentencepiece_of(spm(CORPUS, **{"vocab_size": 40} | settings))
    segmenter = Segmenter(dictionary_of(bpe), None, bpe)
    is_read = name == "sentencepiece" and "byte_fallback" not in settings
    assert (segmenter.sentencepiece is not None) == is_read
    assert segmenter.normalised(text) == segmenter.round_trip(text)


@pytest.mark.parametrize("mark", ["", "@@"])
def test_a_piece_that_is_not_known_is_cut_into_the_fewest_that_are(mark):
    """Against all ways to cut it; the time grows with the length of the piece,
    not with its square."""
    draw, body = random.Random(5), "abcabcab"
    known = [*(part + mark for part in ("abc", "c", "a", "ab", "bca")), "b", "cab"]
    possible = []
    for cut in (cut for n in range(8) for cut in combinations(range(1, 8), n)):
        *parts, last = (body[i:j] for i, j in pairwise((0, *cut, len(body))))
        possible.append([*(part + mark for part in parts), last])
    for _ in range(50):
        chosen = words(" ".join(draw.sample(known, draw.randint(3, len(known)))))
        segmenter = Segmenter(chosen)
        ways = [parts for parts in possible if all(map(segmenter.has_piece, parts))] or [[body]]
        found = segmenter.split_minimally(body, mark)
        assert found in ways and len(found) == min(map(len, ways))
    requested = []
    segmenter.has_piece = lambda piece: bool(requested.append(piece))
    segmenter.split_minimally("[" * 10000, mark)
    assert len(requested) < 10 * 10000


def test_both_forms_are_alternatives_and_both_are_banned(encoders, read):
    bpe = encoders["gpt2"]
    dictionary = dictionary_of(bpe, [*CORPUS, "red", "house"])
    options = dict(dictionary=dictionary, bpe=bpe)
    forms = Segmenter(dictionary, None, bpe).phrases("red", "here")
    found = read("red", banned="house\n", **options).sentence(0, [])
    assert found.any_of == (forms,) and found.text == ("red",)
    assert list(found.banned.values()) == ["house", "house"]
    assert read("red house", banned="house\n", **options).sentence(0, []).unmet[0][0] == "red house"
    # a prefix stands at the start only, and a form that the dictionary cannot write is none
    spaced = words(bpe.encode("the red house"))
    assert Segmenter(spaced, None, bpe).phrases("red", "") == (ids(spaced, bpe.encode(" red")),)
    assert read('{"prefix": "red"}', **options).sentence(0, []).beginning == forms[0]


@pytest.mark.parametrize(
    ("name", "phrase"),
    [
        ("sentencepiece", "red žába"),
        ("subword_nmt", "red žu"),
        ("bytes", "red Q"),
        ("characters", "žž"),
    ],
)
def test_a_phrase_outside_the_dictionary_is_unmet_and_its_piece_named(encoders, read, name, phrase):
    bpe = encoders[name]
    dictionary = dictionary_of(bpe)
    source = read(f"\n{phrase}\tred", dictionary=dictionary, bpe=bpe)
    found = source.sentence(1, [])
    (text, reason), pieces = found.unmet[0], bpe.encode(phrase).split()
    assert text == phrase and found.text == ("red",) and len(found.unmet) == len(found.any_of) == 1
    named = re.search("contains the piece '(.*)', which the target", reason)
    assert named and named[1] == next(p for p in pieces if p not in dictionary)
    assert source.segmenter.phrases("red", "") == found.any_of[0]
    with pytest.raises(UsageError, match="in a prefix, the phrase .* contains the piece"):
        source.segmenter.phrases(phrase, "a prefix")
    assert source.banned_forms(phrase, "x") == {}  # what cannot be written never appears


@pytest.mark.parametrize("name", ["sentencepiece", "subword_nmt"])
def test_a_word_whose_piece_the_dictionary_lacks_is_written_in_others(encoders, name):
    """The dictionary without one piece of a word, and with its letters."""
    bpe = encoders[name]
    whole = bpe.encode("red house").split()
    longest = max(whole, key=len)
    start = longest.startswith("▁")
    first, *others = longest[: 1 + start], *longest.removesuffix("@@")[1 + start :]
    letters, mark = [first, *others], "@@" * (name == "subword_nmt")
    marked = [*(letter + mark for letter in letters[:-1]), letters[-1]]
    dictionary = words(" ".join(piece for piece in [*whole, *marked] if piece != longest))
    segmenter = Segmenter(dictionary, None, bpe)
    assert longest not in dictionary and segmenter.writable("red house")
    (form,) = segmenter.phrases("red house", "")
    assert dictionary.unk() not in form and segmenter.decode(dictionary.string(form)) == "red house"


def test_the_tokenizer_comes_before_the_bpe(encoders, read):
    bpe = encoders["subword_nmt"]
    dictionary = dictionary_of(bpe, [*CORPUS, ", ."])
    marks_alone = SimpleNamespace(
        encode=lambda text: " ".join(re.findall(r"\w+|\S", text)),
        decode=lambda text: re.sub(r" (\W)", r"\1", text),
    )
    source = read("dog,red", dictionary=dictionary, tokenizer=marks_alone, bpe=bpe)
    assert source.sentence(0, []).any_of == ((ids(dictionary, bpe.encode("dog , red")),),)


def test_without_encoders_text_is_taken_as_segmented(read):
    source = read("ho@@ use\nred", dictionary=words("ho@@ use"))
    assert source.sentence(0, []).any_of == (((4, 5),),)
    with pytest.raises(UsageError, match="; without --bpe and --tokenizer, phrases are taken as s"):
        source.sentence(1, [])


def test_a_phrase_of_nothing_but_space_marks_is_refused(encoders, read):
    bpe = encoders["sentencepiece"]
    with pytest.raises(UsageError, match="is nothing once it is segmented"):
        read("\u200b", dictionary=dictionary_of(bpe), bpe=bpe).sentence(0, [])


@each_encoder
def test_the_source_text_is_recovered_for_the_glossary(encoders, read, name):
    bpe = encoders[name]
    dictionary = dictionary_of(bpe, [*CORPUS, "house"])
    source = read(glossary="small house\tred\ndog\tno\n", dictionary=dictionary, bpe=bpe)
    text = bpe.encode("the dogs see a small house")
    tokens = dictionary.encode_line(text, add_if_not_exist=False)
    padded = torch.cat([torch.full((3,), dictionary.pad()), tokens])
    for form in (tokens, padded, tokens.tolist()):
        assert source.sentence(0, form).text == ("red",)


# -- file and glossary together --------------------------------------------------------------------


def test_glossary_terms_come_behind_the_lines_own(read):
    source = read("h", glossary="a\tg\nb\tf|e e\n")
    found = source.sentence(0, ids(source.source_text.dictionary, "b c a a"))
    assert found.any_of == (((11,),), ((9,), (8, 8)), ((10,),))
    assert found.text == ("h", "f|e e", "g")


def test_terms_beyond_the_limits_are_unmet_and_the_corpus_goes_on(read):
    terms = [f"w{i}" for i in range(70)]
    dictionary = words(" ".join(terms))
    source = read(glossary="".join(f"{t}\t{t}\n" for t in terms), dictionary=dictionary)
    found = source.sentence(0, ids(dictionary, " ".join(terms)))
    reason = "more than 64 phrases or 512 tokens in the sentence"
    assert found.text == tuple(terms[:64])
    assert found.unmet == tuple((term, reason) for term in terms[64:])


@pytest.mark.parametrize(("text", "warned"), [("\n", True), ("a\n", False)], ids=str)
def test_a_file_without_phrases_is_warned_of(text, warned, read, caplog):
    read(banned=text)
    assert ("banned has no phrases, so nothing is banned" in caplog.text) == warned

"""`--glossary-documents` through the commands and in Python: what the first line with a term has
is what the document keeps."""

import itertools
import shutil

import demo_model
import pytest
import sentencepiece
from demo_model import MODEL as DEMO
from demo_model import OURS
from forked import generate, interactive
from sizes import drawn, part_of

from fairseq_ext.core.words import words_of
from fairseq_ext.search.constraints.documents import Documents
from fairseq_ext.translator import Translator

FREE = {  # source lines, and the form that each translation has where it may choose
    "Das Schloss ist sehr alt.": "castle",
    "Das Schloss an der Tür ist kaputt.": "lock",
    "Alle Schlösser sind alt.": "locks",
}
FIRST, SECOND, PLURAL = FREE
TEXT = [FIRST, SECOND, "Die Lehrerin öffnet das Fenster.", PLURAL, "", PLURAL, FIRST]
NAMES = ["a", "b", "b", "b", "-", "a", "b"]
KEPT = {
    "blank": ["castle", "castle", None, "castles", "", "locks", "lock"],
    "named": ["castle", "lock", None, "locks", "", "castles", "lock"],
}
FLAGS = (*OURS, "--glossary-match", "lemma")


def glossary(folder, forms: str):
    path = folder / f"{forms.replace('|', '.')}.tsv"
    path.write_text(f"Schloss\t{forms}\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Raw data of the text, a file of documents and a glossary of two translations."""
    place = tmp_path_factory.mktemp("documents")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(DEMO / "spm.model"))
    for language in ("de", "en"):
        shutil.copy(DEMO / f"dict.{language}.txt", place)
        pieces = "".join(" ".join(processor.encode(line, out_type=str)) + "\n" for line in TEXT)
        (place / f"test.de-en.{language}").write_text(pieces, encoding="utf-8")
    (place / "text").write_text("".join(line + "\n" for line in TEXT), encoding="utf-8")
    (place / "named").write_text("".join(name + "\n" for name in NAMES), encoding="utf-8")
    glossary(place, "lock|locks|castle|castles")
    return place


def options(folder, documents: str) -> list:
    where = documents if documents == "blank" else folder / documents
    return ["--glossary", folder / "lock.locks.castle.castles.tsv", "--glossary-documents", where]


def texts(done) -> list[str]:
    """The best translations in the order of the lines."""
    assert done.status == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.split("\n") if line.startswith("D-")]
    return [text for _, _, text in sorted(lines, key=lambda line: int(line[0][2:]))]


@pytest.fixture(scope="module")
def expected(folder) -> dict[str, list[str]]:
    """Each line's translation with a glossary of the one translation that its document keeps.

    What the first line of a document has is what it has where it is alone.
    """
    translate = {}
    for forms in ("lock|locks|castle|castles", "lock|locks", "castle|castles"):
        made = Translator(
            **demo_model.FLAGS, glossary_match="lemma", glossary=glossary(folder, forms)
        )
        translate[forms] = dict(
            zip(TEXT, [best[0].text for best in made.translate(TEXT)], strict=True)
        )
    for line, form in FREE.items():
        assert form in words_of(translate["lock|locks|castle|castles"][line])

    def text(line, form):
        found = translate[
            "lock|locks|castle|castles"
            if form is None
            else "castle|castles"
            if form.startswith("c")
            else "lock|locks"
        ][line]
        assert form is None or form in words_of(found)
        return found

    return {
        name: [text(*each) if each[0] else "" for each in zip(TEXT, kept, strict=True)]
        for name, kept in KEPT.items()
    }


@drawn(1)
@pytest.mark.parametrize("documents", KEPT)
def test_lines_keep_what_the_first_line_of_their_document_has_however_they_are_batched(
    folder, expected, documents
):
    found = [
        texts(
            generate(
                folder,
                "--dataset-impl",
                "raw",
                *FLAGS,
                *options(folder, documents),
                "--batch-size",
                n,
            )
        )
        for n in (9, 1)[: len(part_of(2, 1))]
    ]
    for size, buffer in ((1, 1), (2, 9)):
        how = ["--batch-size", size, "--buffer-size", buffer, "--input", folder / "text"]
        found.append(texts(interactive(DEMO, *FLAGS, *options(folder, documents), *how)))
    for each in found:
        # the empty line is the model's own
        assert each[:4] + each[5:] == expected[documents][:4] + expected[documents][5:]


def test_documents_in_python_over_several_calls_and_with_bad_lines(folder, expected):
    made = Translator(
        **demo_model.FLAGS,
        glossary_match="lemma",
        glossary=folder / "lock.locks.castle.castles.tsv",
        glossary_documents="blank",
    )
    assert [best[0].text for best in made.translate_iter(TEXT, buffer=3)] == expected["blank"]
    # a call is a text
    assert [best[0].text for best in made.translate(TEXT[5:])] == expected["blank"][5:]
    found = made.translate([FIRST, "\udcff", SECOND], errors="return")
    assert [each[0].text for each in (found[0], found[2])] == expected["blank"][:2]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--glossary-documents", "short"],
            "short has 2 lines and the input has 7 sentences: write one line for each",
        ),
        (["--glossary-documents", "none"], "cannot read {folder}/none (No such file or directory)"),
        (
            ["--glossary-documents", "named", "--distributed-world-size", 2],
            "--glossary-documents needs all lines of a document in one run",
        ),
    ],
)
def test_documents_that_cannot_be_reported_are_refused_in_a_sentence(folder, flags, said):
    (folder / "short").write_text("a\nb\n", encoding="utf-8")
    done = generate(folder, "--dataset-impl", "raw", *FLAGS, *options(folder, flags[1]), *flags[2:])
    assert done.status == 1 and said.format(folder=folder) in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(("language", "kept"), [("en", ("Lock", "locks")), ("zh", ("Lock",))])
def test_inflections_stay_where_there_are_lemmas(language, kept):
    documents = Documents("blank", language)
    documents.levels([(0, ["Schloss"]), (1, ["Schloss"])])
    documents.record_form(0, "Schloss", "lock")
    assert documents.forms(1, "Schloss", ("Lock", "locks", "castle")) == kept


@pytest.mark.parametrize("parts", [(6,), (1, 2, 3), (1,) * 6])
def test_every_line_has_a_higher_level_than_those_that_decide_for_it(parts):
    """Over all texts of six lines in which each of two terms stands or not: by hand, what decides
    is the first line with the term."""
    for held in itertools.product(["", "a", "b", "ab"], repeat=6):
        documents, start = Documents("blank", "en"), 0
        for size in parts:
            levels = documents.levels((start + i, list(held[start + i])) for i in range(size))
            for line in range(start, start + size):
                deciding = {next(i for i in range(6) if term in held[i]) for term in held[line]} - {
                    line
                }
                assert levels[line] == max(
                    (levels[i] + 1 for i in deciding if i >= start), default=0
                )
            start += size

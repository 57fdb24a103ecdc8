"""Texts through an engine are what they are through a translator; what comes of their segments is told as the text's."""

import pytest
from serving import FLAGS

from fairseq_ext import Translator, UsageError

TEXT = "Der Patient hat einen Port. Die Ärztin öffnet die Akte {name}.\n\n  Er ist sehr alt (https://a.example/b)!  "


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator(**{**FLAGS, "stop": "count", "stream_width": None, "schedule": None})


def test_a_text_is_what_a_translator_makes_of_it(engine, translator, lines):
    long = " ".join(line.rstrip(".?!") + "," for line in lines * 4)
    page = f"<p title='{lines[2]}'>Er ist <b>sehr</b> alt.<p>{lines[0]} {lines[1]}"
    for text, format in ((TEXT, "text"), (f"{long}\n{lines[3]}", "text"), (page, "html"), ("", "text"), (" !\n", "text")):
        assert engine.submit_text(text, format).result(120).text == translator.translate_text(text, format).text


def test_places_are_of_the_whole_text(engine):
    answer = engine.submit_text(TEXT, terms={"Ärztin": "employee", "Patient": "house"}, align=True, nbest=2).result(60)
    assert [c.phrase for c in answer.constraints] == ["house", "employee"] and len(answer.hypotheses) == 2
    for constraint, source in zip(answer.constraints, ("Patient", "Ärztin"), strict=True):
        (span,), (of_source,) = constraint.spans, constraint.source_spans
        assert answer.text[slice(*span)] == constraint.phrase and TEXT[slice(*of_source)] == source
    words = {TEXT[slice(*a)]: answer.text[slice(*b)] for a, b in answer.hypotheses[0].words}
    assert words["Akte"] in ("chart", "file", "record") and words["alt"] == "old"


def test_partial_results_grow_to_the_text(engine):
    parts = []
    answer = engine.submit_text(TEXT, on_partial=parts.append).result(60)
    assert len(parts) > 2 and all(answer.text.startswith(part.text) for part in parts)
    assert [part.tokens for part in parts] == sorted(part.tokens for part in parts)


def test_one_bad_segment_stays_and_a_text_of_them_is_refused(engine, translator):
    """The engine's search fails at sources of 5 tokens."""
    assert translator.encode("Er ist alt.").numel() == 5
    answer = engine.submit_text("Der Patient hat einen Port. Er ist alt.  Er ist sehr alt.").result(60)
    others = [found[0].text for found in translator.translate(["Der Patient hat einen Port.", "Er ist sehr alt."])]
    assert answer.text == f"{others[0]} Er ist alt.  {others[1]}"
    ((source, reason),) = answer.left
    assert source == "Er ist alt." and "no room for this one" in reason
    with pytest.raises(UsageError, match="a symbol that no translation holds"):
        engine.submit_text("Der Patient hat einen Port. Er ist sehr alt.", avoid=["</s>"]).result(60)
    with pytest.raises(UsageError, match="format must be one of text, html, xml, markdown, not 'pdf'"):
        engine.submit_text("x", "pdf")


def test_a_cancelled_text_leaves_the_engine(engine, lines):
    future = engine.submit_text("\n".join(lines * 30))
    future.cancel()
    assert engine.submit(lines[0]).result(60).text
    assert not engine.pending

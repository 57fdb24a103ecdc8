"""`--glossary-placement align`: a term stands where the translation of its source term stood, and
the report says what is there."""

import gc
import itertools
import json
import re

import demo_model
import models
import pytest
import torch
from demo_model import MODEL, OURS, ROOT, raw_demo
from fairseq.sequence_scorer import SequenceScorer
from forked import generate, interactive
from sizes import drawn, part_of

from fairseq_ext import Translator, UsageError
from fairseq_ext.core.stats import Stats
from fairseq_ext.model.choose import make_decoder
from fairseq_ext.model.stock import FairseqBackend
from fairseq_ext.model.transformer.cache import KeyValues
from fairseq_ext.model.transformer.encoder import FastEncoder
from fairseq_ext.search.constraints.drafts import (
    is_form,
)
from fairseq_ext.search.constraints.forced_decoding import ForcedDecoding
from fairseq_ext.search.constraints.word_alignment import Mention, WordAlignment
from fairseq_ext.search.phrases.function_words import function_words
from fairseq_ext.search.phrases.letter_case import fitted
from fairseq_ext.search.phrases.places import agreeing, edited, edits, fitting, plural_of

SOURCES = (ROOT / "data" / "demo" / "test.de").read_text(encoding="utf-8").splitlines()
SOURCES = SOURCES[: len(part_of(60, 26))]


def translator(**flags) -> Translator:
    return Translator(**demo_model.FLAGS, **flags)


@pytest.fixture(scope="module")
def drafts() -> list[str]:
    return [hypotheses[0].text for hypotheses in translator(beam=4).translate(SOURCES)]


def test_memory_does_not_grow_with_the_texts(tmp_path):
    """A server's worker places terms all day.

    The mask of a block of W rows and b tokens has W x b x W x b floats; 64 of them were kept.
    """
    words = {word: "very" for line in SOURCES for word in line.split()[:1]}
    (tmp_path / "terms.tsv").write_text(
        "".join(f"{word}\t{term}\n" for word, term in words.items()), encoding="utf-8"
    )
    placing = translator(beam=2, glossary=str(tmp_path / "terms.tsv"), glossary_placement="align")

    def kept() -> int:
        gc.collect()
        return sum(
            each.untyped_storage().nbytes()
            for each in gc.get_objects()
            if isinstance(each, torch.Tensor)
        )

    placing.translate(SOURCES[:2])
    before = kept()
    for line in SOURCES:
        placing.translate([line])
    assert kept() - before < 1 << 20


# ---- the text


@pytest.mark.parametrize(
    ("article", "words"),
    [
        ("a", "bandage unit university European one-way house ewe URL UI USB PDF NATO U"),
        ("an", "automobile edifice hour honest heir umbrella uncle onion EU XML API FTP X"),
    ],
)
def test_the_english_article_follows_the_sound(article, words):
    for word in words.split():
        assert fitting("a", word) == fitting("an", word) == article, word


def put(text, terms, english):
    language = "en" if english else "fr"
    cased = [(span, fitted(term, text, span, language)) for span, term in terms]
    return edited(text, edits(text, cased, english))


@pytest.mark.parametrize(
    ("text", "terms", "expected"),
    [
        (
            "A car is in front of a car.",
            [((2, 5), "automobile"), ((23, 26), "edifice")],
            "An automobile is in front of an edifice.",
        ),
        ("Men wait.", [((0, 3), "gentlemen")], "Gentlemen wait."),
        ("It is a car.", [((6, 7), "one"), ((8, 11), "edifice")], "It is one edifice."),
        ("A man sees a car.", [((2, 5), "one gentleman")], "One gentleman sees a car."),
        ("It is a car.", [((8, 11), "the edifice")], "It is the edifice."),
        ("It is a car.", [((8, 11), "one-way edifice")], "It is a one-way edifice."),
        ("By a car.", [((5, 8), "automobiles")], "By automobiles."),
        *(("It is a car.", [((8, 11), one)], f"It is a {one}.") for one in ("lens", "DNS")),
        ("It is a cars park.", [((8, 12), "boats")], "It is a boats park."),
        ("It is a car.", [((7, 7), "old"), ((11, 11), "here")], "It is an old car here."),
        ("in each one house", [((12, 17), "edifice")], "in each edifice"),
        ("in every one", [((9, 12), "edifice")], "in every edifice"),
        ("in just one house", [((12, 17), "edifice")], "in just one edifice"),
    ],
)
def test_a_term_takes_the_place_the_capital_and_the_article(text, terms, expected):
    assert put(text, terms, True) == expected


def test_other_languages_have_no_such_article():
    assert put("Ein Haus", [((4, 8), "Auto")], False) == "Ein Auto"
    assert put("in each one Baum", [((12, 16), "Haus")], False) == "in each one Haus"


@pytest.mark.parametrize(
    ("words", "before", "form"),
    [
        ("building glass bus tennis woman person Hund", "", "edifice"),
        ("buildings women people children firemen teeth boys Cars", "", "edifices"),
        # the word before says it, where the draft's own has no plural: all volume, both software
        ("furniture", "all |Move both the |of these |all of the |twelve ", "edifices"),
        ("furniture", "overall |the |all-round |all is |twenty-one ", "edifice"),
    ],
)
def test_a_term_has_the_number_of_the_word_that_it_replaces(words, before, form):
    for word, each in itertools.product(words.split(), before.split("|")):
        assert agreeing(("edifice", "edifices"), word, each) == (form,), (word, each)
    assert agreeing(("edifice",), "cars") == ("edifice",)
    assert agreeing(("edifice", "edifices"), "") == ("edifice", "edifices")  # inserted


def aligned(
    source: str, draft: str, attention: str, *terms: str, renderings=(), is_noun=False, taken=()
) -> list[str | None]:
    """The words of a draft that stand for source terms (_ joins the words of one).

    attention: for each word of the draft the source word to which its prediction attends, of which
    it gets 0.6, and then the second, 0.3, both as numbers from 0; each word is one token.
    """
    words, spans = source.split(), [found.span() for found in re.finditer(r"\w+", draft)]
    weights = torch.full((len(spans), len(words)), 0.1 / len(words))
    for row, digits in zip(weights, attention.split(), strict=True):
        for share, place in zip((0.6, 0.3), map(int, digits), strict=False):
            row[place] += share
    mentions = []
    for term in terms:
        own = term.split("_")
        start = words.index(own[0])
        places = tuple(range(start, start + len(own)))
        has_function = bool({"in", "die"} & set(own))
        shares = {tuple(phrase.split()): 1 / len(renderings) for phrase in renderings}
        of_term = Mention(places, ("x",), frozenset(places), has_function, shares, is_noun)
        mentions.append(of_term)
    found = WordAlignment(draft, spans, mentions, taken, function_words("en"))
    found.attend_(weights, [(i,) for i in range(len(words))])
    return [span and draft[slice(*span)] for span in found.span_of_mention]


@pytest.mark.parametrize(
    ("draft", "expected"),
    [
        ("How to move our office", None),
        ("It has been moved today", None),
        ("We have moved twelve boxes", None),
        ("Our office is moved today", None),
        ("Go to move by noon", "move"),  # a rendering, and no object behind it
        ("How to ensure before noon", None),  # no rendering
        ("The move is near", "move"),
        ("We move our office", None),
        ("Trucks move our office", "move"),  # not known to be a verb
    ],
)
def test_a_noun_takes_the_place_of_no_verb(draft, expected):
    (verb,) = re.findall(r"\b(?:mov|ens)\w+", draft)
    attention = " ".join("01"[word != verb] for word in draft.split())
    for is_noun, wanted in ((True, expected), (False, verb)):
        given = ("Umzug unser", draft, attention, "Umzug")
        assert aligned(*given, renderings=["move"], is_noun=is_noun) == [wanted]


def test_a_part_of_a_compound_translates_a_mention():
    """ "the service item page": Artikel of "Serviceartikel" translates another word, and "Seite" is
    the strongest word of the page alone."""
    draft, spans = "die Seite Serviceartikel", [(0, 3), (4, 9), (10, 17), (17, 24)]
    weights = torch.tensor([[0.9, 0, 0, 0], [0, 0.3, 0.1, 0.6], [0, 0.5, 0.5, 0], [0, 0.2, 0.8, 0]])
    mention = Mention((1,), ("Dienstleistung",), frozenset({1}))
    for renderings, part in (({("service",): 1.0}, (10, 17)), ({("dienst",): 1.0}, None)):
        mention.renderings = renderings
        found = WordAlignment(draft, spans, [mention])
        found.attend_(weights, [(0,), (1,), (2,), (3,)])
        found.doubtful = {0: True}
        found.take_parts_()
        assert found.parts.get(0) == part


def test_a_verb_stands_for_its_source_in_any_form():
    """The model writes "check" for "prüft" by itself, and "checks" in the sentence."""
    weak = "Heute prüft das Gerät", "today the device checks", "0 2 3 3"
    assert aligned(*weak, "prüft", renderings=("check", "check for")) == ["checks"]
    assert aligned(*weak, "prüft", renderings=("review",)) == [None]


def test_a_term_stands_for_all_words_that_translate_its_source_term():
    boys = "Zwei Fußballspieler rennen", "two soccer players run", "0 12 1 2"
    assert aligned(*boys, "Fußballspieler") == ["soccer players"]
    looks = "Er sieht in die Kamera", "he looks at the camera", "0 1 2 4 4"
    assert aligned(*looks, "in_die_Kamera") == ["at the camera"]
    assert aligned(*looks, "Kamera") == ["camera"]
    slip = "ein fehlender Lieferschein", "a missing packing slip", "2 12 2 2"
    assert aligned(*slip, "Lieferschein") == ["packing slip"]
    login = "die zweistufige Anmeldung", "the two-time sign-in", "2 1 1 2 2"
    assert aligned(*login, "zweistufige_Anmeldung") == ["two-time sign-in"]


def test_no_function_word_makes_place_but_for_a_term_that_has_one_itself():
    shop = "sie sucht in Buchhandlungen", "while searching in", "3 1 2"
    assert aligned(*shop, "Buchhandlungen") == [None]
    assert aligned("ohne ihn", "without him", "0 1", "ohne") == [None]
    assert aligned("ohne ihn", "without him", "0 1", "ohne", renderings=["without"]) == ["without"]
    assert aligned("Hut auf", "a hat on", "0 0 1", "Hut", renderings=["a hat"]) == ["hat"]


def test_the_models_own_renderings_decide():
    crowd = "eine Menschenmenge steht", "a crowd of people stands", "0 1 0 1 2"
    assert aligned(*crowd, "Menschenmenge", renderings=["people", "a crowd"]) == ["crowd"]
    both = "Mann Frau", "person human", "01 01"
    assert aligned(*both, "Frau", renderings=["human"]) == ["human"]


def test_two_mentions_share_no_word_and_none_where_a_term_stands():
    text = "two dogs bark", "0 1 1"
    assert aligned("zwei Hunde", *text, "Hunde", taken=[(4, 8)]) == ["bark"]
    assert aligned("zwei Hunde", *text, "Hunde", taken=[(0, 13)]) == [None]
    assert aligned("Rüde Hündin", "dog dog", "01 10", "Rüde", "Hündin") == ["dog", "dog"]


# ---- the scores


def scorer_of(built, dictionary) -> ForcedDecoding:
    next_to = make_decoder(built)[0].attending_copy()
    return ForcedDecoding(
        next_to or FairseqBackend(built, cached=False),
        next_to is not None,
        dictionary,
        True,
        Stats(),
    )


@drawn(2)
@pytest.mark.parametrize(
    "architectures", [["transformer"], ["transformer", "transformer-tied"], ["lstm"], ["fconv"]]
)
def test_forced_decoding_equals_fairseqs_scorer(architectures):
    """Pairs of all lengths in one call, two of one source, against each pair alone."""
    built = [models.build(name, seed) for seed, name in enumerate(architectures, 1)]
    dictionary = models.dictionary()
    sample = models.batch([3, 7, 5])
    rows = [row[row != dictionary.pad()] for row in sample["net_input"]["src_tokens"]]
    generator = torch.Generator().manual_seed(3)
    targets = [
        [*torch.randint(4, models.WORDS, (n,), generator=generator).tolist(), dictionary.eos()]
        for n in (4, 1, 6, 3)
    ]
    pairs = list(zip((0, 1, 2, 1), targets, strict=True))
    scorer = scorer_of(built, dictionary)
    found = scorer.log_probs(
        scorer.encode([row.tolist() for row in rows], models.DEVICE), pairs, dictionary.eos()
    )
    for (number, target), scores in zip(pairs, found, strict=True):
        expected = fairseqs_scores(built, rows[number].tolist(), target)
        torch.testing.assert_close(scores.double(), expected, rtol=0, atol=1e-5)


def fairseqs_scores(built, source: list[int], target: list[int]) -> torch.Tensor:
    """The log-probabilities of a target by fairseq's scorer."""
    dictionary = models.dictionary()
    inputs = {
        "src_tokens": torch.tensor([source]),
        "src_lengths": torch.tensor([len(source)]),
        "prev_output_tokens": torch.tensor([[dictionary.eos(), *target[:-1]]]),
    }
    alone = {
        "id": torch.tensor([0]),
        "ntokens": len(target),
        "net_input": {name: value.to(models.DEVICE) for name, value in inputs.items()},
        "target": torch.tensor([target], device=models.DEVICE),
    }
    scores = SequenceScorer(dictionary).generate(built, alone)[0][0]["positional_scores"]
    return scores.cpu().double()


def test_what_a_target_shares_with_a_draft_is_not_read_again():
    """Three targets of one draft, each from another token on, twice, and one of a draft that was
    not read: fairseq's scores, from fewer tokens."""
    built = [models.build("transformer", seed) for seed in (1, 2)]
    dictionary = models.dictionary()
    eos = dictionary.eos()
    sources = [
        row[row != dictionary.pad()].tolist()
        for row in models.batch([3, 7, 5])["net_input"]["src_tokens"]
    ]
    drafts = [(1, [5, 6, 7, 8, eos]), (0, [7, 9, eos]), (1, [8, 9, 10, 11, eos])]
    scorer = scorer_of(built, dictionary)
    encoded = scorer.encode(sources, models.DEVICE)
    scorer.attention(encoded, drafts, eos)
    drafts.append((2, [5, eos]))
    targets = [(0, [9, 6, eos], 0), (0, [5, 9, 8, eos], 1), (0, [5, 6, 7, 9, 9, eos], 3)]
    targets += [(1, [7, 9, eos], 3), (2, [8, 9, 4, eos], 2), (3, [5, 9, 9, eos], 1)]
    pairs = [(drafts[draft][0], target) for draft, target, _ in targets]
    expected = [fairseqs_scores(built, sources[i], target) for i, target in pairs]
    known = [each[:n].float() for each, (*_, n) in zip(expected, targets, strict=True)]
    tokens = [drafts[draft][1] for draft, *_ in targets]
    for _ in range(2):
        before = scorer.stats.decoder_positions
        found = scorer.log_probs(encoded, pairs, eos, known, tokens)
        if encoded.lines is not None:
            assert scorer.stats.decoder_positions - before < sum(len(target) for _, target in pairs)
        for scores, each in zip(found, expected, strict=True):
            torch.testing.assert_close(scores.double(), each, rtol=0, atol=1e-5)


def test_attention_is_fairseqs_of_all_layers_on_average():
    """Sources of several lengths in one call, against each alone, a layer at a time."""
    built = [models.build("transformer", seed) for seed in (1, 2)]
    dictionary = models.dictionary()
    eos = dictionary.eos()
    sources = [
        row[row != dictionary.pad()] for row in models.batch([3, 7, 5])["net_input"]["src_tokens"]
    ]
    pairs = [(1, [5, 6, eos]), (0, [7, eos]), (1, [8, 9, 10, 11, eos])]
    scorer = scorer_of(built, dictionary)
    found = scorer.attention(
        scorer.encode([source.tolist() for source in sources], models.DEVICE), pairs, eos
    )
    for (number, target), weights in zip(pairs, found, strict=True):
        expected = []
        for model in built:
            encoded = model.encoder(
                sources[number][None].to(models.DEVICE),
                src_lengths=torch.tensor([len(sources[number])], device=models.DEVICE),
            )
            for layer in range(len(model.decoder.layers)):
                given = torch.tensor([[eos, *target[:-1]]], device=models.DEVICE)
                _, extra = model.decoder.extract_features(
                    given, encoder_out=encoded, alignment_layer=layer
                )
                expected.append(extra["attn"][0][0])
        expected = torch.stack(expected).mean(0).cpu()
        torch.testing.assert_close(weights.cpu(), expected, rtol=0, atol=1e-5)


def test_what_the_search_has_encoded_is_not_encoded_again(monkeypatch):
    """Other sources next to them, another order and another width: the same scores, to the last
    bit, without the encoder and the projection of its output."""
    built = [models.build("transformer", seed) for seed in (1, 2)]
    dictionary, batch = models.dictionary(), models.batch([3, 7, 5])["net_input"]
    sources = [row[row != dictionary.pad()].tolist() for row in batch["src_tokens"]]
    decoder = make_decoder(built)[0]
    scorer = ForcedDecoding(decoder.attending_copy(), True, dictionary, True, Stats())

    def scores(*numbers: int) -> list[torch.Tensor]:
        encoded = scorer.encode([sources[i] for i in numbers], models.DEVICE)
        return scorer.log_probs(
            encoded, [(i, [5, 6, dictionary.eos()]) for i in range(len(numbers))], dictionary.eos()
        )

    expected = scores(2, 0)
    with scorer.keeping([sources[0], sources[2]]):
        inputs = models.on_device({name: batch[name] for name in ("src_tokens", "src_lengths")})
        decoder.admit(inputs)
        monkeypatch.setattr(FastEncoder, "__call__", None)
        with monkeypatch.context() as without_projection:
            without_projection.setattr(KeyValues, "from_encoder_output", None)
            assert all(map(torch.equal, scores(2, 0), expected))
        with pytest.raises(TypeError):  # it was not requested to keep this one
            scores(1)
        scorer.forget([sources[0]])
        with pytest.raises(TypeError):
            scores(2, 0)
        scores(2)
    with pytest.raises(TypeError):
        scores(2)


# ---- the search


def test_the_words_that_a_lexicon_names_are_replaced(drafts, tmp_path):
    """A glossary of words of the drafts: source words with the translation that the draft has, once
    each, from the demo's own list of nouns, and a target that the model would never choose. Where
    the draft has the word, the output is the draft with that word replaced."""
    nouns = (ROOT / "data/demo/nouns.tsv").read_text(encoding="utf-8").splitlines()
    lexicon = [
        (source, target)
        for source, targets in (line.split("\t") for line in nouns)
        for target in targets.split("|")
        if target.isalpha()
    ]
    chosen: dict[str, str] = {}
    cases = []
    for i, (source, draft) in enumerate(zip(SOURCES, drafts, strict=True)):
        for german, english in lexicon:
            once = re.findall(rf"\b{german}\b", source), re.findall(rf"\b{english}\b", draft)
            if all(len(found) == 1 for found in once) and len(source.split()) > 4:
                chosen[german] = english
                cases.append((i, german, english))
    assert len(cases) >= 10
    glossary = tmp_path / "terms.tsv"
    glossary.write_text("".join(f"{german}\tmoonlight\n" for german in chosen), encoding="utf-8")
    found = translator(beam=4, glossary=str(glossary)).translate([SOURCES[i] for i, *_ in cases])
    hits = 0
    for (i, german, english), hypotheses in zip(cases, found, strict=True):
        others = [
            other for other in chosen if other != german and re.search(rf"\b{other}\b", SOURCES[i])
        ]
        hits += (
            bool(others)
            or hypotheses[0].text.lower()
            == re.sub(rf"\b{english}\b", "moonlight", drafts[i]).lower()
        )
        assert "moonlight" in hypotheses[0].text.lower()
    assert hits >= 0.9 * len(cases), (hits, len(cases))


def is_within(words, others):
    """Whether a text has all words of another one in their order."""
    rest = iter(re.findall(r"\w+", others.replace(" an ", " a ")))
    return all(word in rest for word in re.findall(r"\w+", words.replace(" an ", " a ")))


def test_a_narrow_beam_inserts_a_term_that_no_word_translates_and_the_draft_stays(
    tmp_path, monkeypatch
):
    glossary = tmp_path / "terms.tsv"
    first = [max(source.strip(".?!").split(), key=len).strip(",") for source in SOURCES[:8]]
    glossary.write_text(
        "".join(f"{word}\tmoonlight\n" for word in dict.fromkeys(first)), encoding="utf-8"
    )
    # no word is ever found
    monkeypatch.setattr("fairseq_ext.search.constraints.word_alignment.ATTENDED", 2.0)
    monkeypatch.setattr("fairseq_ext.search.constraints.word_alignment.DROP", 1e9)
    found = [
        hypotheses[0]
        for hypotheses in translator(beam=2, glossary=str(glossary)).translate(SOURCES[:8])
    ]
    drafts = translator(beam=2, nbest=2).translate(SOURCES[:8])
    for hypothesis, of in zip(found, drafts, strict=True):
        assert not hypothesis.unmet and "moonlight" in hypothesis.text
        assert any(is_within(draft.text, hypothesis.text) for draft in of)


def test_lists_hold_no_hypothesis_twice_and_every_form_of_the_term(tmp_path):
    """Two drafts that differ in the word whose place the term takes become one; forms
    make others of them."""
    (tmp_path / "terms.tsv").write_text("Ordner\tbinder|file\n", encoding="utf-8")
    (found,) = translator(beam=5, nbest=5, glossary=str(tmp_path / "terms.tsv")).translate(
        ["Die Ärztin öffnet den Ordner."]
    )
    texts = [hypothesis.text for hypothesis in found]
    for nbest in (1, 2, 4):
        (fewer,) = translator(beam=5, nbest=nbest, glossary=str(tmp_path / "terms.tsv")).translate(
            ["Die Ärztin öffnet den Ordner."]
        )
        assert fewer[0].text == texts[0], "the best does not depend on how many are asked for"
    assert len(set(texts)) == len(texts) and {
        "The doctor opens the file.",
        "The doctor opens the binder.",
    } <= set(texts)


def test_the_end_of_a_run_says_what_became_of_the_terms(tmp_path, monkeypatch):
    """In place, inserted where no word of the draft stands for one, unmet, never read; the same in
    the statistics and for `free`."""
    (tmp_path / "terms.tsv").write_text(
        "Angebot\tmoonlight\nOrdner\t漢字\nKatze\tcat\n", encoding="utf-8"
    )
    (tmp_path / "in.de").write_text(
        "Das Angebot wird morgen geprüft.\nDer Ordner ist neu.\n", encoding="utf-8"
    )
    given = [MODEL, *OURS, "--input", tmp_path / "in.de"]
    given += [
        "--glossary",
        tmp_path / "terms.tsv",
        "--stats-file",
        tmp_path / "stats.json",
    ]

    def reported(*flags) -> dict:
        status, out, log = interactive(*given, *flags)
        assert status == 0 and len(re.findall("^H-", out, re.MULTILINE)) == 2, log
        counts = json.loads((tmp_path / "stats.json").read_text())["glossary"]
        results = {
            name: count for name, count in counts.items() if name not in ("terms", "sentences")
        }
        said = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in results.items())
        assert f"2 glossary terms in 2 sentences: {said}; never in the input: Katze" in log
        return results

    assert reported() == {"in_place": 1, "elsewhere": 0, "unmet": 1, "doubtful": 1}
    assert reported("--glossary-placement", "free") == {"met": 1, "unmet": 1}
    # no word is ever found
    monkeypatch.setattr("fairseq_ext.search.constraints.word_alignment.ATTENDED", 2.0)
    monkeypatch.setattr("fairseq_ext.search.constraints.word_alignment.DROP", 1e9)
    assert reported() == {"in_place": 0, "elsewhere": 1, "unmet": 1, "doubtful": 2}
    # all are searched for
    monkeypatch.setattr(
        "fairseq_ext.search.constraints.placement.GlossaryPlacement.ranked_hypotheses",
        lambda *arguments: None,
    )
    assert reported() == {"in_place": 0, "elsewhere": 1, "unmet": 1, "doubtful": 2}


def test_what_is_forced_at_the_start_stays_and_what_is_banned_does_not_arise(tmp_path):
    """A term is not written into a prefix, and a banned phrase that the term would complete is not
    completed, in whatever case."""
    (tmp_path / "terms.tsv").write_text("Angebot\tmoonlight\n", encoding="utf-8")
    placing, source = (
        translator(beam=4, glossary=str(tmp_path / "terms.tsv")),
        ["Das Angebot wird morgen geprüft."],
    )
    plain = placing.translate(source)[0][0].text
    assert plain.startswith("The moonlight is")
    kept = placing.translate(source, prefixes=["The offer"])[0][0]
    assert kept.text.startswith("The offer") and "moonlight" in kept.text and not kept.unmet
    for phrase in ("the moonlight", "moonlight is"):
        found = placing.translate(source, avoid=[phrase])[0][0].text
        assert "moonlight" in found.lower() and phrase.lower() not in found.lower()


@pytest.fixture(scope="module")
def forcing(tmp_path_factory):
    """Runs fairseq-generate with --prefix-size on the first sentences of the demo."""
    folder = raw_demo(tmp_path_factory.mktemp("raw"), 16)
    where = [folder, *OURS, "--dataset-impl", "raw"]

    def run(size: int, *flags) -> dict[str, str]:
        """Its lines by their names, such as D-3."""
        status, out, log = generate(*where, "--prefix-size", size, *flags)
        assert status == 0, log
        return dict(re.findall(r"^([HTD]-\d+)\t(?:-\S+\t)?(.*)$", out, re.MULTILINE))

    return run


def test_a_prefix_of_the_data_set_is_not_written_twice(forcing, tmp_path):
    """--prefix-size forces the first pieces of each reference, which are then no part of the
    text that is written again."""
    (tmp_path / "terms.tsv").write_text(
        "Schlüssel\tmoonlight\nFahrrad\tmoonlight\nFenster\tmoonlight\n", encoding="utf-8"
    )
    lines = forcing(3, "--glossary", tmp_path / "terms.tsv")
    placed = [n for n in range(12) if "moonlight" in lines[f"D-{n}"]]
    assert len(placed) == 3
    for n in placed:
        start = lines[f"T-{n}"].split()[0]
        assert lines[f"D-{n}"].startswith(f"{start} ") and lines[f"D-{n}"].count(start) == 1, lines[
            f"D-{n}"
        ]


def test_a_prefix_may_end_inside_a_word(forcing, tmp_path):
    """Gesa Ros|enbrand: no term takes the place of what is left of the word."""
    (tmp_path / "terms.tsv").write_text(
        "Rosenbrand\tmoonlight\nGruppen\tmoonlight\nZug\tmoonlight\n", encoding="utf-8"
    )
    flags = ["--beam", 4, "--batch-size", 16]
    plain = forcing(3, *flags)
    placed = forcing(3, *flags, "--glossary", tmp_path / "terms.tsv")
    inside = 0
    for n in range(16):
        before, after = (lines[f"H-{n}"].split() for lines in (plain, placed))
        if len(before) > 3 and before[3][0] != "▁":
            inside += 1
            assert after[3][0] != "▁", (plain[f"D-{n}"], placed[f"D-{n}"])
    assert inside > 2 and any("moonlight" in line for line in placed.values())


def test_without_segmentation_terms_are_free_and_the_signature_says_so(tmp_path):
    (tmp_path / "terms.tsv").write_text("▁Ordner\t▁record\n", encoding="utf-8")
    given = [MODEL, "--path", MODEL / "checkpoint.pt", "-s", "de", "-t", "en", "--cpu"]
    given += ["--task", "translation_ext", "--glossary", tmp_path / "terms.tsv"]
    stats = tmp_path / "stats.json"
    line = "▁Der ▁Ordner ▁ist ▁neu .\n".encode()
    status, out, log = interactive(*given, "--stats-file", stats, stdin=line)
    assert status == 0 and "▁record" in out, log
    assert "glossary:align" not in json.loads(stats.read_text())["signature"]
    status, _, log = interactive(*given, "--glossary-placement", "align", stdin=b"")
    assert status != 0 and "align needs to know what words are: add --bpe or --tokenizer" in log


@pytest.mark.parametrize(
    "flags",
    [
        {"print_alignment": "hard"},
        {"no_repeat_ngram_size": 3},
        {"select": "gbs"},
        {"constraint_end": True},
    ],
    ids=str,
)
def test_flags_that_need_the_searchs_own_hypotheses_refuse_it(tmp_path, flags):
    (tmp_path / "terms.tsv").write_text("Angebot\tquotation\n", encoding="utf-8")
    flags = flags | {"glossary": str(tmp_path / "terms.tsv")}
    with pytest.raises(UsageError, match="--glossary-placement align writes terms after the sea"):
        translator(**flags, glossary_placement="align")
    assert "glossary:align" not in translator(**flags).signature


def test_a_placement_needs_a_glossary():
    with pytest.raises(UsageError, match="needs a glossary"):
        translator(glossary_placement="free")


# ---- words in front of a term, and terms that do not fit


def test_forms_of_one_english_word():
    same = "use using|Set setting|posted post|copy copies|process processing".split("|")
    others = "open Open|offer quotation|management manager".split("|")
    for pair in same + others:
        assert is_form(*pair.split()) is is_form(*reversed(pair.split())) is (pair in same), pair
    assert is_form("Vendor invoices", "vendor invoice") and is_form("automatic", "automatically")
    assert not is_form("print management", "management")


def test_the_plural_of_an_english_noun():
    nouns = "order line|policy|day|box|match|gentleman|child|lines|C++".split("|")
    assert [*map(plural_of, nouns)] == [
        *("order lines", "policies", "days", "boxes", "matches", "gentlemen", "children", "", "")
    ]

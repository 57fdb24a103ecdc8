"""`--glossary-placement align`: a term stands where the translation of its source term stood, and
the report says what is there."""

import gc
import json
import re

import demo_model
import models
import pytest
import torch
from demo_model import MODEL, OURS, ROOT, raw_demo
from fairseq.sequence_scorer import SequenceScorer
from forked import generate_forked, interactive, interactive_forked
from search.constraints.test_placement import glossary
from search.phrases.test_forms import bracketed, facts, listed, marked
from sizes import drawn, part_of

from fairseq_ext import Translator, UsageError
from fairseq_ext.core.stats import Stats
from fairseq_ext.model.choose import make_decoder
from fairseq_ext.model.stock import FairseqBackend
from fairseq_ext.model.transformer.cache import KeyValues
from fairseq_ext.model.transformer.encoder import FastEncoder
from fairseq_ext.search.constraints.forced_decoding import ForcedDecoding
from fairseq_ext.search.constraints.word_alignment import Mention, WordAlignment
from fairseq_ext.search.phrases.function_words import function_words

SOURCES = (ROOT / "data" / "demo" / "test.de").read_text(encoding="utf-8").splitlines()
SOURCES = SOURCES[: len(part_of(60, 26))]


def translator(**flags) -> Translator:
    return Translator(**demo_model.FLAGS, **flags)


def test_memory_does_not_grow_with_the_texts(tmp_path):
    """A server's worker places terms all day.

    The mask of a block of W rows and b tokens has W x b x W x b floats; 64 of them were kept.
    """
    terms = glossary(tmp_path, dict.fromkeys((line.split()[0] for line in SOURCES), "very"))
    placing = translator(beam=2, glossary=terms, glossary_placement="align")

    def kept() -> int:
        gc.collect()
        tensors = (each for each in gc.get_objects() if isinstance(each, torch.Tensor))
        return sum(each.untyped_storage().nbytes() for each in tensors)

    placing.translate(SOURCES[:2])
    before = kept()
    for line in SOURCES:
        placing.translate([line])
    assert kept() - before < 1 << 20


# ---- the words


@facts("aligned, source, draft, attention, terms, renderings, kind, words")
def test_words_of_a_draft_that_stand_for_source_terms(
    source, draft, attention, terms, renderings, kind, words
):
    """A noun takes the place of no verb, but of one without an object that renders it; a term
    stands for all words that translate it, and for a function word where it has one itself.

    attention: for each word of the draft the source word to which its prediction attends, of which
    it gets 0.6, and then the second, 0.3, both as numbers from 0; each word is one token. Brackets:
    where a term stands already.
    """
    (draft, taken), of_source = bracketed(draft), source.split()
    spans = [found.span() for found in re.finditer(r"\w+", draft)]
    weights = torch.full((len(spans), len(of_source)), 0.1 / len(of_source))
    for row, digits in zip(weights, attention.split(), strict=True):
        for share, place in zip((0.6, 0.3), map(int, digits), strict=False):
            row[place] += share
    shares = {tuple(each.split()): 1 / len(listed(renderings)) for each in listed(renderings)}
    mentions = []
    for own in map(str.split, terms.split("|")):
        places = tuple(of_source.index(own[0]) + i for i in range(len(own)))
        has_function = bool({"in", "die"} & set(own))
        of = Mention(places, ("x",), frozenset(places), has_function, shares, kind == "noun")
        mentions.append(of)
    found = WordAlignment(draft, spans, mentions, taken, function_words("en"))
    found.attend_(weights, [(i,) for i in range(len(of_source))])
    assert [marked(draft, span) or "-" for span in found.span_of_mention] == listed(words)


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


# ---- the scores


DICTIONARY = models.dictionary()
EOS = DICTIONARY.eos()


def scored(*architectures: str) -> tuple[list, ForcedDecoding, dict, list[list[int]]]:
    """An ensemble, forced decoding by it, a batch of three sources, and these as lists."""
    built = [models.build(name, seed) for seed, name in enumerate(architectures, 1)]
    next_to = make_decoder(built)[0].attending_copy()
    decoder = next_to or FairseqBackend(built, cached=False)
    scorer = ForcedDecoding(decoder, next_to is not None, DICTIONARY, True, Stats())
    batch = models.batch([3, 7, 5])["net_input"]
    sources = [row[row != DICTIONARY.pad()].tolist() for row in batch["src_tokens"]]
    return built, scorer, batch, sources


def there(row: list[int]) -> torch.Tensor:
    return torch.tensor([row], device=models.DEVICE)


def fairseqs_scores(built, source: list[int], target: list[int]) -> torch.Tensor:
    """The log-probabilities of a target by fairseq's scorer."""
    inputs = {"src_tokens": there(source), "src_lengths": there([len(source)])[0]}
    inputs["prev_output_tokens"] = there([EOS, *target[:-1]])
    alone = {"id": torch.tensor([0]), "ntokens": len(target), "net_input": inputs}
    alone["target"] = there(target)
    scores = SequenceScorer(DICTIONARY).generate(built, alone)[0][0]["positional_scores"]
    return scores.cpu().double()


def close(found, expected) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu().double(), other, rtol=0, atol=1e-5)


@drawn(2)
@pytest.mark.parametrize(
    "architectures", [["transformer"], ["transformer", "transformer-tied"], ["lstm"], ["fconv"]]
)
def test_forced_decoding_equals_fairseqs_scorer(architectures):
    """Pairs of all lengths in one call, two of one source, against each pair alone."""
    built, scorer, _, sources = scored(*architectures)
    generator = torch.Generator().manual_seed(3)
    targets = [
        [*torch.randint(4, models.WORDS, (n,), generator=generator).tolist(), EOS]
        for n in (4, 1, 6, 3)
    ]
    pairs = list(zip((0, 1, 2, 1), targets, strict=True))
    found = scorer.log_probs(scorer.encode(sources, models.DEVICE), pairs, EOS)
    close(found, [fairseqs_scores(built, sources[i], target) for i, target in pairs])


def test_what_a_target_shares_with_a_draft_is_not_read_again():
    """Three targets of one draft, each from another token on, twice, and one of a draft that was
    not read: fairseq's scores, from fewer tokens."""
    built, scorer, _, sources = scored("transformer", "transformer")
    drafts = [(1, [5, 6, 7, 8, EOS]), (0, [7, 9, EOS]), (1, [8, 9, 10, 11, EOS])]
    encoded = scorer.encode(sources, models.DEVICE)
    scorer.attention(encoded, drafts, EOS)
    drafts.append((2, [5, EOS]))
    targets = [(0, [9, 6, EOS], 0), (0, [5, 9, 8, EOS], 1), (0, [5, 6, 7, 9, 9, EOS], 3)]
    targets += [(1, [7, 9, EOS], 3), (2, [8, 9, 4, EOS], 2), (3, [5, 9, 9, EOS], 1)]
    pairs = [(drafts[draft][0], target) for draft, target, _ in targets]
    expected = [fairseqs_scores(built, sources[i], target) for i, target in pairs]
    known = [each[:n].float() for each, (*_, n) in zip(expected, targets, strict=True)]
    for _ in range(2):
        before = scorer.stats.decoder_positions
        read = [drafts[draft][1] for draft, *_ in targets]
        close(scorer.log_probs(encoded, pairs, EOS, known, read), expected)
        if encoded.lines is not None:
            assert scorer.stats.decoder_positions - before < sum(len(target) for _, target in pairs)


def test_attention_is_fairseqs_of_all_layers_on_average():
    """Sources of several lengths in one call, against each alone, a layer at a time."""
    built, scorer, _, sources = scored("transformer", "transformer")
    pairs = [(1, [5, 6, EOS]), (0, [7, EOS]), (1, [8, 9, 10, 11, EOS])]
    expected = []
    for number, target in pairs:
        source, given, layers = there(sources[number]), there([EOS, *target[:-1]]), []
        for model in built:
            encoded = model.encoder(source, src_lengths=there([source.size(1)])[0])
            for layer in range(len(model.decoder.layers)):
                _, extra = model.decoder.extract_features(
                    given, encoder_out=encoded, alignment_layer=layer
                )
                layers.append(extra["attn"][0][0])
        expected.append(torch.stack(layers).mean(0).cpu().double())
    close(scorer.attention(scorer.encode(sources, models.DEVICE), pairs, EOS), expected)


def test_what_the_search_has_encoded_is_not_encoded_again(monkeypatch):
    """Other sources next to them, another order and another width: the same scores, to the last
    bit, without the encoder and the projection of its output."""
    built, _, batch, sources = scored("transformer", "transformer")
    decoder = make_decoder(built)[0]
    scorer = ForcedDecoding(decoder.attending_copy(), True, DICTIONARY, True, Stats())

    def scores(*numbers: int) -> list[torch.Tensor]:
        encoded = scorer.encode([sources[i] for i in numbers], models.DEVICE)
        return scorer.log_probs(encoded, [(i, [5, 6, EOS]) for i in range(len(numbers))], EOS)

    expected = scores(2, 0)
    with scorer.keeping([sources[0], sources[2]]):
        decoder.admit(batch)
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


def is_within(words, others):
    """Whether a text has all words of another one in their order."""
    rest = iter(re.findall(r"\w+", others.replace(" an ", " a ")))
    return all(word in rest for word in re.findall(r"\w+", words.replace(" an ", " a ")))


@pytest.fixture
def nothing_aligned(monkeypatch):
    """No word is ever found."""
    monkeypatch.setattr("fairseq_ext.search.constraints.word_alignment.ATTENDED", 2.0)
    monkeypatch.setattr("fairseq_ext.search.constraints.word_alignment.DROP", 1e9)


def test_a_narrow_beam_inserts_a_term_that_no_word_translates_and_the_draft_stays(
    tmp_path, nothing_aligned
):
    sources = SOURCES[:8]
    first = [max(source.strip(".?!").split(), key=len).strip(",") for source in sources]
    terms = glossary(tmp_path, dict.fromkeys(first, "moonlight"))
    found = translator(beam=2, glossary=terms).translate(sources)
    drafts = translator(beam=2, nbest=2).translate(sources)
    for (best, *_), of in zip(found, drafts, strict=True):
        assert not best.unmet and "moonlight" in best.text
        assert any(is_within(draft.text, best.text) for draft in of)


def test_lists_hold_no_hypothesis_twice_and_every_form_of_the_term(tmp_path):
    """Two drafts that differ in the word whose place the term takes become one; forms
    make others of them."""
    placing = translator(beam=5, nbest=5, glossary=glossary(tmp_path, {"Ordner": "binder|file"}))
    (found,) = placing.translate(["Die Ärztin öffnet den Ordner."])
    texts = [hypothesis.text for hypothesis in found]
    assert len(set(texts)) == len(texts)
    assert {f"The doctor opens the {form}." for form in ("file", "binder")} <= {*texts}


def test_the_end_of_a_run_says_what_became_of_the_terms(tmp_path, monkeypatch, request):
    """In place, inserted where no word of the draft stands for one, unmet, never read; the same in
    the statistics and for `free`."""
    stats = tmp_path / "stats.json"
    terms = glossary(tmp_path, {"Angebot": "moonlight", "Ordner": "漢字", "Katze": "cat"})
    given = [MODEL, *OURS, "--stats-file", stats, "--glossary", terms]
    lines = "Das Angebot wird morgen geprüft.\nDer Ordner ist neu.\n"

    def reported(*flags) -> list[int]:
        _, out, log = interactive_forked(lines, *given, *flags)
        assert len(re.findall("^H-", out, re.MULTILINE)) == 2, log
        counts = json.loads(stats.read_text())["glossary"]
        results = {name: n for name, n in counts.items() if name not in ("terms", "sentences")}
        said = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in results.items())
        assert f"2 glossary terms in 2 sentences: {said}; never in the input: Katze" in log
        assert [*results] == ["in_place", "elsewhere", "unmet", "doubtful"] or flags
        return [*results.values()]

    assert reported() == [1, 0, 1, 1]
    assert reported("--glossary-placement", "free") == [1, 1]  # met, unmet
    request.getfixturevalue("nothing_aligned")
    assert reported() == [0, 1, 1, 2]
    of_placement = "fairseq_ext.search.constraints.placement.GlossaryPlacement.ranked_hypotheses"
    monkeypatch.setattr(of_placement, lambda *arguments: None)  # all are searched for
    assert reported() == [0, 1, 1, 2]


def test_what_is_forced_at_the_start_stays_and_what_is_banned_does_not_arise(tmp_path):
    """A term is not written into a prefix, and a banned phrase that the term would complete is not
    completed, in whatever case."""
    placing = translator(beam=4, glossary=glossary(tmp_path, {"Angebot": "moonlight"}))

    def best(**given):
        return placing.translate(["Das Angebot wird morgen geprüft."], **given)[0][0]

    assert best().text.startswith("The moonlight is")
    kept = best(prefixes=["The offer"])
    assert kept.text.startswith("The offer") and "moonlight" in kept.text and not kept.unmet
    for phrase in ("the moonlight", "moonlight is"):
        found = best(avoid=[phrase]).text.lower()
        assert "moonlight" in found and phrase not in found


def test_a_prefix_of_the_data_set_is_not_written_twice_and_may_end_inside_a_word(tmp_path):
    """--prefix-size forces the first pieces of each reference, which are then no part of the
    text that is written again: Gesa Ros|enbrand has no term in the place of what is left."""
    folder, inside, twice = raw_demo(tmp_path, 16), 0, 0
    names = "Schlüssel Fahrrad Fenster Rosenbrand Gruppen Zug".split()
    terms = glossary(tmp_path, dict.fromkeys(names, "moonlight"))

    def forced(*flags) -> dict[str, str]:
        """The lines of fairseq-generate by their names, such as D-3."""
        how = ["--dataset-impl", "raw", "--prefix-size", 3, "--beam", 4, "--batch-size", 16]
        out = generate_forked(folder, *OURS, *how, *flags).stdout
        return dict(re.findall(r"^([HTD]-\d+)\t(?:-\S+\t)?(.*)$", out, re.MULTILINE))

    plain, placed = forced(), forced("--glossary", terms)
    for n in range(16):
        text, start = placed[f"D-{n}"], placed[f"T-{n}"].split()[0]
        if "moonlight" in text:
            twice += 1
            assert text.startswith(f"{start} "), text
            assert text.count(start) <= plain[f"D-{n}"].count(start), text
        before, after = (lines[f"H-{n}"].split() for lines in (plain, placed))
        if len(before) > 3 and before[3][0] != "▁":
            inside += 1
            assert after[3][0] != "▁", (plain[f"D-{n}"], text)
    assert inside > 2 and twice > 2


def test_without_segmentation_terms_are_free_and_the_signature_says_so(tmp_path):
    stats = tmp_path / "stats.json"
    given = [MODEL, "--path", MODEL / "checkpoint.pt", "-s", "de", "-t", "en", "--cpu"]
    given += ["--task", "translation_ext", "--glossary", glossary(tmp_path, {"▁Ordner": "▁record"})]
    done = interactive_forked("▁Der ▁Ordner ▁ist ▁neu .\n", *given, "--stats-file", stats)
    assert "▁record" in done.stdout
    assert "glossary:align" not in json.loads(stats.read_text())["signature"]
    said = interactive(*given, "--glossary-placement", "align").error()
    assert "align needs to know what words are: add --bpe or --tokenizer" in said


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
    flags = flags | {"glossary": glossary(tmp_path, {"Angebot": "quotation"})}
    with pytest.raises(UsageError, match="--glossary-placement align writes terms after the sea"):
        translator(**flags, glossary_placement="align")
    assert "glossary:align" not in translator(**flags).signature

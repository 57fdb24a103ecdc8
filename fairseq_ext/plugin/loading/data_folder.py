"""The content of a data folder: its dictionaries, its segmentation, the text it was made from."""

from __future__ import annotations

import filecmp
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from fairseq.data import Dictionary
from fairseq.data.multilingual.multilingual_data_manager import TGT_DICT_NAME
from fairseq.tasks import FairseqTask

from fairseq_ext.core.errors import UsageError, cut
from fairseq_ext.plugin.loading.settings import languages_of
from fairseq_ext.search.phrases.pieces import SEPARATOR, kind_of, kind_of_words
from fairseq_ext.search.phrases.sentence import Phrase
from fairseq_ext.search.settings import CommandSettings

# ---- Warnings of a wrong dictionary
#
# With a dictionary of the right size and other words, a model's output is nonsense, without an
# error. fairseq's checkpoints do not hold their dictionaries. The warnings compare with the
# dictionaries (dict.LANGUAGE.txt) in the checkpoint's folder and in its training data folder, and
# with one in the saved state of its task.


logger = logging.getLogger("fairseq_ext")


def warn_of_other_words(task: FairseqTask, settings: CommandSettings) -> None:
    """Log a warning for each dictionary of a task that differs from one that its checkpoint
    was trained with.

    task: one of ours, with the checkpoint's settings; settings: of the run.
    """
    data, languages = settings.data.split(os.pathsep)[0], settings.languages
    for side, dictionary, language in (
        ("source", task.source_dictionary, languages.source),
        ("target", task.target_dictionary, languages.target),
    ):
        if not isinstance(dictionary, Dictionary):
            continue
        for place, words in known_dictionaries(
            side, language, data, settings.checkpoint, task.trained_on, task.task_state or {}
        ):
            if said := difference(dictionary.symbols, words):
                logger.warning(
                    "the %s dictionary in %s is not %s, with which the checkpoint seems to "
                    "be trained: %s. With another dictionary translations are nonsense: use "
                    "that of the training",
                    side,
                    data,
                    place,
                    said,
                )
                break


def known_dictionaries(
    side: str,
    language: str | None,
    data: str,
    checkpoint: str | None,
    trained_on: str | None,
    state: Mapping,
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield (place, words by id) of each dictionary of this side of the model that can be found and
    is not the file in use."""
    kept = state.get(f"{side}_dictionary", state.get("dictionary"))
    words = getattr(kept, "symbols", kept)
    if isinstance(words, (list, tuple)) and all(isinstance(word, str) for word in words):
        yield "that in the state of its task", words
    in_use = os.path.join(data, f"dict.{language}.txt")
    for folder in (checkpoint and os.path.dirname(os.path.abspath(checkpoint)), trained_on):
        path = os.path.join(folder, f"dict.{language}.txt") if folder else ""
        if (
            language
            and os.path.isfile(path)
            and not (os.path.exists(in_use) and os.path.samefile(path, in_use))
        ):
            try:
                yield path, Dictionary.load(path).symbols
            except (OSError, ValueError, RuntimeError):  # fairseq could not have used it
                continue


def difference(ours: Sequence[str], theirs: Sequence[str]) -> str | None:
    """Return how many of the ids in both dictionaries have different words; None for none."""
    both = min(len(ours), len(theirs))
    other = [i for i in range(both) if ours[i] != theirs[i]]
    if not other:
        return None
    first = other[0]
    return (
        f"{len(other)} of {both} ids have other words, the first {first}, '{cut(theirs[first])}' "
        f"there and '{cut(ours[first])}' here"
    )


# ---- The segmentation of a folder
#
# Its subword model, and the marks of segmentation in its dictionaries.


# flags that name files
SAVED = (
    "sentencepiece_model",
    "target_sentencepiece_model",
    "bpe_codes",
    "gpt2_encoder_json",
    "gpt2_vocab_bpe",
)
CODES = ("bpecodes", "code", "codes")  # lists of merges, as fairseq's archives and others name them
CODE_SUFFIXES = (".code", ".codes")  # such as ende30k.fastbpe.code, of an archive of WMT19
SUFFIX = ".model"  # of SentencePiece
# Moses' escapes of ' " & < > [ ] |
ESCAPED = re.compile(r"^&(apos|quot|amp|lt|gt|#91|#93|#124);", re.MULTILINE)


def segmentation_files(folder: str) -> list[str]:
    """Return the names of a folder's SentencePiece models and lists of BPE merges; of equal files
    the first."""
    out: list[str] = []
    for name in sorted(os.listdir(folder)):
        if (name.endswith((SUFFIX, *CODE_SUFFIXES)) or name in CODES) and not any(
            filecmp.cmp(os.path.join(folder, name), os.path.join(folder, other), shallow=False)
            for other in out
        ):
            out.append(name)
    return out


def flag_of(name: str) -> str:
    """Return the flag for such a file."""
    return "sentencepiece_model" if name.endswith(SUFFIX) else "bpe_codes"


def kind_of_codes(path: str) -> str:
    """Return the --bpe for a list of merges: fastBPE adds the frequency to each pair."""
    with open(path, encoding="utf-8") as lines:
        first = next(lines, "").split()
    return (
        "fastbpe"
        if len(first) == 3 and first[2].isdigit() and not first[0].startswith("#version")
        else "subword_nmt"
    )


def is_moses(folder: str) -> bool:
    """Return whether a folder's dictionaries have Moses' escapes of quotes and brackets."""
    return any(
        ESCAPED.search(path.read_text(encoding="utf-8", errors="replace"))
        for path in Path(folder).glob("dict.*txt")
    )


def segmentation_flags(folder: str, given: Mapping, saved: Mapping) -> dict[str, str]:
    """Return the flags of a folder's segmentation (bpe, its file, tokenizer) that are not given; {}
    if the folder has no file for one.

    saved: the checkpoint's settings, which may name files of the folder. Errors: UsageError, which
    lists the choices, if there are several.
    """
    files = {name: os.path.join(folder, str(saved[name])) for name in SAVED if saved.get(name)}
    if (
        files
        and not any(given.get(name) for name in ("bpe", "tokenizer", *SAVED))
        and all(map(os.path.isfile, files.values()))
    ):
        return files | {name: saved[name] for name in ("bpe", "tokenizer") if saved.get(name)}
    if given.get("sentencepiece_model"):
        return {} if given.get("bpe") else {"bpe": "sentencepiece"}
    needs = {
        "sentencepiece": "sentencepiece_model",
        "subword_nmt": "bpe_codes",
        "fastbpe": "bpe_codes",
    }.get(given.get("bpe") or "")
    if given.get("bpe") and (needs is None or given.get(needs)):
        return {}
    names = [name for name in segmentation_files(folder) if needs in (None, flag_of(name))]
    codes = given.get("bpe_codes")
    if codes is None and len(names) > 1:
        ways = [
            f"--{flag_of(name).replace('_', '-')} {os.path.join(folder, name)}" for name in names
        ]
        raise UsageError(f"{folder} has {len(names)} segmentation models: add {' or '.join(ways)}")
    if codes is None and not names:
        return {}
    file = codes or os.path.join(folder, names[0])
    if flag_of(file) == "sentencepiece_model" and codes is None:
        return {"bpe": "sentencepiece", "sentencepiece_model": file}
    found = {"bpe_codes": file} | ({} if given.get("bpe") else {"bpe": kind_of_codes(file)})
    return found | (
        {"tokenizer": "moses"} if not given.get("tokenizer") and is_moses(folder) else {}
    )


# ---- A warning where text is not segmented
#
# Warn if the dictionary has marks of a segmentation (▁ or @@), the first lines have none, and no
# flag names a segmentation. Lines that are segmented already, as in fairseq's recipes, cause no
# warning.

MARK = {"sentencepiece": "▁", "subword-nmt": SEPARATOR}
FLAG = {"sentencepiece": "sentencepiece_model", "subword-nmt": "bpe_codes"}


class SegmentationCheck:
    """Checks the lines of a run without --bpe, until it is known whether they are segmented.

    kind: the segmentation of the dictionary, None for none. folder: that may have its model.
    has_word: with --remove-bpe, whether the dictionary has a word; lines of such words may be
    segmented or not.
    """

    def __init__(
        self, kind: str | None, folder: str, has_word: Callable[[str], bool] | None = None
    ):
        self.kind, self.folder, self.has_word = kind, folder, has_word

    def check(self, lines: Sequence[str]) -> None:
        """Warn if these are the first lines that show it, and are not segmented."""
        text = [line for line in lines if line.strip()]
        if self.kind is None or not text:
            return
        kind, segmented = self.kind, any(MARK[self.kind] in line for line in text)
        words = (word for line in text for word in line.split())
        if not segmented and kind == "subword-nmt" and self.has_word:
            if all(map(self.has_word, words)):
                return
        self.kind = None
        if not segmented:
            logger.warning(
                "the words of the dictionary are pieces (%s), and the input is not "
                "segmented: add %s",
                MARK[kind],
                advice(kind, self.folder),
            )


def advice(kind: str, folder: str) -> str:
    """Return the flags that segment text as a dictionary was, with the folder's file if it has
    one."""
    files = [
        os.path.join(folder, name)
        for name in segmentation_files(folder)
        if flag_of(name) == FLAG[kind]
    ]
    file = files[0] if len(files) == 1 else "FILE"
    bpe = "sentencepiece" if kind == "sentencepiece" else "subword_nmt"
    if files and kind != "sentencepiece":
        bpe = kind_of_codes(files[0])
    return f"--bpe {bpe} --{FLAG[kind].replace('_', '-')} {file}"


def kind_of_files(paths: Sequence[str]) -> str | None:
    """Return the segmentation of dictionary files, from the marks in their words, without loading
    them; None for none."""
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as lines:
            kind = kind_of_words([line.rpartition(" ")[0] for line in lines])
        if kind is not None:
            return kind
    return None


def warn_segmented_output(dictionary: Dictionary, folder: str) -> None:
    """Warn if translations of a binarised data set are printed as pieces."""
    kind = kind_of(dictionary, None)
    if kind is not None:
        logger.warning(
            "the words of the dictionary are pieces (%s), and translations stay segmented: "
            "add --remove-bpe%s, or %s",
            MARK[kind],
            " sentencepiece" * (kind == "sentencepiece"),
            advice(kind, folder),
        )


# ---- The target dictionary of our tasks
#
# It is fairseq's, with numbers for alternative phrases.


class TargetDictionary(Dictionary):
    """A dictionary that has numbers beyond its words for alternative phrases."""

    alternatives: list[tuple[Phrase, ...]]

    @classmethod
    def wrap(cls, dictionary: Dictionary) -> TargetDictionary:
        """Return a TargetDictionary with the same words, not copied; the same object if it is one
        already."""
        if isinstance(dictionary, cls):
            return dictionary
        ours = cls.__new__(cls)
        ours.__dict__ = {**dictionary.__dict__, "alternatives": []}
        return ours

    def number_of(self, alternatives: tuple[Phrase, ...]) -> int:
        """Return a number that `string` writes as these phrases, joined by |."""
        self.alternatives.append(alternatives)
        return len(self) + len(self.alternatives) - 1

    def string(self, tensor, *how, **more):
        if (
            torch.is_tensor(tensor)
            and tensor.numel() == 1
            and (place := int(tensor) - len(self)) >= 0
        ):
            return "|".join(
                super(TargetDictionary, self).string(torch.tensor(phrase), *how, **more)
                for phrase in self.alternatives[place]
            )
        return super().string(tensor, *how, **more)


def print_alternatives_of(task: FairseqTask) -> None:
    """Replace a task's target dictionaries by ones that can print alternative phrases."""
    for name in ("tgt_dict", "output_dictionary"):  # the second: a language model's
        if isinstance(found := vars(task).get(name), Dictionary):
            setattr(task, name, TargetDictionary.wrap(found))
    languages, dictionaries = languages_of(task.flags()), vars(task).get("dicts", {})
    # tasks with a dictionary for each language
    for language in (TGT_DICT_NAME, languages.target):
        if language in dictionaries and language != languages.source:
            dictionaries[language] = TargetDictionary.wrap(dictionaries[language])

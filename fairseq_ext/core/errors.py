"""Error messages: one sentence instead of a traceback, with the problem, its place and a remedy.

This package raises `UsageError` for a wrong combination or input. The commands are fairseq's own,
so this module also has sentences for errors that fairseq raises after common mistakes. An exception
hook (core/exit.py) prints them; it does not change other errors. Set FAIRSEQ_EXT_TRACEBACK=1 to see
the traceback as well.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")
E = TypeVar("E", bound=Exception)
MAX_QUOTATION = 80  # characters of a quotation in a message, except for paths
MAX_PATH = 4096  # characters; a longer text is not a path
QUOTED = re.compile(r"(?<!\w)'([^'\n]{81,})'(?!\w)")
UNREADABLE_ERRORS = (  # of hydra and omegaconf
    "OverrideParseException",
    "InterpolationKeyError",
    "InterpolationResolutionError",
    "UnsupportedInterpolationType",
    "GrammarParseError",
)
UNREADABLE_VALUE = (
    "a flag's value is read as more than text ({1}): leave ${{ and backslashes out of it"
)
OUT_OF_MEMORY = (
    "memory has run out: translate fewer sentences at once (--batch-size, --max-tokens), or a "
    "smaller --beam"
)
NOT_A_LITERAL = (
    "a flag, or a setting of the checkpoint, must be a number or a list: correct it "
    "(--verbose shows where)"
)
OWN_CHECK = r"\A--", "{0} (a check of fairseq's own)"
# packages of the extra "serve"
SERVER_PACKAGES = (
    "fastapi",
    "fastapi_offline",
    "httptools",
    "prometheus_client",
    "python_multipart",
    "starlette",
    "uvicorn",
)
LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character: no encoding can write it
LONG_WORD = re.compile(r"\d{81,}|[^\s/]{256,}")  # a number, or a word longer than any file name


class UsageError(ValueError):
    """A wrong flag, combination or input. The text is one sentence for the user, in which
    quotations are cut at 80 characters.

    Paths are not cut, so that the user finds the file.
    """

    def __init__(self, text: str):
        super().__init__(shortened(text))


class SentenceError(UsageError):
    """One sentence cannot be translated; the others can."""


class NotANumber(SentenceError, FloatingPointError):
    """The model returns NaN for a sentence. The text names the place; the remedy is appended."""

    way_out = ": use another checkpoint, or leave --fp16 out"

    def __init__(self, text: str):
        # an error that comes from another process already ends with it
        super().__init__(text.removesuffix(self.way_out) + self.way_out)


def halves(items: Sequence[T]) -> list[Sequence[T]]:
    """Return the two halves of items that failed together. Callers try each half again until the
    failing item is alone."""
    return [items[: len(items) // 2], items[len(items) // 2 :]]


def isolated(
    items: Sequence[T], decode: Callable[[Sequence[T]], Sequence[R]], kinds: type[E]
) -> list[R | E]:
    """Return the result of `decode` for each item, or the item's own error of these kinds (raises
    all other errors of `decode`)."""
    try:
        return list(decode(items))
    except kinds as error:
        if len(items) == 1:
            error.__traceback__ = None  # it would keep the batch's tensors alive
            return [error]
    return [found for half in halves(items) for found in isolated(half, decode, kinds)]


def cut(text: str) -> str:
    """Return a quotation for a message: on one line, cut at 80 characters."""
    plain = " ".join(text.split())
    return plain if len(plain) <= MAX_QUOTATION else plain[: MAX_QUOTATION - 3] + "..."


def shortened(text: str) -> str:
    """Return a message on one line, with texts in quotation marks and very long words cut; paths
    are not cut."""
    text = "\\n".join(text.splitlines())
    short = QUOTED.sub(
        lambda quoted: quoted[0] if is_path(quoted[1]) else f"'{cut(quoted[1])}'", text
    )
    return LONG_WORD.sub(lambda endless: cut(endless[0]), short)


def is_path(quoted: str) -> bool:
    """Return whether a quotation looks like the path of a file."""
    begins = quoted.startswith(("/", "./", "../", "~/"))
    return (
        len(quoted) <= MAX_PATH and "/" in quoted and (begins or not any(map(str.isspace, quoted)))
    )


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: 1 line, 2 lines.

    many: the plural, if it is not the noun with an s.
    """
    return f"{number} {one if number == 1 else many or one + 's'}"


def list_dictionaries(path: str) -> str:
    """Return a hint with the dictionaries in the folder of a missing one: the language may be
    misspelt."""
    names = sorted(each.name for each in Path(path).parent.glob("dict.*.txt"))
    return f" (there: {cut(', '.join(names))})" if names else ""


def damaged_data(why: str) -> str:
    """Return the sentence for a binarised data set that cannot be used."""
    way_out = (
        "it is damaged, or of another --dataset-impl or dictionary; make it again with "
        "fairseq-preprocess"
    )
    return f"the data set cannot be read ({cut(why)}): {way_out}"


def missing_file(error: OSError, found: re.Match[str]) -> str | None:
    """Return the sentence for a missing file; None if the error names no file."""
    text, path = str(error), error.filename
    if path == "":
        return "a file is given without a name: name one, or leave its flag out"
    if path == "@@ ":  # fairseq reads this file for --replace-unk without a value
        return (
            "--replace-unk needs the file of an alignment dictionary: name one, or write '' after "
            "it to copy source words"
        )
    if path and "dict." not in text:
        return f"{path} does not exist: correct the path"
    if "dict." in text:
        return (
            f"no dictionary at {path}{list_dictionaries(str(path))}: name the data directory that "
            "has the model's dictionaries, and its languages"
        )
    if "Dataset not found" in text:
        return (
            f"{text.removeprefix('Dataset not found: ')}: binarise that subset with "
            "fairseq-preprocess, or name another by --gen-subset"
        )
    # fairseq's message is only the path
    is_folder = error.errno is None and os.path.isabs(text)
    return f"--user-dir {text} does not exist: correct the path" if is_folder else None


def unwritable(error: UnicodeEncodeError, found: re.Match[str]) -> str | None:
    """Return the sentence for an encoding of the output that lacks a character; None for UTF-8,
    which has all characters."""
    if error.encoding.lower().replace("-", "").startswith("utf8"):
        return None
    return (
        f"the output is written in {error.encoding}, which has no "
        f"{error.object[error.start]!r}: set PYTHONIOENCODING=utf-8"
    )


Sentence = str | Callable[[Any, re.Match[str]], str | None]
# Mistakes in a command or its files, by the class of the error that another library raises for them
# or a class above it. A row is a pattern of the error's text, and the sentence, in which {0} is the
# text and {1} the match's first group, cut at 80 characters unless it is a path; a function returns
# None if the error is not this mistake. The first row that fits counts, the nearest class first.
MISTAKES: dict[str, list[tuple[str, Sentence]]] = {
    "UsageError": [("", "{0}")],
    "Refused": [("", "{0}")],
    "MemoryError": [("", OUT_OF_MEMORY)],
    "FileNotFoundError": [
        (
            r"(?s)\ADict not found: (.*)",
            "no dictionary at {1}: the configuration of the data names it (vocab_filename)",
        ),
        ("", missing_file),
    ],
    "IsADirectoryError": [
        (
            "",
            lambda error, found: (
                f"{error.filename or 'a name given as a file'} is a folder, and a file is needed: "
                "name the file in it"
            ),
        )
    ],
    "OSError": [
        (
            "Model file not found",
            "{0}: --path names one checkpoint, or several joined by colons",
        ),
        (
            "is not a checkpoint|unpickling a class can run code",
            "{0}",
        ),
        (r"\Afile (.*) not found\Z", "{0}: correct the path of the segmentation model"),
    ],
    "UnicodeEncodeError": [("", unwritable)],
    "UnicodeError": [
        (
            "",
            "the input is not valid UTF-8 ({0}): convert it first, for example with "
            "iconv -f latin1 -t utf-8",
        )
    ],
    "ModuleNotFoundError": [
        (
            "",
            lambda error, found: (
                f"the server needs {error.name}, which is not installed: pip install "
                "'fairseq_ext[serve]'"
                if error.name in SERVER_PACKAGES
                else None
            ),
        )
    ],
    "ImportError": [
        (r"\Afairseq_ext is a plug-in for fairseq", "{0}"),
        ("sacremoses", "--tokenizer moses needs sacremoses: pip install sacremoses"),
        (
            r"\APlease install .*with: *(pip install (\S+))",
            "--bpe or --tokenizer needs {2}, which is not installed: {1}",
        ),
    ],
    "KeyError": [
        (
            r"\A'\w+:(\S+-\S+)'\Z",
            "the data directory has no such subset of {1}: binarise it with "
            "fairseq-preprocess, or name another by --gen-subset",
        )
    ],
    "NotImplementedError": [
        (
            "(?s)Unknown post_process option: (.*)",
            "--post-process (--remove-bpe) {1} is unknown to fairseq: use sentencepiece or "
            "subword_nmt",
        )
    ],
    "SyntaxError": [
        ("", lambda error, found: NOT_A_LITERAL if error.filename == "<unknown>" else None)
    ],
    "AssertionError": [
        (r"\A--path required for generation!\Z", "no model is named: add --path MODEL.pt"),
        (
            "world size is",
            "--distributed-world-size: the {0}; a search runs in one process: leave the flag out",
        ),
        OWN_CHECK,
    ],
    "ValueError": [
        (
            "Search parameters are mutually exclusive",
            "--sampling, --diverse-beam-groups, --diversity-rate and --match-source-len each "
            "choose continuations: leave all but one out",
        ),
        (
            "Seed must be between",
            "--seed must be 0 to 4294967295, as numpy has it: use another",
        ),
        (
            r'\APlease set "--prefix-size 1"',
            "translations of this model begin with the tag of their language "
            "(prepend_tgt_lang_tag): add --prefix-size 1",
        ),
        (
            r"\A--(lang-pairs|encoder-langtok|decoder-langtok) should ",
            "the checkpoint was trained with other languages: {0}",
        ),
        (
            "--share-all-embeddings requires a joined dictionary",
            "the model shares its embeddings, but the data directory's two dictionaries differ: "
            "use the ones it was trained with",
        ),
        OWN_CHECK,
    ],
    "ConfigCompositionException": [
        (
            r"tokenizer\.",
            "--tokenizer moses needs the languages: add --source-lang and --target-lang",
        )
    ],
    "MissingConfigException": [
        (
            r"Could not find '(bpe|tokenizer)/(\w+)'",
            "--{1} {2} is one that fairseq 0.12 cannot set up: use another",
        )
    ],
    "MissingMandatoryValue": [
        (
            r"\A(?:(?s:.*?)mandatory value: (?:\w+\.)*(\w+))?",
            lambda error, found: (
                f"--{(found[1] or 'a flag').replace('_', '-')} is needed here and missing: add it"
            ),
        )
    ],
    **dict.fromkeys(UNREADABLE_ERRORS, [(r"\A((?s:.*))", UNREADABLE_VALUE)]),
    "BaseException": [
        ("DefaultCPUAllocator: ", OUT_OF_MEMORY),
        (
            r"Neither args nor cfg exist in state|Tensor\.__contains__ only supports",
            "the checkpoint does not hold a model and its settings (args or cfg): name a file as "
            "fairseq-train has saved it",
        ),
        (
            r"size mismatch for (\S+): copying a param with shape (.*?) from checkpoint.*?is "
            r"(torch.Size\(.*?\))",
            "the checkpoint does not fit the dictionaries in the data directory ({1}: {2} in the "
            "checkpoint, {3} here): use the dictionaries it was trained with, and its --langs",
        ),
        (
            r'(?s)Error\(s\) in loading .*?(Missing|Unexpected) key\(s\) in state_dict: "([^"]+)"',
            "the checkpoint's weights are not those of its architecture ({1}: {2}): it is "
            "damaged, or needs its own --user-dir",
        ),
        (
            "(?s)(Incorrect dictionary format.*|Duplicate word found.*)",
            "a dictionary cannot be read ({1}): make it with fairseq-preprocess",
        ),
        (
            "Incorrect encoding detected in ([^,]*)",
            "the dictionary {1} is not valid UTF-8: make it with fairseq-preprocess",
        ),
        (r"\A(Failed to load config from .*)", "{1}: correct that file"),
        ("malformed node or string", NOT_A_LITERAL),
        (
            "(?s)(?=.*is invalid)(?=.*max_positions)",
            lambda error, found: f"{str(error).rstrip('.')}; or shorten that sentence",
        ),
        (
            # of fairseq, numpy and torch about a damaged binarised data set, also from a process
            # that reads batches
            r"Index file doesn't match|(?:offset must be non-negative|buffer is smaller than "
            r"requested)[^\n]*\s*$",
            lambda error, found: damaged_data(str(error).splitlines()[-1]),
        ),
    ],
}


def explain(error: BaseException) -> str | None:
    """Return the sentence for an error; None if it is not a known mistake."""
    text = str(error)
    rows = (MISTAKES.get(kind.__name__, ()) for kind in type(error).__mro__)
    for pattern, sentence in itertools.chain.from_iterable(rows):
        if not (found := re.search(pattern, text)):
            continue
        if isinstance(sentence, str):
            groups = (group or "" for group in found.groups())
            return sentence.format(text, *(g if is_path(g) else cut(g) for g in groups))
        if (said := sentence(error, found)) is not None:
            return said
    return None


@contextlib.contextmanager
def in_one_sentence() -> Iterator[None]:
    """Raise UsageError for the known mistakes in flags that fairseq finds; its errors about files
    and memory are not changed."""
    try:
        yield
    except (UsageError, OSError, RuntimeError, MemoryError):
        raise
    except Exception as error:
        if (sentence := explain(error)) is None:
            raise
        raise UsageError(sentence) from error


def report(kind: type[BaseException], error: BaseException, trace) -> None:
    """Print one sentence on standard error for a known mistake, the usual traceback otherwise."""
    seen: BaseException | None = error
    sentence = None
    while seen is not None and sentence is None:
        sentence = explain(seen)
        seen = seen.__cause__ or seen.__context__
    if sentence is None or os.environ.get("FAIRSEQ_EXT_TRACEBACK"):
        sys.__excepthook__(kind, error, trace)
    if sentence is not None:
        # core/exit.py reports this error; a closed stream has none
        with contextlib.suppress(OSError, AttributeError):
            sys.stdout.flush()
        print(f"error: {shortened(sentence)}", file=sys.stderr)

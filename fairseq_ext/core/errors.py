"""Error messages: one sentence instead of a traceback, with the problem, its place and a remedy.

This package raises `UsageError` for a wrong combination or input. The commands are fairseq's own,
so this module also has sentences for errors that fairseq raises after common mistakes. An exception
hook (core/exit.py) prints them; it does not change other errors. Set FAIRSEQ_EXT_TRACEBACK=1 to see
the traceback as well.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys

MAX_QUOTATION = 80  # characters of a quotation in a message, except for paths
MAX_PATH = 4096  # characters; a longer text is not a path
QUOTED = re.compile(r"(?<!\w)'([^'\n]{81,})'(?!\w)")
# messages of fairseq, numpy and torch about a damaged binarised data set, also from a process
# that reads batches
DAMAGED_DATA = re.compile(
    r"Index file doesn't match|(?:offset must be non-negative|buffer is smaller than "
    r"requested)[^\n]*\s*$"
)
UNREADABLE_ERRORS = (
    "OverrideParseException",
    "InterpolationKeyError",
    "InterpolationResolutionError",
    "UnsupportedInterpolationType",
    "GrammarParseError",
)
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
    with contextlib.suppress(OSError):
        names = sorted(
            name
            for name in os.listdir(os.path.dirname(path))
            if name.startswith("dict.") and name.endswith(".txt")
        )
        return (
            f" (there {'is' if len(names) == 1 else 'are'} {cut(', '.join(names))})"
            if names
            else ""
        )
    return ""


def damaged_data(why: str) -> str:
    """Return the sentence for a binarised data set that cannot be used."""
    way_out = (
        "it is damaged, or of another --dataset-impl or dictionary; make it again with "
        "fairseq-preprocess"
    )
    return f"the data set cannot be read ({cut(why)}): {way_out}"


def explain(error: BaseException) -> str | None:
    """Return the sentence for an error; None if it is not a known mistake."""
    text = str(error)
    if isinstance(error, UsageError):
        return text
    if isinstance(error, OSError) and "Model file not found" in text:
        return f"{text}: --path names one checkpoint, or several joined by colons"
    if isinstance(error, OSError) and (
        "is not a checkpoint" in text or "unpickling a class can run code" in text
    ):
        return text
    if isinstance(error, OSError) and "runs code from checkpoints" in text:
        return text
    if type(error).__name__ == "Refused" and "is not evaluated because" in text:
        return text
    if "Too many open files" in text:
        return (
            "too many files are open: allow more (ulimit -n), or read batches without processes of "
            "their own (--num-workers 0)"
        )
    if isinstance(error, MemoryError) or "DefaultCPUAllocator: " in text:
        return (
            "memory has run out: translate fewer sentences at once (--batch-size, --max-tokens), "
            "or a smaller --beam"
        )
    if text == "--path required for generation!":
        return "no model is named: add --path MODEL.pt"
    if "Neither args nor cfg exist in state" in text:
        return (
            "the checkpoint holds no settings of its model (neither args nor cfg): name a file as "
            "fairseq-train has saved it"
        )
    if "Tensor.__contains__ only supports" in text:
        return (
            "the checkpoint holds a tensor instead of a model and its settings: name a file that "
            "fairseq-train has saved"
        )
    if (
        "Error(s) in loading state_dict" in text
        and ("Missing key" in text or "Unexpected key" in text)
        and "size mismatch" not in text
    ):
        found = re.search(r'(Missing|Unexpected) key\(s\) in state_dict: "([^"]+)"', text)
        lacks = (
            f"it {'lacks' if found[1] == 'Missing' else 'has'} {found[2]}"
            if found
            else "their names differ"
        )
        return (
            f"the checkpoint's weights are not those of its architecture ({lacks}): it is damaged, "
            "or needs its own --user-dir"
        )
    # fairseq's message for an unknown architecture
    if isinstance(error, IndexError) and "Replacement index" in text:
        return (
            "the checkpoint's architecture is unknown to fairseq: name the --user-dir "
            "that registers it"
        )
    if "Incorrect dictionary format" in text:
        return (
            f"the dictionary has a line that is not 'token count' ({cut(text.rpartition(': ')[2])}"
            "): make it with fairseq-preprocess"
        )
    if "Incorrect encoding detected in " in text:
        return (
            f"the dictionary {text.partition(' in ')[2].partition(',')[0]} is not valid UTF-8: "
            "make it with fairseq-preprocess"
        )
    if "Duplicate word found when loading Dictionary" in text:
        return (
            f"the dictionary has a word twice ({cut(text.partition(': ')[2].partition('.')[0])}): "
            "make it with fairseq-preprocess"
        )
    if "Search parameters are mutually exclusive" in text:
        return (
            "--sampling, --diverse-beam-groups, --diversity-rate and --match-source-len each "
            "choose continuations: leave all but one out"
        )
    if type(error).__name__ == "ConfigCompositionException" and "tokenizer." in text:
        return "--tokenizer moses needs the languages: add --source-lang and --target-lang"
    if type(error).__name__ == "MissingConfigException" and (
        found := re.search(r"Could not find '(bpe|tokenizer)/(\w+)'", text)
    ):
        return f"--{found[1]} {found[2]} is one that fairseq 0.12 cannot set up: use another"
    if isinstance(error, KeyError) and (found := re.fullmatch(r"'\w+:(\S+-\S+)'", text)):
        return (
            f"the data directory has no such subset of {found[1]}: binarise it with "
            "fairseq-preprocess, or name another by --gen-subset"
        )
    if type(error).__name__ == "MissingMandatoryValue":
        found = re.search(r"Missing mandatory value: (?:\w+\.)*(\w+)", text)
        return (
            f"--{(found[1] if found else 'a flag').replace('_', '-')} is needed here "
            "and missing: add it"
        )
    if isinstance(error, NotImplementedError) and "Unknown post_process option: " in text:
        return (
            f"--post-process (--remove-bpe) {cut(text.partition(': ')[2])} is unknown to fairseq: "
            "use sentencepiece or subword_nmt"
        )
    # messages of ast.literal_eval
    if "malformed node or string" in text or (
        isinstance(error, SyntaxError) and error.filename == "<unknown>"
    ):
        return (
            "a flag, or a setting of the checkpoint, must be a number or a list: correct it "
            "(--verbose shows where)"
        )
    if (
        isinstance(error, AssertionError)
        and "world size is" in text
        and "available devices" in text
    ):
        return (
            f"--distributed-world-size: the {text}; a search runs in one process: "
            "leave the flag out"
        )
    if isinstance(error, ValueError) and "Seed must be between" in text:
        return "--seed must be 0 to 4294967295, as numpy has it: use another"
    if isinstance(error, ImportError) and text.startswith("fairseq_ext is a plug-in for fairseq"):
        return text
    if isinstance(error, ModuleNotFoundError) and error.name in SERVER_PACKAGES:
        return (
            f"the server needs {error.name}, which is not installed: pip install "
            "'fairseq_ext[serve]'"
        )
    if isinstance(error, ImportError) and "sacremoses" in text:
        return "--tokenizer moses needs sacremoses: pip install sacremoses"
    if isinstance(error, ImportError) and (
        found := re.match(r"Please install .*with: *(pip install (\S+))", text)
    ):
        return f"--bpe or --tokenizer needs {found[2]}, which is not installed: {found[1]}"
    if isinstance(error, ValueError) and text.startswith('Please set "--prefix-size 1"'):
        return (
            "translations of this model begin with the tag of their language "
            "(prepend_tgt_lang_tag): add --prefix-size 1"
        )
    if isinstance(error, ValueError) and re.match(
        r"--(lang-pairs|encoder-langtok|decoder-langtok) should ", text
    ):
        return f"the checkpoint was trained with other languages: {text}"
    if text.startswith("Failed to load config from "):
        return f"{text.splitlines()[0]}: correct that file"
    if isinstance(error, FileNotFoundError) and text.startswith("Dict not found: "):
        return (
            f"no dictionary at {text.partition(': ')[2]}: the configuration of the data names "
            "it (vocab_filename)"
        )
    if isinstance(error, OSError) and re.fullmatch(r"file (.*) not found", text):
        return f"{text}: correct the path of the segmentation model"
    if isinstance(error, IsADirectoryError):
        named = error.filename if error.filename else "a name given as a file"
        return f"{named} is a folder, and a file is needed: name the file in it"
    if isinstance(error, FileNotFoundError) and error.filename == "":
        return "a file is given without a name: name one, or leave its flag out"
    # fairseq reads this file for --replace-unk without a value
    if isinstance(error, FileNotFoundError) and error.filename == "@@ ":
        return (
            "--replace-unk needs the file of an alignment dictionary: name one, or write '' after "
            "it to copy source words"
        )
    if isinstance(error, FileNotFoundError) and error.filename and "dict." not in text:
        return f"{error.filename} does not exist: correct the path"
    if isinstance(error, FileNotFoundError) and os.path.basename(str(error.filename)) == "dict.txt":
        return f"no dictionary at {error.filename}: name the data directory that has the model's"
    if isinstance(error, FileNotFoundError) and "dict." in text:
        has = list_dictionaries(str(error.filename))
        return (
            f"no dictionary at {error.filename}{has}: the data directory needs dict.SOURCE.txt and "
            "dict.TARGET.txt of the model"
        )
    if isinstance(error, FileNotFoundError) and "Dataset not found" in text:
        return (
            f"{text.removeprefix('Dataset not found: ')}: binarise that subset with "
            "fairseq-preprocess, or name another by --gen-subset"
        )
    # fairseq's message is only the path
    if isinstance(error, FileNotFoundError) and error.errno is None and os.path.isabs(text):
        return f"--user-dir {text} does not exist: correct the path"
    if "size mismatch" in text:
        found = re.search(
            r"size mismatch for (\S+): copying a param with shape (.*?) from checkpoint.*?is "
            r"(torch.Size\(.*?\))",
            text,
        )
        where = f" ({found[1]}: {found[2]} in the checkpoint, {found[3]} here)" if found else ""
        fits = f"the checkpoint does not fit the dictionaries in the data directory{where}"
        return f"{fits}: use the dictionaries it was trained with, and its --langs"
    if isinstance(error, UnicodeEncodeError) and not error.encoding.lower().replace(
        "-", ""
    ).startswith("utf8"):
        return (
            f"the output is written in {error.encoding}, which has no "
            f"{error.object[error.start]!r}: set PYTHONIOENCODING=utf-8"
        )
    if isinstance(error, UnicodeError):
        return (
            f"the input is not valid UTF-8 ({text}): convert it first, for example with "
            "iconv -f latin1 -t utf-8"
        )
    if "is invalid" in text and "max_positions" in text:
        return f"{text.rstrip('.')}; or shorten that sentence"
    if "--share-all-embeddings requires a joined dictionary" in text:
        return (
            "the model shares its embeddings, but the data directory's two dictionaries differ: "
            "use the ones it was trained with"
        )
    if isinstance(error, (AssertionError, ValueError)) and text.startswith("--"):
        return f"{text} (a check of fairseq's own)"
    if DAMAGED_DATA.search(text) and isinstance(error, (AssertionError, ValueError, IndexError)):
        return damaged_data(text.splitlines()[-1])
    if (
        type(error).__module__ in ("hydra.errors", "omegaconf.errors")
        and type(error).__name__ in UNREADABLE_ERRORS
    ):
        return (
            f"a flag's value is read as more than text ({cut(text)}): leave ${{ and "
            "backslashes out of it"
        )
    if "Cannot load model parameters from checkpoint" in text:
        return (
            f"{text}: name the architecture's --user-dir, or use the dictionaries it "
            "was trained with"
        )
    return None


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

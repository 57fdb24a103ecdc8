"""`python -m fairseq_ext.translate --data DATA [--path MODEL.pt] [-s de -t en] [any decoding
flag] < LINES > TRANSLATIONS`"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_ext.core import command_line
from fairseq_ext.core.errors import LONE_SURROGATE, UsageError
from fairseq_ext.core.files import sha256
from fairseq_ext.kernels.beam import STEPS, CompiledBatch, CompiledSentence, SearchResult
from fairseq_ext.kernels.image import Image, save
from fairseq_ext.kernels.library import build, library, loaded, new, pointer, private_folder

# lines that are translated together, unless they are typed; exit status if a line failed
BUFFER, BAD_LINES = 1000, 3
INSIDE = re.compile(r"[.?!。！？].*\S")  # matches a line that may have several sentences


def load(arguments: list[str]) -> Any:
    """Load the model like the other commands, and save it for the next start.

    Errors: UsageError; those of fairseq's loading.
    """
    import fairseq_ext.plugin.tasks  # noqa: F401  registers the tasks
    from fairseq_ext.plugin.loading.model import add_model, flags_of
    from fairseq_ext.translator import Translator

    parse = ArgumentParser(
        "python -m fairseq_ext.translate",
        description="Translate the lines of standard input, each by itself. The prepared model is "
        "kept in the cache folder, so that the next start with the same flags needs no torch.",
        epilog="Every other flag is one of fairseq-interactive's or of this package (python -m "
        "fairseq_ext). exit codes: 0 all lines are translated; 1 an error, which is reported in "
        "one sentence; 3 some lines are empty, with the reasons on standard error",
        allow_abbrev=False,
    )
    add_model(parse)
    parse.add_argument(
        "--buffer-size",
        metavar="N",
        help=f"lines that are translated together (default: {BUFFER}; 1 on a terminal)",
    )
    flags = flags_of(*parse.parse_known_args(arguments))
    begun = stamps_of_model(flags)
    translator = Translator(**flags)
    if stamps_of_model(flags) == begun:  # else the model may come from replaced files
        keep(arguments, flags, translator)
    return translator


def main(arguments: list[str]) -> int:
    """Run the command; return the exit code."""
    given = (command_line.values_of("--buffer-size", arguments) or [str(BUFFER)])[-1]
    if not given.isdecimal() or not int(given):
        raise UsageError(
            f"--buffer-size is {given}: give the number of lines that are translated "
            "together, 1 or more"
        )
    if (files := command_line.values_of("--input", arguments)) and files[-1] != "-":
        raise UsageError(
            f"--input {files[-1]}: this command reads standard input: write < {files[-1]}"
        )
    if sys.stdin is None:
        raise UsageError("standard input is closed: give lines there")
    size = 1 if sys.stdin.isatty() else int(given)
    model = None if command_line.has_help_flag() else find(arguments)
    translator = None if model else load(arguments)
    status = first = 0
    while raw := list(itertools.islice(sys.stdin.buffer, size)):
        lines = [line.rstrip(b"\r\n").decode("utf-8", "surrogateescape") for line in raw]
        found: Sequence[str] | None = model(lines) if model else None
        for i, line in enumerate(
            lines if found is not None and any(map(INSIDE.search, lines)) else ()
        ):
            from fairseq_ext.text.splitter import warning

            if said := warning(line, f"line {first + i + 1}"):
                print(f"warning: {said}", file=sys.stderr)
        if found is None:
            from fairseq_ext.search.constraints.from_python import Call

            translator = translator or load(arguments)
            nbest = translator.translate_part(lines, Call(nbest=1, first=first), "return", None)
            for error in (each for each in nbest if isinstance(each, UsageError)):
                status = BAD_LINES
                print(f"error: {error}", file=sys.stderr)
            found = ["" if isinstance(each, UsageError) else each[0].text for each in nbest]
        print(*found, sep="\n", flush=True)
        first += len(lines)
    return status


# ---- The compiled beam search on a model that is mapped from an image
#
# It does the same as model/transformer/ and search/compiled.py, its definition, without torch.
#
# Shapes: S sentences, N tokens of all of them, T source width, L layers, H heads, h = d / H, P
# positions of a slot, k beam.


# largest number of sentences of a batch; initial KV cache positions: in total, plus per row
MAX_BATCH, FIRST_POSITIONS, FIRST_STEPS = 64, 32, 8


def cache(of: np.ndarray) -> tuple:
    """Return the address and strides of keys and values (L, 2, S, H, P, h)."""
    return pointer(of), *(stride // of.itemsize for stride in of.strides[:4]), of.shape[4]


class SavedModel:
    """A saved model with the flags of its search: a function from lines to their translations."""

    def __init__(self, image: Image):
        import sentencepiece

        self.image, self.about = image, image.about
        self.rules = image.structure("rules", "Rules")
        self.reader = image.structure("reader", "Reader")
        # what totals of hypotheses are divided by, by length
        self.divisors = np.ones(self.reader.room + 2, np.float32)
        if self.rules.normalize:
            lengths = range(1, len(self.divisors))
            self.divisors[1:] = [length ** self.about["lenpen"] for length in lengths]
        self.rules.divisor = pointer(self.divisors)
        self.segment = sentencepiece.SentencePieceProcessor(
            model_file=self.about["segmentation"]
        ).encode
        self.ids = {word: i for i, word in enumerate(self.about["source"])}

    def __call__(self, lines: Sequence[str]) -> list[str] | None:
        """Return the translations; None if a line needs a function that only the loaded model
        has."""
        about, text = self.about, [line if line.strip() else "" for line in lines]
        if any(map(LONE_SURROGATE.search, text)):
            return None
        pieces = [" ".join(self.segment(line, out_type=str)).split() for line in text]
        tokens = [
            [*(self.ids.get(piece, about["unk"]) for piece in each), self.rules.eos]
            for each in pieces
        ]
        limits = [
            min(int(about["max_len_a"] * len(each) + about["max_len_b"]), about["max_len"] - 1)
            for each in tokens
        ]
        if max(map(len, tokens)) > about["longest"] or not all(
            self.rules.min_len <= limit < self.reader.room for limit in limits
        ):
            return None
        order = sorted(
            (i for i, each in enumerate(tokens) if len(each) > 1), key=lambda i: len(tokens[i])
        )
        out = [""] * len(lines)
        for some in (order[i : i + MAX_BATCH] for i in range(0, len(order), MAX_BATCH)):
            for i, found in zip(
                some, self.search([tokens[i] for i in some], [limits[i] for i in some]), strict=True
            ):
                if not found:
                    return None
                words = (
                    about["target"][token] for token in found if token not in about["left_out"]
                )
                out[i] = "".join(words).replace(" ", "").replace("\u2581", " ").strip()
        return out

    def encode(self, sentences: Sequence[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Return the source's keys and values (L, 2, S, H, T, h), and its mask (S, T), -inf at
        padding."""
        image, compiled, lengths = self.image, loaded(), np.array([len(each) for each in sentences])
        position = np.concatenate([np.arange(n) for n in lengths])
        x = image.array("embedding")[np.concatenate(sentences)].astype(np.float64) * np.float32(
            self.about["scale"]
        )
        # (N, d) rounded once, as in torch
        x = (x + image.array("positions")[position]).astype(np.float32)
        start = np.concatenate([[0], lengths.cumsum()])
        both = np.empty((len(x), 2 * self.reader.d), np.float32)
        compiled.encode(image.structure("encoder"), pointer(x), pointer(start), len(sentences))
        is_word = np.arange(lengths.max()) < lengths[:, None]  # (S, T)
        source = np.zeros(
            (
                self.about["layers"],
                *is_word.shape,
                2,
                self.about["heads"],
                self.reader.d // self.about["heads"],
            ),
            np.float32,
        )
        for layer, block in enumerate(source):
            compiled.linear(image.structure(f"cross{layer}"), pointer(x), len(x), pointer(both), 0)
            block[is_word] = both.reshape(-1, *block.shape[2:])
        return np.ascontiguousarray(source.transpose(0, 3, 1, 4, 2, 5)), np.where(
            is_word, np.float32(0), np.float32(-np.inf)
        )

    def search(self, sentences: Sequence[list[int]], limits: Sequence[int]) -> list[list[int]]:
        """Return the best tokens of each sentence, EOS included; an empty list if the compiled
        search found none."""
        rules, reader, rows = self.rules, self.reader, len(sentences) * self.rules.k
        source, mask = self.encode(sentences)
        lenpen = self.about["lenpen"]
        target = np.empty(
            (*source.shape[:4], FIRST_POSITIONS + FIRST_STEPS * rules.k, source.shape[5]),
            np.float32,
        )
        step = new("Step", sentences=len(sentences), source=cache(source), target=cache(target))
        step.source_mask = pointer(mask if mask.any() else None)
        x = np.empty((rows, reader.d), np.float32)
        logits = np.empty((rows, reader.vocabulary), np.float32)
        reader.step, reader.x, reader.logits, reader.width = step, pointer(x), pointer(logits), rows
        searched, batch = (
            [CompiledSentence(rules, rules.k, rules.k) for _ in sentences],
            CompiledBatch(),
        )
        for slot, (sentence, limit) in enumerate(zip(searched, limits, strict=True)):
            sentence.start_(rules.eos, limit, slot, 1, 0.0, lenpen, 0, 0, 0)
        while live := [sentence for sentence in searched if sentence.is_live]:
            batch.set_sentences_(live)
            if batch.run_steps(STEPS, reader, step) == SearchResult.NO_ROOM and not any(
                [sentence.lengthen_() for sentence in live]
            ):
                target = np.concatenate([target, np.empty_like(target)], axis=4)
                step.target = cache(target)

        def score(hypothesis: tuple[np.ndarray, np.ndarray]) -> np.float32:
            tokens, total = hypothesis
            return total[-1] / np.float32(len(tokens) ** lenpen) if rules.normalize else total[-1]

        found = [
            sentence.hypotheses() if sentence.result == SearchResult.FINISHED else []
            for sentence in searched
        ]
        return [max(each, key=score)[0].tolist() if each else [] for each in found]


# ---- Prepared models in this user's cache folder
#
# One file is saved for each model folder with its flags (kernels/image.py).
#
# Only models that the compiled search can decode without Python code (search/compiled.py), with
# text segmented by SentencePiece, are saved. All others, and models with a changed file, are loaded
# like in the other commands.


MAX_FILES = 8  # the newest ones are kept: each file has all weights
SUPPORTED_FLAGS = frozenset(  # flags whose whole effect is in the saved model
    "batch_size beam bpe buffer_size cpu data int8 lenpen max_len_a max_len_b max_tokens "
    "min_len path no_repeat_ngram_size prune_threshold sentencepiece_model source_lang "
    "stop target_lang task temperature unnormalized".split()
)


def stamps(paths: Iterable[str]) -> dict[str, list[int]]:
    """Return each file's size, time of change and inode number. Errors: OSError."""
    return {
        path: [found.st_size, found.st_mtime_ns, found.st_ino]
        for path in paths
        for found in [os.stat(path)]
    }


def place(arguments: list[str]) -> Path:
    """Return the file for a command's flags; it also depends on the presence of a GPU.

    Errors: RuntimeError, OSError.
    """
    pairs = [word.rpartition("=") for word in arguments]
    values = [
        (name, os.path.abspath(value) if os.path.exists(value) else value)
        for name, _, value in pairs
    ]
    key = json.dumps(
        [values, os.path.exists("/dev/nvidiactl"), os.environ.get("CUDA_VISIBLE_DEVICES")]
    )
    return private_folder() / f"model-{sha256([key.encode()])[:32]}"


def find(arguments: list[str]) -> SavedModel | None:
    """Return the model that was saved for these flags; None if there is no valid one."""
    try:
        image = Image(place(arguments))
        holds = (
            library() is not None
            and stamps([*image.about["files"], str(build())]) == image.about["files"]
        )
        return SavedModel(image) if holds else None
    except (OSError, RuntimeError, ValueError):
        return None


def stamps_of_model(flags: dict[str, Any]) -> dict[str, list[int]]:
    """Return the stamps of the files of a model's folder, and of files that flags name."""
    files = [*Path(flags["data"]).glob("*"), flags.get("path"), flags.get("sentencepiece_model")]
    return stamps(os.path.abspath(each) for each in files if each and os.path.isfile(each))


def keep(arguments: list[str], flags: dict[str, object], translator: Any) -> None:
    """Save a loaded model, a `Translator`, if models of its kind can be saved."""
    from fairseq_ext.kernels.transformer import CompiledReader
    from fairseq_ext.model.transformer.decoder import TransformerBackend, is_compiled_throughout
    from fairseq_ext.plugin.loading.settings import max_tokens_limit, setting, source_limit
    from fairseq_ext.search.compiled import CompiledSearch

    setup, cfg, task = translator.generator.setup, translator.cfg, translator.task
    is_plain = (
        task.registered == "translation_ext"
        and setting(cfg.task, "bpe", "_name") == "sentencepiece"
        and translator.tokenizer is None
    )
    if (
        not is_plain
        or translator.cuda
        or type(setup.decoder) is not TransformerBackend
        or not set(flags) <= SUPPORTED_FLAGS
    ):
        return
    encoder, weights = setup.decoder.encoders[0], setup.decoder.weights[0]
    if (
        not CompiledSearch.supports(setup)
        or not is_compiled_throughout(setup.decoder.weights)
        or setup.scoring.reward
        or encoder is None
        or encoder.compiled is None
        or encoder.positions is None
        or encoder.embedding_norm is not None
    ):
        return
    assert weights.compiled is not None and weights.positions is not None
    output = weights.output.pack()
    cross = [each.cross_source.pack() for each in weights.layers]
    layers = [*encoder.layers, *weights.layers]
    norms = [norm for each in layers for norm in each.norms.values()] + [
        encoder.final_norm,
        weights.final_norm,
        weights.embedding_norm,
    ]
    maps = [each.pack() for layer in layers for each in layer.linears.values()]
    parts = [
        part
        for each in (output, *cross, *maps)
        for part in (each.weight, each.bias, each.scale, each.offset)
    ]
    parts += [part for norm in norms if norm is not None for part in norm.arguments[1:3]] + [
        weights.embedding,
        weights.positions,
    ]
    reader = CompiledReader(
        weights.compiled,
        output,
        weights.embedding,
        weights.scale,
        new("Step"),
        weights.embedding_norm,
    )
    reader.set_positions_(weights.positions, len(weights.positions))
    rules = CompiledSearch(setup).rules
    assert rules is not None  # `supports_unconstrained` of the search
    structures = {
        "rules": rules.struct,
        "reader": reader.struct,
        "output": output.struct,
        "encoder": encoder.compiled.struct,
        "encoder_layers": encoder.compiled.keepalive[0],
        "decoder": weights.compiled.struct,
        "decoder_layers": weights.compiled.keepalive[0],
    } | {f"cross{i}": each.struct for i, each in enumerate(cross)}
    source, target = task.source_dictionary, task.target_dictionary
    files = [cfg.common_eval.path, cfg.bpe.sentencepiece_model]
    files += [
        os.path.join(cfg.task.data, f"dict.{language}.txt")
        for language in (cfg.task.source_lang, cfg.task.target_lang)
    ]
    limits = [
        len(encoder.positions),
        source_limit(translator.max_positions),
        max_tokens_limit(translator.batch_limit),
    ]
    try:
        about = {
            "files": stamps([*map(os.path.abspath, files), str(build())]),
            "segmentation": os.path.abspath(cfg.bpe.sentencepiece_model),
            "source": source.symbols,
            "target": target.symbols,
            "unk": source.unk(),
            "longest": min(filter(None, limits)),
            "left_out": sorted(
                {*translator.generator.symbols_to_strip_from_output, target.bos(), target.eos()}
            ),
            "layers": len(cross),
            "heads": weights.heads,
            "scale": encoder.scale,
            "max_len_a": setup.max_len_a,
            "max_len_b": setup.max_len_b,
            "max_len": setup.max_len,
            "lenpen": setup.scoring.lenpen,
        }
        arrays = {"embedding": encoder.embedding.numpy(), "positions": encoder.positions.numpy()}
        save(
            path := place(arguments),
            about,
            structures,
            arrays,
            [part.numpy() for part in parts if part is not None],
        )
        for old in sorted(path.parent.glob("model-*"), key=lambda each: -each.stat().st_mtime)[
            MAX_FILES:
        ]:
            old.unlink(missing_ok=True)
    except (OSError, RuntimeError):
        # a full disk or missing files: the next start loads the model again
        return


if __name__ == "__main__":
    sys.exit(main(command_line.arguments()))

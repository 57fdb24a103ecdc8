"""A model that writes its source: behind a token the one that follows it there.

It comes in a folder of a user's own (`--user-dir`), with the subword-nmt codes and the dictionaries
of a text, so that it is known beforehand what a search makes of Moses's words.
"""

from __future__ import annotations

from pathlib import Path

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
        self.sure = torch.nn.Parameter(torch.tensor(SURE))

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


def write(
    folder: Path, text: str, pairs: int = 30, sure: float = 12.0, separator: str = "@@"
) -> list[str]:
    """The model for a text, as Moses's tokenizer and subword-nmt cut it. Returns flags of
    fairseq-interactive that name it. pairs: of the codes; sure: logit of the source's token."""
    from argparse import Namespace

    import sacremoses
    import torch
    from fairseq.data import Dictionary
    from subword_nmt.learn_bpe import learn_bpe

    folder.mkdir(exist_ok=True)
    words = sacremoses.MosesTokenizer("de").tokenize(text, aggressive_dash_splits=True)
    codes = folder / "codes"
    with open(codes, "w", encoding="utf-8") as out:
        learn_bpe([" ".join(words)], out, pairs)
    symbols = Dictionary()
    for character in sorted({*"".join(words), *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUV"}):
        symbols.add_symbol(character)
        symbols.add_symbol(f"{character}{separator}")
    for line in codes.read_text(encoding="utf-8").splitlines()[1:]:
        pair = "".join(line.split())
        symbols.add_symbol(pair.removesuffix("</w>"))
        symbols.add_symbol(f"{pair.removesuffix('</w>')}{separator}")
    for entity in ("&amp;", "&quot;", "&apos;", "&#91;", "&#93;", "&#124;", "&lt;", "&gt;"):
        symbols.add_symbol(entity)
    for language in ("de", "en"):
        symbols.save(str(folder / f"dict.{language}.txt"))
    plug = folder / "echo"
    plug.mkdir()
    (plug / "__init__.py").write_text(PLUG.replace("SURE", str(sure)), encoding="utf-8")
    args = Namespace(
        arch="echo_base",
        task="translation",
        criterion="cross_entropy",
        source_lang="de",
        target_lang="en",
        data=str(folder),
    )
    state = {"decoder.sure": torch.tensor(sure)}
    history = [{"criterion_name": "CrossEntropyCriterion", "best_loss": 1.0, "num_updates": 1}]
    extra = {"epoch": 1, "train_iterator": {"epoch": 1}}
    saved = {"args": args, "model": state, "extra_state": extra, "optimizer_history": history}
    torch.save(saved, folder / "checkpoint.pt")
    return [
        str(folder),
        *("--path", str(folder / "checkpoint.pt"), "--user-dir", str(plug), "--cpu"),
        *("-s", "de", "-t", "en", "--tokenizer", "moses", "--bpe", "subword_nmt"),
        *("--bpe-codes", str(codes), "--bpe-separator", separator, "--task", "translation_ext"),
    ]

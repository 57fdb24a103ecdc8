"""The contract's models, and the double precision in which the small ones compute.

The environment variable FAIRSEQ_EXT_STRATEGIES names this file, so that every process that loads a
model imports it: of an engine, of a server, of a corpus.
"""

import shutil
from pathlib import Path

import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.models import BaseFairseqModel

DEMO = Path(__file__).resolve().parents[2] / "checkpoints" / "demo"
SMALL = 1_000_000  # parameters
ALONE = {
    "small": "transformer",
    "pre-norm": "transformer, pre-norm",
    "lstm": "lstm",
    "tied": "transformer, all tied",
}  # and float32: `small` as it is, for the compiled search


def at_least_float(x):
    return torch.promote_types(x.dtype, torch.float32)


def double():
    """Let small models compute in double precision, fairseq's softmax too."""
    ready = BaseFairseqModel.prepare_for_inference_

    def prepare_for_inference_(self, cfg):
        is_small = sum(weight.numel() for weight in self.parameters()) < SMALL
        if is_small and "float32" not in cfg.common_eval.path:
            self.double()
        return ready(self, cfg)

    BaseFairseqModel.prepare_for_inference_ = prepare_for_inference_
    utils.softmax = lambda x, dim, onnx_trace=False: F.softmax(x, dim, dtype=at_least_float(x))
    utils.log_softmax = lambda x, dim, onnx_trace=False: F.log_softmax(
        x, dim, dtype=at_least_float(x)
    )


def save(folder):
    """Save the small models, each from a seed, unless they are there."""
    from saved_models import Saved

    if (folder / "data").exists():
        return
    saved = Saved(folder)
    for name in ALONE.values():
        saved.checkpoint(name)
    shutil.copy(saved.checkpoint("transformer"), folder / "float32.pt")


def flags(model, folder):
    """The keywords of a Translator for a model of the requests: `small`, `small:lstm` (an
    ensemble), `float32`, `en-de` (`tied` in the other direction), or `demo`."""
    segmented = {"bpe": "sentencepiece", "sentencepiece_model": str(DEMO / "spm.model")}
    pair = {"source_lang": "de", "target_lang": "en", "cpu": True}
    if model == "demo":
        return {"path": str(DEMO / "checkpoint.pt"), "data": str(DEMO), **pair, **segmented}
    if model == "en-de":
        pair |= {"source_lang": "en", "target_lang": "de"}
        model = "tied"
    names = [ALONE.get(each, each).replace(",", "").replace(" ", "-") for each in model.split(":")]
    path = ":".join(str(folder / f"{name}.pt") for name in names)
    return {"path": path, "data": str(folder / ("joined" if model == "tied" else "data")), **pair}


double()

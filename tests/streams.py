"""What tests of --schedule stream share: sentences of many lengths, and searches over them."""

from models import build, generators

LENGTHS = [9, 8, 7, 7, 6, 5, 4, 4, 3, 2, 1, 1, 0]  # longest first, as fairseq's batches are
STOCK = ("unnormalized", "min_len", "no_repeat_ngram_size", "lenpen", "score_reference")
LOOSE = {"lstm": 1e-5, "fconv": 1e-5}
JOINED = ["transformer", "transformer-tied", "bart", "lstm"]  # groups can become one
APART = ["fconv", "lightconv"]  # they cannot
PRUNED = {"prune_threshold": 1.0, "prune_children": 3}


def ours(architecture: str = "transformer", seed: int = 2, **flags):
    stock = {name: flags.pop(name) for name in list(flags) if name in STOCK}
    beam = flags.pop("beam", 4)
    return generators(
        [build(architecture, seed)], flags, **({"beam": beam, "max_len_b": 12} | stock)
    ).ours


def stream(width: int = 4, threshold: float = 1 / 6, **flags) -> dict:
    return {"schedule": "stream", "stream_width": width, "refill_threshold": threshold, **flags}


def expansions(generator) -> int:
    return generator.stats.as_dict()["expansions"]

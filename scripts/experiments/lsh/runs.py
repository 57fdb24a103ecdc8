"""Run the searches behind the paper's tables and figures, one sentence at a time.

    python scripts/experiments/lsh/runs.py --model DIR --out DIR [--sentences 100] [--few 20]

DIR of --model is what train.sh made, with `lexicon` from scripts/lexical_table.py. Each search becomes a file of OUT/searches; those
that are there are not repeated. Times are CPU seconds of the one thread that decodes, which other work on the machine lengthens less
than it does the clock; ratios compare searches of one run.
"""

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import sacrebleu
import torch

import fairseq_ext
from fairseq_ext.search.loop import beam_search
from fairseq_ext.softmax import shortlist_stats as softmax_stats

BEAM, PAPER_BEAM = 5, 12
BEST = dict(softmax="lsh", lsh_k=16, lsh_u=3, lsh_bands=100, lsh_hits=2, lsh_top=6000)
FULL: dict[str, Any] = dict(softmax="full")


def settings() -> dict[str, tuple[dict[str, Any], str]]:
    """Label -> flags and which sentences: many, or few."""
    out: dict[str, tuple[dict[str, Any], str]] = {"full": (FULL, "many"), "screened": (dict(softmax="screened"), "many")}
    for T in (2000, 4000, 6000):
        for t in (1, 2, 3):
            out[f"lsh T={T} t={t}"] = (BEST | dict(lsh_top=T, lsh_hits=t), "many")
    out["lsh paper T=6000 t=4"] = (BEST | dict(lsh_k=8, lsh_bands=500, lsh_hits=4), "many")
    for T in (2000, 4000, 6000, 8000):
        out[f"top T={T}"] = (dict(softmax="top", shortlist_top=T), "many")
    for words in (5, 20, 50):
        out[f"lexical N={words}"] = (dict(softmax="lexical", shortlist_top=200, shortlist_words=words), "many")
    for beam in (PAPER_BEAM, 6, 3, 1):
        for name, flags in (("full", FULL), ("lsh", BEST)):
            out[f"{name} beam={beam}"] = (flags | dict(beam=beam), "many")
    for beam in (24, 36, 48):
        for name, flags in (("full", FULL), ("lsh", BEST)):
            out[f"{name} beam={beam}"] = (flags | dict(beam=beam), "few")
    return out


class Parts:
    """CPU seconds of what the loop calls, by wrapping it."""

    def __init__(self, generator: Any):
        self.seconds: dict[str, float] = {}
        self.wrap(generator.decoder, "admit", "source side")
        self.wrap(generator.decoder, "step", "decoder layers")
        self.wrap(generator.decoder, "select", "hidden states reorder")
        for name in ("softmax", "select"):
            self.wrap(generator.plugs, name, {"softmax": "softmax", "select": "beam expansion"}[name])
        self.wrap(generator.setup, "processors", "beam expansion")

    def wrap(self, owner: Any, name: str, part: str) -> None:
        self.seconds.setdefault(part, 0.0)
        setattr(owner, name, Timed(getattr(owner, name), part, self.seconds))


class Timed:
    """Something that is called, with its attributes."""

    def __init__(self, inner: Any, part: str, seconds: dict[str, float]):
        self.inner, self.part, self.seconds = inner, part, seconds

    def __call__(self, *arguments: Any) -> Any:
        start = time.thread_time()
        out = self.inner(*arguments)
        self.seconds[self.part] += time.thread_time() - start
        return out

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def search(args: argparse.Namespace, flags: dict[str, Any], every: int) -> dict[str, Any]:
    """Translate every so many lines of the test set."""
    texts = []
    for side in ("src", "tgt"):
        with (args.model / f"test.{side}").open(encoding="utf-8") as lines:
            texts.append([line.rstrip("\n") for line in lines][::every])
    source, target = texts
    model = str(args.model / "checkpoint.pt")
    translator = fairseq_ext.Translator(
        model, str(args.model), source_lang="src", target_lang="tgt", cpu=True, batch_size=1, **(dict(beam=BEAM) | flags)
    )
    if flags["softmax"] not in ("full", "screened"):
        translator.generator.plugs.softmax.measured.every = 0  # recall is measured in a run of its own
    translator.translate(source[:2])
    parts = Parts(translator.generator)
    before, start = translator.stats.copy(), time.thread_time()
    found = translator.translate(source)
    seconds = time.thread_time() - start
    counts = translator.stats.since(before).as_dict()
    if not parts.seconds["decoder layers"]:  # compiled code, which has no parts to be timed, ran the whole search: the loop has
        translator.generator.driver = partial(beam_search, translator.generator.setup)
        translator.translate(source)
    out = {"seconds": seconds, "parts": dict(parts.seconds), "sentences": len(source), "calls": counts["decoder_calls"]}
    out["bleu"] = sacrebleu.corpus_bleu([nbest[0].text for nbest in found], [target], tokenize="none", force=True).score
    out["signature"] = translator.signature
    out["softmax"] = counts.get("softmax", {})
    out["texts"] = [nbest[0].text for nbest in found]
    if flags["softmax"] not in ("full", "screened"):
        translator.generator.plugs.softmax.inner.measured.every = 1
        translator.translate(source[:: max(1, len(source) // 15)])
        out["recall"] = {key: translator.stats.as_dict()["softmax"].get(key) for key in ("recall_at_k", "recall_at_1", "recall_rows")}
    return out


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parse.add_argument("--model", type=Path, required=True)
    parse.add_argument("--out", type=Path, required=True)
    parse.add_argument("--sentences", type=int, default=100, help="of the 3,000 of the test set, spread evenly (100)")
    parse.add_argument("--few", type=int, default=20, help="sentences for beams above 12 (20)")
    args = parse.parse_args()
    torch.set_num_threads(1)
    softmax_stats.CLOCK = time.CLOCK_THREAD_CPUTIME_ID
    (args.out / "searches").mkdir(parents=True, exist_ok=True)
    found = {}
    for label, (flags, which) in settings().items():
        file = args.out / "searches" / f"{label.replace(' ', '_')}.json"
        if not file.exists():
            print(label, file=sys.stderr, flush=True)
            if flags["softmax"] == "lexical":
                flags = flags | dict(shortlist_file=str(args.model / "lexicon"))
            every = max(1, 3000 // (args.sentences if which == "many" else args.few))
            result = search(args, flags, every) | {"flags": {k: v for k, v in flags.items() if k != "shortlist_file"}}
            file.write_text(json.dumps(result, ensure_ascii=False), encoding="utf-8")
        found[label] = json.loads(file.read_text(encoding="utf-8"))
    (args.out / "runs.json").write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()

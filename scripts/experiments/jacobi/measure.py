"""Greedy decoding and every parallel method, one sentence at a time, against each other: calls,
time, BLEU (Tables 1, 2, 6 and 7).

    python scripts/experiments/jacobi/measure.py --model DIR --text PREFIX --out RESULT.json

DIR holds checkpoint.pt, dict.*.txt and spm.model. Contenders run in turn (A B A B); a ratio is the
median over rounds. Time is the process' CPU time on one thread, which other work on the machine
disturbs less than the clock does, and on --threads above 1 the clock's. Outputs must equal stock's
at beam 1.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "bench"))

from contenders import OURS, load, read  # noqa: E402
from harness import Contender, compare  # noqa: E402
from report import named  # noqa: E402
from text import Text, command_line, prepare, run_script  # noqa: E402

STOCK = "fairseq greedy"
GREEDY = "our greedy"  # the same driver with single tokens: the fair comparison
WINDOW = ["--decoding", "window"]
SEARCHES: dict[str, list[str]] = {
    STOCK: ["--beam", "1"],
    "fairseq beam 5": ["--beam", "5"],
    "our beam search, beam 1": [],
    GREEDY: [*WINDOW, "--draft", "none"],
    "PJ": ["--decoding", "jacobi", "--draft", "pad"],
    "PGJ b=5": ["--decoding", "gs-jacobi", "--block-size", "5", "--draft", "pad"],
    "PGJ b=3": ["--decoding", "gs-jacobi", "--block-size", "3", "--draft", "pad"],
    "HGJ b=3": ["--decoding", "hybrid-jacobi", "--block-size", "3", "--draft", "pad"],
    "window, pad": [*WINDOW, "--draft", "pad"],
    "window, repeat": [*WINDOW, "--draft", "repeat"],
    "window, previous output": [*WINDOW, "--draft", "none", "--draft-file", "{previous}"],
    "window, output of an edited source": [*WINDOW, "--draft-file", "{edited}"],
}


class Decoding:
    """One search over one text."""

    def __init__(self, text: Text, name: str, flags: list[str], batch: int):
        self.ours = name not in (STOCK, "fairseq beam 5")
        base = [*(OURS if self.ours else ()), *text.flags]
        base += ["--cpu", "--batch-size", str(batch), "--beam", "1"]
        self.loaded = load([*base, *flags])
        self.generator = self.loaded.task.build_generator(
            self.loaded.models, self.loaded.cfg.generation
        )
        self.counts: dict[str, Any] = {}
        # of each run, for each batch: output tokens with EOS, calls, CPU seconds
        self.rounds: list[list[tuple[int, int, float]]] = []
        self.order: list[int] = []  # sentences in the order of the batches

    @property
    def signature(self) -> str:
        return self.generator.stats.signature if self.ours else "fairseq"

    @property
    def calls(self) -> int:
        """Decoder calls so far."""
        return self.generator.stats.decoder_calls if self.ours else 0

    def sentences(self, rounds: int) -> dict[str, list]:
        """What each sentence took: tokens and calls, and CPU seconds summed over the last
        rounds; in batches of one."""
        last = self.rounds[-rounds:]
        tokens, calls, _ = zip(*last[-1], strict=True)
        seconds = [sum(one[i][2] for one in last) for i in range(len(tokens))]
        return {"tokens": list(tokens), "calls": list(calls), "seconds": seconds}

    def run(self) -> list:
        if self.ours:
            before = self.generator.stats.copy()
        loaded, out, each = self.loaded, [], []
        self.order = []
        for batch in loaded.batches:
            calls, begin = self.calls, time.process_time()
            found = loaded.task.inference_step(self.generator, loaded.models, batch)
            each.append(
                (
                    sum(len(nbest[0]["tokens"]) for nbest in found),
                    self.calls - calls,
                    time.process_time() - begin,
                )
            )
            out.append((batch["id"].tolist(), found))
            self.order += batch["id"].tolist()
        self.rounds.append(each)
        if self.ours:
            counted = self.generator.stats.since(before).as_dict()
            names = ("decoder_calls", "decoder_rows", "decoder_positions", "target_tokens")
            self.counts = {name: counted[name] for name in names} | counted.get("parallel", {})
        return out


def examples(
    text: Text, decodings: dict[str, Decoding], outputs: dict, chosen: list[int]
) -> list[dict[str, Any]]:
    """Some sentences with each method's output, its seconds in the last round (batches of one) and
    BLEU: the paper's examples (its second Table 7)."""
    import sacrebleu

    lines = {name: text.lines(found) for name, found in outputs.items() if found and chosen}
    found = []
    for i in chosen:
        rows = {}
        for name, of_name in lines.items():
            decoding = decodings[name]
            bleu = sacrebleu.sentence_bleu(of_name[i], [text.references[i]]).score
            seconds = decoding.rounds[-1][decoding.order.index(i)][2]
            rows[name] = {"text": of_name[i], "seconds": seconds, "bleu": bleu}
        found.append({"source": text.sources[i], "reference": text.references[i], "rows": rows})
    return found


def edited(line: str) -> str:
    """A source line without the word in its middle: an edit that changes the output
    there and often behind."""
    words = line.split()
    middle = len(words) // 2
    return " ".join(words[:middle] + words[middle + 1 :])


def write_drafts(folder: Path, texts: dict[str, Text]) -> None:
    """What greedy decoding gives now (`previous`), and for the edited source (`edited`),
    as draft files."""
    for name, text in texts.items():
        decoding = Decoding(text, GREEDY, SEARCHES[GREEDY], 32)
        dictionary = decoding.loaded.task.target_dictionary
        lines = [" ".join(dictionary[t] for t in best[0][0][:-1]) for best in read(decoding.run())]
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def main() -> None:
    parse = command_line(__doc__)
    parse.add_argument("--model", type=Path, required=True)
    parse.add_argument("--text", required=True)
    parse.add_argument("--src", default="de")
    parse.add_argument("--tgt", default="en")
    parse.add_argument("--limit", type=int, default=100, help="sentences (100)")
    parse.add_argument("--batch", type=int, default=1, help="sentences at a time (1)")
    parse.add_argument("--repeats", type=int, default=3)
    parse.add_argument("--threads", type=int, default=1)
    parse.add_argument(
        "--only", nargs="+", help="these searches only (fairseq greedy and ours always)"
    )
    parse.add_argument(
        "--examples", type=int, nargs="*", default=[1], help="lines shown, from 1 (1); batch 1 only"
    )
    parse.add_argument(
        "--counts-only",
        action="store_true",
        help="calls and BLEU without times, for a machine that others use",
    )
    parse.add_argument("--out", type=Path, required=True)
    args = parse.parse_args()
    if wrong := [n for n in args.examples if not 1 <= n <= args.limit]:
        parse.error(f"--examples {wrong[0]} is none of the {args.limit} lines of --limit")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = prepare(folder / "bin", args.model, args.text, args.src, args.tgt, args.limit)
        sides = {args.src: map(edited, text.sources), args.tgt: text.references}
        for language, side in sides.items():
            lines = "".join(line + "\n" for line in side)
            (folder / f"source.{language}").write_text(lines, encoding="utf-8")
        pair = (args.src, args.tgt)
        other = prepare(folder / "other", args.model, str(folder / "source"), *pair)
        write_drafts(folder, {"previous": text, "edited": other})
        places = {name: folder / name for name in ("previous", "edited")}
        chosen = [n for n in SEARCHES if args.only is None or n in (STOCK, GREEDY, *args.only)]
        decodings = {
            n: Decoding(text, n, [flag.format(**places) for flag in SEARCHES[n]], args.batch)
            for n in chosen
        }
        contenders = [
            Contender(n, d.run, read, exact=n != "fairseq beam 5") for n, d in decodings.items()
        ]
        clock = time.process_time if args.threads == 1 else time.perf_counter
        how = dict(threads=args.threads, bleu=text.bleu, clock=clock)
        result = compare(contenders, args.repeats, **how)
        outputs = {one.contender.name: one.outputs for one in result.results}
        is_timed = not args.counts_only
        chosen = [n - 1 for n in args.examples] if args.batch == 1 and is_timed else []
        shown = examples(text, decodings, outputs, chosen)
    rows = {}
    for one in result.results:
        name, decoding = one.contender.name, decodings[one.contender.name]
        speed = {over: is_timed and result.speed_up(name, over) for over in (STOCK, GREEDY)}
        by_sentence = args.batch == 1 and args.threads == 1 and is_timed
        rows[name] = decoding.counts | {
            "bleu": one.bleu,
            "equal": one.same_best,
            "seconds": one.seconds,
            "signature": decoding.signature,
            "each": decoding.sentences(args.repeats) if by_sentence else None,
            "speed": {over: [s.median, s.low, s.high] if s else None for over, s in speed.items()},
        }
    about = {
        "model": named(args.model),
        "text": named(args.text),
        "pair": f"{args.src}-{args.tgt}",
        "sentences": result.sentences,
    }
    loaded = decodings[GREEDY].loaded
    model, layer = loaded.models[0], loaded.models[0].decoder.layers[0]
    size = {"encoder": len(model.encoder.layers), "decoder": len(model.decoder.layers)}
    size |= {"d": layer.embed_dim, "ffn": layer.fc1.out_features}
    size["vocabulary"] = words = len(loaded.task.target_dictionary)
    name = f"{size['encoder']}+{size['decoder']} layers of {size['d']}, {words:,} words"
    source = sum(int(batch["net_input"]["src_lengths"].sum()) for batch in loaded.batches)
    about |= {"size": size | {"name": name}, "source_tokens": source, "load": result.load}
    kind = "CPU time" if args.threads == 1 else "wall clock"
    about |= {"threads": args.threads, "batch": args.batch}
    about["clock"] = kind if is_timed else "not measured"
    args.out.write_text(
        json.dumps({"about": about, "rows": rows, "examples": shown}, indent=1) + "\n",
        encoding="utf-8",
    )
    refused = [
        name
        for name, row in rows.items()
        if name != "fairseq beam 5" and row["equal"] < result.sentences
    ]
    for name, row in rows.items():
        speed = "-" if row["speed"][GREEDY] is None else format(row["speed"][GREEDY][0], ".2f")
        print(
            f"{name:36} calls {row.get('decoder_calls', '-'):>6} speed {speed:>5} BLEU "
            f"{row['bleu']:.2f}"
        )
    if refused:
        print(
            "not greedy's output for every sentence (near-ties are told apart by harness.py): "
            f"{', '.join(refused)}"
        )


if __name__ == "__main__":
    run_script(main)

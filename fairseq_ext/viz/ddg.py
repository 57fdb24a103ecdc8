"""DDGviz: the decoding dependency graph of a sentence, from the iterations of parallel decoding (Santilli et al. 2023, section 3.5).

    fairseq-generate ... --beam 1 --decoding jacobi --draft pad --ddg-dir DIR
    python -m fairseq_ext.viz.ddg --out DIR DIR/0.json ...                                   draws the JSON again
    python -m fairseq_ext.viz.ddg --out DIR --path MODEL.pt --data DATA -s de -t en --bpe sentencepiece --spm spm.model "Ein Hund."

Each sentence gives N.json, N.png, N.svg and N.html, the last one with everything inside. In the table a column is a position, a row is
an iteration, a cell what the model put there and how sure it was; the frame marks the iteration from which the position was right
for good. In the graph a token hangs on the nearest token to its left that became right one iteration earlier: what it had to wait
for. Tokens without such a token need none of the translation, only the source; tokens of one colour were found together.
"""

from __future__ import annotations

import argparse
import html
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_ext.errors import UsageError

NEVER = -1


@dataclass
class Cell:
    """What one iteration put at one position."""

    token: str
    probability: float
    right: bool  # the final token


@dataclass
class Graph:
    """One sentence."""

    name: str
    source: list[str]
    tokens: list[str]  # with </s>
    method: str
    iterations: list[dict[str, Any]]  # first: position of the first cell; verified: positions final afterwards; cells
    solved: list[int]  # per position: the first iteration from which it was right for good
    waits_for: list[int]  # per position: the position it hangs on, NEVER for none

    @staticmethod
    def build(name: str, source: Sequence[str], tokens: Sequence[str], method: str, calls: Sequence[Any], symbol: Any) -> Graph:
        """calls: the sentence's Iterations (parallel/driver.py); symbol: token id -> text; tokens as texts, EOS included."""
        L = len(tokens)
        solved = np.full(L, NEVER)
        iterations = []
        for k, call in enumerate(calls):
            texts = [symbol(int(t)) for t in call.out[: L - call.length]]
            right = [text == tokens[call.length + j] for j, text in enumerate(texts)]
            cells = [Cell(t, round(float(np.exp(p)), 6), r) for t, p, r in zip(texts, call.score, right, strict=False)]
            iterations.append({"first": call.length, "verified": min(L, call.length + call.verified), "cells": [asdict(c) for c in cells]})
            place = slice(call.length, call.length + len(cells))
            solved[place] = np.where(right, np.where(solved[place] == NEVER, k, solved[place]), NEVER)
        return Graph(name, list(source), list(tokens), method, iterations, solved.tolist(), waits(solved))

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: Path) -> Graph:
        """Raises UsageError for a file that is not one."""
        try:
            graph = Graph(**json.loads(path.read_text(encoding="utf-8")))
            for iteration in graph.iterations:
                int(iteration["first"]), int(iteration["verified"]), [Cell(**cell) for cell in iteration["cells"]]
            if not len(graph.tokens) == len(graph.solved) == len(graph.waits_for):
                raise ValueError("positions")
            return graph
        except OSError as error:
            raise UsageError(f"{path} cannot be read ({error.strerror}): name a file that --ddg-dir has written") from error
        except (TypeError, ValueError, KeyError) as error:
            raise UsageError(f"{path} is no dependency graph: name a JSON file that --ddg-dir has written") from error


def waits(solved: np.ndarray) -> list[int]:
    """The nearest position to the left that was solved one iteration earlier; NEVER where there is none."""
    out = []
    for i, k in enumerate(solved):
        earlier = (solved[:i] == k - 1).nonzero()[0] if k > 0 else []
        out.append(int(earlier[-1]) if len(earlier) else NEVER)
    return out


def write(graph: Graph, folder: Path) -> None:
    """N.json, N.png, N.svg and N.html."""
    from fairseq_ext.viz.draw import picture

    folder.mkdir(parents=True, exist_ok=True)
    graph.save(folder / f"{graph.name}.json")
    picture(graph, [folder / f"{graph.name}.png", folder / f"{graph.name}.svg"])
    svg = (folder / f"{graph.name}.svg").read_text(encoding="utf-8")
    (folder / f"{graph.name}.html").write_text(page(graph, svg[svg.index("<svg") :]), encoding="utf-8")


STYLE = """body{font:14px sans-serif;margin:1.5em;color:#222} .wide{overflow-x:auto;border:1px solid #ddd;margin:1em 0}
table{border-collapse:collapse;font-size:12px} td,th{border:1px solid #ccc;padding:2px 5px;white-space:nowrap;text-align:center}
td.right{background:#d9f0d3} td.wrong{background:#fde0dd;color:#777}
td.solved{outline:2px solid #1b7837;outline-offset:-2px;font-weight:bold}
th{background:#f4f4f4;position:sticky;left:0} small{color:#666}"""


def page(graph: Graph, svg: str) -> str:
    """The self-contained page: numbers, picture, table."""
    calls, L = len(graph.iterations), len(graph.tokens)
    rows = []
    for k, iteration in enumerate(graph.iterations):
        first = iteration["first"]
        cells = ["<td></td>"] * first
        for j, cell in enumerate(iteration["cells"]):
            kind = "right" if cell["right"] else "wrong"
            kind += " solved" if graph.solved[first + j] == k else ""
            cells.append(f'<td class="{kind}">{html.escape(cell["token"])}<br><small>{cell["probability"]:.2f}</small></td>')
        cells += ["<td></td>"] * (L - len(cells))
        rows.append(f"<tr><th>{k + 1}</th>{''.join(cells)}</tr>")
    head = "".join(f"<th>{i + 1}</th>" for i in range(L))
    title = html.escape(f"Sentence {graph.name}, {graph.method}")
    return f"""<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style></head><body>
<h2>{title}</h2>
<p><b>Source</b> {html.escape(" ".join(graph.source))}<br><b>Output</b> {html.escape(" ".join(graph.tokens))}</p>
<p>{L} tokens in {calls} iterations, {L / max(calls, 1):.2f} tokens an iteration. Green: the final token; framed: right for good from here
on; red: still wrong. The number is the model's probability.</p>
<div class="wide">{svg}</div>
<div class="wide"><table><tr><th></th>{head}</tr>
{chr(10).join(rows)}
</table></div></body></html>
"""


def main(argv: list[str] | None = None) -> None:
    parse = argparse.ArgumentParser(
        prog="python -m fairseq_ext.viz.ddg", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parse.add_argument("what", nargs="+", metavar="FILE.json|LINE", help="graphs to draw, or with --path lines to translate")
    parse.add_argument("--out", type=Path, required=True, metavar="DIR")
    parse.add_argument("--path", help="checkpoint that translates the lines")
    parse.add_argument("--data", help="its dictionaries' directory")
    parse.add_argument("-s", "--source-lang")
    parse.add_argument("-t", "--target-lang")
    parse.add_argument("--bpe")
    parse.add_argument("--spm", help="--sentencepiece-model of --bpe sentencepiece")
    parse.add_argument("--decoding", default="jacobi", choices=["jacobi", "gs-jacobi", "hybrid-jacobi", "window"])
    parse.add_argument("--draft", default="pad")
    args = parse.parse_args(argv)
    if args.path is None:
        for file in args.what:
            write(Graph.load(Path(file)), args.out)
        return
    from fairseq_ext import Translator

    flags = {"source_lang": args.source_lang, "target_lang": args.target_lang, "bpe": args.bpe, "sentencepiece_model": args.spm}
    flags |= {"beam": 1, "decoding": args.decoding, "draft": args.draft, "ddg_dir": str(args.out), "cpu": True}
    translator = Translator(args.path, args.data or str(Path(args.path).parent), **flags)
    for line, found in zip(args.what, translator.translate(args.what), strict=True):
        print(f"{line}\n  {found[0].text}")


if __name__ == "__main__":
    main()

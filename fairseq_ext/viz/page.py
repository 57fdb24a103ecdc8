"""The self-contained HTML page of a dependency graph: numbers, picture and table."""

from __future__ import annotations

import html

from fairseq_ext.core.errors import counted
from fairseq_ext.search.parallel.graph import Graph

STYLE = """body{font:14px sans-serif;margin:1.5em;color:#222} .wide{overflow-x:auto;border:1px solid #ddd;margin:1em 0}
table{border-collapse:collapse;font-size:12px} td,th{border:1px solid #ccc;padding:2px 5px;white-space:nowrap;text-align:center}
td.right{background:#d9f0d3} td.wrong{background:#fde0dd;color:#777}
td.solved{outline:2px solid #1b7837;outline-offset:-2px;font-weight:bold}
th{background:#f4f4f4;position:sticky;left:0} small{color:#666}"""


def page(graph: Graph, svg: str) -> str:
    """The page's HTML. svg: the picture of draw.py."""
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
<p><b>Source</b> {html.escape(graph.source_text)}<br><b>Output</b> {html.escape(graph.text)}</p>
<p><small>Tokens of the source: {html.escape(" ".join(graph.source))}</small></p>
<p>{counted(L, 'token')} in {counted(calls, 'iteration')}, {L / max(calls, 1):.2f} tokens an iteration.
Green: the final token; framed: right for good from here on; red: still wrong. The number is the model's probability.</p>
<div class="wide">{svg}</div>
<div class="wide"><table><tr><th></th>{head}</tr>
{chr(10).join(rows)}
</table></div></body></html>
"""

"""The five drawings of the method pages, as SVG: `python scripts/documents/drawings.py` writes
them to docs/drawings.

Each is a schema with small numbers of its own, computed by the rule that it shows, not
the record of a run.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

OUT = Path(__file__).resolve().parents[2] / "docs" / "drawings"
INK, SOFT, PAPER = "#1f2933", "#8794a1", "#ffffff"
SHADES = ("#d7e3f4", "#9dbfe6", "#5b93d3", "#235a9f")  # pale to dark: none to all
WARM, PALE = "#d9822b", "#eef1f4"


class Drawing:
    """An SVG picture under way; lengths in pixels, y downwards."""

    def __init__(self, width: int, height: int, title: str):
        self.parts = [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
                f'width="{width}" height="{height}" role="img" font-family="Helvetica, Arial, '
                f'sans-serif" font-size="14"><title>{escape(title)}</title>'
            ),
            f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
        ]

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        fill: str,
        text: str = "",
        ink: str = INK,
        stroke: str = "none",
    ) -> None:
        """Draw a box with a text in its middle."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="3" fill="{fill}" '
            f'stroke="{stroke}"/>'
        )
        if text:
            self.text(x + w / 2, y + h / 2 + 5, text, ink, "middle")

    def text(
        self, x: float, y: float, text: str, ink: str = INK, anchor: str = "start", size: int = 14
    ) -> None:
        """Write a text with its base line at y."""
        self.parts.append(
            f'<text x="{x}" y="{y}" fill="{ink}" text-anchor="{anchor}" '
            f'font-size="{size}">{escape(text)}</text>'
        )

    def line(
        self, points: list[tuple[float, float]], ink: str = INK, width: float = 2, dash: str = ""
    ) -> None:
        """Draw a line through points."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{ink}" stroke-width="{width}" '
            f'stroke-dasharray="{dash}"/>'
        )

    def write(self, name: str) -> None:
        """Write the picture to its file."""
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / f"{name}.svg").write_text("\n".join([*self.parts, "</svg>"]) + "\n")


def banks() -> None:
    """Draw the rows of a beam of 8, dealt out to the banks that have candidates, for
    three constraint tokens."""
    k, required = 8, 3
    d = Drawing(720, 330, "Banks filling up")
    d.text(20, 28, "The 8 rows of a beam at each step, by constraint tokens met (3 are required)")
    for step in range(1, 8):
        have = list(range(min(step, required) + 1))  # a hypothesis meets one token a step at most
        slots = [k // len(have)] * len(have)
        for extra in range(k - sum(slots)):
            slots[-1 - extra % len(have)] += 1
        row = 0
        d.text(20 + 92 * step - 46, 62, f"step {step}", SOFT, "middle")
        for bank, number in zip(have, slots, strict=True):
            for _ in range(number):
                ink = PAPER if bank > 1 else INK
                d.box(20 + 92 * (step - 1), 74 + 26 * row, 84, 22, SHADES[bank], f"{bank} met", ink)
                row += 1
    d.text(20, 312, "Only hypotheses that have met all three may end.", INK)
    d.write("banks")


def bound() -> None:
    """Draw the best finished score and the best live score of a search: it ends where the live one,
    which only falls, is below."""
    d = Drawing(720, 330, "A beam and its bound")
    live = [-0.4, -0.9, -1.3, -1.9, -2.6, -3.1, -3.9, -4.6]
    finished = {4: -4.4, 5: -3.6}
    x = lambda t: 70 + 78 * t  # noqa: E731
    y = lambda s: 50 - 52 * s  # noqa: E731
    d.text(20, 28, "score (log-probability)", SOFT)
    d.line([(60, 40), (60, 300), (690, 300)], SOFT, 1)
    d.line([(x(t), y(s)) for t, s in enumerate(live)], SHADES[3], 3)
    d.text(x(0) + 8, y(live[0]) - 8, "best live hypothesis: falls with every token", SHADES[3])
    for t, s in finished.items():
        d.box(x(t) - 6, y(s) - 6, 12, 12, WARM)
    best: list[tuple[float, float]] = []
    highest = None
    end = None
    for t, s in enumerate(live):
        if t in finished and (highest is None or finished[t] > highest):
            highest = finished[t]
        if highest is not None:
            best.append((x(t), y(highest)))
            if end is None and s <= highest:
                end = t
    d.line(best, WARM, 2, "6 4")
    d.text(x(4) - 14, y(-4.4) + 5, "finished", WARM, "end")
    assert end is not None
    d.line([(x(end), 60), (x(end), 300)], INK, 1, "3 3")
    d.text(x(end) - 8, 110, "nothing live can win any more:", INK, "end")
    d.text(x(end) - 8, 128, "the search ends", INK, "end")
    for t in range(len(live)):
        d.text(x(t), 318, str(t + 1), SOFT, "middle")
    d.text(690, 318, "tokens", SOFT, "end")
    d.write("bound")


def refill() -> None:
    """Draw which sentence holds which row, in a fixed batch and in one that is refilled."""
    lengths, width = [3, 9, 5, 4, 6, 2, 5, 3], 4
    d = Drawing(720, 330, "A batch being refilled")
    fixed, start = [], 0
    for first in range(0, len(lengths), width):
        group = list(enumerate(lengths))[first : first + width]
        fixed += [(row, start, length, sentence) for row, (sentence, length) in enumerate(group)]
        start += max(length for _, length in group)
    free = [0] * width
    stream = []
    for sentence, length in enumerate(lengths):
        row = min(range(width), key=lambda r: free[r])
        stream.append((row, free[row], length, sentence))
        free[row] += length
    for title, top, plan, steps in (
        ("fixed batches", 30, fixed, start),
        ("refilled", 180, stream, max(free)),
    ):
        d.text(20, top, f"{title}: {steps} decoder calls")
        for row in range(width):
            d.box(20, top + 12 + 28 * row, 42 * steps, 24, PALE)
        for row, begin, length, sentence in plan:
            shade = SHADES[sentence % 4]
            d.box(
                20 + 42 * begin,
                top + 12 + 28 * row,
                42 * length - 2,
                24,
                shade,
                f"{sentence + 1}",
                PAPER if sentence % 4 > 1 else INK,
            )
    d.write("refill")


def bands() -> None:
    """Draw a state and four words with their codes in five bands; words that share at least
    two buckets are scored."""
    state = [3, 1, 4, 1, 5]
    words = {
        "quotation": [3, 1, 4, 2, 5],
        "bid": [3, 2, 4, 1, 0],
        "harbor": [0, 1, 2, 2, 3],
        "of": [1, 5, 2, 0, 4],
    }
    d = Drawing(720, 300, "Bands and buckets")
    d.text(20, 28, "Codes in 5 bands; equal codes share a bucket")
    for row, (name, codes) in enumerate([("decoder state", state), *words.items()]):
        y = 46 + 44 * row + (14 if row else 0)
        d.text(20, y + 22, name, INK if row else SHADES[3])
        hits = 0
        for band, code in enumerate(codes):
            hit = bool(row) and code == state[band]
            hits += hit
            fill = SHADES[3] if not row else WARM if hit else PALE
            d.box(150 + 62 * band, y, 56, 32, fill, str(code), PAPER if not row or hit else INK)
        if row:
            scored = hits >= 2
            d.text(
                480,
                y + 22,
                f"{hits} hits: " + ("scored" if scored else "left out"),
                INK if scored else SOFT,
            )
    d.text(
        20,
        290,
        "t = 2 hits are required (--lsh-hits); the T most frequent words are always "
        "scored (--lsh-top).",
        SOFT,
    )
    d.write("bands")


def block() -> None:
    """Draw a block of drafts that becomes greedy's output from the left: a call keeps the draft's
    right tokens and one of its own."""
    greedy = ["The", "quotation", "was", "accepted", "yesterday", "."]
    tokens, verified, rows = ["The", "offer", "was", "accepted", "today", "."], 0, []
    rows.append(("draft", list(tokens), 0))
    while verified < len(greedy):
        right = next(
            (i for i in range(verified, len(greedy)) if tokens[i] != greedy[i]), len(greedy)
        )
        verified = min(right + 1, len(greedy))
        tokens[:verified] = greedy[:verified]
        rows.append((f"call {len(rows)}", list(tokens), verified))
    d = Drawing(720, 100 + 52 * len(rows), "A block converging")
    d.text(
        20,
        28,
        "Each call checks all tokens of the block at once; what is verified grows from the left",
    )
    for number, (name, words, done) in enumerate(rows):
        y = 50 + 52 * number
        d.text(20, y + 24, name)
        for i, word in enumerate(words):
            d.box(
                90 + 104 * i,
                y,
                98,
                36,
                SHADES[3] if i < done else PALE,
                word,
                PAPER if i < done else INK,
            )
    said = (
        f"{len(greedy)} tokens in {len(rows) - 1} calls; greedy makes {len(greedy)}. The tokens "
        "are greedy's own."
    )
    d.text(20, 80 + 52 * len(rows), said, SOFT)
    d.write("block")


if __name__ == "__main__":
    for draw in (banks, bound, refill, bands, block):
        draw()

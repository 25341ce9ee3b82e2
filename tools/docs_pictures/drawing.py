"""Boxes, cells, arrows and texts as SVG. Lengths are in pixels, from the upper left corner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

_STYLE: Final = """
text { font: 14px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #182022 }
.soft { fill: #5a6669; font-size: 12.5px }
.strong { font-weight: 700 }
.mono { font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 13px }
.box { fill: #fff; stroke: #9fb0b0 }
.frame { fill: #f1f4f4; stroke: #ccd5d5 }
.main { fill: #d9f0ec; stroke: #0f766e }
.warn { fill: #fdf0dc; stroke: #b45309 }
.bad { fill: #fde6e3; stroke: #b42318 }
.ground { fill: #fff; opacity: .85 }
.line { fill: none; stroke: #5a6669; stroke-width: 1.4 }
.dashed { stroke-dasharray: 5 4 }
.head { fill: #5a6669 }
.mark { fill: none; stroke: #b45309; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
text { fill: #e4eaea }
.soft { fill: #a3b1b3 }
.box { fill: #20282a; stroke: #5d6d70 }
.frame { fill: #191f21; stroke: #364245 }
.main { fill: #123b37; stroke: #4fd1c1 }
.warn { fill: #3b2c12; stroke: #f0a95b }
.bad { fill: #3f1d1a; stroke: #ff9b90 }
.ground { fill: #141a1b }
.line { stroke: #a3b1b3 }
.head { fill: #a3b1b3 }
.mark { stroke: #f0a95b }
}
"""
_LINE: Final = 19


class Drawing:
    """A picture that grows by what is drawn; `svg` returns it.

    Kinds of boxes are `box`, `frame`, `main`, `warn` and `bad`; of texts `soft`, `strong` and `mono`.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto-start-reverse"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>',
        ]

    def svg(self) -> str:
        """Return the file."""
        return "\n".join((*self._parts, "</svg>")) + "\n"

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> None:
        """Write a line of text with its base line at `y`."""
        self._parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, *lines: str, kind: str = "box") -> None:
        """Draw a box with lines in its middle; the first is strong."""
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7" class="{kind}"/>')
        top = y + height / 2 - (len(lines) - 1) * _LINE / 2 + 5
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + number * _LINE, line, "soft" if number else "strong")

    def frame(self, x: float, y: float, width: float, height: float, label: str) -> None:
        """Draw a box around others, with a label in its upper left corner."""
        self.box(x, y, width, height, kind="frame")
        self.text(x + 12, y + 20, label, "strong", "start")

    def cells(self, x: float, y: float, labels: Sequence[object], kinds: Sequence[str], size: int = 34) -> None:
        """Draw a row of squares, such as the messages of a queue."""
        for number, (label, kind) in enumerate(zip(labels, kinds, strict=True)):
            left = x + number * size
            self._parts.append(f'<rect x="{left:g}" y="{y:g}" width="{size}" height="{size}" class="{kind}"/>')
            self.text(left + size / 2, y + size / 2 + 5, str(label), "mono")

    def arrow(self, *points: tuple[float, float], dashed: bool = False, rounded: bool = False) -> None:
        """Draw a line through points, with an arrowhead at its end; `rounded`: a curve of four points."""
        (x, y), *others = points
        path = f"M{x:g} {y:g}" + ("C" if rounded else "L") + " ".join(f"{x:g} {y:g}" for x, y in others)
        kind = "line dashed" if dashed else "line"
        self._parts.append(f'<path d="{path}" class="{kind}" marker-end="url(#head)"/>')

    def mark(self, x: float, y: float, height: float) -> None:
        """Draw a vertical mark, such as a committed offset."""
        self._parts.append(f'<path d="M{x:g} {y:g}v{height:g}" class="mark"/>')

    def lifeline(self, x: float, top: float, bottom: float) -> None:
        """Draw the line of a participant of a sequence."""
        self._parts.append(f'<path d="M{x:g} {top:g}V{bottom:g}" class="line dashed" opacity=".6"/>')

    def label(self, x: float, y: float, text: str) -> None:
        """Write a text over lines that it crosses."""
        width = len(text) * 6.6 + 8
        self._parts.append(f'<rect x="{x - width / 2:g}" y="{y - 12:g}" width="{width:g}" height="16" class="ground"/>')
        self.text(x, y, text, "soft")


def sequence(
    title: str, participants: Sequence[tuple[str, ...]], steps: Sequence[tuple[int, int, str]], gap: int
) -> str:
    """Return a picture of calls between participants, from top to bottom.

    Args:
        title: What the picture shows.
        participants: The lines of text of each, from left to right.
        steps: From which participant, to which, and the text. From one to itself: a note.
        gap: Distance of participants.
    """
    step, top, box_width = 42, 62, gap - 18
    height = top + step * len(steps) + 24
    drawing = Drawing(gap * len(participants), height, title)
    middles = [gap * number + gap / 2 for number in range(len(participants))]
    for x, lines in zip(middles, participants, strict=True):
        drawing.lifeline(x, 52, height - 8)
        drawing.box(x - box_width / 2, 4, box_width, 48, *lines, kind="main")
    for number, (begin, end, text) in enumerate(steps):
        y = top + step * number + 32
        if begin == end:
            drawing.box(middles[begin] - box_width / 2, y - 20, box_width, 28, kind="warn")
            drawing.text(middles[begin], y - 1, text, "soft")
            continue
        direction = 1 if end > begin else -1
        drawing.label((middles[begin] + middles[end]) / 2, y - 7, text)
        drawing.arrow((middles[begin] + 4 * direction, y), (middles[end] - 4 * direction, y))
    return drawing.svg()

#!/usr/bin/env python3
"""Draw what needs no data: the logo, the icon of the site, and the tiles of a symmetric result.

    tools/draw_diagrams.py            write docs/static/logo.svg, docs/static/favicon.svg, docs/figures/symmetric-*.svg
    tools/draw_diagrams.py --check    change nothing; exit 1 if a picture is out of date

The logo is the picture of the ladder in small: A on the left, B above, C between them, and one tile of C with what it
is computed from. Its colours are mid-tones, to be seen on light and dark.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import generated
from svg_canvas import THEMES, Canvas, Theme

ROOT = Path(__file__).resolve().parent.parent
MATRIX, OPERAND, TILE = "#2f7de1", "#7ab0f2", "#f0a020"  # C; A and B; a tile and what it is computed from
TILES = 8  # per side of the symmetric result that is drawn
PAIR = (5, 2)  # the tile, below the diagonal, whose two places are shown
CELL = 30.0  # pixels of a tile


def logo(size: int) -> str:
    """Return the logo as SVG without paper; at `size` 32 without the gaps between tiles, which would blur."""
    small = size <= 32
    begin, end, near = (24, 62, 2) if small else (24, 60, 4)
    first, last = (36, 50) if small else (36, 48)
    matrices = ((near, begin, 18, end, OPERAND), (begin, near, end, 18, OPERAND), (begin, begin, end, end, MATRIX))
    tiles = ((near, first, 18, last), (first, near, last, 18), (first, first, last, last))
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64" width="{size}" height="{size}">']
    parts.append("<title>fastsgemm</title>")
    for left, top, right, bottom, color in matrices:
        parts.append(_box(left, top, right, bottom, color, 3))
    for left, top, right, bottom in tiles:
        parts.append(_box(left, top, right, bottom, TILE, 0))
    return "\n".join([*parts, "</svg>", ""])


def _box(left: float, top: float, right: float, bottom: float, color: str, radius: int) -> str:
    rounded = f' rx="{radius}"' if radius else ""
    return f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}"{rounded} fill="{color}"/>'


def symmetric(theme: Theme, narrow: bool) -> str:
    """Return the picture of A Aᵀ: which tiles of C are computed, and which are stored a second time."""
    canvas = Canvas(360 if narrow else 720, theme)
    left, top, strip, gap = 12.0, 12.0, 46.0, 12.0
    side = TILES * CELL
    c_x, c_y = left + strip + gap, top + strip + gap
    row, column = PAIR
    canvas.rect((left, c_y, strip, side), theme.block, theme.block, 0.2)
    canvas.rect((c_x, top, side, strip), theme.block, theme.block, 0.2)
    canvas.rect((left, c_y + row * CELL, strip, CELL), theme.thread, "none", 0.6)
    canvas.rect((c_x + column * CELL, top, CELL, strip), theme.thread, "none", 0.6)
    for m in range(TILES):
        for n in range(TILES):
            box = (c_x + n * CELL, c_y + m * CELL, CELL, CELL)
            if computed(m, n):
                canvas.rect(box, theme.block, theme.paper, 0.75)
            else:
                canvas.rect(box, theme.warp, theme.paper, 0.3)
    for m, n in (PAIR, PAIR[::-1]):
        canvas.rect((c_x + n * CELL, c_y + m * CELL, CELL, CELL), theme.thread, theme.paper, 1.0 if m > n else 0.6)
    canvas.text((left + strip / 2, c_y + side + 18), "A", bold=True, anchor="middle")
    canvas.text((c_x - 8, top + 28), "Aᵀ", bold=True, anchor="end")
    canvas.text((c_x + side / 2, c_y + side + 18), "C = A Aᵀ", bold=True, anchor="middle")
    x, y = (left, c_y + side + 46) if narrow else (c_x + side + 40, c_y + 18)
    many = sum(computed(m, n) for m in range(TILES) for n in range(TILES))
    whole = TILES**2
    legend: tuple[tuple[str, float, Sequence[str]], ...] = (
        (theme.block, 0.75, (f"computed: {many} of {whole} tiles,", f"T (T + 1) / 2 for T = {TILES} per side")),
        (theme.warp, 0.3, (f"not computed: {whole - many} tiles,", "stored from below the diagonal")),
        (theme.thread, 1.0, ("one tile, of a row of tiles of A", "and a column of tiles of Aᵀ")),
        (theme.thread, 0.6, ("the same results, stored transposed",)),
    )
    for color, opacity, lines in legend:
        canvas.rect((x, y - 11, 13, 13), color, color, opacity)
        for text in lines:
            canvas.text((x + 22, y), text)
            y += 19
        y += 7
    bottom = y if narrow else max(y, c_y + side + 32)
    says = f"Of {whole} tiles of a symmetric C, {many} are computed; the others are stored from below the diagonal"
    return canvas.svg(bottom, says)


def computed(m: int, n: int) -> bool:
    """Whether the tile in row m and column n of tiles meets the lower triangle."""
    return n <= m


def pictures() -> dict[str, str]:
    """Return every picture by its path below docs/."""
    drawn = {"static/logo.svg": logo(128), "static/favicon.svg": logo(32)}
    for variant, theme in THEMES.items():
        for form in ("", "narrow-"):
            drawn[f"figures/symmetric-{form}{variant}.svg"] = symmetric(theme, bool(form))
    return drawn


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the program; the module docstring describes it."""
    options = generated.parser(__doc__).parse_args(arguments)
    wanted = {root / "docs" / name: svg for name, svg in pictures().items()}
    return generated.update(wanted, "draw_diagrams.py", options.check)


if __name__ == "__main__":
    sys.exit(main())

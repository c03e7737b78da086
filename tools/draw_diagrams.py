#!/usr/bin/env python3
"""Draw what needs no data: the tiles of a symmetric result.

tools/draw_diagrams.py            write docs/figures/symmetric-*.svg
tools/draw_diagrams.py --check    change nothing; exit 1 if a picture is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import generated
from generated import ROOT
from svg_canvas import THEMES, Canvas, Theme

TILES = 8  # per side of the symmetric result that is drawn
PAIR = (5, 2)  # the tile, below the diagonal, whose two places are shown
CELL = 30.0  # pixels of a tile


def symmetric(theme: Theme) -> str:
    """Return the picture of A Aᵀ: which tiles of C are computed, and which are stored a second time."""
    canvas = Canvas(360, theme)
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
    x, y = left, c_y + side + 46
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
    says = f"Of {whole} tiles of a symmetric C, {many} are computed; the others are stored from below the diagonal"
    return canvas.svg(y, says)


def computed(m: int, n: int) -> bool:
    """Whether the tile in row m and column n of tiles meets the lower triangle."""
    return n <= m


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the program; the module docstring describes it."""
    folder = root / "docs" / "figures"
    wanted = {folder / f"symmetric-{variant}.svg": symmetric(theme) for variant, theme in THEMES.items()}
    return generated.run(__doc__, "draw_diagrams.py", wanted, arguments)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Draw each rung: the tiles of block, warp and thread on A, B and C, and what lies in which memory.

    tools/draw_ladder.py            write docs/figures/rung-NAME-*.svg and the code on docs/ladder.md
    tools/draw_ladder.py --check    change nothing; exit 1 if a picture or the code on the page is out of date

The constants and counts are those of docs/data/counts.json, and for rung 10 a record of tuning_db/sm_90.json. Each
picture is drawn four times: light and dark, wide, and narrow for a phone. Proportions are those of the constants.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import generated
import ladder_code
import site_pictures
from generated import ROOT
from page_tables.markdown import fill
from page_tables.runs import Data, read_data
from rung_tiles import Place, Tiling, of_skinny_thread, of_wgmma_thread, tiling
from svg_canvas import THEMES, Canvas, Theme

PANEL, MARGIN, BETWEEN = 340.0, 10.0, 20.0  # pixels: width of one of the two panels, around them, between them
SKINNY = {"M": 16, "N": 4096, "K": 4096, "layout": "NN"}  # the problem whose record of rung 10 is drawn


@dataclass(frozen=True)
class Tiles:
    """The left panel: places in the block's tile of C, and in the tiles of A and B. See `rung_tiles` for places."""

    BM: int
    BN: int
    BK: int
    warp: Place
    thread: list[Place]
    legend: Sequence[tuple[str, str]]  # colour's name in `Theme`, text
    subtiles: Sequence[Place] = ()
    in_b: tuple[list[Place], list[Place]] | None = None  # of warp and thread, where they are not columns of one step


@dataclass(frozen=True)
class Memories:
    """The right panel: lines of text for each memory, and what is drawn in it."""

    global_memory: Sequence[str]
    copied: str
    shared: Sequence[str]
    read: str
    registers: Sequence[str]
    sums: tuple[int, int]
    tiles: Sequence[tuple[int, int]] = ()  # of one stage in shared memory: height and width
    stages: int = 1
    tensor: Sequence[str] = ()
    promoted: str = ""
    factors: bool = True
    reads: Sequence[Sequence[Place]] = field(default_factory=tuple)  # of the thread, in each tile of the first stage


def rows_of_rungs(root: Path = ROOT) -> dict[str, Data]:
    """Return constants and counts by name of the rung."""
    data = read_data(root)
    counts, records = data["counts"], data["sm_90"]["records"]
    rungs: dict[str, Data] = {row["name"]: row for row in counts["rows"]}
    skinny = next(one for one in records if one["rung"] == "skinny" and one["problem"] == SKINNY)
    rungs["skinny"] = {"number": 10, "name": "skinny", "constants": skinny["constants"]}
    return rungs | {"fp16x3": {"number": 11, "name": "fp16x3"} | counts["fp16x3"]}


def describe(row: Data) -> tuple[Tiles, Memories]:
    """Return what the picture of a rung shows."""
    if row["name"] == "skinny":
        return _skinny(row["constants"])
    if row["name"] == "fp16x3":
        return _fp16x3(row)
    tiles = tiling(row["name"], row["constants"])
    return _tiles(tiles), _memories(row, tiles)


def _tiles(one: Tiling) -> Tiles:
    warp = one.threads // 32 // 3
    thread = one.of_thread(32 * warp + 9)
    row, column, rows, columns = one.of_warp(warp)
    block = f"block: {one.BM} x {one.BN} of C, {one.threads} threads"
    many, sums = len(thread), one.rows * one.columns
    each = f"{one.TM} x {one.TN} = {one.TM * one.TN} results" if one.TM * one.TN > 1 else "one result"
    places = each if many == 1 else f"{many} places of {one.TM} x {one.TN} = {sums} results"
    wm, wn, along_m, along_n = one.warps
    subtiles = [
        (row + i * wm // along_m, column + j * wn // along_n, wm // along_m, wn // along_n)
        for i in range(along_m)
        for j in range(along_n)
    ]
    parts = "" if not wm else f", {len(subtiles)} sub-tiles"
    legend = (("block", block), ("warp", f"warp: {rows} x {columns}{parts}"), ("thread", f"thread: {places}"))
    return Tiles(one.BM, one.BN, one.BK, (row, column, rows, columns), thread, legend, subtiles if wm else ())


def _memories(row: Data, one: Tiling) -> Memories:
    constants, bytes_ = row["constants"], row["shared_bytes"]
    a, b, c = (_per_request(row[name]) for name in ("loads_a", "loads_b", "stores_c"))
    lines = [f"sectors per load: A {a:.3g}, B {b:.3g}", f"sectors per store of C: {c:.3g}"]
    sums = (one.rows, one.columns)
    ahead = constants.get("FRAGMENTS", 1)
    held = [
        "1 sum" if sums == (1, 1) else f"{sums[0]} x {sums[1]} sums",
        f"{sums[0]} + {sums[1]} factors" + (f", {ahead} steps of k" if ahead > 1 else ""),
        *(["the next tile of A and B"] if constants.get("PREFETCH") else []),
        f"{row['registers']} registers per thread",
        f"occupancy {row['occupancy']:.0%}",
    ]
    if not bytes_:
        return Memories(lines, "", [], "2 loads per FMA", held, sums)
    stages = constants.get("STAGES", 1)
    tall = row["number"] < 6  # As is [BM][BK], later [BK][BM]
    at = "As[BM][BK], Bs[BK][BN]" if tall else "As[BK][BM], Bs[BK][BN]"
    shared = [f"{at}{f', {stages} stages' if stages > 1 else ''}: {bytes_ / 1024:.3g} KB"]
    tiles = ((one.BM, one.BK) if tall else (one.BK, one.BM), (one.BK, one.BN))
    words = row["shared_loads"]["words"] / row["fmas"]
    thread = one.of_thread(32 * (one.threads // 32 // 3) + 9)
    reads_a = [(m, 0, rows, 1) if tall else (0, m, 1, rows) for m, _, rows, _ in thread]
    copied = "by cp.async" if constants.get("CP_ASYNC", 0) >= 2 else "through registers"
    if row["number"] >= 6:
        copied += "; A is transposed"
    return Memories(
        lines, copied, shared, f"{words:.4g} words per FMA", held, sums, tiles, stages,
        reads=(reads_a, [(0, n, 1, columns) for _, n, _, columns in thread]),
    )  # fmt: skip


def _per_request(traffic: Data) -> float:
    return float(traffic["sectors"] / traffic["requests"])


def _skinny(constants: Mapping[str, int]) -> tuple[Tiles, Memories]:
    BM, BN, BK, TN, TK = (constants[name] for name in ("BM", "BN", "BK", "TN", "TK"))
    threads = BN // TN * (BK // TK)
    warp = threads // 32 // 3
    lanes = [of_skinny_thread(thread, constants) for thread in range(32 * warp, 32 * warp + 32)]
    thread = lanes[9]
    in_b = []
    for group in zip(*lanes, strict=True):
        top, bottom = min(place[0] for place in group), max(place[0] + 4 for place in group)
        in_b.append((top, 0, bottom - top, BN))
    column = thread[0][1]
    legend = (
        ("block", f"block: {BM} x {BN} of C, {threads} threads"),
        ("warp", f"warp: {len(in_b)} times {in_b[0][2]} steps of k of B"),
        ("thread", f"thread: {TK} steps of k of {TN} columns"),
    )
    tiles = Tiles(BM, BN, BK, (0, 0, BM, BN), [(0, column, BM, TN)], legend, in_b=(in_b, thread))
    alternated = 2 if TK > 4 and BM * TN <= 16 else 1
    memories = Memories(
        ["B: each element is used by one thread", "A: each element is used by all columns"],
        "A only, through registers",
        [f"2 buffers of A, {BM} x {BK}: {2 * 4 * BM * BK / 1024:.3g} KB", "at the end: partial sums of C"],
        "A; B comes from global memory",
        [f"{BM} x {TN} sums" + (", twice" if alternated == 2 else ""), f"{TK} x {TN} values of B, in flight"],
        (BM, TN), ((BM, BK),), 2, factors=False,
    )  # fmt: skip
    return tiles, memories


def _fp16x3(row: Data) -> tuple[Tiles, Memories]:
    BM, BN, STAGES, together = (row["constants"][name] for name in ("BM", "BN", "STAGES", "PROMOTE_STAGES"))
    kernel = next(one for one in row["kernels"] if one["name"] == "fp16x3")
    thread = of_wgmma_thread(32 * 5 + 9, BN)
    groups = BM // 64
    legend = (
        ("block", f"block: {BM} x {BN} of C, {128 * (groups + 1)} threads"),
        ("warp", f"warpgroup: 64 x {BN}; one more only copies"),
        ("thread", f"thread: {BN // 2} results of two rows"),
    )
    tiles = Tiles(BM, BN, 32, (64, 0, 64, BN), thread, legend, in_b=([(0, 0, 32, BN)], []))
    shared = [f"{STAGES} stages of A and B: {kernel['shared_bytes'] / 1024:.3g} KB"]
    memories = Memories(
        ["A and B as pairs of FP16 numbers, hi and lo"],
        "bulk copies (TMA) by one thread",
        shared,
        "no load: wgmma reads shared memory",
        [f"{BN // 2} sums", f"{BN // 2} + {BN // 2} of two chains"],
        (8, BN // 16), ((BM, 32), (BN, 32)), STAGES,
        ["hi hi, hi lo and lo hi, 16 steps of k each"], f"added every {32 * together} steps of k",
        factors=False,
    )  # fmt: skip
    return tiles, memories


def picture(row: Data, theme: Theme, narrow: bool) -> str:
    """Return the picture of a rung as SVG."""
    tiles, memories = describe(row)
    canvas = Canvas((PANEL if narrow else 2 * PANEL + BETWEEN) + 2 * MARGIN, theme)
    left = draw_tiles(canvas, (MARGIN, MARGIN), tiles)
    place = (MARGIN, left + BETWEEN) if narrow else (MARGIN + PANEL + BETWEEN, MARGIN)
    right = draw_memories(canvas, place, memories)
    facts = "; ".join(text for _, text in tiles.legend)
    return canvas.svg(max(left, right) + MARGIN, f"Rung {row['number']}, {row['name']}. {facts}")


def draw_tiles(canvas: Canvas, corner: tuple[float, float], tiles: Tiles) -> float:
    """Draw A on the left, B above and C between them; return where the drawing ends."""
    theme, (left, top), gap = canvas.theme, corner, 12.0
    side = max(0.0, 23.0 if not tiles.BK else 18.0)  # of K before and after the tile
    room, high = PANEL - gap - 2 * side - 2, 292.0 - 2 * side
    scale = min(room / (tiles.BK + tiles.BN), (high - gap) / (tiles.BK + tiles.BM))
    along = tiles.BK * scale + 2 * side  # K, as long as it is shown
    c_x, c_y = left + along + gap, top + along + gap
    wide, tall, deep = tiles.BN * scale, tiles.BM * scale, max(tiles.BK * scale, scale)
    for box in ((left, c_y, along, tall), (c_x, top, wide, along)):
        canvas.rect(box, theme.faint, theme.faint, 0.35)
    a_x, b_y = left + (along - deep) / 2, top + (along - deep) / 2
    if tiles.BK:
        canvas.rect((a_x, c_y, deep, tall), theme.block, theme.block, 0.2)
        canvas.rect((c_x, b_y, wide, deep), theme.block, theme.block, 0.2)
    canvas.rect((c_x, c_y, wide, tall), theme.block, theme.block, 0.2)

    def in_c(place: Place) -> tuple[float, float, float, float]:
        row, column, rows, columns = place
        return c_x + column * scale, c_y + row * scale, columns * scale, rows * scale

    row, column, rows, columns = tiles.warp
    whole = [(0, column, tiles.BK or 1, columns)]
    b_of_warp, b_of_thread = tiles.in_b or (whole, [(0, n, 1, width) for _, n, _, width in tiles.thread])
    for k, _, steps, _ in b_of_warp:
        box = (a_x + k * scale, c_y + row * scale, steps * scale, rows * scale)
        canvas.rect(box, theme.warp, "none", 0.45)
    canvas.rect(in_c(tiles.warp), theme.warp, theme.warp, 0.35)
    for one in tiles.subtiles:
        canvas.rect(in_c(one), "none", theme.warp, dashed=True)
    for places, color, opacity in ((b_of_warp, theme.warp, 0.45), (b_of_thread, theme.thread, 1.0)):
        for k, n, steps, width in places:
            box = (c_x + n * scale, b_y + k * scale, width * scale, max(steps * scale, 2.5))
            canvas.rect(box, color, "none", opacity)
    if tiles.in_b is None:
        for m, _, height, _ in tiles.thread:
            canvas.rect((a_x, c_y + m * scale, max(scale, 2.5), height * scale), theme.thread)
    for one in tiles.thread:
        canvas.rect(in_c(one), theme.thread)
    below = c_y + tall + 17
    canvas.text((left, c_y - 7), "A", bold=True)
    canvas.text((c_x - 8, top + 12), "B", bold=True, anchor="end")
    canvas.text((c_x + wide, below), "C", bold=True, anchor="end")
    canvas.line((left, c_y + tall + 8), (left + along, c_y + tall + 8), theme.muted, arrow=True)
    canvas.text((left, c_y + tall + 24), f"k{f', {tiles.BK} steps per tile' if tiles.BK else ''}", theme.muted)
    y = c_y + tall + 48
    for name, text in tiles.legend:
        color = getattr(theme, name)
        canvas.rect((left, y - 11, 13, 13), color, color, 1.0 if name == "thread" else 0.35)
        canvas.text((left + 22, y), text)
        y += 20
    return y - 8


def draw_memories(canvas: Canvas, corner: tuple[float, float], memories: Memories) -> float:
    """Draw the memories from global memory down to registers; return where the drawing ends."""
    left, y = corner
    y = _box(canvas, (left, y), "global memory", memories.global_memory)
    if memories.shared:
        y = _arrow(canvas, (left, y), memories.copied)
        y = _box(canvas, (left, y), "shared memory of a block", memories.shared, memories)
    y = _arrow(canvas, (left, y), memories.read)
    if memories.tensor:
        y = _box(canvas, (left, y), "tensor cores", memories.tensor)
        y = _arrow(canvas, (left, y), memories.promoted)
    return _registers(canvas, (left, y), memories)


def _arrow(canvas: Canvas, corner: tuple[float, float], text: str) -> float:
    left, y = corner
    canvas.line((left + 18, y + 2), (left + 18, y + 28), canvas.theme.muted, arrow=True)
    canvas.text((left + 30, y + 19), text, canvas.theme.muted)
    return y + 30


def _box(
    canvas: Canvas, corner: tuple[float, float], title: str, lines: Sequence[str], drawn: Memories | None = None
) -> float:
    (left, top), inside = corner, 0.0
    if drawn is not None:
        inside = _stages(canvas, (left + 10, top + 32), drawn) + 12
    height = 30 + inside + 19 * len(lines)
    canvas.rect((left, top, PANEL, height), "none", canvas.theme.muted)
    canvas.text((left + 10, top + 20), title, bold=True)
    for number, text in enumerate(lines):
        canvas.text((left + 10, top + 40 + inside + 19 * number), text)
    return top + height


def _stages(canvas: Canvas, corner: tuple[float, float], drawn: Memories) -> float:
    """Draw the tiles of every stage; return the height. Many stages stand beside each other, few below."""
    theme, (left, top), gap, room = canvas.theme, corner, 6.0, PANEL - 20
    across = drawn.stages if drawn.stages > 2 else 1
    down = 1 if drawn.stages > 2 else drawn.stages
    wide, tall = sum(width for _, width in drawn.tiles), max(height for height, _ in drawn.tiles)
    gaps = gap * (len(drawn.tiles) - 1)
    scale = min((room / across - gaps - gap) / wide, 64.0 / (tall * down))
    for stage in range(drawn.stages):
        x = left + (stage * (wide * scale + gaps + gap) if across > 1 else 0)
        y = top + (0 if across > 1 else stage * (tall * scale + gap))
        for number, (height, width) in enumerate(drawn.tiles):
            canvas.rect((x, y, width * scale, height * scale), theme.block, theme.block, 0.2)
            for row, column, rows, columns in drawn.reads[number] if drawn.reads and stage == 0 else ():
                box = (x + column * scale, y + row * scale, max(columns * scale, 2.0), max(rows * scale, 2.0))
                canvas.rect(box, theme.thread)
            x += width * scale + gap / (2 if across > 1 else 1)
    return down * tall * scale + (down - 1) * gap


def _registers(canvas: Canvas, corner: tuple[float, float], memories: Memories) -> float:
    theme, (left, top), (rows, columns) = canvas.theme, corner, memories.sums
    cell, x, y = 6.5, left + 10, top + 32
    if memories.factors:
        for row in range(rows):
            canvas.rect((x, y + (row + 1.5) * cell, cell, cell), "none", theme.thread)
        for column in range(columns):
            canvas.rect((x + (column + 1.5) * cell, y, cell, cell), "none", theme.thread)
        x, y = x + 1.5 * cell, y + 1.5 * cell
    for row in range(rows):
        for column in range(columns):
            canvas.rect((x + column * cell, y + row * cell, cell, cell), theme.thread, theme.paper)
    beside = left + 130
    for number, text in enumerate(memories.registers):
        canvas.text((beside, top + 42 + 19 * number), text)
    bottom = max(y + rows * cell, top + 42 + 19 * (len(memories.registers) - 1)) + 12
    canvas.rect((left, top, PANEL, bottom - top), "none", theme.muted)
    canvas.text((left + 10, top + 20), "registers of a thread", bold=True)
    return bottom


def sections(root: Path = ROOT) -> dict[str, str]:
    """Return what docs/ladder.md shows of each rung between its markers: its picture, its constants and its code."""
    code, shown = ladder_code.texts(root / "cuda_src"), {}
    for name, row in rows_of_rungs(root).items():
        tiles, _ = describe(row)
        says = "; ".join(text for _, text in tiles.legend)
        constants = " ".join(f"{key}={value}" for key, value in row["constants"].items())
        lines = [
            site_pictures.markdown(f"rung-{name}", says),
            "",
            f"Constants: `{constants}`",
            *(["", code[name]] if name in code else []),
        ]
        shown[f"rung-{name}"] = "\n".join(lines)
    return shown


def pictures(root: Path = ROOT) -> dict[str, str]:
    """Return every picture by the name of its file."""
    drawn = {}
    for name, row in rows_of_rungs(root).items():
        for variant, theme in THEMES.items():
            for form in ("", "narrow-"):
                drawn[f"rung-{name}-{form}{variant}.svg"] = picture(row, theme, bool(form))
    return drawn


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the program; the module docstring describes it."""
    page = root / "docs" / "ladder.md"
    wanted = {root / "docs" / "figures" / name: svg for name, svg in pictures(root).items()}
    wanted[page] = fill(page.read_text(encoding="utf-8"), sections(root))
    return generated.run(__doc__, "draw_ladder.py", wanted, arguments)


if __name__ == "__main__":
    sys.exit(main())

"""The lines of each rung that changed since the rung before, taken from its file for docs/ladder.md.

A passage is named by what its first and its last line begin with. The program fails where a passage is gone, so page
and code never differ. Empty lines and pragmas are left out.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

LONGEST = 16  # lines that a rung may show: what changed, not the file

# By name of the rung: its file below cuda_src, and passages of it. Rung 7 changes constants only.
PASSAGES: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "naive": (
        "01_naive.cu",
        (
            ("const int m = tile.m + threadIdx.x % BM;", "const int n = tile.n + threadIdx.x / BM;"),
            ("float acc = 0.0f;", "acc = __fmaf_rn(*A, *B, acc);"),
        ),
    ),
    "coalesced": (
        "02_coalesced.cu",
        (("const int m = tile.m + threadIdx.x / BN;", "const int n = tile.n + threadIdx.x % BN;"),),
    ),
    "smem_tiled": (
        "03_smem_tiled.cu",
        (
            ("float *As = shared;            // [BM][BK]", "float *Bs = shared + BM * BK;  // [BK][BN]"),
            ("auto step = [&](int k) { acc = __fmaf_rn(As[row * BK + k], Bs[k * BN + col], acc); };",) * 2,
            ("for (; k0 <= K - BK; k0 += BK) {", "}"),
        ),
    ),
    "blocktile_1d": (
        "04_blocktile_1d.cu",
        (("auto step = [&](int k) {", "};"),),
    ),
    "blocktile_2d": (
        "05_blocktile_2d.cu",
        (("auto step = [&](int k) {", "};"),),
    ),
    "vectorized": (
        "06_vectorized.cu",
        (
            ("float *As = shared;            // [BK][BM]", "float *Bs = shared + BK * BM;  // [BK][BN]"),
            ("TileCopy<BM, BK, !TRANS_A, VEC_A, THREADS> copy_a(A, lda, tile.m, M);",) * 2,
            ("load_fragment<TM>(a, As + k * BM + row);", "load_fragment<TN>(b, Bs + k * BN + col);"),
        ),
    ),
    "warptiled": (
        "08_warptiled.cu",
        (
            (
                "const int row = warp / (BN / WN) * WM + lane / (WSUBN / TN) * TM;",
                "const int col = warp % (BN / WN) * WN + lane % (WSUBN / TN) * TN;",
            ),
            ("float a[WMITER * TM], b[WNITER * TN];", "multiply_add<FMA_WIDTH>(&acc[i][j], a[i], &b[j]);"),
        ),
    ),
    "pipelined": (
        "09_pipelined.cu",
        (("for (int k = 0; k < STEPS; ++k) {", "outer_product<ORDER, !IN_LINES_B>("),),
    ),
    "skinny": (
        "10_skinny.cu",
        (
            (
                "float *sum = &acc[g % PARTIAL_ACCUMULATORS][i][j];",
                "&quad[p * TileA::QUAD_ROWS + row]);",
            ),
            ("if (k_left >= 2 * BK)", "b.read<false>(g, k_left - BK);"),
        ),
    ),
    "fp16x3": (
        "11_fp16x3.cu",
        (
            ("ring.wait_empty();", "ring.next();"),
            ("const auto at_end = multiply(sum, ring, work.groups, warpgroup);",) * 2,
        ),
    ),
}  # fmt: skip


def texts(sources: Path) -> dict[str, str]:
    """Return the code of every rung in `PASSAGES` as Markdown.

    Raises
    ------
    ValueError
        A passage is not in its file any more, or a rung shows too many lines.
    """
    by_rung = {}
    for name, (file, passages) in PASSAGES.items():
        lines = (sources / file).read_text(encoding="utf-8").splitlines()
        shown = "\n...\n".join(_passage(lines, first, last, file) for first, last in passages)
        if shown.count("\n") >= LONGEST:
            raise ValueError(f"{file}: the passages have {shown.count(chr(10)) + 1} lines; the limit is {LONGEST}")
        by_rung[name] = f"```cuda\n{shown}\n```"
    return by_rung


def _passage(lines: list[str], first: str, last: str, file: str) -> str:
    """Return the lines from one that begins with `first` to the next that begins with `last`.

    A closing brace is that of the first line's own block.
    """
    begin = next((number for number, line in enumerate(lines) if line.strip().startswith(first)), None)
    if begin is None:
        raise ValueError(f"{file} has no line {first!r}: correct PASSAGES in tools/ladder_code.py")
    for end in range(begin, len(lines)):
        closes = lines[end] == lines[begin][: _indent(lines[begin])] + last
        if closes if last.startswith("}") else lines[end].strip().startswith(last):
            kept = (line for line in lines[begin : end + 1] if line.strip() and not line.startswith("#pragma"))
            return textwrap.dedent("\n".join(kept))
    raise ValueError(f"{file} has no line {last!r} after {first!r}: correct PASSAGES in tools/ladder_code.py")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())

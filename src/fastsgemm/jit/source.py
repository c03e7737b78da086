"""One self-contained CUDA C++ source per kernel: the constants, a line each, then the rung's file.

NVRTC finds no headers on a machine that has only its wheel, and a source without includes is its own cache key.
So the ``#include "device/..."`` lines of a rung are replaced by the files they name, once each, with ``#line``
directives that keep the compiler's messages (and a profiler's source view) pointing at the real files.
"""

from __future__ import annotations

import re
from functools import cache

from fastsgemm import resources
from fastsgemm.config import FEWEST_STAGES, Config
from fastsgemm.geometry.variants import Variant
from fastsgemm.rungs import Rung

_INCLUDE = re.compile(r'#include "(device/\w+\.cuh)"')


def generate(rung: Rung, config: Config, variant: Variant) -> str:
    """Return the source of `rung` for these constants, ready for NVRTC."""
    constants: dict[str, int] = {
        **config.kernel.constants,
        "TRANS_A": int(variant.trans_a),
        "TRANS_B": int(variant.trans_b),
    }
    if rung.vectorized:
        constants |= {"VEC_A": variant.vec_a, "VEC_B": variant.vec_b, "VEC_C": variant.vec_c}
    if rung.guarded:
        constants |= {
            "GUARD": int(variant.guard),
            "PEEL": int(variant.peel),
            "STAGES": config.STAGES or FEWEST_STAGES,
            "SLICES": config.SLICES or 1,
            "CHAINS": config.CHAINS or 0,
        }
    if rung.narrow:
        constants["TRANS_C"] = int(variant.trans_c)
    lines = [f"constexpr int {name} = {value};" for name, value in constants.items()]
    return "\n".join([*lines, _inlined(rung.file)])


@cache
def _inlined(file: str) -> str:
    seen: set[str] = set()
    return "\n".join(_lines(file, seen)) + "\n"


def _lines(file: str, seen: set[str]) -> list[str]:
    seen.add(file)
    out = [f'#line 1 "{file}"']
    text = (resources.folder("cuda_src") / file).read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
        include = _INCLUDE.fullmatch(line.strip())
        if include is None:
            out.append("" if line.strip() == "#pragma once" else line)
        elif include[1] in seen:
            out.append("")
        else:
            out += [*_lines(include[1], seen), f'#line {number + 1} "{file}"']
    return out


def plain(file: str) -> str:
    """Return the source of a kernel that has no constants."""
    return _inlined(file)

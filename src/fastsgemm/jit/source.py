"""One self-contained CUDA C++ source per kernel: its file, with the values of its constants and without includes.

Every file declares its constants in a block at its top, one per line, with defaults; here the values are replaced in
place. NVRTC finds no headers on a machine that has only its wheel, and a source without includes is its own cache key.
So each ``#include "device/..."`` line is replaced by the file it names, once, with ``#line`` directives that keep the
compiler's messages (and a profiler's source view) pointing at the real files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache

from msgspec import Struct

from fastsgemm import resources
from fastsgemm.config import K_GROUP, MAX_ALTERNATED, MAX_PASS, PAD, Config, SkinnyConfig
from fastsgemm.errors import ConfigError
from fastsgemm.geometry.grid import REDUCTION, SEGMENT_REDUCTION
from fastsgemm.geometry.variants import Variant
from fastsgemm.rungs import Rung, kernel_name

_INCLUDE = re.compile(r'#include "(device/\w+\.cuh)"')


# The constants of the kernels without a `Config`, by file name.
HELPERS = {
    "copy_strided": {"THREADS": 256, "ELEMENTS": 4, "FROM": 0, "TO": 0},
    "pack": {"THREADS": 256, "TILE": 64, "VECTOR": 4, "FROM": 0},
    "reduce_parts": REDUCTION | {"VEC_C": 1, "SOURCE": 0, "SYM": 0, "TYPE_C": 0, "TYPE_OLD": 0},
    "reduce_segments": SEGMENT_REDUCTION | {"SOURCE": 0, "SYM": 0},
}

_HOPPER_ONLY = ("11_fp16x3.cu", "11_half.cu")  # wgmma and setmaxnreg

_BLOCK = re.compile(r"// constants:begin.*?// constants:end", re.DOTALL)
_CONSTANT = re.compile(r"^constexpr int (\w+) = (-?\d+);", re.MULTILINE)


class KernelSpec(Struct, frozen=True, cache_hash=True):
    """A kernel: its file and all of its constants. Rungs of one file and configs that differ in split-K share one."""

    file: str
    constants: tuple[tuple[str, int], ...]

    @property
    def name(self) -> str:
        """The ``extern "C"`` name."""
        return kernel_name(self.file)

    @property
    def text(self) -> str:
        """The source, ready for NVRTC; `ConfigError` if the constants are not exactly those that it declares."""
        return with_constants(self.file, dict(self.constants))


def spec(file: str, constants: Mapping[str, int]) -> KernelSpec:
    """Return the kernel in `file` with these constants."""
    return KernelSpec(file, tuple(constants.items()))


@cache
def helper_spec(name: str, **overrides: int) -> KernelSpec:
    """Return a kernel without a config, with its constants of `HELPERS` but for those that are given."""
    return spec(f"{name}.cu", HELPERS[name] | {constant: int(value) for constant, value in overrides.items()})


@lru_cache(maxsize=4096)
def rung_spec(rung: Rung, config: Config, variant: Variant) -> KernelSpec:
    """Return the kernel of a rung with these constants."""
    constants = config.compiled | {"TRANS_A": int(variant.trans_a), "TRANS_B": int(variant.trans_b)}
    constants |= {"BATCHED": int(variant.batched)}
    if rung.vectorized:
        constants |= {"VEC_A": variant.vec_a, "VEC_B": variant.vec_b}
    if rung.vectorized and not rung.single_stores:
        constants |= {"VEC_C": variant.vec_c}
    if rung.reads_source:
        constants |= {"SOURCE": variant.source}
    if rung.guarded:
        constants |= {"GUARD": int(variant.guard), "PEEL": int(variant.peel), "PAD": PAD, "SYM": int(variant.sym)}
        constants |= {"GROUPED": int(variant.ragged)}
    if rung.narrow:
        constants |= {"TRANS_C": int(variant.trans_c)}
    if isinstance(config, SkinnyConfig):
        constants |= {"K_GROUP": K_GROUP, "MAX_ALTERNATED": MAX_ALTERNATED, "MAX_PASS": MAX_PASS}
        constants |= {"TYPE_A": int(variant.dtypes.a), "TYPE_B": int(variant.dtypes.b)}
    return spec(rung.file, constants)


def with_constants(file: str, constants: Mapping[str, int]) -> str:
    """Return the source of a kernel with these values of its constants.

    Raises
    ------
    ConfigError
        The file does not declare exactly these names.
    """
    text = plain(file)
    block = _BLOCK.search(text)
    declared = defaults(file).keys()
    if declared != constants.keys() or block is None:
        unknown, missing = sorted(constants.keys() - declared), sorted(declared - constants.keys())
        raise ConfigError(f"constants of {file}: it does not declare {unknown} and was not given {missing}")
    values = _CONSTANT.sub(lambda line: f"constexpr int {line[1]} = {constants[line[1]]};", block[0])
    return text[: block.start()] + values + text[block.end() :]


def defaults(file: str) -> dict[str, int]:
    """Return the constants that a kernel declares, with their defaults."""
    block = _BLOCK.search(plain(file))
    return {name: int(value) for name, value in _CONSTANT.findall(block[0])} if block else {}


@cache
def plain(file: str) -> str:
    """Return a source with the defaults of its file."""
    seen: set[str] = set()
    return "\n".join(_lines(file, seen)) + "\n"


def _lines(file: str, seen: set[str]) -> list[str]:
    seen.add(file)
    output = [f'#line 1 "{file}"']
    text = (resources.folder("cuda_src") / file).read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
        include = _INCLUDE.fullmatch(line.strip())
        if include is None:
            output.append("" if line.strip() == "#pragma once" else line)
        elif include[1] in seen:
            output.append("")
        else:
            output += [*_lines(include[1], seen), f'#line {number + 1} "{file}"']
    return output


def target(file: str, arch: str) -> str:
    """Return the target of a kernel on a device: ``sm_90a`` if it has instructions of Hopper only."""
    return "sm_90a" if file in _HOPPER_ONLY and arch == "sm_90" else arch

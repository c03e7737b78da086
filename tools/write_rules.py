#!/usr/bin/env python3
"""Write the rules of each config into the kernel that takes it, as static_asserts.

    tools/write_rules.py            write the kernels; clang-format then breaks their lines
    tools/write_rules.py --check    write nothing; exit 1 if a kernel differs from the rules of its config

A kernel has the rules between two markers. It cannot check those of the host alone: what is known at a launch, and the
limits of a device.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import generated

from fastsgemm import resources
from fastsgemm.config import Config, F16DirectConfig, Fp16x3Config, Fp16x3MmaConfig
from fastsgemm.config.constant import Constant
from fastsgemm.config.rules import NAME
from fastsgemm.jit import source
from fastsgemm.rungs import IEEE, SKINNY_IN_ORDER

FAMILIES: dict[str, type[Config]] = {
    **{rung.file: rung.config for rung in (*IEEE, SKINNY_IN_ORDER)},
    "11_fp16x3.cu": Fp16x3Config,
    "11_fp16x3_mma.cu": Fp16x3MmaConfig,
    "11_half.cu": F16DirectConfig,
}
_TILES = {"BM", "BN", "BK", "WM", "WN"}  # constants whose ranges a kernel checks
_BETWEEN = re.compile(r"(?<=// rules:begin \(tools/write_rules\.py writes them\)\n).*?(?=// rules:end)", re.DOTALL)


def rules_of(file: str) -> Iterator[str]:
    """Yield the static_asserts of a kernel: one for each reason, and one each for ranges and threads."""
    family, known = FAMILIES[file], {*source.defaults(file), "THREADS"}
    reasons: dict[str, list[str]] = {"the kernel is written for such tiles": [], "the host launches as many": []}
    ranges, threads = reasons.values()
    threads.append(f"THREADS == {family.THREADS}")
    for name, constant in family.declared().items():
        if name in _TILES & known and constant.values != Constant("").values:
            ranges.append(_range(name, constant.values))
    for rule in (rule for group in family.RULES for rule in group):
        if {*re.findall(NAME, rule.condition)} <= known:
            reasons.setdefault(rule.reason, []).append(_plain(rule.condition))
    for reason, conditions in reasons.items():
        if conditions:
            bracketed = (f"({each})" if len(conditions) > 1 and "||" in each else each for each in conditions)
            yield f'static_assert({" && ".join(bracketed)}, "{reason}");\n'


def _range(name: str, values: Sequence[int]) -> str:
    if isinstance(values, range):
        return f"{name} >= {values[0]} && {name} <= {values[-1]}"
    return " || ".join(f"{name} == {value}" for value in values)


def _plain(condition: str) -> str:
    """Return a condition in C++, without the brackets of single names."""
    return re.sub(r"\((\w+)\)", r"\1", condition).replace("max(", "larger(")


def written(path: Path) -> str:
    """Return the text of a kernel with the rules of its config: as it is where it has them, in lines of any length."""
    old = path.read_text(encoding="utf-8")
    new = _BETWEEN.sub("".join(rules_of(path.name)), old)
    return old if "".join(new.split()) == "".join(old.split()) else new


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the module docstring describes it."""
    folder = resources.folder("cuda_src")
    wanted = {folder / file: written(folder / file) for file in FAMILIES}
    return generated.run(__doc__, "write_rules.py", wanted, arguments)


if __name__ == "__main__":
    sys.exit(main())

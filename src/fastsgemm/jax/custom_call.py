"""XLA's custom call for a PTX kernel, whose attributes describe the launch.

XLA treats it like its own kernels, as a launch from C++ or a node of a CUDA graph, and passes the addresses of the
operands and results. The driver compiles the PTX when a program is loaded, and caches the result. Nothing here needs
CUDA, so a program can be lowered and exported on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jaxlib.version
import numpy as np

from fastsgemm.errors import MissingExtraError

TARGET = "__gpu$xla.gpu.ptx"
OLDEST = (0, 10, 1)  # the oldest tested jaxlib; XLA has had the target for longer

_version = tuple(int(part) for part in jaxlib.version.__version__.split(".")[:3] if part.isdigit())


def check() -> None:
    """Refuse a jaxlib whose XLA may lack the target.

    Raises
    ------
    MissingExtraError
        jaxlib is too old.
    """
    if _version < OLDEST:
        needs = f"fastsgemm.jax needs jaxlib {'.'.join(map(str, OLDEST))} or later"
        raise MissingExtraError(f"{needs}, got {jaxlib.version.__version__}; update jax and jaxlib")


class Description(NamedTuple):
    """The attributes of a call."""

    name: str  # of the kernel
    ptx: str
    grid: tuple[int, ...]  # blocks, in one to three dimensions
    threads: int  # of a block
    shared_bytes: int  # dynamic shared memory of a block

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes as XLA reads them."""
        blocks, threads = (*self.grid, 1, 1)[:3], (self.threads, 1, 1)
        numbers = {f"grid_{d}": count for d, count in zip("xyz", blocks, strict=True)}
        numbers |= {f"block_{d}": count for d, count in zip("xyz", threads, strict=True)}
        numbers["shared_mem_bytes"] = self.shared_bytes
        return {"name": self.name, "kernel_type": "ptx", "kernel_data": self.ptx} | {
            key: np.int32(value) for key, value in numbers.items()
        }


class ArrayLayout(NamedTuple):
    """The type of an array and its layout in memory."""

    aval: Any
    order: tuple[int, ...]  # its dimensions, largest stride first

    @classmethod
    def row_major(cls, aval: Any) -> ArrayLayout:
        """Return the layout of an array whose last dimension is contiguous."""
        return cls(aval, tuple(range(aval.ndim)))


def emit(
    ctx: Any,
    operands: Sequence[tuple[Any, ArrayLayout]],
    results: Sequence[ArrayLayout],
    aliases: dict[int, int],
    description: Description,
) -> Any:
    """Emit a call, and return its results.

    `aliases` maps the number of an operand to that of the result in the same memory.
    """
    layouts = [layout for _, layout in operands]
    ctx = ctx.replace(primitive=None, avals_in=[x.aval for x in layouts], avals_out=[x.aval for x in results])
    rule: Any = jax.ffi.ffi_lowering(
        TARGET, operand_output_aliases=aliases,
        operand_layouts=[x.order[::-1] for x in layouts], result_layouts=[x.order[::-1] for x in results],
    )  # fmt: skip
    return rule(ctx, *[value for value, _ in operands], **description.attributes)

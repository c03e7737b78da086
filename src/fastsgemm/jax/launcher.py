"""XLA's own launch of a kernel, as far as it is used here: a custom call whose attributes describe it.

XLA makes of it what it makes of its own kernels, a launch from C++ or a node of a CUDA graph, and passes the addresses
of the operands and of the results. The driver compiles the PTX when a program is loaded, and keeps what it has made.
Nothing here needs CUDA, so a program can be lowered and exported on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jaxlib.version
import numpy as np

from fastsgemm.errors import MissingExtraError

TARGET = "__gpu$xla.gpu.ptx"
OLDEST = (0, 10, 1)  # jaxlib's version that is tested; XLA has had the target for longer

_version = tuple(int(part) for part in jaxlib.version.__version__.split(".")[:3] if part.isdigit())


def check() -> None:
    """Refuse a jaxlib whose XLA may not have the target.

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
        """What XLA reads."""
        blocks, threads = (*self.grid, 1, 1)[:3], (self.threads, 1, 1)
        numbers = {f"grid_{d}": count for d, count in zip("xyz", blocks, strict=True)}
        numbers |= {f"block_{d}": count for d, count in zip("xyz", threads, strict=True)}
        numbers["shared_mem_bytes"] = self.shared_bytes
        return {"name": self.name, "kernel_type": "ptx", "kernel_data": self.ptx} | {
            key: np.int32(value) for key, value in numbers.items()
        }


class Kind(NamedTuple):
    """What an array is, and how it lies."""

    aval: Any
    order: tuple[int, ...]  # its dimensions, the one with the largest stride first

    @classmethod
    def row_major(cls, aval: Any) -> Kind:
        """Return the kind of an array whose last dimension is contiguous."""
        return cls(aval, tuple(range(aval.ndim)))


def call(
    ctx: Any,
    operands: Sequence[tuple[Any, Kind]],
    results: Sequence[Kind],
    aliases: dict[int, int],
    description: Description,
) -> Any:
    """Emit a call, and return its results.

    `aliases` says which results take the place of an operand: from the operand's number to the result's.
    """
    kinds = [kind for _, kind in operands]
    ctx = ctx.replace(primitive=None, avals_in=[kind.aval for kind in kinds], avals_out=[kind.aval for kind in results])
    rule: Any = jax.ffi.ffi_lowering(
        TARGET, operand_output_aliases=aliases,
        operand_layouts=[kind.order[::-1] for kind in kinds], result_layouts=[kind.order[::-1] for kind in results],
    )  # fmt: skip
    return rule(ctx, *[value for value, _ in operands], **description.attributes)

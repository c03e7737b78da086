"""jaxlib's own launcher of kernels, as far as it is used here: a custom call whose attribute describes a launch.

The description is a compressed message of protocol buffers; ``jaxlib/gpu/triton.proto`` declares its fields. It is
written here rather than by jaxlib's Python functions, because these are in the package for CUDA alone and cannot pass
machine code. So a program for CUDA can be lowered and exported on a machine that has neither a GPU nor that package.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jaxlib.version
import numpy as np

from fastsgemm.errors import MissingExtraError
from fastsgemm.jax.entry import Array

TARGET = "triton_kernel_call_ffi"
OLDEST = (0, 10, 1)  # the first jaxlib with this target
_MACHINE_CODE = (0, 11)  # the first that takes machine code; those before it compile PTX
_WARP = 32

_version = tuple(int(part) for part in jaxlib.version.__version__.split(".")[:3] if part.isdigit())
takes_machine_code = _version >= _MACHINE_CODE


def check() -> None:
    """Refuse a jaxlib that has no such launcher.

    Raises
    ------
    MissingExtraError
        jaxlib is too old, or its package for CUDA is installed and does not have the target.
    """
    needs = f"fastsgemm.jax needs jaxlib {'.'.join(map(str, OLDEST))} or later"
    if _version < OLDEST:
        raise MissingExtraError(f"{needs}, got {jaxlib.version.__version__}; update jax and jaxlib")
    from jaxlib import gpu_triton

    plugin = getattr(gpu_triton, "_cuda_triton", None)
    if plugin is not None and TARGET not in getattr(plugin, "registrations", dict)():
        raise MissingExtraError(
            f"{needs} with the target {TARGET}, which the CUDA package of jaxlib {jaxlib.version.__version__} does not "
            "have. Call fastsgemm.sgemm outside jit, or install another version of JAX"
        )


def description(
    name: str, code: bytes, arch: str, grid: tuple[int, ...], threads: int, shared_bytes: int, arguments: Iterable[Any]
) -> bytes:
    """Return the attribute ``opaque`` of a call.

    Parameters
    ----------
    name : str
        Of the kernel.
    code : bytes
        Machine code, or PTX where `takes_machine_code` is false.
    arch : str
        For example ``sm_90``.
    grid : tuple of int
        Blocks, in one to three dimensions.
    threads : int
        Of a block: a multiple of 32.
    shared_bytes : int
        Dynamic shared memory of a block.
    arguments : iterable
        Of the kernel, in its order; see `Entry`. The addresses of arrays are passed in the order of the call's operands
        and results.
    """
    kernel = _text(1, name) + _number(2, threads // _WARP) + _number(3, shared_bytes)
    if not takes_machine_code:
        kernel += _bytes(4, code)
    kernel += _number(6, int(arch.removeprefix("sm_"))) + _number(10, 1)
    if takes_machine_code:
        kernel += _bytes(11, _bytes(1, code) + _text(2, name) + _number(3, shared_bytes))
    call = _bytes(1, kernel)
    for field, blocks in enumerate((*grid, 1, 1)[:3], start=2):
        call += _number(field, blocks)
    for argument in arguments:
        call += _bytes(5, _argument(argument))
    return zlib.compress(_bytes(1, call) + _text(4, name))


def _argument(argument: Any) -> bytes:
    if isinstance(argument, Array):
        return _bytes(1, _number(2, argument.alignment))
    if type(argument) is np.int32:
        return _number(3, int(argument), always=True)
    if type(argument) is np.float32:
        return bytes([7 << 3 | 5]) + argument.tobytes()
    return _number(5, argument, always=True)


def _number(field: int, value: int, always: bool = False) -> bytes:
    """Return a number in seven bits a byte; a 0 is left out unless the field is one of a choice."""
    if not (value or always):
        return b""
    return bytes([field << 3]) + _varint(value & (1 << 64) - 1)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


class Kind(NamedTuple):
    """What an array is, and how it lies.

    Attributes
    ----------
    aval : jax.core.ShapedArray
    order : tuple of int
        Its dimensions, the one with the largest stride first.
    """

    aval: Any
    order: tuple[int, ...]

    @classmethod
    def row_major(cls, aval: Any) -> Kind:
        """Return the kind of an array whose last dimension is contiguous."""
        return cls(aval, tuple(range(aval.ndim)))


def call(
    ctx: Any,
    operands: Sequence[tuple[Any, Kind]],
    results: Sequence[Kind],
    aliases: dict[int, int],
    name: str,
    opaque: bytes,
) -> Any:
    """Emit a call, and return its results.

    Parameters
    ----------
    ctx : jax.interpreters.mlir.LoweringRuleContext
    operands : sequence of (value, Kind)
    results : sequence of Kind
    aliases : dict
        Of results that take the place of an operand: the operand's number to the result's.
    name : str
        Of the kernel.
    opaque : bytes
        See `description`.
    """
    kinds = [kind for _, kind in operands]
    ctx = ctx.replace(primitive=None, avals_in=[kind.aval for kind in kinds], avals_out=[kind.aval for kind in results])
    rule: Any = jax.ffi.ffi_lowering(
        TARGET, operand_output_aliases=aliases,
        operand_layouts=[kind.order[::-1] for kind in kinds], result_layouts=[kind.order[::-1] for kind in results],
    )  # fmt: skip
    return rule(ctx, *[value for value, _ in operands], name=name, opaque=opaque)

"""The instructions that only compute: a table from opcode to a function on arrays.

`TABLE` maps every opcode, with all its dots, to its source types, its result type and the function. An opcode
that is not in it (or in the tables of the other modules) is an error when the kernel is decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fastsgemm.sim import arithmetic
from fastsgemm.sim.lanes import Array
from fastsgemm.sim.slots import DTYPES

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
BITS = ("b16", "b32", "b64")
SHARED_WINDOW = np.uint64(1 << 36)  # generic address of the first byte of shared memory
WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


@dataclass(frozen=True)
class Operation:
    """What an instruction computes."""

    sources: tuple[str, ...]  # PTX types of the sources
    result: str  # PTX type of the result
    compute: Callable[..., Array]  # from arrays of the sources' types to one of the result's


def _divide(a: Array, b: Array) -> Array:
    """Divide integers with truncation, as C does; x / 0 is all ones, as on the device."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = a // safe
    if quotient.dtype.kind == "i":
        quotient = quotient + ((a % safe != 0) & ((a < 0) != (safe < 0)))
    return np.asarray(np.where(b == 0, ~b, quotient), a.dtype)


def _remainder(a: Array, b: Array) -> Array:
    return np.asarray(a - _divide(a, b) * b)


def _shift_left(a: Array, count: Array) -> Array:
    bits = 8 * a.dtype.itemsize
    shifted = a << np.minimum(count, bits - 1).astype(a.dtype)
    return np.asarray(np.where(count < bits, shifted, a.dtype.type(0)))


def _shift_right(a: Array, count: Array) -> Array:
    """Shift right; a count beyond the width gives zero, or the sign if the type is signed."""
    bits = 8 * a.dtype.itemsize
    shifted = a >> np.minimum(count, bits - 1).astype(a.dtype)
    return np.asarray(shifted if a.dtype.kind == "i" else np.where(count < bits, shifted, a.dtype.type(0)))


def _insert_field(a: Array, b: Array, start: Array, length: Array) -> Array:
    """Put the low `length` bits of a into b at bit `start` (bfi)."""
    wide = a.astype(np.uint64)
    start, length = (start & np.uint32(255)).astype(np.uint64), (length & np.uint32(255)).astype(np.uint64)
    one = np.uint64(1)
    field = _shift_left(_shift_left(np.broadcast_to(one, length.shape), length) - one, start)
    return ((_shift_left(wide, start) & field) | (b & ~field)).astype(a.dtype)


def _extract_field(a: Array, start: Array, length: Array) -> Array:
    """Return `length` bits of an unsigned a, starting at bit `start` (bfe)."""
    start, length = start & np.uint32(255), length & np.uint32(255)
    field = _shift_left(np.broadcast_to(np.uint64(1), length.shape), length) - np.uint64(1)
    return (_shift_right(a.astype(np.uint64), start) & field).astype(a.dtype)


def _look_up(a: Array, b: Array, c: Array, table: Array) -> Array:
    """Any function of three bits, bit by bit (lop3)."""
    chosen = int(table[0])
    result = np.zeros(1, np.uint32)
    for row in range(8):
        if chosen >> row & 1:
            result = result | ((a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c))
    return result


def _permute(a: Array, b: Array, selector: Array) -> Array:
    """Choose four of the eight bytes of a (the low ones) and b; bit 3 of a choice repeats the byte's sign (prmt)."""
    both = b.astype(np.uint64) << np.uint64(32) | a.astype(np.uint64)
    result = np.zeros(1, np.uint32)
    for position in range(0, 16, 4):
        choice = (selector >> np.uint32(position) & np.uint32(15)).astype(np.uint64)
        byte = both >> np.uint64(8) * (choice & np.uint64(7)) & np.uint64(255)
        sign = (byte >> np.uint64(7)) * np.uint64(255)
        result = result | (np.where(choice & np.uint64(8), sign, byte) << np.uint64(2 * position)).astype(np.uint32)
    return result


def _dot_of_halves(a: Array, b: Array, c: Array) -> Array:
    """Add to c the two halves of a, times the two low bytes of b (dp2a)."""
    half, byte, low = np.uint32(16), np.uint32(8), np.uint32(255)
    return c + (a & np.uint32(65535)) * (b & low) + (a >> half) * (b >> byte & low)


def _leading_zeros(a: Array) -> Array:
    """Count the zero bits above the highest set bit; 32 for zero (clz)."""
    zeros = np.full(a.shape, 32, np.uint32)
    for bit in range(32):
        zeros[(a >> np.uint32(bit) & np.uint32(1)).astype(np.bool_)] = 31 - bit
    return zeros


def _count_bits(a: Array) -> Array:
    """Count the bits that are set (popc)."""
    count = np.zeros(a.shape, np.uint32)
    for bit in range(32):
        count += a >> np.uint32(bit) & np.uint32(1)
    return count


def _shift_to_top(a: Array) -> Array:
    """Return the left shift that moves the highest set bit to the top; all ones for zero (bfind.shiftamt)."""
    return np.where(a == 0, np.uint32(0xFFFFFFFF), _leading_zeros(a))


def _reverse(a: Array) -> Array:
    """Reverse the order of the bits (brev)."""
    result = np.zeros(a.shape, np.uint32)
    for bit in range(32):
        result |= (a >> np.uint32(bit) & np.uint32(1)) << np.uint32(31 - bit)
    return result


def _to_halves(high: Array, low: Array) -> Array:
    """Round two float32 to float16, to nearest even, and pack them into one register."""
    return _to_half(low).astype(np.uint32) | _to_half(high).astype(np.uint32) << np.uint32(16)


def _to_half(a: Array) -> Array:
    return np.where(np.isnan(a), np.uint16(0x7FFF), a.astype(np.float16).view(np.uint16))


def _to_bfloat16s(high: Array, low: Array) -> Array:
    """Round two float32 to bfloat16, to nearest even, and pack them into one register."""
    both: Array = _to_bfloat16(low) | _to_bfloat16(high) << np.uint32(16)
    return both


def _to_bfloat16(a: Array) -> Array:
    bits = a.view(np.uint32).astype(np.uint64)
    rounded = bits + np.uint64(0x7FFF) + (bits >> np.uint64(16) & np.uint64(1)) >> np.uint64(16)
    return np.where(np.isnan(a), np.uint32(0x7FFF), rounded.astype(np.uint32))


def _from_half(a: Array) -> Array:
    half = a.view(np.float16)
    return np.where(np.isnan(half), np.uint32(0x7FFFFFFF).view(np.float32), half.astype(np.float32))


def _select(a: Array, b: Array, condition: Array) -> Array:
    return np.where(condition, a, b)


def _move(a: Array) -> Array:
    return a


def _integer_operations() -> dict[str, Operation]:
    table = {}
    for t in INTEGERS:
        for name, function in (
            ("add", np.add), ("sub", np.subtract), ("mul.lo", np.multiply), ("min", np.minimum),
            ("max", np.maximum), ("div", _divide), ("rem", _remainder),
        ):  # fmt: skip
            table[f"{name}.{t}"] = Operation((t, t), t, function)
        table[f"mad.lo.{t}"] = Operation((t, t, t), t, lambda a, b, c: a * b + c)
        table[f"shr.{t}"] = Operation((t, "u32"), t, _shift_right)
        if t in WIDER:
            table |= _wide(t, WIDER[t])
        if t.startswith("s"):
            table[f"neg.{t}"] = Operation((t,), t, np.negative)
            table[f"abs.{t}"] = Operation((t,), t, np.abs)
    table["dp2a.lo.u32.u32"] = Operation(("u32", "u32", "u32"), "u32", _dot_of_halves)
    for name in ("min", "max"):
        table[f"{name}.relu.s32"] = Operation(("s32", "s32"), "s32", _not_negative(table[f"{name}.s32"].compute))
    return table


def _not_negative(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda a, b: np.maximum(function(a, b), np.int32(0))


def _wide(t: str, wide: str) -> dict[str, Operation]:
    """Products of twice the width."""
    dtype, bits = DTYPES[wide], 4 * np.dtype(DTYPES[wide]).itemsize

    def product(a: Array, b: Array) -> Array:
        return np.asarray(a.astype(dtype) * b.astype(dtype))

    return {
        f"mul.wide.{t}": Operation((t, t), wide, product),
        f"mad.wide.{t}": Operation((t, t, wide), wide, lambda a, b, c: product(a, b) + c),
        f"mul.hi.{t}": Operation((t, t), t, lambda a, b: (product(a, b) >> dtype(bits)).astype(DTYPES[t])),
    }


def _bit_operations() -> dict[str, Operation]:
    table = {}
    for t in (*BITS, "pred"):
        for name, function in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
            table[f"{name}.{t}"] = Operation((t, t), t, function)
        table[f"not.{t}"] = Operation((t,), t, np.invert)
    for t in BITS:
        table[f"shl.{t}"] = Operation((t, "u32"), t, _shift_left)
        table[f"shr.{t}"] = Operation((t, "u32"), t, _shift_right)
    for t in BITS[1:]:
        table[f"bfi.{t}"] = Operation((t, t, "u32", "u32"), t, _insert_field)
        unsigned = t.replace("b", "u")
        table[f"bfe.{unsigned}"] = Operation((unsigned, "u32", "u32"), unsigned, _extract_field)
    table["clz.b32"] = Operation(("b32",), "u32", _leading_zeros)
    table["popc.b32"] = Operation(("b32",), "u32", _count_bits)
    table["brev.b32"] = Operation(("b32",), "b32", _reverse)
    table["bfind.shiftamt.u32"] = Operation(("u32",), "u32", _shift_to_top)
    table["prmt.b32"] = Operation(("b32", "b32", "b32"), "b32", _permute)
    table["lop3.b32"] = Operation(("b32", "b32", "b32", "u32"), "b32", _look_up)
    return table


def _float_operations() -> dict[str, Operation]:
    two, three = ("f32", "f32"), ("f32", "f32", "f32")
    return {
        "fma.rn.f32": Operation(three, "f32", arithmetic.fma),
        "fma.rn.f32x2": Operation(("b64", "b64", "b64"), "b64", arithmetic.fma_of_pairs),
        "mul.f32": Operation(two, "f32", arithmetic.mul),
        "mul.rn.f32": Operation(two, "f32", arithmetic.mul),
        "add.f32": Operation(two, "f32", arithmetic.add),
        "add.rn.f32": Operation(two, "f32", arithmetic.add),
        "sub.f32": Operation(two, "f32", arithmetic.sub),
        "sub.rn.f32": Operation(two, "f32", arithmetic.sub),
        "neg.f32": Operation(("f32",), "f32", np.negative),
        "abs.f32": Operation(("f32",), "f32", np.abs),
    }


def _comparisons() -> dict[str, Operation]:
    ordered: dict[str, Callable[..., Array]] = {
        "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
        "gt": np.greater, "ge": np.greater_equal,
    }  # fmt: skip
    opposite = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}
    table = {}
    for t in (*INTEGERS, *BITS, "f32"):
        for name, function in ordered.items():
            if t == "f32" and name == "ne":  # false for NaN, unlike NumPy's
                table["setp.ne.f32"] = Operation((t, t), "pred", lambda a, b: (a < b) | (a > b))
            else:
                table[f"setp.{name}.{t}"] = Operation((t, t), "pred", function)
    for name, ordered_name in opposite.items():  # true for NaN
        table[f"setp.{name}.f32"] = Operation(("f32", "f32"), "pred", _denied(table[f"setp.{ordered_name}.f32"]))
    table["setp.nan.f32"] = Operation(("f32", "f32"), "pred", lambda a, b: (a != a) | (b != b))
    table["setp.num.f32"] = Operation(("f32", "f32"), "pred", lambda a, b: (a == a) & (b == b))
    return table | _combined(table)


def _denied(operation: Operation) -> Callable[..., Array]:
    return lambda a, b: ~operation.compute(a, b)


def _combined(comparisons: dict[str, Operation]) -> dict[str, Operation]:
    """setp with a third, boolean operand."""
    table = {}
    for opcode, operation in comparisons.items():
        _, name, t = opcode.split(".")
        for word, join in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)):
            table[f"setp.{name}.{word}.{t}"] = Operation((t, t, "pred"), "pred", _joined(operation, join))
    return table


def _joined(operation: Operation, join: Callable[..., Array]) -> Callable[..., Array]:
    return lambda a, b, p: join(operation.compute(a, b), p)


def _conversions() -> dict[str, Operation]:
    table = {}
    for source in ("u8", "s8", *INTEGERS):
        for result in INTEGERS:
            table[f"cvt.{result}.{source}"] = Operation((source,), result, _converted(result))
        table[f"cvt.rn.f32.{source}"] = Operation((source,), "f32", _converted("f32"))
    for t in (*INTEGERS, *BITS, "f32", "pred"):
        table[f"mov.{t}"] = Operation((t,), t, _move)
        if t != "pred":
            table[f"selp.{t}"] = Operation((t, t, "pred"), t, _select)
    table["cvt.rn.f16x2.f32"] = Operation(("f32", "f32"), "b32", _to_halves)
    table["cvt.rn.bf16x2.f32"] = Operation(("f32", "f32"), "b32", _to_bfloat16s)
    table["cvt.rn.f16.f32"] = Operation(("f32",), "b16", _to_half)
    table["cvt.f32.f16"] = Operation(("b16",), "f32", _from_half)
    for space in ("param", "const"):  # which lie one behind the other
        table[f"cvta.{space}.u64"] = Operation(("u64",), "u64", _move)
    table["cvta.to.global.u64"] = Operation(("u64",), "u64", _move)  # global addresses are generic addresses
    table["cvta.shared.u64"] = Operation(("u64",), "u64", lambda a: a + SHARED_WINDOW)
    table["cvta.to.shared.u64"] = Operation(("u64",), "u64", lambda a: a - SHARED_WINDOW)
    return table


def _converted(result: str) -> Callable[..., Array]:
    dtype = DTYPES[result]
    return lambda a: a.astype(dtype)


TABLE: dict[str, Operation] = {
    **_integer_operations(),
    **_bit_operations(),
    **_float_operations(),
    **_comparisons(),
    **_conversions(),
}

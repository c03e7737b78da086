"""Numbered slots for the values of a kernel: its registers, constants, parameters and special registers."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastsgemm.sim.errors import PtxError
from fastsgemm.sim.ptx import Constant, Kernel, Operand, Register, Symbol

DTYPES: dict[str, Any] = {
    "pred": np.bool_,
    "b8": np.uint8, "u8": np.uint8, "s8": np.int8,
    "b16": np.uint16, "u16": np.uint16, "s16": np.int16,
    "b32": np.uint32, "u32": np.uint32, "s32": np.int32, "f32": np.float32,
    "b64": np.uint64, "u64": np.uint64, "s64": np.int64, "f64": np.float64,
}  # fmt: skip

# filled in at the launch
_GRID = ("%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z")
SPECIAL = ("%tid.x", "%ntid.x", "%laneid", *_GRID)
ZERO = ("%tid.y", "%tid.z")  # blocks have one dimension
ONE = ("%ntid.y", "%ntid.z")
_ALIGNMENT = 64  # bytes: that of a tensor map, the most that a parameter has
TIME = "%globaltimer"  # stands still: a wait for a memory barrier never takes time here


class Slots:
    """The slots of one kernel, given out while its instructions are decoded."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.initial: list[NDArray[Any]] = []  # what each slot holds when a thread starts: zero, or the constant
        self._numbers: dict[object, int] = {}
        self.parameter_places: dict[str, int] = {}  # addresses in the parameter space
        self.parameter_bytes = 0  # of that space
        for parameter in kernel.parameters:
            self.parameter_places[parameter.name] = self.parameter_bytes
            self.parameter_bytes += -(-parameter.size // _ALIGNMENT) * _ALIGNMENT
        self.constant_places: dict[str, int] = {}  # addresses of constants, which lie behind the parameters
        self.constants_end = self.parameter_bytes
        for name, data in kernel.constants.items():
            self.constant_places[name] = self.constants_end
            self.constants_end += -(-len(data) // _ALIGNMENT) * _ALIGNMENT

    def reading(self, operand: Operand, type_: str) -> int:
        """Return the slot to read an operand of an instruction of PTX type `type_` from."""
        if isinstance(operand, Register):
            return self.register(operand)
        if isinstance(operand, Constant):
            number = self._numbers.get((operand, type_))
            return self._slot((operand, type_), _constant(operand, type_)) if number is None else number
        if isinstance(operand, Symbol):
            return self._symbol(operand.name, type_)
        raise PtxError(f"{operand} cannot be a source of type {type_}")

    def register(self, operand: Operand) -> int:
        """Return the slot of a register."""
        if not isinstance(operand, Register):
            raise PtxError(f"expected a register, got {operand}")
        number = self._numbers.get(operand.name)
        if number is None:
            number = self._slot(operand.name, _zero(self.kernel.type_of(operand)))
        return number

    def stored(self, operand: Operand) -> Any:
        """Return the dtype that the slot of a register has."""
        return self.initial[self.register(operand)].dtype.type

    def predicate(self, operand: Operand) -> int:
        """Return the slot of a register that must be a predicate."""
        slot = self.register(operand)
        if self.initial[slot].dtype != np.bool_:
            raise PtxError(f"expected a predicate, got {operand}")
        return slot

    def special(self, name: str) -> int | None:
        """Return the slot of a special register, or None if the kernel does not read it."""
        return self._numbers.get(name)

    def _symbol(self, name: str, type_: str) -> int:
        place = self.parameter_places.get(name, self.constant_places.get(name))
        if place is not None:
            return self._slot(("place", name), np.array([place], np.uint64))
        if name in self.kernel.shared:
            return self._slot((name, type_), np.array([self.kernel.shared[name]], DTYPES[type_]))
        if name in SPECIAL + ZERO + ONE:
            return self._slot(name, np.array([int(name in ONE)], np.uint32))
        if name == TIME:
            return self._slot(name, np.zeros(1, np.uint64))
        raise PtxError(f"the simulated device does not know {name}")

    def _slot(self, key: object, initial: NDArray[Any]) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self.initial)
            self.initial.append(initial)
        return self._numbers[key]


@cache
def _zero(type_: str) -> NDArray[Any]:
    if type_ not in DTYPES:
        raise PtxError(f"the simulated device does not know the type {type_!r}")
    return np.zeros(1, DTYPES[type_])


def _constant(operand: Constant, type_: str) -> NDArray[Any]:
    dtype = np.dtype(DTYPES[type_])
    if type_ == "pred":
        return np.array([operand.bits != 0])
    bits = operand.bits & (1 << 8 * dtype.itemsize) - 1
    return np.array([bits], f"u{dtype.itemsize}").view(dtype)

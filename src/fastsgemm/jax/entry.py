"""PTX entries of kernels that take nothing but arrays, in the order in which XLA passes them.

A kernel's own parameters are addresses, some of them inside an array, and numbers. XLA passes the addresses of operands
and results only. So these become the parameters in PTX, and the numbers are put into constant memory. ptxas compiles a
load from there like that of a parameter, so the machine code is that of the tuned kernel. Numbers as literals in the
source would give other code, which may be slower.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np

from fastsgemm.call.plan import Argument, Launch, Plan, Scalar, When
from fastsgemm.errors import CompileError
from fastsgemm.geometry import grid
from fastsgemm.geometry.batch import Batch, BatchAndSource, GroupedBatch, GroupedRows
from fastsgemm.geometry.matrix import Base, Matrix
from fastsgemm.geometry.tensor_map import ALIGNMENT as TENSOR_MAP_ALIGNMENT
from fastsgemm.geometry.tensor_map import TensorMap

_HEAD = re.compile(r"\.visible \.entry \w+\([^)]*\)([^{]*\{)")
_LOAD = re.compile(r"ld\.param(?P<type>[.\w]+)\s+(?P<target>[^;]*), \[\w+_param_(?P<number>\d+)(?P<offset>(\+\d+)?)\];")
_ADDRESS = re.compile(r"(mov\.b64\s+[^;]*, )\w+_param_(\d+);")  # of a tensor map

_Constant = np.int32 | np.float32 | int | Batch | GroupedBatch | GroupedRows | TensorMap

_NUMBERS = ("ALPHA", "BETA")  # arrays of one element
_DIGITS = 12  # of the digest in a name

# The prologue of an entry whose alpha or beta is in an array. If A and B must not be read, there are no steps of k, and
# the zero that is then added to beta * C changes nothing.
_REGISTERS = """
	.reg .pred 	%reads, %adds;
	.reg .b32 	%alpha, %beta, %zero;
	.reg .b64 	%scalar_ptr;"""
_READ = """
	ld.param.u64 	%scalar_ptr, [{array}];
	cvta.to.global.u64 	%scalar_ptr, %scalar_ptr;
	ld.global.b32 	%{scalar}, [%scalar_ptr];"""
_ALPHA = """
	setp.neu.f32 	%reads, %alpha, 0f00000000;
	setp.neu.f32 	%adds, %beta, 0f00000000;
	selp.b32 	%zero, 0x80000000, 0, %adds;
	selp.b32 	%alpha, %alpha, %zero, %reads;"""


class Case(NamedTuple):
    """What is known of a call at lowering."""

    alpha: float | None  # None: an array of one element has it
    beta: float | None
    K: int

    @property
    def reads(self) -> bool | None:
        """Whether A and B are read; None if that depends on alpha."""
        if self.alpha is None and self.K:
            return None
        return bool(self.alpha and self.K)

    def may_launch(self, launch: Launch) -> bool:
        """Return whether some alpha and beta launch this kernel."""
        reads = (False, True) if self.reads is None else (self.reads,)
        betas = (False, True) if self.beta is None else (self.beta != 0.0,)
        return any(launch.when.holds(r, b) for r in reads for b in betas)


class Entry:
    """A kernel of a plan behind an entry for XLA; `initialized` has the names of `Base` that have a value before."""

    def __init__(self, launch: Launch, initialized: Collection[str], case: Case) -> None:
        self.launch, self._case = launch, case
        # Names of `Base` that it writes. Those that are also operands are updated in place.
        self.results = _names([write.matrix for write in launch.writes])
        read = [name for name in _names(launch.matrices) if name in initialized]
        self._scalars = {argument for argument in launch.arguments if isinstance(argument, Scalar)}
        traced = [name for name, value in zip(_NUMBERS, (case.alpha, case.beta), strict=True) if value is None]
        # Names of `Base` that it takes, then ``ALPHA`` and ``BETA``.
        self.operands = (*read, *(traced if self._scalars else []))
        self._alpha, self._steps = None, case.K  # None: in a register
        if case.alpha is not None and (case.reads or case.beta is not None):
            self._steps, self._alpha = grid.steps(case.K, case.alpha, case.beta)
        self._first = self._before_the_kernel()
        self._constants: list[str] = []  # declarations
        # The replacement of a load of an address within a kernel parameter, by the parameter's number and its place.
        self._addresses: dict[tuple[int, int], str] = {}
        # The replacement of each load of a kernel parameter, as a format string for the parts of the load.
        self._loads = [self._load(number, argument) for number, argument in enumerate(launch.arguments)]
        replaced = self._first, self._constants, self._loads, self._addresses
        contents = repr((launch.kernel.text, self.operands, self.results, *replaced))
        self.name = f"{launch.kernel.name}_{hashlib.sha256(contents.encode()).hexdigest()[:_DIGITS]}"

    @property
    def aliases(self) -> dict[int, int]:
        """The number of each operand that is also a result, and that result's number."""
        return {self.operands.index(name): i for i, name in enumerate(self.results) if name in self.operands}

    def wrap(self, ptx: str) -> str:
        """Return the entry's PTX from the kernel's. Its parameters are the operands and the results.

        Raises
        ------
        CompileError
            The kernel does not read its parameters as NVRTC's kernels do.
        """
        names = [f"operand_{name}" for name in self.operands] + [f"result_{name}" for name in self.results]
        parameters = ",".join(f"\n\t.param .u64 {name}" for name in names)
        head = f"{''.join(self._constants)}\n.visible .entry {self.name}({parameters}\n)"
        ptx = _LOAD.sub(self._replaced, ptx)
        ptx = _ADDRESS.sub(self._address, ptx).replace("cvta.param.", "cvta.const.")
        ptx, entries = _HEAD.subn(lambda old: f"{head}{old[1]}{self._first}", ptx)
        if entries != 1 or f"{self.launch.kernel.name}_param_" in ptx:
            raise CompileError(f"NVRTC's PTX of {self.launch.kernel.name} reads its parameters in an unknown way")
        return ptx

    def _replaced(self, load: re.Match[str]) -> str:
        """Return what a load of a kernel parameter becomes; an unknown load of an address stays, and is refused."""
        number, begin = int(load["number"]), int(load["offset"] or 0)
        text = self._loads[number]
        for (parameter, place), address in self._addresses.items():
            if parameter == number and begin <= place < begin + _bytes(load["type"]):
                if begin != place or load["type"] != ".u64":
                    return load[0]
                text = address
        return text.format_map(load.groupdict())

    def _address(self, move: re.Match[str]) -> str:
        number = int(move[2])
        return f"{move[1]}number_{number};" if isinstance(self.launch.arguments[number], TensorMap) else move[0]

    def _before_the_kernel(self) -> str:
        """Return the prologue, which reads alpha and beta, and returns if there is no work."""
        case, when = self._case, self.launch.when
        if not self._scalars or None not in (self._alpha, case.beta):
            return ""
        text = _REGISTERS + _in_register(Scalar.BETA, case.beta)
        if self._alpha is None:
            text += _in_register(Scalar.ALPHA, None if case.reads is None else 0.0) + _ALPHA
        if case.reads is None and Scalar.ALPHA in self._scalars and when in (When.READS, When.READS_NOTHING):
            text += f"\n\t@{'!' if when is When.READS else ''}%reads ret;"
        return text

    def _load(self, number: int, argument: Argument) -> str:
        if isinstance(argument, Matrix):
            return self._load_address(argument)
        if isinstance(argument, Scalar):
            return self._load_scalar(number, argument)
        assert not isinstance(argument, BatchAndSource)  # XLA gives C itself
        if isinstance(argument, GroupedBatch | GroupedRows):
            self._addresses |= {(number, place): self._load_address(matrix) for place, matrix in argument.addresses}
        return self._load_constant(number, argument)

    def _load_address(self, matrix: Matrix) -> str:
        base, offset = matrix.address.base.name, matrix.address.offset
        parameter = f"result_{base}" if base in self.results else f"operand_{base}"
        add = f"\n\tadd.s64 \t{{target}}, {{target}}, {offset};" if offset else ""
        return f"ld.param{{type}} \t{{target}}, [{parameter}];{add}"

    def _load_scalar(self, number: int, scalar: Scalar) -> str:
        if scalar is Scalar.STEPS:
            guard = "\n\tselp.b32 \t{target}, {target}, 0, %reads;" if self._alpha is None else ""
            return self._load_constant(number, np.int32(self._steps)) + guard
        value = self._alpha if scalar is Scalar.ALPHA else self._case.beta
        if value is None:
            return f"mov.b32 \t{{target}}, %{scalar.value};"
        return self._load_constant(number, np.float32(value))

    def _load_constant(self, number: int, value: _Constant) -> str:
        name = f"number_{number}"
        self._constants.append(f"\n.visible .const {_declared(name, value)};")
        return f"ld.const{{type}} \t{{target}}, [{name}{{offset}}];"


def entries(plan: Plan, case: Case, given: Collection[str] = ()) -> list[Entry]:
    """Return the entries for the launches of a plan that such a call may need, in order.

    `given` has the names of `Base` that have a value before, besides A, B and a C that beta multiplies.
    """
    initialized = {"A", "B", *given} if case.beta == 0.0 else {"A", "B", "C", *given}
    result = []
    for launch in plan.launches:
        if case.may_launch(launch):
            result.append(Entry(launch, initialized, case))
            initialized.update(result[-1].results)
    return result


def _names(matrices: Iterable[Matrix]) -> tuple[str, ...]:
    bases = {matrix.address.base for matrix in matrices}
    return tuple(base.name for base in Base if base in bases)


def _declared(name: str, value: _Constant) -> str:
    """Return the declaration of a constant, whose type has the size of the kernel's parameter.

    Declared as bytes, numbers would give other machine code. An int is a ``long long`` or a null address.
    """
    if isinstance(value, Batch | GroupedBatch | GroupedRows | TensorMap):
        align = TENSOR_MAP_ALIGNMENT if isinstance(value, TensorMap) else 8
        return f".align {align} .b8 {name}[{len(value.packed)}] = {{{', '.join(map(str, value.packed))}}}"
    if isinstance(value, int):
        return f".align 8 .u64 {name} = {value % (1 << 64)}"
    return f".align 4 .u32 {name} = {_bits(value)}"


def _bytes(kind: str) -> int:
    """Return the bytes that a load of this type, such as ``.v2.u32``, reads."""
    *vector, element = kind.split(".")[1:]
    return int("".join(vector).removeprefix("v") or 1) * int(element[1:]) // 8


def _bits(number: np.int32 | np.float32) -> int:
    return int(number.view(np.uint32))


def _in_register(scalar: Scalar, value: float | None) -> str:
    """Return the PTX that loads alpha or beta into its register, from its array if the value is None."""
    if value is None:
        return _READ.format(array=f"operand_{scalar.name}", scalar=scalar.value)
    return f"\n\tmov.b32 \t%{scalar.value}, {_bits(np.float32(value))};"

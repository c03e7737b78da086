"""Kernels behind an entry that takes nothing but arrays, in the order in which XLA passes them.

A kernel's own parameters are in the order in which they are read. Among them are structs, addresses inside of an array,
and numbers. XLA passes the addresses of operands and results. So the kernel becomes a function, which the entry calls
with these and with the numbers of the problem, which are constants of its source.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fastsgemm.call.plan import Argument, Launch, Plan, Scalar, When
from fastsgemm.geometry import grid
from fastsgemm.geometry.batch import Batch, BatchAndSource
from fastsgemm.geometry.matrix import Base, Matrix
from fastsgemm.jit.source import KernelSpec

_HEAD = re.compile(r'extern "C" __global__\s+void(.*?)(fastsgemm_\w+)\(', re.DOTALL)

_NUMBERS = ("ALPHA", "BETA")  # arrays of one element
_KINDS = {int: "long long", np.int32: "int", np.uint32: "unsigned", np.float32: "unsigned"}
_DIGITS = 12  # of the digest in a name

_POINTER = """
// An address that becomes a pointer of whatever type a parameter has.
struct Address {
    const char *first;
    template <class T>
    __device__ __forceinline__ operator T *() const { return (T *)first; }
};

// A number that may stand for the address of nothing.
struct Number {
    long long value;
    __device__ __forceinline__ operator long long() const { return value; }
    template <class T>
    __device__ __forceinline__ operator T *() const { return (T *)value; }
};
"""


class Case(NamedTuple):
    """What is known of a call when it is lowered."""

    alpha: float | None  # None: an array of one element has it
    beta: float | None
    K: int

    @property
    def reads(self) -> bool | None:
        """Whether A and B are read; None: that depends on alpha."""
        if self.alpha is None and self.K:
            return None
        return bool(self.alpha and self.K)

    def may_launch(self, launch: Launch) -> bool:
        """Whether there is an alpha and a beta with which this kernel is launched."""
        reads = (False, True) if self.reads is None else (self.reads,)
        betas = (False, True) if self.beta is None else (self.beta != 0.0,)
        return any(launch.when.holds(r, b) for r in reads for b in betas)


class Entry:
    """A kernel of a plan behind an entry for XLA; `there` names what has a value before the launch, as in `Base`."""

    def __init__(self, launch: Launch, there: Collection[str], case: Case) -> None:
        self.launch, self._case = launch, case
        self._scalars: dict[Scalar, str] = {}
        self._numbers: list[str] = []  # declarations
        # Names of `Base` that it writes. Of those that are operands, too, the memory is the same.
        self.results = _names([write.matrix for write in launch.writes])
        read = [name for name in _names(launch.matrices) if name in there]
        # Names of `Base` that it takes, then ``ALPHA`` and ``BETA``.
        self.operands = (*read, *self._scalars_passed())
        body = "".join(f"    {line}\n" for line in self._prologue())
        passed = [self._passed(argument) for argument in launch.arguments]
        # What is written has its name as a result; as an operand it is not used.
        names = [f"unused_{name}" if name in self.results else name for name in self.operands]
        declared = [f"const char *__restrict__ {name}" for name in names]
        declared += [f"char *__restrict__ {name}" for name in self.results]
        attributes, kernel = _as_function(launch.kernel)
        numbers = "".join(self._numbers)
        rest = f"({', '.join(declared)}) {{\n{body}    {launch.kernel.name}_of({', '.join(passed)});\n}}\n"
        digest = hashlib.sha256((kernel + numbers + rest).encode()).hexdigest()[:_DIGITS]
        self.name = f"{launch.kernel.name}_{digest}"
        # The source. Its parameters are the addresses of the operands and of the results.
        self.text = f'{kernel}{_POINTER}{numbers}\nextern "C" __global__ void{attributes}{self.name}{rest}'

    @property
    def aliases(self) -> dict[int, int]:
        """The number of each operand that is also a result, and that result's number."""
        return {self.operands.index(name): i for i, name in enumerate(self.results) if name in self.operands}

    def _scalars_passed(self) -> list[str]:
        """Return which of alpha and beta it takes as an array."""
        if not any(isinstance(argument, Scalar) for argument in self.launch.arguments):
            return []
        values = (self._case.alpha, self._case.beta)
        return [name for name, value in zip(_NUMBERS, values, strict=True) if value is None]

    def _passed(self, argument: Argument) -> str:
        """Return how the entry spells an argument of the kernel."""
        if isinstance(argument, Matrix):
            return self._address(argument)
        if isinstance(argument, Scalar):
            return self._scalars[argument]
        if isinstance(argument, BatchAndSource):
            source = argument.source
            steps = (0,) * (3 - len(source.steps)) + source.steps
            of_source = (self._address(source), *map(self._number, source.inner_strides))
            return f"{{{self._batch(argument.batch)}, Source{{{', '.join(of_source)}, {self._three(steps)}}}}}"
        if isinstance(argument, Batch):
            return f"{{{self._batch(argument)}}}"
        return self._number(argument)

    def _batch(self, batch: Batch) -> str:
        missing = 3 - len(batch.extents)
        extents = (batch.count, *((1,) * missing + batch.extents)[1:])
        steps = [self._three((0,) * missing + each) for each in (batch.a, batch.b, batch.c)]
        return f"Batch{{{', '.join([*[self._number(np.uint32(extent)) for extent in extents], *steps])}}}"

    def _three(self, values: tuple[int, ...]) -> str:
        return f"{{{', '.join(map(self._number, values))}}}"

    def _number(self, number: Any) -> str:
        """Declare a number of the launch, and return how the entry spells it."""
        name = f"number_{len(self._numbers)}"
        kind, value = _KINDS[type(number)], number.view(np.uint32) if type(number) is np.float32 else number
        self._numbers.append(f"__constant__ {kind} {name} = {value};\n")
        return {int: f"Number{{{name}}}", np.float32: f"__uint_as_float({name})"}.get(type(number), name)

    def _address(self, matrix: Matrix) -> str:
        address = matrix.address
        moved = f" + {self._number(address.offset)}.value" if address.offset else ""
        return f"Address{{{address.base.name}{moved}}}"

    def _prologue(self) -> list[str]:
        """Return what the entry does first: it finds alpha, beta and the steps of k, and leaves if it has no work."""
        used = {argument for argument in self.launch.arguments if isinstance(argument, Scalar)}
        if not used:
            return []
        case, lines = self._case, []
        beta = "beta" if case.beta is None else self._number(np.float32(case.beta))
        if case.beta is None:
            lines.append("const float beta = *reinterpret_cast<const float *>(BETA);")
        if case.alpha is not None and (case.reads or case.beta is not None):
            steps, alpha = grid.steps(case.K, case.alpha, case.beta)
            self._scalars = {Scalar.ALPHA: self._number(np.float32(alpha)), Scalar.STEPS: self._number(np.int32(steps))}
        else:
            given = "0.0f" if case.alpha is not None else "*reinterpret_cast<const float *>(ALPHA)"
            # No steps where A and B are not to be read. What is then added to beta * C is a zero that changes nothing.
            lines += [
                f"const float given = {given};",
                f"const int steps = given != 0.0f ? {self._number(np.int32(case.K))} : 0;",
                f"const float alpha = steps ? given : {beta} != 0.0f ? -0.0f : 0.0f;",
            ]
            self._scalars = {Scalar.ALPHA: "alpha", Scalar.STEPS: "steps"}
        self._scalars[Scalar.BETA] = beta
        if case.reads is None and Scalar.ALPHA in used and self.launch.when in (When.READS, When.READS_NOTHING):
            lines.append(f"if ({'!' if self.launch.when is When.READS else ''}steps) return;")
        return lines


def entries(plan: Plan, case: Case) -> list[Entry]:
    """Return the launches of a plan that such a call may need, in their order, each with what is there before it."""
    there = {"A", "B"} if case.beta == 0.0 else {"A", "B", "C"}
    made = []
    for launch in plan.launches:
        if case.may_launch(launch):
            made.append(Entry(launch, there, case))
            there.update(made[-1].results)
    return made


def _names(matrices: Iterable[Matrix]) -> tuple[str, ...]:
    bases = {matrix.address.base for matrix in matrices}
    return tuple(base.name for base in Base if base in bases)


@cache
def _as_function(spec: KernelSpec) -> tuple[str, str]:
    """Return a kernel's attributes, and its source with the kernel as a function."""
    text = spec.text
    head = _HEAD.search(text)
    assert head is not None and head[2] == spec.name  # as tests of all kernels check
    function = f"static __device__ __forceinline__ void {head[2]}_of("
    return head[1], text[: head.start()] + function + text[head.end() :]

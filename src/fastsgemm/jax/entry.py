"""Kernels behind an entry that takes nothing but arrays and numbers, in an order that a launcher prescribes.

A kernel's own parameters are in the order in which they are read. Among them are structs, addresses inside of an array,
and alpha and beta as numbers. XLA's launcher passes arrays in the order of operands and results, and numbers that are
known when a program is lowered. So the kernel becomes a function, which the entry calls with what it has received.
Inlined, it is the same code; and one source serves all problems with the same kernel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from fastsgemm.call.plan import Argument, Launch, Scalar, When
from fastsgemm.errors import PrecisionError
from fastsgemm.geometry.batch import Batch, BatchAndSource
from fastsgemm.geometry.matrix import Base, Matrix
from fastsgemm.jit.source import KernelSpec

_HEAD = re.compile(r'extern "C" __global__\s+void(.*?)(fastsgemm_\w+)\(', re.DOTALL)

_POINTER = """
// An address that becomes a pointer of whatever type a parameter has.
struct Address {
    const char *first;
    template <class T>
    __device__ __forceinline__ operator T *() const { return (T *)first; }
};
"""


class Case:
    """What is known of a call when it is lowered.

    Attributes
    ----------
    alpha, beta : float or None
        None: an array of one element has it.
    K : int
    """

    def __init__(self, alpha: float | None, beta: float | None, K: int) -> None:
        self.alpha, self.beta, self.K = alpha, beta, K

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
    """A kernel of a plan behind an entry for XLA.

    Parameters
    ----------
    launch : Launch
    pointers : sequence of (str, bool)
        What the launcher passes for the operands and then for the results: a name, or an empty string for what the
        kernel has by another name, and whether it is written.
    case : Case

    Attributes
    ----------
    text : str
        The source.
    arguments : tuple
        See `fastsgemm.jax.launcher.description`.
    """

    def __init__(self, launch: Launch, pointers: Sequence[tuple[str, bool]], case: Case) -> None:
        self._launch, self._case = launch, case
        self._numbers: list[Any] = []
        passed = [self._passed(argument) for argument in launch.arguments]
        declared = [
            f"{'' if written else 'const '}char *{f'__restrict__ {name}' if name else f'unused_{i}'}"
            for i, (name, written) in enumerate(pointers)
        ]
        body = "".join(f"    {line}\n" for line in self._prologue())
        declared += [f"{_ctype(number)} s{i}" for i, number in enumerate(self._numbers)]
        attributes, kernel, name = _as_function(launch.kernel)
        self.text = (
            f'{kernel}{_POINTER}\nextern "C" __global__ void{attributes}{name}({", ".join(declared)}) {{\n'
            f"{body}    {name}_of({', '.join(passed)});\n}}\n"
        )
        self.arguments = (*[None for _ in pointers], *self._numbers)

    def _passed(self, argument: Argument) -> str:
        """Return how the entry spells an argument of the kernel."""
        if isinstance(argument, Matrix):
            return self._address(argument)
        if isinstance(argument, Scalar):
            return {Scalar.ALPHA: "alpha", Scalar.BETA: "beta", Scalar.STEPS: "steps"}[argument]
        if isinstance(argument, BatchAndSource):
            source = argument.source
            steps = (0,) * (3 - len(source.steps)) + source.steps
            of_source = (self._address(source), *map(self._number, (*source.inner_strides,)))
            return f"{{{self._batch(argument.batch)}, Source{{{', '.join(of_source)}, {self._three(steps)}}}}}"
        if isinstance(argument, Batch):
            return f"{{{self._batch(argument)}}}"
        if type(argument) in (np.int32, np.float32):
            return self._number(argument)
        if isinstance(argument, int):
            return self._number(argument) if argument else "0"  # which may be no address, too
        raise PrecisionError(
            f"kernel {self._launch.kernel.name} takes a {type(argument).__name__}, which XLA cannot pass; choose "
            "precision 'ieee' in traced code"
        )

    def _number(self, value: Any) -> str:
        self._numbers.append(value)
        return f"s{len(self._numbers) - 1}"

    def _three(self, values: tuple[int, ...]) -> str:
        return f"{{{', '.join(map(self._number, values))}}}"

    def _address(self, matrix: Matrix) -> str:
        address = matrix.address
        moved = f" + {self._number(address.offset)}" if address.offset or address.base is Base.WORKSPACE else ""
        return f"Address{{{address.base.name}{moved}}}"

    def _batch(self, batch: Batch) -> str:
        if batch.count == 1:
            return "Batch{1, 1, 1, {}, {}, {}}"
        missing = 3 - len(batch.extents)
        extents = (np.int32(batch.count), *map(np.int32, ((1,) * missing + batch.extents)[1:]))
        spelled = [f"unsigned({self._number(extent)})" for extent in extents]
        steps = [self._three((0,) * missing + each) for each in (batch.a, batch.b, batch.c)]
        return f"Batch{{{', '.join([*spelled, *steps])}}}"

    def _prologue(self) -> list[str]:
        """Return what the entry does first: it finds alpha, beta and the steps of k, and leaves if it has no work."""
        used = {argument for argument in self._launch.arguments if isinstance(argument, Scalar)}
        if not used:
            return []
        alpha = self._scalar(self._case.alpha, "ALPHA")
        lines = [f"const float beta = {self._scalar(self._case.beta, 'BETA')};"]
        steps = self._number(np.int32(self._case.K))
        # No steps where A and B are not to be read. What is then added to beta * C is a zero that does not change it.
        lines += [
            f"const float given = {alpha};",
            f"const int steps = given != 0.0f ? {steps} : 0;",
            "const float alpha = steps ? given : beta != 0.0f ? -0.0f : 0.0f;",
        ]
        if self._case.reads is None and Scalar.ALPHA in used and self._launch.when in (When.READS, When.READS_NOTHING):
            lines.append(f"if ({'!' if self._launch.when is When.READS else ''}steps) return;")
        return lines

    def _scalar(self, value: float | None, name: str) -> str:
        if value is None:
            return f"*reinterpret_cast<const float *>({name})"
        return self._number(np.float32(value))


def scalars_used(launch: Launch, case: Case) -> list[str]:
    """Return which of alpha and beta a kernel needs as an array."""
    if not any(isinstance(argument, Scalar) for argument in launch.arguments):
        return []
    return [name for name, value in (("ALPHA", case.alpha), ("BETA", case.beta)) if value is None]


def _ctype(number: Any) -> str:
    return {np.int32: "int", np.float32: "float"}.get(type(number), "long long")


@cache
def _as_function(spec: KernelSpec) -> tuple[str, str, str]:
    """Return a kernel's attributes, its source with the kernel as a function, and its name."""
    text = spec.text
    head = _HEAD.search(text)
    assert head is not None and head[2] == spec.name  # as tests of all kernels check
    function = f"static __device__ __forceinline__ void {head[2]}_of("
    return head[1], text[: head.start()] + function + text[head.end() :], head[2]

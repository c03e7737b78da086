"""The executor that simulates: runs the launches of a plan one after the other, and `sgemm` by it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastsgemm.call import checks
from fastsgemm.call.arrays import host_dtype, host_fault
from fastsgemm.call.arrays.library import at_address
from fastsgemm.call.plan import Argument, Launch, Plan, Scalar
from fastsgemm.call.product import make_plan
from fastsgemm.geometry.batch import ADDRESS_PLACE, Batch, BatchAndSource, GroupedBatch, GroupedRows
from fastsgemm.geometry.layout import ITEM, Meta
from fastsgemm.geometry.matrix import Base, Matrix
from fastsgemm.geometry.tensor_map import TensorMap
from fastsgemm.jit.source import target
from fastsgemm.problem import DType
from fastsgemm.request import Request, of_call, resolve
from fastsgemm.sim.global_memory import Region, misalignment
from fastsgemm.sim.machine import Machine
from fastsgemm.sim.report import Report

Array = NDArray[np.float32]

Reports = list[tuple[Launch, Report]]  # of each kernel of a product, in the order of their launches

FLOPS_A_SECOND = (8e6, 30e6)  # simulated on two cores: small grids, large grids


def minutes(flops: float) -> str:
    """Return about how long the kernels of so many FLOPs are simulated, in words."""
    least, most = (flops / speed / 60 for speed in reversed(FLOPS_A_SECOND))
    return f"about {least:.2g} to {most:.2g} minutes"


_KINDS = {4: "<f4", 2: "<u2"}  # of the elements of a `Matrix`, by their bytes


def sgemm(
    rung: Any,
    config: Any,
    A: Array,
    B: Array,
    alpha: float = 1.0,
    beta: float = 0.0,
    C: Array | None = None,
    machine: Machine | None = None,
    precision: str | None = None,
    out: Array | None = None,
    batch_invariant: bool = False,
) -> tuple[Array, Report | None]:
    """Compute C <- alpha * A @ B + beta * C by running the kernels of a rung on the simulated device.

    Parameters
    ----------
    rung : Rung or None
        None: the one that `fastsgemm.sgemm` uses when none is named.
    config : Config or None
        Its constants. None: from the tuning database, as for a real device of this name.
    A, B : ndarray of float32, float16 or bfloat16
        Matrices, vectors or batches with any strides.
    alpha, beta : float
    C : ndarray of float32, optional
        Updated in place. Without it the result is a new array.
    machine : Machine, optional
        Default: see `Machine`.
    precision : str
        As in `fastsgemm.sgemm`.
    out : ndarray of float32, optional
        Written in place of C, which broadcasts to its shape and shares no memory with it.
    batch_invariant : bool
        As in `fastsgemm.sgemm`.

    Returns
    -------
    C : ndarray
        Or `out`.
    report : Report or None
        Of the kernel that multiplies, of several the first. None where C has no elements and nothing is launched.

    Raises
    ------
    ConfigError
        The config is not legal for the rung on this architecture.
    DTypeError, ShapeError, OverlapError, OperandError
        The arrays cannot be used as given.
    KernelFault
        The kernel did what it must not do.
    """
    request = resolve(rung, config, precision, batch_invariant)
    written = C if out is None else out
    if written is None:
        written = np.empty(checks.result_shape(A.shape, B.shape), np.float32)
    request = of_call(request, output="C" if out is None else "out")
    reports = multiply(request, A, B, written, alpha, beta, None if written is C else C, machine)
    products = [report for launch, report in reports if launch.kernel.file[0].isdigit()]  # of a rung
    return written, next(iter(products), reports[-1][1] if reports else None)


def multiply(
    request: Request,
    A: Array,
    B: Array,
    C: Array,
    alpha: float,
    beta: float,
    source: Array | None = None,
    machine: Machine | None = None,
) -> Reports:
    """Compute C <- alpha * A @ B + beta * C, or with beta times the source; return what was launched, in order."""
    machine = machine or Machine()
    operands = (A, B, C) if source is None else (A, B, C, source)
    # The same in every run, whatever the host's allocator does, but for A and B at one address.
    addresses = [16 * x.ctypes.data + misalignment(x) % 16 for x in operands]
    plan = make_plan(machine.device, request, metas_of(operands), addresses)
    arrays = dict(zip((Base.A, Base.B, Base.C, Base.SOURCE), operands, strict=False))
    return run(plan, machine, arrays, float(alpha), float(beta))


def metas_of(operands: Iterable[Array]) -> list[Meta]:
    """Return what a plan needs to know of arrays except their addresses."""
    return [
        Meta(
            x.shape, tuple(step // x.itemsize for step in x.strides), host_dtype(x) or DType.F32,
            fault=host_fault(x), readonly=not x.flags.writeable,
        )
        for x in operands
    ]  # fmt: skip


def run(plan: Plan, machine: Machine, arrays: Mapping[Base, NDArray[Any]], alpha: float, beta: float) -> Reports:
    """Run the launches of a plan for operands that lie as it was made for; return them with their reports, in order.

    Workspace has NaN where nothing was written, unless `arrays` has one.
    """
    alpha, steps = plan.scalars(alpha, beta)
    scalars = {Scalar.ALPHA: alpha, Scalar.BETA: beta, Scalar.STEPS: steps}
    memory = {Base.WORKSPACE: np.full(-(-plan.workspace // ITEM), np.nan, np.float32), **arrays}
    reports: Reports = []
    for launch in plan.selected(bool(steps), beta != 0):
        reports.append((launch, _launch(launch, machine, memory, scalars)))
    return reports


def _launch(
    launch: Launch,
    machine: Machine,
    memory: Mapping[Base, NDArray[Any]],
    scalars: Mapping[Scalar, float],
) -> Report:
    """Run a launch. One that may begin early must wait for the one before it before it accesses global memory."""
    kernel = launch.kernel
    regions = dict(_regions(launch, memory, scalars))
    arguments = [_argument(each, scalars) for each in launch.arguments]
    return machine.launch(
        kernel.text, kernel.name, launch.grid, launch.threads, launch.shared_bytes, arguments, regions,
        arch=target(kernel.file, machine.device.arch), early=launch.early,
    )  # fmt: skip


def _regions(
    launch: Launch, memory: Mapping[Base, NDArray[Any]], scalars: Mapping[Scalar, float]
) -> Iterator[tuple[str, Region]]:
    """Yield what a launch may access, by name: what it does not write is read, if alpha and beta say so."""
    writes = {write.matrix: write for write in launch.writes}
    reads, beta = bool(scalars[Scalar.STEPS]), bool(scalars[Scalar.BETA])
    sources = [each.source for each in launch.arguments if isinstance(each, BatchAndSource | GroupedBatch)]
    ends = [each.ends for each in launch.arguments if isinstance(each, GroupedBatch | GroupedRows)]
    for matrix in launch.matrices:
        array, write = _array(matrix, memory), writes.get(matrix)
        if write is not None:
            read = write.reads is not None and write.reads.holds(reads, beta)
            yield matrix.name, Region(array, read=read, write=True, complete=write.complete)
        elif (matrix.address.base is Base.SOURCE or matrix in sources) and Scalar.BETA in launch.arguments:
            yield matrix.name, Region(array, read=beta)
        else:
            read = reads or Scalar.STEPS not in launch.arguments or matrix in ends
            yield matrix.name, Region(array, read=read)


def _array(matrix: Matrix, memory: Mapping[Base, NDArray[Any]]) -> NDArray[Any]:
    """Return the memory of a matrix as an array."""
    owner = memory[matrix.address.base]
    address = owner.ctypes.data + matrix.address.offset
    return at_address(address, matrix.shape, matrix.strides, owner, _KINDS[matrix.item])


def _argument(argument: Argument, scalars: Mapping[Scalar, float]) -> Any:
    """Return an argument as `Machine.launch` takes it."""
    if isinstance(argument, Matrix):
        return argument.name
    if isinstance(argument, Scalar):
        return scalars[argument]
    if isinstance(argument, BatchAndSource):
        return argument.packed(0), (ADDRESS_PLACE, argument.source.name)
    if isinstance(argument, GroupedBatch | GroupedRows):
        return argument.packed, *[(place, matrix.name) for place, matrix in argument.addresses]
    return argument.packed if isinstance(argument, Batch | TensorMap) else argument

"""The simulated ladder: the cost of each rung, counted on the simulated device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fastsgemm import device
from fastsgemm.config import Config
from fastsgemm.errors import ShapeError
from fastsgemm.geometry import grid, variants
from fastsgemm.measure import contenders, ragged
from fastsgemm.measure.chains import has_several_chains
from fastsgemm.measure.constants import Constants, constants_of
from fastsgemm.measure.counts import CountedRow, Fp16x3Rows, KernelRow, Table
from fastsgemm.measure.operands import host_operands, refuse_too_large
from fastsgemm.measure.reference import Reference
from fastsgemm.problem import Problem, format_problem
from fastsgemm.progress import track
from fastsgemm.request import resolve
from fastsgemm.rungs import Rung
from fastsgemm.sim.counters import GlobalTraffic
from fastsgemm.sim.gemm import minutes, multiply, sgemm
from fastsgemm.sim.machine import Machine
from fastsgemm.sim.report import Report

TYPICAL = Problem(4096, 4096, 4096)  # whose constants are used, because small problems get small tiles

# Limits of a run. FLOPs are those of whole tiles, because kernels compute whole tiles.
MOST_FLOPS = 5 * 10**9
_STEPS_BESIDE = 64  # steps of k that take as long as setting up and storing a tile
_COPIES = 8.0  # memory in float32 copies of A, B and C: values, float64 reference, simulated memory and its map


def climb(
    problem: Problem,
    rungs: Sequence[Rung] | None = None,
    machine: Machine | None = None,
    overrides: Mapping[str, int] | None = None,
) -> Table:
    """Run rungs on one problem with beta = 0 and a row-major C, count, and check the results.

    Each rung is checked on a ragged problem, too; see `fastsgemm.measure.ragged`. The default rungs are those of
    `fastsgemm.measure.contenders.rungs_for`. Configs are those of the tuning database for a large problem on this
    device, with the constants in `overrides`.

    Raises
    ------
    ConfigError
        A rung cannot take the overrides.
    ShapeError
        The simulation would take too long or too much memory. Nothing was run.
    KernelFault
        A kernel did something illegal; the message names the rung.
    """
    machine = machine or Machine()
    chosen = rungs or contenders.rungs_for(problem, machine.device.arch)
    constants = [constants_of(machine.device, rung, TYPICAL, overrides or {}) for rung in chosen]
    _refuse_too_large(problem, constants)
    A, B, _ = host_operands(problem)
    reference = Reference(A, B)
    rows, results = [], []
    tensor_cores = None
    for rung_constants in track(constants, "simulating rungs"):
        rung, config = rung_constants.rung, rung_constants.config
        if rung.precision != "ieee":
            tensor_cores = _fp16x3(rung_constants, problem, machine, A, B, reference)
            continue
        with ragged.errors_naming(rung, problem):
            C, report = sgemm(rung, config, A, B, machine=machine)
        assert report is not None  # there is a report because M, N and K are positive
        mismatch = reference.mismatch(C) or ragged.mismatch(rung, config, problem.layout, machine)
        rows.append(_row(rung_constants, report, reference.error(C), mismatch))
        if not has_several_chains(config.constants):
            results.append(C.view(np.uint32))
    identical = all(np.array_equal(result, results[0]) for result in results)
    description = f"the constants for {TYPICAL.M} x {TYPICAL.N} x {TYPICAL.K}"
    if overrides:
        description += " but " + " ".join(f"{name}={value}" for name, value in overrides.items())
    info = machine.device
    return Table(
        info.name, info.arch, device.nvrtc_text(), problem.M, problem.N, problem.K, description, identical, tuple(rows),
        problem.layout, tensor_cores,
    )  # fmt: skip


def _fp16x3(
    constants: Constants, problem: Problem, machine: Machine, A: np.ndarray, B: np.ndarray, reference: Reference
) -> Fp16x3Rows:
    """Run rung 11, whose product takes several kernels."""
    rung, config = constants.rung, constants.config
    C = np.empty((A.shape[0], B.shape[1]), np.float32)
    with ragged.errors_naming(rung, problem):
        reports = multiply(resolve(rung, config), A, B, C, 1.0, 0.0, machine=machine)
    error = reference.error(C)
    kernels = tuple(_kernel_row(report) for _, report in reports)
    mismatch = reference.mismatch(C) or ragged.mismatch(rung, config, problem.layout, machine)
    finite_error = error if math.isfinite(error) else None
    return Fp16x3Rows(config.constants, kernels, finite_error, mismatch, constants.overridden)


def _kernel_row(report: Report) -> KernelRow:
    total = report.total
    loads, stores = GlobalTraffic(), GlobalTraffic()
    for sums, parts in ((loads, total.loads), (stores, total.stores)):
        for part in parts.values():
            sums.add(part)
    return KernelRow(
        name=report.kernel.removeprefix("fastsgemm_"),
        blocks=report.grid,
        loads=loads,
        stores=stores,
        shared_wavefronts=total.shared_loads.wavefronts + total.shared_stores.wavefronts,
        instructions=total.instructions,
        registers=report.registers,
        shared_bytes=report.shared_bytes,
        occupancy=report.occupancy.share,
    )


def _refuse_too_large(problem: Problem, all_constants: Sequence[Constants]) -> None:
    refuse_too_large(problem, _COPIES)
    flops = sum(_flops(problem, constants.rung, constants.config) for constants in all_constants)
    if flops > MOST_FLOPS:
        raise ShapeError(
            f"simulating {format_problem(problem)} on {len(all_constants)} rung(s) takes {flops:.2g} FLOPs in whole "
            f"tiles, {minutes(flops)}; the limit is {MOST_FLOPS:.2g}: choose a smaller size or "
            "fewer rungs"
        )


def _flops(problem: Problem, rung: Rung, config: Config) -> int:
    if rung.precision != "ieee":  # rung 11, whose simulation takes about as long as that of rung 8
        return problem.flops
    swapped = variants.with_swap_ab(rung, problem)
    return 2 * grid.tiles(config, swapped) * config.BM * config.BN * (swapped.K + _STEPS_BESIDE)


def _row(constants: Constants, report: Report, error: float, mismatch: str | None) -> CountedRow:
    total = report.total
    return CountedRow(
        number=constants.rung.number,
        name=constants.rung.name,
        constants=constants.config.constants,
        loads_a=total.loads["A"],
        loads_b=total.loads["B"],
        stores_c=total.stores["C"],
        shared_loads=total.shared_loads,
        shared_stores=total.shared_stores,
        instructions=total.instructions,
        fma_instructions=total.fma_instructions,
        fmas=total.fmas,
        thread_fmas=total.thread_fmas,
        barriers=total.barriers / report.grid,
        divergent_branches=total.divergent_branches,
        registers=report.registers,
        spilled=report.spilled,
        shared_bytes=report.shared_bytes,
        occupancy=report.occupancy.share,
        limited_by=report.occupancy.limited_by,
        error=error if math.isfinite(error) else None,
        mismatch=mismatch,
        overridden=constants.overridden,
    )

"""The simulated ladder: what each rung costs, counted on the simulated device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fastsgemm import device
from fastsgemm.config import Config
from fastsgemm.errors import ShapeError
from fastsgemm.geometry import grid, variants
from fastsgemm.heuristics import fp16x3
from fastsgemm.heuristics.choice import choose_config
from fastsgemm.ladder import contenders
from fastsgemm.ladder.counts import CountedRow, Fp16x3Rows, KernelRow, Table
from fastsgemm.ladder.measured import Reference, has_several_chains
from fastsgemm.problem import Problem, spell
from fastsgemm.progress import track
from fastsgemm.rungs import Rung
from fastsgemm.sim import fp16x3 as sim_fp16x3
from fastsgemm.sim.counters import GlobalTraffic
from fastsgemm.sim.gemm import sgemm
from fastsgemm.sim.machine import Machine
from fastsgemm.sim.report import Report

TYPICAL = Problem(4096, 4096, 4096)  # its constants are used, because those of a small problem use no large tiles

# Limits of a climb. FLOPs are those of whole tiles, because the kernels compute whole tiles.
MOST_FLOPS = 5 * 10**9
_STEPS_BESIDE = 64  # steps of k that take as long as setting up and storing a tile
_FLOPS_A_SECOND = (8e6, 30e6)  # simulated on two cores: small grids, large grids
_COPIES = 8.0  # memory in float32 copies of A, B and C: values, float64 reference, simulated memory and its map


def climb(
    problem: Problem,
    rungs: Sequence[Rung] | None = None,
    machine: Machine | None = None,
    configs: Mapping[str, Config] | None = None,
) -> Table:
    """Run rungs on one problem with beta = 0 and a row-major C, and check the results.

    Parameters
    ----------
    problem : Problem
    rungs : sequence of Rung, optional
        Default: see `fastsgemm.ladder.contenders.rungs_for`.
    machine : Machine, optional
        Default: see `Machine`.
    configs : mapping, optional
        Config by name of the rung; rung 11 has its own. Default: those of the tuning database for a large problem on
        this device.

    Raises
    ------
    ShapeError
        The simulation would take too long or too much memory. Nothing was run.
    """
    machine = machine or Machine()
    usual = f"the constants for {TYPICAL.M} x {TYPICAL.N} x {TYPICAL.K}"
    constants = usual if configs is None else "given constants"
    chosen = rungs or contenders.rungs_for(problem, machine.device.arch)
    if configs is None:
        configs = {
            rung.name: choose_config(machine.device, rung, TYPICAL).config
            for rung in chosen
            if rung.precision == "ieee"
        }
    _refuse_too_large(problem, chosen, configs)
    A, B, _ = contenders.operands(problem)
    reference = Reference(A, B)
    rows, results = [], []
    tensor_cores = None
    for rung in track(chosen, "simulating rungs"):
        if rung.precision != "ieee":
            tensor_cores = _fp16x3(machine, A, B, reference)
            continue
        config = configs[rung.name]
        C, report = sgemm(rung, config, A, B, machine=machine)
        assert report is not None  # there is a report because M, N and K are positive
        rows.append(_row(rung, config, report, reference.error(C), reference.limit))
        if not has_several_chains(config.constants):
            results.append(C.view(np.uint32))
    identical = all(np.array_equal(result, results[0]) for result in results)
    nvrtc = "{}.{}".format(*device.nvrtc_version())
    device_info = machine.device
    M, N, K = problem.M, problem.N, problem.K
    return Table(
        device_info.name, device_info.arch, nvrtc, M, N, K, constants, identical, tuple(rows), problem.layout,
        tensor_cores,
    )  # fmt: skip


def _fp16x3(machine: Machine, A: np.ndarray, B: np.ndarray, reference: Reference) -> Fp16x3Rows:
    """Run rung 11 with its constants for a large problem."""
    fp16x3.require_tensor_cores(machine.device)
    config = fp16x3.choose(machine.device, TYPICAL, forced=True).config
    assert config is not None  # a device with tensor cores has one
    C = np.empty((A.shape[0], B.shape[1]), np.float32)
    reports = sim_fp16x3.sgemm(config, A, B, 1.0, 0.0, C, machine, forced=True)
    error = reference.error(C)
    kernels = tuple(map(_kernel_row, reports))
    return Fp16x3Rows(
        config.constants, kernels, error if math.isfinite(error) else None, bool(error <= reference.limit)
    )


def _kernel_row(report: Report) -> KernelRow:
    total = report.total
    loads, stores = GlobalTraffic(), GlobalTraffic()
    for found, parts in ((loads, total.loads), (stores, total.stores)):
        for part in parts.values():
            found.add(part)
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


def _refuse_too_large(problem: Problem, chosen: Sequence[Rung], configs: Mapping[str, Config]) -> None:
    contenders.refuse_too_large(problem, _COPIES)
    flops = sum(_flops(problem, rung, configs.get(rung.name)) for rung in chosen)
    if flops > MOST_FLOPS:
        least, most = (flops / speed / 60 for speed in reversed(_FLOPS_A_SECOND))
        raise ShapeError(
            f"simulating {spell(problem)} on {len(chosen)} rung(s) takes {flops:.2g} FLOPs in whole tiles, "
            f"about {least:.2g} to {most:.2g} minutes; the limit is {MOST_FLOPS:.2g}: choose a smaller size or "
            "fewer rungs"
        )


def _flops(problem: Problem, rung: Rung, config: Config | None) -> int:
    if config is None:  # rung 11, whose simulation takes about as long as that of rung 8
        return problem.flops
    swapped = variants.with_swap_ab(rung, problem)
    return 2 * grid.tiles(config, swapped) * config.BM * config.BN * (swapped.K + _STEPS_BESIDE)


def _row(rung: Rung, config: Config, report: Report, error: float, limit: float) -> CountedRow:
    total = report.total
    return CountedRow(
        number=rung.number,
        name=rung.name,
        constants=config.constants,
        loads_a=total.loads["A"],
        loads_b=total.loads["B"],
        stores_c=total.stores["C"],
        shared_loads=total.shared_loads,
        shared_stores=total.shared_stores,
        instructions=total.instructions,
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
        right=bool(error <= limit),
    )

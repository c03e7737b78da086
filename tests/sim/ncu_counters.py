#!/usr/bin/env python3
"""Compare what the simulated device counts with Nsight Compute's counters on a device, for the rungs of the ladder.

    python3 tests/sim/ncu_counters.py                    256 x 256 x 256, on the first device; 8 rows of it for rung 10
    python3 tests/sim/ncu_counters.py --json found.json  also write all of it to a file

Both run the same compilation: the simulator its PTX, the device its cubin. The call on the device is `fastsgemm.sgemm`,
which must ask for exactly the sources that were simulated. Needs `ncu`, and the right to read the device's counters;
clocks are left alone. The exit code is 1 where one of the counts that must agree differs by more than 2 %, or a bit
of a result.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from fastsgemm import rungs
from fastsgemm.geometry import variants
from fastsgemm.heuristics import database
from fastsgemm.heuristics.choice import choose_config
from fastsgemm.jit import source
from fastsgemm.measure.simulated_ladder import TYPICAL
from fastsgemm.problem import Problem
from fastsgemm.sim import Machine, nvrtc, sgemm
from fastsgemm.sim.report import Report

LIMIT = 2.0  # percent
NCU_SECONDS = 120


class NcuError(Exception):
    """ncu is missing or could not measure."""


@dataclass(frozen=True)
class Metric:
    """A count with its names on both sides.

    Attributes
    ----------
    name : str
    ncu : str
    simulated : callable, optional
        Takes it from a report. None: ncu's count is stored and compared with nothing.
    gated : bool
        Whether both must agree; the others depend on what ptxas makes of the PTX, and are shown.
    copies_gated : bool
        Whether both must agree for kernels with asynchronous copies (LDGSTS), too.
    """

    name: str
    ncu: str
    simulated: Callable[[Report], float] | None
    gated: bool = True
    copies_gated: bool = True


def _sum(kind: str, what: str) -> Callable[[Report], float]:
    return lambda report: sum(getattr(one, what) for one in getattr(report.total, kind).values())


# NVIDIA does not document whether the counters of loads and stores contain asynchronous copies. In rung 9, where every
# global load is a copy, that of global loads has all of them, and that of shared stores none. Their own counter of
# wavefronts shows twice the simulated ones. The copies' counters are stored apart.
METRICS = (
    Metric("global load requests", "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", _sum("loads", "requests")),
    Metric("global load sectors", "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", _sum("loads", "sectors")),
    Metric("copy requests", "smsp__sass_l1tex_t_requests_pipe_lsu_mem_global_op_ldgsts.sum", None, gated=False),
    Metric("copy sectors", "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts.sum", None, gated=False),
    Metric("global store requests", "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum", _sum("stores", "requests")),
    Metric("global store sectors", "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", _sum("stores", "sectors")),
    Metric(
        "shared load wavefronts",
        "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
        lambda report: report.total.shared_loads.wavefronts,
    ),
    Metric(
        "shared store wavefronts",
        "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
        lambda report: report.total.shared_stores.wavefronts,
        copies_gated=False,  # copies are not counted here
    ),
    Metric(
        "copy wavefronts", "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum", None, gated=False
    ),
    Metric(
        "of loads, with repeats",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
        lambda report: report.total.shared_loads.wavefronts,
        gated=False,
    ),
    Metric(
        "of stores, with repeats",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
        lambda report: report.total.shared_stores.wavefronts,
        gated=False,
    ),
    Metric(
        "thread FMAs", "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", lambda report: report.total.thread_fmas
    ),
    Metric(
        "shared load requests",
        "smsp__inst_executed_op_shared_ld.sum",
        lambda report: report.total.shared_loads.requests,
        gated=False,
    ),
    Metric(
        "shared store requests",
        "smsp__inst_executed_op_shared_st.sum",
        lambda report: report.total.shared_stores.requests,
        gated=False,
    ),
    Metric(
        "divergent branches",
        "smsp__sass_branch_targets_threads_divergent.sum",
        lambda report: report.total.divergent_branches,
        gated=False,
    ),
    Metric(
        "instructions", "smsp__inst_executed.sum", lambda report: report.total.instructions, gated=False
    ),
    Metric("registers", "launch__registers_per_thread", lambda report: report.registers, gated=False),
    Metric(
        "theoretical occupancy, %",
        "sm__maximum_warps_per_active_cycle_pct",
        lambda report: 100 * report.occupancy.share,
        gated=False,
    ),
)  # fmt: skip
NAMES = tuple(metric.ncu for metric in METRICS)
NARROW = Problem(8, 4096, 4096)  # whose constants rung 10 gets


@dataclass(frozen=True)
class Simulated:
    """One rung on the simulated device, with what the device needs to do the same.

    Attributes
    ----------
    rung : str
    kernel : str
    constants : dict
    source : str
    cubin : bytes
    copies : bool
        Whether the kernel copies asynchronously.
    counts : dict
        By metric name.
    product : numpy.ndarray
    """

    rung: str
    kernel: str
    constants: dict[str, int]
    source: str
    cubin: bytes
    copies: bool
    counts: dict[str, float]
    product: np.ndarray


@dataclass(frozen=True)
class Row:
    """One count of one rung. `sim`, `ncu` and `percent` are None where there is nothing to compare."""

    rung: str
    metric: str
    gated: bool
    sim: float | None
    ncu: float | None
    percent: float | None

    @property
    def beyond(self) -> bool:
        """Whether the two should agree and do not."""
        return self.gated and (self.percent is None or abs(self.percent) > LIMIT)


def simulate(rung: rungs.Rung, machine: Machine, A: np.ndarray, B: np.ndarray) -> Simulated:
    """Run a rung on the simulated device, and keep what it launched: one kernel, with K whole.

    Rung 10 is for few rows: of A it takes the first ones.
    """
    config = choose_config(machine.device, rung, NARROW if rung.narrow else TYPICAL).config
    if "SPLIT_K" in config.constants:
        config = replace(config, SPLIT_K=1)
    A = A[: NARROW.M] if rung.narrow else A
    product, report = sgemm(rung, config, A, B, machine=machine)
    assert report is not None
    problem = Problem(A.shape[0], B.shape[1], A.shape[1])
    call = variants.call_with_swap_ab(rung, variants.dense_call(problem))
    text = source.rung_spec(
        rung, config, variants.variant_for(rung, call, config, database.fitted(machine.device.arch).peeled_tiles)
    ).text
    binary = nvrtc.compile_source(text, machine.device.arch, cubin=True)
    counts = {metric.name: float(metric.simulated(report)) for metric in METRICS if metric.simulated}
    return Simulated(
        rung.name, rung.kernel, config.constants, text, binary.cubin, "cp.async" in binary.ptx, counts, product
    )


def write_launches(folder: Path, done: list[Simulated], A: np.ndarray, B: np.ndarray) -> None:
    """Write what `on_device` reads."""
    for number, one in enumerate(done):
        (folder / f"{number}.cubin").write_bytes(one.cubin)
        np.save(folder / f"{number}.npy", one.product)
    np.save(folder / "A.npy", A)
    np.save(folder / "B.npy", B)
    launches = [
        {"rung": one.rung, "constants": one.constants, "source": one.source, "rows": len(one.product)} for one in done
    ]
    (folder / "launches.json").write_text(json.dumps(launches), encoding="utf-8")


def on_device(folder: Path) -> None:
    """Call `fastsgemm.sgemm` for each launch of the folder, with the cubins that were simulated, for ncu to watch."""
    from cuda.bindings import driver

    from fastsgemm import device
    from fastsgemm import sgemm as multiply
    from fastsgemm.jit import compiler
    from fastsgemm.measure import environment

    launches = json.loads((folder / "launches.json").read_text(encoding="utf-8"))
    A, B = np.load(folder / "A.npy"), np.load(folder / "B.npy")
    cubins = {one["source"]: (folder / f"{number}.cubin").read_bytes() for number, one in enumerate(launches)}
    compiler.cubin = lambda source, name, arch: cubins[source]
    gpu = device.open_gpu(0)
    gpu.enter()

    def product(one: dict[str, Any]) -> np.ndarray:
        config = rungs.find(one["rung"]).config.from_constants(one["constants"])
        return multiply(A[: one["rows"]], B, rung=one["rung"], config=config)

    same_bits = {}
    for number, one in enumerate(launches):  # loads the kernels
        expected = np.load(folder / f"{number}.npy")
        same_bits[one["rung"]] = bool(np.array_equal(product(one).view(np.uint32), expected.view(np.uint32)))
    device.check_driver("starting the profiler", driver.cuProfilerStart())
    for one in launches:
        product(one)
    device.check_driver("stopping the profiler", driver.cuProfilerStop())
    found = {"arch": gpu.arch, **environment.facts(gpu), "same_bits": same_bits}
    (folder / "device.json").write_text(json.dumps(found), encoding="utf-8")


def find_ncu(given: str | None) -> str:
    """Return the path of ncu: the one given, one on PATH, or the newest in the usual folders."""
    if given is not None:
        return given
    found = shutil.which("ncu")
    if found is not None:
        return found
    usual = [*Path("/usr/local").glob("cuda*/bin/ncu"), *Path("/opt/nvidia/nsight-compute").glob("*/ncu")]
    if not usual:
        raise NcuError("ncu was not found on PATH, in /usr/local/cuda*/bin or in /opt/nvidia/nsight-compute; use --ncu")
    return str(max(usual, key=lambda path: [int(part) for part in re.findall(r"\d+", str(path))]))


def profile(
    ncu: str, folder: Path, program: Path = Path(__file__), names: Sequence[str] = NAMES, kernel: str | None = None
) -> list[tuple[str, dict[str, float]]]:
    """Run a program with `--on-device FOLDER` under ncu, without the metrics that it refuses.

    Parameters
    ----------
    ncu : str
    folder : Path
    program : Path
        Default: this one, and so `on_device`.
    names : sequence of str
        ncu's names of the metrics.
    kernel : str, optional
        A regular expression; kernels with other names are not measured.

    Returns
    -------
    list of (str, dict)
        Name and counts by ncu's metric name of every launch, in order.
    """
    wanted = list(names)
    only = [] if kernel is None else ["--kernel-name", f"regex:{kernel}"]
    while wanted:
        code, text = _run_ncu(ncu, folder, [*only, "--metrics", ",".join(wanted)], program)
        refused = refused_metrics(text, wanted) if code else []
        if not refused:
            break
        wanted = [name for name in wanted if name not in refused]
    if code or not wanted:
        raise NcuError(f"ncu ended with {code}:\n{text[-4000:]}")
    kernels = parse(text)
    if not kernels:
        raise NcuError(f"ncu saw no kernel:\n{text[-4000:]}")
    return kernels


def _run_ncu(ncu: str, folder: Path, what: list[str], program: Path) -> tuple[int, str]:
    log = folder / "ncu.log"
    log.unlink(missing_ok=True)
    command = [
        ncu, "--csv", "--page", "details", "--print-units", "base", "--log-file", str(log),
        "--profile-from-start", "off", "--clock-control", "none", "--cache-control", "none",
        *what, sys.executable, str(program.resolve()), "--on-device", str(folder),
    ]  # fmt: skip
    environment = os.environ | {"FASTSGEMM_TUNE": "off", "FASTSGEMM_DEVICE": "cuda"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=NCU_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NcuError(f"ncu did not run: {error}") from error
    logged = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return done.returncode, logged if not done.returncode else f"{logged}\n{done.stdout}\n{done.stderr}"


def refused_metrics(text: str, wanted: list[str]) -> list[str]:
    """Return the metrics that ncu's messages name as not to be found."""
    complaints = [line for line in text.splitlines() if line.startswith("==") and "metric" in line.lower()]
    named = set(re.findall(r"\w+__\w+", "\n".join(complaints)))
    return [name for name in wanted if name.split(".")[0] in named]


def parse(text: str) -> list[tuple[str, dict[str, float]]]:
    """Return name and counts of every kernel of ncu's CSV, in the order of their launches.

    Lines that are not CSV (``==PROF== ...``, output of the program) are skipped, and so are values that are no numbers.
    """
    kernels: dict[int, tuple[str, dict[str, float]]] = {}
    lines = [line for line in text.splitlines() if line.startswith('"')]
    for row in csv.DictReader(lines):
        name, value = row.get("Metric Name"), row.get("Metric Value")
        if name is None or value is None:
            continue
        _, counts = kernels.setdefault(int(row["ID"]), (row["Kernel Name"], {}))
        try:
            counts[name] = float(value.replace(",", ""))
        except ValueError:  # n/a, or nan with an explanation
            continue
    return [kernels[number] for number in sorted(kernels)]


def compare(done: list[Simulated], kernels: list[tuple[str, dict[str, float]]]) -> list[Row]:
    """Return every count of every rung beside ncu's."""
    names = [name.split("(")[0] for name, _ in kernels]
    expected = [one.kernel for one in done]
    if names != expected:
        raise NcuError(f"ncu saw the kernels {names}, expected {expected}")
    rows = []
    for one, (_, counts) in zip(done, kernels, strict=True):
        for metric in METRICS:
            sim, ncu = one.counts.get(metric.name), counts.get(metric.ncu)
            gated = metric.gated and (metric.copies_gated or not one.copies)
            rows.append(Row(one.rung, metric.name, gated, sim, ncu, _percent(sim, ncu)))
    return rows


def _percent(sim: float | None, ncu: float | None) -> float | None:
    if sim is None or ncu is None or (sim == 0 and ncu != 0):
        return None
    return 100 * (sim - ncu) / ncu if ncu else 100.0 * (sim != 0)


def table(rows: list[Row]) -> str:
    """Return the rows for people."""
    lines = [f"{'rung':<14}{'count':<26}{'sim':>14}{'ncu':>14}{'sim - ncu, %':>14}"]
    for row in rows:
        sim, ncu = ("unknown" if count is None else f"{count:.15g}" for count in (row.sim, row.ncu))
        percent = "" if row.percent is None else f"{row.percent:+.2f}"
        mark = "  <-- must agree" if row.beyond else ""
        lines.append(f"{row.rung:<14}{row.metric:<26}{sim:>14}{ncu:>14}{percent:>14}{mark}")
    return "\n".join(lines)


def main() -> int:
    """Run the program; see the module's text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", default="256", metavar="N|M,N,K")
    parser.add_argument("--device", help="what to simulate: the device that is there, or its architecture")
    parser.add_argument("--ncu", metavar="PATH", help="the profiler; default: looked for")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything here too")
    parser.add_argument("--on-device", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.on_device is not None:
        on_device(options.on_device)
        return 0
    extents = [int(part) for part in options.size.split(",")]
    try:
        ncu = find_ncu(options.ncu)
        found, rows = measure(Problem(*(extents if len(extents) == 3 else extents * 3)), Machine(options.device), ncu)
    except NcuError as error:
        print(error, file=sys.stderr)
        return 2
    print(table(rows))
    print("bits:", "the same" if all(found["same_bits"].values()) else f"NOT the same: {found['same_bits']}")
    for name in found["unknown"]:
        print(f"ncu gave no {name}")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(any(row.beyond for row in rows) or not all(found["same_bits"].values()))


def measure(problem: Problem, machine: Machine, ncu: str) -> tuple[dict[str, Any], list[Row]]:
    """Simulate the rungs, run them under ncu, and return all that was found and the comparison."""
    began = time.perf_counter()
    draw = np.random.default_rng(0)
    A = draw.standard_normal((problem.M, problem.K), np.float32)
    B = draw.standard_normal((problem.K, problem.N), np.float32)
    done = [simulate(rung, machine, A, B) for rung in rungs.IEEE]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_launches(folder, done, A, B)
        kernels = profile(ncu, folder)
        device_info = json.loads((folder / "device.json").read_text(encoding="utf-8"))
    rows = compare(done, kernels)
    found = device_info | {
        "simulated": machine.device.name,
        "problem": asdict(problem),
        "constants": {one.rung: one.constants for one in done},
        "unknown": [name for name in NAMES if not any(name in counts for _, counts in kernels)],
        "beyond": [f"{row.rung}: {row.metric}" for row in rows if row.beyond],
        "seconds": round(time.perf_counter() - began, 1),
        "rows": [asdict(row) for row in rows],
    }
    return found, rows


if __name__ == "__main__":
    sys.exit(main())

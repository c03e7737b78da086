"""What the figures of README.md and docs/ show: plain data, from the JSON files of docs/data and tuning_db."""

from __future__ import annotations

import math
from typing import Any

from page_tables.fp16x3 import as_named
from page_tables.runs import Data, Stored

LAYOUTS = {
    "NN": "NN: both row-major",
    "NT": "NT: B column-major",
    "TN": "TN: A column-major",
    "TT": "TT: both column-major",
}


def _machine(bench: Data) -> str:
    return f"one {bench['device']}, {bench['date']}"


def _peak(roof: Data) -> float:
    """Return the peak of the FP32 pipe in TFLOP/s."""
    return float(roof["multiprocessors"] * roof["fmas_per_cycle"] * 2 * roof["clock_ghz"] / 1e3)


def _tflops(row: Data, ms: str = "ms") -> float:
    return float(2e-9 * row["M"] * row["N"] * row["K"] / row[ms])


def select_ladder(files: Stored) -> Any:
    """Return the rungs with their rates, cuBLAS's rate and the peak."""
    bench = files.get("benchmarks")
    if not bench:
        return None
    rows = bench["ladder"]
    cublas = [row["tflops"] for row in rows if not row["number"]]
    return {
        "title": "{M} x {N} x {K}, ".format(**rows[0]) + _machine(bench),
        "rungs": [[f"{row['number']} {row['name']}", row["tflops"]] for row in rows if row["number"]],
        "cublas": cublas[0] if cublas else None,
        "peak": _peak(files["roofs"][bench["device"]]) if bench["device"] in files["roofs"] else None,
    }


def select_sizes(files: Stored) -> Any:
    """Return the rates of squares and of random large problems by layout, and the peak."""
    bench = files.get("benchmarks")
    if not bench or not bench["large"] or bench["device"] not in files["roofs"]:
        return None

    def of(name: str) -> dict[str, list[list[float]]]:
        by_layout: dict[str, list[list[float]]] = {layout: [] for layout in LAYOUTS}
        for row in bench.get(name, ()):
            size = round((row["M"] * row["N"] * row["K"]) ** (1 / 3), 1)
            by_layout[row["layout"]].append([size, _tflops(row), _tflops(row, "cublas_ms")])
        return {layout: sorted(rows) for layout, rows in by_layout.items()}

    return {
        "title": _machine(bench),
        "squares": of("squares"),
        "random": of("large"),
        "peak": _peak(files["roofs"][bench["device"]]),
    }


def select_random(files: Stored) -> Any:
    """Return the FLOPs of every random problem, and the speed on it relative to cuBLAS."""
    bench = files.get("benchmarks")
    if not bench or not bench["random"]:
        return None
    rows = [*bench["random"], *bench["large"]]
    points = sorted([2 * row["M"] * row["N"] * row["K"], row["percent"] / 100] for row in rows)
    return {"title": _machine(bench), "points": points}


def select_rooflines(files: Stored) -> Any:
    """Return for each rung the FLOP per byte of global and of shared memory, as counted, and its measured rate."""
    bench, counts = files.get("benchmarks"), files.get("counts")
    if not bench or not counts or counts["device"] != bench["device"] or bench["device"] not in files["roofs"]:
        return None
    roof = files["roofs"][bench["device"]]
    rates = {row["name"]: row["tflops"] for row in bench["ladder"]}
    rungs = []
    for row in counts["rows"]:
        flops = 2 * row["thread_fmas"]
        moved = 32 * (row["loads_a"]["sectors"] + row["loads_b"]["sectors"])
        wavefronts = row["shared_loads"]["wavefronts"] + row["shared_stores"]["wavefronts"]
        passed = roof["shared_bytes_per_cycle"] * wavefronts
        if row["name"] in rates:
            rungs.append([row["number"], flops / moved, flops / passed if passed else None, rates[row["name"]]])
    shared = roof["multiprocessors"] * roof["shared_bytes_per_cycle"] * roof["clock_ghz"] / 1e3
    return {
        "title": "rates: {M} x {N} x {K}, ".format(**bench["ladder"][0]) + _machine(bench),
        "rungs": rungs,
        "peak": _peak(roof),
        "global": roof["copy_tb_s"],
        "shared": shared,
    }


def select_curves(files: Stored) -> Any:
    """Return the rate of every config of rung 9 that has a curve, against the blocks of the problem per SM."""
    database = files.get("sm_90")
    if not database:
        return None
    lines = []
    for curve in database["curves"]:
        if curve["rung"] != "pipelined" or curve["constants"]["SEGMENT"]:
            continue
        constants, points = curve["constants"], []
        for M, N, K, ms in curve["points"]["NN"]:
            tiles = math.ceil(M / constants["BM"]) * math.ceil(N / constants["BN"])
            nearly_square = max(M, N) < 16 * min(M, N)  # the others measure the rate of memory
            if K == 1024 and nearly_square:
                points.append([tiles * constants["BM"] * constants["BN"], 2e-9 * M * N * K / ms])
        lines.append([f"{constants['BM']}x{constants['BN']}", sorted(points)])
    if not lines:
        return None
    one = next(curve for curve in database["curves"] if curve["rung"] == "pipelined")
    return {"title": f"one {one['device']}, {one['date']}", "lines": sorted(lines)}


def select_precision(files: Stored) -> Any:
    """Return rate and error of fastsgemm's precisions and of other libraries, on the largest square that all ran."""
    measured = files.get("fp16x3")
    if not measured or not measured["peers"]:
        return None
    n, peers = max(((row["n"], row["peers"]) for row in measured["peers"]), key=lambda row: int(row[0]))
    return {
        "title": f"{n} x {n} x {n}, {_machine(measured)}",
        "points": [[name, one["tflops"], one["error"]] for name, one in as_named(peers).items()],
    }

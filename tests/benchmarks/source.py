#!/usr/bin/env python3
"""What a bias costs: `torch.addmm` by cuBLAS, by fastsgemm as it is, and with the bias copied to the output first.

    python3 tests/benchmarks/source.py

Prints the time on the device for the Linear layers of GPT-2 (124M) on 1024 tokens, and the time on the host for
64 x 64, in microseconds. "in place" is the update of an output that holds the bias already. Takes less than a minute.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import torch

import fastsgemm.torch
from fastsgemm import device, sgemm
from fastsgemm.bench import suite
from fastsgemm.call import ieee, packing
from fastsgemm.call.plan import When
from fastsgemm.errors import FastsgemmError

LAYERS = {  # rows, K, columns
    "attention in": (1024, 768, 2304),
    "MLP in": (1024, 768, 3072),
    "MLP out": (1024, 3072, 768),
    "vocabulary": (1024, 768, 50257),
    "one token": (1, 768, 2304),
}
ROUNDS, REPLAYS, IN_GRAPH = 9, 5, 20  # calls in a graph


@contextmanager
def copying():
    """Let the bias be copied to the output by a launch of its own, for plans made meanwhile."""
    reading = ieee.add_product

    def copy_first(draft, choice, sym, a, b, c, source=None):
        if source is not None:
            packing.add_copy(draft, source, c, When.BETA)
        reading(draft, choice, sym, a, b, c)

    ieee.add_product = copy_first
    try:
        yield
    finally:
        ieee.add_product = reading


def device_us(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return microseconds a call on the device, medians of rounds in turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    graphs = {}
    for name, call in calls.items():
        call()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            for _ in range(IN_GRAPH):
                call()
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()
            begin.record()
            for _ in range(REPLAYS):
                graph.replay()
            end.record()
            end.synchronize()
            found[name].append(1e3 * begin.elapsed_time(end) / (REPLAYS * IN_GRAPH))
    return {name: statistics.median(times) for name, times in found.items()}


def host_us(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return microseconds a call on the host, medians of rounds in turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(101):
        for name, call in calls.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(50):
                call()
            found[name].append(1e6 * (time.perf_counter() - began) / 50)
    return {name: statistics.median(times) for name, times in found.items()}


def case(M: int, K: int, N: int) -> dict[str, Callable[[], Any]]:
    """Return the calls, whose results have been compared."""
    x, weight, bias = (torch.randn(*shape, device="cuda") for shape in ((M, K), (K, N), (N,)))
    out, copied, in_place, by_cublas = (torch.empty(M, N, device="cuda") for _ in range(4))
    a_row = bias[None]  # another shape, for plans of their own
    with copying():
        sgemm(x, weight, 1.0, 1.0, a_row, out=copied)
    calls = {
        "cuBLAS": lambda: torch.addmm(bias, x, weight, out=by_cublas),
        "source": lambda: sgemm(x, weight, 1.0, 1.0, bias, out=out),
        "copied first": lambda: sgemm(x, weight, 1.0, 1.0, a_row, out=copied),
        "in place": lambda: sgemm(x, weight, 1.0, 1.0, in_place),
    }
    for call in calls.values():
        in_place[...] = bias
        call()
    assert torch.equal(out, copied) and torch.equal(out, in_place), "other bits"
    assert torch.allclose(out, by_cublas, rtol=1e-3, atol=1e-3)
    return calls


def show(name: str, times: dict[str, float]) -> None:
    """Print a row."""
    gain = times["copied first"] - times["source"]
    print(f"{name:14}" + "".join(f"{each:14.2f}" for each in times.values()) + f"{gain:10.2f}")


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    try:
        device.probe()
        suite.import_torch()
    except FastsgemmError as error:
        sys.exit(str(error))
    print(f"{torch.cuda.get_device_name()}, microseconds")
    print(
        f"{'':14}" + "".join(f"{each:>14}" for each in ("cuBLAS", "source", "copied first", "in place")) + "      gain"
    )
    for name, extents in LAYERS.items():
        show(name, device_us(case(*extents)))
    calls = case(64, 64, 64)
    show("host, 64 x 64", host_us(calls))
    x, weight, bias = (torch.randn(*shape, device="cuda") for shape in ((64, 64), (64, 64), (64,)))
    plain = host_us({"torch.addmm": lambda: torch.addmm(bias, x, weight)})
    with fastsgemm.torch.enabled():
        torch.addmm(bias, x, weight)
        switched = host_us({"torch.addmm": lambda: torch.addmm(bias, x, weight)})
    print(f"torch.addmm on the host: {plain['torch.addmm']:.2f}, with the switch on {switched['torch.addmm']:.2f}")


if __name__ == "__main__":
    main()

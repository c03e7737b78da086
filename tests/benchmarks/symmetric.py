#!/usr/bin/env python3
"""A A^T and A^T A beside cuBLAS: `sgemm` of a whole product, of one triangle, and cublasSsyrk.

    python3 tests/benchmarks/symmetric.py [--json FILE] [--random 60] [--seconds 0.2]

Prints times relative to the SGEMM of cuBLAS (`torch.mm`), more than 1 being quicker: of cublasSsyrk, which writes one
triangle, of `sgemm` with precision ieee and fp16x3 on the operands as they are, and on a copy of one of them, which is
the whole product. Then random N x K, of which no symmetric product may take longer than the whole one. L2 is flushed
before each run, and all run in turns. Takes about four minutes.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import random
import statistics
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import torch

from fastsgemm import device, sgemm
from fastsgemm.errors import FastsgemmError
from fastsgemm.measure import cublas, environment, suite
from fastsgemm.measure.stopwatch import Stopwatch

SIZES = [(n, n) for n in (1024, 2048, 3000, 4096, 5000, 8192)] + [(4096, 65536), (1000, 20000)]
ORDERS = {  # storage of A, and of C
    "A A^T": ("N", "N"),
    "A A^T, A column-major": ("T", "N"),
    "A A^T, C column-major": ("N", "T"),
    "A A^T, both": ("T", "T"),
}
UPPER, TRANSPOSED, PLAIN = 1, 1, 0  # of cuBLAS
FLUSHES = 3  # of L2 before each run: the device is busy for longer than the host takes to launch a call


class Ssyrk:
    """The SSYRK of cuBLAS, which PyTorch has loaded; `available` says whether it was found."""

    def __init__(self) -> None:
        self._library: Any = cublas.loaded("cublas")
        if self._library is not None:
            self._handle = ctypes.c_void_p()
            self._succeed(self._library.cublasCreate_v2(ctypes.byref(self._handle)))

    @property
    def available(self) -> bool:
        return self._library is not None

    def call(self, a: torch.Tensor, c: torch.Tensor) -> Callable[[], None]:
        """Return the call that writes one triangle of a @ a.T to c, both of which are row- or column-major."""
        n, k = a.shape
        row_major = a.stride(1) == 1
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._succeed(self._library.cublasSetStream_v2(self._handle, stream))
        arguments = (
            self._handle, UPPER, TRANSPOSED if row_major else PLAIN, n, k, ctypes.byref(one),
            ctypes.c_void_p(a.data_ptr()), k if row_major else n, ctypes.byref(zero), ctypes.c_void_p(c.data_ptr()), n,
        )  # fmt: skip
        return lambda: self._succeed(self._library.cublasSsyrk_v2(*arguments))

    @staticmethod
    def _succeed(status: int) -> None:
        if status:
            raise RuntimeError(f"cuBLAS returned status {status}")


def stored(x: torch.Tensor, order: str) -> torch.Tensor:
    """Return the same matrices row-major (N) or column-major (T)."""
    return x.contiguous() if order == "N" else x.mT.contiguous().mT


def calls_of(a: torch.Tensor, order_c: str, ssyrk: Ssyrk) -> dict[str, Callable[[], Any]]:
    """Return the calls for one matrix or batch, whose results have been compared."""
    n = a.shape[-2]
    copy = a.clone(memory_format=torch.preserve_format)
    out = [stored(torch.zeros(*a.shape[:-2], n, n, device="cuda"), order_c) for _ in range(6)]
    multiply = torch.mm if a.dim() == 2 else torch.bmm
    calls: dict[str, Callable[[], Any]] = {"cuBLAS": lambda: multiply(a, a.mT, out=out[0])}
    if ssyrk.available and a.dim() == 2:
        calls["cublasSsyrk"] = ssyrk.call(a, out[1])
    for number, precision in enumerate(("ieee", "fp16x3")):
        one, whole = out[2 + 2 * number], out[3 + 2 * number]
        calls[precision] = lambda one=one, precision=precision: sgemm(a, a.mT, C=one, precision=precision)
        calls[f"{precision} whole"] = lambda whole=whole, precision=precision: sgemm(
            a, copy.mT, C=whole, precision=precision
        )
    for call in calls.values():
        call()
    torch.cuda.synchronize()
    for number, precision in enumerate(("ieee", "fp16x3")):
        one, whole = out[2 + 2 * number], out[3 + 2 * number]
        assert torch.equal(one, one.mT), f"{precision} of {tuple(a.shape)} is not symmetric"
        assert (one - whole).norm() <= 1e-5 * whole.norm(), f"{precision} of {tuple(a.shape)} is wrong"
    return calls


class Bench:
    """Times the calls on one matrix or batch, each for about so many seconds."""

    def __init__(self, stopwatch: Stopwatch, seconds: float) -> None:
        self._stopwatch, self._seconds, self._ssyrk = stopwatch, seconds, Ssyrk()

    def measure(self, a: torch.Tensor, order_c: str) -> dict[str, float]:
        """Return the time of each call in ms."""
        calls = calls_of(a, order_c, self._ssyrk)
        return dict(zip(calls, self._stopwatch.medians([*calls.values()], self._seconds, FLUSHES), strict=True))


def table(bench: Bench) -> list[dict[str, Any]]:
    """Print and return the times of the sizes in all storage orders."""
    names = ["cublasSsyrk", "ieee", "ieee whole", "fp16x3", "fp16x3 whole"]
    print(f"{'N x K':>14}  {'order':24}{'cuBLAS ms':>11}" + "".join(f"{name:>14}" for name in names))
    rows = []
    for n, k in SIZES:
        for order, (of_a, of_c) in ORDERS.items():
            a = stored(torch.randn(n, k, device="cuda"), of_a)
            times = bench.measure(a, of_c)
            rows.append({"N": n, "K": k, "order": order, "ms": times})
            shown = "".join(
                f"{times['cuBLAS'] / times[name]:14.2f}" if name in times else f"{'-':>14}" for name in names
            )
            print(f"{f'{n} x {k}':>14}  {order:24}{times['cuBLAS']:11.4f}{shown}", flush=True)
    return rows


def drawn(count: int, bench: Bench) -> list[dict[str, Any]]:
    """Print and return the times of random sizes, some of them batches, beside those of whole products."""
    draw, rows = random.Random(37), []
    for _ in range(count):
        n, k = (round(math.exp(draw.uniform(math.log(16), math.log(12288)))) for _ in range(2))
        batch = draw.choice([1, 1, 1, 2, 8, 30]) if n * max(n, k) < 4e6 else 1
        shape = (n, k) if batch == 1 else (batch, n, k)
        a = stored(torch.randn(*shape, device="cuda"), draw.choice("NT"))
        times = bench.measure(a, "N")
        rows.append({"N": n, "K": k, "batch": batch, "ms": times})
    for precision in ("ieee", "fp16x3"):
        gains = sorted(
            (row["ms"][f"{precision} whole"] / row["ms"][precision], index) for index, row in enumerate(rows)
        )
        mean = math.exp(statistics.fmean(math.log(gain) for gain, _ in gains))
        print(
            f"{count} random sizes, {precision}: {mean:.3f} times the whole product in the geometric mean; the least:"
        )
        for gain, index in gains[:5]:
            row = rows[index]
            print(f"    {gain:.3f}  {row['N']} x {row['K']}, batch {row['batch']}")
    return rows


def main() -> None:
    """Print the table and, if asked for, write what it is made of."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="a file for all times")
    parser.add_argument("--random", type=int, default=60, help="random sizes; default %(default)s")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each call; default %(default)s")
    options = parser.parse_args()
    try:
        device.probe()
        suite.import_torch()
    except FastsgemmError as error:
        sys.exit(str(error))
    gpu = device.open_gpu(0)
    print(f"{gpu.name}, times the SGEMM of cuBLAS (more is quicker)")
    with device.current(gpu), closing(Stopwatch(gpu)) as stopwatch:
        bench = Bench(stopwatch, options.seconds)
        found = {
            "torch": torch.__version__,
            **environment.facts(gpu),
            "sizes": table(bench),
            "random": drawn(options.random, bench),
        }
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

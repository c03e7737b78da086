#!/usr/bin/env python3
"""16-bit operands beside PyTorch: cast and cuBLAS FP32, and cuBLAS BF16 with a float32 result where PyTorch has it.

    python3 tests/benchmarks/half.py [--json FILE] [--seconds 0.2] [--set router head squares]

Prints the median device time of each call in microseconds, all in turns and with a cold L2, and the error of each:
||C - C64||_F / ||C64||_F on some rows. `fp16x3, split` has B split before the call. Takes about five minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE)]

import torch  # noqa: E402

from fastsgemm import device, explain, sgemm, split  # noqa: E402
from fastsgemm.measure import environment  # noqa: E402
from fastsgemm.measure.stopwatch import Stopwatch  # noqa: E402
from fastsgemm.measure.versus import errors_against_float64  # noqa: E402

ROWS = (1, 8, 64, 256, 512, 4096)
SETS = {  # M, N, K and the types of A and B; B is a weight, stored (N, K)
    "router": [(M, N, K, "bf16xf32") for N, K in ((256, 6144), (256, 7168), (128, 2048)) for M in ROWS],
    "router, 16 bits": [(M, 256, 6144, "bf16xbf16") for M in ROWS],
    "head": [(M, 151936, 4096, "bf16xbf16") for M in (1, 2, 4, 8, 16, 32, 128, 512)],
    "squares": [(n, n, n, pair) for n in (1024, 2048, 4096, 8192) for pair in ("bf16xbf16", "bf16xf32", "f16xf16")],
    "long sums": [(512, 512, 16384, pair) for pair in ("bf16xbf16", "bf16xf32")],
}
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
CHECKED = 256  # rows of C
FLUSHES = 3  # of L2 before each run: the device is busy for longer than the host takes to launch a call


def calls_of(a: torch.Tensor, b: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """Return the calls by name; each returns its result."""
    M, N = a.shape[0], b.shape[1]
    outs = [torch.empty(M, N, device="cuda") for _ in range(4)]
    weight = split(b)
    calls: dict[str, Callable[[], torch.Tensor]] = {
        "cast, cuBLAS FP32": lambda: torch.mm(a.float(), b.float(), out=outs[0]),
        "ieee": lambda: sgemm(a, b, C=outs[1], precision="ieee"),
        "fp16x3": lambda: sgemm(a, b, C=outs[2], precision="fp16x3"),
        "fp16x3, split": lambda: sgemm(a, weight, C=outs[3], precision="fp16x3"),
    }
    if a.dtype == b.dtype:
        half = torch.empty(M, N, device="cuda", dtype=a.dtype)
        calls["cuBLAS 16 bits"] = lambda: torch.mm(a, b, out=half)
        if "dtype" in torch.ops.aten.mm.overloads():
            calls["cuBLAS 16 bits, float32 result"] = lambda: torch.mm(a, b, out_dtype=torch.float32)
    return calls


def row(stopwatch: Stopwatch, seconds: float, M: int, N: int, K: int, pair: str) -> dict[str, Any]:
    """Measure one product."""
    of_a, of_b = (TYPES[name] for name in pair.split("x"))
    torch.manual_seed(0)
    a, b = torch.randn(M, K, device="cuda").to(of_a), torch.randn(N, K, device="cuda").to(of_b).t()
    calls = calls_of(a, b)
    error_of = errors_against_float64(torch, a, b, CHECKED)
    errors = {name: error_of(call()) for name, call in calls.items()}
    for name in ("ieee", "fp16x3", "fp16x3, split"):
        if not errors[name] <= errors["cast, cuBLAS FP32"] + 1e-8:
            print(f"  {name} errs more than cuBLAS FP32: {errors[name]:.3g}", file=sys.stderr)
    times = stopwatch.medians([*calls.values()], seconds, FLUSHES)
    chosen = explain(M, N, K, "NT", precision="fp16x3", dtypes=pair)
    return {
        "M": M, "N": N, "K": K, "dtypes": pair, "errors": errors, "rung": chosen.rung, "predicted_ms": chosen.choice.ms,
        "us": {name: 1e3 * ms for name, ms in zip(calls, times, strict=True)},
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=0.2, help="for each call of a product")
    parser.add_argument("--set", nargs="*", choices=[*SETS], default=[*SETS])
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    rows: list[dict[str, Any]] = []
    gpu = device.open_gpu(0)
    with device.current(gpu), closing(Stopwatch(gpu)) as stopwatch:
        for name in given.set:
            print(name)
            for problem in SETS[name]:
                rows.append({"set": name} | row(stopwatch, given.seconds, *problem))
                shown = ", ".join(f"{call} {us:.1f}" for call, us in rows[-1]["us"].items())
                print(f"  {','.join(map(str, problem))}: {shown} us")
                torch.cuda.empty_cache()
    if given.json:
        about = {"torch": torch.__version__, **environment.facts(gpu), "rows": rows}
        given.json.write_text(json.dumps(about, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

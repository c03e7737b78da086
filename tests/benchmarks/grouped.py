#!/usr/bin/env python3
"""Groups of rows, as the tokens of experts: `grouped_mm` beside PyTorch's, one dense product and a padded batch.

    python3 tests/benchmarks/grouped.py [--json FILE] [--seconds 0.3]

For each problem, tokens x groups x K x N, the forward product is (T, K) by (G, K, N) and the gradient of the weights
(K, T) by (T, N). The groups have uneven sizes. All calls run in turns with a cold L2. Prints median device times in
microseconds and the TFLOP/s of `grouped_mm`. `dense` is `sgemm` of one product with as many FLOPs; `padded` is
`torch.bmm` of groups that are as long as the longest one, without the time to pad them. TF32 is off. Takes about two
minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import torch

from fastsgemm import device, grouped_mm, sgemm
from fastsgemm.measure import environment
from fastsgemm.measure.stopwatch import Stopwatch

PROBLEMS = (  # tokens, groups, K, N
    (1024, 16, 1024, 1024),
    (4096, 64, 1024, 1024),
    (4096, 64, 2048, 1408),
    (16384, 64, 2048, 1408),
    (50000, 16, 256, 256),
    (20000, 64, 64, 64),
)
SPREAD = 0.7  # standard deviation of the logarithms of the sizes of groups
FLUSHES = 3  # of L2 before each run: the device is busy for longer than the host takes to launch a call
MOST_PADDED = 16 << 30  # bytes of a padded batch

Call = Callable[[], torch.Tensor]


def sizes_of(tokens: int, groups: int) -> list[int]:
    """Return uneven sizes of groups that add up to all tokens."""
    shares = torch.softmax(SPREAD * torch.randn(groups, generator=torch.Generator().manual_seed(0)), 0)
    ends = [0, *(torch.cumsum(shares.double(), 0) * tokens).round().long().tolist()]
    ends[-1] = tokens
    return [end - begin for begin, end in itertools.pairwise(ends)]


def theirs(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> Call | None:
    """Return the call of PyTorch's grouped product, or None where PyTorch has none in float32."""
    function = getattr(torch.nn.functional, "grouped_mm", None)
    if function is None:
        return None
    try:
        function(a, b, offs=offsets)
    except (RuntimeError, ValueError) as error:
        print(f"  PyTorch: {str(error).splitlines()[0]}", file=sys.stderr)
        return None
    return lambda: function(a, b, offs=offsets)  # type: ignore[no-any-return]


def forward(T: int, K: int, N: int, sizes: list[int], offsets: torch.Tensor) -> dict[str, Call | None]:
    """Return the calls of the forward product by name."""
    groups, longest = len(sizes), max(sizes)
    x, weights = torch.randn(T, K, device="cuda"), torch.randn(groups, K, N, device="cuda")
    outs = [torch.empty(T, N, device="cuda") for _ in range(2)]
    calls: dict[str, Call | None] = {
        "grouped_mm": lambda: grouped_mm(x, weights, offsets, out=outs[0]),
        "PyTorch": theirs(x, weights, offsets),
        "dense": lambda: sgemm(x, weights[0], out=outs[1]),
        "padded": None,
    }
    if 4 * groups * longest * (K + N) <= MOST_PADDED:
        padded = torch.randn(groups, longest, K, device="cuda")
        of_padded = torch.empty(groups, longest, N, device="cuda")
        calls["padded"] = lambda: torch.bmm(padded, weights, out=of_padded)
    check(grouped_mm(x, weights, offsets), sizes, lambda begin, end, g: x[begin:end].double() @ weights[g].double())
    return calls


def gradient(T: int, K: int, N: int, sizes: list[int], offsets: torch.Tensor) -> dict[str, Call | None]:
    """Return the calls of the gradient of the weights by name."""
    groups, longest = len(sizes), max(sizes)
    x, grad = torch.randn(T, K, device="cuda"), torch.randn(T, N, device="cuda")
    out, dense = torch.empty(groups, K, N, device="cuda"), torch.empty(K, N, device="cuda")
    calls: dict[str, Call | None] = {
        "grouped_mm": lambda: grouped_mm(x.t(), grad, offsets, out=out),
        "PyTorch": theirs(x.t(), grad, offsets),
        "dense": lambda: sgemm(x.t(), grad, out=dense),
        "padded": None,
    }
    if 4 * groups * longest * (K + N) <= MOST_PADDED:
        of_x = torch.randn(groups, longest, K, device="cuda").transpose(1, 2)
        of_grad, of_out = torch.randn(groups, longest, N, device="cuda"), torch.empty_like(out)
        calls["padded"] = lambda: torch.bmm(of_x, of_grad, out=of_out)
    found = grouped_mm(x.t(), grad, offsets)
    ends = offsets.tolist()
    g = max(range(groups), key=lambda group: sizes[group])
    part = slice(ends[g] - sizes[g], ends[g])
    report(found[g], x[part].t().double() @ grad[part].double())
    return calls


def check(found: torch.Tensor, sizes: list[int], product: Callable[[int, int, int], torch.Tensor]) -> None:
    """Compare the rows of the longest group with float64."""
    g = max(range(len(sizes)), key=lambda group: sizes[group])
    begin = sum(sizes[:g])
    report(found[begin : begin + sizes[g]], product(begin, begin + sizes[g], g))


def report(found: torch.Tensor, right: torch.Tensor) -> None:
    """Say so where a result errs more than float32 does."""
    error = float((found.double() - right).norm() / right.norm())
    if not error < 1e-5:
        print(f"  the relative error is {error:.3g}", file=sys.stderr)


def row(stopwatch: Stopwatch, seconds: float, what: str, problem: tuple[int, int, int, int]) -> dict[str, Any]:
    """Measure one problem."""
    T, groups, K, N = problem
    torch.manual_seed(0)
    sizes = sizes_of(T, groups)
    offsets = torch.cumsum(torch.tensor(sizes), 0).to(torch.int32).cuda()
    calls = (forward if what == "forward" else gradient)(T, K, N, sizes, offsets)
    timed = {name: call for name, call in calls.items() if call is not None}
    times = stopwatch.medians([*timed.values()], seconds, FLUSHES)
    us = dict.fromkeys(calls) | {name: 1e3 * ms for name, ms in zip(timed, times, strict=True)}
    return {
        "product": what, "T": T, "groups": groups, "K": K, "N": N, "longest": max(sizes), "us": us,
        "tflops": 2e-6 * T * K * N / us["grouped_mm"],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each call of a problem")
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    rows: list[dict[str, Any]] = []
    gpu = device.open_gpu(0)
    with device.current(gpu), closing(Stopwatch(gpu)) as stopwatch:
        print(f"{gpu.name}, torch {torch.__version__}")
        print("product    tokens x groups x K x N  longest  grouped_mm   PyTorch     dense    padded  TFLOP/s")
        for what in ("forward", "gradient"):
            for problem in PROBLEMS:
                rows.append(row(stopwatch, given.seconds, what, problem))
                times = " ".join("        -" if us is None else f"{us:9.1f}" for us in rows[-1]["us"].values())
                shown = "x".join(map(str, problem))
                print(f"{what:8} {shown:>25} {rows[-1]['longest']:8}   {times} {rows[-1]['tflops']:8.1f}", flush=True)
                torch.cuda.empty_cache()
    if given.json:
        about = {"torch": torch.__version__, **environment.facts(gpu), "rows": rows}
        given.json.write_text(json.dumps(about, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Compare bits and time products in the order on tensor cores, for docs/batch-invariance.md.

    tests/benchmarks/tensor_order.py                     into docs/data/tensor_order.json, or that of the device
    tests/benchmarks/tensor_order.py --json found.json   into another file

Rows of some products are computed alone, at random places and in every layout, and compared with the same rows among
others, to the bit. Then products of weights of language models are timed beside those of cuBLAS of the same type and,
of float32, beside precision "fp16x3" without the order. Needs a device and PyTorch. Takes about a minute.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from fastsgemm import device, prepare, sgemm, split
from fastsgemm.measure import suite
from fastsgemm.measure.stopwatch import Stopwatch
from fastsgemm.progress import track
from fastsgemm.tuning import first_use

ROOT = Path(__file__).resolve().parents[2]
IN_ORDER = {"precision": "fp16x3", "batch_invariant": True}
TYPES = {"float32": "f32xf32", "bfloat16": "bf16xbf16", "float16": "f16xf16"}
WEIGHTS = [(4096, 4096), (11008, 4096), (4096, 14336), (151936, 4096), (6144, 2048)]  # N and K
ROWS = (1, 8, 16, 64, 128, 256, 512, 1024, 2048, 4096)
MOST_ELEMENTS = 1 << 27  # of a result
COMPARED = [(512, 256), (4096, 4096), (300, 14336), (64, 20000), (1000, 777), (2048, 1024), (96, 2049)]  # N and K
ALONE = (1, 2, 3, 5, 8, 15, 16, 17, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 500, 1024, 2047)
EVERY_LAYOUT = (1, 17, 129, 1024)
SECONDS = 0.08  # of timing for each work
FLUSHES = 3  # of L2 before each run: the device is busy for longer than the host takes to launch a call
LAYOUTS: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {  # of rows X and weights W, which is N x K
    "NT": lambda x, w: (x, w.t()),
    "NN": lambda x, w: (x, w.t().contiguous()),
    "TT": lambda x, w: (x.t().contiguous().t(), w.t()),
    "TN": lambda x, w: (x.t().contiguous().t(), w.t().contiguous()),
}


def normal(torch: Any, generator: Any, *shape: int, dtype: str) -> Any:
    return torch.randn(*shape, device="cuda", generator=generator).to(getattr(torch, dtype))


def bits(torch: Any) -> dict[str, Any]:
    """Compare rows alone with rows among others."""
    draw, generator = random.Random(1), torch.Generator(device="cuda").manual_seed(3)
    found = {"calls": 0, "bad": 0, "problems": len(TYPES) * len(COMPARED)}
    for dtype, (N, K) in track([(d, each) for d in TYPES for each in COMPARED], "comparing bits"):
        w, x = (normal(torch, generator, lines, K, dtype=dtype) for lines in (N, 4096))
        if dtype == "float32":  # rows beside others, of which the guard repairs elements
            x[7] *= 1e15
            x[9, ::5] *= 1e-12
            x[11, 3] = float("inf")
        whole = sgemm(x, w.t(), **IN_ORDER)
        for rows in ALONE:
            first = draw.randrange(0, 4096 - rows + 1)
            wanted = whole[first : first + rows]
            alone = x[first : first + rows]
            results = [
                sgemm(*LAYOUTS[layout](alone, w), **IN_ORDER)
                for layout in (LAYOUTS if rows in EVERY_LAYOUT else ("NT",))
            ]
            results.append(sgemm(alone.clone().expand(3, rows, K), w.t().expand(3, K, N).clone(), **IN_ORDER)[1])
            found["calls"] += len(results)
            found["bad"] += sum(not torch.equal(r.view(torch.int32), wanted.view(torch.int32)) for r in results)
    return found


def works(torch: Any, dtype: str, x: Any, w: Any, prepared: Any) -> dict[str, Callable[[], Any]]:
    out = torch.empty(x.shape[0], w.shape[0], device="cuda", dtype=x.dtype)
    result = {
        "cublas": lambda: torch.mm(x, w.t(), out=out),
        "order": lambda: sgemm(x, w.t(), out=out, **IN_ORDER),
    }
    if dtype == "float32":
        result |= {
            "usual": lambda: sgemm(x, w.t(), out=out, precision="fp16x3"),
            "split": lambda: sgemm(x, prepared, out=out, **IN_ORDER),
        }
    else:
        wide = torch.empty(out.shape, device="cuda")
        result["float32"] = lambda: sgemm(x, w.t(), out=wide, **IN_ORDER)
    return result


def times(torch: Any, stopwatch: Stopwatch) -> Iterator[dict[str, Any]]:
    """Yield a row for each type, weight and number of rows, with milliseconds."""
    generator = torch.Generator(device="cuda").manual_seed(5)
    cases = [(dtype, N, K) for dtype in TYPES for N, K in (WEIGHTS[:3] if dtype == "float32" else WEIGHTS)]
    for dtype, N, K in track(cases, "timing"):
        w = normal(torch, generator, N, K, dtype=dtype)
        prepared = split(w.t()) if dtype == "float32" else None
        for rows in (rows for rows in ROWS if rows * N <= MOST_ELEMENTS):
            named = works(torch, dtype, normal(torch, generator, rows, K, dtype=dtype), w, prepared)
            for work in named.values():
                work()
            ms = stopwatch.medians([*named.values()], SECONDS, FLUSHES)
            yield {"dtype": dtype, "M": rows, "N": N, "K": K, "ms": dict(zip(named, ms, strict=True))}


def measure() -> dict[str, Any]:
    torch = suite.import_torch()
    gpu = first_use.open_device(0)
    for dtype, code in TYPES.items():
        for N, K in (*COMPARED, *(WEIGHTS[:3] if dtype == "float32" else WEIGHTS)):
            prepare({*ROWS, *ALONE}, N, K, "NT", dtypes=code, progress=False, **IN_ORDER)  # type: ignore[arg-type]
    with device.current(gpu), closing(Stopwatch(gpu)) as stopwatch:
        found = bits(torch)
        print(f"{found['bad']} of {found['calls']} results differ", file=sys.stderr)
        return suite.about(gpu, torch) | {"bits": found, "rows": [*times(torch, stopwatch)]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; the module docstring describes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE")
    path = parser.parse_args(arguments).json
    found = measure()
    if path is None:
        sys.path.insert(0, str(ROOT / "tools"))
        from page_tables.runs import file_of

        path = file_of(ROOT / "docs" / "data", "tensor_order", found["device"])
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

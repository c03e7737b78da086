"""The tables of docs/symmetric.md, from docs/data/symmetric.json, which tests/benchmarks/symmetric.py writes."""

from __future__ import annotations

from page_tables.markdown import table
from page_tables.runs import Data, Stored, place, runs

NOT_MEASURED = "*Not measured yet: run `tests/benchmarks/symmetric.py --json docs/data/symmetric.json` on a GPU.*"
_SLOWER = 0.98  # of the whole product's speed
_SIZES = ("N x K", "cuBLAS, ms", "cublasSsyrk", "ieee", "ieee, whole", "fp16x3", "fp16x3, whole")


def texts(data: Stored) -> dict[str, str]:
    """Return the tables of each device by their name."""
    return {"symmetric": "\n\n".join(map(_text, runs(data, "symmetric"))) or NOT_MEASURED}


def _text(run: Data) -> str:
    sizes, slower = [], []
    for one in run["sizes"]:
        if one["order"] == "A A^T":
            cublas, *others = one["ms"].values()
            sizes.append((f"{one['N']} x {one['K']}", f"{cublas:.4f}", *(f"{cublas / ms:.2f}" for ms in others)))
    for one in run["random"]:
        of_whole = [one["ms"][f"{precision} whole"] / one["ms"][precision] for precision in ("ieee", "fp16x3")]
        if min(of_whole) < _SLOWER:
            slower.append((f"{one['N']} x {one['K']}, {one['batch']}", *(f"{speed:.2f}" for speed in of_whole)))
    what = f"A Aᵀ, speed relative to cuBLAS FP32, on {place(run)}."
    losses = f"Of {len(run['random'])} random problems, those below {_SLOWER} of the speed of the whole product:"
    return "\n\n".join([what, table(_SIZES, sizes), losses, table(("N x K, batch", "ieee", "fp16x3"), slower)])

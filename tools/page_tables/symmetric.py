"""The tables of docs/symmetric.md, from docs/data/symmetric.json, which tests/benchmarks/symmetric.py writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from page_tables.markdown import Data, header, line

NOT_MEASURED = "*Not measured yet: run `tests/benchmarks/symmetric.py --json docs/data/symmetric.json` on a GPU.*"
_SLOWER = 0.98  # of the whole product's speed


def texts(runs: Sequence[Data]) -> dict[str, str]:
    """Return the tables of each device by their name."""
    return {"symmetric": "\n\n".join(map(_text, runs)) or NOT_MEASURED}


def _text(run: Data) -> str:
    sizes = header("N x K", "cuBLAS, ms", "cublasSsyrk", "ieee", "ieee, whole", "fp16x3", "fp16x3, whole")
    for one in run["sizes"]:
        if one["order"] == "A A^T":
            ms = one["ms"]
            faster = [f"{ms['cuBLAS'] / ms[name]:.2f}" for name in list(ms)[1:]]
            sizes.append(line(f"{one['N']} x {one['K']}", f"{ms['cuBLAS']:.4f}", *faster))
    slower = header("N x K, batch", "ieee", "fp16x3")
    for one in run["random"]:
        relative = _of_whole(one["ms"])
        if min(relative) < _SLOWER:
            slower.append(line(f"{one['N']} x {one['K']}, {one['batch']}", *[f"{each:.2f}" for each in relative]))
    place = f"A Aᵀ, speed relative to cuBLAS FP32, on one {run['device']}, torch {run['torch']}, {run['date']}."
    losses = f"Of {len(run['random'])} random problems, those below {_SLOWER} of the speed of the whole product:"
    return "\n".join([place, "", *sizes, "", losses, "", *slower])


def _of_whole(ms: Mapping[str, float]) -> tuple[float, float]:
    """Return how quick one triangle is, relative to the whole product, by both precisions."""
    return ms["ieee whole"] / ms["ieee"], ms["fp16x3 whole"] / ms["fp16x3"]

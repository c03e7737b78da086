#!/usr/bin/env python3
"""Draw docs/precision.svg: speed against error of fastsgemm's precisions and of others, from docs/data/fp16x3.json.

    tools/draw_precision.py           write the picture
    tools/draw_precision.py --check   write nothing; exit 1 if the picture does not show the data

This needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_OWN, _OTHERS = "#b03a2e", "#34495e"

Data = dict[str, Any]


def points(data: Data) -> tuple[int, dict[str, tuple[float, float]]]:
    """Return the largest size that peers were measured at, and TFLOP/s and error of each."""
    largest = max(data["peers"], key=lambda row: int(row["n"]))
    return largest["n"], {name: (one["tflops"], one["error"]) for name, one in largest["peers"].items()}


def draw(data: Data, path: Path) -> None:
    """Write the picture. The same data gives the same file."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "fastsgemm", "svg.fonttype": "none", "font.size": 11}
    import matplotlib.pyplot as plt

    n, found = points(data)
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for name, (tflops, error) in found.items():
        own = name.startswith("fastsgemm")
        axes.plot(tflops, error, "o", color=_OWN if own else _OTHERS, markersize=9 if own else 6)
        style = {"color": _OWN, "fontweight": "bold"} if own else {"color": _OTHERS}
        axes.annotate(name, (tflops, error), xytext=(7, 6 if own else -14), textcoords="offset points", **style)
    axes.set(
        xscale="log", yscale="log", xlabel="TFLOP/s (faster to the right)", ylabel="error (more accurate below)",
        title=f"{n} x {n} x {n} on one {data['device']}, {data['date']}",
    )  # fmt: skip
    ticks = [20, 50, 100, 200, 400]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlim(20, 900)  # room for names on the right
    axes.margins(y=0.15)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    figure.savefig(path, format="svg", metadata={"Date": None})
    plt.close(figure)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the program; the module docstring describes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the picture is out of date")
    options = parser.parse_args(arguments)
    data = json.loads((root / "docs" / "data" / "fp16x3.json").read_text(encoding="utf-8"))
    picture = root / "docs" / "precision.svg"
    if options.check:
        n, found = points(data)
        text = picture.read_text(encoding="utf-8")
        heading = f"{n} x {n} x {n} on one {data['device']}, {data['date']}"
        missing = [each for each in (heading, *found) if each not in text]
        if missing:
            print(f"{picture.name} does not show {', '.join(missing)}; run tools/draw_precision.py", file=sys.stderr)
        return int(bool(missing))
    draw(data, picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())

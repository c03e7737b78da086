#!/usr/bin/env python3
"""Fail if a figure fell by 5 % against the stored run on a device of the same model.

    tools/check_benchmarks.py build/benchmarks.json

A figure is a ratio measured within one run: speed relative to cuBLAS, host time of a call relative to that of PyTorch
or CuPy, or a geometric mean of these. It has fallen if it is below 95 % of the stored one by more than the noise of
both. Figures that have fallen are measured again on this machine, and reported if they fall each time. The exit code is
then 1. It is 2 if the runs cannot be compared.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from generated import ROOT
from page_tables.benchmarks import reduce
from page_tables.runs import file_of

from fastsgemm.measure.comparison import Figure, comparable, fallen, figures

REPEATS = 2  # how often a fallen figure is measured again


def confirmed(
    stored: Mapping[str, Figure], measured: Mapping[str, Figure], again: Callable[[Iterable[str]], Mapping[str, Figure]]
) -> dict[str, Figure]:
    """Return the figures that fell and then fell again in each of `REPEATS` calls of `again`."""
    suspects = {name: measured[name] for name in fallen(stored, measured)}
    for _ in range(REPEATS):
        if not suspects:
            break
        new = again(dict.fromkeys(test for one in suspects.values() for test in one.tests))
        still = {*fallen(stored, new)} | {*suspects} - {*new}  # figures that were not measured again stay suspects
        suspects = {name: new.get(name, one) for name, one in suspects.items() if name in still}
    return suspects


def measure_again(tests: Iterable[str]) -> dict[str, Figure]:
    """Run these benchmarks and return their figures."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "again.json"
        command = [sys.executable, "-m", "pytest", "-q", "--benchmark-enable", "--benchmark-only"]
        subprocess.run([*command, f"--benchmark-json={result}", *tests], cwd=ROOT, check=False, stdout=sys.stderr)
        if not result.exists():  # pytest failed and has printed the reason
            return {}
        return figures(reduce(json.loads(result.read_text(encoding="utf-8")), ladder=False))


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the program; the module docstring describes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", type=Path, help="JSON of make bench")
    options = parser.parse_args(arguments)
    try:
        run = reduce(json.loads(options.run.read_text(encoding="utf-8")))
        kept = file_of(root / "docs" / "data", "benchmarks", run["device"])
        stored = json.loads(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    except (LookupError, TypeError) as error:
        parser.error(f"{options.run} is no JSON of make bench: {error!r}")
    old, new = comparable(stored, run)
    common = old.keys() & new.keys()
    if not common:
        parser.error(f"{options.run} has no figure that {kept} has")
    figures = confirmed(old, new, measure_again)
    for name, figure in figures.items():
        print(f"{name}: {figure.ratio:.3f}, stored {old[name].ratio:.3f} ({figure.ratio / old[name].ratio - 1:+.1%})")
    print(
        f"{len(figures)} of {len(common)} figures fell by 5 %; {len(old) - len(common)} stored ones were not measured"
    )
    return int(bool(figures))


if __name__ == "__main__":
    sys.exit(main())

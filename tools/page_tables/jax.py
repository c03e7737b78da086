"""The table of docs/jax.md, from docs/data/jax.json, which tests/benchmarks/programs/jax_products.py writes."""

from __future__ import annotations

from collections.abc import Iterator

from page_tables.markdown import table
from page_tables.runs import Data, Stored

NOT_MEASURED = "*Not measured yet: run `tests/benchmarks/programs/jax_products.py --json docs/data/jax.json` on a GPU.*"
_PROGRAMS = {"transformer": "a training step of a transformer", "gaussian_process": "a step of a Gaussian process"}


def texts(data: Stored) -> dict[str, str]:
    """Return the text of the table by its name."""
    run = data.get("jax")
    if run is None:
        return {"jax": NOT_MEASURED}
    where = f"one {run['device']}, JAX {run['jax']}, {run['date']}"
    what = f'Time relative to that of XLA with precision "highest", on {where}.'
    rows = ((name, f"{of['ieee_ratio']:.2f}", f"{of['fp16x3_ratio']:.2f}") for name, of in _rows(run))
    return {"jax": f"{what}\n\n{table(('what takes the time', 'ieee', 'fp16x3'), rows)}"}


def _rows(run: Data) -> Iterator[tuple[str, Data]]:
    """Yield what was measured, and its ratios."""
    if "host_cost" in run:
        yield f"the host, for a jitted call on {run['host_cost']['n']}³", run["host_cost"]
    for name, how in (("scan", ""), ("scan_of_graphs", ", in graphs")):
        for n, of in run.get(name, {}).items():
            yield f"a `scan` of 100 products of {n}³{how}", of
    for name, what in _PROGRAMS.items():
        if name in run:
            yield what, run[name]["seconds"]
    several = run.get("several_devices")
    if isinstance(several, dict):  # else the program says why there is none
        for count, found in several.items():
            if count == "1":
                yield f"{several['n']}³ on one device", found
            elif count != "n":
                yield from ((f"{several['n']}³ on {count} devices, {how} divided", of) for how, of in found.items())

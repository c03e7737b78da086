"""The table of docs/jax.md, from docs/data/jax.json, which tests/benchmarks/programs/jax_products.py writes."""

from __future__ import annotations

from collections.abc import Iterator

from page_tables.markdown import Data, header, line

NOT_MEASURED = "*Not measured yet: run `tests/benchmarks/programs/jax_products.py --json docs/data/jax.json` on a GPU.*"
_PROGRAMS = {"transformer": "a training step of a transformer", "gaussian_process": "a step of a Gaussian process"}


def texts(run: Data | None) -> dict[str, str]:
    """Return the text of the table by its name."""
    if run is None:
        return {"jax": NOT_MEASURED}
    where = f"one {run['device']}, JAX {run['jax']}, {run['date']}"
    place = f'Time relative to that of XLA with precision "highest", on {where}.'
    lines = header("what takes the time", "ieee", "fp16x3")
    lines += [line(what, f"{of['ieee_ratio']:.2f}", f"{of['fp16x3_ratio']:.2f}") for what, of in _rows(run)]
    return {"jax": "\n".join([place, "", *lines])}


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
    yield from _several(run.get("several_devices"))


def _several(measured: Data | str | None) -> Iterator[tuple[str, Data]]:
    """Yield the same of a product that is divided among devices; on one device only, the program says so instead."""
    if not isinstance(measured, dict):
        return
    n = measured["n"]
    for count, found in measured.items():
        if count == "1":
            yield f"{n}³ on one device", found
        elif count != "n":
            yield from ((f"{n}³ on {count} devices, {how} divided", of) for how, of in found.items())

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
    n, by_count = run["several_devices"]["n"], run["several_devices"]
    yield f"{n}³ on one device", by_count["1"]
    for count in (key for key in by_count if key not in ("n", "1")):
        for how, of in by_count[count].items():
            yield f"{n}³ on {count} devices, {how} divided", of

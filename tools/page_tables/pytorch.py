"""The tables of docs/pytorch.md, from docs/data/pytorch.json, which tests/benchmarks/programs/run.py writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from page_tables.markdown import Data, header, line

NOT_MEASURED = "*Not measured yet: run `tests/benchmarks/programs/run.py --json docs/data/pytorch.json` on a GPU.*"


def texts(found: Mapping[str, Data] | None) -> dict[str, str]:
    """Return the text of every table by its name; a program that was not run has none yet.

    Parameters
    ----------
    found : mapping, optional
        What each program measured, by its name.
    """
    found = found or {}
    return {
        name: _text(table, found[program]) if program in found else NOT_MEASURED
        for name, (program, table) in _TABLES.items()
    }


def _text(table: Callable[[Data], list[str]], program: Data) -> str:
    """Return where a program ran, its table, and what must be known of this run."""
    remark = program.get("remark")
    lines = [f"On {_devices(program)}, torch {program['torch']}, {program['date']}.", "", *table(program)]
    return "\n".join([*lines, "", remark] if remark else lines)


def _devices(program: Data) -> str:
    number = program["dtensor"]["devices"] if "dtensor" in program else "one"
    return f"{number} {program['device']}"


def _calls(calls: Data) -> list[str]:
    lines = header("call on 64 x 64 operands", "PyTorch's kernel, µs", "with the switch on, µs", "ratio")
    for name, row in calls["host_us"].items():
        plain, ours = row["PyTorch"], row["fastsgemm"]
        lines.append(line(f"`{name}`", f"{plain:.1f}", f"{ours:.1f}", f"{ours / plain:.2f}"))
    lines += ["", *header("call without the switch", "host time, µs")]
    return lines + [line(f"`{name}`", f"{us:.1f}") for name, us in calls["operator_us"].items()]


def _compiled(compiled: Data) -> list[str]:
    lines = header("compiled MLP, 1024 wide, forward and backward", "PyTorch, ms", "with the switch on, ms", "ratio")
    for batch, row in compiled["ms"].items():
        plain, ours = row["PyTorch"], row["fastsgemm"]
        lines.append(line(f"batch {batch}", f"{plain:.3f}", f"{ours:.3f}", f"{ours / plain:.2f}"))
    return lines


def _opinfo(opinfo: Data) -> list[str]:
    total = sum(row["samples"] for row in opinfo["operators"])
    lines = [f"All {total} samples agree to {opinfo['tolerance']:.0e}.", ""]
    lines += header("operator", "samples", "calls replaced", "passed on", "largest difference")
    for row in opinfo["operators"]:
        cells = row["samples"], row["replaced"], row["passed_on"], f"{row['worst']:.1e}"
        lines.append(line(f"`{row['operator']}`", *cells))
    return lines


def _gpt2(gpt2: Data) -> list[str]:
    lines = _program_header()
    for run in gpt2["runs"]:
        what = "GPT-2 (124M), {} x {} tokens, a step".format(*run["batch"])
        times = {name: f"{ms:.1f} ms" for name, ms in run["ms"].items()}
        lines += _program(run, what, times, run["compared"]) if "compared" in run else _of_losses(run, what, times)
    if any("compared" not in run for run in gpt2["runs"]):
        lines += [
            "",
            "A loss is one float32 number, which hardly shows a difference: 1 ulp is one unit in its last place.",
        ]
    return lines


def _of_losses(run: Data, what: str, times: Mapping[str, str]) -> list[str]:
    """Return the lines of a run of which only the losses were kept: how far the last digit of one moved at most."""
    plain = run["losses"]["PyTorch"]
    moved = {
        name: max(
            abs(loss - other) / 2.0 ** (math.frexp(other)[1] - 24) for loss, other in zip(losses, plain, strict=True)
        )
        for name, losses in run["losses"].items()
    }
    shown = {name: f"loss, {moved[name]:.0f} ulp" for name in run["difference"]}
    return [_program_line(run, what, name, time, shown.get(name, "")) for name, time in times.items()]


def _gaussian_process(process: Data) -> list[str]:
    what = f"n = {process['n']}, {process['iterations']} steps, CG tolerance {process['cg_tolerance']:g}"
    return _program_header() + _program(
        process, what, {name: f"{s:.2f} s" for name, s in process["seconds"].items()}, "hyperparameters"
    )


def _program_header() -> list[str]:
    return header("program", "products", "time", "difference from PyTorch", "FLOPs replaced")


def _program(program: Data, what: str, times: Mapping[str, str], compared: str) -> list[str]:
    """Return a line for each kind of products: the time, and how far `compared` is from what PyTorch gives."""
    shown = {name: f"{compared} {difference:.1e}" for name, difference in program["difference"].items()}
    return [_program_line(program, what, name, time, shown.get(name, "")) for name, time in times.items()]


def _program_line(program: Data, what: str, name: str, time: str, shown: str) -> str:
    return line(what, name, time, shown, _percent(program["share"].get(name)))


def _losses(gpt2: Data) -> list[str]:
    """Return the losses of the first run."""
    losses = gpt2["runs"][0]["losses"]
    lines = header("step", *losses)
    for step in sorted({0, 1, 4, 9, 14, gpt2["steps"] - 1}):
        if step < gpt2["steps"]:
            lines.append(line(step + 1, *(f"{each[step]:.6f}" for each in losses.values())))
    return lines


def _batch_invariance(prompts: Data) -> list[str]:
    what = f"one prompt of {prompts['tokens']} tokens, alone and among {prompts['prompts']}"
    lines = header(what, "logits that differ")
    return lines + [line(name, f"{count:,} of {prompts['elements']:,}") for name, count in prompts["differing"].items()]


def _gpus(several: Data) -> list[str]:
    dtensor, mlp = several["dtensor"], several["mlp"]
    bits = {name: "yes" if same else "no" for name, same in dtensor["same bits"].items()}
    close = {name: f"to {max(mlp['difference'].values()):.0e}" for name in mlp["ms"]}
    return [
        *header("work", "ms", "share of the ideal", "same bits as one GPU"),
        *_shared(f"{dtensor['size']}^3", dtensor, bits),
        *_shared(f"MLP, width {mlp['width']}, batch {mlp['batch']}, forward and backward", mlp, close),
    ]


def _shared(what: str, work: Data, same: Mapping[str, str]) -> list[str]:
    """Return a line for each way to share out a work; the first is that of one device."""
    (first, alone), *others = work["ms"].items()
    ideal = alone / work["devices"]
    rows = [line(f"{what}, {name}", f"{ms:.1f}", _percent(ideal / ms), same[name]) for name, ms in others]
    return [line(f"{what}, {first}", f"{alone:.1f}", "", ""), *rows]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}%"


# Every table with the program that measures its figures.
_TABLES: dict[str, tuple[str, Callable[[Data], list[str]]]] = {
    "pytorch-calls": ("calls", _calls),
    "pytorch-compiled": ("compiled", _compiled),
    "pytorch-opinfo": ("opinfo", _opinfo),
    "pytorch-gpt2": ("gpt2", _gpt2),
    "pytorch-losses": ("gpt2", _losses),
    "pytorch-gaussian-process": ("gaussian_process", _gaussian_process),
    "pytorch-batch-invariance": ("batch_invariance", _batch_invariance),
    "pytorch-gpus": ("several_gpus", _gpus),
}

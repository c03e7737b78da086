"""The tables of docs/pytorch.md, from docs/data/pytorch.json, which tests/benchmarks/programs/run.py writes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from page_tables.markdown import Data, header, line

NOT_MEASURED = "*Not measured yet: run `tests/benchmarks/programs/run.py --json docs/data/pytorch.json` on a GPU.*"


def texts(programs: Mapping[str, Data] | None) -> dict[str, str]:
    """Return the text of every table by its name; a program that was not run has none yet.

    Parameters
    ----------
    programs : mapping, optional
        What each program measured, by ``NAME on DEVICE``.
    """
    programs = programs or {}
    single = {
        name: "\n\n".join(_text(table, run) for key, run in programs.items() if key.startswith(f"{program} on "))
        or NOT_MEASURED
        for name, (program, table) in _TABLES.items()
    }
    timed = {name: program for name, program in programs.items() if "cases" in program}
    return single | {"pytorch-programs": _programs(timed)}


def _text(table: Callable[[Data], list[str]], program: Data) -> str:
    """Return where a program ran, its table, and what must be known of this run."""
    remark = program.get("remark")
    lines = [_place(program), "", *table(program)]
    return "\n".join([*lines, "", remark] if remark else lines)


def _place(program: Data) -> str:
    number = program["scaling"][-1]["devices"] if "scaling" in program else "one"
    return f"On {number} {program['device']}, torch {program['torch']}, {program['date']}."


def _programs(timed: Mapping[str, Data]) -> str:
    """Return a table for each place where programs ran in turns: the times of a step, those of fastsgemm relative."""
    texts = []
    for place, cases in _by_place(timed).items():
        lines = header("program", "PyTorch, ms", "ieee", "fp16x3", "ieee, device alone", "fp16x3, device alone")
        for case in cases:
            (ms, *wall), (_, *alone) = _relative(case["ms"]), _relative(case["device_ms"])
            lines.append(line(case["what"], f"{ms:.2f}", *(f"{ratio:.2f}" for ratio in (*wall, *alone))))
        most = (max(case["difference"][name] for case in cases) for name in ("ieee", "fp16x3"))
        differences, least = " and ".join(f"{one:.0e}" for one in most), min(case["share"]["ieee"] for case in cases)
        remark = (
            f"The results differ from PyTorch's by at most {differences} of their norm, with ieee and with fp16x3; at "
            f"least {_percent(least)} of the FLOPs of products were replaced."
        )
        texts.append("\n".join([f"On {place}.", "", *lines, "", remark]))
    return "\n\n".join(texts) or NOT_MEASURED


def step_times(programs: Mapping[str, Data] | None) -> dict[tuple[str, str], list[Mapping[str, float]]]:
    """Return the times in ms of a step of every program, by device and date and by the kind of program."""
    times: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for name, program in (programs or {}).items():
        if "cases" in program:
            kind = "PyTorch programs with A Aᵀ" if name.startswith(_SYMMETRIC) else "other PyTorch programs"
            place = f"{program['device']}, {program['date']}"
            times.setdefault((place, kind), []).extend(case["ms"] for case in program["cases"])
    return dict(sorted(times.items(), key=lambda one: one[0][1]))  # devices as they are stored


def _by_place(timed: Mapping[str, Data]) -> dict[str, list[Data]]:
    places: dict[str, list[Data]] = {}
    for program in timed.values():
        place = f"one {program['device']}, torch {program['torch']}, {program['date']}"
        places.setdefault(place, []).extend(program["cases"])
    return places


def _relative(times: Mapping[str, float]) -> list[float]:
    """Return the time with PyTorch's products, then the ratios of the others to it."""
    plain, *ours = times.values()
    return [plain, *(time / plain for time in ours)]


def _calls(calls: Data) -> list[str]:
    """Return the range of the host times of calls, by whether they are replaced, and the times without the switch."""
    ratios: dict[str, list[list[float]]] = {}
    for row in calls["calls"]:
        _, *ours = _relative({name: us["between"] for name, us in row["host_us"].items()})
        kind = next((kind for kind in _NOT_REPLACED if kind in row["call"]), "replaced")
        ratios.setdefault(kind, []).append(ours)
    lines = [
        "What a call between other operators adds to the time of the host, relative to PyTorch's own call:",
        "",
        *header("call with the switch", "kinds", "ieee", "fp16x3"),
    ]
    for kind, times in ratios.items():
        lines.append(line(kind, len(times), *(_spread(one) for one in zip(*times, strict=True))))
    lines += ["", *header("call without the switch", "host time, µs")]
    return lines + [line(f"`{name}`", f"{us:.1f}") for name, us in calls["operator_us"].items()]


def _spread(ratios: Sequence[float]) -> str:
    least, most = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    return least if least == most else f"{least} to {most} (median {statistics.median(ratios):.2f})"


def _opinfo(opinfo: Data) -> list[str]:
    samples, replaced = (sum(row[name] for row in opinfo["operators"]) for name in ("samples", "replaced"))
    worst = max(row["worst"] for row in opinfo["operators"])
    return [
        f"All {samples} samples, with {replaced} calls that were replaced, agree to {opinfo['tolerance']:.0e}; the "
        f"largest difference is {worst:.1e}."
    ]


def _batch_invariance(prompts: Data) -> list[str]:
    what = f"one prompt of {prompts['tokens']} tokens, alone and among {prompts['prompts']}"
    lines = header(what, "logits that differ")
    return lines + [line(name, f"{count:,} of {prompts['elements']:,}") for name, count in prompts["differing"].items()]


def _mixture(block: Data) -> list[str]:
    step = f"training step, {block['experts']} experts of width {block['width']}, {block['tokens']} tokens; router by"
    return [*header(step, "ms"), *(line(how, f"{ms:.1f}") for how, ms in block["ms"].items())]


def _log_probability(head: Data) -> list[str]:
    lines = header(f"log-probabilities, {head['tokens']} tokens of {head['vocabulary']:,}; head by", "ms", "error")
    return lines + [line(how, f"{ms:.2f}", f"{head['errors'][how]:.0e}") for how, ms in head["ms"].items()]


def _gpus(several: Data) -> list[str]:
    """Return a table with a line for each work and number of devices, and what the comparison with one device gave."""
    alone, *others = several["scaling"]
    known = all(work["shares"] for run in others for work in run["works"].values())
    kinds = ("NCCL", "waiting") if known else ()
    columns = "devices", "PyTorch, ms", "ieee", "fp16x3", "ieee, share of the ideal"
    lines = header("work", *columns, *(f"ieee, {kind}" for kind in kinds))
    for work in alone["works"]:
        for run in (alone, *others):
            measured, number = run["works"][work], run["devices"]
            parts = 1 if "per device" in work else number  # of one device's work that each device has
            ideal = alone["works"][work]["ms"]["ieee"] / parts
            limits = (_percent(measured["shares"]["ieee"][kind]) if measured["shares"] else "" for kind in kinds)
            ms, *ratios = _relative(measured["ms"])
            cells = f"{ms:.1f}", *(f"{ratio:.2f}" for ratio in ratios), _percent(ideal / measured["ms"]["ieee"])
            lines.append(line(work, number, *cells, *limits))
    most = several["differences"]["losses"]
    losses = ", ".join(f"{kind} {one:.0e}" if one else f"{kind} 0" for kind, one in most.items())
    differing = {number: names for number, names in several["differences"]["bits"].items() if names}
    bits = f"differ on {', '.join(differing)} devices" if differing else "are the same on every number of devices"
    return [
        *lines,
        "",
        f"With rows or columns divided, the bits of a product in one order {bits}. The losses of training differ from "
        f"those of one device by at most: {losses}.",
    ]


def _percent(share: float) -> str:
    """Return a share as a page shows it, and nothing for a share of nothing."""
    return f"{100 * share:.1f}%" if share else ""


_SYMMETRIC = ("neighbours", "newton_schulz", "pca", "shampoo")  # programs that multiply a matrix by its own transpose
_NOT_REPLACED = ("passed on", "not replaced")  # in the names of calls
# Every table of one program, with that program.
_TABLES: dict[str, tuple[str, Callable[[Data], list[str]]]] = {
    "pytorch-calls": ("calls", _calls),
    "pytorch-opinfo": ("opinfo", _opinfo),
    "pytorch-batch-invariance": ("batch_invariance", _batch_invariance),
    "pytorch-gpus": ("several_gpus", _gpus),
    "pytorch-log-probability": ("log_probability", _log_probability),
    "pytorch-mixture": ("mixture", _mixture),
}

"""The tables of docs/pytorch.md, from docs/data/pytorch.json, which tests/benchmarks/programs/run.py writes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from page_tables.markdown import table
from page_tables.runs import Data, Stored, place

NOT_MEASURED = "*Not measured yet: see `tests/benchmarks/programs/README.md`; it takes a GPU.*"
_SYMMETRIC = ("muon", "neighbours", "newton_schulz", "pca", "shampoo")  # programs that multiply by a transpose of A
_PRECISIONS = ("ieee", "fp16x3")
_RATIOS = ("null", *_PRECISIONS)  # null: PyTorch's own products a second time
_NOISE = 0.02  # a program that takes more than so much longer is slower


def texts(data: Stored) -> dict[str, str]:
    """Return the text of every table by its name; a program that was not run has none yet."""
    programs: Mapping[str, Data] = data.get("pytorch") or {}
    single = {
        name: "\n\n".join(_text(of_run, run) for key, run in programs.items() if key.startswith(f"{program} on "))
        for name, (program, of_run) in _TABLES.items()
    }
    by_place: dict[str, list[Data]] = {}
    for run in programs.values():
        if "cases" in run:
            by_place.setdefault(place(run), []).extend(run["cases"])
    single["pytorch-programs"] = "\n\n".join(_programs(where, cases) for where, cases in by_place.items())
    return {name: text or NOT_MEASURED for name, text in single.items()}


def _text(of_run: Callable[[Data], str], run: Data) -> str:
    """Return where a program ran, its table, and what must be known of this run."""
    devices = f"{run['scaling'][-1]['devices']}{place(run).removeprefix('one')}" if "scaling" in run else place(run)
    return "\n\n".join(filter(None, (f"On {devices}.", of_run(run), run.get("remark"))))


def _programs(where: str, cases: Sequence[Data]) -> str:
    """Return a table of the programs that ran in turns in one place: the times of a step, those of others relative."""
    lines = []
    for case in cases:
        ratios = (f"{_ratio(case, name):.2f}" if name in case["ms"] else "" for name in _RATIOS)
        lines.append((case["what"], f"{case['ms']['PyTorch']:.2f}", *ratios, case.get("limit", "")))
    return f"On {where}.\n\n{table(('program', 'PyTorch, ms', *_RATIOS, 'limit'), lines)}\n\n{_summary(cases)}"


def _summary(cases: Sequence[Data]) -> str:
    """Return the geometric means, how many programs are slower, and how right the results are."""
    sentences = [f"Geometric means of all {len(cases)}: {_means(cases)}."]
    if limited := [case for case in cases if case.get("limit") == "host"]:
        sentences.append(f"Of the {len(limited)} that the host limits: {_means(limited)}.")
    slower = " and ".join(f"{sum(_is_slower(case, name) for case in cases)} with {name}" for name in _PRECISIONS)
    most = " and ".join(f"{max(case['difference'][name] for case in cases):.0e}" for name in _PRECISIONS)
    sentences.append(f"Slower by more than 2 % and than the null run differs: {slower}.")
    sentences.append(f"The results differ from PyTorch's by at most {most} of their norm, with ieee and with fp16x3;")
    least = min(case["share"]["ieee"] for case in cases)
    sentences.append(f"at least {_percent(least)} of the FLOPs of products were replaced.")
    return " ".join(sentences)


def _means(cases: Sequence[Data]) -> str:
    means = (f"{statistics.geometric_mean(_ratio(case, name) for case in cases):.3f} {name}" for name in _PRECISIONS)
    return ", ".join(means)


def _ratio(case: Data, name: str) -> float:
    return float(case["ms"][name] / case["ms"]["PyTorch"])


def _is_slower(case: Data, name: str) -> bool:
    null = _ratio(case, "null") if "null" in case["ms"] else 1.0
    return _ratio(case, name) > max(1 + _NOISE, null, 1 / null)


def step_times(programs: Mapping[str, Data] | None) -> dict[tuple[str, str], list[Mapping[str, float]]]:
    """Return the times in ms of a step of every program, by device and date and by the kind of program."""
    times: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for name, program in (programs or {}).items():
        if "cases" in program:
            kind = "PyTorch programs with A Aᵀ" if name.startswith(_SYMMETRIC) else "other PyTorch programs"
            where = f"{program['device']}, {program['date']}"
            times.setdefault((where, kind), []).extend(case["ms"] for case in program["cases"])
    return dict(sorted(times.items(), key=lambda one: one[0][1]))  # devices as they are stored


def _calls(calls: Data) -> str:
    """Return what products add to the host time of a step, and the host time of calls one after the other."""
    lines = []
    for row in calls["calls"]:
        size = " x ".join(map(str, row["size"])) + (f", rung {row['rung']}" if row["rung"] else "")
        for name, us in row["us"].items():
            base = "torch.mm(out=)" if "C given" in name or "out=" in name else "torch.mm"
            lines.append((f"`{name}`, {size}", f"{us:.1f}", "" if name == base else f"{us / row['us'][base]:.2f}"))
    of_calls = table(("call", "host time, µs", "relative to PyTorch's"), lines)
    heads = ("step", "products", "kernels", "PyTorch, µs", *(f"{name}, µs" for name in _RATIOS))
    return f"{table(heads, map(_step, calls['steps']))}\n\n{of_calls}"


def _step(row: Data) -> tuple[object, ...]:
    """Return the cells of a step: what each product takes of it, and what the others add to that."""
    us, number = row["step_us"], row["products"]
    kernels = " / ".join("?" if count is None else str(count) for count in row["launches"].values())
    added = (f"{(us[name] - us['PyTorch']) / number:+.1f}" for name in _RATIOS)
    return row["step"], number, kernels, f"{us['PyTorch'] / number:.1f}", *added


def _opinfo(opinfo: Data) -> str:
    samples, replaced = (sum(row[name] for row in opinfo["operators"]) for name in ("samples", "replaced"))
    worst = max(row["worst"] for row in opinfo["operators"])
    return (
        f"All {samples} samples, with {replaced} calls that were replaced, agree to {opinfo['tolerance']:.0e}; the "
        f"largest difference is {worst:.1e}."
    )


def _batch_invariance(prompts: Data) -> str:
    what = f"one prompt of {prompts['tokens']} tokens, alone and among {prompts['prompts']}"
    rows = ((name, f"{count:,} of {prompts['elements']:,}") for name, count in prompts["differing"].items())
    return table((what, "logits that differ"), rows)


def _bfloat16_decoder(model: Data) -> str:
    """Return how many logits depend on the batch, and what steps take relative to PyTorch's own products."""
    lengths = ", ".join(map(str, model["lengths"]))
    differing = " and ".join(f"{count:,} by {way}" for way, count in model["differing"].items() if way != "null")
    rows = (
        (step, f"{ms['PyTorch']:.1f}", *(f"{ms[way] / ms['PyTorch']:.2f}" for way in ("null", "one order")))
        for step, ms in model["ms"].items()
    )
    return (
        f"{model['what']}, bfloat16, eager attention. Of {model['elements']:,} logits of one sequence of {lengths} "
        f"tokens, alone and among {model['sequences']}, differ {differing}.\n\n"
        f"{table(('step', 'PyTorch, ms', 'null', 'one order'), rows)}"
    )


def _mixture(block: Data) -> str:
    step = f"training step, {block['experts']} experts of width {block['width']}, {block['tokens']} tokens; router by"
    return table((step, "ms"), ((how, f"{ms:.1f}") for how, ms in block["ms"].items()))


def _log_probability(head: Data) -> str:
    what = f"log-probabilities, {head['tokens']} tokens of {head['vocabulary']:,}; head by"
    rows = ((how, f"{ms:.2f}", f"{head['errors'][how]:.0e}") for how, ms in head["ms"].items())
    return table((what, "ms", "error"), rows)


def _gpus(several: Data) -> str:
    """Return a table with a line for each work and number of devices, and what the comparison with one device gave."""
    alone, *others = several["scaling"]
    known = all(work["shares"] for run in others for work in run["works"].values())
    kinds = ("NCCL", "waiting") if known else ()
    columns = "devices", "PyTorch, ms", "ieee", "fp16x3", "ieee, share of the ideal"
    lines = []
    for work in alone["works"]:
        for run in (alone, *others):
            measured, number = run["works"][work], run["devices"]
            plain, *ours = measured["ms"].values()
            parts = 1 if "per device" in work else number  # of one device's work that each device has
            ideal = alone["works"][work]["ms"]["ieee"] / parts
            limits = (_percent(measured["shares"]["ieee"][kind]) if measured["shares"] else "" for kind in kinds)
            ratios = (f"{ms / plain:.2f}" for ms in ours)
            lines.append((work, number, f"{plain:.1f}", *ratios, _percent(ideal / measured["ms"]["ieee"]), *limits))
    most = several["differences"]["losses"]
    losses = ", ".join(f"{kind} {one:.0e}" if one else f"{kind} 0" for kind, one in most.items())
    differing = {number: names for number, names in several["differences"]["bits"].items() if names}
    bits = f"differ on {', '.join(differing)} devices" if differing else "are the same on every number of devices"
    return (
        f"{table(('work', *columns, *(f'ieee, {kind}' for kind in kinds)), lines)}\n\n"
        f"With rows or columns divided, the bits of a product in one order {bits}. The losses of training differ from "
        f"those of one device by at most: {losses}."
    )


def _percent(share: float) -> str:
    """Return a share as a page shows it, and nothing for a share of nothing."""
    return f"{100 * share:.1f}%" if share else ""


# Every table of one program, with that program.
_TABLES: dict[str, tuple[str, Callable[[Data], str]]] = {
    "pytorch-calls": ("calls", _calls),
    "pytorch-opinfo": ("opinfo", _opinfo),
    "pytorch-batch-invariance": ("batch_invariance", _batch_invariance),
    "pytorch-bfloat16-decoder": ("bfloat16_decoder", _bfloat16_decoder),
    "pytorch-gpus": ("several_gpus", _gpus),
    "pytorch-log-probability": ("log_probability", _log_probability),
    "pytorch-mixture": ("mixture", _mixture),
}

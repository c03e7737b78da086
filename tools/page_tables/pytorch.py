"""The tables of docs/pytorch.md, from docs/data/pytorch.json, which tests/benchmarks/programs/run.py writes."""

from __future__ import annotations

from collections.abc import Callable

from page_tables.markdown import Data, header, line

NOT_MEASURED = "*Not measured yet: run `tests/benchmarks/programs/run.py --json docs/data/pytorch.json` on a GPU.*"


def texts(found: Data | None) -> dict[str, str]:
    """Return the text of every table by its name; a program that was not run has none yet."""
    found = found or {}
    needs = {
        "pytorch-calls": (_calls, "calls"),
        "pytorch-compiled": (_compiled, "compiled"),
        "pytorch-opinfo": (_opinfo, "opinfo"),
        "pytorch-gpt2": (_gpt2, "gpt2"),
        "pytorch-losses": (_losses, "gpt2"),
        "pytorch-gaussian-process": (_gaussian_process, "gaussian_process"),
        "pytorch-batch-invariance": (_batch_invariance, "batch_invariance"),
        "pytorch-gpus": (_gpus, "two_gpus"),
    }
    return {
        name: _with_remark(table, found, key) if key in found else NOT_MEASURED for name, (table, key) in needs.items()
    }


def _with_remark(table: Callable[[Data], str], found: Data, key: str) -> str:
    """Return a table and, below it, what must be known of this run."""
    remark = found[key].get("remark")
    return table(found) + (f"\n\n{remark}" if remark else "")


def _calls(found: Data) -> str:
    calls = found["calls"]
    lines = [
        f"On one {found['device']}, torch {found['torch']}, {found['date']}; 64 x 64 operands.",
        "",
        *header("call", "PyTorch's kernel, µs", "with the switch on, µs", "ratio"),
    ]
    for name, row in calls["host_us"].items():
        plain, ours = row["PyTorch"], row["fastsgemm"]
        lines.append(line(f"`{name}`", f"{plain:.1f}", f"{ours:.1f}", f"{ours / plain:.2f}"))
    lines += ["", *header("call without the switch", "host time, µs")]
    lines += [line(f"`{name}`", f"{us:.1f}") for name, us in calls["operator_us"].items()]
    return "\n".join(lines)


def _compiled(found: Data) -> str:
    lines = header("compiled MLP, 1024 wide, forward and backward", "PyTorch, ms", "with the switch on, ms", "ratio")
    for batch, row in found["compiled"].items():
        plain, ours = row["PyTorch"], row["fastsgemm"]
        lines.append(line(f"batch {batch}", f"{plain:.3f}", f"{ours:.3f}", f"{ours / plain:.2f}"))
    return "\n".join(lines)


def _opinfo(found: Data) -> str:
    opinfo = found["opinfo"]
    total = sum(row["samples"] for row in opinfo["operators"])
    lines = [
        f"All {total} samples agree to {opinfo['tolerance']:.0e}, on one {found['device']}, torch {found['torch']}, "
        f"{found['date']}.",
        "",
        *header("operator", "samples", "calls replaced", "passed on", "largest difference"),
    ]
    for row in opinfo["operators"]:
        cells = row["samples"], row["replaced"], row["passed_on"], f"{row['worst']:.1e}"
        lines.append(line(f"`{row['operator']}`", *cells))
    return "\n".join(lines)


def _where(found: Data) -> list[str]:
    return [f"On one {found['device']}, torch {found['torch']}, {found['date']}.", ""]


def _gpt2(found: Data) -> str:
    gpt2 = found["gpt2"]
    lines = _where(found) + header("program", "products", "time", "difference from PyTorch", "FLOPs replaced")
    for name, ms in gpt2["ms"].items():
        what = "GPT-2 (124M), {} x {} tokens, a step".format(*gpt2["batch"])
        difference = gpt2["difference"].get(name)
        shown = "" if difference is None else f"loss {difference:.1e}"
        lines.append(line(what, name, f"{ms:.1f} ms", shown, _percent(gpt2["share"].get(name))))
    return "\n".join(lines)


def _gaussian_process(found: Data) -> str:
    process = found["gaussian_process"]
    lines = _where(found) + header("program", "products", "time", "difference from PyTorch", "FLOPs replaced")
    for name, seconds in process["seconds"].items():
        what = f"n = {process['n']}, {process['iterations']} steps, CG tolerance {process['cg_tolerance']:g}"
        difference = process["difference"].get(name)
        shown = "" if difference is None else f"hyperparameters {difference:.1e}"
        lines.append(line(what, name, f"{seconds:.2f} s", shown, _percent(process["share"].get(name))))
    return "\n".join(lines)


def _batch_invariance(found: Data) -> str:
    prompts = found["batch_invariance"]
    what = f"one prompt of {prompts['tokens']} tokens, alone and among {prompts['prompts']}"
    lines = _where(found) + header(what, "logits that differ")
    lines += [line(name, f"{count:,} of {prompts['elements']:,}") for name, count in prompts["differing"].items()]
    return "\n".join(lines)


def _losses(found: Data) -> str:
    gpt2 = found["gpt2"]
    names = list(gpt2["losses"])
    lines = header("step", *names)
    for step in sorted({0, 1, 4, 9, 14, gpt2["steps"] - 1}):
        if step < gpt2["steps"]:
            lines.append(line(step + 1, *(f"{gpt2['losses'][name][step]:.6f}" for name in names)))
    return "\n".join(lines)


def _gpus(found: Data) -> str:
    two = found["two_gpus"]
    lines = [
        f"On {two['dtensor']['devices']} {two['device']}, torch {two['torch']}, {two['date']}.",
        "",
        *header("work", "ms", "share of the ideal", "same bits as one GPU"),
    ]
    dtensor, n = two["dtensor"], two["dtensor"]["devices"]
    alone = dtensor["ms"]["one device"]
    for name, ms in dtensor["ms"].items():
        what = f"{dtensor['size']}^3, {name}"
        share = "" if name == "one device" else _percent(alone / n / ms)
        lines.append(line(what, f"{ms:.1f}", share, {True: "yes", False: "no"}.get(dtensor["same bits"].get(name), "")))
    mlp = two["mlp"]
    alone = mlp["ms"]["one device"]
    for name, ms in mlp["ms"].items():
        what = f"MLP, width {mlp['width']}, batch {mlp['batch']}, forward and backward, {name}"
        share = "" if name == "one device" else _percent(alone / n / ms)
        same = "" if name == "one device" else f"to {max(mlp['difference'].values()):.0e}"
        lines.append(line(what, f"{ms:.1f}", share, same))
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}%"

"""The output of ``fastsgemm`` without a command: this machine, the shipped results, and a ladder run now."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from fastsgemm.command_line import bars
from fastsgemm.command_line.info import Info
from fastsgemm.command_line.sentences import sentences
from fastsgemm.device import DeviceTraits
from fastsgemm.heuristics.device_database import knows
from fastsgemm.measure import stored_run
from fastsgemm.measure.counts import Table
from fastsgemm.measure.tables import aligned, rung_title
from fastsgemm.measure.timed_ladder import Ladder
from fastsgemm.tuning import first_use, tuner

_WIDTH = 80  # columns of a terminal
_WIDTHS = (16, 9, 7, 9, 7)  # characters of the columns of the table
_INTRO = "fastsgemm multiplies float32 matrices on NVIDIA GPUs, with kernels that it compiles and tunes for the device."
_MEASURED = "Below is what this version reached on a device."
_COUNTED = "Below are what this version reached on a device, and what its kernels do on a simulated one."


def opening(machine: Info) -> str:
    """Return the first part: the machine if it has a device, else three sentences and the shipped result."""
    if machine.backend in ("cuda", None):  # None: FASTSGEMM_DEVICE is wrong, and the next step says so
        return machine.text()
    used = "a simulated device multiplies" if machine.backend == "sim" else "NumPy multiplies"
    missing = "no NVIDIA driver was found" if machine.driver is None else "no NVIDIA device is in use"
    below = _MEASURED if machine.nvrtc is None else _COUNTED
    text = textwrap.wrap(f"{_INTRO} Here {missing}, so {used} host arrays. {below}", _WIDTH)
    for note in machine.notes:
        if not note.startswith(missing):
            text += ["", *textwrap.wrap(f"note: {note}", _WIDTH)]
    return "\n".join([*text, "", *_stored_result()])


def _stored_result() -> list[str]:
    p = stored_run.problem()
    return [
        f"Measured on {stored_run.place()}: {p.M} x {p.N} x {p.K}",
        bars.text({"rows": stored_run.run()["ladder"]}),
        *textwrap.wrap(f"{stored_run.summary()} All of it: fastsgemm bench", _WIDTH),
    ]


def result(ladder: Ladder | Table) -> str:
    """Return the results of a ladder; one with a wrong result is shown whole."""
    if not ladder.ok:
        return ladder.text()
    if isinstance(ladder, Table):
        problem = f"{ladder.M} x {ladder.N} x {ladder.K}"
        heading = f"Counted just now on a simulated {ladder.device} ({ladder.arch}): {problem}"
        return "\n".join([heading, *sentences(ladder), "The whole table: fastsgemm ladder --device sim"])
    if ladder.rungs:
        return "\n".join([ladder.text(), "", *_comparison(ladder)])
    row = ladder.rows[0]
    assert row.tflops is not None  # the result is right
    problem = f"{ladder.M} x {ladder.N} x {ladder.K}"
    return f"NumPy's product through sgemm, {problem}: {1e3 * row.tflops:.4g} GFLOP/s, error {row.error:.2g}"


def _comparison(ladder: Ladder) -> list[str]:
    """Return a table of this device's rates and the shipped ones, for the same problem."""
    shipped = {row["name"]: row for row in stored_run.run()["ladder"]}
    lines = [
        f"TFLOP/s here and on {stored_run.place()}; % of cuBLAS on the same device",
        aligned(("rung", "here", "%", "there", "%"), _WIDTHS),
    ]
    for row in ladder.json()["rows"]:
        cells = (*_cells(row), *(_cells(shipped[row["name"]]) if row["name"] in shipped else ("", "")))
        lines.append(aligned((rung_title(row["number"], row["name"]), *cells), _WIDTHS))
    return lines


def _cells(row: Mapping[str, Any]) -> tuple[str, str]:
    return f"{row['tflops']:.4g}", "" if row["percent"] is None else f"{row['percent']:.1f}"


def closing(machine: Info) -> str:
    """Return what to do next: with a device, how long its first tuning takes, else commands that need no device."""
    if machine.backend == "cuda" and machine.devices:
        return "\n".join(textwrap.wrap(_first_tuning(machine.devices[0]), _WIDTH))
    return "\n  ".join(["More that needs no device:", "fastsgemm info", "fastsgemm explain --size 4096 --device sm_90"])


def _first_tuning(device: DeviceTraits) -> str:
    hint = (
        f"All rungs with this device's own constants: fastsgemm tune, about {tuner.STANDARD_SECONDS / 60:.0f} minutes."
    )
    if knows(device):
        return f"{device.arch} is in the tuning database, so no call tunes. {hint}"
    if not first_use.allowed():
        return (
            f"{device.arch} is not in the tuning database, and FASTSGEMM_TUNE=off: generic constants are used. {hint}"
        )
    seconds = f"about {tuner.QUICK_SECONDS:.0f} s"
    return f"{device.arch} is not in the tuning database: the first call tunes for {seconds}, once. {hint}"

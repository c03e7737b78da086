#!/usr/bin/env python3
"""Write docs/data/generic_records.json: what can be said about the generic records without the devices.

    tools/generic_records.py && tools/write_tables.py

For one device of each architecture: registers and spills as ptxas reports them, the blocks that an SM holds, the FMAs
for each pass over shared memory as the simulated device counts them, and how many quick candidates are legal. Needs
NVRTC and no device.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastsgemm import device, known_devices, rungs
from fastsgemm.heuristics import database
from fastsgemm.sim import Machine, sgemm
from fastsgemm.tuning.spaces import SPACES

ROOT = Path(__file__).resolve().parent.parent
RUNGS = ("autotuned", "warptiled", "pipelined", "skinny")
EXTENTS = 128  # of the product that is simulated

# FP32 FMAs of an SM in a cycle: CUDA C++ Programming Guide, throughput of native arithmetic instructions.
FMAS = {"sm_75": 64, "sm_80": 64, "sm_86": 128, "sm_89": 128, "sm_90": 128, "sm_100": 128, "sm_120": 128}


def row(name: str, rung: str) -> dict[str, Any]:
    """Return what is known of the generic record of a rung on a device."""
    found = known_devices.find(name)
    record = next(one for one in database.shipped("generic").records if one.rung == rung and one.problem is None)
    generator = np.random.default_rng(0)
    A, B = (generator.standard_normal((EXTENTS, EXTENTS), dtype=np.float32) for _ in range(2))
    _, report = sgemm(rungs.find(rung), record.config, A, B, machine=Machine(name))
    shared = report.total.shared_loads.wavefronts + report.total.shared_stores.wavefronts
    quick = (len(space.candidates(found.shared_limit, True)) for space in SPACES.values() if space.rung == rung)
    return {
        "device": name,
        "arch": found.arch,
        "multiprocessors": found.multiprocessors,
        "fmas_per_cycle": FMAS[found.arch],
        "rung": rung,
        "constants": record.config.constants,
        "registers": report.registers,
        "spilled": report.spilled,
        "blocks_per_sm": report.occupancy.blocks,
        "warps_per_sm": report.occupancy.warps,
        "limited_by": report.occupancy.limited_by,
        "fmas_per_wavefront": report.total.fmas / shared,  # each of these rungs uses shared memory
        "quick_candidates": max(quick),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; the module docstring describes it."""
    argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0]).parse_args(arguments)
    rows = [row(name, rung) for rung in RUNGS for name in known_devices.known()]
    data = {"nvrtc": "{}.{}".format(*device.nvrtc_version()), "rows": rows}
    text = json.dumps(data, indent=1) + "\n"
    (ROOT / "docs" / "data" / "generic_records.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

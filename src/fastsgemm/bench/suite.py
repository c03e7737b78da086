"""Run the benchmark's problems on a device, beside cuBLAS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from fastsgemm import device
from fastsgemm.bench.problem_sets import SIZES, Sample
from fastsgemm.bench.sets import SETS_OF_A_RUN
from fastsgemm.bench.versus import Versus, compile_ahead
from fastsgemm.device import Gpu
from fastsgemm.errors import MissingExtraError
from fastsgemm.measure import machine
from fastsgemm.measure.stopwatch import Stopwatch
from fastsgemm.progress import say, track
from fastsgemm.tuning import first_use

SCHEMA = 1  # of the results


def run(samples: Mapping[str, Sequence[Sample]], place: str = "cuda") -> dict[str, Any]:
    """Check and time every sample, by the name of its set, and return the results as plain data.

    The sets are keys of `SETS_OF_A_RUN`, and the device is one of this machine, as `fastsgemm.device.ordinal`
    understands it.

    Raises
    ------
    DeviceError
        This machine has no such device.
    MissingExtraError
        PyTorch, through which cuBLAS is called, is missing or cannot use the device.
    WrongResultError
        A result is wrong.
    """
    ordinal = device.ordinal(place)
    device.probe()  # a missing driver is not a fault of PyTorch
    torch = import_torch()
    gpu = first_use.open_device(ordinal)  # tunes a device without records, as a first call does
    with device.current(gpu):
        every = [sample for chosen in samples.values() for sample in chosen]
        say(f"fastsgemm: compiling the kernels of {len(every)} problems")
        compile_ahead(gpu, every)
        with closing(Stopwatch(gpu)) as stopwatch:
            versus = Versus(torch, f"cuda:{ordinal}", gpu, stopwatch)
            jobs = [(name, sample) for name, chosen in samples.items() for sample in chosen]
            rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SETS_OF_A_RUN}
            for name, sample in track(jobs, "timing beside cuBLAS"):
                rows[name].append(versus.row(sample, SETS_OF_A_RUN[name].seconds))
    facts = {"schema": SCHEMA, **about(gpu, torch), "sizes": SIZES}
    return facts | {"ladder": [], **rows, "calls": [], "first": []}


def about(gpu: Gpu, torch: Any) -> dict[str, Any]:
    """Return what a run was made with, and when, as plain data."""
    return machine.facts(gpu) | {"packages": {"torch": torch.__version__}}


def import_torch() -> Any:
    """Return PyTorch with TF32 turned off.

    Raises
    ------
    MissingExtraError
        It cannot be imported, or cannot use the device.
    """
    try:
        import torch
    except (ImportError, OSError) as error:
        raise MissingExtraError(f"bench calls cuBLAS through PyTorch, which cannot be imported: {error}") from error
    if not torch.cuda.is_available():
        raise MissingExtraError(f"bench calls cuBLAS through PyTorch {torch.__version__}, which cannot use the device")
    torch.set_float32_matmul_precision("highest")
    return torch

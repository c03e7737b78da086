"""Run the benchmark's problems on a device, beside cuBLAS."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from fastsgemm import device
from fastsgemm.device import Gpu
from fastsgemm.errors import MissingExtraError
from fastsgemm.measure import environment
from fastsgemm.measure.problem_sets import SETS_OF_A_RUN, SIZES, Sample
from fastsgemm.measure.stopwatch import Stopwatch
from fastsgemm.measure.versus import Versus, compile_ahead
from fastsgemm.progress import say, track

SCHEMA = 1  # of the results


def run(samples: Mapping[str, Sequence[Sample]], torch: Any, gpu: Gpu, sgemm: Callable[..., object]) -> dict[str, Any]:
    """Check and time every sample, by the name of its set, and return the results as plain data.

    The sets are keys of `SETS_OF_A_RUN`, and PyTorch is what `import_torch` returns.

    Raises
    ------
    WrongResultError
        A result is wrong.
    """
    jobs = [(name, sample) for name, chosen_samples in samples.items() for sample in chosen_samples]
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SETS_OF_A_RUN}
    with device.current(gpu):
        say(f"fastsgemm: compiling the kernels of {len(jobs)} problems")
        compile_ahead(gpu, [sample for _, sample in jobs])
        with closing(Stopwatch(gpu)) as stopwatch:
            versus = Versus(torch, f"cuda:{gpu.ordinal}", gpu, stopwatch, sgemm)
            for name, sample in track(jobs, "timing beside cuBLAS"):
                rows[name].append(versus.row(sample, SETS_OF_A_RUN[name].seconds))
    results = {"schema": SCHEMA, **about(gpu, torch), "sizes": SIZES}
    return results | {"ladder": [], **rows, "calls": [], "first": []}


def about(gpu: Gpu, torch: Any) -> dict[str, Any]:
    """Return the versions, device and date of a run as plain data."""
    return environment.facts(gpu) | {"packages": {"torch": torch.__version__}}


def import_torch() -> Any:
    """Return PyTorch with TF32 turned off.

    Raises
    ------
    MissingExtraError
        PyTorch cannot be imported, or cannot use the device.
    """
    try:
        import torch
    except (ImportError, OSError) as error:
        raise MissingExtraError(f"bench calls cuBLAS through PyTorch, which cannot be imported: {error}") from error
    if not torch.cuda.is_available():
        raise MissingExtraError(f"bench calls cuBLAS through PyTorch {torch.__version__}, which cannot use the device")
    torch.set_float32_matmul_precision("highest")
    return torch

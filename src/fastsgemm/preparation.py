"""Compile and load kernels before the first call that needs them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

from fastsgemm import device as devices
from fastsgemm import rungs
from fastsgemm.call import dispatch
from fastsgemm.device import DeviceTraits, Gpu
from fastsgemm.errors import ArgumentError, PrecisionError, ShapeError
from fastsgemm.geometry import variants
from fastsgemm.heuristics.explanation import device_at
from fastsgemm.jit import compiler, kernel, source
from fastsgemm.problem import LAYOUTS, MAX_EXTENT, Problem, checked
from fastsgemm.progress import Bar
from fastsgemm.rungs import Rung
from fastsgemm.tuning import first_use

MOST_PROBLEMS = 65536  # of one `prepare`: as many choices as a process keeps
_PACK = "pack"  # the kernel that packs A and B


@dataclass(frozen=True)
class Preparation:
    """What `prepare` did; as text it is one line.

    Attributes
    ----------
    device : str
    problems : int
    kernels : int
        That these problems need.
    loaded : bool
        Whether they are loaded on the device, or only in the cache of compiled kernels.
    seconds : float
    """

    device: str
    problems: int
    kernels: int
    loaded: bool
    seconds: float

    def __str__(self) -> str:
        where = f"loaded on {self.device}" if self.loaded else f"compiled for {self.device}"
        kernels = "kernel" if self.kernels == 1 else "kernels"
        return f"{self.kernels} {kernels} for {self.problems} problems {where} in {self.seconds:.1f} s"


def prepare(
    M: int | Iterable[int],
    N: int | Iterable[int],
    K: int | Iterable[int],
    layout: str | Iterable[str] = "NN",
    *,
    rung: str | int | Rung | None = None,
    precision: str = "ieee",
    batch_invariant: bool = False,
    device: int | str = 0,
    progress: bool = True,
) -> Preparation:
    """Compile and load every kernel that `sgemm` needs for some problems, so that no later call on them waits for it.

    Kernels are compiled on all cores and kept in the kernel cache. A later call that is captured into a CUDA graph then
    needs no call before the capture.

    Parameters
    ----------
    M, N, K : int or iterable of int
        Every combination is prepared, for example ``prepare(range(1, 8193), 4096, 4096)``.
    layout : str or iterable of str
        ``NN``, ``NT``, ``TN`` or ``TT``: whether A and B are row-major (N) or column-major (T).
    rung : str or int, optional
        As in `sgemm`. Default: the rung that `sgemm` uses for each problem.
    precision : str
        Only ``ieee`` can be prepared.
    batch_invariant : bool
        As in `sgemm`.
    device : int or str
        CUDA's number of a device in this machine, or ``cuda:1``. For a device that is named, such as
        ``"NVIDIA H200"`` or ``"sm_90"``, kernels are compiled into the cache only, and no device is needed.
    progress : bool
        Show a progress bar on stderr.

    Returns
    -------
    Preparation

    Raises
    ------
    ShapeError
        An extent or a layout is out of range, or there are no problems, or more than 65536.
    ArgumentError
        An extent is no int and no iterable of them.
    PrecisionError
        `precision` is not ``ieee``.
    DeviceError, ConfigError, CompileError
        There is no such device; nothing is known of a device of that name; NVRTC refuses a kernel.

    Notes
    -----
    Operands are taken to be dense: leading dimensions without padding, and addresses that are multiples of 16 bytes,
    as arrays are allocated. A slice whose leading dimension or address allows narrower loads only may need one more
    kernel, and so may a column-major C.

    Examples
    --------
    >>> import fastsgemm
    >>> fastsgemm.prepare(range(1, 513), 4096, 4096, "NT")  # doctest: +SKIP
    """
    if precision != "ieee":
        raise PrecisionError(f"prepare compiles kernels of precision 'ieee', got {precision!r}")
    asked = None if rung is None else rungs.find(rung)
    if batch_invariant:
        asked, _ = rungs.batch_invariant(asked, None, precision)
    problems = _problems(M, N, K, layout)
    began = time.perf_counter()
    bar = Bar(progress)
    if isinstance(device, str) and not devices.is_present(device.lower()):
        described = device_at(device)
        jobs = _jobs(described, asked, problems, bar)
        for _ in _compiled(jobs, described.arch, bar):
            pass
        name, loaded = described.name, False
    else:
        gpu = first_use.open_device(devices.ordinal(device))
        jobs = _jobs(gpu, asked, problems, bar)
        _load(gpu, jobs, bar)
        name, loaded = gpu.name, True
    bar.end()
    return Preparation(name, len(problems), len(jobs), loaded, time.perf_counter() - began)


def parse(text: str) -> tuple[range, range, range, str]:
    """Return M, N, K and layout of a text such as ``1..8192,4096,4096,NT``; a range includes both of its ends.

    Raises
    ------
    ShapeError
        It is not written so.
    """
    parts = [part.strip() for part in text.split(",")]
    layout = parts.pop().upper() if len(parts) == 4 else "NN"
    ends = [part.split("..") for part in parts]
    digits = all(end.isascii() and end.isdecimal() and len(end) <= 10 for pair in ends for end in pair)
    if len(parts) != 3 or layout not in LAYOUTS or not digits or max(map(len, ends)) > 2:
        raise ShapeError(
            "problems are written M,N,K or M,N,K,LAYOUT, where an extent may be a range such as 1..8192 and a layout "
            f"is {', '.join(LAYOUTS)}; got {text!r}"
        )
    M, N, K = (range(int(pair[0]), int(pair[-1]) + 1) for pair in ends)
    return M, N, K, layout


def _problems(M: Any, N: Any, K: Any, layout: Any) -> list[Problem]:
    extents = [_extents(name, values) for name, values in (("M", M), ("N", N), ("K", K))]
    layouts = [layout] if isinstance(layout, str) else list(layout)
    count = math.prod(len(values) for values in extents) * len(layouts)
    if not 1 <= count <= MOST_PROBLEMS:
        raise ShapeError(f"prepare takes 1 to {MOST_PROBLEMS} problems, got {'more' if count else 'none'}")
    return [checked(Problem(m, n, k, which)) for m, n, k in product(*extents) for which in layouts]


def _extents(name: str, values: Any) -> list[int]:
    """Return the extents that a caller gives, one more than is allowed at most."""
    several = isinstance(values, Iterable) and not isinstance(values, str)
    found = []
    for value in islice(values, MOST_PROBLEMS + 1) if several else (values,):
        if not hasattr(value, "__index__"):
            raise ArgumentError(f"{name} must be an int from 1 to {MAX_EXTENT} or an iterable of them, got {value!r}")
        found.append(int(value.__index__()))
    return found


@dataclass(frozen=True)
class _Job:
    """A kernel to compile. `launch` is one call of it; None for a kernel that has no config."""

    name: str
    launch: dispatch.KernelLaunch | None = None

    @property
    def source(self) -> str:
        if self.launch is None:
            return source.helper(self.name)
        return source.generate(self.launch.rung, self.launch.config, self.launch.variant)


def _jobs(device: DeviceTraits, asked: Rung | None, problems: Sequence[Problem], bar: Bar) -> dict[Any, _Job]:
    """Return the kernels that the problems need, by their keys in the table of a device."""
    found: dict[Any, _Job] = {}
    bar.begin("choose", len(problems))
    for problem in problems:
        a, b, c = variants.dense_operands(problem)
        chosen = dispatch.choose_config(device, asked, None, a, b, c)
        rung, config = chosen.rung, chosen.config
        launch = dispatch.kernel_launch(device.arch, rung, config, variants.call_for(chosen.a, chosen.b, c))
        found.setdefault(kernel.key(rung, config, launch.variant), _Job(rung.kernel, launch))
        if chosen.a.padded or chosen.b.padded:
            found.setdefault(_PACK, _Job(_PACK))
        if launch.parts > 1:
            found.setdefault(launch.reduction, _Job(launch.reduction))
        bar.step()
    return found


def _compiled(jobs: dict[Any, _Job], arch: str, bar: Bar) -> Iterator[tuple[_Job, bytes]]:
    """Yield each job with its machine code. NVRTC releases the interpreter's lock, so threads use all cores."""
    bar.begin("compile", len(jobs))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {pool.submit(_cubin, job, arch): job for job in jobs.values()}
        try:
            for done in as_completed(running):
                yield running[done], done.result()
                bar.step()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _cubin(job: _Job, arch: str) -> bytes:
    name = job.name if job.launch is not None else rungs.kernel_name(job.name)
    return compiler.cubin(job.source, name, arch)


def _load(gpu: Gpu, jobs: dict[Any, _Job], bar: Bar) -> None:
    missing = {key: job for key, job in jobs.items() if key not in gpu.kernels}
    switched = gpu.enter()
    try:
        for job, code in _compiled(missing, gpu.arch, bar):
            if job.launch is None:
                kernel.load_helper(gpu, job.name, code)
            else:
                kernel.load(gpu, job.launch.rung, job.launch.config, job.launch.variant, code)
    finally:
        if switched:
            gpu.leave()

"""Compile and load kernels before the first call that needs them."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

from fastsgemm import arguments, private_files
from fastsgemm import device as devices
from fastsgemm.call import grouped
from fastsgemm.call.product import plan_of
from fastsgemm.device import DeviceTraits, Gpu
from fastsgemm.errors import ArgumentError, PrecisionError, ShapeError
from fastsgemm.geometry import variants
from fastsgemm.geometry.layout import Meta
from fastsgemm.heuristics.explanation import device_at, naming_others
from fastsgemm.jit import cache, compiler, kernel, torch_library
from fastsgemm.jit.source import KernelSpec
from fastsgemm.problem import DTYPES, MAX_EXTENT, WORDS, WRITTEN, Problem, checked, dtypes_of, of, pieces, ragged_of
from fastsgemm.progress import Bar
from fastsgemm.request import Request, of_call, of_problem, resolve
from fastsgemm.rungs import Rung
from fastsgemm.tuning import first_use

MOST_PROBLEMS = 65536  # of one `prepare`: the number of choices that a process caches
_SPLITS = ("", "A", "B", "AB")  # operands that were split before
SOURCES = ("matrix", "row", "column")  # forms of C if `out` is written


@dataclass(frozen=True)
class Preparation:
    """What `prepare` did; as text it is one line.

    Attributes
    ----------
    device : str
    problems : int
    kernels : int
        Number that these problems need.
    compiled : int
        Of these, those that were not stored, nor loaded before; with `check`, those that are missing.
    loaded : bool
        Whether the kernels are loaded on the device, or only in the cache.
    seconds : float
    pytorch : str
        The version of PyTorch whose launcher is compiled; empty if none was, see `prepare`.
    checked : bool
        Whether the cache was only looked at.
    hidden : str
        The cache folder, if root made it and other users cannot read it.
    packed : int
        With `check`, how many of the kernels an installed package has, and not the cache.
    """

    device: str
    problems: int
    kernels: int
    compiled: int
    loaded: bool
    seconds: float
    pytorch: str = ""
    checked: bool = False
    hidden: str = ""
    packed: int = 0

    def __str__(self) -> str:
        kernels = "kernel" if self.kernels == 1 else "kernels"
        problems = "problem" if self.problems == 1 else "problems"
        what = f"{self.kernels} {kernels} for {self.problems} {problems}"
        if self.checked:
            lacks = f"{self.compiled} missing" if self.compiled else "none missing"
            packed = f"{self.packed} in an installed package, " if self.packed else ""
            cached = self.kernels - self.compiled - self.packed
            return f"{what} on {self.device}: {cached} in the cache, {packed}{lacks}"
        launcher = f", and the launcher for PyTorch {self.pytorch}" if self.pytorch else ""
        location = f"loaded on {self.device}" if self.loaded else f"ready for {self.device}"
        text = f"{what} {location}{launcher} in {self.seconds:.1f} s, {self.compiled} of them compiled"
        if self.hidden:
            text += f"; other users cannot read {self.hidden}: set umask 022 before it is made, or chmod -R a+rX it"
        return text


def prepare(
    M: int | Iterable[int],
    N: int | Iterable[int],
    K: int | Iterable[int],
    layout: str | Iterable[str] = "NN",
    *,
    batch: int | Iterable[int] = 1,
    rung: str | int | Rung | None = None,
    precision: str = "ieee",
    batch_invariant: bool = False,
    split: str = "",
    source: str = "",
    symmetric: bool = False,
    dtypes: str = "f32xf32",
    ragged: str = "",
    device: int | str = 0,
    stored: bool = False,
    check: bool = False,
    progress: bool = True,
) -> Preparation:
    """Compile and load every kernel that `sgemm` needs for some problems, so that no later call on them waits for it.

    Kernels are compiled on all cores and kept in the kernel cache. A later call that is captured into a CUDA graph then
    needs no call before the capture. The launcher of PyTorch's products is compiled, too, if PyTorch is imported, or if
    it is installed and the kernels are for later processes.

    Parameters
    ----------
    M, N, K : int or iterable of int
        Every combination is prepared, for example ``prepare(range(1, 8193), 4096, 4096)``.
    layout : str or iterable of str
        ``NN``, ``NT``, ``TN`` or ``TT``: whether A and B are row-major (N) or column-major (T). ``SYM``: NT, and B is A
        transposed.
    batch : int or iterable of int
        Number of products of a call, each with its own A and B. A batch that shares B is one product of more rows.
    rung : str or int, optional
        As in `sgemm`. Default: the rung that `sgemm` uses for each problem.
    precision : str
        As in `sgemm`.
    batch_invariant : bool
        As in `sgemm`.
    split : str
        ``A``, ``B`` or ``AB``: the operands that `fastsgemm.split` split before. Precision "fp16x3" only.
    source : str
        ``matrix``, ``row`` or ``column``: the form of C in calls that write another array, because of `out` or a JAX
        array as C. A bias of each row of the product is a row. Default: calls without C, or that write it.
    symmetric : bool
        The results are symmetric. With layouts NT and TN, B is A transposed, in the same memory; with NN and TT,
        `sgemm` is called with ``symmetric=True``.
    dtypes : str
        The types of A and B, such as ``bf16xf32``; each is ``f32``, ``bf16`` or ``f16``.
    ragged : str
        ``M``, ``N`` or ``K``: the extent that calls of `grouped_mm` divide into `batch` groups. Default: none. Kernels
        depend on the mean size of the groups, so give M as a range if it varies.
    device : int or str
        CUDA's number of a device in this machine, or ``cuda:1``. For a named device, such as ``"NVIDIA H200"`` or
        ``"sm_90"``, kernels are compiled into the cache only, and no device is needed.
    stored : bool
        Raise an error if a kernel cannot be stored in the kernel cache, for later processes. A named device implies
        this.
    check : bool
        Only look whether the kernel cache or an installed package has the kernels: nothing is compiled, loaded or
        written, and NVRTC is not needed.
    progress : bool
        Show a progress bar on stderr.

    Returns
    -------
    Preparation

    Raises
    ------
    ShapeError
        An extent or a layout is out of range, `dtypes` or `ragged` is unknown, there are no problems or more than
        65536, or a symmetric one is not square or of groups.
    ArgumentError
        An argument is of a wrong type, or `split` or `source` has an unknown value, or one that groups have not.
    PrecisionError
        The precision is unknown, contradicts the rung or batch_invariant=True, or does not use `split`.
    DeviceError, ConfigError, CompileError
        The device does not exist, is unknown or cannot run the rung; a kernel that must be stored cannot be; NVRTC
        refuses a kernel.

    Notes
    -----
    Operands are assumed dense: leading dimensions without padding, and addresses that are multiples of 16 bytes, as
    arrays are allocated. A slice whose leading dimension or address allows only narrower loads may need another kernel.

    The written array is assumed row-major. A column-major one needs the kernels of the transposed problem: exchange M
    and N, the sides of `split`, row and column, and the layouts NN and TT. With a row-major `out`, a column-major C
    needs the kernels of a column.

    Examples
    --------
    >>> import fastsgemm
    >>> fastsgemm.prepare(range(1, 513), 4096, 4096, "NT")  # doctest: +SKIP
    >>> fastsgemm.prepare(range(1, 513), 4096, 4096, "NT", source="row")  # with a bias, as C  # doctest: +SKIP
    """
    if not arguments.is_one_of(source, ("", *SOURCES)):
        raise ArgumentError(f"source must be 'matrix', 'row' or 'column', or empty without `out`, got {source!r}")
    device = arguments.place(device)
    symmetric = arguments.switch("symmetric", symmetric)
    request, problems = asked(
        M, N, K, layout, batch, rung, precision, batch_invariant, split, symmetric, dtypes, ragged
    )
    start = time.perf_counter()
    check, bar = arguments.switch("check", check), Bar(arguments.switch("progress", progress))
    try:
        if check:
            device_info = device_at(device)
            needed = kernels_of(device_info, request, problems, source, bar)
            found = [kernel.stored(spec, device_info.arch) for spec in needed]
            missing, packed = found.count(None), sum(one.packed for one in found if one is not None)
            seconds = time.perf_counter() - start
            return Preparation(
                device_info.name, len(problems), len(needed), missing, False, seconds, checked=True, packed=packed
            )
        if isinstance(device, str) and not devices.is_present(device.lower()):
            device_info = device_at(device)
            cache.require_writable()  # the only place for the compiled code
            needed = kernels_of(device_info, request, problems, source, bar)
            new = sum(is_new for *_, is_new in compiled(needed, device_info.arch, bar, stored=True))
            name, loaded = device_info.name, False
        else:
            with naming_others():
                gpu = first_use.open_device(devices.ordinal(device))
            needed = kernels_of(gpu, request, problems, source, bar)
            new = load(gpu, needed, bar, stored)
            name, loaded = gpu.name, True
    finally:
        bar.end()
    # Not for a program that merely has PyTorch installed.
    pytorch = torch_library.prepare() if stored or not loaded or "torch" in sys.modules else ""
    folder = cache.folder() if stored or not loaded else None
    hidden = str(folder) if folder and folder.exists() and private_files.hidden_from_others(folder) else ""
    seconds = time.perf_counter() - start
    return Preparation(name, len(problems), len(needed), new, loaded, seconds, pytorch, hidden=hidden)


def asked(
    M: Any,
    N: Any,
    K: Any,
    layout: Any,
    batch: Any,
    rung: Any,
    precision: str,
    batch_invariant: bool,
    split: str,
    symmetric: bool,
    dtypes: str,
    ragged: str,
) -> tuple[Request, list[Problem]]:
    """Return the request and the problems that these arguments of `prepare` mean."""
    request = resolve(rung, None, precision, batch_invariant)
    request = of_call(request, _split(split, request.precision))
    types, divided = dtypes_of(dtypes), ragged_of(ragged)
    if divided and split:
        raise ArgumentError(f"groups take no operands that were split before, got {split!r}")
    return request, [
        checked(replace(problem, dtypes=types, ragged=divided))
        for problem in _problems(M, N, K, layout, batch, symmetric)
    ]


def _split(operands: str, precision: str) -> tuple[bool, bool]:
    """Return whether A and B were split before."""
    if not arguments.is_one_of(operands, _SPLITS):
        raise ArgumentError(f"split must be 'A', 'B' or 'AB', or empty where no operand was split, got {operands!r}")
    if operands and precision != "fp16x3":
        raise PrecisionError(f"split={operands!r} needs precision 'fp16x3', got {precision!r}")
    return "A" in operands, "B" in operands


def parse(text: str) -> tuple[range, range, range, str, range, str, str]:
    """Return the first arguments of `prepare` from a text such as ``1..8192,4096,4096,NT,x8``, or ``N`` for a square.

    They are M, N, K, layout, batch, types and what is ragged. A range includes both of its ends.

    Raises
    ------
    ShapeError
        The text has another form.
    """
    extents, layout, dtypes, count, divided = pieces(text)
    if len(extents) == 1 and ".." not in extents[0]:
        extents *= 3
    ends = [number.split("..") for number in (*extents, count)]
    digits = all(end.isascii() and end.isdecimal() and len(end) <= 10 for pair in ends for end in pair)
    if len(extents) != 3 or layout not in WORDS or dtypes not in DTYPES or not digits or max(map(len, ends)) > 2:
        raise ShapeError(
            f"a problem is written N or {WRITTEN}, such as 1..512,4096,4096,NT: a number may be a range, LAYOUT is one "
            f"of {', '.join(WORDS)}, and DTYPES such as bf16xf32; got {text!r}"
        )
    M, N, K, batch = (range(int(pair[0]), int(pair[-1]) + 1) for pair in ends)
    return M, N, K, layout, batch, dtypes, divided.extent


def _problems(M: Any, N: Any, K: Any, layout: Any, batch: Any, symmetric: bool) -> list[Problem]:
    extents = [_extents(name, values) for name, values in (("M", M), ("N", N), ("K", K), ("batch", batch))]
    expected = f"one of {', '.join(WORDS)}, or an iterable of them"
    layouts = [layout] if isinstance(layout, str) else list(arguments.several("layout", layout, expected))
    count = math.prod(len(values) for values in extents) * len(layouts)
    if not 1 <= count <= MOST_PROBLEMS:
        got = "more; divide them among several calls" if count else "none, because a range is empty"
        raise ShapeError(f"prepare takes 1 to {MOST_PROBLEMS} problems, got {got}")
    problems = [of(m, n, k, word, many) for m, n, k, many in product(*extents) for word in layouts]
    return [checked(replace(problem, symmetric=True)) for problem in problems] if symmetric else problems


def _extents(name: str, values: Any) -> list[int]:
    """Return the caller's extents, at most one more than is allowed."""
    single = arguments.integer(values)
    if single is not None:
        return [single]
    expected = f"an int from 1 to {MAX_EXTENT} or an iterable of them"
    extents = []
    for value in islice(arguments.several(name, values, expected), MOST_PROBLEMS + 1):
        extent = arguments.integer(value)
        if extent is None:
            raise ArgumentError(f"{name} must be {expected}, got {value!r}")
        extents.append(extent)
    return extents


def kernels_of(
    device: DeviceTraits, request: Request, problems: Sequence[Problem], source: str, bar: Bar
) -> dict[KernelSpec, int]:
    """Return the kernels that calls on dense operands need, with their dynamic shared memory in bytes."""
    needed: dict[KernelSpec, int] = {}
    bar.begin("choose", len(problems))
    for problem in problems:
        if problem.ragged and source not in ("", "matrix"):
            raise ArgumentError(f"groups have no source but a matrix, got {source!r}")
        if problem.ragged:
            plan = grouped.plan_of(device, request, problem, bool(source))
        else:
            plan = plan_of(device, of_problem(request, problem), operands(problem, source))
        for launch in plan.launches:
            needed.setdefault(launch.kernel, launch.shared_bytes)
        bar.step()
    return needed


def operands(problem: Problem, source: str) -> list[Meta]:
    """Return dense A, B, C and the source, if any."""
    a, b, c = variants.dense(problem)
    row, column = Meta((problem.N,), (1,)), Meta((problem.M, 1), (1, 1))
    sources: dict[str, list[Meta]] = {"": [], "matrix": [c], "row": [row], "column": [column]}
    return [a, b, c, *sources[source]]


def compiled(
    needed: Iterable[KernelSpec], arch: str, bar: Bar, stored: bool = False
) -> Iterator[tuple[KernelSpec, bytes, bool]]:
    """Yield each kernel with its machine code, and whether that was not stored."""
    kernels = list(needed)
    new = {spec: kernel.stored(spec, arch) is None for spec in kernels}
    bar.begin("compile", len(kernels))
    for spec, code in compiler.on_all_cores(lambda spec: kernel.cubin(spec, arch, stored), kernels):
        yield spec, code, new[spec]
        bar.step()


def load(gpu: Gpu, needed: Mapping[KernelSpec, int], bar: Bar, stored: bool = False) -> int:
    """Compile and load the missing ones of these kernels, given with their dynamic shared memory in bytes.

    Return how many were compiled.
    """
    missing, count = [spec for spec in needed if spec not in gpu.kernels], 0
    with devices.current(gpu):
        for spec, code, is_new in compiled(missing, gpu.arch, bar, stored):
            kernel.load(gpu, spec, needed[spec], code)
            count += is_new
    return count

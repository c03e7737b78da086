"""The switch: PyTorch's own products run on fastsgemm while it is on."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fastsgemm import rungs
from fastsgemm.errors import ArgumentError, DeviceError, MissingExtraError
from fastsgemm.rungs import Rung
from fastsgemm.torch.overrides import Override
from fastsgemm.torch.report import Report

# What can be replaced, and in which forms PyTorch has it. The other operators arrive as these: linear, matmul, einsum,
# multi_dot, tensordot, mv, vdot and inner, and what the compiler generates.
OPERATORS = {
    "mm": ("mm", "mm.out"),
    "addmm": ("addmm", "addmm.out", "addmm_"),
    "bmm": ("bmm", "bmm.out"),
    "baddbmm": ("baddbmm", "baddbmm.out", "baddbmm_"),
    "addmv": ("addmv", "addmv.out", "addmv_"),
    "dot": ("dot",),
}
_DEVICES = {"cuda": "CUDA", "cpu": "CPU"}  # and their dispatch keys

_lock = threading.RLock()
_current: Switch | None = None
_last: Switch | None = None
_outliving: list[Any] = []  # kernels of all switches, also of those that are off


class Switch:
    """One period during which PyTorch's products are replaced; `enable` returns it.

    Attributes
    ----------
    precision : str
    batch_invariant : bool
    only : tuple of str
        The operators that are replaced.
    device : str
    """

    def __init__(self, precision: str, rung: Rung | None, only: tuple[str, ...], device: str) -> None:
        self.precision, self.batch_invariant, self.only, self.device = precision, rung is not None, only, device
        self._rung = rung
        self._overrides: list[Override] = []
        self._library: Any = None

    def report(self) -> Report:
        """Return what was replaced and what was passed on so far."""
        return Report(line for override in self._overrides for line in override.lines())

    def _on(self) -> None:
        key = _DEVICES[self.device]
        forms = [form for operator in self.only for form in OPERATORS[operator]]
        if not self._overrides:
            keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
            for form in forms:
                original = _original(form, key, keys)
                self._overrides.append(Override(form, original, self.precision, self._rung, self.device))
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():  # PyTorch warns of every kernel that is overridden
            warnings.filterwarnings("ignore", message=".*[Oo]verrid", category=UserWarning)
            try:
                for override in self._overrides:
                    library.impl(override.name, override.function, key, allow_override=True)
                    # Another thread may be on its way to this kernel when it is taken back: it must outlive that.
                    _outliving.append(torch.library.get_kernel(f"aten::{override.name}", key))
            except BaseException:
                library._destroy()  # all or nothing
                raise
        self._library = library

    def _off(self) -> None:
        self._library._destroy()
        self._library = None

    def __repr__(self) -> str:
        state = "off" if self._library is None else "on"
        how = f"precision {self.precision!r}" + (", batch-invariant" if self.batch_invariant else "")
        return f"<Switch {state}: {', '.join(self.only)} on {self.device}, {how}>"


def _original(form: str, key: str, keys: Any) -> Any:
    kernel = torch.library.get_kernel(f"aten::{form}", key)

    def original(*given: Any, **options: Any) -> Any:
        return kernel.call_boxed(keys, *given, **options)

    return original


def enable(
    precision: str = "ieee",
    batch_invariant: bool = False,
    only: Collection[str] | None = None,
    *,
    device: str = "cuda",
) -> Switch:
    """Make PyTorch's float32 products run on fastsgemm, in the whole process and in all its threads.

    Replaced are ``mm``, ``addmm``, ``bmm``, ``baddbmm``, ``addmv`` and ``dot``, with their forms that write to ``out``
    or in place. All other products of PyTorch arrive as these: ``linear``, ``matmul``, ``einsum``, ``mv``, their
    gradients, and what ``torch.compile`` generates. Every call that is not about float32 on CUDA goes to the kernel
    that was there before; `report` says which and why.

    If the switch is on already, it is turned over to these settings.

    Parameters
    ----------
    precision : str
        ``"ieee"`` or ``"fp16x3"``, as of `fastsgemm.sgemm`.
    batch_invariant : bool
        As of `fastsgemm.sgemm`: a row of the result does not depend on how many other rows there are, nor a product on
        the batch that it is in. Precision "ieee" only.
    only : collection of str, optional
        The operators to replace, from `OPERATORS`. Default: all.
    device : str
        ``"cuda"``, or ``"cpu"`` to replace the products of CPU tensors. That is for tests on machines without a GPU:
        what multiplies host arrays, see `fastsgemm.sgemm`, then multiplies them.

    Returns
    -------
    Switch

    Raises
    ------
    MissingExtraError
        PyTorch is older than 2.9, which cannot call the kernel that it had before.
    ArgumentError
        `only` or `device` has an unknown name.
    PrecisionError
        There is no such precision, or it is not batch-invariant.
    DeviceError
        PyTorch has no CUDA device.

    Notes
    -----
    **TF32.** If the program allows TF32 (``torch.backends.cuda.matmul.fp32_precision = "tf32"``, ``allow_tf32`` or
    ``torch.set_float32_matmul_precision("high")``), its products are passed on to cuBLAS, because that is what it asked
    for. This is read at every call.

    **CUDA graphs.** A problem that is met for the first time while a stream is captured cannot be compiled there, and
    is passed on. Warm up before the capture, as PyTorch advises anyway.
    """
    with _lock:
        new = _checked(precision, batch_invariant, only, device)
        _turn(new)
        return new


def disable() -> None:
    """Give PyTorch its own kernels back. Nothing happens if the switch is off."""
    with _lock:
        _turn(None)


@contextmanager
def enabled(
    precision: str = "ieee",
    batch_invariant: bool = False,
    only: Collection[str] | None = None,
    *,
    device: str = "cuda",
) -> Iterator[Switch]:
    """Do `enable` for a block of code, and restore what was there before. It concerns all threads meanwhile."""
    with _lock:
        previous = _current
        new = _checked(precision, batch_invariant, only, device)
        _turn(new)
    try:
        yield new
    finally:
        with _lock:
            _turn(previous)


def report() -> Report:
    """Return what the switch, which may be off by now, replaced and passed on since it was last turned on."""
    return Report(()) if _last is None else _last.report()


def _turn(new: Switch | None) -> None:
    global _current, _last
    previous, _current = _current, None
    if previous is not None:
        previous._off()
    if new is None:
        return
    try:
        new._on()
    except BaseException:
        if previous is not None:
            previous._on()
            _current = previous
        raise
    _current = _last = new


def _checked(precision: str, batch_invariant: bool, only: Collection[str] | None, device: str) -> Switch:
    if not hasattr(torch.library, "get_kernel"):
        raise MissingExtraError(
            f"fastsgemm.torch.enable needs PyTorch 2.9 or later, got {torch.__version__}: older ones cannot call the "
            "kernel that they had before; torch.ops.fastsgemm.sgemm works there"
        )
    rungs.precision_of(None, precision)
    rung = rungs.batch_invariant(None, None, precision)[0] if batch_invariant else None
    if device not in _DEVICES:
        raise ArgumentError(f"device must be one of {', '.join(_DEVICES)}, got {device!r}")
    chosen = tuple(OPERATORS) if only is None else (only,) if isinstance(only, str) else tuple(only)
    for operator in chosen:
        if operator not in OPERATORS:
            raise ArgumentError(f"only must name operators of {', '.join(OPERATORS)}, got {operator!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise DeviceError("PyTorch sees no CUDA device (torch.cuda.is_available() is False)")
    return Switch(precision, rung, chosen, device)

"""The switch: PyTorch's own products run on fastsgemm while it is on."""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from fastsgemm import arguments
from fastsgemm.errors import ArgumentError, DeviceError, MissingExtraError
from fastsgemm.request import Request, resolve
from fastsgemm.switches.periods import Block, Periods
from fastsgemm.torch import cpp_launcher
from fastsgemm.torch.call_report import Report
from fastsgemm.torch.grouped_override import GroupedOverride
from fastsgemm.torch.overrides import Override

# The operators that can be replaced, with PyTorch's overloads of each. Others are dispatched as these: linear, matmul,
# einsum, multi_dot, tensordot, mv, vdot and inner, and what the compiler generates.
# The overloads named dtype, which not every PyTorch has, multiply 16-bit factors and may have a float32 result.
OPERATORS = {
    "mm": ("mm", "mm.out", "mm.dtype", "mm.dtype_out"),
    "addmm": (
        *("addmm", "addmm.out", "addmm_", "addmm.dtype", "addmm.dtype_out"),
        *("_addmm_activation", "_addmm_activation.out"),  # the fast path of nn.TransformerEncoderLayer
    ),
    "bmm": ("bmm", "bmm.out", "bmm.dtype", "bmm.dtype_out"),
    "baddbmm": ("baddbmm", "baddbmm.out", "baddbmm_", "baddbmm.dtype", "baddbmm.dtype_out"),
    "addmv": ("addmv", "addmv.out", "addmv_"),
    "dot": ("dot",),
    "grouped_mm": ("_grouped_mm",),
}
_DEVICES = {"cuda": "CUDA", "cpu": "CPU"}  # and their dispatch keys
_LAUNCHER_DEVICES = ("cuda",)  # whose products the launcher launches; NumPy multiplies on the host

# Python's kernels of all recent switches: when one is unregistered, another thread that is about to call it may be
# waiting for the GIL. It gets the GIL long before the switch has been turned another hundred times.
_outliving: deque[Any] = deque(maxlen=2048)


class Switch:
    """One period during which PyTorch's products are replaced; `enable` and `enabled` return it.

    Attributes
    ----------
    precision : str
    batch_invariant : bool
    only : tuple of str
        The operators that are replaced.
    device : str
    """

    def __init__(self, request: Request, only: tuple[str, ...], device: str) -> None:
        self._request, self.only, self.device = request, only, device
        self.precision, self.batch_invariant = request.precision, request.batch_invariant
        # Whether the launcher's kernels replace PyTorch's, or Python's do.
        self._launched = device in _LAUNCHER_DEVICES and cpp_launcher.load()
        self._key = _DEVICES[device]
        self._overrides = [
            (GroupedOverride if form == "_grouped_mm" else Override)(form, request, device) for form in self._forms()
        ]
        # Those whose kernels are Python's.
        self._slow = [each for each in self._overrides if not self._launched or isinstance(each, GroupedOverride)]
        self._library: Any = None  # of Python's kernels, while they are registered
        self._native_overrides: dict[str, Any] = {}  # PyTorch's, when the kernels were registered

    def _forms(self) -> list[str]:
        return [
            form
            for operator in self.only
            for form in OPERATORS[operator]
            if _exists(form, self._key) and (".dtype" not in form or self._request.replaces_halves)
        ]

    def report(self) -> Report:
        """Return what was replaced and what was passed on so far.

        Returns
        -------
        Report
        """
        if self is periods.current and self._launched:
            cpp_launcher.collect()
        slower = "" if self._launched or self.device not in _LAUNCHER_DEVICES else cpp_launcher.reason()
        return Report((line for override in self._overrides for line in override.lines()), slower, _unseen())

    def _on(self) -> None:
        """Register the kernels. If that fails, nothing has changed."""
        self._register()
        if self._launched:
            fast = [override for override in self._overrides if override not in self._slow]
            try:
                cpp_launcher.on(fast, self._key, self._request.rounds)
            except BaseException:
                self._unregister()
                raise
        self._native_overrides = _native_overrides()

    def _register(self) -> None:
        """Register Python's kernels."""
        for override in self._slow:
            override.original = _Original(override, self._key)
        library = torch.library.Library("aten", "IMPL")
        with nullcontext() if _outliving else _without_warning():
            try:
                for override in self._slow:
                    library.impl(override.name, override.replacement, self._key, allow_override=True)
                    _outliving.append(torch.library.get_kernel(f"aten::{override.name}", self._key))
                    if isinstance(override, GroupedOverride):
                        torch.library.register_fake(
                            "aten::_grouped_mm", override.fake, lib=library, allow_override=True
                        )
                        _outliving.append(torch.library.get_kernel("aten::_grouped_mm", "Meta"))
            except BaseException:
                library._destroy()  # all or nothing
                raise
        self._library = library

    def _unregister(self) -> None:
        self._library._destroy()
        self._library = None

    def _off(self) -> None:
        self._unregister()
        if self._launched:
            cpp_launcher.off()

    def _renew(self) -> None:
        """Register the kernels again, because a kernel below them was unregistered by its owner."""
        with periods.lock:
            if self is periods.current:
                self._off()
                _renew_native_overrides(self._native_overrides)
                self._on()

    def _release(self) -> None:
        """Drop the decisions but what `report` needs, because the switch will not be on again."""
        for override in self._overrides:
            override.release()

    def __repr__(self) -> str:
        settings = f"{', '.join(self.only)} on {self.device}, {self._request.arithmetic}"
        return f"<Switch {'on' if self is periods.current else 'off'}: {settings}>"


def _unseen() -> str:
    """Describe the products of this process that bypass the dispatcher and hence the switch."""
    wrapper = getattr(sys.modules.get("torch._inductor.config"), "cpp_wrapper", False)
    packages = "torch._inductor.package.package" in sys.modules
    code = " and ".join(["inductor's C++ wrapper"] * bool(wrapper) + ["AOTInductor"] * packages)
    if not code:
        return ""
    return f"products in code of {code} are neither replaced nor counted: it calls PyTorch's kernels itself"


def _exists(form: str, key: str) -> bool:
    """Return whether PyTorch has a kernel of this overload; those with a dtype are for CUDA only."""
    name = f"aten::{form}"
    return torch._C._dispatch_has_kernel(name) and torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, key)


def _renew_current() -> None:
    """Call `Switch._renew` of the switch that is on."""
    if periods.current is not None:
        periods.current._renew()


class _Original:
    """The kernel of an operator before ours, called with the operator's arguments."""

    def __init__(self, override: Override, key: str) -> None:
        self._override = override  # not the switch, which `_outliving` would keep
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        self._kernel = partial(torch.library.get_kernel(f"aten::{override.name}", key).call_boxed, keys)

    def __call__(self, *operands: Any, **keywords: Any) -> Any:
        try:
            return self._kernel(*operands, **keywords)
        except RuntimeError as error:
            if "SafeKernelFunction has been invalidated" not in str(error):
                raise
        _renew_current()
        return self._override.original._kernel(*operands, **keywords)


# PyTorch 2.12 and later override some operators themselves, from Python. `torch.backends.python_native` unregisters
# these overrides and registers them again; each then keeps the kernel that it finds, which may be ours.


def _native_overrides() -> dict[Any, Any]:
    """Return PyTorch's own registered overrides, by operator and dispatch key."""
    return dict(getattr(sys.modules.get("torch._native.registry"), "_aten_override_libs", {}))


def _renew_native_overrides(previous: dict[Any, Any]) -> None:
    """Register again PyTorch's overrides that are not in `previous`: each may hold a kernel of ours."""
    registry: Any = sys.modules.get("torch._native.registry")
    for key, library in _native_overrides().items():
        if previous.get(key) is not library:
            registry._register_overrides_from_graph(*key, registry._graphs[key], filter_state=registry._filter_state)


@contextmanager
def _without_warning() -> Iterator[None]:
    """Ignore PyTorch's warning about the first overridden kernel of a process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Oo]verrid", category=UserWarning)
        yield


def _turn(new: Switch | None) -> None:
    """Replace the registered kernels by those of the new switch, if any. If that fails, the old ones stay."""
    previous = periods.current
    # The launcher exchanges the kernels of one device itself, so that no call is missed in between; but not where an
    # override of PyTorch's holds them.
    stays = (
        previous is not None and new is not None and previous._launched and new._launched
        and previous.device == new.device and previous._native_overrides == _native_overrides()
    )  # fmt: skip
    if previous is not None and stays:
        previous._unregister()
    elif previous is not None:
        previous._off()
        periods.current = None
        _renew_native_overrides(previous._native_overrides)
    if new is not None:
        try:
            new._on()
        except BaseException:
            if previous is not None and stays:
                previous._register()
            elif previous is not None:
                previous._on()
                periods.current = previous
            raise
    periods.current = new
    if previous is not None and not periods.has(previous):
        previous._release()


periods: Periods[Switch] = Periods(_turn)
cpp_launcher.serve_switch(_renew_current)


def enable(
    precision: str = "ieee",
    batch_invariant: bool = False,
    only: Collection[str] | None = None,
    *,
    device: str = "cuda",
) -> Switch:
    """Make PyTorch's float32 products run on fastsgemm, in the whole process and in all its threads.

    Replaced are ``mm``, ``addmm``, ``bmm``, ``baddbmm``, ``addmv`` and ``dot``, with their forms that write to ``out``
    or in place, and ``grouped_mm``. All other products of PyTorch arrive as these: ``linear``, ``matmul``, ``einsum``,
    ``mv``, ``_foreach_mm``, their gradients, and what ``torch.compile`` generates. With precision "fp16x3" or
    `batch_invariant`, so are products of BF16 or FP16 tensors that are asked for with ``out_dtype=torch.float32``,
    where PyTorch has them; with both, those whose result is BF16 or FP16, too, as models in these types call them: the
    sum is as accurate as in float32, and rounded once. Every other call goes to PyTorch's own kernel; `report` says
    which and why.

    If the switch is on already, these settings replace the old ones. Within a block of `enabled`, they hold until the
    end of that block. While another thread is in such a block, they hold from the end of that block on.

    Parameters
    ----------
    precision : str
        ``"ieee"`` or ``"fp16x3"``, as in `fastsgemm.sgemm`.
    batch_invariant : bool
        As in `fastsgemm.sgemm`: a row of the result does not depend on how many other rows there are, nor a product on
        the batch that it is in.
    only : collection of str, optional
        The operators to replace, from `OPERATORS`. Default: all.
    device : str
        ``"cuda"``, or ``"cpu"`` to replace the products of CPU tensors, for tests on machines without a GPU: they are
        multiplied as `fastsgemm.sgemm` multiplies host arrays.

    Returns
    -------
    Switch

    Raises
    ------
    MissingExtraError
        PyTorch is older than 2.9 and cannot call an overridden kernel, so nothing could be passed on.
    ArgumentError
        `only` or `device` has an unknown name, or `batch_invariant` is neither true nor false.
    PrecisionError
        The precision is unknown or not batch-invariant.
    DeviceError
        PyTorch has no CUDA device.

    Notes
    -----
    **TF32.** If the program allows TF32 (``torch.backends.cuda.matmul.fp32_precision = "tf32"``, ``allow_tf32`` or
    ``torch.set_float32_matmul_precision("high")``), its products are passed on to cuBLAS, as it asked. The
    setting is read at every call. ``fp32_precision = "bfx9"`` is passed on, too, on devices of compute capability 10.x;
    others lack it, and `report` says that these products were computed with the switch's precision.

    **Threads.** A product that runs while the settings change has the old settings or the new ones. But PyTorch does
    not lock its table of kernels during registration. So turn the switch on before threads begin to multiply, rather
    than in each of them.

    **The launcher.** Repeated products are launched by C++, which is compiled on first use, once per version of
    PyTorch, in about ten seconds. Without a C++ compiler, one warning says so, and each product takes some microseconds
    more in Python. ``FASTSGEMM_LAUNCHER=off`` disables the launcher.
    """
    new = _checked(precision, batch_invariant, only, device)
    periods.set(new)
    return new


def disable() -> None:
    """Restore PyTorch's own kernels. Nothing happens if the switch is off.

    Within a block of `enabled` they are restored until the end of that block. While another thread is in such a block,
    they are restored at its end.
    """
    periods.set(None)


def enabled(
    precision: str = "ieee",
    batch_invariant: bool = False,
    only: Collection[str] | None = None,
    *,
    device: str = "cuda",
) -> AbstractContextManager[Switch]:
    """Do `enable` for a block of code; afterwards the previous settings hold again.

    It affects all threads meanwhile. Blocks of several threads may overlap: the settings of the block that began last
    hold; when it ends, those of the latest block that has not ended.

    Parameters
    ----------
    precision, batch_invariant, only, device
        See `enable`.

    Returns
    -------
    context manager
        Entering it returns the `Switch`. It can also decorate a function.

    Raises
    ------
    MissingExtraError, ArgumentError, PrecisionError, DeviceError
        See `enable`. Nothing changes then.
    """
    return Block(periods, partial(_checked, precision, batch_invariant, only, device))


def report() -> Report:
    """Return what the switch replaced and passed on since it was last turned on, even if it is off now.

    Returns
    -------
    Report
        Without lines if the switch has never been on.
    """
    return Report(()) if periods.last is None else periods.last.report()


def _checked(precision: str, batch_invariant: bool, only: Collection[str] | None, device: str) -> Switch:
    if not hasattr(torch.library, "get_kernel"):
        raise MissingExtraError(
            f"fastsgemm.torch.enable needs PyTorch 2.9 or later, got {torch.__version__}, which cannot call a kernel "
            "that was overridden. Call fastsgemm.sgemm or torch.ops.fastsgemm.sgemm instead, or update PyTorch"
        )
    request = resolve(precision=precision, batch_invariant=batch_invariant)
    if not arguments.is_one_of(device, _DEVICES):
        raise ArgumentError(f"device must be one of {', '.join(_DEVICES)}, got {device!r}")
    names = OPERATORS if only is None else (only,) if isinstance(only, str) else only
    known = ", ".join(OPERATORS)
    chosen = tuple(arguments.several("only", names, f"a collection of operators of {known}"))
    for operator in chosen:
        if not arguments.is_one_of(operator, OPERATORS):
            raise ArgumentError(f"only must name operators of {known}, got {operator!r}")
    # `torch.cuda.is_available` would initialise CUDA, which a child that is forked later could then not use.
    if device == "cuda" and torch.cuda.device_count() == 0:
        raise DeviceError(
            f"PyTorch {torch.__version__} sees no CUDA device: torch.cuda.device_count() is 0. Install a build for "
            "CUDA and look whether nvidia-smi finds a device; or, for a test without one, choose device 'cpu' "
            "(on the command line: --device cpu), which replaces the products of CPU tensors"
        )
    return Switch(request, chosen, device)

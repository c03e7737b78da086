"""The launcher: products that were computed before are launched from C++, below PyTorch's dispatcher, without Python.

The C++ of ``host_src`` is compiled once per version of PyTorch, see `fastsgemm.jit.host_compiler`. It caches
decisions by operands, counts calls, and hands new ones to `miss`. Without it, Python does every call.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastsgemm.call import arrays
from fastsgemm.call.driver import LoadedPlan, case_mask
from fastsgemm.call.launches import Arguments
from fastsgemm.errors import DeviceError
from fastsgemm.geometry.tensor_map import END
from fastsgemm.gpu import when_forgotten
from fastsgemm.jit import host_compiler, torch_library
from fastsgemm.request import Request
from fastsgemm.torch import execution

if TYPE_CHECKING:
    from fastsgemm.torch.overrides import Override

_NAME = "fastsgemm_launcher"  # of the extension module

_lock = threading.RLock()
_module: Any = None
_reason: str | None = None  # why there is no launcher; None if there is one, or before the first attempt
_overrides: dict[int, Override] = {}  # of the switch that is on, by the number of their form
_renew_switch: Callable[[], None] | None = None  # see `serve_switch`
_operator: Callable[..., tuple[Tensor, LoadedPlan | None]] | None = None  # see `serve`


def load() -> bool:
    """Compile the launcher on first use, load it, and return whether that worked; `reason` says why not."""
    global _module, _reason
    with _lock:
        if _module is None and _reason is None:
            try:
                module = _load()
                module.take_operator()
            except RuntimeError as error:  # DeviceError among them
                _reason = str(error).partition("\n")[0]
                torch_library.warn_of(error)
            else:
                _module = module
                when_forgotten.append(forget_plans)
                arrays.known.update(dict.fromkeys((Tensor, torch.nn.Parameter), module.sgemm))
        return _module is not None


def reason() -> str:
    """Return why calls go through Python; empty if they do not, or if there was no call yet."""
    return _reason or ""


def _load() -> Any:
    pytorch = torch_library.installed()
    if pytorch is None:
        raise DeviceError(f"{Path(torch.__file__).parent} has no version.py, as PyTorch's builds have")
    torch_library.check(pytorch)
    module = host_compiler.load(torch_library.library(pytorch), pytorch.launcher, _imported)
    _connect(module)
    return module


def _connect(module: Any) -> None:
    """Give the launcher the libraries of the driver and of PyTorch's streams, and its callbacks."""
    cuda = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"  # absent in a build for the CPU
    libraries = ("libcuda.so.1", str(cuda)) if cuda.exists() else (None, None)
    module.set_up(*libraries, miss, execution.prepare_to_pass_on, _renew)


def _imported(path: Path) -> Any:
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(path))
    spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        hint = f"with a C++ compiler at hand, remove {path}, and it is compiled again"
        raise DeviceError(f"the compiled launcher cannot be loaded: {error}; {hint}") from error
    return module


# For the switch.


def on(overrides: Sequence[Override], key: str, rounds: bool) -> None:
    """Register the kernels of these overrides in place of the current ones; a failure changes nothing.

    `rounds` says whether products of 16-bit factors are replaced whose result has their type.
    """
    forms = {_module.FORMS.index(override.name): override for override in overrides}
    before = _replace_overrides(forms)
    try:
        _module.on(list(forms), key, rounds)
    except BaseException:
        _replace_overrides(before)
        raise


def off() -> None:
    """Take the kernels back."""
    _module.off()
    _replace_overrides({})


def collect() -> None:
    """Add what was launched and passed on without Python to the counts of the overrides' decisions."""
    for form, override in _overrides.items():
        override.count(_module.counts(form, False))


def _replace_overrides(overrides: dict[int, Override]) -> dict[int, Override]:
    """Install these overrides, collect and clear the counts of the previous ones, and return those.

    They are replaced before their tables are emptied, so that a decision made meanwhile is not kept.
    """
    global _overrides
    before, _overrides = _overrides, overrides
    for form, override in before.items():
        override.count(_module.counts(form, True))
    return before


def miss(form: int, a: Tensor, b: Tensor, c: Any, out: Any, alpha: Any, beta: Any, extra: Any) -> tuple[Any, Any]:
    """Handle a call that the launcher has no decision for.

    Returns
    -------
    Tensor or None
        None: PyTorch's own kernel is to be called.
    tuple or None
        What to do with further calls like it: the decision's number, whether they are passed on, the plan to launch or
        None, and the shape of a new result or None.
    """
    if _module.FORMS[form] == "fastsgemm::sgemm":
        assert _operator is not None
        precision, batch_invariant, symmetric, C = extra
        options = {"precision": precision, "batch_invariant": batch_invariant, "symmetric": symmetric}
        product, loaded = _operator(a, b, alpha, beta, C, **options)
        return product, None if loaded is None else (0, False, plan_of(loaded), product.shape)
    override = _overrides.get(form)
    if override is None:  # the switch was turned off meanwhile
        return None, None
    if override.is_full:
        override.count(_module.counts(form, True))
        override.release()
    result, decision = override.multiply(a, b, c, out, alpha, beta, extra)
    plan = None if decision.plan is None else plan_of(decision.plan)
    return result, (decision.number, bool(decision.reason), plan, decision.shape)


# For `fastsgemm.sgemm` and the operator.


def epoch() -> int | None:
    """Return the count of times plans were forgotten, which `learn` compares; None before the launcher is loaded."""
    return None if _module is None else int(_module.epoch())


def learn(request: Request, A: Any, B: Any, C: Any, plan: LoadedPlan, shape: Sequence[int], epoch: int | None) -> None:
    """Let later calls of `fastsgemm.sgemm` with operands like these launch a plan.

    Nothing is learnt if plans were forgotten since `epoch` was read, because this one may be outdated; nor by the call
    that loads the launcher.
    """
    if load() and epoch is not None:
        _module.learn(request, A, B, C, (0, False, plan_of(plan), tuple(shape)), epoch)


def serve_switch(renew: Callable[[], None]) -> None:
    """Let this function register the switch's kernels again after a kernel below them was unregistered."""
    global _renew_switch
    _renew_switch = renew


def _renew() -> None:
    if _renew_switch is not None:
        _renew_switch()


def serve(operator: Callable[..., tuple[Tensor, LoadedPlan | None]]) -> None:
    """Let this function handle calls of ``torch.ops.fastsgemm.sgemm`` that the launcher does not know."""
    global _operator
    _operator = operator


def forget_plans() -> None:
    """Let every problem be prepared again at its next call, as after tuning."""
    if _module is not None:
        for form in range(len(_module.FORMS)):
            override = _overrides.get(form)
            counts = _module.counts(form, True)
            if override is not None:
                override.count(counts)


def plan_of(loaded: LoadedPlan) -> Any:
    """Return the launcher's form of a loaded plan."""
    if loaded.launcher is None:
        plan, gpu = loaded.plan, loaded.gpu
        arguments = Arguments(plan.launches)
        launches = [
            (
                launch.kernel.name, int(kernel.handle), (*launch.grid, 1, 1)[:3], launch.threads, launch.shared_bytes,
                launch.early and gpu.launches_early, case_mask(launch), slots,
            )
            for launch, kernel, slots in zip(plan.launches, loaded.kernels, arguments.slots, strict=True)
        ]  # fmt: skip
        loaded.launcher = _module.plan(
            int(gpu.context), gpu.ordinal, plan.K, plan.bounds, arguments.words, arguments.offsets, launches,
            plan.workspace, loaded.workspace_mask, END.bit_length() - 1 if loaded.has_tensor_maps else 64,
        )  # fmt: skip
    return loaded.launcher

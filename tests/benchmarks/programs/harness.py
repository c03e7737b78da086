"""Steps of a program with PyTorch's own products and with those of each precision, in turns in one process.

The speed of a host drifts by a half within a minute, so times that were not taken in turns do not compare.
"""

import math
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from types import MappingProxyType

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import fastsgemm.torch
from fastsgemm.measure import stopwatch
from fastsgemm.torch.kernel_switch import OPERATORS

PRECISIONS = ("ieee", "fp16x3")
PRODUCTS = ("PyTorch", "null", *PRECISIONS)  # null: PyTorch's own again, whose distance from 1 is the error
TOLERANCE = 1e-4  # of results and gradients, relative to their norm
LARGEST_ERROR = 2e-5  # of an element of a product, relative to the product of the absolute values
NEGLIGIBLE = 1e-30  # error bounds are not relative to less
WARM_UP = 2  # steps at the begin of a turn, because a switch that was just turned on has yet to meet each call
TURNS = 15
DEVICE_TURNS = 3  # in which the time on the device is taken
BUSY = 0.9  # of a step's time: where the device works less, the host is the limit
CYCLES_PER_MS = 2_000_000  # as many as the clock of a fast device makes
WARMED = 3  # steps after the first: torch.compile(mode="reduce-overhead") captures its graphs in them


@contextmanager
def products(name, device):
    """Give a program these products.

    To turn the switch on is some milliseconds of Python, after which the host's caches hold nothing of the program. So
    that the first steps are as slow for PyTorch's own products, the switch goes on and off before them.
    """
    replaced = name in PRECISIONS
    with fastsgemm.torch.enabled(name if replaced else "ieee", device=device) as switch:
        if replaced:
            yield switch
    if not replaced:
        yield None


def turns(number, kinds=PRODUCTS):
    """Yield turns: each kind of products once, in an order that is drawn, but the same in every run."""
    for order in islice(stopwatch.turns(len(kinds)), number):
        yield [kinds[place] for place in order]


def in_turns(steps, device, seconds):
    """Return the median wall time of each step in ms, of `seconds` for all of them."""
    clock = stopwatch.WallClock(partial(wait, device), warm_up=WARM_UP)
    times = clock.medians([*steps.values()], seconds / len(steps))
    return dict(zip(steps, times, strict=True))


def training(model, loss, lr=1e-4):
    """Return a training step, a function that returns the model with its gradients.

    Parameters
    ----------
    model : torch.nn.Module
    loss : callable
        Computes the loss, without arguments.
    lr : float
    """
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr, fused=True)

    def step():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        return model

    return step


def measure(what, build, device, seconds, tolerance=TOLERANCE, apart=False):
    """Measure a case of a program.

    Parameters
    ----------
    what : str
        What the case is.
    build : callable
        A function of the device that builds the case and returns its step. A step returns a tensor, or a model that has
        gradients; those of the first step are compared.
    device : str
        ``cuda`` or ``cpu``.
    seconds : float
        For the timed steps of all turns together, from which the number of steps of a turn follows. There is at least
        one, even if that takes longer.
    tolerance : float
    apart : bool
        Time each kind of products on a build of its own, because what torch.compile makes depends on the switch. Else
        all are timed on the first build: two builds of one program differ by up to a tenth where the host is the limit.

    Returns
    -------
    dict
        ``what``; the ``steps`` of a turn; by kind of products the medians of a step's wall time ``ms`` and of
        ``device_ms``; what is the ``limit``, "host", "device" or "unknown"; and by precision the ``difference`` of the
        results, the largest ``error`` of an element of a product, the ``share`` of FLOPs that were replaced in the
        first step, ``calls``, and what was ``passed_on`` and why.

    Raises
    ------
    ValueError
        Results differ by more than the tolerance, or a product has an error above `LARGEST_ERROR`.
    """
    began = time.perf_counter()
    measured = {"what": what, "difference": {}, "error": {}, "share": {}, "calls": {}, "passed_on": {}}
    steps = {}
    for name in ("PyTorch", *PRECISIONS):
        torch.manual_seed(0)
        step = build(device)
        if name == "PyTorch":
            with torch.compiler.set_stance("force_eager"), _Recorder() as met:
                plain = _tensors(step())
        else:
            met.prepare(name, device)
            # Compiled code does not show its products.
            with products(name, device) as switch, nullcontext() if apart else _Kept() as kept:
                result = step()
            error = 0.0 if kept is None else kept.largest_error()
            difference = _difference(_tensors(result), plain)
            if not difference <= tolerance:
                raise ValueError(f"{what}: {name} differs by {difference:.1e}, more than {tolerance:.1e}")
            if not error <= LARGEST_ERROR:
                raise ValueError(f"{what}: a product of {name} errs by {error:.1e}, more than {LARGEST_ERROR:.1e}")
            report = switch.report()
            measured["difference"][name], measured["error"][name] = difference, error
            measured["share"][name], measured["calls"][name] = report.share, report.calls
            measured["passed_on"][name] = sorted({f"{line.operator}: {line.reason}" for line in report.passed_on})
            del result, kept
        steps[name] = step if apart else steps.get("PyTorch", step)
        with products(name, device):
            for _ in range(WARMED):
                steps[name]()
    steps["null"] = steps["PyTorch"]
    del plain, step
    ready = time.perf_counter()
    measured |= _times(steps, device, seconds)
    measured["setup_s"], measured["timing_s"] = ready - began, time.perf_counter() - ready
    return measured


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def _times(steps, device, seconds):
    """Time the steps in turns; return the medians, and what is the limit with PyTorch's own products."""
    with products("PyTorch", device):
        for _ in range(WARM_UP):
            steps["PyTorch"]()
        first_ms = wall_ms(steps["PyTorch"], 1, device)
    repeated = max(1, round(1e3 * seconds / (TURNS * len(PRODUCTS)) / first_ms))
    wall, busy, ahead = ({name: [] for name in PRODUCTS} for _ in range(3))
    for number, turn in enumerate(turns(TURNS)):
        for name in turn:
            with products(name, device):
                for _ in range(WARM_UP):
                    steps[name]()
                wall[name].append(wall_ms(steps[name], repeated, device))
                if device == "cuda" and number < DEVICE_TURNS:
                    device_ms, launched_ahead = _device_ms(steps[name], wall[name][-1])
                    busy[name].append(device_ms)
                    ahead[name].append(launched_ahead)
    ms = {name: statistics.median(times) for name, times in wall.items()}
    device_ms = {name: statistics.median(times) for name, times in busy.items() if times}
    limit = limited_by(ms["PyTorch"], device_ms.get("PyTorch"), all(ahead["PyTorch"]))
    return {"steps": repeated, "ms": ms, "device_ms": device_ms, "limit": limit}


def limited_by(ms, device_ms, launched_ahead):
    """Return what limits a step: "host", "device" or, where the time on the device is not known, "unknown".

    Parameters
    ----------
    ms : float
        The wall time.
    device_ms : float or None
        The time on the device, or an upper bound of it.
    launched_ahead : bool
        Whether it is the time on the device.
    """
    if device_ms is None:
        return "unknown"
    if device_ms < BUSY * ms:
        return "host"
    return "device" if launched_ahead else "unknown"


def wall_ms(step, number, device):
    """Return the time of a step, from some steps one after the other."""
    wait(device)
    began = time.perf_counter()
    for _ in range(number):
        step()
    wait(device)
    return 1e3 * (time.perf_counter() - began) / number


def _device_ms(step, wall_ms):
    """Return the time between two events around a step, and whether all of it was launched before the device began.

    The device sleeps until the host has launched the step, so the host's time is not in it. A program that itself waits
    for the device, or launches more than its queue holds, isn't launched ahead: the time is then an upper bound.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(int(CYCLES_PER_MS * (1.5 * wall_ms + 1)))
    begin.record()
    step()
    end.record()
    ahead = not begin.query()
    torch.cuda.synchronize()
    return begin.elapsed_time(end), ahead


def _tensors(result):
    """Return copies of what is compared: later steps overwrite it."""
    if isinstance(result, torch.nn.Module):
        return [p.grad.clone() for p in result.parameters() if p.grad is not None]
    return [result.clone()]


def _difference(tensors, plain):
    """Return the norm of the difference of all tensors together, relative to that of the plain ones."""
    pairs = zip(tensors, plain, strict=True)
    squares = [
        ((ours.double() - theirs.double()).square().sum(), theirs.double().square().sum()) for ours, theirs in pairs
    ]
    different, whole = (float(sum(column)) for column in zip(*squares, strict=True))
    return math.sqrt(different / whole)


class _Recorder(TorchDispatchMode):
    """Meets the products of a program, to compile the kernels of all of them on all cores, not one after the other."""

    def __init__(self):
        super().__init__()
        self._calls = {}

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        given = arguments, named or {}
        if function._schema.name.removeprefix("aten::").removesuffix("_") in OPERATORS:
            shown = tree_map_only(torch.Tensor, lambda x: (x.shape, x.stride(), x.dtype), given)
            self._calls.setdefault(repr((function, shown)), (function, tree_map_only(torch.Tensor, _on_meta, given)))
        return function(*given[0], **given[1])

    def prepare(self, precision, device):
        """Call each product once, on operands of the same shapes and strides."""

        def call(function, given):
            arguments, named = tree_map_only(torch.Tensor, partial(_alike, device=device), given)
            function(*arguments, **named)

        with products(precision, device), ThreadPoolExecutor() as pool:
            for done in [pool.submit(call, *recorded) for recorded in self._calls.values()]:
                done.result()


class _Kept(TorchDispatchMode):
    """Keeps copies of the operands and results of float32 products, to compare them with float64 afterwards."""

    SOURCES = MappingProxyType({"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1})  # operands before A and B

    def __init__(self):
        super().__init__()
        self._products = []

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        named = named or {}
        sources = self.SOURCES.get(function._schema.name.removeprefix("aten::"))
        kept = None
        if sources is not None and function._overloadname == "default" and arguments[0].dtype == torch.float32:
            kept = [x.clone() for x in arguments[: sources + 2]]  # what follows may overwrite them
        result = function(*arguments, **named)
        if kept is not None:
            self._products.append((kept, named.get("alpha", 1), named.get("beta", 1), result.clone()))
        return result

    def largest_error(self):
        """Return the largest error of an element, relative to its bound: the product of the absolute values."""
        largest = 0.0
        for operands, alpha, beta, result in self._products:
            *source, A, B = (x.double() for x in operands)
            wanted, bound = alpha * (A @ B), abs(alpha) * (A.abs() @ B.abs())
            if source and beta != 0:
                wanted, bound = wanted + beta * source[0], bound + (beta * source[0]).abs()
            if wanted.numel():
                largest = max(largest, float(((result.double() - wanted).abs() / (bound + NEGLIGIBLE)).max()))
        return largest


def _alike(x, device):
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)


_on_meta = partial(_alike, device="meta")

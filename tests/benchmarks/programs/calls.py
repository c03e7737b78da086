"""The host time of products: inside of steps, between other operators, and of calls one after the other.

Nothing waits for the device while the host is timed, and fewer kernels are launched than its queue holds, so the time
of the device is not in it. Every product of a step has other operands than the one before, and results of the last
steps are kept, so that the allocator gives the next step other addresses.
"""

import statistics
import time
from collections import deque
from functools import partial
from itertools import chain

import torch
from cuda.bindings import driver
from harness import PRECISIONS, PRODUCTS, WARM_UP, products, turns, wait
from torch import nn

import fastsgemm
from fastsgemm.measure.stopwatch import WallClock

TURNS = 15
STEPS = 6  # of a turn
KEPT = 3  # steps whose results are kept; the sizes of rings below share no factor, so that operands meet seldom
RINGS = (7, 5, 3)  # of A, B and C in calls one after the other
CALLS = 105  # of a turn: few enough, with four kernels each, not to fill the launch queue


def measure(device, small, seconds):
    """Return what is measured; `seconds` is not used, because rounds are short."""
    steps = _steps(device, small)
    return {
        "steps": [_measure_step(what, *step, device) for what, step in steps.items()],
        "calls": [_measure_calls(size, rung, device) for size, rung in _sizes(small)],
    }


def _steps(device, small):
    """Return by name a step, which returns what is to be kept, and one of its products."""
    divisor = 16 if small else 1

    def random(*shape):
        return torch.randn([max(n // divisor, 2) for n in shape], device=device)

    def forward(operator, number, *shapes):
        """Steps of `number` products, whose operands all differ, each followed by two other operators."""
        pairs = [tuple(random(*shape) for shape in shapes) for _ in range(number)]

        def step():
            return [(operator(*pair) * 0.5).relu() for pair in pairs]

        return step, partial(operator, *pairs[0])

    def training(number, batch, *widths):
        """Steps of `number` linear layers, forward and backward, between activations."""
        ends = [(widths[i % len(widths)], widths[(i + 1) % len(widths)]) for i in range(number)]
        layers = (nn.Linear(*(max(n // divisor, 2) for n in pair)) for pair in ends)
        model = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh()))).to(device)
        x = random(batch, widths[0])

        def step():
            model.zero_grad()
            model(x).mean().backward()
            return [weight.grad for weight in model.parameters()]

        return step, partial(torch.no_grad()(model[0]), x)

    def of_doubles(A, B):
        return torch.mm(A.double(), B.double())

    return {
        "mm 32 x 64 x 64": forward(torch.mm, 40, (32, 64), (64, 64)),
        "addmm 8 x 64 x 64, a bias": forward(torch.addmm, 40, (64,), (8, 64), (64, 64)),
        "bmm 16 x (8 x 64 x 64)": forward(torch.bmm, 40, (16, 8, 64), (16, 64, 64)),
        "linear layers 32 x 64 x 64, forward and backward": training(20, 32, 64),
        "mm 64 x 64 x 4096": forward(torch.mm, 30, (64, 4096), (4096, 64)),
        "linear layers 64 x 4096 x 64 and back, forward and backward": training(12, 64, 4096, 64),
        "mm 256 x 1024 x 1024": forward(torch.mm, 20, (256, 1024), (1024, 1024)),
        "linear layers 256 x 1024 x 1024, forward and backward": training(8, 256, 1024),
        "mm 32 x 64 x 64 of float64, which is passed on": forward(of_doubles, 40, (32, 64), (64, 64)),
    }


def _measure_step(what, step, product, device):
    """Return the host time of a step in us by kind of products, how many it has, and what one of them launches."""
    launches = {}
    for name in ("PyTorch", *PRECISIONS):
        with products(name, device) as switch:
            for _ in range(WARM_UP):
                step()
            if switch is not None:
                number = sum(line.calls for line in switch.report().lines) // WARM_UP
            launches[name] = _launches(product, device)
    us, kept = {name: [] for name in PRODUCTS}, deque(maxlen=KEPT)
    for name in chain.from_iterable(turns(TURNS)):
        with products(name, device):
            for _ in range(WARM_UP):
                kept.append(step())
            for _ in range(STEPS):
                wait(device)
                began = time.perf_counter()
                result = step()
                us[name].append(1e6 * (time.perf_counter() - began))
                kept.append(result)
    medians = {name: statistics.median(times) for name, times in us.items()}
    extra = ", ".join(f"{name} {(medians[name] - medians['PyTorch']) / number:+.1f}" for name in PRODUCTS[1:])
    kernels = ", ".join(f"{name} {count}" for name, count in launches.items())
    each = medians["PyTorch"] / number
    print(f"{what}: {number} products, {each:.1f} us of a step for each; {extra}; kernels: {kernels}", flush=True)
    return {"step": what, "products": number, "launches": launches, "step_us": medians}


def _launches(call, device):
    """Return how many kernels a call launches, or None if that cannot be captured."""
    if device != "cuda":
        return None
    call()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    try:
        with torch.cuda.graph(graph):
            call()
        handle = driver.CUgraph(graph.raw_cuda_graph())
        _, _, number = driver.cuGraphGetNodes(handle)
        _, nodes, _ = driver.cuGraphGetNodes(handle, number)
        kinds = [driver.cuGraphNodeGetType(node)[1] for node in nodes]
    except RuntimeError as error:
        print(f"  kernels are not counted: {error}", flush=True)
        return None
    return kinds.count(driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL)


def _sizes(small):
    """Return sizes of calls, and a rung to ask for."""
    if small:
        return [((8, 8, 8), None)]
    return [((64, 64, 64), None), ((64, 64, 4096), None), ((64, 64, 64), "fp16x3")]


def _measure_calls(size, rung, device):
    """Return the host time in us of each way to call a product, in turns."""
    M, N, K = size
    As, Bs, Cs = (
        [torch.randn(shape, device=device) for _ in range(number)]
        for shape, number in zip(((M, K), (K, N), (M, N)), RINGS, strict=True)
    )
    operands = [(As[i % RINGS[0]], Bs[i % RINGS[1]], Cs[i % RINGS[2]]) for i in range(CALLS)]
    asked = {} if rung is None else {"rung": rung}
    alternatives = {
        "torch.mm(out=)": lambda A, B, C: torch.mm(A, B, out=C),
        "torch.mm(out=), null": lambda A, B, C: torch.mm(A, B, out=C),
        "fastsgemm.sgemm, C given": lambda A, B, C: fastsgemm.sgemm(A, B, C=C, **asked),
        "torch.mm": lambda A, B, C: torch.mm(A, B),
        "torch.mm, null": lambda A, B, C: torch.mm(A, B),
        "fastsgemm.sgemm": lambda A, B, C: fastsgemm.sgemm(A, B, **asked),
    }
    if rung is None:  # the operator has no rung=
        alternatives["torch.ops.fastsgemm.sgemm"] = lambda A, B, C: torch.ops.fastsgemm.sgemm(A, B)

    def run(call):
        kept = deque(maxlen=KEPT)
        for A, B, C in operands:
            kept.append(call(A, B, C))

    clock = WallClock(partial(wait, device), launches_only=True, warm_up=WARM_UP)
    times = clock.medians([partial(run, call) for call in alternatives.values()])
    us = {name: 1e3 * ms / CALLS for name, ms in zip(alternatives, times, strict=True)}
    found = {"size": size, "rung": rung, "us": us}
    shown = ", ".join(f"{name} {time:.1f} us" for name, time in found["us"].items())
    print(f"{M} x {N} x {K}{f', rung {rung}' if rung else ''}: {shown}", flush=True)
    return found

"""What the switch adds to the host time of a call, and to a compiled model."""

import statistics
import time
from contextlib import nullcontext

import torch

import fastsgemm
import fastsgemm.torch

CALLS = 100  # in a round: few enough not to fill the launch queue, which would measure the device
ROUNDS = 60


def host_time(call, device):
    """The median time of a call in microseconds."""
    times = []
    for _ in range(ROUNDS if device == "cuda" else 3):
        _wait(device)
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append(1e6 * (time.perf_counter() - started) / CALLS)
    return statistics.median(times)


def measure(device="cuda", small=False):
    A, B, C = (torch.rand(64, 64, device=device) for _ in range(3))
    bias, double = torch.rand(64, device=device), A.double()
    layer = torch.nn.Linear(64, 64, device=device)
    calls = {
        "torch.mm": lambda: torch.mm(A, B),
        "torch.mm(out=)": lambda: torch.mm(A, B, out=C),
        "torch.addmm": lambda: torch.addmm(bias, A, B),
        "nn.Linear, without gradient": torch.no_grad()(lambda: layer(A)),
        "torch.dot": lambda: torch.dot(bias, bias),
        "torch.mm of float64": lambda: torch.mm(double, double),
        "torch.add, which is not replaced": lambda: torch.add(A, B, out=C),
    }
    found = {"host_us": {name: [] for name in calls}}
    for _ in range(3):  # in turns; the best of three medians
        for name, call in calls.items():
            call()
            plain = host_time(call, device)
            with fastsgemm.torch.enabled(device=device):
                call()
                found["host_us"][name].append((plain, host_time(call, device)))
    found["host_us"] = {
        name: {"PyTorch": min(p for p, _ in pairs), "fastsgemm": min(f for _, f in pairs)}
        for name, pairs in found["host_us"].items()
    }
    operator = torch.ops.fastsgemm.sgemm
    found["operator_us"] = {
        "fastsgemm.sgemm, C given": host_time(lambda: fastsgemm.sgemm(A, B, C=C), device),
        "fastsgemm.sgemm": host_time(lambda: fastsgemm.sgemm(A, B), device),
        "torch.ops.fastsgemm.sgemm": host_time(lambda: operator(A, B), device),
    }
    found["compiled_ms"] = compiled(device, small)
    return found


def compiled(device, small):
    """A model of three layers under torch.compile: ms of a forward and backward pass, by batch."""
    torch.manual_seed(0)
    width = 64 if small else 1024
    layers = [torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)]
    model = torch.compile(
        torch.nn.Sequential(*layers).to(device), backend="eager" if small else "inductor", dynamic=False
    )
    found = {}
    for batch in (16,) if small else (64, 2048):
        x = torch.randn(batch, width, device=device)
        row = {}
        for name in ("PyTorch", "fastsgemm") * 2:
            with fastsgemm.torch.enabled(device=device) if name == "fastsgemm" else nullcontext():
                times = []
                for _ in range(30):
                    _wait(device)
                    started = time.perf_counter()
                    model(x).sum().backward()
                    _wait(device)
                    times.append(1e3 * (time.perf_counter() - started))
            row[name] = min(row.get(name, 1e9), statistics.median(times[5:]))
        found[str(batch)] = row
    return found


def _wait(device):
    if device == "cuda":
        torch.cuda.synchronize()

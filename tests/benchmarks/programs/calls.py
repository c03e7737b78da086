"""What the switch adds to the host time of a call."""

import statistics
import time

import torch

import fastsgemm
import fastsgemm.torch

CALLS = 100  # in a round: few enough not to fill the launch queue, which would measure the device
ROUNDS = 30


def host_time(call, device):
    """The median time of a call in microseconds."""
    times = []
    for _ in range(ROUNDS if device == "cuda" else 3):
        wait(device)
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append(1e6 * (time.perf_counter() - started) / CALLS)
    return statistics.median(times)


def measure(device="cuda", small=False):
    A, B, C = (torch.rand(64, 64, device=device) for _ in range(3))
    bias, double = torch.rand(64, device=device), A.double()
    layer = torch.nn.Linear(64, 64, device=device)
    A3, B3 = (torch.rand(8, 64, 64, device=device) for _ in range(2))
    calls = {
        "torch.mm": lambda: torch.mm(A, B),
        "torch.mm(out=)": lambda: torch.mm(A, B, out=C),
        "torch.addmm": lambda: torch.addmm(bias, A, B),
        "nn.Linear, without gradient": torch.no_grad()(lambda: layer(A)),
        "torch.bmm": lambda: torch.bmm(A3, B3),
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
    return found


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()

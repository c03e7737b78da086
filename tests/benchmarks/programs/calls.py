"""The host time of a call, by kind of products: of many alone, and of one between other operators."""

import statistics
import time

import torch
from harness import PRODUCTS, in_order, products, wait

import fastsgemm

CALLS = 20  # of a round: few enough not to fill the launch queue, which would measure the device
WARM_UP = 5  # calls at the begin of a round
ROUNDS = (11, 101)  # at least and at most


def measure(device, small, seconds):
    calls = _calls(device, 16 if small else 1)
    return {
        "calls": [
            {"call": name, "host_us": _in_turns(call, device, seconds / len(calls))} for name, call in calls.items()
        ],
        "operator_us": _of_the_operator(device),
    }


def _calls(device, divisor):
    """Return the calls by name; extents are divided by a number."""

    def random(*shape):
        return torch.randn([max(n // divisor, 1) for n in shape], device=device)

    def mm(M, N, K):
        A, B = random(M, K), random(K, N)
        return lambda: torch.mm(A, B)

    def mm_out(M, N, K, layout):
        A = random(M, K) if layout[0] == "N" else random(K, M).t()
        B, C = random(K, N), random(M, N)
        return lambda: torch.mm(A, B, out=C)

    def addmm(M, N, K):
        x, weights, bias = random(M, K), random(N, K), random(N)
        return lambda: torch.addmm(bias, x, weights.t())

    def bmm(count, M, N, K):
        A, B = random(count, M, K), random(count, K, N)
        return lambda: torch.bmm(A, B)

    vector, double, X = random(64), random(64, 64).double(), random(64, 64)
    return {
        "mm(out=) 64 x 64 x 64 NN": mm_out(64, 64, 64, "NN"),
        "mm 64 x 64 x 64 NN": mm(64, 64, 64),
        "addmm 256 x 1024 x 1024 NT": addmm(256, 1024, 1024),
        "mm(out=) 256 x 1024 x 1024 NN": mm_out(256, 1024, 1024, "NN"),
        "mm(out=) 1024 x 1024 x 256 TN": mm_out(1024, 1024, 256, "TN"),
        "addmm 2048 x 768 x 768 NT": addmm(2048, 768, 768),
        "addmm 2048 x 768 x 3072 NT": addmm(2048, 768, 3072),
        "addmm 4096 x 1024 x 1024 NT": addmm(4096, 1024, 1024),
        "mm(out=) 256 x 256 x 50000 TN": mm_out(256, 256, 50000, "TN"),
        "bmm 48 x (128 x 64 x 128)": bmm(48, 128, 128, 64),
        "dot 64": lambda: torch.dot(vector, vector),
        "mm 64 x 64 x 64 of float64, which is passed on": lambda: torch.mm(double, double),
        "add, which is not replaced": lambda: torch.add(X, X, out=X),
    }


def _in_turns(call, device, seconds):
    """Return the median host time in us by kind of products, ``alone`` and ``between`` other operators."""
    other = torch.zeros(1024, device=device)

    def followed():
        call()
        other.add_(1)

    alone, between, added = {name: [] for name in PRODUCTS}, {name: [] for name in PRODUCTS}, []
    least, most = ROUNDS
    end = time.perf_counter() + seconds
    for turn in range(most):
        if turn >= least and time.perf_counter() > end:
            break
        for name in in_order(turn):
            with products(name, device):
                for _ in range(WARM_UP):
                    call()
                alone[name].append(_host_us(call, device))
                between[name].append(_host_us(followed, device))
        added.append(_host_us(lambda: other.add_(1), device))
    of_other = statistics.median(added)
    return {
        name: {"alone": statistics.median(alone[name]), "between": statistics.median(between[name]) - of_other}
        for name in PRODUCTS
    }


def _of_the_operator(device):
    """Return the host time in us of a product of 64 x 64 without the switch."""
    A, B, C = (torch.rand(64, 64, device=device) for _ in range(3))
    operator = torch.ops.fastsgemm.sgemm
    calls = {
        "fastsgemm.sgemm, C given": lambda: fastsgemm.sgemm(A, B, C=C),
        "fastsgemm.sgemm": lambda: fastsgemm.sgemm(A, B),
        "torch.ops.fastsgemm.sgemm": lambda: operator(A, B),
    }
    for call in calls.values():
        call()
    return {name: statistics.median(_host_us(call, device) for _ in range(ROUNDS[0])) for name, call in calls.items()}


def _host_us(call, device):
    wait(device)
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    took = time.perf_counter() - began
    wait(device)
    return 1e6 * took / CALLS

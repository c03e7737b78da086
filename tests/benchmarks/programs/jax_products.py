"""Products in programs that XLA runs, by fastsgemm and by XLA with precision "highest", on one device or several.

    python tests/benchmarks/programs/jax_products.py --json build/jax.json    # on a GPU
    python tests/benchmarks/programs/jax_products.py --small                  # a check without one

Times are medians of runs in turns, in seconds unless a key says otherwise. A ratio is fastsgemm's time divided by
XLA's. Weights and data are random, and nothing is downloaded.
"""

import argparse
import contextlib
import datetime
import json
import os
import statistics
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

import fastsgemm
import fastsgemm.jax
from fastsgemm import device, sgemm
from fastsgemm.measure import environment
from fastsgemm.measure.stopwatch import WallClock

HIGHEST = partial(jnp.matmul, precision="highest")
PRODUCTS = {"xla": HIGHEST, "ieee": sgemm, "fp16x3": partial(sgemm, precision="fp16x3")}
SCANNED = 100
DIVIDED = {  # how A, B and C lie on a row of devices
    "rows": (("x", None), (None, None), ("x", None)),
    "columns": ((None, None), (None, "x"), (None, "x")),
    "K": ((None, "x"), ("x", None), (None, None)),
}
DISTURBANCE = 1e-7  # relative, of a start: about one unit in the last place


def random(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32)


def seconds(functions):
    """Return the median time of each function, which are called in turns."""
    works = [lambda f=f: jax.block_until_ready(f()) for f in functions.values()]
    return {name: ms / 1e3 for name, ms in zip(functions, WallClock(warm_up=1).medians(works), strict=True)}


def with_ratios(times):
    return {**times, **{f"{name}_ratio": times[name] / times["xla"] for name in times if name != "xla"}}


def host_cost(small):
    """Microseconds of host time of a jitted call, which does not wait for the device."""
    a, b = random(0, 64, 64), random(1, 64, 64)
    calls = 20 if small else 500
    functions = {name: jax.jit(f) for name, f in PRODUCTS.items()}
    results = {name: f(a, b) for name, f in functions.items()}

    def call(name):
        for _ in range(calls):
            results[name] = functions[name](a, b)

    works = [partial(call, name) for name in functions]
    times = WallClock(lambda: jax.block_until_ready(results), launches_only=True).medians(works)
    found = {name: 1e3 * ms / calls for name, ms in zip(functions, times, strict=True)}
    return {"n": 64, "unit": "us", **with_ratios(found)}


def scan(small, graphs=False):
    """Time of one product in a scan of 100, each of which multiplies the result of the one before.

    By default XLA launches the kernels of so short a body one by one; with `graphs` it launches a CUDA graph.
    """
    found = {}
    options = {"xla_gpu_graph_min_graph_size": 1} if graphs else {}
    for n in (16, 32) if small else (64, 256, 1024, 4096):
        a, c = random(0, n, n) / n**0.5, random(1, n, n)

        def scanned(f, a, c):
            return jax.lax.scan(lambda c, _: (f(a, c), None), c, None, length=SCANNED)[0]

        functions = {
            name: partial(jax.jit(partial(scanned, f), compiler_options=options), a, c) for name, f in PRODUCTS.items()
        }
        times = seconds(functions)
        found[n] = with_ratios({name: each / SCANNED for name, each in times.items()})
    return found


def with_switch(program, steps, repeats):
    """Run a program with XLA's products and with fastsgemm's; return times of a step, and results.

    Parameters
    ----------
    program : callable
        Takes a disturbance of the start; returns a step and a state. A step returns the next state and its loss.
    steps : int
        After which the losses are compared.
    repeats : int
        Steps that are timed.
    """

    def run(how, disturbance=0.0):
        with how, jax.default_matmul_precision("highest"):
            step, state = program(disturbance)
            step = jax.jit(step)
            losses = []
            for _ in range(steps):
                state, loss = step(state)
                losses.append(float(loss))
            times = []
            for _ in range(repeats):
                started = time.perf_counter()
                state, loss = step(state)
                loss.block_until_ready()
                times.append(time.perf_counter() - started)
        return statistics.median(times), losses[-1]

    results = {
        "xla": run(contextlib.nullcontext()),
        "disturbed": run(contextlib.nullcontext(), DISTURBANCE),
        "ieee": run(fastsgemm.jax.enabled()),
    }
    results["ieee_report"] = repr(fastsgemm.jax.report())
    results["fp16x3"] = run(fastsgemm.jax.enabled("fp16x3"))
    results["fp16x3_report"] = repr(fastsgemm.jax.report())
    names = ("xla", "ieee", "fp16x3")
    losses = {name: results[name][1] for name in (*names, "disturbed")}
    return {
        "seconds": with_ratios({name: results[name][0] for name in names}), "loss": losses,
        "difference": {name: abs(losses[name] - losses["xla"]) for name in ("ieee", "fp16x3", "disturbed")},
        "reports": {name: results[f"{name}_report"] for name in ("ieee", "fp16x3")},
    }  # fmt: skip


def transformer(small):
    """A training step of a decoder with Adam: attention by einsum, layers as those of Flax, in float32."""
    layers, width, heads, batch, length, words = (2, 32, 2, 2, 16, 64) if small else (8, 1024, 16, 8, 512, 16384)

    def program(disturbance):
        keys = iter(range(1000))
        scale = 1.0 + disturbance
        w = {"embedding": random(next(keys), words, width) * 0.02 * scale}
        for i in range(layers):
            w |= {
                f"{i}qkv": random(next(keys), width, 3, heads, width // heads) * width**-0.5,
                f"{i}out": random(next(keys), heads, width // heads, width) * width**-0.5,
                f"{i}up": random(next(keys), width, 4 * width) * width**-0.5,
                f"{i}down": random(next(keys), 4 * width, width) * (4 * width) ** -0.5,
            }
        tokens = jax.random.randint(jax.random.key(7), (batch, length + 1), 0, words)
        mask = jnp.tril(jnp.ones((length, length), bool))

        def norm(x):
            return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)

        def loss(w):
            x = w["embedding"][tokens[:, :-1]]
            for i in range(layers):
                q, k, v = jnp.einsum("bld,dchf->cblhf", norm(x), w[f"{i}qkv"])
                scores = jnp.einsum("bqhf,bkhf->bhqk", q, k) * (width // heads) ** -0.5
                p = jax.nn.softmax(jnp.where(mask, scores, -1e30))
                x += jnp.einsum("blhf,hfd->bld", jnp.einsum("bhqk,bkhf->bqhf", p, v), w[f"{i}out"])
                x += jax.nn.gelu(norm(x) @ w[f"{i}up"]) @ w[f"{i}down"]
            logits = jax.nn.log_softmax(norm(x) @ w["embedding"].T)
            return -jnp.take_along_axis(logits, tokens[:, 1:, None], -1).mean()

        def step(state):
            w, m, v, t = state
            value, g = jax.value_and_grad(loss)(w)
            m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
            v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
            rate = 3e-4 * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            w = jax.tree.map(lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-8), w, m, v)
            return (w, m, v, t + 1), value

        zeros = jax.tree.map(jnp.zeros_like, w)
        return step, (w, zeros, zeros, jnp.float32(1.0))

    return with_switch(program, 3 if small else 10, 3 if small else 10)


def gaussian_process(small):
    """A gradient step on the bound of a sparse Gaussian process (Titsias): Cholesky, triangular solves and products."""
    n, m = (128, 16) if small else (65536, 2048)

    def program(disturbance):
        x, z = random(0, n, 4), random(1, m, 4)
        y = jnp.sin(3 * x).sum(1) + 0.1 * random(2, n)

        def kernel(p, a, b):
            a, b = a / jnp.exp(p["length"]), b / jnp.exp(p["length"])
            d = (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * a @ b.T
            return jnp.exp(p["scale"] - 0.5 * jnp.maximum(d, 0.0))

        def loss(p):
            noise = jnp.exp(p["noise"])
            L = jnp.linalg.cholesky(kernel(p, z, z) + 1e-3 * jnp.eye(m))
            A = jax.scipy.linalg.solve_triangular(L, kernel(p, z, x), lower=True) / jnp.sqrt(noise)
            LB = jnp.linalg.cholesky(A @ A.T + jnp.eye(m))
            c = jax.scipy.linalg.solve_triangular(LB, A @ y, lower=True) / jnp.sqrt(noise)
            fit = (y @ y) / noise - c @ c
            trace = n * jnp.exp(p["scale"]) / noise - (A * A).sum()
            return (0.5 * (fit + n * jnp.log(noise) + trace) + jnp.log(jnp.diag(LB)).sum()) / n

        def step(p):
            value, g = jax.value_and_grad(loss)(p)
            return jax.tree.map(lambda p, g: p - 0.02 * g, p, g), value

        start = {"length": jnp.zeros(4) + disturbance, "scale": jnp.float32(0.0), "noise": jnp.float32(-1.0)}
        return step, start

    return with_switch(program, 3 if small else 10, 3 if small else 10)


def several_devices(small):
    """A product divided among 2, 4 and 8 devices by rows, columns or K, and which share of the ideal that is."""
    there = len(jax.devices())
    if there < 2:
        return "needs two devices"
    n = 64 if small else 16384
    a, b = random(0, n, n), random(1, n, n)
    alone = seconds({name: partial(jax.jit(f), a, b) for name, f in PRODUCTS.items()})
    found = {"n": n, "1": with_ratios(alone)}
    for count in (count for count in (2, 4, 8) if count <= there):
        axes = (jax.sharding.AxisType.Auto,)
        mesh = jax.make_mesh((count,), ("x",), axis_types=axes, devices=jax.devices()[:count])
        found[str(count)] = {}
        for how, (of_a, of_b, of_c) in DIVIDED.items():
            specs = [jax.sharding.PartitionSpec(*spec) for spec in (of_a, of_b, of_c)]
            placed = [
                jax.device_put(x, jax.sharding.NamedSharding(mesh, s)) for x, s in zip((a, b), specs, strict=False)
            ]
            functions = {name: _divided(f, mesh, specs, how) for name, f in PRODUCTS.items()}
            times = seconds({name: partial(f, *placed) for name, f in functions.items()})
            ideal = {f"{name}_share_of_ideal": alone[name] / count / time for name, time in times.items()}
            found[str(count)][how] = with_ratios(times) | ideal
    return found


def _divided(f, mesh, specs, how):
    def own(a, b):
        return jax.lax.psum(f(a, b), "x") if how == "K" else f(a, b)

    return jax.jit(jax.shard_map(own, mesh=mesh, in_specs=tuple(specs[:2]), out_specs=specs[2]))


MEASURED = {
    "host_cost": host_cost,
    "scan": scan,
    "scan_of_graphs": partial(scan, graphs=True),
    "transformer": transformer,
    "gaussian_process": gaussian_process,
    "several_devices": several_devices,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="where to write what is found; it is printed anyway")
    parser.add_argument("--small", action="store_true", help="small problems, to check the program")
    parser.add_argument("names", nargs="*", help=f"what to measure, of {', '.join(MEASURED)}; default: all")
    given = parser.parse_args()
    found = {
        "date": datetime.date.today().isoformat(), "device": jax.devices()[0].device_kind,
        "jax": jax.__version__, "jaxlib": jaxlib.__version__,
        "numpy": np.__version__, "fastsgemm": fastsgemm.__version__, "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        **(environment.facts(device.open_gpu(0)) if jax.default_backend() == "gpu" else {}),
    }  # fmt: skip
    for name in given.names or MEASURED:
        found[name] = MEASURED[name](given.small)
        print(json.dumps({name: found[name]}), flush=True)
        if given.json:  # after each, so that a run that is cut short loses nothing
            given.json.parent.mkdir(parents=True, exist_ok=True)
            given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

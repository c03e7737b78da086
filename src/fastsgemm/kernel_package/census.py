"""Which kernels do programs need? Those of random calls, of which nine in ten are as regular as those of models.

A call is drawn as one kind: plain, with a bias or another source, in a batch, with 16-bit operands, of a symmetric
result, or irregular: with any extents, leading dimensions and addresses. Irregular calls need ever more kernels, each
seldom, so the goal is a share of the regular ones. Nothing of it needs a device.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from fastsgemm.call.product import make_plan, plan_of
from fastsgemm.device import DeviceTraits
from fastsgemm.geometry.layout import Meta
from fastsgemm.heuristics import database
from fastsgemm.jit.source import KernelSpec
from fastsgemm.preparation import operands
from fastsgemm.problem import FLOAT32, LAYOUTS, DType, Dtypes, Problem
from fastsgemm.progress import Bar
from fastsgemm.request import PLAIN, Request, of_problem, resolve

GOAL = 0.95  # share of regular calls that find all their kernels
ALL, REGULAR, IRREGULAR = "all", "regular", "irregular"
_COUNTED, _HELD_OUT = (20_000, 1), (5_000, 2)  # numbers of random calls, and seeds

# Of 100 calls.
KINDS = {"plain": 55, "source": 15, "batch": 10, "16-bit": 5, "symmetric": 5, IRREGULAR: 10}
ARITHMETIC = {("ieee", False): 65, ("fp16x3", False): 25, ("ieee", True): 6, ("fp16x3", True): 4}
_OCTAVES = 13  # extents reach 8192
# The extent that counts tokens or samples, which may be any number; the others are sizes of layers.
_FREE = {"NN": 0, "NT": 0, "TN": 2, "TT": 1}


class RandomCall(NamedTuple):
    """A call of `sgemm`, without its device."""

    kind: str
    request: Request
    metas: list[Meta]
    addresses: list[int]


def census(devices: Sequence[DeviceTraits], bar: Bar) -> tuple[list[KernelSpec], dict[str, float]]:
    """Return the kernels for these devices, those that most calls need first, and what share of calls has all of its.

    Shares are of other calls than those that were counted; see `coverage`.
    """
    bar.begin("choose", len(devices) * (_COUNTED[0] + _HELD_OUT[0]))
    counts = Counter(spec for _, needed in _needs(devices, *_COUNTED, bar) for spec in needed)
    ranked = [*dict.fromkeys([*_tuned(devices), *(spec for spec, _ in counts.most_common())])]
    held_out = [*_needs(devices, *_HELD_OUT, bar)]
    places = {spec: place for place, spec in enumerate(ranked, 1)}
    # How many of the ranked kernels a call needs: one more than all if it needs another.
    needed = sorted(_last(places, specs) for kind, specs in held_out if kind != IRREGULAR)
    kept = ranked[: needed[math.ceil(GOAL * len(needed)) - 1]]
    return kept, coverage(held_out, kept)


def coverage(needs: Iterable[tuple[str, frozenset[KernelSpec]]], kept: Iterable[KernelSpec]) -> dict[str, float]:
    """Return what share of calls finds all of its kernels: of all calls, of all regular ones, and of each kind."""
    found: dict[str, list[bool]] = {}
    kept = frozenset(kept)
    for kind, specs in needs:
        for name in (ALL, kind) if kind == IRREGULAR else (ALL, REGULAR, kind):
            found.setdefault(name, []).append(specs <= kept)
    return {name: sum(found[name]) / len(found[name]) for name in (ALL, REGULAR, *KINDS) if name in found}


def _tuned(devices: Sequence[DeviceTraits]) -> Iterator[KernelSpec]:
    """Yield the kernels of the shipped tuned problems: they are popular sizes, and have configs of their own."""
    for device in devices:
        for record in database.shipped(device.arch).records:
            if record.problem is not None:
                for launch in plan_of(device, PLAIN, operands(record.problem, "")).launches:
                    yield launch.kernel


def _last(places: Mapping[KernelSpec, int], specs: frozenset[KernelSpec]) -> int:
    return max((places.get(spec, len(places) + 1) for spec in specs), default=0)


def _needs(
    devices: Sequence[DeviceTraits], count: int, seed: int, bar: Bar
) -> Iterator[tuple[str, frozenset[KernelSpec]]]:
    """Yield the kind and the kernels of random calls, on each device."""
    for call in draw(count, seed):
        for device in devices:
            plan = make_plan(device, call.request, call.metas, call.addresses)
            yield call.kind, frozenset(launch.kernel for launch in plan.launches)
            bar.step()


def draw(count: int, seed: int) -> Iterator[RandomCall]:
    """Yield random calls, the same ones for a seed."""
    generator = random.Random(seed)
    for _ in range(count):
        kind = generator.choices([*KINDS], [*KINDS.values()])[0]
        yield _call(generator, kind)


def _call(generator: random.Random, kind: str) -> RandomCall:
    layout = generator.choice(LAYOUTS)
    M, N, K = (_extent(generator, kind != IRREGULAR, place == _FREE[layout]) for place in range(3))
    precision, in_order = generator.choices([*ARITHMETIC], [*ARITHMETIC.values()])[0]
    symmetric, dtypes, source, batch = kind == "symmetric", FLOAT32, "", 1
    if kind == "16-bit":
        half = generator.choice([DType.BF16, DType.F16])
        dtypes = generator.choice([Dtypes(half, half), Dtypes(DType.F32, half)])
    if kind == "batch" or (kind == IRREGULAR and generator.random() < 0.25):
        batch = round(2 ** generator.uniform(1, 8))
    if kind == "source" or (kind == IRREGULAR and generator.random() < 0.25):
        source = generator.choices(["row", "matrix", "column"], [6, 3, 1])[0]
    problem = Problem(M, M if symmetric else N, K, layout, batch, symmetric, dtypes)
    named = (precision, in_order) != ("ieee", False) or kind == "16-bit"
    request = resolve(precision=precision if named else None, batch_invariant=in_order)
    metas = operands(problem, source)
    addresses = [number << 40 for number in range(1, 1 + len(metas))]
    if kind == IRREGULAR:
        for place in range(3):
            metas[place], shift = _misplaced(generator, metas[place])
            addresses[place] += shift
    elif symmetric and layout in ("NT", "TN"):
        addresses[1] = addresses[0]
    return RandomCall(kind, of_problem(request, problem), metas, addresses)


def _extent(generator: random.Random, regular: bool, free: bool) -> int:
    step = 1 if free or not regular else generator.choices([64, 8], [9, 1])[0]
    round_number = regular and generator.random() < 0.5
    extent = 2 ** (generator.randint(0, _OCTAVES) if round_number else generator.uniform(0, _OCTAVES))
    return max(step, round(extent / step) * step)


def _misplaced(generator: random.Random, meta: Meta) -> tuple[Meta, int]:
    """Return a matrix as a part of a larger one, in half of all cases, and by how many bytes its address is odd."""
    if generator.random() < 0.5:
        return meta, 0
    longer, odd = generator.choice([(64, 0), (4, 0), (1, 0), (3, 1)])
    line = meta.shape[-1] if meta.strides[-1] == 1 else meta.shape[-2]
    ld = line + longer
    inner = (ld, 1) if meta.strides[-1] == 1 else (1, ld)
    lines = math.prod(meta.shape[-2:]) // line
    return Meta(meta.shape, (*(ld * lines for _ in meta.shape[:-2]), *inner), meta.dtype), odd * meta.dtype.item

"""Which tile of rung 11 a problem gets, and whether an IEEE kernel is quicker: it keeps the promise of fp16x3 too.

The time of rung 11 is predicted from a few rates measured on a device: bytes that splitting moves, blocks of k that a
wave of tiles takes, a fixed part for each tile and each kernel. They are data; see `fp16x3_rates`. Where none were
measured, it is the number of operations that decides.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from fastsgemm import rungs
from fastsgemm.config import F16DirectConfig, Fp16x3MmaConfig
from fastsgemm.device import DeviceInfo, DeviceTraits
from fastsgemm.errors import ConfigError, DeviceError, ShapeError
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.geometry import splitting
from fastsgemm.geometry.fp16x3 import TileConfig, Tiling, blocks_of
from fastsgemm.geometry.layout import ITEM
from fastsgemm.geometry.matrix import Operand
from fastsgemm.heuristics import database
from fastsgemm.heuristics.database import cached
from fastsgemm.heuristics.fp16x3_rates import Rates, Tile, kinds_of
from fastsgemm.heuristics.selection import GIVEN, PREDICTED, Choice, Selection
from fastsgemm.known_devices import compute_capability
from fastsgemm.problem import Dtypes, Problem, Ragged, Sym
from fastsgemm.request import Request

RUNG = rungs.find("fp16x3")
FIRST = 80  # sm_80, whose tensor cores the kernels are written for
MOST_PRODUCTS = 1024  # of a batch: each has several launches of its own
_SPLIT_K = (1, 2, 3, 4, 6, 8, 12, 16, 24)
_PART_STEPS = 256  # of k, at least, in a part
OVERLAP = 4  # the norm by which the times of computing and of reading add up: little more than the longer
_CLOSE = 1.02  # predicted times that differ by less are equal; of such tiles the largest takes the least power


def supported(arch: str) -> bool:
    """Return whether the kernels of fp16x3 run on an architecture."""
    return compute_capability(arch) >= FIRST


def require_tensor_cores(device: DeviceTraits) -> None:
    """Raise `DeviceError` on a device that the kernels of fp16x3 are not written for."""
    if not supported(device.arch):
        raise DeviceError(f"fp16x3 needs a device of sm_{FIRST} or later, got {device.arch} ({device.name})")


def require_batch(count: int, what: str = "rung fp16x3 computes") -> None:
    """Raise `ShapeError` for more products than rung 11 computes in a call; `what` begins the message."""
    if count > MOST_PRODUCTS:
        raise ShapeError(f"{what} a batch of at most {MOST_PRODUCTS} products, got {count}")


def check_config(device: DeviceTraits, config: TileConfig) -> None:
    """Raise `ConfigError` if rung 11 cannot run with `config` on a device."""
    kinds = kinds_of(device.arch)
    if type(config) not in kinds:
        names = " or ".join(kind.__name__ for kind in kinds)
        raise ConfigError(f"rung fp16x3 takes a {names} on {device.arch}, got {type(config).__name__}")
    broken = config.violations(device.shared_limit)
    if broken:
        raise ConfigError(f"illegal config for rung fp16x3 ({config}): {'; '.join(map(str, broken))}")


def check_half(config: F16DirectConfig, problem: Problem, direct: bool) -> None:
    """Raise `ConfigError` if a config for operands as they lie is not for those of a problem.

    `direct` says whether they can be read so.
    """
    if not direct:
        what = "bfloat16 and float32 or one 16-bit type in layout NT, with lines that begin at multiples of 16 bytes"
        raise ConfigError(f"{config!r} is for operands of {what}, got {problem.dtypes}, {problem.layout}")
    if problem.dtypes.a is not problem.dtypes.b and (fault := geometry.fault_of_mixed(config)):
        raise ConfigError(f"{config!r} is not for {problem.dtypes}: {fault}")


def choose(
    device: DeviceInfo,
    request: Request,
    a: Operand,
    b: Operand,
    c: Operand,
    extents: tuple[int, ...],
    ieee: Callable[[], Choice],
) -> Choice:
    """Return how a product is computed with precision fp16x3: by rung 11, or by the IEEE kernel that `ieee` chooses.

    C is row-major, and K is not 0. With a rung, rung 11 is taken wherever it can be.
    """
    layout = "NT"[a.how.trans] + "NT"[b.how.trans]
    problem = Problem(*c.shape, a.shape[1], layout, math.prod(extents), dtypes=Dtypes(a.dtype, b.dtype))
    direct = _is_direct(device.arch, request, a, b)
    if request.config is not None:
        return _given(device, problem, request, direct)
    tensor, why = _predicted(device, problem, request, direct)
    if tensor is None:
        return replace(ieee(), why=why)
    if why:
        return replace(tensor, why=why)
    return _quicker(tensor, ieee())


def choose_grouped(device: DeviceInfo, problem: Problem, rival: Choice) -> Choice:
    """Return how groups are computed with precision fp16x3: by rung 11, or by the IEEE kernel that is the `rival`.

    C is row-major, and K is not 0.
    """
    rates = database.rates(device.arch, device.name) if supported(device.arch) else None
    fault = _fault_of_groups(device, problem, rates)
    if rates is None or fault:
        return replace(rival, why=fault)
    us, config = min(_grouped_us(rates, device, problem), key=lambda timed: timed[0])
    ms = None if rates.least_gflop is not None else 1e-3 * us
    tensor = Choice(Selection(RUNG, config, PREDICTED, rates, ms), ms, tensor_ms=ms)
    if rates.least_gflop is not None:
        taken, why = _without_times(rates.least_gflop, device.arch, problem)
        return replace(tensor if taken else rival, why=why)
    return _quicker(tensor, rival)


def _fault_of_groups(device: DeviceInfo, problem: Problem, rates: Rates | None) -> str:
    """Return why rung 11 does not compute groups; empty if it does."""
    if rates is None:
        return f"the kernels of fp16x3 need sm_{FIRST} or later, this is {device.arch}"
    if problem.ragged is not Ragged.ROWS:
        return "rung 11 computes groups of rows of a row-major result only"
    if not [tile for tile in rates.tiles if tile.serves(problem.K, device.shared_limit)]:
        return f"so few steps of k err less in IEEE arithmetic: K = {problem.K}"
    if not geometry.takes_groups(problem.M, problem.N, problem.K, problem.batch, problem.dtypes):
        return "the groups are more or larger than rung 11 computes by one launch"
    return ""


def _grouped_us(rates: Rates, device: DeviceInfo, problem: Problem) -> Iterator[tuple[float, TileConfig]]:
    """Yield the predicted microseconds of groups with each tile, and its config."""
    M, N, K, groups = problem.M, problem.N, problem.K, problem.batch
    operands = dataclasses.replace(problem, N=geometry.grouped_lines(N, groups), batch=1, ragged=Ragged.NOTHING)
    for tile in rates.tiles:
        if tile.serves(K, device.shared_limit):
            t = geometry.grouped_tiling(tile.config, M, N, K, groups, device.multiprocessors)
            us = predicted_us(rates, tile, t, operands, (True, True), device.multiprocessors)
            yield us + rates.times.kernel_us, tile.config  # A and B are split by a launch each


def _quicker(tensor: Choice, rival: Choice) -> Choice:
    """Return the quicker of rung 11 and an IEEE kernel."""
    if rival.ms is None:
        return replace(tensor, why="no time of an IEEE kernel is known")
    assert tensor.ms is not None  # it has times, or a reason
    name = f"the IEEE kernel of rung {rival.rung.name}"
    if rival.ms <= tensor.ms:
        why = f"{name} is quicker: {_times(rival.ms, tensor.ms)}"
        return replace(rival, ieee_ms=rival.ms, tensor_ms=tensor.ms, why=why)
    return replace(tensor, ieee_ms=rival.ms, why=f"quicker than {name}: {_times(tensor.ms, rival.ms)}")


def _given(device: DeviceInfo, problem: Problem, request: Request, direct: bool) -> Choice:
    """Return how rung 11 computes a problem with the caller's config; see `check_half` for `direct`."""
    config: TileConfig = request.config  # type: ignore[assignment]  # `check_config` saw to it
    if isinstance(config, F16DirectConfig):
        check_half(config, problem, direct)
    sym = _sym(request, problem)
    if request.batch_invariant:
        if direct is not isinstance(config, F16DirectConfig):
            raise ConfigError(
                f"batch_invariant=True: {config!r} adds products of {problem.dtypes} in another order than the kernel "
                f"that is chosen on {device.arch}; leave config out, or name a config of the class of the one that "
                "explain shows"
            )
        config = geometry.in_order(config, problem.K)
    exchanges = not (request.batch_invariant and isinstance(config, Fp16x3MmaConfig))  # which would change the order
    trans_c = not sym and exchanges and orientation(device, problem, config)
    return Choice(Selection(RUNG, config, GIVEN), trans_c=trans_c, triangle=bool(sym))


def _is_direct(arch: str, request: Request, a: Operand, b: Operand) -> bool:
    """Return whether operands are multiplied as they lie, if that is quickest.

    Where the order of summation depends on K alone, their types decide, and rows that cannot be read are copied.
    """
    if request.batch_invariant:
        return geometry.takes_as_they_lie(arch, Dtypes(a.dtype, b.dtype))
    return geometry.is_direct(arch, a, b, request.sym)


def _sym(request: Request, problem: Problem) -> Sym:
    """Return the part of a symmetric result that is computed.

    Pairs add the products of their lo in an order that is that of A and B. So where the order depends on K alone, an
    element and the one that mirrors it are computed each by itself.
    """
    pairs = not (problem.dtypes.a and problem.dtypes.b)
    return Sym.WHOLE if request.batch_invariant and pairs and not request.symmetric.leaves_one else request.sym


@cached
def _predicted(device: DeviceInfo, problem: Problem, request: Request, direct: bool) -> tuple[Choice | None, str]:
    """Return how rung 11 would compute a problem, or None where it does not.

    The text says why, unless times have to be compared.
    """
    arch, forced = device.arch, request.rung is not None
    if not supported(arch):
        return None, f"the kernels of fp16x3 need sm_{FIRST} or later, this is {arch}"
    rates = database.rates(arch, device.name)
    if not forced and min(tile.least_k for tile in rates.tiles) > problem.K:
        return None, f"so few steps of k err less in IEEE arithmetic: K = {problem.K}"
    if problem.batch > MOST_PRODUCTS and not direct and not request.batch_invariant:
        return None, f"rung 11 computes a batch of at most {MOST_PRODUCTS} products, this has {problem.batch}"
    way = _quickest_way(rates, device, problem, request, direct)
    ms = None if rates.least_gflop is not None else 1e-3 * way.us
    pick = Selection(RUNG, way.config, PREDICTED, rates, ms)
    tensor = Choice(pick, ms, trans_c=way.trans_c, triangle=bool(_sym(request, problem)), tensor_ms=ms)
    if request.batch_invariant:
        return tensor, "the order of summation is that of rung 11 from this K on, whatever is quicker"
    if forced:
        return tensor, f"rung {RUNG.name} was asked for"
    if rates.least_gflop is None:
        return tensor, ""
    taken, why = _without_times(rates.least_gflop, arch, problem)
    return tensor if taken else None, why


def _quickest_way(rates: Rates, device: DeviceInfo, problem: Problem, request: Request, direct: bool) -> _Way:
    """Return the way of the least predicted time, of operands as they lie, if those can be read, or split."""
    split = not request.split[0], not request.split[1]
    if request.gram:  # the pairs of one operand are those of the other
        split = all(split), False
    quickest = partial(
        _quickest, rates, problem=problem, device=device, sym=_sym(request, problem), in_order=request.batch_invariant
    )
    unsplit = rates.unsplit(problem.dtypes) if direct else None
    alternatives = [] if unsplit is None else [quickest(unsplit.tiles, split=(False, False))]
    if unsplit is None or unsplit is rates.mixed:  # beside float32, three products as they lie or two of split operands
        alternatives.append(quickest(rates.tiles, split=split))
    return min(alternatives, key=_Way.order)


def _without_times(least: dict[str, float], arch: str, problem: Problem) -> tuple[bool, str]:
    """Return whether rung 11 is taken where no times are known, and why."""
    gflop = 1e-9 * problem.flops / (1 if problem.ragged else problem.batch)  # of a launch
    if arch not in least:
        return False, f"nobody measured fp16x3 on {arch}, where three FP16 products may take longer than one of FP32"
    if gflop < least[arch]:
        return False, f"{gflop:.3g} GFLOP are less than the {least[arch]:g} from which on {arch} uses rung 11"
    return True, f"{arch} uses rung 11 from {least[arch]:g} GFLOP on"


def _times(quicker: float, slower: float) -> str:
    return f"{quicker:.4g} ms against {slower:.4g} ms, both predicted or measured"


def orientation(device: DeviceTraits, problem: Problem, config: TileConfig) -> bool:
    """Return whether a config is launched on the transposed product: with fewer tiles."""
    M, N, K = problem.M, problem.N, problem.K
    return min(
        geometry.orientations(config, problem.dtypes),
        key=lambda trans_c: geometry.tiling(config, M, N, K, trans_c, device.multiprocessors).tiles,
    )


class _Way(NamedTuple):
    """How a product may be launched, and how long it takes.

    Attributes
    ----------
    us : float
        Microseconds of a call.
    trans_c : bool
    parts : int
        Of K.
    config : TileConfig
    """

    us: float
    trans_c: bool
    parts: int
    config: TileConfig

    @property
    def area(self) -> int:
        """Elements of C in a tile."""
        return self.config.BM * self.config.BN

    def order(self) -> tuple[float, ...]:
        """What ways are compared by."""
        return self.us, self.trans_c, self.parts, self.area


def _quickest(
    rates: Rates,
    tiles: Sequence[Tile],
    problem: Problem,
    split: tuple[bool, bool],
    device: DeviceInfo,
    sym: Sym,
    in_order: bool,
) -> _Way:
    """Return the way of the least predicted time; with `in_order`, of those whose sums depend on K alone."""
    least_k = min(tile.least_k for tile in tiles)  # a rung that was asked for takes fewer steps too
    timed = []
    for tile in tiles:
        if not tile.serves(max(problem.K, least_k), device.shared_limit):
            continue
        for config in _in_parts(tile, problem.K, rates.most_parts, in_order):
            for trans_c in (False,) if sym else geometry.orientations(config, problem.dtypes):
                M, N, K = problem.M, problem.N, problem.K
                together = problem.batch if isinstance(config, F16DirectConfig) else 1
                t = geometry.tiling(config, M, N, K, trans_c, device.multiprocessors, sym, together)
                us = problem.batch / together * predicted_us(rates, tile, t, problem, split, device.multiprocessors)
                timed.append(_Way(us, t.trans_c, config.SPLIT_K, config))
    quickest = min(timed, key=_Way.order)
    equal = [way for way in timed if way.us <= _CLOSE * quickest.us and way.parts <= quickest.parts]
    return min(equal, key=lambda way: (-way.area, *way.order()))


def _in_parts(tile: Tile, K: int, most_parts: int, in_order: bool) -> Iterator[TileConfig]:
    """Yield a tile's config with the numbers of parts of K to consider."""
    config = tile.config
    if in_order:
        ordered = geometry.in_order(config, K)
        if ordered == config.replace(SPLIT_K=ordered.SPLIT_K):  # else its times are those of other chains
            yield ordered
        return
    most = _SPLIT_K[-1] if isinstance(config, F16DirectConfig) else most_parts
    most = min(most, max(1, K // _PART_STEPS))
    yield from (config.replace(SPLIT_K=parts) for parts in _SPLIT_K if parts <= most)


def predicted_us(
    rates: Rates,
    tile: Tile,
    t: Tiling,
    problem: Problem,
    split: tuple[bool, bool],
    multiprocessors: int,
) -> float:
    """Return the microseconds that a launch takes on the device with `t`, a tiling with the tile's config.

    The device computes while it reads, so the longer of the two counts, and a little more where they are about equal.
    """
    M, N, K = problem.M, problem.N, problem.K
    times = rates.times
    waves = -(-t.works // multiprocessors)
    # What a tile takes besides its steps is above all its store. The parts of a symmetric result are stored once.
    stores = 1 + (times.mirrored if t.sym is Sym.BOTH and t.parts == 1 else 0)
    a, b = problem.dtypes
    launch_us, read_tb_s, products = times.launch_us, times.read_tb_s, (3 - (a > 0) - (b > 0)) / 3  # of `step_us`
    unsplit = rates.unsplit(problem.dtypes)
    if unsplit is not None and isinstance(tile.config, F16DirectConfig):
        launch_us, read_tb_s, products = unsplit.launch_us, unsplit.read_tb_s, 1.0
    steps_us = t.computed_blocks * tile.step_us * products
    computing = waves * (steps_us + stores * tile.tile_us)
    read = t.products * blocks_of(K) * (M * geometry.line_bytes(a) + N * geometry.line_bytes(b))
    reading = 1e-6 * read / read_tb_s
    us = launch_us + float((computing**OVERLAP + reading**OVERLAP) ** (1 / OVERLAP))
    sides = [(M, problem.layout[0] == "T", a), (N, problem.layout[1] == "N", b)]  # lines, whether strided, and type
    sides = [side for side, in_call in zip(sides, split, strict=True) if in_call]
    busy = splitting.columns_share([lines for lines, strided, _ in sides if strided], multiprocessors)
    for lines, strided, dtype in sides:
        rate = times.split_columns_tb_s * busy if strided else times.split_rows_tb_s
        us += 1e-6 * 2 * ITEM * (rates.split_halves if dtype else 1.0) * lines * K / rate
    if t.parts > 1:
        us += 1e-6 * t.products * ITEM * M * N * (t.parts + 1) / times.reduce_tb_s
    return us + (any(split) + (t.parts > 1)) * times.kernel_us

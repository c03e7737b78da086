"""The one predicate on configs, against the kernels' own static_asserts by the real NVRTC."""

import dataclasses
import math
import re

import compilations
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fastsgemm import config, problem, sgemm
from fastsgemm.config import (
    BlockConfig,
    Config,
    F16DirectConfig,
    Fp16x3Config,
    Fp16x3MmaConfig,
    PipelinedConfig,
    SharedTileConfig,
    SkinnyConfig,
    SkinnyInOrderConfig,
    ThreadColumnConfig,
    ThreadTileConfig,
    VectorizedConfig,
    WarptiledConfig,
)
from fastsgemm.errors import CompileError, ConfigError
from fastsgemm.geometry.variants import Variant
from fastsgemm.jit import compiler, source
from fastsgemm.rungs import IEEE, SKINNY_IN_ORDER, find

SHARED_LIMIT = 232448  # of an H100 or H200, bytes

THREAD_TILED = VectorizedConfig(128, 128, 8, 8, 8)
WARP_TILED = WarptiledConfig(
    128, 128, 8, 8, 4, WM=64, WN=64, WNITER=2, PREFETCH=1, SERPENTINE=1, GROUP_M=8, MIN_BLOCKS=1
)
PIPELINED = PipelinedConfig(
    128, 128, 8, 16, 4, 64, 64, 2, GROUP_M=8, MIN_BLOCKS=1, ORDER=1, FRAGMENTS=2, CP_ASYNC=0, SPREAD=0, SPLIT_K=1
)
TALL = PIPELINED.replace(BM=256, BN=64, TM=8, WM=256, WN=4, WNITER=1)  # a column of each sub-tile just fits
SKINNY = SkinnyConfig(4, 64, 256, TN=4, TK=16, MIN_BLOCKS=1, SPLIT_K=1)


@st.composite
def configs_of(draw, rung):
    """A config whose tiles mostly divide, at times with one constant replaced by anything."""
    edges = [4, 8, 4, 8, 12, 1, 2] if rung.guarded else [4, 8, 4, 8, 12] if rung.vectorized else [1, 2, 3, 4, 8, 16]
    edge = st.sampled_from(edges)
    TM, TN = draw(edge), draw(edge)
    values = {"TM": TM, "TN": TN, "BK": draw(st.sampled_from([8, 16, 32, 4, 12, 6, 1, 64]))}
    if rung.narrow:
        values["BM"] = draw(st.sampled_from([1, 2, 4, 8, 16, 32, 3, 64]))
        values["TN"] = draw(st.sampled_from([1, 2, 4, 4, 8, 3]))
        values["TK"] = draw(st.sampled_from([4, 8, 16, 12, 6]))
        values["BN"] = values["TN"] * draw(st.sampled_from([1, 4, 8, 16, 32, 64, 6]))
        values["BK"] = values["TK"] * draw(st.sampled_from([1, 2, 4, 8, 16, 32, 5]))
        values["MIN_BLOCKS"] = draw(st.sampled_from([1, 2, 32]))
        values["SPLIT_K"] = draw(st.sampled_from([1, 2, 7, 1000]))
    elif "WM" in rung.config.declared():
        lanes = draw(st.sampled_from([4, 8, 2, 16, 1, 32]))
        values["WNITER"] = draw(st.sampled_from([1, 2, 4, 3]))
        values["WM"] = draw(st.sampled_from([1, 2, 4, 3])) * TM * lanes
        values["WN"] = values["WNITER"] * TN * (32 // lanes)
        values["BM"] = values["WM"] * draw(st.sampled_from([2, 1, 4, 3]))
        values["BN"] = values["WN"] * draw(st.sampled_from([1, 2, 4, 3]))
        values["PREFETCH"], values["SERPENTINE"] = draw(st.integers(0, 1)), draw(st.integers(0, 1))
        if rung.splits:
            values["ORDER"], values["CP_ASYNC"] = draw(st.integers(0, 5)), draw(st.integers(0, 3))
            values["SPREAD"] = draw(st.integers(0, 2))
            if values["CP_ASYNC"] >= 2 or draw(st.integers(0, 9)) == 9:
                values["STAGES"] = draw(st.sampled_from([2, 3, 4, 6, 8]))
            values["SLICED_K"] = draw(st.sampled_from([1, 1, 1, 1, 2, 4, 8, 3]))
            values["FRAGMENTS"] = draw(st.sampled_from([1, 2, 1, 2, 4, 8]))
            values["SPLIT_K"] = draw(st.sampled_from([1, 2, 7, 1000]))
            values["SEGMENT"] = draw(st.sampled_from([0, 0, 1024]))
        values["GROUP_M"], values["MIN_BLOCKS"] = draw(st.integers(1, 16)), draw(st.sampled_from([1, 2, 3, 32]))
    else:
        threads = st.sampled_from([8, 16, 32, 4, 64, 1, 7])
        values["BM"] = draw(threads) * (TM if "TM" in rung.config.declared() else 1)
        values["BN"] = draw(threads) * (TN if "TN" in rung.config.declared() else 1)
    values = {name: value for name, value in values.items() if name in rung.config.declared()}
    if draw(st.integers(0, 3)) == 3:
        anything = st.sampled_from([-8, 0, 1, 2, 5, 24, 48, 100, 1000, 4096, 2**20, 2**31])
        values[draw(st.sampled_from([*rung.config.declared()]))] = draw(anything)
    return rung.config(**values)


def variants_of(rung):
    widths = st.sampled_from([1, 4] if rung.vectorized else [1])
    guard = st.booleans() if rung.guarded else st.just(False)
    trans_c = st.booleans() if rung.narrow else st.just(False)
    sym = st.sampled_from(problem.Sym) if rung.guarded else st.just(problem.Sym.WHOLE)
    return st.builds(Variant, st.booleans(), st.booleans(), widths, widths, widths, guard, trans_c, guard, sym=sym)


MOST_UNROLLED = 2048  # FMAs and copies of the inner loop: compiling more takes seconds


def unrolled(config):
    if isinstance(config, SkinnyConfig):
        return config.TK * config.BM * config.TN
    accumulators = math.prod(getattr(config, name, 1) for name in ("TM", "TN", "wmiter", "WNITER"))
    copied = (config.BM + config.BN) // max(1, config.threads)  # a step of k and thread
    return config.tile_k * (accumulators + 4 * copied)


@pytest.mark.parametrize(("drawn", "most_compiled"), [(100, 2), pytest.param(1000, 8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rung", IEEE, ids=str)
def test_what_the_predicate_allows_compiles_and_what_it_refuses_is_explained(rung, drawn, most_compiled):
    legal, illegal = set(), set()

    @settings(max_examples=drawn, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(configs_of(rung), variants_of(rung))
    def look(config, variant):
        found = rung.violations(config, SHARED_LIMIT)
        if found:
            illegal.add(config)
            assert all(violation.quantity and violation.limit and violation.value for violation in found)
            with pytest.raises(ConfigError) as caught:
                rung.check(config, SHARED_LIMIT)
            assert all(str(violation) in str(caught.value) for violation in found)
        elif config not in legal and len(legal) < most_compiled and unrolled(config) <= MOST_UNROLLED:
            legal.add(config)
            compilations.report(source.rung_spec(rung, config, variant).text, rung.kernel, "sm_90")

    look()
    assert len(legal) == most_compiled and len(illegal) >= most_compiled  # both were reached


COPY = """
struct Copy{at} {{
    static constexpr int TILE_MN = {extent}, TILE_K = {BK}, VEC = {width}, THREADS = {threads}, PAD = {pad};
    static constexpr int STEPS = {BK}, LAST = 1, SPREAD = 0, T = {together};
    static constexpr bool K_CONTIGUOUS = {along}, GUARDED = false, ASYNC = {scattered}, IN_LINES = {in_lines};
    using Copy = PipelinedCopy<Copy{at}>;
    static_assert(Copy::COUNT * Copy::THREADS * VEC == TILE_MN * TILE_K, "the shares are the tile");
    static_assert(Copy::TEAM * Copy::PER_LINE == Copy::VECTORS, "a team copies a whole line");
    static_assert(Copy::TEAMS * Copy::OWN_LINES == Copy::LINES, "teams copy all lines");
    static_assert(!IN_LINES || Copy::TEAMS % T == 0 || T % Copy::TEAMS == 0, "its lines are at fixed distances");
    static_assert(Copy::THREADS <= THREADS && 4 * Copy::THREADS >= {least}, "a quarter of the threads copy, at least");
}};
__device__ void copy{at}(float *X) {{ X[{at}] = Copy{at}::Copy(X, 0, 0, 0).place; }}
"""


@pytest.mark.parametrize(("drawn", "most"), [(200, 4), pytest.param(600, 24, marks=pytest.mark.slow)])
def test_the_copies_of_rung_9_share_every_tile_out(drawn, most):
    """Tiles of all kinds, alone, without the arithmetic: of A and B, along k and across, of all widths.

    Float by float along k they also go by cp.async, where the lines of a narrow thread tile have a shorter pad, and
    in vectors of all widths to a tile in lines.
    """
    rung = find("pipelined")
    header = source.plain("device/pipelined_copy.cuh")
    seen = {True: set(), False: set()}  # whether the threads divide the vectors of both tiles

    def copies_of(config):
        copies = []
        for extent, tile in ((config.BM, config.TM), (config.BN, config.TN)):
            kinds = [("true", width, 4, "false", "false") for width in (1, 2, 4)]
            kinds += [("true", 1, min(4, tile), "true", "false")]
            kinds += [("true", width, 0, "true", "true") for width in (1, 2, 4)]
            kinds += [("false", width, 4, "false", "false") for width in (1, 2, 4) if width <= extent]
            for along, width, pad, scattered, in_lines in kinds:
                copies.append(
                    COPY.format(
                        at=len(copies),
                        extent=extent,
                        BK=config.BK,
                        along=along,
                        width=width,
                        threads=config.threads,
                        least=min(config.threads, extent * config.BK // width),
                        pad=pad,
                        scattered=scattered,
                        in_lines=in_lines,
                        together=tile,
                    )
                )
        return copies

    @settings(max_examples=drawn, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(configs_of(rung))
    def look(config):
        if [found for found in rung.violations(config, 2**40) if "registers" not in found.quantity]:
            return
        even = all(extent * config.BK % (4 * config.threads) == 0 for extent in (config.BM, config.BN))
        tiles = (config.BM, config.BN, config.BK, config.threads, min(4, config.TM), min(4, config.TN))
        if tiles in seen[even] or len(seen[even]) == most:
            return
        seen[even].add(tiles)
        copies = copies_of(config)
        calls = "".join(f"copy{at}(X);" for at in range(len(copies)))
        text = f'{header}{"".join(copies)}extern "C" __global__ void copies(float *X) {{{calls}}}'
        compilations.report(text, "copies", "sm_90")

    look()
    assert min(map(len, seen.values())) == most


@pytest.mark.parametrize(("drawn", "most"), [(200, 6), pytest.param(600, 32, marks=pytest.mark.slow)])
def test_rung_10_compiles_exactly_where_the_predicate_says_with_the_shared_memory_it_says(drawn, most):
    """The constants at the head of the file, alone: their static_asserts, and the size in floats."""
    rung = find("skinny")
    seen = {True: set(), False: set()}

    def compiles(config):
        text = source.rung_spec(rung, config, Variant(True, True, trans_c=True)).text  # which has the most padding
        head = text[: text.index('extern "C"')]
        expected = config.static_shared_bytes // 4
        body = f'static_assert(SHARED_FLOATS == {expected}, "formula"); extern "C" __global__ void empty() {{}}'
        try:
            compilations.report(head + body, "empty", "sm_90")
        except CompileError as error:
            if '"formula"' in str(error) and "48 KB" not in str(error):
                raise
            return False
        return True

    @settings(max_examples=drawn, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(configs_of(rung))
    def look(config):
        if config.out_of_range():
            return  # the kernel does not check this
        legal = all("registers" in found.quantity for found in rung.violations(config, SHARED_LIMIT))
        if config.kernel in seen[legal] or len(seen[legal]) == most:
            return
        seen[legal].add(config.kernel)
        assert compiles(config) is legal, config

    look()
    assert min(map(len, seen.values())) == most


# Broken rules: the rung, the config, and what each message says but for its reason.
BROKEN = [
    ("naive", BlockConfig(64, 32), ["threads of a block, BM * BN, must be at most 1024, got 2048"]),
    ("naive", BlockConfig(8, 4), ["threads of a block, BM * BN, must be at least 64, got 32"]),
    ("coalesced", BlockConfig(7, 16), ["threads of a block, BM * BN, must be a multiple of 32, got 112"]),
    ("smem_tiled", SharedTileConfig(32, 32, 2048), [
        "shared memory of a block, 4 * BK * (BM + BN), must be at most 232448 bytes, got 524288 bytes",
    ]),
    ("blocktile_1d", ThreadColumnConfig(64, 64, 0, 8), ["BK must be 1 to 65536, got 0"]),
    ("blocktile_1d", ThreadColumnConfig(60, 64, 8, 8), ["BM must be a multiple of TM = 8, got 60"]),
    ("blocktile_1d", ThreadColumnConfig(2048, 64, 8, 128), [
        "BK * BN must be a multiple of THREADS = 1024, got 512",
        "registers of a thread, at least 2 * TM + 1 + 24, must be at most 255, got 281",
    ]),
    ("blocktile_2d", ThreadTileConfig(128, 132, 8, 8, 8), ["BN must be a multiple of TN = 8, got 132"]),
    ("blocktile_2d", ThreadTileConfig(128, 128, 8, 16, 16), [
        "registers of a thread, at least TM * TN + TM + TN + 24, must be at most 255, got 312",
    ]),
    ("vectorized", VectorizedConfig(128, 128, 4, 8, 8), [
        "BM * BK must be a multiple of 4 * THREADS = 1024, got 512",
        "BK * BN must be a multiple of 4 * THREADS = 1024, got 512",
    ]),
    ("vectorized", VectorizedConfig(96, 96, 8, 6, 4), [
        "BM * BK must be a multiple of 4 * THREADS = 1536, got 768",
        "BK * BN must be a multiple of 4 * THREADS = 1536, got 768",
        "TM must be a multiple of 4, got 6",
    ]),
    ("autotuned", VectorizedConfig(64, 64, 10, 8, 4), [
        "BM * BK must be a multiple of 4 * THREADS = 512, got 640",
        "BK * BN must be a multiple of 4 * THREADS = 512, got 640",
        "BK must be a multiple of 4, got 10",
    ]),
    ("warptiled", WARP_TILED.replace(WM=48), [
        "BM must be a multiple of WM = 48, got 128",
        "WM * WN must be a multiple of 32 * TM * TN * WNITER = 2048, got 3072",
    ]),
    ("warptiled", WARP_TILED.replace(WNITER=3), [
        "WM * WN must be a multiple of 32 * TM * TN * WNITER = 3072, got 4096",
        "WN must be a multiple of WNITER = 3, got 64",
        "WN / WNITER must be a multiple of TN = 4, got 21",
    ]),
    ("warptiled", WARP_TILED.replace(BN=192, WN=96, WNITER=1), [
        "32 * TM * TN * WNITER must be a multiple of WN = 96, got 1024",
        "32 * TM * TN * WNITER / WN must be a multiple of TM = 8, got 10",
    ]),
    ("warptiled", WARP_TILED.replace(BM=96, WM=24, WN=128, TM=4, TN=8, WNITER=3, BK=12), [
        "WN must be a multiple of WNITER = 3, got 128",
        "WN / WNITER must be a multiple of TN = 8, got 42",
    ]),
    ("warptiled", WARP_TILED.replace(TM=8, TN=4, WM=16, WN=256, WNITER=1, BN=256), [
        "32 * TM * TN * WNITER / WN must be a multiple of TM = 8, got 4",
    ]),
    ("warptiled", WARP_TILED.replace(PREFETCH=2), ["PREFETCH must be 0 or 1, got 2"]),
    ("warptiled", WARP_TILED.replace(GROUP_M=0), ["GROUP_M must be 1 to 65536, got 0"]),
    ("pipelined", PIPELINED.replace(ORDER=6), ["ORDER must be 0 to 5, got 6"]),
    ("pipelined", PIPELINED.replace(SPREAD=3), ["SPREAD must be 0 to 2, got 3"]),
    ("pipelined", PIPELINED.replace(STAGES=3), ["CP_ASYNC must be at least 2 where STAGES > 2, got 0"]),
    ("pipelined", PIPELINED.replace(BM=64, BN=64, BK=12, SLICED_K=2, CP_ASYNC=3), [
        "BK / SLICED_K must be a multiple of 4 where CP_ASYNC == 3, got 6",
    ]),
    ("pipelined", PIPELINED.replace(BK=16, CP_ASYNC=3, FRAGMENTS=8), [
        "FRAGMENTS must be at most 4 where CP_ASYNC == 3, got 8",
    ]),
    ("pipelined", PIPELINED.replace(SLICED_K=3), ["SLICED_K must be 1 or 2 or 4 or 8, got 3"]),
    ("pipelined", PIPELINED.replace(BM=64, BN=64, SLICED_K=4), [
        "BK / SLICED_K must be at least 2 * max(FRAGMENTS, 2) = 4, got 2",
    ]),
    ("pipelined", PIPELINED.replace(BK=16, TM=4, WNITER=8, SLICED_K=4), [
        "partial sums of the slices, set by SLICED_K, TN and WNITER, "
        "must be at most 2 * 4 * BK * (BM + BN) = 32768 bytes, got 49152 bytes",
    ]),
    ("pipelined", PIPELINED.replace(BM=256, BN=64, TM=2, TN=8, WN=16, CP_ASYNC=0, SPREAD=2), [
        "a row of C of every thread, set by WM, WN, TN and WNITER, "
        "must be at most 2 * 4 * BK * (BM + BN) = 20480 bytes, got 36864 bytes",
    ]),
    ("pipelined", TALL.replace(BK=4), [
        "a column of a sub-tile of every warp, set by WM, WN, TM, TN and WNITER, "
        "must be at most 2 * 4 * BK * (BM + BN) = 10240 bytes, got 16640 bytes",
    ]),
    ("pipelined", PIPELINED.replace(FRAGMENTS=3), ["FRAGMENTS must be 1 or 2 or 4 or 8, got 3"]),
    ("pipelined", PIPELINED.replace(SPLIT_K=0), ["SPLIT_K must be 1 to 1024, got 0"]),
    ("pipelined", PIPELINED.replace(BK=10), ["BK must be a multiple of 4, got 10"]),
    ("pipelined", PIPELINED.replace(FRAGMENTS=8), ["BK / SLICED_K must be at least 2 * max(FRAGMENTS, 2) = 16, got 8"]),
    ("pipelined", PIPELINED.replace(TM=6, BM=96, WM=48), ["TM must be 1, 2 or a multiple of 4, got 6"]),
    ("pipelined", PIPELINED.replace(BN=96, TM=4, TN=12, WN=96, WNITER=1), [
        "TN must be a divisor of 32, got 12",
        "registers of a thread, for WM * WN results and the copied tiles, must be at most 255, got 272",
    ]),
    ("pipelined", PIPELINED.replace(BK=24, SEGMENT=1024), ["SEGMENT must be a multiple of BK = 24, got 1024"]),
    ("pipelined", PIPELINED.replace(BK=16, SLICED_K=2, SEGMENT=1024), ["SLICED_K must be 1 where SEGMENT > 0, got 2"]),
    ("skinny", SKINNY.replace(BM=3), ["BM must be a power of two, got 3"]),
    ("skinny", SKINNY.replace(BM=64), ["BM must be at most 32, got 64"]),
    ("skinny", SKINNY.replace(BN=34), ["BN must be a multiple of TN = 4, got 34"]),
    ("skinny", SKINNY.replace(TK=6, BK=96), ["TK must be a multiple of 4, got 6"]),
    ("skinny", SKINNY.replace(BK=96), ["BK / TK must be a power of two, got 6"]),
    ("skinny", SKINNY.replace(BN=16, BK=64), [
        "threads of a block, (BN / TN) * (BK / TK), must be a multiple of 32, got 16",
        "threads of a block, (BN / TN) * (BK / TK), must be at least 32, got 16",
    ]),
    ("skinny", SKINNY.replace(BM=32, BK=512), [
        "shared memory of a block, set by BM, BN, BK, TN and TK, must be at most 49152 bytes, got 135168 bytes",
    ]),
    ("skinny", SKINNY.replace(TN=8, BM=32), [
        "shared memory of a block, set by BM, BN, BK, TN and TK, must be at most 49152 bytes, got 69632 bytes",
        "registers of a thread, for BM * TN results and TK * TN loads, must be at most 255, got 412",
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "config", "messages"), BROKEN)
def test_each_rule_states_its_limit_the_value_and_a_reason(name, config, messages):
    broken = find(name).violations(config, SHARED_LIMIT)
    assert [f"{one.quantity} must be {one.limit}, got {one.value}" for one in broken] == messages
    assert all(one.reason or one.quantity in config.constants for one in broken)


REFUSED = {"naive": BlockConfig(64, 32), "warptiled": WARP_TILED.replace(WM=48), "skinny": SKINNY.replace(BK=96)}


@pytest.mark.parametrize("name", REFUSED)
def test_nvrtc_refuses_what_the_predicate_refuses_for_the_same_reason(name):
    """Some of them: tools/write_rules.py writes the kernels' static_asserts from the same rows."""
    rung, config = find(name), REFUSED[name]
    reason = rung.violations(config, SHARED_LIMIT)[0].reason
    with pytest.raises(CompileError, match=re.escape(reason)):
        compiler.report(source.rung_spec(rung, config, Variant()).text, rung.kernel, "sm_90")


@pytest.mark.parametrize("vec_c", [1, 4])
def test_a_symmetric_result_is_stored_where_a_column_of_each_sub_tile_just_fits(vec_c):
    rung, variant = find("pipelined"), Variant(trans_b=True, vec_c=vec_c, sym=problem.Sym.BOTH)
    assert rung.violations(TALL, SHARED_LIMIT) == []
    compilations.report(source.rung_spec(rung, TALL, variant).text, rung.kernel, "sm_90")


def test_shared_memory_is_limited_by_the_device():
    config = dataclasses.replace(THREAD_TILED, BK=64)
    assert config.shared_bytes == 65536
    assert find("vectorized").violations(config, 65536) == []
    assert find("vectorized").violations(config, 65535) != []


def test_every_constant_out_of_range_is_named_at_once():
    found = ThreadTileConfig(0, -1, 8, 8, 2**17).violations(SHARED_LIMIT)
    assert [violation.quantity for violation in found] == ["BM", "BN", "TN"]


@pytest.mark.parametrize("changed", [{}, {"BM": 256, "WNITER": 4}, {"SLICED_K": 2, "BK": 16}], ids=str)
def test_messages_say_how_the_constants_give_the_threads_of_a_block(configs, changed):
    found = [*configs.values(), Fp16x3Config(), Fp16x3MmaConfig()]
    found = [config.replace(**changed) for config in found if changed.keys() <= config.constants.keys()]
    assert found and all(eval(config.THREADS, config.constants) == config.threads for config in found)


@pytest.mark.parametrize(
    "configs",
    [
        (SharedTileConfig(32, 32, 32),),
        (THREAD_TILED,),
        (WARP_TILED,),
        tuple(
            PIPELINED.replace(**more) for more in ({}, {"CP_ASYNC": 3}, {"PARTIAL_ACCUMULATORS": 4}, {"SEGMENT": 1024})
        ),
        (SKINNY, SKINNY.replace(BM=32)),
        (SkinnyInOrderConfig(1, 32, 64, 4, 4),),
        (Fp16x3Config(),),
        (Fp16x3MmaConfig(),),
    ],
    ids=lambda configs: type(configs[0]).__name__,
)
def test_messages_name_the_constants_that_set_the_shared_memory_of_a_block(configs):
    """A constant does if another value of it gives other bytes."""

    def needed(config):
        return config.shared_bytes + getattr(config, "static_shared_bytes", 0)

    found = {
        name
        for config in configs
        for name, constant in config.declared().items()
        for value in (constant.values if len(constant.values) < 100 else (1, 2 * getattr(config, name), 1024))
        if needed(config.replace(**{name: value})) != needed(config)
    }
    [rule] = (rule for group in type(configs[0]).RULES for rule in group if "SHARED" in rule.quantity)
    assert found == set(re.findall(r"[A-Z]\w*", rule.name))


def test_a_message_reads_as_a_sentence():
    with pytest.raises(ConfigError) as caught:
        find("blocktile_1d").check(ThreadColumnConfig(60, 64, 8, 8), SHARED_LIMIT)
    assert str(caught.value) == (
        "illegal config for rung blocktile_1d (BM=60 BN=64 BK=8 TM=8): BM must be a multiple of TM = 8, got 60 "
        "(thread tiles cover the block tile)"
    )


def test_derived_numbers():
    assert (THREAD_TILED.threads, THREAD_TILED.shared_bytes) == (256, 4 * 8 * 256)
    assert (WARP_TILED.threads, WARP_TILED.wmiter) == (128, 2)
    assert [config.tile_k for config in (Fp16x3Config(), F16DirectConfig(), WARP_TILED)] == [32, 64, WARP_TILED.BK]
    pipelined = PipelinedConfig(32, 64, 8, 4, 4, 16, 32, 1, STAGES=3)
    assert pipelined.shared_bytes == 4 * 3 * 8 * (32 + 4 + 64 + 4)
    assert pipelined.replace(PARTIAL_ACCUMULATORS=2).shared_bytes == pipelined.shared_bytes + 4 * 32 * 64


@pytest.mark.parametrize("config", [SKINNY, PipelinedConfig(32, 64, 8, 4, 4, 16, 32, 1), Fp16x3Config()], ids=str)
def test_the_parts_of_k_are_no_constant_of_a_kernel(config):
    assert config.replace(SPLIT_K=4).kernel == config.kernel and config.kernel.SPLIT_K == 1
    assert str(SharedTileConfig(64, 32, BK=8)) == "BM=64 BN=32 BK=8"


def test_a_config_is_a_value():
    assert BlockConfig(8, 8) == BlockConfig(8, 8) and len({BlockConfig(8, 8), BlockConfig(8, 8)}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        BlockConfig(8, 8).BM = 16


def test_named_constants_become_a_config():
    assert WarptiledConfig.from_constants(WARP_TILED.constants) == WARP_TILED


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"BM": 1, "BN": 1, "BQ": 1}, r"unknown constants \['BQ'\]"),
        ({"BM": 1}, r"\['BN'\] of BlockConfig are missing"),
        ({"BM": 1, "BN": "8"}, "BN must be an int, got '8'"),
        ({"BM": 1, "BN": 8.0}, "BN must be an int, got 8.0"),
        ({"BM": 1, "BN": True}, "BN must be an int, got True"),
    ],
)
def test_constants_that_are_none_are_refused(constants, message):
    with pytest.raises(ConfigError, match=message):
        BlockConfig.from_constants(constants)


@pytest.mark.usefixtures("on_host")
def test_the_public_call_takes_configs_of_this_class_only():
    import numpy as np

    with pytest.raises(ConfigError, match="got tuple"):
        sgemm(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32), config=(128, 128))


def test_the_repr_of_a_config_leaves_out_defaults_and_makes_it_again():
    config = SharedTileConfig(32, 64, BK=8)
    assert repr(config) == "SharedTileConfig(BM=32, BN=64, BK=8)"
    assert eval(repr(config)) == config


def test_the_base_class_makes_no_config_and_names_those_that_do():
    with pytest.raises(ConfigError, match=r"base class .*PipelinedConfig"):
        Config(BM=128, BN=128)


FAMILIES = {rung.file: rung.config for rung in (*IEEE, SKINNY_IN_ORDER)} | {"11_fp16x3.cu": Fp16x3Config}


@pytest.mark.parametrize(("file", "family"), FAMILIES.items())
def test_a_family_declares_the_constants_and_the_defaults_of_its_kernel(file, family):
    """Except the constants that the host sets from the operands, and those that are the same for all configs."""
    declared = source.defaults(file)
    of_operands = {"TRANS_A", "TRANS_B", "TRANS_C", "VEC_A", "VEC_B", "VEC_C", "GUARD", "PEEL", "BATCHED", "SOURCE"}
    of_operands |= {"SPLIT_BEFORE", "EXCHANGED", "SYM", "GROUPED", "TYPE_A", "TYPE_B", "ONE_A", "ONE_B"}
    of_launches = {"SPLIT_K", *(["SEGMENT", "PARTIAL_ACCUMULATORS"] if family is PipelinedConfig else [])}
    assert {*family.declared()} - of_launches == declared.keys() - of_operands - {
        "PAD",
        "K_GROUP",
        "MAX_ALTERNATED",
        "MAX_PASS",
        "CHAINS",
        *(["SEGMENT"] if family is SkinnyInOrderConfig else []),
    }
    defaults = {f.name: f.default for f in dataclasses.fields(family) if f.default is not dataclasses.MISSING}
    if family is not Fp16x3Config:  # whose tile was measured to be the best on an H200
        assert defaults == {name: declared.get(name, int(name != "SEGMENT")) for name in defaults}


FP16X3 = [
    ({}, None),
    ({"BM": 96}, "BM"),
    ({"BN": 48}, "BN"),
    ({"STAGES": 3}, "STAGES"),
    ({"STAGES": 8}, "shared memory of a block, 1024 + STAGES * ((BM + BN) * 128 + 16),"),
    ({"BN": 64, "STAGES": 9}, None),
]


@pytest.mark.parametrize(("changed", "quantity"), FP16X3)
def test_the_rules_of_rung_11_are_those_of_its_kernel(changed, quantity):
    config = Fp16x3Config(**changed)
    assert [found.quantity for found in config.violations(SHARED_LIMIT)] == ([quantity] if quantity else [])
    if quantity is None:
        assert config.threads == 384 and config.shared_bytes <= SHARED_LIMIT


def test_the_last_element_of_any_tile_has_a_number_of_32_bits():
    """Kernels add an index in a tile to its first row or column, also where the tile reaches past the matrix."""
    assert SkinnyConfig(BM=1, BN=2048, BK=4, TN=32, TK=4).violations(SHARED_LIMIT) == []
    assert problem.MAX_EXTENT + config.MAX_EXTENT <= 2**31

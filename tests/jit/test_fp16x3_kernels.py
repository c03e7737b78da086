"""The kernels of rung 11 compile cleanly with NVRTC wherever they run, and have the registers that roles hand over."""

import os
from concurrent.futures import ThreadPoolExecutor

import architectures
import compilations
import pytest

from fastsgemm import known_devices
from fastsgemm.geometry.fp16x3 import file_of, ring
from fastsgemm.geometry.splitting import Side, split_launch
from fastsgemm.heuristics import database
from fastsgemm.jit import source
from fastsgemm.problem import DTYPES, DType
from fastsgemm.rungs import kernel_name

FLOAT32 = {"ONE_A": 0, "ONE_B": 0, "GROUPED": 0}
COPY, MULTIPLY = 40, 232  # registers a thread, COPY_REGISTERS and MULTIPLY_REGISTERS of 11_fp16x3.cu


def reports(jobs):
    """Compile (file, constants) for architectures, on all cores; return what ptxas says of each."""

    def look(job):
        file, constants, arch = job
        text = source.with_constants(file, constants)
        return compilations.report(text, kernel_name(file), source.target(file, arch))

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # NVRTC compiles without the interpreter's lock
        return list(zip(jobs, pool.map(look, jobs), strict=True))


def clean(report):
    return report.registers <= 255 and not (report.stack_bytes or report.spill_stores or report.spill_loads)


def faults(jobs):
    return [(job, report) for job, report in reports(jobs) if not clean(report)]


def tiles(arch):
    return [tile.config for tile in database.rates(arch).tiles]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("number", range(len(tiles("sm_90"))))
def test_the_products_on_hopper_have_the_registers_that_they_hand_over(number):
    """setmaxnreg waits for ever if the block holds fewer registers than its warpgroups ask for in the end."""
    config = tiles("sm_90")[number]
    operands = (0, 4, 4, 0, 0), (1, 1, 1, 1, 0), (0, 4, 0, 0, 1), (1, 1, 0, 2, 0), (0, 4, 4, 0, 1), (0, 1, 0, 0, 1)
    names = ("TRANS_C", "VEC_C", "SOURCE", "SPLIT_BEFORE", "SYM")
    constants = config.compiled | dict(zip(names, operands[number % 6], strict=True)) | FLOAT32
    constants["EXCHANGED"] = constants["TRANS_C"]
    [(_, report)] = reports([(file_of(config), constants, "sm_90")])
    assert clean(report), (constants, report)
    consumers = constants["BM"] // 64
    assert report.registers * 128 * (consumers + 1) >= 128 * (COPY + consumers * MULTIPLY), (constants, report)


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize(("vec_c", "source"), [(4, 0), (4, 4), (1, 1)])
@pytest.mark.parametrize("number", range(len(tiles("sm_90"))))
def test_those_of_groups_have_them_too(number, vec_c, source):
    config = tiles("sm_90")[number]
    how = {"TRANS_C": 0, "VEC_C": vec_c, "SOURCE": source, "SPLIT_BEFORE": 0, "SYM": 0, "EXCHANGED": 0}
    constants = config.compiled | how | FLOAT32 | {"GROUPED": 1}
    [(_, report)] = reports([(file_of(config), constants, "sm_90")])
    assert clean(report), (constants, report)
    consumers = constants["BM"] // 64
    assert report.registers * 128 * (consumers + 1) >= 128 * (COPY + consumers * MULTIPLY), (constants, report)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("vec_c", "source"), [(4, 1), (1, 0), (4, 4), (1, 1), (4, 0)])
def test_those_of_symmetric_results_keep_their_sums_in_registers(vec_c, source):
    how = {"TRANS_C": 0, "VEC_C": vec_c, "SOURCE": source, "SPLIT_BEFORE": 0, "EXCHANGED": 0, "SYM": 1}
    most = max(tiles("sm_90"), key=lambda config: (config.BN, config.BM))
    assert faults([(file_of(most), most.compiled | how | FLOAT32, "sm_90")]) == []


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("pair", ["bf16xf32", "f32xbf16", "bf16xbf16"])
@pytest.mark.parametrize("number", range(len(tiles("sm_90"))))
def test_those_of_16_bit_operands_have_them_too(number, pair):
    config, dtypes = tiles("sm_90")[number], DTYPES[pair]
    how = {"TRANS_C": number % 2, "VEC_C": 1 if number % 2 else 4, "SOURCE": 0, "SPLIT_BEFORE": 0, "SYM": 0}
    how["EXCHANGED"] = number % 2
    stages, shared = ring(config, dtypes)
    constants = (
        config.compiled | how | {"ONE_A": int(dtypes.a > 0), "ONE_B": int(dtypes.b > 0), "STAGES": stages, "GROUPED": 0}
    )
    [(_, report)] = reports([(file_of(config), constants, "sm_90")])
    assert clean(report) and shared <= 232448, (constants, report)
    consumers = constants["BM"] // 64
    assert report.registers * 128 * (consumers + 1) >= 128 * (COPY + consumers * MULTIPLY), (constants, report)


RATES = database.rates("sm_90")
LYING = [(tile.config, mixed) for mixed, part in enumerate((RATES.direct, RATES.mixed)) for tile in part.tiles]


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize("written", [0, 1, 2])
@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("number", range(len(LYING)))
def test_the_products_of_16_bit_operands_as_they_lie_have_them_too(number, trans, written):
    config, mixed = LYING[number]
    how = {"TRANS_C": trans, "VEC_C": 1 if trans else 4, "SOURCE": trans, "SYM": 0 if mixed else 1 - trans}
    stages, shared = ring(config, DTYPES["f32xbf16" if mixed else "bf16xbf16"])
    types = {"TYPE": 1 if mixed else 1 + number % 2, "FLOAT_A": mixed, "STAGES": stages}
    constants = config.compiled | how | types | {"TYPE_C": written, "TYPE_OLD": written}
    [(_, report)] = reports([(file_of(config), constants, "sm_90")])
    assert clean(report) and shared <= 232448, (constants, report)
    consumers = constants["BM"] // 64
    assert report.registers * 128 * (consumers + 1) >= 128 * (COPY + consumers * MULTIPLY), (constants, report)


ELSEWHERE = [arch for arch in architectures.KNOWN if arch not in ("sm_75", "sm_90")]
NARROW = ("sm_86", "sm_100", "sm_110")  # stores of C are tried one float at a time


@pytest.mark.sampled(every=2 * len(ELSEWHERE))  # the first
@pytest.mark.parametrize(("reads_source", "sym"), [(True, 1), (False, 0)])
@pytest.mark.parametrize("arch", architectures.parameters(ELSEWHERE))
def test_the_products_elsewhere_compile_cleanly(arch, reads_source, sym):
    vec_c = 1 if arch in NARROW else 4
    how = {"TRANS_C": 0, "VEC_C": vec_c, "SOURCE": vec_c if reads_source else 0, "SYM": sym}
    ones = [(0, 0), (1, 0), (0, 1), (1, 1)] if sym == 0 else [(0, 0)]
    how["GROUPED"] = 1 - sym
    jobs = [(one.compiled | how | {"ONE_A": a, "ONE_B": b}, one) for one in tiles(arch) for a, b in ones]
    assert faults([(file_of(one), constants, arch) for constants, one in jobs]) == []


# A quick run takes the first; tests/sim/test_fp16x3.py runs those of sm_80, without clusters.
@pytest.mark.sampled(every=2 * len(ELSEWHERE) + 2)
@pytest.mark.parametrize("arch", architectures.parameters(["sm_90", *ELSEWHERE]))
@pytest.mark.parametrize("half", [1, 0])
def test_the_other_kernels_compile_cleanly(half, arch):
    vec = 1 if arch in ("sm_80", "sm_100") else 4
    limit = known_devices.find(arch).shared_limit
    splits = [
        split_launch([Side(*one, 1000) for one in sides], K, int(arch[3:]) >= 90, 100, limit).constants
        for K, sides in (
            (700, [(True, vec), (False, vec)]),
            (4000, [(True, 4)]),
            (9000, [(False, vec)]),
            (9000, [(True, vec)]),
            (9000, [(True, 4), (True, 1)]),
            (9000, [(True, 4), (False, 1)]),
        )
    ]
    halves = DType.BF16, DType.F16
    splits += [
        split_launch([Side(*one, 1000, dtype) for one, dtype in sides], K, int(arch[3:]) >= 90, 100, limit).constants
        for K, sides in (
            (700, [((True, vec), halves[0]), ((False, vec), halves[1])]),
            (9000, [((True, 4), halves[1])]),
            (9000, [((False, vec), halves[0])]),
            (9000, [((True, 4), DType.F32), ((True, 1), halves[0])]),
            (4000, [((False, 4), DType.F32), ((False, 4), halves[0])]),
        )
    ]
    jobs = [
        *(("split.cu", constants, arch) for constants in splits),
        *(("split.cu", constants | {"BATCHED": 1}, arch) for constants in splits[1:4]),
        *(("column_maxima.cu", {"VEC": vec, "TYPE": dtype}, arch) for dtype in (0, 1, 2)),
        *(
            ("guard_fp16x3.cu", {"SOURCE": read, "SYM": sym, "TYPE_A": a, "TYPE_B": b, "GROUPED": grouped}, arch)
            for read, sym, a, b, grouped in (
                (0, 1, 0, 0, 0),
                (1, 0, 0, 0, 0),
                (0, 0, 1, 0, 0),
                (1, 1, 2, 1, 0),
                (0, 0, 0, 0, 1),
                (1, 0, 2, 1, 1),
            )
        ),
    ]
    assert faults(jobs[half::2]) == []


def test_a_kernel_with_instructions_of_hopper_is_compiled_for_it_alone():
    assert source.target("11_fp16x3.cu", "sm_90") == "sm_90a"
    assert source.target("11_fp16x3_mma.cu", "sm_90") == source.target("split.cu", "sm_90") == "sm_90"

"""The kernels of rung 11 compile cleanly with NVRTC wherever they run, and have the registers that roles hand over."""

import os
from concurrent.futures import ThreadPoolExecutor

import compilations
import pytest

from fastsgemm.geometry.fp16x3 import file_of
from fastsgemm.geometry.splitting import Side, split_launch
from fastsgemm.heuristics import fp16x3_rates
from fastsgemm.jit import source
from fastsgemm.rungs import kernel_name

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
    return [tile.config for tile in fp16x3_rates.load(arch).tiles]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("number", range(len(tiles("sm_90"))))
def test_the_products_on_hopper_have_the_registers_that_they_hand_over(number):
    """setmaxnreg waits for ever if the block holds fewer registers than its warpgroups ask for in the end."""
    config = tiles("sm_90")[number]
    operands = ((0, 4, 4, 0, 0), (1, 1, 1, 1, 0), (0, 4, 0, 2, 0), (1, 1, 0, 0, 0), (0, 4, 4, 0, 1), (0, 1, 0, 0, 1))
    names = ("TRANS_C", "VEC_C", "SOURCE", "SPLIT_BEFORE", "SYM")
    constants = config.compiled | dict(zip(names, operands[number % 6], strict=True))
    [(_, report)] = reports([(file_of(config), constants, "sm_90")])
    assert clean(report), (constants, report)
    consumers = constants["BM"] // 64
    assert report.registers * 128 * (consumers + 1) >= 128 * (COPY + consumers * MULTIPLY), (constants, report)


VECTORS = {"sm_80": 4, "sm_86": 1, "sm_89": 4, "sm_100": 1, "sm_120": 4}  # floats of a store of C


@pytest.mark.sampled(every=2 * len(VECTORS))  # the first
@pytest.mark.parametrize(("reads_source", "sym"), [(True, 1), (False, 0)])
@pytest.mark.parametrize(("arch", "vec_c"), VECTORS.items())
def test_the_products_elsewhere_compile_cleanly(arch, vec_c, reads_source, sym):
    how = {"TRANS_C": 0, "VEC_C": vec_c, "SOURCE": vec_c if reads_source else 0, "SYM": sym}
    assert faults([(file_of(one), one.compiled | how, arch) for one in tiles(arch)]) == []


@pytest.mark.sampled(every=6)  # the first; tests/sim/test_fp16x3.py runs those of sm_80, without clusters
@pytest.mark.parametrize("arch", ["sm_90", "sm_80", "sm_86", "sm_89", "sm_100", "sm_120"])
def test_the_other_kernels_compile_cleanly(arch):
    vec = 1 if arch in ("sm_80", "sm_100") else 4
    limit = 101376 if arch in ("sm_86", "sm_89", "sm_120") else 232448  # bytes of shared memory
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
    jobs = [
        *(("split.cu", constants, arch) for constants in splits),
        ("column_maxima.cu", {"VEC": vec}, arch),
        *(("reduce_fp16x3.cu", {"VEC_C": vec, "SOURCE": read, "SYM": sym}, arch) for read, sym in ((0, 0), (vec, 1))),
        *(("guard_fp16x3.cu", {"SOURCE": read, "SYM": sym}, arch) for read, sym in ((0, 1), (1, 0))),
    ]
    assert faults(jobs) == []


def test_a_kernel_with_instructions_of_hopper_is_compiled_for_it_alone():
    assert source.target("11_fp16x3.cu", "sm_90") == "sm_90a"
    assert source.target("11_fp16x3_mma.cu", "sm_90") == source.target("split.cu", "sm_90") == "sm_90"

"""The kernels of rung 11 compile cleanly with NVRTC, and have the registers that their roles hand over."""

import os
from concurrent.futures import ThreadPoolExecutor

from fastsgemm.jit import compiler, source

COPY, MULTIPLY = 40, 232  # registers a thread, COPY_REGISTERS and MULTIPLY_REGISTERS of 11_fp16x3.cu
PRODUCTS = {
    "128x128": {"BM": 128, "BN": 128, "SETS": 3, "PROMOTE_STAGES": 2, "STAGES": 7, "TRANS_C": 0, "VEC_C": 2},
    "128x192": {"BM": 128, "BN": 192, "SETS": 2, "PROMOTE_STAGES": 2, "STAGES": 5, "TRANS_C": 0, "VEC_C": 1},
    "swapped": {"BM": 64, "BN": 16, "SETS": 3, "PROMOTE_STAGES": 1, "STAGES": 20, "TRANS_C": 1, "VEC_C": 1},
}
OTHERS = [
    ("11_fp16x3_mma.cu", "fp16x3_mma", "sm_80"),
    ("split_rows.cu", "split_rows", "sm_80"),
    ("column_maxima.cu", "column_maxima", "sm_80"),
    ("split_columns.cu", "split_columns", "sm_90"),
    ("reduce_fp16x3.cu", "reduce_fp16x3", "sm_80"),
    ("guard_fp16x3.cu", "guard_fp16x3", "sm_80"),
]


def with_constants(file, constants):
    lines = [f"constexpr int {name} = {value};" for name, value in constants.items()]
    return "\n".join(["#define CONSTANTS", *lines, source.plain(file)])


def reports(jobs):
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # NVRTC compiles without the interpreter's lock
        return list(pool.map(lambda job: compiler.report(*job), jobs))


def clean(report):
    return not (report.stack_bytes or report.spill_stores or report.spill_loads)


def test_the_products_on_hopper_have_the_registers_that_they_hand_over():
    """setmaxnreg waits for ever if the block holds fewer registers than its warpgroups ask for in the end."""
    jobs = [
        (with_constants("11_fp16x3.cu", constants | {"GROUP_M": 8}), "fp16x3", "sm_90a")
        for constants in PRODUCTS.values()
    ]
    for (name, constants), report in zip(PRODUCTS.items(), reports(jobs), strict=True):
        consumers = constants["BM"] // 64
        assert clean(report), (name, report)
        assert report.registers * 128 * (consumers + 1) >= 128 * (COPY + consumers * MULTIPLY), (name, report)


def test_the_other_kernels_compile_cleanly_with_their_defaults():
    jobs = [(source.plain(file), kernel, arch) for file, kernel, arch in OTHERS]
    for job, report in zip(OTHERS, reports(jobs), strict=True):
        assert clean(report), (job, report)

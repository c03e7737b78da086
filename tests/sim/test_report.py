import numpy as np

from fastsgemm.sim.ptx import SourceLine


def test_lines_add_up_to_the_total(launch):
    source = (
        "extern __shared__ float s[];\n"
        "s[threadIdx.x] = A[threadIdx.x];\n"
        "__syncthreads();\n"
        "float x = s[threadIdx.x ^ 1];\n"
        "x = __fmaf_rn(x, x, s[0]);\n"
        "C[2 * threadIdx.x] = x;"
    )
    out = np.zeros(128, np.float32)
    report = launch(source, "AC", {"A": np.ones(64, np.float32), "C": out}, block=64, shared_bytes=256)
    lines, total = report.lines, report.total
    at = {n: lines[SourceLine("kernel.cu", n)] for n in range(3, 8)}
    assert sum(line.instructions for line in lines.values()) == total.instructions
    assert (at[3].loads["A"].requests, at[3].loads["A"].sectors_per_request) == (2, 4)
    assert (at[3].shared_stores.requests, at[3].shared_stores.wavefronts) == (2, 2)
    assert at[4].barriers == total.barriers == 1
    assert at[5].shared_loads.wavefronts_per_request == 1
    assert (at[6].fmas, at[6].thread_fmas) == (2, 64)
    assert at[7].stores["C"].sectors_per_request == 8
    assert total.shared_loads.requests == 4
    assert report.shared_bytes == 256 and report.spilled == 0 and report.registers > 0


def test_a_guarded_fma_counts_the_threads_that_did_it(launch):
    source = (
        "float x = C[threadIdx.x];\n"
        'asm volatile("{ .reg .pred p; setp.lt.s32 p, %1, 10; @p fma.rn.f32 %0, %0, %0, %0; }"'
        ' : "+f"(x) : "r"(int(threadIdx.x)));\n'
        "C[threadIdx.x] = x;"
    )
    out = np.ones(64, np.float32)
    report = launch(source, "C", {"C": out}, block=64)
    assert (report.total.fmas, report.total.thread_fmas) == (2, 10)
    np.testing.assert_array_equal(out, np.where(np.arange(64) < 10, 2, 1))


def test_an_fma_of_pairs_is_one_instruction_and_two_fmas(launch):
    source = (
        "const int t = threadIdx.x;\n"
        "float x = C[t], y = C[t + 64];\n"
        'asm volatile("{ .reg .b64 p, q; .reg .pred few; setp.lt.s32 few, %2, 10;"'
        '"mov.b64 p, {%0, %1}; mov.b64 q, {%1, %1}; @few fma.rn.f32x2 p, p, q, q; mov.b64 {%0, %1}, p; }"'
        ' : "+f"(x), "+f"(y) : "r"(t));\n'
        "C[t] = x, C[t + 64] = y;"
    )
    out = np.repeat(np.array([2, 3], np.float32), 64)
    total = launch(source, "C", {"C": out}, block=64, arch="sm_100").total
    moves = source.replace("; @few", "; mov.b64 q, {%1, %1}; mov.b64 {%0, %1}, p; @few")
    more = launch(moves, "C", {"C": out.copy()}, block=64, arch="sm_100").total
    assert more.instructions == total.instructions  # to take two registers as a pair is no instruction
    assert (total.fma_instructions, total.fmas, total.thread_fmas) == (2, 4, 20)
    np.testing.assert_array_equal(out, [9] * 10 + [2] * 54 + [12] * 10 + [3] * 54)

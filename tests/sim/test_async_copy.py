"""cp.async, on small kernels of its own: what lands when, and what must not be touched before."""

import numpy as np
import pytest

from fastsgemm.sim.errors import GlobalAccessError, MisalignedError, RaceError, UnknownInstructionError

HEAD = """
__shared__ __align__(16) float s[128];
const unsigned to = (unsigned)__cvta_generic_to_shared(s + {width} * threadIdx.x);
const float* from = A + {width} * threadIdx.x;
"""
COPY = 'asm volatile("cp.async.ca.shared.global [%0], [%1], {bytes};" :: "r"(to), "l"(from) : "memory");\n'
COMMIT = 'asm volatile("cp.async.commit_group;" ::: "memory");\n'
WAIT = 'asm volatile("cp.async.wait_group {pending};" ::: "memory");\n'
WAIT_ALL = 'asm volatile("cp.async.wait_all;" ::: "memory");\n'


@pytest.fixture
def arrays():
    return {"A": np.arange(128, dtype=np.float32), "C": np.zeros(128, np.float32)}


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("done", [COMMIT + WAIT.format(pending=0), WAIT_ALL])
def test_a_copy_lands(launch, arrays, width, done):
    source = HEAD.format(width=width) + COPY.format(bytes=4 * width) + done
    source += (
        f"__syncthreads();\nfor (int i = 0; i < {width}; ++i) C[32 * i + threadIdx.x] = s[32 * i + (threadIdx.x ^ 5)];"
    )
    report = launch(source, "AC", arrays)
    lanes = np.arange(32 * width)
    np.testing.assert_array_equal(arrays["C"][lanes], lanes ^ 5)
    loads, stores = report.total.loads["A"], report.total.shared_stores
    assert (loads.requests, loads.sectors, loads.bytes) == (1, 4 * width, 128 * width)
    assert (stores.requests, stores.wavefronts) == (1, width)


def test_l2_only_and_hints(launch, arrays):
    copy = 'asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");\n'
    launch(HEAD.format(width=4) + copy + WAIT_ALL + "C[threadIdx.x] = s[4 * threadIdx.x];", "AC", arrays)
    np.testing.assert_array_equal(arrays["C"][:32], 4 * np.arange(32))


def test_a_hint_with_an_operand_is_not_taken_for_the_bytes_to_read(launch, arrays):
    hint = '"cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"'
    copy = f'asm volatile({hint} :: "r"(to), "l"(from), "l"(0x12f0000000000000) : "memory");\n'
    with pytest.raises(UnknownInstructionError, match="cache_hint"):
        launch(HEAD.format(width=4) + copy + WAIT_ALL + "C[threadIdx.x] = s[4 * threadIdx.x];", "AC", arrays)


@pytest.mark.parametrize("read", [0, 4, 8, 12, 16])
def test_the_rest_becomes_zero_and_is_not_read(launch, arrays, read):
    copy = (
        'asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;"'
        f' :: "r"(to), "l"(from), "r"({read}) : "memory");\n'
    )
    source = (
        HEAD.format(width=4)
        + copy
        + WAIT_ALL
        + "for (int i = 0; i < 4; ++i) C[4 * threadIdx.x + i] = s[4 * threadIdx.x + i];"
    )
    arrays["A"] = arrays["A"][: 124 + read // 4]  # nothing beyond is there
    launch(source, "AC", arrays)
    table = np.arange(128, dtype=np.float32).reshape(32, 4)
    table[:, read // 4 :] = 0
    np.testing.assert_array_equal(arrays["C"].reshape(32, 4), table)
    if read == 16:
        arrays["A"] = arrays["A"][:127]
        with pytest.raises(GlobalAccessError, match="thread 31"):
            launch(source, "AC", arrays)


def test_a_guarded_copy(launch, arrays):
    copy = (
        'asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.ca.shared.global [%0], [%1], 4; }"'
        ' :: "r"(to), "l"(from), "r"(int(threadIdx.x < 20)) : "memory");\n'
    )
    source = HEAD.format(width=1) + "s[threadIdx.x] = -1.0f;\n" + copy + WAIT_ALL + "C[threadIdx.x] = s[threadIdx.x];"
    arrays["A"] = arrays["A"][:20]
    launch(source, "AC", arrays)
    np.testing.assert_array_equal(arrays["C"][:32], np.where(np.arange(32) < 20, np.arange(32), -1))


def test_groups_land_in_order(launch, arrays):
    second = COPY.replace("(to)", "(to + 128)").replace("(from)", "(from + 32)").format(bytes=4)
    source = HEAD.format(width=1) + COPY.format(bytes=4) + COMMIT + second + COMMIT + WAIT.format(pending=1)
    first_read = "__syncthreads(); C[threadIdx.x] = s[31 - threadIdx.x];\n"
    second_read = "C[32 + threadIdx.x] = s[32 + threadIdx.x];\n"
    launch(source + first_read + WAIT.format(pending=0) + second_read, "AC", arrays)
    np.testing.assert_array_equal(arrays["C"][:64], [*range(31, -1, -1), *range(32, 64)])
    with pytest.raises(RaceError, match="touches shared memory at 128 while an asynchronous copy"):
        launch(source + first_read + second_read, "AC", arrays)


def test_a_copy_that_landed_needs_a_barrier_for_others(launch, arrays):
    source = HEAD.format(width=1) + COPY.format(bytes=4) + WAIT_ALL + "{barrier}\nC[threadIdx.x] = s[threadIdx.x ^ 1];"
    launch(source.replace("{barrier}", "__syncthreads();"), "AC", arrays)
    with pytest.raises(RaceError, match=r"thread 0 .*that thread 1 wrote"):
        launch(source.replace("{barrier}", ""), "AC", arrays)


def test_a_barrier_is_no_wait(launch, arrays):
    source = HEAD.format(width=1) + COPY.format(bytes=4) + COMMIT + "__syncthreads();\nC[threadIdx.x] = s[threadIdx.x];"
    with pytest.raises(RaceError, match="in flight"):
        launch(source, "AC", arrays)


def test_writing_over_what_another_still_reads(launch, arrays):
    source = (
        HEAD.format(width=1)
        + "s[threadIdx.x] = A[0];\n__syncthreads();\nC[threadIdx.x] = s[threadIdx.x ^ 1];\n{barrier}"
    )
    source += COPY.format(bytes=4) + WAIT_ALL
    launch(source.replace("{barrier}", "__syncthreads();"), "AC", arrays)
    with pytest.raises(RaceError, match=r"thread 0 .*writes .*thread 1 read"):
        launch(source.replace("{barrier}", ""), "AC", arrays)


def test_a_misaligned_copy(launch, arrays):
    with pytest.raises(MisalignedError, match=r"thread 1 .*copies 16 bytes from"):
        launch(HEAD.format(width=4).replace("A + 4 *", "A +") + COPY.format(bytes=16) + WAIT_ALL, "AC", arrays)


def test_threads_wait_each_for_their_own_groups(launch, arrays):
    source = HEAD.format(width=1) + "if (threadIdx.x & 1) {\n" + COPY.format(bytes=4) + COMMIT + "}\n"
    source += (
        "else { s[threadIdx.x] = 7.0f;\n"
        + COMMIT
        + COMMIT
        + "}\n"
        + WAIT.format(pending=0)
        + "C[threadIdx.x] = s[threadIdx.x];"
    )
    launch(source, "AC", arrays)
    np.testing.assert_array_equal(arrays["C"][:32], np.where(np.arange(32) % 2, np.arange(32), 7))

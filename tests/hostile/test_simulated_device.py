"""Kernels that commit a fault which a GPU would not report, each beside one that just does not.

The simulated device must name the fault of the first and run the second.
"""

import contextlib
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from fastsgemm.sim import Machine, Region, machine, nvrtc, program, ptx
from fastsgemm.sim.errors import (
    GlobalAccessError,
    InstructionLimitError,
    LaunchError,
    PtxError,
    RaceError,
    SimError,
    TrapError,
    UnfinishedCopyError,
    UnreachableCodeError,
)

ATTACKS = 60  # draws of each test with drawn inputs


def launch(body, arrays, grid=1, block=32, limit=None, read_only=()):
    """Launch a kernel whose parameters are float pointers, one for each array."""
    parameters = ", ".join(f"float* {name}" for name in arrays)
    source = f'#line 1 "kernel.cu"\nextern "C" __global__ void kernel({parameters}) {{\n{body}\n}}\n'
    operands = {name: Region(array, write=name not in read_only) for name, array in arrays.items()}
    return Machine("sm_90").launch(source, "kernel", grid, block, 0, list(arrays), operands, limit)


def floats(count):
    return np.arange(count, dtype=np.float32)


def fails(error, body, match="", **how):
    arrays = {"A": floats(256), "C": floats(256)}
    with pytest.raises(error, match=match):
        launch(body, arrays, **how)
    np.testing.assert_array_equal(arrays["C"], floats(256), "a refused launch writes nothing")


def passes(body, **how):
    arrays = {"A": floats(256), "C": floats(256)}
    launch(body, arrays, **how)
    return arrays["C"]


@pytest.fixture(autouse=True)
def _count(request, tried):
    drawn = hasattr(getattr(request.node, "obj", None), "hypothesis")
    tried("simulated kernels", ATTACKS if drawn else 1)


# Ends that no kernel should come to


@pytest.mark.parametrize("body", ["__trap();", 'asm volatile("trap;");', 'asm volatile("brkpt;");'])
def test_a_trap_is_named(body):
    guarded = f"if (C[threadIdx.x] == {{}}) {{{{\n{body}\n}}}}\nC[threadIdx.x] = 1.0f;"
    fails(TrapError, guarded.format(7), "thread 7 of block 0 executes a trap, at kernel.cu:3")
    passes(guarded.format(99))
    fails(TrapError, body, "thread 0 of block 0")


@pytest.mark.parametrize("offset", [0, 4, 4096])
@pytest.mark.parametrize("pointer", ["(float*)(C[0] == 0 ? {offset}ull : (unsigned long long)C)"])
def test_a_null_pointer_is_named(pointer, offset):
    pointer = pointer.format(offset=offset)
    fails(GlobalAccessError, f"*({pointer}) = 1.0f;", rf"writes 4 bytes at 0x\w+ \(a null pointer \+ {offset} bytes\)")
    fails(
        GlobalAccessError,
        f"C[1] = *(volatile float*)({pointer});",
        rf"reads 4 bytes at 0x\w+ \(a null pointer \+ {offset} bytes\)",
    )
    fails((TrapError, GlobalAccessError), f"*(float*){offset} = 1.0f;", "kernel.cu:2")
    fails(GlobalAccessError, f"C[0] = *(volatile float*){offset}ull;", "null pointer")


def test_code_that_the_compiler_ruled_out():
    body = "if (C[threadIdx.x] < {}) C[threadIdx.x] = 1;\nelse __builtin_unreachable();"
    fails(UnreachableCodeError, "__builtin_unreachable();", "past the end of the kernel")
    passes(body.format(999))


@pytest.mark.parametrize(
    "loop",
    [
        "while (true) {{}}",
        "for (volatile float* p = C; *p < {end};) {{}}",
        "for (volatile float* p = C; *p < {end};) __syncthreads();",
        "if (threadIdx.x / 32 == 1) for (volatile float* p = C; *p < {end};) {{}}",
        "for (int i = 0; A[i % 256] < {end}; ++i) {{}}",
    ],
)
def test_an_endless_loop_ends(loop):
    how = {"block": 64, "limit": 2000, "read_only": ("A",)}
    fails(InstructionLimitError, loop.format(end=999), "more than 2000 instructions.*kernel.cu:2", **how)
    if "{end}" in loop:
        passes(loop.format(end=-1), **how)


def test_the_limit_of_a_launch_follows_the_operands(monkeypatch):
    body = "float x = 0;\n#pragma unroll 1\nfor (int i = 0; i < 256; ++i) x += A[i];\nC[0] = x;"
    monkeypatch.setattr(machine, "_LEAST_LIMIT", 0)
    assert passes(body, block=1)[0] == 255 * 128
    monkeypatch.setattr(machine, "_LIMIT_PER_STEP", 1)
    fails(InstructionLimitError, body, "more than 256 instructions", block=1)


# Out of bounds


@given(st.data())
@settings(max_examples=ATTACKS, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_index_never_leads_to_another_operand(data):
    """Far beyond the end, where another operand used to lie."""
    sizes = {name: data.draw(st.integers(1, 3000), name) for name in "ABC"}
    start = data.draw(st.sampled_from("ABC"), "from")
    outside = st.one_of(st.integers(sizes[start], 20000), st.integers(-20000, -1), st.integers(-(1 << 33), 1 << 33))
    index = data.draw(outside.filter(lambda i: not 0 <= i < sizes[start]), "index")
    arrays = {name: floats(size) for name, size in sizes.items()} | {"index": np.array([index], np.int64)}
    for what in (f"C[0] = {start}[i];", f"{start}[i] = 1.0f;"):
        with pytest.raises(GlobalAccessError, match="belongs to no operand"):
            launch("const long long i = *(const long long*)index;\n" + what, arrays)


def test_accesses_to_several_operands_at_once():
    """One instruction whose lanes reach different operands is as good as several."""
    body = "const float* p = threadIdx.x % 2 ? A : C;\nC[threadIdx.x] = p[threadIdx.x + {}] + 1.0f;"
    np.testing.assert_array_equal(passes(body.format(0))[:32], np.arange(1, 33))
    fails(GlobalAccessError, body.format(225), r"thread 31 of block 0 reads 4 bytes at .* \(A \+ 1024 bytes\)")


def test_more_operands_than_can_be_told_apart():
    with pytest.raises(LaunchError, match="at most 63 operands, got 64"):
        launch("", {f"x{i}": floats(1) for i in range(64)})


# Races in global memory

RACES = {
    "two blocks store": ("C[threadIdx.x] = blockIdx.x;", {"grid": 2}, "block 0 writes .* thread 0 of block 1 writes"),
    "two warps store": ("C[threadIdx.x % 32] = threadIdx.x;", {"block": 64}, "writes .* writes"),
    "two lanes store": ("C[threadIdx.x / 2] = threadIdx.x;", {}, "writes .* writes"),
    "one after the other": (
        "if (threadIdx.x < 32) C[threadIdx.x] = 1.0f;\nelse C[threadIdx.x - 32] = A[3];",
        {"block": 64},
        r"thread 0 of block 0 writes .* thread 32 of block 0 writes",
    ),
    "a block reads what another wrote": (
        "if (blockIdx.x == 0) C[0] = 5.0f;\nelse if (threadIdx.x == 1) C[1] = ((volatile float*)C)[0];",
        {"grid": 2},
        "writes global memory .* thread 1 of block 1 read",
    ),
    "a block writes what another read": (
        "if (blockIdx.x == 1) C[0] = 5.0f;\nelse if (threadIdx.x == 1) C[1] = ((volatile float*)C)[0];",
        {"grid": 2},
        "thread 1 of block 0 reads global memory .* block 1 wrote",
    ),
    "a vector overlaps a scalar": (
        "if (threadIdx.x == 0) *(float4*)C = make_float4(1, 2, 3, 4);\nelse C[3] = 9.0f;",
        {"block": 2},
        "thread 1 of block 0 wrote",
    ),
}


@pytest.mark.parametrize("name", RACES)
def test_a_race_in_global_memory(name):
    body, how, message = RACES[name]
    fails(RaceError, body, message, **how)


@pytest.mark.parametrize("lanes", [2, 3])
def test_a_race_across_batches(lanes, monkeypatch):
    """The blocks of a launch need not be simulated together."""
    monkeypatch.setattr(machine, "_MOST_LANES", 32 * lanes)
    fails(RaceError, "C[(threadIdx.x + 32 * blockIdx.x) % 224] = blockIdx.x;", "block 7 writes .* block 0", grid=8)
    passes("C[threadIdx.x + 32 * blockIdx.x] = blockIdx.x;", grid=8)


EXCHANGE = """C[threadIdx.x] = threadIdx.x + 1.0f;
{barrier}
const float x = ((volatile float*)C)[threadIdx.x ^ {other}];
{barrier}
C[threadIdx.x ^ {third}] = x;"""


@pytest.mark.parametrize(
    ("barrier", "other", "third", "legal"),
    [
        ("__syncthreads();", 32, 33, True),
        ("__syncthreads();", 1, 2, True),
        ("__syncwarp();", 1, 2, True),
        ("__syncwarp();", 32, 33, False),
        ("__syncwarp();", 1, 32, False),
        ("", 1, 2, False),
        ("__threadfence_block();", 1, 2, False),
    ],
)
def test_what_puts_global_accesses_in_order(barrier, other, third, legal):
    body = EXCHANGE.format(barrier=barrier, other=other, third=third)
    if legal:
        expected = np.empty(64, np.float32)
        expected[np.arange(64) ^ third] = (np.arange(64) ^ other) + 1
        np.testing.assert_array_equal(passes(body, block=64)[:64], expected)
    else:
        fails(RaceError, body, "with no barrier between them", block=64)


@pytest.mark.parametrize(
    ("barrier", "block", "legal"),
    [("__syncthreads();", 64, True), ("__syncwarp();", 32, True), ("__syncwarp();", 64, False), ("", 32, False)],
)
def test_writing_what_many_have_read(barrier, block, legal):
    body = f"const float x = ((volatile float*)C)[0];\n{barrier}\nif (threadIdx.x == 5) C[0] = x + 7.0f;"
    if legal:
        assert passes(body, block=block)[0] == 7
    else:
        fails(
            RaceError,
            body,
            r"thread 5 of block 0 writes .*\(C \+ 0 bytes\) that thread \d+ .*and others read",
            block=block,
        )


def test_what_is_no_race():
    passes("C[0] = 4.0f;", grid=3, block=64)  # all write the same
    passes("C[threadIdx.x] += 1.0f; C[threadIdx.x] += C[threadIdx.x];", block=64)
    passes("C[threadIdx.x] = A[0] + A[7];", block=64)
    source = """extern "C" __global__ void bytes(unsigned char* C) { C[threadIdx.x] = threadIdx.x; }"""
    out = np.zeros(64, np.float32)
    Machine("sm_90").launch(source, "bytes", 1, 256, 0, ["C"], {"C": Region(out, write=True, complete=True)})
    np.testing.assert_array_equal(out.view(np.uint8), np.arange(256))


def test_narrow_stores_beside_copies_of_a_few_bytes():
    body = COPY.replace("16;", "16, 5;").replace("float* from", "const float* from") + WAIT + READ
    found = passes(body)
    np.testing.assert_array_equal(found[::4][:32].view(np.uint32), floats(256)[::4][:32].view(np.uint32))


@given(st.data())
@settings(max_examples=ATTACKS, deadline=None)
def test_a_race_is_found_where_two_indices_meet(data):
    """Every thread stores its own number to a drawn place: a race where two of them are the same place."""
    places = data.draw(st.lists(st.integers(0, 255), min_size=64, max_size=64), "places")
    if data.draw(st.booleans(), "all different"):
        places = random.Random(sum(places)).sample(range(256), 64)
    block = data.draw(st.sampled_from([1, 16, 32, 64]), "block")
    arrays = {"to": np.array(places, np.int32), "C": floats(256)}
    body = "const int i = blockIdx.x * blockDim.x + threadIdx.x;\nC[((const int*)to)[i]] = -1.0f - i;"
    if len(set(places)) < 64:
        with pytest.raises(RaceError):
            launch(body, arrays, grid=64 // block, block=block, read_only=("to",))
    else:
        launch(body, arrays, grid=64 // block, block=block, read_only=("to",))
        np.testing.assert_array_equal(arrays["C"][places], -1 - np.arange(64))


# Asynchronous copies

COPY = """__shared__ __align__(16) float s[128];
const unsigned to = (unsigned)__cvta_generic_to_shared(s + 4 * threadIdx.x);
const float* from = C + 4 * threadIdx.x;
asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
"""
COMMIT = 'asm volatile("cp.async.commit_group;" ::: "memory");\n'
WAIT_FOR = 'asm volatile("cp.async.wait_group {};" ::: "memory");\n'
WAIT = 'asm volatile("cp.async.wait_all;" ::: "memory");\n'
READ = "__syncthreads();\nC[4 * threadIdx.x + 1] = s[4 * threadIdx.x];"


@pytest.mark.parametrize("end", ["", COMMIT, COMMIT + WAIT_FOR.format(1), WAIT_FOR.format(0), "__syncthreads();"])
def test_a_copy_in_flight_at_the_end(end):
    fails(UnfinishedCopyError, COPY + end, "thread 0 of block 0 ends while .* in flight, at kernel.cu:5")
    passes(COPY + end + WAIT)
    passes(COPY + end + COMMIT + WAIT_FOR.format(0))


def test_a_copy_that_one_thread_forgot():
    fails(UnfinishedCopyError, COPY + "if (threadIdx.x == 9) return;\n" + WAIT, "thread 9 of block 0 ends")
    fails(UnfinishedCopyError, "if (threadIdx.x != 9) return;\n" + COPY, "thread 9 of block 0 ends")


@pytest.mark.parametrize("shift", [0, 1, 3, 4, 64, 127])
def test_the_source_of_a_copy_is_overwritten(shift):
    """By the thread itself, its neighbour and those of another warp."""
    write = f"C[(4 * threadIdx.x + {shift}) % 128] = 3.0f;\n"
    fails(RaceError, COPY + write + WAIT + READ, "writes .* while an asynchronous copy from it is in flight")
    passes(COPY + "C[128 + threadIdx.x] = 3.0f;\n" + WAIT + READ)
    passes(COPY + WAIT + "__syncthreads();\n" + write)
    passes(write + "__syncthreads();\n" + COPY + WAIT)
    if shift > 3:
        fails(RaceError, COPY + WAIT + write, "writes .* read with no barrier between them")
        fails(RaceError, write + COPY + WAIT, "wrote with no barrier between them")


def test_another_block_overwrites_the_source():
    other = "if (blockIdx.x == {}) {{ C[threadIdx.x] = 3.0f; return; }}\n"
    for first in (0, 1):
        fails(RaceError, other.format(first) + COPY + WAIT, "with no barrier|in flight", grid=2)


# Damaged code


@pytest.fixture(scope="module")
def whole():
    source = """extern "C" __global__ void kernel(float* A, float* C) {
        __shared__ __align__(16) float s[128];
        const unsigned to = (unsigned)__cvta_generic_to_shared(s + 4 * threadIdx.x);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(to), "l"(A + 4 * threadIdx.x) : "memory");
        asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        float4 x = *(float4*)(s + 4 * (threadIdx.x ^ 1));
        for (int i = 0; i < 5; ++i) x.x = __fmaf_rn(x.y, x.z, x.x + C[i]);
        __syncwarp();
        if (threadIdx.x < 30) C[threadIdx.x + 32] = x.x;
    }"""
    return nvrtc.compile_source(source, "sm_90")


@given(data=st.data())
@settings(max_examples=5 * ATTACKS, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_code_ends_in_an_error_of_ours(data, whole):
    """Words of the code are swapped, repeated or dropped: it runs, or what is wrong is said."""
    start = whole.ptx.index("{") + 1
    words = whole.ptx[start:].split(" ")
    pieces = sorted({piece for word in words for piece in word.replace(",", " ").split()})
    for _ in range(data.draw(st.integers(1, 3), "faults")):
        at = data.draw(st.integers(0, len(words) - 1), "at")
        words[at : at + 1] = data.draw(
            st.sampled_from([[], [words[at]] * 2, [data.draw(st.sampled_from(pieces), "word")]]), "becomes"
        )
    broken = structs.replace(whole, ptx=whole.ptx[:start] + " ".join(words))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvrtc, "compile_source", lambda source, arch: broken)
        operands = {"A": Region(floats(128)), "C": Region(floats(128), write=True)}
        with contextlib.suppress(SimError):
            Machine("sm_90").launch("", "kernel", 1, 32, 0, ["A", "C"], operands, limit=5000)


def test_code_that_is_cut_short(whole):
    start = whole.ptx.index(".entry")
    for end in range(start, len(whole.ptx), 61):
        try:
            kernels = ptx.parse(whole.ptx[:end])
        except PtxError:
            continue
        for kernel in kernels.values():
            program.decode(kernel)

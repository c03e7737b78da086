"""What the simulated device catches: each fault by a kernel that has it, and by one that just does not."""

import numpy as np
import pytest

from fastsgemm.errors import CompileError, DeviceError, FastsgemmError
from fastsgemm.sim import Machine, Region
from fastsgemm.sim.errors import (
    BarrierError,
    ForbiddenAccessError,
    GlobalAccessError,
    LaunchError,
    MisalignedError,
    RaceError,
    SharedAccessError,
    UnknownInstructionError,
    UnwrittenOutputError,
    UnwrittenSharedError,
)

TILE = "__shared__ float s[64];\n"  # line 3 of a kernel; the fixture's own line 2 is its head


@pytest.fixture
def out():
    return np.zeros(64, np.float32)


def _says(caught, *parts):
    message = str(caught.value)
    for part in parts:
        assert part in message, message


def test_global_access_past_the_end(launch, out):
    with pytest.raises(GlobalAccessError) as caught:
        launch("C[blockIdx.x * 32 + threadIdx.x] = 1.0f;", "C", {"C": out[:40]}, grid=2)
    _says(caught, "thread 8 of block 1", "writes 4 bytes", "C + 160 bytes", "kernel.cu:2")
    assert (out == 0).all()


def test_global_access_far_outside(launch, out):
    with pytest.raises(GlobalAccessError, match=r"thread 0 of block 0 reads 4 bytes at .*C - 4 bytes"):
        launch("C[threadIdx.x] = C[-1 - int(threadIdx.x)];", "C", {"C": out})
    with pytest.raises(GlobalAccessError, match=r"C \+ 4294967296 bytes"):
        launch("C[threadIdx.x] = C[(1ll << 30) * (threadIdx.x + 1)];", "C", {"C": out})


@pytest.mark.parametrize("layout", ["row", "column"])
def test_padding_between_rows_is_outside(launch, out, layout):
    whole = np.arange(64, dtype=np.float32).reshape(8, 8)
    view = whole[:, :6] if layout == "row" else whole.T[:6, :]
    source = "const int i = threadIdx.x; if (i % 8 < {limit}) C[i] = A[i];"
    launch(source.format(limit=6), "AC", {"A": view, "C": out}, block=64)
    with pytest.raises(GlobalAccessError, match=r"thread 6 .*reads .*A \+ 24 bytes"):
        launch(source.format(limit=7), "AC", {"A": view, "C": out}, block=64)


def test_a_vector_that_begins_inside_and_ends_outside(launch, out):
    source = "*(float4*)(C + 4 * threadIdx.x) = make_float4(1, 2, 3, 4);"
    launch(source, "C", {"C": out[:32]}, block=8)
    with pytest.raises(GlobalAccessError, match=r"thread 7 .*writes 16 bytes"):
        launch(source, "C", {"C": out[:31]}, block=8)


def test_misaligned_vectors(launch, out):
    source = "float4 v = *(float4*)(A + threadIdx.x); C[threadIdx.x] = v.x + v.y + v.z + v.w;"
    with pytest.raises(MisalignedError) as caught:
        launch(source, "AC", {"A": out.copy(), "C": out})
    _says(caught, "thread 1 of block 0", "16 bytes", "A + 4 bytes", "not a multiple of 16", "kernel.cu:2")
    source = TILE + "s[threadIdx.x] = 1; __syncthreads();\n"
    source += "float2 v = *(float2*)(s + threadIdx.x); C[threadIdx.x] = v.x + v.y;"
    with pytest.raises(MisalignedError, match=r"thread 1 .*8 bytes of shared memory at 4"):
        launch(source, "C", {"C": out})


def test_an_operand_that_begins_off_a_vector(launch, out):
    source = "*(float4*)(C + 4 * threadIdx.x) = make_float4(1, 2, 3, 4);"
    with pytest.raises(MisalignedError):
        launch(source, "C", {"C": out[1:]}, block=4)


def test_reading_what_must_not_be_read(launch, out):
    regions = {"A": Region(np.ones(32, np.float32)), "C": Region(out, read=False, write=True)}
    launch("C[threadIdx.x] = A[threadIdx.x];", "AC", regions)
    with pytest.raises(ForbiddenAccessError, match=r"thread 0 of block 0 reads .*C.*kernel.cu:2"):
        launch("C[threadIdx.x] += A[threadIdx.x];", "AC", regions)
    with pytest.raises(ForbiddenAccessError, match=r"writes .*A.*write= of its Region"):
        launch("A[threadIdx.x] = 1.0f;", "AC", regions)


def test_outputs_never_written(launch, out):
    regions = {"C": Region(out.reshape(4, 16), write=True, complete=True)}
    launch("C[threadIdx.x] = 5.0f;", "C", regions, block=64)
    assert (out == 5).all()
    with pytest.raises(UnwrittenOutputError, match=r"4 of the 64 elements of C .*first is \(3, 12\)"):
        launch("if (threadIdx.x < 60) C[threadIdx.x] = 6.0f;", "C", regions, block=64)
    assert (out == 5).all(), "a refused launch writes nothing"


def test_shared_access_out_of_range(launch, out):
    source = "extern __shared__ float s[];\ns[threadIdx.x] = 1.0f; __syncthreads();\nC[threadIdx.x] = s[threadIdx.x];"
    launch(source, "C", {"C": out}, shared_bytes=128)
    with pytest.raises(SharedAccessError) as caught:
        launch(source, "C", {"C": out}, grid=2, shared_bytes=100)
    _says(caught, "thread 25 of block 0", "at 100", "has 100", "kernel.cu:3")


def test_shared_memory_that_nobody_wrote(launch, out):
    source = (
        TILE
        + "if (threadIdx.x != {hole}) s[threadIdx.x] = 1.0f;\n__syncthreads();\nC[threadIdx.x] = s[31 - threadIdx.x];"
    )
    launch(source.format(hole=99), "C", {"C": out})
    with pytest.raises(UnwrittenSharedError, match=r"thread 29 of block 0 reads shared memory at 8 .*kernel.cu:5"):
        launch(source.format(hole=2), "C", {"C": out})


def test_a_block_does_not_see_what_another_wrote(launch, out):
    source = TILE + "if (blockIdx.x == 0) s[threadIdx.x] = 1.0f;\n__syncthreads();\nC[threadIdx.x] = s[threadIdx.x];"
    with pytest.raises(UnwrittenSharedError, match="of block 1"):
        launch(source, "C", {"C": out}, grid=2)


def test_race_read_after_write(launch, out):
    source = TILE + "s[threadIdx.x] = 1.0f;\n{barrier}\nC[threadIdx.x] = s[threadIdx.x ^ 1];"
    launch(source.format(barrier="__syncthreads();"), "C", {"C": out})
    with pytest.raises(RaceError) as caught:
        launch(source.format(barrier=""), "C", {"C": out})
    _says(caught, "thread 0 of block 0 reads shared memory at 4", "thread 1 wrote", "kernel.cu:5")


def test_race_write_after_read(launch, out):
    source = (
        TILE + "s[threadIdx.x] = 1.0f;\n__syncthreads();\nfloat x = s[threadIdx.x ^ 1];\n{barrier}\n"
        "s[threadIdx.x] = 2.0f;\nC[threadIdx.x] = x;"
    )
    launch(source.format(barrier="__syncthreads();"), "C", {"C": out})
    with pytest.raises(RaceError, match=r"writes shared memory at 0 that thread 1 read .*kernel.cu:7"):
        launch(source.format(barrier=""), "C", {"C": out})


def test_race_write_after_many_read(launch, out):
    source = TILE + "s[threadIdx.x] = 1.0f;\n__syncthreads();\nC[threadIdx.x] = s[0];\n{who} s[0] = 2.0f;"
    with pytest.raises(RaceError, match="several threads read"):
        launch(source.format(who="if (threadIdx.x == 3)"), "C", {"C": out})


def test_race_of_equal_writes(launch, out):
    with pytest.raises(RaceError, match=r"writes shared memory at 0 .*writes"):
        launch(TILE + "((volatile float*)s)[0] = 1.0f;\n__syncthreads();\nC[threadIdx.x] = s[0];", "C", {"C": out})
    source = TILE + "if (threadIdx.x == 0) s[0] = 1.0f;\nif (threadIdx.x == 1) s[0] = C[0];\n"
    source += "__syncthreads();\nC[threadIdx.x] = s[0];"
    with pytest.raises(RaceError, match=r"thread 1 .* that thread 0 wrote"):
        launch(source, "C", {"C": out})


SWAP = (
    TILE + "s[threadIdx.x] = 1.0f;\n{barrier}\nfloat x = s[threadIdx.x ^ {other}];\n{barrier}\n"
    "s[threadIdx.x ^ 2] = x;\n{barrier}\nC[threadIdx.x] = s[threadIdx.x];"
)


def test_a_barrier_of_a_warp_is_enough_within_it(launch, out):
    launch(SWAP.format(barrier="__syncwarp();", other=1), "C", {"C": out}, block=64)
    assert (out == 1).all()


def test_a_barrier_of_a_warp_is_not_enough_between_two(launch, out):
    launch(SWAP.format(barrier="__syncthreads();", other=32), "C", {"C": out}, block=64)
    with pytest.raises(RaceError, match=r"thread 0 .*reads shared memory at 128 that warp 1 wrote .*kernel.cu:5"):
        launch(SWAP.format(barrier="__syncwarp();", other=32), "C", {"C": out}, block=64)


@pytest.mark.parametrize(
    ("barrier", "block", "legal"), [("__syncwarp();", 32, True), ("", 32, False), ("__syncwarp();", 64, False)]
)
def test_a_barrier_of_a_warp_orders_what_many_of_it_read(barrier, block, legal, launch, out):
    """All lanes read one word, then one of them writes it; with two warps, the other one may still read."""
    source = TILE + "s[threadIdx.x] = 1.0f;\n__syncthreads();\nC[threadIdx.x] = s[0];\n{barrier}\n"
    source += "if (threadIdx.x == 3) s[0] = 2.0f;"
    if legal:
        launch(source.format(barrier=barrier), "C", {"C": out}, block=block)
    else:
        with pytest.raises(RaceError, match="several threads read"):
            launch(source.format(barrier=barrier), "C", {"C": out}, block=block)


def test_a_barrier_of_a_warp_that_not_all_lanes_reach(launch, out):
    source = "if (threadIdx.x < {limit}) {{\n__syncwarp();\nC[threadIdx.x] = 1.0f;\n}} else C[threadIdx.x] = 2.0f;"
    launch(source.format(limit=32), "C", {"C": out}, block=64)
    with pytest.raises(BarrierError, match=r"^divergent warp: thread 63 of block 0 .*of its warp at .*kernel.cu:3"):
        launch(source.format(limit=63), "C", {"C": out}, block=64)


def test_one_thread_may_do_as_it_likes(launch, out):
    source = TILE + "s[threadIdx.x] = 1.0f; s[threadIdx.x] += C[threadIdx.x]; C[threadIdx.x] = s[threadIdx.x];"
    launch(source, "C", {"C": out})


def test_barrier_that_returned_threads_miss(launch, out):
    source = TILE + "if (threadIdx.x >= {left}) return;\ns[threadIdx.x] = 1.0f;\n"
    source += "__syncthreads();\nC[threadIdx.x] = s[31 - threadIdx.x];"
    launch(source.format(left=32), "C", {"C": out})
    with pytest.raises(BarrierError) as caught:
        launch(source.format(left=30), "C", {"C": out}, grid=3)
    _says(caught, "divergent barrier: thread 30 of block 0", "kernel.cu:5", "30 of 32", "has returned")


def test_barriers_on_two_ways(launch, out):
    source = "if (threadIdx.x < 7) { C[0] = 1.0f; __syncthreads(); C[2] = 4.0f; }\n"
    source += "else { C[1] = 2.0f; __syncthreads(); C[3] = 5.0f; }"
    with pytest.raises(BarrierError, match=r"^divergent barrier: .* waits at another barrier, kernel.cu:"):
        launch(source, "C", {"C": out})


def test_blocks_may_go_different_ways(launch, out):
    source = TILE + (
        "for (int i = 0; i < int(blockIdx.x) + 1; ++i) {\n"
        "s[threadIdx.x] = i;\n__syncthreads();\nC[blockIdx.x * 8 + threadIdx.x] = s[7 - threadIdx.x];\n"
        "__syncthreads(); }"
    )
    launch(source, "C", {"C": out}, grid=8, block=8)
    np.testing.assert_array_equal(out, np.repeat(np.arange(8), 8))


def test_unknown_instruction(launch, out):
    with pytest.raises(UnknownInstructionError, match=r"'sin.approx.f32' at kernel.cu:3"):
        launch("float x = C[threadIdx.x];\nC[threadIdx.x] = __sinf(x);", "C", {"C": out})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("float x = C[threadIdx.x];\nC[threadIdx.x] = x + clock64();", "at kernel.cu:3: .* does not know %clock64"),
        (
            "float x[64] = {};\nfor (int i = 0; i < C[0]; ++i) x[i * i % 64] += 1.0f;\nC[0] = x[threadIdx.x];",
            "at kernel.cu:2: local memory is not simulated",
        ),
        ('C[threadIdx.x] = 1.0f;\nprintf("%d\\n", 1);', "at kernel.cu:3: printf is not simulated"),
        (
            "auto add = [](float x) __attribute__((noinline)) { return x + 1.0f; };\nC[threadIdx.x] = add(C[0]);",
            "at kernel.cu:3: function calls are not simulated: call",
        ),
        ("C[threadIdx.x] = 1.0f;\nassert(C[0] > 2.0f);", "at kernel.cu:3: function calls are not simulated: call"),
    ],
    ids=["clock", "local memory", "printf", "function", "assert"],
)
def test_what_is_not_simulated_is_said_in_these_words(source, message, launch, out):
    with pytest.raises(UnknownInstructionError, match=message):
        launch(source, "C", {"C": out})
    assert (out == 0).all()


def test_launches_that_no_device_takes(launch, out):
    with pytest.raises(LaunchError, match="1 to 1024 threads, got 1025"):
        launch("", "C", {"C": out}, block=1025)
    with pytest.raises(LaunchError, match="at least 1 block"):
        launch("", "C", {"C": out}, grid=0)
    with pytest.raises(LaunchError, match="232448 bytes of shared memory, got 240000"):
        launch("", "C", {"C": out}, shared_bytes=240000)
    source = "__shared__ float s[12289]; s[threadIdx.x] = 1.0f; C[0] = s[5];"
    with pytest.raises(LaunchError, match="49156 bytes of shared memory of a fixed size; ptxas takes 49152"):
        launch(source, "C", {"C": out})
    with pytest.raises(LaunchError, match="no operand is called 'B'"):
        launch("", "B", {"C": out})
    machine = Machine("sm_80")
    for thing in (out, Region([1.0])):
        with pytest.raises(LaunchError, match="operand C must be a Region of a NumPy array, got"):
            machine.launch('extern "C" __global__ void k(float *C) {}', "k", 1, 32, 0, ["C"], {"C": thing})
    out.flags.writeable = False
    with pytest.raises(LaunchError, match="operand C is to be written but is read-only"):
        launch("", "C", {"C": out})
    with pytest.raises(LaunchError, match=r"operand C of complex128 .*strides"):
        launch("", "C", {"C": np.zeros(4, np.complex128)})
    with pytest.raises(LaunchError, match="has 0 parameters, got 1"):
        machine.launch('extern "C" __global__ void f() {}', "f", 1, 32, 0, [1], {})
    with pytest.raises(LaunchError, match="no kernel 'g'"):
        machine.launch('extern "C" __global__ void f() {}', "g", 1, 32, 0, [], {})


def test_errors_of_the_compiler_and_the_table():
    with pytest.raises(CompileError, match=r"identifier .x. is undefined"):
        Machine().launch('extern "C" __global__ void f() { x = 1; }', "f", 1, 32, 0, [], {})
    with pytest.raises(DeviceError, match="nothing is known of a device 'sm_1'"):
        Machine("sm_1")


def test_every_fault_is_an_error_of_the_package():
    for error in (BarrierError, RaceError, LaunchError, UnknownInstructionError):
        assert issubclass(error, FastsgemmError) and issubclass(error, RuntimeError)


@pytest.mark.parametrize(
    ("product", "addition", "fused"),
    [("mul", "add", True), ("mul", "sub", True), ("mul.rn", "add", False), ("mul", "add.rn", False)],
)
def test_what_ptxas_may_make_one_fma_of_is_refused(launch, out, product, addition, fused):
    source = f'''float product, sum;
        asm("{product}.f32 %0, %1, %1;" : "=f"(product) : "f"(A[threadIdx.x]));
        asm("{addition}.f32 %0, %1, %2;" : "=f"(sum) : "f"(A[1]), "f"(product));
        C[threadIdx.x] = sum;'''
    operands = {"A": np.ones(64, np.float32), "C": out}
    if fused:
        with pytest.raises(UnknownInstructionError, match="ptxas may make one FMA of it"):
            launch(source, "AC", operands)
    else:
        launch(source, "AC", operands)

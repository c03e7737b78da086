import re
import subprocess
import sys

import kernel_texts
import numpy as np
import pytest

from fastsgemm import rungs
from fastsgemm.errors import CompileError
from fastsgemm.geometry.batch import Batch
from fastsgemm.jit import source
from fastsgemm.sim import Machine, Region, machine, nvrtc
from fastsgemm.sim.errors import ParameterAccessError


def test_many_batches_are_one_launch(launch, monkeypatch):
    out = np.zeros(64 * 10, np.float32)
    text = "C[blockIdx.x * 64 + threadIdx.x] = gridDim.x * 1000.0f + blockIdx.x * blockDim.x + threadIdx.x;"
    whole = launch(text, "C", {"C": out}, grid=10, block=64)
    expected = out.copy()
    np.testing.assert_array_equal(out, 10000 + np.arange(640))
    monkeypatch.setattr(machine, "_MOST_LANES", 192)
    out[:] = 0
    split = launch(text, "C", {"C": out}, grid=10, block=64)
    np.testing.assert_array_equal(out, expected)
    assert split.total == whole.total


def test_scalars_take_the_width_of_the_parameter():
    text = """extern "C" __global__ void f(int a, long long b, float c, unsigned d, double* unused, float* C) {
        C[0] = a; C[1] = (float)(b >> 32); C[2] = c; C[3] = d; }"""
    out = np.zeros(4, np.float32)
    Machine().launch(text, "f", 1, 1, 0, [-3, 5 << 32, 0.1, np.uint32(7), 0, "C"], {"C": Region(out, write=True)})
    np.testing.assert_array_equal(out, np.float32([-3, 5, 0.1, 7]))


OF_TWO = """extern "C" __global__ void f(long long first, long long second, long long* C) {{
    unsigned long long place;
    asm("{{ .reg .b64 a, b; .reg .pred p; mov.b64 a, f_param_0; mov.b64 b, {second};"
        "setp.gt.s32 p, %1, 10; selp.b64 %0, b, a, p; }}" : "=l"(place) : "r"(int(threadIdx.x)));
    asm("ld.param.s64 %0, [%1];" : "=l"(C[threadIdx.x]) : "l"(place));
}}"""


def test_a_parameter_that_each_thread_picks():
    out = np.zeros(32, np.int64)
    text = OF_TWO.format(second="f_param_1")
    Machine().launch(text, "f", 1, 32, 0, [-3, 1 << 40, "C"], {"C": Region(out, write=True)})
    np.testing.assert_array_equal(out, [-3] * 11 + [1 << 40] * 21)


def test_what_is_no_parameter():
    text = OF_TWO.format(second=4096)
    with pytest.raises(ParameterAccessError, match=r"thread 11 of block 0 reads 8 bytes at 4096 of 192 bytes of param"):
        Machine().launch(text, "f", 1, 32, 0, [1, 2, "C"], {"C": Region(np.zeros(32, np.int64), write=True)})


CONSTANTS = """
__constant__ int a = -3;
__constant__ long long b = 5LL << 32;
__constant__ float c = 0.1f;
__constant__ unsigned long long d = 1ull << 63;
__constant__ unsigned none;
__constant__ short some[8] = {1, -2};
extern "C" __global__ void f(int i, float* C) {
    C[0] = a; C[1] = (float)(b >> 32); C[2] = c; C[3] = d == 1ull << 63; C[4] = none; C[5] = some[i]; C[6] = some[7];
}"""


def test_constants():
    out = np.full(7, np.nan, np.float32)
    Machine().launch(CONSTANTS, "f", 1, 1, 0, [1, "C"], {"C": Region(out, write=True)})
    np.testing.assert_array_equal(out, np.float32([-3, 5, 0.1, 1, 0, -2, 0]))


@pytest.mark.parametrize(("step", "place"), [(8, 64), (-1, -8)])
def test_what_is_no_constant(step, place):
    """Past the constants, or before them, where the parameters are."""
    text = """__constant__ long long some[2] = {1, 2};
    extern "C" __global__ void f(int step, long long* C) {
        asm("{ .reg .b64 a; mov.b64 a, some; add.s64 a, a, %1; ld.const.s64 %0, [a]; }"
            : "=l"(*C) : "l"(step * 8LL));
        *C += some[0];
    }"""
    out = np.zeros(1, np.int64)
    Machine().launch(text, "f", 1, 1, 0, [1, "C"], {"C": Region(out, write=True)})
    assert out[0] == 3
    with pytest.raises(ParameterAccessError, match=f"reads 8 bytes at {place} of 64 bytes of constants"):
        Machine().launch(text, "f", 1, 1, 0, [step, "C"], {"C": Region(out, write=True)})


@pytest.mark.parametrize("steps", [(2, 1), (-1, 3), (1, -2)])
def test_copying_between_any_strides(steps):
    """The kernel that packs operands, on views with gaps and negative strides."""
    values = np.arange(35, dtype=np.float32).reshape(5, 7)
    from_, to = (np.zeros((10, 21), np.float32) for _ in range(2))
    view_from, view_to = from_[::2, ::3], to[:: steps[0], :: steps[1]][:5, :7]
    view_from[...] = values
    strides = [s // 4 for view in (view_from, view_to) for s in view.strides]
    operands = {"from": Region(view_from), "to": Region(view_to, read=False, write=True, complete=True)}
    args = [5, 7, "from", *strides[:2], "to", *strides[2:], Batch().packed]
    Machine("sm_75").launch(
        source.plain("copy_strided.cu"), rungs.kernel_name("copy_strided"), 1, 256, 0, args, operands
    )
    np.testing.assert_array_equal(view_to, values)
    assert np.count_nonzero(to) == 34


def test_copying_by_many_blocks_from_a_row_that_is_repeated():
    row, to = np.arange(45, dtype=np.float32), np.zeros((50, 45), np.float32)
    operands = {"from": Region(row), "to": Region(to, read=False, write=True, complete=True)}
    args = [50, 45, "from", 0, 1, "to", 45, 1, Batch().packed]
    Machine("sm_75").launch(
        kernel_texts.helper("copy_strided"), rungs.kernel_name("copy_strided"), 3, 256, 0, args, operands
    )
    np.testing.assert_array_equal(to, np.broadcast_to(row, (50, 45)))


@pytest.mark.parametrize(
    ("type_", "dtype"), [("unsigned char", np.uint8), ("short", np.int16), ("long long", np.int64)]
)
def test_other_widths(type_, dtype):
    text = f"""extern "C" __global__ void f(const {type_}* A, {type_}* C) {{
        __shared__ {type_} s[32]; s[threadIdx.x] = A[threadIdx.x]; __syncthreads();
        C[threadIdx.x] = s[31 - threadIdx.x] - 1; }}"""
    given, out = np.arange(100, 132).astype(dtype), np.zeros(32, dtype)
    report = Machine().launch(text, "f", 1, 32, 0, ["A", "C"], {"A": Region(given), "C": Region(out, write=True)})
    np.testing.assert_array_equal(out, given[::-1] - 1)
    assert report.total.loads["A"].sectors == max(1, dtype().itemsize)


def test_the_package_does_not_import_the_simulated_device():
    text = "import sys, fastsgemm; sys.exit(any(name.startswith('fastsgemm.sim') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0


def test_deterministic_addresses():
    """Sectors depend on how a view lies in its own memory, not on where the system put that."""
    found = set()
    for pad in (0, 1, 2, 3):
        keep = np.zeros(pad * 5 + 1, np.float32)
        out = np.zeros(64, np.float32)[4:36]
        text = 'extern "C" __global__ void f(float* C) { C[threadIdx.x] = 1.0f; }'
        found.add(
            Machine().launch(text, "f", 1, 32, 0, ["C"], {"C": Region(out, write=True)}).total.stores["C"].sectors
        )
        del keep
    assert found == {5}


@pytest.mark.parametrize("name", ["removed", 'a "quoted" folder', "back\\slash"])
def test_any_current_folder_will_do(name, tmp_path, monkeypatch):
    """NVRTC puts it before the names of source files: there may be no such folder, or PTX cannot spell it."""
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(folder)
    uncached = nvrtc.compile_source.__wrapped__.__wrapped__  # past the results of earlier runs, too
    if name == "removed":
        folder.rmdir()
    source = '#line 3 "text.cu"\nextern "C" __global__ void kernel(float* C) {\n#line 7 "part.cuh"\nC[0] = 1.0f;\n}\n'
    made = uncached(source, "sm_90")
    assert re.findall(r"\.file\s+\d+\s+(.*)", made.ptx) == ['"text.cu"', '"part.cuh"']
    with pytest.raises(CompileError) as caught:
        uncached(source.replace("C[0]", "D[0]"), "sm_90")
    assert "NVRTC" in str(caught.value) and "refused kernel.cu for" in str(caught.value)
    assert "\npart.cuh(7): error: identifier" in str(caught.value)

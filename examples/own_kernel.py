"""Run a kernel of your own on the simulated device: check its result, count its traffic, and see an error found."""

import numpy as np

from fastsgemm.sim import Machine, Region
from fastsgemm.sim.errors import SimError

SIZE = 64
SOURCE = """
extern "C" __global__ void multiply(const float* A, const float* B, float* C) {
    int row = 4 * (threadIdx.x / 16), column = 4 * (threadIdx.x % 16);
    float sum[4][4] = {};
    for (int k = 0; k < 64; ++k)
        for (int i = 0; i < 4; ++i)
            for (int j = 0; j < 4; ++j) sum[i][j] = __fmaf_rn(A[64 * (row + i) + k], B[64 * k + column + j], sum[i][j]);
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) C[64 * (row + i) + column + j] = sum[i][j];
}
"""

generator = np.random.default_rng(0)
A, B = (generator.standard_normal((SIZE, SIZE), dtype=np.float32) for _ in range(2))
C = np.full((SIZE, SIZE), np.nan, np.float32)


def run(source):
    """Launch one block of 256 threads, each of which computes 4 x 4 elements of C."""
    operands = {"A": Region(A), "B": Region(B), "C": Region(C, read=False, write=True, complete=True)}
    return Machine("NVIDIA H200").launch(
        source, "multiply", grid=1, block=256, shared_bytes=0, args=["A", "B", "C"], operands=operands
    )


report = run(SOURCE)
assert np.allclose(C, A @ B, atol=1e-4)
for name in ("A", "B"):
    print(f"{name}: {report.total.loads[name].sectors_per_request:.1f} sectors a load")
print(f"{report.registers} registers, occupancy {report.occupancy}")

# A wrong index is an error that names the line, not a wrong result.
try:
    run(SOURCE.replace("k < 64", "k < 65"))
except SimError as error:
    print(error)
else:
    raise AssertionError("the access past the end was not found")

"""Multiply CuPy arrays on the device they are on, on CuPy's current stream."""

import sys

from fastsgemm import sgemm

try:
    import cupy

    cupy.cuda.runtime.getDeviceCount()
except Exception as error:  # CuPy without a driver raises an error of its own
    print(f"skipped: this needs CuPy and a GPU ({type(error).__name__}: {error})")
    sys.exit()

A = cupy.random.standard_normal((1000, 500), dtype=cupy.float32)
B = cupy.random.standard_normal((500, 800), dtype=cupy.float32)

with cupy.cuda.Stream() as stream:
    C = sgemm(A, B)  # queued on this stream; the call does not wait
    stream.synchronize()

assert isinstance(C, cupy.ndarray)
assert cupy.allclose(C, A @ B, atol=1e-3)
print("a product of CuPy arrays:", C.shape)

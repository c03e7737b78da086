"""Order without waiting: the inputs are written behind a long kernel, and the call must neither overtake nor wait."""

import numpy as np
import pytest

from fastsgemm import sgemm
from fastsgemm.errors import StreamError

pytestmark = pytest.mark.gpu

SIZE = 96
PRODUCT = 2 * 3 * SIZE  # an element of A @ B below


class Torch:
    """What differs between the libraries: making, filling, and whether the current stream has work to do."""

    def __init__(self, torch):
        self._torch = torch

    def zeros(self):
        return self._torch.zeros(SIZE, SIZE, device="cuda")

    def fill(self, x, value):
        x.fill_(value)

    def busy(self):
        return not self._torch.cuda.current_stream().query()


class CuPy:
    def __init__(self, cupy):
        self._cupy = cupy

    def zeros(self):
        return self._cupy.zeros((SIZE, SIZE), self._cupy.float32)

    def fill(self, x, value):
        x.fill(value)

    def busy(self):
        return not self._cupy.cuda.get_current_stream().done


def behind_a_long_kernel(torch, library, make_busy, handle, stream=None):
    """Write A, B and C on the current stream, busy on `handle`, and multiply; return C and whether the call waited.

    A rehearsal comes first: loading a kernel may wait for the device, whoever does it.
    """
    A, B, C = (library.zeros() for _ in range(3))
    for rehearsal in (True, False):
        library.fill(A, 0)
        torch.cuda.synchronize()
        if not rehearsal:
            make_busy(handle)
        for x, value in ((A, 2), (B, 3), (C, 1)):
            library.fill(x, value)
        assert sgemm(A, B, 1.0, 1.0, C, stream=stream) is C
        waited = not library.busy()
    return C, waited


def test_torch_on_its_current_side_stream(torch, make_busy):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        C, waited = behind_a_long_kernel(torch, Torch(torch), make_busy, stream.cuda_stream)
        after = C * 1
    stream.synchronize()
    assert not waited
    assert (after == PRODUCT + 1).all()


def test_torch_on_the_default_stream(torch, make_busy):
    C, waited = behind_a_long_kernel(torch, Torch(torch), make_busy, 0)
    torch.cuda.synchronize()
    assert not waited
    assert (C == PRODUCT + 1).all()


def test_a_new_result_comes_without_waiting(torch, make_busy):
    A = torch.ones(SIZE, SIZE, device="cuda")
    sgemm(A, A)
    torch.cuda.synchronize()
    make_busy(0)
    result = sgemm(A, A)
    waited = torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert not waited
    assert (result == SIZE).all()


def test_an_explicit_torch_stream_waits_for_the_operands(torch, make_busy):
    stream = torch.cuda.Stream()
    C, waited = behind_a_long_kernel(torch, Torch(torch), make_busy, 0, stream)
    stream.synchronize()
    assert not waited
    assert (C == PRODUCT + 1).all()


def test_an_explicit_cuda_core_stream_waits_for_the_operands(torch, gpu, make_busy):
    gpu.device.set_current()
    stream = gpu.device.create_stream()
    C, waited = behind_a_long_kernel(torch, Torch(torch), make_busy, 0, stream)
    stream.sync()
    assert not waited
    assert (C == PRODUCT + 1).all()


def test_work_is_on_the_explicit_stream(torch, make_busy):
    """With that stream busy the product is not done, though the current stream is idle."""
    stream = torch.cuda.Stream()
    A, C = torch.ones(SIZE, SIZE, device="cuda"), torch.zeros(SIZE, SIZE, device="cuda")
    sgemm(A, A, stream=stream)
    C.clone()
    torch.cuda.synchronize()
    make_busy(stream.cuda_stream)
    sgemm(A, A, C=C, stream=stream)
    too_early = C.clone()
    torch.cuda.current_stream().synchronize()
    still_busy = not stream.query()
    stream.synchronize()
    assert still_busy and (too_early == 0).all()
    assert (C == SIZE).all()


def test_operands_of_an_explicit_stream_outlive_their_last_name(torch, make_busy):
    """Torch would give their memory to the next tensor, because it does not know of the other stream."""
    stream = torch.cuda.Stream()
    C = torch.zeros(SIZE, SIZE, device="cuda")
    A, B = torch.full((SIZE, SIZE), 2.0, device="cuda"), torch.full((SIZE, SIZE), 3.0, device="cuda")
    sgemm(A, B, stream=stream)
    torch.cuda.synchronize()
    make_busy(stream.cuda_stream)
    sgemm(A, B, C=C, stream=stream)
    del A, B
    rubbish = [torch.full((SIZE, SIZE), float("nan"), device="cuda") for _ in range(50)]
    torch.cuda.current_stream().synchronize()
    stream.synchronize()
    assert (C == PRODUCT).all()
    assert len(rubbish) == 50


def test_cupy_on_its_current_stream(torch, cupy, make_busy):
    with cupy.cuda.Stream(non_blocking=True) as stream:
        C, waited = behind_a_long_kernel(torch, CuPy(cupy), make_busy, stream.ptr)
        after = C.copy()
    stream.synchronize()
    assert not waited
    assert (after.get() == PRODUCT + 1).all()


def test_cupy_on_the_per_thread_default_stream(cupy, whole):
    values = whole(SIZE, SIZE)
    with cupy.cuda.Stream.ptds as stream:
        A = cupy.asarray(values)
        result = sgemm(A, A)
        stream.synchronize()
    np.testing.assert_array_equal(result.get(), values @ values)


def test_an_explicit_cupy_stream_waits_for_the_operands(torch, cupy, make_busy):
    stream = cupy.cuda.Stream(non_blocking=True)
    if not hasattr(stream, "__cuda_stream__"):
        pytest.skip("the streams of this CuPy do not speak the protocol")
    C, waited = behind_a_long_kernel(torch, CuPy(cupy), make_busy, 0, stream)
    stream.synchronize()
    assert not waited
    assert (C.get() == PRODUCT + 1).all()


def test_operands_of_another_library_are_waited_for(torch, cupy, make_busy):
    """A is CuPy's, on a stream of CuPy; B and C are torch's, on torch's own current stream."""
    theirs, ours = cupy.cuda.Stream(non_blocking=True), torch.cuda.Stream()
    B, C = torch.ones(SIZE, SIZE, device="cuda"), torch.zeros(SIZE, SIZE, device="cuda")
    with theirs:
        A = cupy.zeros((SIZE, SIZE), cupy.float32)
    for rehearsal in (True, False):
        torch.cuda.synchronize()
        with theirs, torch.cuda.stream(ours):
            if not rehearsal:
                make_busy(theirs.ptr)
            A.fill(2 if not rehearsal else 0)
            sgemm(A, B, C=C)
            after = C.clone()
    ours.synchronize()
    assert (after == 2 * SIZE).all()


def test_packing_is_in_stream_order_too(torch, make_busy):
    class Strided(Torch):
        def zeros(self):
            return self._torch.zeros(2 * SIZE, 2 * SIZE, device="cuda")[::2, ::2]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        C, waited = behind_a_long_kernel(torch, Strided(torch), make_busy, stream.cuda_stream)
        after = C * 1
    stream.synchronize()
    assert not waited
    assert (after == PRODUCT + 1).all()


def test_a_stream_without_the_protocol(torch):
    A = torch.ones(4, 4, device="cuda")
    with pytest.raises(StreamError, match="must have __cuda_stream__"):
        sgemm(A, A, stream=torch.cuda.current_stream().cuda_stream)


def test_jax_results_are_ready_when_they_are_read(jax, whole):
    """A chain in which JAX and sgemm take turns."""
    values = whole(512, 512)
    A = B = jax.numpy.asarray(values)
    expected = values
    for _ in range(5):
        B = sgemm(A, jax.numpy.sign(B))
        expected = values @ np.sign(expected)
    np.testing.assert_array_equal(np.asarray(B), expected)

"""NumPy, CuPy, PyTorch, JAX, DLPack and the CUDA array interface: in, out, and mixed on one device."""

import numpy as np
import pytest
from exported import Exported

from fastsgemm import sgemm, split
from fastsgemm.errors import DeviceMismatchError, DTypeError, OperandError, OverlapError

pytestmark = pytest.mark.gpu


class Pointing:
    """A CUDA array with the CUDA array interface and nothing else."""

    def __init__(self, tensor):
        self._tensor = tensor

    @property
    def __cuda_array_interface__(self):
        return self._tensor.__cuda_array_interface__


@pytest.fixture
def operands(whole):
    A, B, C = whole(33, 65), whole(65, 130), whole(33, 130)
    return A, B, C, 2 * (A @ B) - C


def to_torch(torch, *arrays):
    return [torch.from_numpy(x).cuda() for x in arrays]


class TestTorch:
    def test_in_and_out(self, torch, operands):
        *values, expected = operands
        A, B, C = to_torch(torch, *values)
        result = sgemm(A, B, 2.0)
        assert result.device == A.device and result.dtype == torch.float32 and result.is_contiguous()
        np.testing.assert_array_equal(result.cpu().numpy(), 2 * (values[0] @ values[1]))
        assert sgemm(A, B, 2.0, -1.0, C) is C
        np.testing.assert_array_equal(C.cpu().numpy(), expected)

    def test_transposed_expanded_and_sliced_views(self, torch, whole):
        values = whole(40, 40)
        (x,) = to_torch(torch, values)
        np.testing.assert_array_equal(sgemm(x.T, x[:, 3:17]).cpu().numpy(), values.T @ values[:, 3:17])
        row = x[:1].expand(7, 40)
        np.testing.assert_array_equal(sgemm(row, x).cpu().numpy(), np.repeat(values[:1] @ values, 7, axis=0))

    def test_refusals_leave_c_alone(self, torch):
        A, B = torch.ones(4, 4, device="cuda"), torch.ones(4, 4, device="cuda")
        C = torch.full((4, 4), 7.5, device="cuda")
        lazy = torch.ones(4, 4, dtype=torch.complex64, device="cuda").conj().imag
        for error, message, a, b, c in (
            (DTypeError, r"A must be float32, got torch.float64; float64 is not", A.double(), B, C),
            (
                DTypeError,
                r"B must be float32, got bfloat16; 16-bit operands need a",
                A,
                B.bfloat16(),
                C,
            ),
            (OperandError, r"B has the negative bit.*\.resolve_neg\(\)", A, lazy, C),
            (OverlapError, r"elements of C share memory", A, B, C[:1].expand(4, 4)),
            (OverlapError, r"C shares memory with A", C, B, C),
            (OverlapError, r"C shares memory with B", A[:2, :4], C, C[2:]),
            (DeviceMismatchError, f"A on {A.device}, B on the host, C on {C.device}", A, B.cpu(), C),
        ):
            with pytest.raises(error, match=message):
                sgemm(a, b, C=c)
            assert (C == 7.5).all()

    def test_interleaved_views_of_one_buffer(self, torch, whole):
        values = whole(8, 32)
        (buffer,) = to_torch(torch, values)
        sgemm(buffer[:, :16:2], torch.eye(8, device="cuda"), C=buffer[:, 1:16:2])
        np.testing.assert_array_equal(buffer[:, 1:16:2].cpu().numpy(), values[:, :16:2])
        np.testing.assert_array_equal(buffer[:, 16:].cpu().numpy(), values[:, 16:])


class TestCuPy:
    def test_in_and_out(self, cupy, operands):
        *values, expected = operands
        A, B, C = map(cupy.asarray, values)
        result = sgemm(A, B, 2.0)
        assert isinstance(result, cupy.ndarray)
        np.testing.assert_array_equal(result.get(), 2 * (values[0] @ values[1]))
        assert sgemm(A, B, 2.0, -1.0, C) is C
        np.testing.assert_array_equal(C.get(), expected)

    def test_layouts_that_only_cupy_has(self, cupy, whole):
        values = whole(12, 12)
        x = cupy.asarray(values)
        for view in (np.s_[::-1], np.s_[:, ::-1], np.s_[::2, ::-3], np.s_[::-2, 1:7]):
            a, b = values[view], values.T[view].T
            np.testing.assert_array_equal(sgemm(x[view], x.T[view].T).get(), a @ b)
        fortran = cupy.asfortranarray(cupy.zeros((12, 12), cupy.float32))
        assert sgemm(x, x, C=fortran) is fortran
        np.testing.assert_array_equal(fortran.get(), values @ values)
        backwards = cupy.zeros((12, 12), cupy.float32)
        sgemm(x, x, C=backwards[::-1])
        np.testing.assert_array_equal(backwards.get()[::-1], values @ values)

    def test_refusals_leave_c_alone(self, cupy):
        A, C = cupy.ones((4, 4), cupy.float32), cupy.full((4, 4), 7.5, cupy.float32)
        for error, message, a, c in (
            (DTypeError, "A must be float32, got float64", A.astype("f8"), C),
            (OverlapError, "C shares memory with A", C, C),
            (OverlapError, "elements of C share memory", A, cupy.broadcast_to(C[:1], (4, 4))),
        ):
            with pytest.raises((error, OperandError), match=f"{message}|C is read-only"):
                sgemm(a, A, C=c)
            assert (C == 7.5).all()


class TestJax:
    def test_in_and_out(self, jax, operands):
        *values, _ = operands
        A, B = map(jax.numpy.asarray, values[:2])
        result = sgemm(A, B, 2.0)
        assert isinstance(result, jax.Array) and result.devices() == A.devices()
        np.testing.assert_array_equal(np.asarray(result), 2 * (values[0] @ values[1]))
        np.testing.assert_array_equal(np.asarray(result + 1), 2 * (values[0] @ values[1]) + 1)

    @pytest.mark.parametrize("beta", [0.0, -1.0])
    def test_c_is_never_written(self, jax, operands, beta):
        *values, _ = operands
        A, B, C = map(jax.numpy.asarray, values)
        result = sgemm(A, B, 2.0, beta, C)
        assert result is not C
        np.testing.assert_array_equal(np.asarray(result), 2 * (values[0] @ values[1]) + beta * values[2])
        np.testing.assert_array_equal(np.asarray(C), values[2])

    def test_many_results_in_a_row_stay_what_they_were(self, jax, whole):
        values = whole(64, 64)
        A = jax.numpy.asarray(values)
        results = [sgemm(A, A, float(i)) for i in range(1, 30)]
        for i, result in enumerate(results, start=1):
            np.testing.assert_array_equal(np.asarray(result), i * (values @ values))

    def test_a_result_that_the_device_cannot_hold(self, jax):
        column = jax.numpy.ones((400_000, 1), jax.numpy.float32)
        with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):  # XLA's own error: it allocates the result
            sgemm(column, column.T).block_until_ready()
        assert (sgemm(column[:9], column[:9].T) == 1).all()

    def test_a_tracer_has_no_memory_to_split(self, jax):
        with pytest.raises(OperandError, match="a JAX tracer has no memory; only sgemm can be called inside jit"):
            jax.jit(lambda x: split(x).array)(jax.numpy.ones((4, 4)))

    def test_another_dtype_is_refused(self, jax):
        half = jax.numpy.ones((4, 4), jax.numpy.float16)
        with pytest.raises(DTypeError, match="A must be float32, got float16"):
            sgemm(half, half)


class TestMixed:
    def test_torch_and_cupy(self, torch, cupy, operands):
        *values, expected = operands
        A, B, C = to_torch(torch, *values)
        assert isinstance(sgemm(A, cupy.asarray(values[1])), torch.Tensor)
        assert isinstance(sgemm(cupy.asarray(values[0]), B), cupy.ndarray)
        assert sgemm(cupy.asarray(values[0]), B, 2.0, -1.0, C) is C
        np.testing.assert_array_equal(C.cpu().numpy(), expected)

    def test_jax_and_torch(self, torch, jax, operands):
        *values, expected = operands
        A, B, C = map(jax.numpy.asarray, values)
        (c,) = to_torch(torch, values[2])
        assert sgemm(A, B, 2.0, -1.0, c) is c
        np.testing.assert_array_equal(c.cpu().numpy(), expected)
        result = sgemm(to_torch(torch, values[0])[0], B, 2.0, -1.0, C)
        assert isinstance(result, jax.Array)
        np.testing.assert_array_equal(np.asarray(result), expected)

    @pytest.mark.parametrize("kind", [Exported, Pointing])
    def test_protocols_alone(self, torch, operands, kind):
        *values, expected = operands
        A, B, C = to_torch(torch, *values)
        out = kind(C)
        assert sgemm(kind(A), kind(B), 2.0, -1.0, out) is out
        np.testing.assert_array_equal(C.cpu().numpy(), expected)
        assert isinstance(sgemm(A, kind(B)), torch.Tensor)
        with pytest.raises(OperandError, match=r"cannot make a new .*; pass C"):
            sgemm(kind(A), kind(B))

    @pytest.mark.parametrize("kind", [Exported, Pointing])
    def test_empty_arrays_of_protocols_alone(self, torch, kind):
        """With the CUDA array interface, the address of an empty array is 0, as Numba has it."""
        A, B, C = (torch.full(shape, 3.0, device="cuda") for shape in ((4, 0), (0, 5), (4, 5)))
        out = kind(C)
        assert sgemm(kind(A), kind(B), 1.0, 2.0, out) is out and (C == 6.0).all()
        empty = kind(torch.empty(0, 5, device="cuda"))
        assert sgemm(kind(torch.ones(0, 4, device="cuda")), kind(torch.ones(4, 5, device="cuda")), C=empty) is empty

    @pytest.mark.parametrize("kind", [Exported, Pointing])
    def test_protocols_alone_are_checked_too(self, torch, kind):
        A = torch.ones(4, 4, device="cuda")
        with pytest.raises(DTypeError, match="B must be float32, got float64"):
            sgemm(A, kind(A.double()))

    def test_a_host_array_among_device_arrays(self, torch):
        A, B = torch.ones(4, 4, device="cuda"), np.ones((4, 4), np.float32)
        with pytest.raises(DeviceMismatchError, match=r"numpy\.ndarray on the host"):
            sgemm(A, B)
        with pytest.raises(DeviceMismatchError, match="B on cuda:0"):
            sgemm(B, A)


class TestHostArraysThroughTheDevice:
    """With a device, host arrays go there and back: the bits are those of the same rung on device arrays."""

    @pytest.fixture(autouse=True)
    def device(self, fresh_machine, monkeypatch):
        monkeypatch.setenv("FASTSGEMM_DEVICE", "cuda")

    @pytest.mark.parametrize("rung", [1, 8, None])
    def test_numpy_and_torch_cpu(self, torch, random, rung):
        A, B, C = random(37, 65), random(65, 41), random(37, 41)
        a, b, c = to_torch(torch, A, B, C.copy())
        expected = sgemm(a, b, 1.5, -0.5, c, rung=rung).cpu().numpy()
        for out in (C.copy(), np.asfortranarray(C), np.repeat(C, 2, axis=1)[:, ::2], C[::-1].copy()[::-1]):
            assert sgemm(A, B, 1.5, -0.5, out, rung=rung) is out
            np.testing.assert_array_equal(out, expected)
        tensor = torch.from_numpy(C.copy())
        assert sgemm(torch.from_numpy(A), torch.from_numpy(B), 1.5, -0.5, tensor, rung=rung) is tensor
        np.testing.assert_array_equal(tensor.numpy(), expected)

    def test_views_go_there_as_they_are_read(self, random):
        A, B = random(64, 64), random(64, 64)
        # One rung, because the default may add up in another order where operands lie otherwise.
        expected = sgemm(A.copy(), np.ascontiguousarray(B.T), rung="warptiled")
        np.testing.assert_array_equal(sgemm(A, B.T, rung="warptiled"), expected)
        np.testing.assert_array_equal(sgemm(A[::-1][::-1], np.asfortranarray(B.T), rung="warptiled"), expected)
        np.testing.assert_array_equal(sgemm(np.repeat(A, 3, axis=1)[:, ::3], B.T, rung="warptiled"), expected)

    def test_blas_rules(self, random):
        nan = np.full((5, 5), np.nan, np.float32)
        eye = np.eye(5, dtype=np.float32)
        np.testing.assert_array_equal(sgemm(eye, eye, 1.0, 0.0, nan.copy()), eye)
        np.testing.assert_array_equal(sgemm(nan, nan, 0.0, 2.0, eye.copy()), 2 * eye)
        empty = np.ones((5, 0), np.float32)
        np.testing.assert_array_equal(sgemm(empty, empty.T, 1.0, 3.0, eye.copy()), 3 * eye)
        assert sgemm(empty.T, eye).shape == (0, 5)

    def test_jax_on_the_cpu(self, random):
        jax = pytest.importorskip("jax")
        A, B = random(9, 8), random(8, 7)
        a, b = (jax.device_put(x, jax.devices("cpu")[0]) for x in (A, B))
        result = sgemm(a, b)
        assert isinstance(result, jax.Array)
        np.testing.assert_array_equal(np.asarray(result), sgemm(A, B))

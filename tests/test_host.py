"""Host arrays multiplied by NumPy: values, layouts, BLAS rules, kinds in and out, and the one warning."""

import itertools
import warnings

import numpy as np
import pytest
from matrices import LAYOUTS, laid_out

from fastsgemm import host, sgemm
from fastsgemm.errors import NoDriverError

EPSILON = float(np.finfo(np.float32).eps)


def agrees(result, alpha, A, B, beta, C):
    """Whether float32 arithmetic could have given `result`, whatever the order of the sums."""
    A, B, C = (np.asarray(x, np.float64) for x in (A, B, C))
    expected = alpha * (A @ B) + beta * C
    bound = (A.shape[1] + 3) * EPSILON * (abs(alpha) * (abs(A) @ abs(B)) + abs(beta) * abs(C))
    return result.dtype == np.float32 and result.shape == expected.shape and (abs(result - expected) <= bound).all()


@pytest.mark.usefixtures("on_host")
class TestValues:
    @pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (1, 1), (-1.5, 0.5), (0, 2), (2, -1), (0, 0), (0, 1)])
    @pytest.mark.parametrize("shape", [(1, 1, 1), (3, 4, 5), (31, 33, 17), (64, 2, 100), (1, 50, 3), (50, 1, 1)])
    def test_agrees_with_float64(self, random, shape, alpha, beta):
        M, N, K = shape
        A, B, C = random(M, K), random(K, N), random(M, N)
        old = C.copy()
        assert sgemm(A, B, alpha, beta, C) is C
        assert agrees(C, alpha, A, B, beta, old)

    @pytest.mark.parametrize("how_c", LAYOUTS)
    def test_every_layout_of_every_operand_and_nothing_else_is_written(self, random, how_c):
        a, b, c = random(5, 7), random(7, 6), random(5, 6)
        for how_a, how_b in itertools.product(LAYOUTS, LAYOUTS):
            A, B, C = laid_out(how_a, a), laid_out(how_b, b), laid_out(how_c, c)
            assert sgemm(A, B, 1.5, -0.5, C) is C
            assert agrees(C, 1.5, a, b, -0.5, c), (how_a, how_b, how_c)
            np.testing.assert_array_equal(A, a)
            np.testing.assert_array_equal(B, b)
            C[...] = 99
            assert C.base is None or (C.base == 99).all(), (how_a, how_b, how_c)

    def test_expanded_operands(self, random):
        row, column = random(1, 6), random(5, 1)
        A, B = np.broadcast_to(row, (4, 6)), np.broadcast_to(row.T, (6, 3))
        assert agrees(sgemm(A, B), 1, A, B, 0, 0)
        assert agrees(sgemm(np.broadcast_to(column, (5, 6)), B), 1, np.broadcast_to(column, (5, 6)), B, 0, 0)
        every = np.broadcast_to(np.float32(2), (4, 4))
        np.testing.assert_array_equal(sgemm(every, every), np.full((4, 4), 16))

    def test_ones_count_k_exactly(self):
        K = 1021
        np.testing.assert_array_equal(sgemm(np.ones((7, K), np.float32), np.ones((K, 5), np.float32)), K)

    def test_one_array_may_be_both_operands(self, random):
        A = random(6, 6)
        assert agrees(sgemm(A, A), 1, A, A, 0, 0)
        assert agrees(sgemm(A, A.T), 1, A, A.T, 0, 0)


@pytest.mark.usefixtures("on_host")
class TestBlasRules:
    def test_beta_zero_never_reads_c(self, random):
        A, B = random(4, 5), random(5, 6)
        C = np.full((4, 6), np.nan, np.float32)
        sgemm(A, B, 1.0, 0.0, C)
        assert agrees(C, 1, A, B, 0, 0)
        C[...] = np.inf
        sgemm(A, B, 1.0, -0.0, C)
        assert agrees(C, 1, A, B, 0, 0)

    @pytest.mark.parametrize("beta", [0.0, 1.0, 3.0])
    def test_c_is_written_once_the_product_is_there(self, random, beta):
        """NumPy may have no memory for it; then the call can be tried again."""

        class Matrix(np.ndarray):
            def __matmul__(self, other):
                raise MemoryError

        C = random(4, 6)
        old = C.copy()
        with pytest.raises(MemoryError):
            host._through_blas(random(4, 5).view(Matrix), random(5, 6), 1.0, beta, C)
        np.testing.assert_array_equal(C, old)

    @pytest.mark.parametrize("beta", [0.0, 1.0, 3.0])
    def test_alpha_zero_never_reads_a_and_b(self, random, beta):
        A, B = np.full((4, 5), np.nan, np.float32), np.full((5, 6), np.inf, np.float32)
        C = random(4, 6)
        expected = np.float32(beta) * C
        np.testing.assert_array_equal(sgemm(A, B, 0.0, beta, C), expected)

    def test_alpha_and_beta_zero_clear_a_c_of_nans(self, random):
        C = np.full((4, 6), np.nan, np.float32)
        np.testing.assert_array_equal(sgemm(random(4, 5), random(5, 6), 0.0, 0.0, C), 0)

    def test_nan_in_c_stays_where_beta_is_not_zero(self, random):
        A, B, C = random(4, 5), random(5, 6), random(4, 6)
        C[1, 2] = np.nan
        sgemm(A, B, 1.0, 0.5, C)
        assert np.argwhere(np.isnan(C)).tolist() == [[1, 2]]

    def test_nan_and_inf_in_the_operands_spread_as_in_float64(self, random):
        A, B = random(6, 5), random(5, 7)
        A[1, 2], A[3, 0], B[2, 4], B[4, 6] = np.nan, np.inf, -np.inf, np.nan
        B[0, 1] = 0.0  # times Inf is NaN
        with np.errstate(invalid="ignore"):
            expected = A.astype(np.float64) @ B.astype(np.float64)
        result = sgemm(A, B)
        np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
        np.testing.assert_array_equal(result[np.isinf(expected)], expected[np.isinf(expected)])

    @pytest.mark.parametrize(("beta", "scale"), [(0.0, 0.0), (1.0, 1.0), (-2.0, -2.0)])
    def test_without_steps_c_is_scaled(self, random, beta, scale):
        C = random(3, 4)
        expected = scale * C
        sgemm(np.ones((3, 0), np.float32), np.ones((0, 4), np.float32), 1.0, beta, C)
        np.testing.assert_array_equal(C, expected)

    def test_without_steps_a_new_c_is_zero(self):
        np.testing.assert_array_equal(sgemm(np.ones((3, 0), np.float32), np.ones((0, 4), np.float32)), np.zeros((3, 4)))

    @pytest.mark.parametrize(("M", "N", "K"), [(0, 4, 3), (3, 0, 4), (0, 0, 0), (0, 5, 0)])
    def test_without_elements_there_is_nothing_to_do(self, M, N, K):
        A, B, C = np.ones((M, K), np.float32), np.ones((K, N), np.float32), np.ones((M, N), np.float32)
        assert sgemm(A, B).shape == (M, N)
        assert sgemm(A, B, 2.0, 3.0, C) is C

    @pytest.mark.parametrize("alpha", [np.inf, -np.inf, np.nan])
    def test_alpha_that_is_not_finite_is_a_value(self, alpha):
        result = sgemm(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32), alpha)
        np.testing.assert_array_equal(result, np.full((2, 2), alpha))


@pytest.mark.usefixtures("on_host")
class TestKinds:
    def test_numpy_gives_a_new_array_of_its_own(self, random):
        result = sgemm(random(3, 4), random(4, 5))
        assert type(result) is np.ndarray and result.flags.owndata and result.flags.writeable

    def test_torch_gives_torch(self, random, torch):
        A, B = random(3, 4), random(4, 5)
        result = sgemm(torch.from_numpy(A), torch.from_numpy(B))
        assert isinstance(result, torch.Tensor)
        assert agrees(result.numpy(), 1, A, B, 0, 0)

    def test_torch_c_is_updated_and_returned(self, random, torch):
        A, B, old = random(3, 4), random(4, 5), random(3, 5)
        C = torch.from_numpy(old.copy())
        assert sgemm(torch.from_numpy(A), torch.from_numpy(B), 2.0, 0.5, C) is C
        assert agrees(C.numpy(), 2, A, B, 0.5, old)

    def test_the_kind_of_c_or_else_a_decides(self, random, torch):
        A, B, old = random(3, 4), random(4, 5), random(3, 5)
        assert type(sgemm(A, torch.from_numpy(B))) is np.ndarray
        assert isinstance(sgemm(torch.from_numpy(A), B), torch.Tensor)
        C = torch.from_numpy(old.copy())
        assert sgemm(A, B, 1.0, 1.0, C) is C
        assert agrees(C.numpy(), 1, A, B, 1, old)
        C = old.copy()
        assert sgemm(torch.from_numpy(A), torch.from_numpy(B), 1.0, 1.0, C) is C
        assert agrees(C, 1, A, B, 1, old)

    def test_operands_of_torch_can_be_resized_afterwards(self, torch):
        A, C = torch.ones(2, 2), torch.ones(2, 2)
        sgemm(A, A, 1.0, 1.0, C)
        assert A.resize_(8, 8).shape == C.resize_(8, 8).shape  # which `Tensor.numpy` would prevent

    def test_any_stride_along_an_extent_of_1(self, torch):
        row = torch.arange(4.0).as_strided((1, 4), (2**62, 1))
        assert sgemm(row, torch.ones(4, 2)).tolist() == [[6.0, 6.0]]

    def test_torch_views_and_detached_tensors(self, random, torch):
        A = torch.from_numpy(random(4, 3)).t()
        learned = torch.from_numpy(random(4, 5)).requires_grad_()
        result = sgemm(A, learned.detach())
        assert agrees(result.numpy(), 1, A.numpy(), learned.detach().numpy(), 0, 0)
        one = torch.ones(1, 4).expand(3, 4)
        np.testing.assert_array_equal(sgemm(one, torch.ones(4, 5)).numpy(), 4)

    def test_read_only_operands_are_read(self, random):
        A, B = random(3, 4), random(4, 5)
        A.flags.writeable = B.flags.writeable = False
        assert agrees(sgemm(A, B), 1, A, B, 0, 0)

    def test_jax_arrays_are_never_written(self, random):
        jax = pytest.importorskip("jax")
        A, B, old = random(3, 4), random(4, 5), random(3, 5)
        a, b, c = (jax.device_put(x, jax.devices("cpu")[0]) for x in (A, B, old))
        result = sgemm(a, b, 2.0, 0.5, c)
        assert isinstance(result, jax.Array) and result is not c
        assert agrees(np.asarray(result), 2, A, B, 0.5, old)
        np.testing.assert_array_equal(np.asarray(c), old)
        assert isinstance(sgemm(a, b), jax.Array)


ONES = np.ones((2, 2), np.float32)


class TestChoiceOfMachine:
    def test_there_is_one_warning_a_process_and_it_points_at_the_caller(self, no_driver):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            sgemm(ONES, ONES)
            sgemm(ONES, ONES, 1.0, 0.0, ONES.copy())
        assert [str(warning.category.__name__) for warning in seen] == ["RuntimeWarning"]
        assert "multiplied by NumPy" in str(seen[0].message)
        assert seen[0].filename == __file__

    @pytest.mark.filterwarnings("error")
    def test_a_host_that_was_asked_for_is_no_warning(self, fresh_machine, monkeypatch):
        monkeypatch.setenv("FASTSGEMM_DEVICE", "host")
        np.testing.assert_array_equal(sgemm(ONES, ONES), 2)

    def test_without_a_driver_numpy_multiplies(self, no_driver):
        with pytest.warns(RuntimeWarning, match="no NVIDIA GPU"):
            np.testing.assert_array_equal(sgemm(ONES, ONES), 2)

    def test_a_device_that_is_asked_for_must_be_there(self, no_driver, monkeypatch):
        monkeypatch.setenv("FASTSGEMM_DEVICE", "cuda")
        C = np.full((2, 2), 7.5, np.float32)
        with pytest.raises(NoDriverError, match="no NVIDIA driver was found"):
            sgemm(ONES, ONES, C=C)
        assert (C == 7.5).all()

    @pytest.mark.parametrize("rung", [1, "warptiled", 8])
    def test_a_rung_is_never_replaced_by_numpy(self, no_driver, rung):
        C = np.full((2, 2), 7.5, np.float32)
        with pytest.raises(NoDriverError, match="needs an NVIDIA GPU"):
            sgemm(ONES, ONES, C=C, rung=rung)
        assert (C == 7.5).all()

"""What is launched for a product: arguments, BLAS rules and every layout, on a device made of Python."""

import itertools

import numpy as np
import pytest
from cuda.bindings import driver
from matrices import LAYOUTS, laid_out

from fastsgemm import BlockConfig, sgemm
from fastsgemm.errors import DeviceMemoryError, NoNvrtcError, OperandError
from fastsgemm.jit import compiler

HOW = {"rung": "naive", "config": BlockConfig(32, 32)}
PACKED = ("leftwards", "strided")  # those without a unit stride


@pytest.mark.parametrize("how_c", LAYOUTS)
def test_every_layout_gives_the_product_and_writes_nothing_else(device, on_device, random, how_c):
    a, b, c = random(5, 7), random(7, 6), random(5, 6)
    expected = 1.5 * (a @ b) - 0.5 * c
    for how_a, how_b in itertools.product(LAYOUTS, LAYOUTS):
        device.launched.clear()
        A, B, C = laid_out(how_a, a), laid_out(how_b, b), laid_out(how_c, c)
        sgemm(on_device(A), on_device(B), 1.5, -0.5, on_device(C), **HOW)
        np.testing.assert_allclose(C, expected, rtol=1e-5, atol=1e-5, err_msg=f"{how_a} {how_b} {how_c}")
        C[...] = 99
        assert C.base is None or (C.base == 99).all(), (how_a, how_b, how_c)
        packed = [how for how in (how_a, how_b, how_c) if how in PACKED]
        assert len(device.launched) == 1 + len(packed) + (how_c in PACKED)  # C is gathered and scattered
        assert not any(device.early)
    assert not device.leaks
    assert not device.leaks


def test_expanded_operands_are_read_in_place(device, on_device, random):
    row = random(1, 6)
    A = np.broadcast_to(row, (4, 6))
    result = sgemm(on_device(A), on_device(A.T), **HOW)
    np.testing.assert_allclose(result.values, A @ A.T, rtol=1e-5)
    assert device.made == []


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 3), (5, 1, 3), (3, 5, 1), (1, 1, 7)])
@pytest.mark.parametrize("step", [1, 2])
def test_rows_and_columns_of_any_stride_need_no_packing(device, on_device, random, shape, step):
    M, N, K = shape
    A, B = random(M, step * K)[:, ::step], random(step * K, N)[::step]
    result = sgemm(on_device(A), on_device(B), **HOW)
    np.testing.assert_allclose(result.values, A @ B, rtol=1e-5, atol=1e-6)
    assert len(device.made) == (step == 2 and M > 1 and K > 1)  # rows of A that are apart, with gaps within


@pytest.mark.parametrize("which", ["A", "B", "C"])
def test_an_address_between_two_floats_is_refused_and_nothing_is_launched(device, on_device, which):
    def placed(name):
        space = np.zeros(4 * 16 + 16, np.int8)
        start = -space.ctypes.data % 16 + (2 if name == which else 0)
        return np.ndarray((4, 4), np.float32, space.data, start)

    A, B, C = (on_device(placed(name)) for name in "ABC")
    with pytest.raises(
        OperandError, match=f"^{which} must lie at an address divisible by 4; .* modulo 16 is 2; pass a copy$"
    ):
        sgemm(A, B, 1.0, 1.0, C, **HOW)
    assert device.launched == []


@pytest.mark.parametrize("how_c", ["row-major", "column-major", "strided"])
class TestBlasRules:
    def test_beta_zero_never_reads_c(self, device, on_device, random, how_c):
        A, B, C = random(3, 4), random(4, 5), laid_out(how_c, np.full((3, 5), np.nan, np.float32))
        sgemm(on_device(A), on_device(B), 1.0, 0.0, on_device(C), **HOW)
        np.testing.assert_allclose(C, A @ B, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("how", ["row-major", "strided"])
    @pytest.mark.parametrize("beta", [0.0, 1.0, -2.0])
    def test_alpha_zero_never_reads_a_and_b(self, device, on_device, random, how_c, how, beta):
        nan = laid_out(how, np.full((4, 4), np.nan, np.float32))
        values = random(4, 4)
        values[0, 0] = -0.0
        C = laid_out(how_c, values)
        sgemm(on_device(nan), on_device(nan), 0.0, beta, on_device(C), **HOW)
        expected = np.float32(beta) * values if beta else np.zeros((4, 4), np.float32)
        assert np.ascontiguousarray(C).tobytes() == expected.tobytes()  # down to the sign of a zero

    @pytest.mark.parametrize("alpha", [1.0, np.nan])
    @pytest.mark.parametrize("beta", [0.0, 1.0, -2.0])
    def test_without_steps_c_is_scaled(self, device, on_device, random, how_c, alpha, beta):
        values = random(3, 5)
        C = laid_out(how_c, values)
        empty = np.ones((3, 0), np.float32), np.ones((0, 5), np.float32)
        sgemm(on_device(empty[0]), on_device(empty[1]), alpha, beta, on_device(C), **HOW)
        np.testing.assert_array_equal(C, np.float32(beta) * values)


@pytest.mark.parametrize(("M", "N", "K"), [(0, 5, 3), (3, 0, 4), (0, 0, 0)])
def test_without_elements_nothing_is_compiled_or_launched(device, on_device, M, N, K):
    A, B = np.ones((M, K), np.float32), np.ones((K, N), np.float32)
    assert sgemm(on_device(A), on_device(B), **HOW).values.shape == (M, N)
    assert device.compiled == [] and device.launched == []


def test_workspace_is_given_back_when_the_launch_fails(device, on_device, random, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("no launch")

    A, B = random(4, 8)[:, ::2], random(4, 5)
    monkeypatch.setattr(device, "launch", fail)
    with pytest.raises(RuntimeError, match="no launch"):
        sgemm(on_device(A), on_device(B), **HOW)
    assert device.made and not device.leaks


def test_packing_more_than_there_is_room_for_leaves_c_and_no_workspace(device, on_device, random, monkeypatch):
    monkeypatch.setattr(driver, "cuMemGetInfo", lambda: (0, 100, 2000))
    A, B, C = (laid_out("strided", random(*shape)) for shape in ((2, 3), (3, 4), (2, 4)))
    device.room = 3 * 256 - 1
    before = C.copy()
    message = "Python has no room for packed copies of .* 768 bytes are needed, 100 of 2000 are free"
    with pytest.raises(DeviceMemoryError, match=message):
        sgemm(on_device(A), on_device(B), 1.0, 1.0, on_device(C), **HOW)
    np.testing.assert_array_equal(C, before)
    assert not device.leaks


def test_an_operand_is_packed_in_a_capture(device, on_device, random):
    A, B = random(4, 8)[:, ::2], random(4, 5)
    device.capturing.add(5)
    np.testing.assert_allclose(sgemm(on_device(A), on_device(B), **HOW).values, A @ B, rtol=1e-5, atol=1e-6)
    assert not device.leaks


def test_packing_uses_the_stream_of_the_call(device, on_device, random):
    class Stream:
        def __cuda_stream__(self):
            return (0, 9)

    sgemm(on_device(random(4, 8)[:, ::2]), on_device(random(4, 5)), stream=Stream(), **HOW)
    assert {handle for handle, _ in device.launched} == {9}
    assert {workspace.handle for workspace in device.made} == {9}


def test_the_table_of_problems_starts_again_when_it_is_full(device, on_device, random, monkeypatch):
    monkeypatch.setattr("fastsgemm.call.driver._MOST_LOADED", 3)
    for n in range(1, 8):
        A = random(n, n)
        np.testing.assert_allclose(sgemm(on_device(A), on_device(A), **HOW).values, A @ A, rtol=1e-4, atol=1e-5)
        assert len(device.prepared) <= 3


@pytest.mark.parametrize(
    ("columns", "how", "said"),
    [
        (6, {}, "5,6,7,NT with precision 'ieee'"),
        (5, {"batch_invariant": True}, "5,5,7,NT with precision 'ieee', batch-"),
    ],
)
def test_a_kernel_that_cannot_be_compiled_names_the_problem(device, on_device, random, monkeypatch, columns, how, said):
    def missing(*_):
        raise NoNvrtcError("fastsgemm_skinny is not stored")

    monkeypatch.setattr(compiler, "cubin", missing)
    with pytest.raises(NoNvrtcError) as caught:
        sgemm(on_device(random(5, 7)), on_device(random(columns, 7).T), **how)
    assert str(caught.value).startswith(said) and str(caught.value).endswith(": fastsgemm_skinny is not stored")

"""K in parts: what is launched, on which memory, and what is left when something fails, on a device made of Python."""

import dataclasses

import numpy as np
import pytest
from cuda.bindings import driver

from fastsgemm import PipelinedConfig, SkinnyConfig, sgemm
from fastsgemm.errors import DeviceMemoryError
from fastsgemm.heuristics import database
from fastsgemm.heuristics.fitted import Fitted

CONFIG = PipelinedConfig(
    32, 32, 8, 4, 4, 16, 32, 1, GROUP_M=8, MIN_BLOCKS=1, ORDER=1, FRAGMENTS=2, CP_ASYNC=0, SPREAD=0, SPLIT_K=3
)
HOW = {"rung": "pipelined", "config": CONFIG}
M, N, K = 5, 6, 70
STREAM = 5  # of the arrays on the Python device


@pytest.fixture
def abc(random):
    return random(M, K), random(K, N), random(M, N)


def expected(abc, alpha, beta):
    A, B, C = (x.astype(np.float64) for x in abc)
    return alpha * (A @ B) + beta * C


def test_the_parts_go_to_workspace_and_their_sum_to_c(device, on_device, abc):
    A, B, C = abc
    wanted = expected(abc, 1.5, -0.5)
    sgemm(on_device(A), on_device(B), 1.5, -0.5, on_device(C), **HOW)
    np.testing.assert_allclose(C, wanted, rtol=1e-5, atol=1e-5)
    (workspace,) = device.made
    assert (workspace.size, workspace.handle) == (512, STREAM) and not device.leaks  # for 4 * 3 * M * N bytes
    (first, parts), (second, total) = device.launched
    assert first == second == STREAM
    assert parts[3] == 1 and parts[8] == 0  # alpha and beta belong to the sum
    assert (parts[9], parts[10]) == (workspace.address, N)
    assert parts[11:13] == (24, M * N)  # K = 70 is 9 tiles of 8, 3 a part
    assert total[2:7] == (3, workspace.address, M * N, np.float32(1.5), np.float32(-0.5))
    assert device.compiled == ["pipelined", "reduce_parts"]


def test_a_problem_of_one_part_is_one_launch_without_workspace(device, on_device, random):
    A, B = random(M, 8), random(8, N)
    result = sgemm(on_device(A), on_device(B), **HOW)  # a tile of K: it cannot be divided
    np.testing.assert_allclose(result.values, A @ B, rtol=1e-5, atol=1e-5)
    assert len(device.launched) == 1 and device.made == [] and device.compiled == ["pipelined"]


def test_divisions_share_a_kernel(device, on_device, abc, monkeypatch):
    monkeypatch.setattr(database, "fitted", lambda arch: Fitted(peeled_tiles=0))  # else short parts have another kernel
    A, B, _ = abc
    for parts in (1, 2, 3, 100):
        config = dataclasses.replace(CONFIG, SPLIT_K=parts)
        result = sgemm(on_device(A), on_device(B), rung="pipelined", config=config)
        np.testing.assert_allclose(result.values, expected(abc, 1, 0), rtol=1e-5, atol=1e-5)
    assert device.compiled == ["pipelined", "reduce_parts"]
    assert [workspace.size // (4 * M * N) for workspace in device.made] == [2, 4, 10]  # 2, 3 and 9, and up to 256 bytes


@pytest.mark.parametrize("how_c", ["row-major", "column-major", "padded", "strided"])
class TestEveryC:
    @staticmethod
    def laid_out(how_c, values):
        buffer = {
            "row-major": lambda: np.full((M, N), 99, np.float32),
            "column-major": lambda: np.full((N, M), 99, np.float32).T,
            "padded": lambda: np.full((M, N + 3), 99, np.float32)[:, 1:-2],
            "strided": lambda: np.full((M, 2 * N), 99, np.float32)[:, ::2],
        }[how_c]()
        buffer[...] = values
        return buffer

    def test_is_updated_and_nothing_beside_it(self, device, on_device, abc, how_c):
        C = self.laid_out(how_c, abc[2])
        sgemm(on_device(abc[0]), on_device(abc[1]), 1.5, -0.5, on_device(C), **HOW)
        np.testing.assert_allclose(C, expected(abc, 1.5, -0.5), rtol=1e-5, atol=1e-5)
        C[...] = 99
        assert C.base is None or (C.base == 99).all()
        assert not device.leaks

    def test_is_not_read_for_beta_zero(self, device, on_device, abc, how_c):
        C = self.laid_out(how_c, np.nan)
        sgemm(on_device(abc[0]), on_device(abc[1]), 1.0, 0.0, on_device(C), **HOW)
        np.testing.assert_allclose(C, expected(abc, 1, 0), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("beta", [0.0, 1.0, -2.0])
    def test_is_scaled_for_alpha_zero(self, device, on_device, abc, how_c, beta):
        nan = [np.full_like(x, np.nan) for x in abc[:2]]
        abc[2][0, 0] = -0.0
        C = self.laid_out(how_c, abc[2])
        sgemm(on_device(nan[0]), on_device(nan[1]), 0.0, beta, on_device(C), **HOW)
        wanted = np.float32(beta) * abc[2] if beta else np.zeros_like(abc[2])
        assert np.ascontiguousarray(C).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("fails", [0, 1])
def test_workspace_is_given_back_when_a_launch_fails(device, on_device, abc, monkeypatch, fails):
    launch, before = device.launch, abc[2].copy()

    def fail(*arguments):
        if len(device.launched) == fails:
            raise RuntimeError("no launch")
        return launch(*arguments)

    monkeypatch.setattr(device, "launch", fail)
    with pytest.raises(RuntimeError, match="no launch"):
        sgemm(on_device(abc[0]), on_device(abc[1]), 1.0, 1.0, on_device(abc[2]), **HOW)
    assert len(device.made) == 1 and not device.leaks
    np.testing.assert_array_equal(abc[2], before)


def test_without_room_nothing_is_launched_and_the_error_says_what_for(device, on_device, abc, monkeypatch):
    monkeypatch.setattr(driver, "cuMemGetInfo", lambda: (0, 100, 2000))
    device.room = 4 * 3 * M * N
    before = abc[2].copy()
    message = "Python has no room for the partial sums of split-K: 512 bytes are needed, 100 of 2000 are free"
    with pytest.raises(DeviceMemoryError, match=message):
        sgemm(on_device(abc[0]), on_device(abc[1]), 1.0, 1.0, on_device(abc[2]), **HOW)
    assert device.launched == [] and device.made == []
    np.testing.assert_array_equal(abc[2], before)


def test_the_stream_of_the_call_is_used_for_all_of_it(device, on_device, abc):
    class Stream:
        def __cuda_stream__(self):
            return (0, 9)

    sgemm(on_device(abc[0]), on_device(abc[1]), stream=Stream(), **HOW)
    assert [handle for handle, _ in device.launched] == [9, 9] and device.made[0].handle == 9


def test_a_first_division_in_a_capture(device, on_device, abc):
    A, B, _ = abc
    device.capturing.add(STREAM)
    result = sgemm(on_device(A), on_device(B), **HOW)
    np.testing.assert_allclose(result.values, expected(abc, 1, 0), rtol=1e-5, atol=1e-5)
    assert not device.leaks


# Rung 10, which computes the transposed product where columns are few

SKINNY = SkinnyConfig(4, 32, 64, TN=4, TK=8, MIN_BLOCKS=1, SPLIT_K=3)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("how_c", ["row-major", "column-major", "padded", "strided"])
@pytest.mark.parametrize(("rows", "columns"), [(5, 70), (70, 5)])
def test_a_narrow_result_is_written_where_c_is(device, on_device, random, rows, columns, how_c, parts):
    buffer = {
        "row-major": lambda: np.full((rows, columns), 99, np.float32),
        "column-major": lambda: np.full((columns, rows), 99, np.float32).T,
        "padded": lambda: np.full((rows, columns + 3), 99, np.float32)[:, 1:-2],
        "strided": lambda: np.full((rows, 2 * columns), 99, np.float32)[:, ::2],
    }[how_c]()
    config = dataclasses.replace(SKINNY, SPLIT_K=parts)
    for order_a, order_b in (("C", "C"), ("C", "F"), ("F", "C"), ("F", "F")):
        A, B, C = random(rows, 300), random(300, columns), random(rows, columns)
        buffer[...] = C
        a, b = np.asarray(A, order=order_a), np.asarray(B, order=order_b)
        sgemm(on_device(a), on_device(b), 1.5, -0.5, on_device(buffer), config=config)
        np.testing.assert_allclose(buffer, expected((A, B, C), 1.5, -0.5), rtol=1e-4, atol=1e-4)
    buffer[...] = 99
    assert buffer.base is None or (buffer.base == 99).all()
    assert not device.leaks
    assert ("reduce_parts" in device.compiled) == (parts > 1)


def test_few_columns_are_launched_as_few_rows(device, on_device, random):
    rows, columns, depth = 70, 5, 300
    A, B, C = random(rows, depth), random(depth, columns), random(rows, columns)
    sgemm(on_device(A), on_device(B), 1.5, -0.5, on_device(C), config=dataclasses.replace(SKINNY, SPLIT_K=1))
    ((_, product),) = device.launched
    assert product[:3] == (columns, rows, depth) and product[3] == np.float32(1.5) and product[8] == np.float32(-0.5)
    assert product[4:8] == (B.ctypes.data, columns, A.ctypes.data, depth)  # B is the kernel's A
    assert product[9:13] == (C.ctypes.data, columns, 320, rows * columns)  # C as it lies, K in one part of five tiles
    device.launched.clear()
    sgemm(on_device(A), on_device(B), 1.5, -0.5, on_device(C), config=SKINNY)
    (_, product), (_, total) = device.launched
    (workspace,) = device.made
    assert product[3] == 1 and product[8] == 0 and product[9:13] == (workspace.address, rows, 128, rows * columns)
    assert total[:5] == (columns, rows, 3, workspace.address, rows * columns)
    assert total[7:10] == (C.ctypes.data, 1, columns)  # down is right, and right is down


def test_without_a_rung_a_narrow_result_is_rung_10s(device, on_device, random):
    device.arch, device.multiprocessors = "sm_75", 40
    for rows, columns, name in ((70, 1, "skinny"), (2, 70, "skinny"), (33, 70, "pipelined")):
        device.compiled.clear()
        A, B = random(rows, 90), random(90, columns)
        result = sgemm(on_device(A), on_device(B))
        np.testing.assert_allclose(result.values, A @ B, rtol=1e-4, atol=1e-4)
        assert name in device.compiled


@pytest.mark.parametrize(("arch", "early"), [("sm_75", False), ("sm_89", False), ("sm_90", True), ("sm_120", True)])
def test_where_the_device_can_the_sum_is_launched_before_the_parts_are_there(device, on_device, abc, arch, early):
    device.arch = arch
    sgemm(on_device(abc[0]), on_device(abc[1]), **HOW)
    assert device.early == [False, early]


def test_what_is_packed_may_be_divided_too(device, on_device, abc):
    A = np.zeros((M, 2 * K), np.float32)[:, ::2]
    A[...] = abc[0]
    result = sgemm(on_device(A), on_device(abc[1]), **HOW)
    np.testing.assert_allclose(result.values, expected(abc, 1, 0), rtol=1e-5, atol=1e-5)
    assert sorted(device.compiled) == ["copy_strided", "pipelined", "reduce_parts"]
    assert not device.leaks

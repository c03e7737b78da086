"""Several threads, several devices, and threads that have never used CUDA."""

import numpy as np
import pytest
from in_threads import run_all

from fastsgemm import VectorizedConfig, device, sgemm
from fastsgemm.call.arrays import DeviceArray
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.errors import DeviceMismatchError

pytestmark = pytest.mark.gpu


@pytest.fixture
def cold(gpu, tmp_path, monkeypatch):
    """Nothing is prepared, loaded or cached on disk."""
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(tmp_path))
    gpu.forget_problems()
    gpu.kernels.clear()


def test_eight_threads_meet_their_first_problem_at_once(torch, cold, whole):
    problems = []
    for i in range(8):
        values = whole(17 + 13 * i, 9 + 5 * i), whole(9 + 5 * i, 24 + 7 * i)
        problems.append((values, [torch.from_numpy(x).cuda() for x in values]))

    def work(i):
        (a, b), (A, B) = problems[i]
        for _ in range(50):
            result = sgemm(A, B, rung=1 + i)
        np.testing.assert_array_equal(result.cpu().numpy(), a @ b)

    run_all(work, 8)


def test_eight_threads_want_the_same_kernel(torch, cold, whole):
    a = whole(65, 65)
    A = torch.from_numpy(a).cuda()

    def work(i):
        np.testing.assert_array_equal(sgemm(A, A).cpu().numpy(), a @ a)

    run_all(work, 8)


def test_threads_on_their_own_streams(torch, whole):
    a = whole(64, 64)
    expected = torch.from_numpy(a @ a).cuda()
    torch.cuda.synchronize()

    def work(i):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            A = torch.from_numpy(a).cuda(non_blocking=True)
            for _ in range(100):
                C = sgemm(A, A)
            assert torch.equal(C, expected)

    run_all(work, 8)


def test_threads_with_operands_that_must_be_kept(torch, whole):
    a = whole(48, 48)
    expected = torch.from_numpy(a @ a).cuda()
    torch.cuda.synchronize()

    def work(i):
        stream = torch.cuda.Stream()
        for _ in range(200):
            A, C = torch.from_numpy(a).cuda(), torch.empty(48, 48, device="cuda")
            sgemm(A, A, C=C, stream=stream)
            del A
            torch.full((48, 48), float("nan"), device="cuda")
            stream.synchronize()
            assert torch.equal(C, expected)

    run_all(work, 8)


def test_a_thread_without_a_context(gpu, whole):
    """Nothing of CUDA has been touched in the thread, and nothing is left current in it."""
    from cuda.bindings import driver

    values = whole(33, 20), whole(20, 17)
    A, B, C = (DeviceArray(shape, gpu, LEGACY_STREAM) for shape in ((33, 20), (20, 17), (33, 17)))
    A.upload(values[0])
    B.upload(values[1])
    contexts = []

    def work(i):
        contexts.append(int(driver.cuCtxGetCurrent()[1]))
        sgemm(A, B, C=C)
        contexts.append(int(driver.cuCtxGetCurrent()[1]))

    run_all(work, 1)
    out = np.empty((33, 17), np.float32)
    C.download(out)
    assert contexts == [0, 0]
    np.testing.assert_array_equal(out, values[0] @ values[1])


class TestTwoDevices:
    @pytest.fixture(autouse=True)
    def two(self, torch):
        if torch.cuda.device_count() < 2:
            pytest.skip("there is only one device")

    def test_each_device_works_whichever_is_current(self, torch, whole):
        a = whole(65, 65)
        for current in (0, 1):
            with torch.cuda.device(current):
                for ordinal in (0, 1):
                    A = torch.from_numpy(a).to(f"cuda:{ordinal}")
                    result = sgemm(A, A)
                    assert result.device == A.device
                    np.testing.assert_array_equal(result.cpu().numpy(), a @ a)
                    assert torch.cuda.current_device() == current
                    rows = torch.from_numpy(np.repeat(a, 2, axis=1)).to(f"cuda:{ordinal}")[:, ::2]
                    np.testing.assert_array_equal(sgemm(rows, A).cpu().numpy(), a @ a)

    def test_large_shared_memory_is_asked_for_on_each_device(self, torch, whole):
        a = whole(130, 130)
        for ordinal in (0, 1):
            A = torch.from_numpy(a).to(f"cuda:{ordinal}")
            result = sgemm(A, A, rung="vectorized", config=VectorizedConfig(128, 128, 64, 8, 8))
            np.testing.assert_array_equal(result.cpu().numpy(), a @ a)

    def test_operands_on_different_devices_are_refused(self, torch):
        A, B = torch.ones(4, 4, device="cuda:0"), torch.ones(4, 4, device="cuda:1")
        C = torch.full((4, 4), 7.5, device="cuda:0")
        with pytest.raises(DeviceMismatchError, match="A on cuda:0, B on cuda:1, C on cuda:0"):
            sgemm(A, B, C=C)
        assert (C == 7.5).all()

    def test_a_stream_of_another_device_is_refused(self, torch):
        A = torch.ones(4, 4, device="cuda:0")
        with torch.cuda.device(1):
            stream = torch.cuda.Stream()
        with pytest.raises(DeviceMismatchError, match="the stream is on cuda:1, the operands on cuda:0"):
            sgemm(A, A, stream=stream)

    def test_threads_on_different_devices(self, torch, whole):
        a = whole(65, 65)

        def work(i):
            A = torch.from_numpy(a).to(f"cuda:{i % 2}")
            for _ in range(100):
                result = sgemm(A, A)
            np.testing.assert_array_equal(result.cpu().numpy(), a @ a)

        run_all(work, 8)
        assert set(device.gpus) >= {0, 1}

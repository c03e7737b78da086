"""An opened device on a driver made of Python: contexts, kept operands, memory that outlives its stream, captures."""

import gc
import os
import threading
import weakref

import pytest
from fake_driver import GLOBAL, SYNCHRONISING, UNSAFE

import fastsgemm
from fastsgemm import device
from fastsgemm.call import workspace
from fastsgemm.call.workspace import DeviceMemory
from fastsgemm.device import Event
from fastsgemm.errors import DeviceError, DeviceMemoryError, DeviceMismatchError
from fastsgemm.gpu import Gpu

GREEN, OTHER_DEVICES = 150, 101  # contexts


class Operand:
    """What a call reads."""


@pytest.fixture
def gpu(cuda_driver, monkeypatch):
    """The first device, on the driver made of Python; nothing else is opened."""
    gpu = Gpu(0)
    monkeypatch.setattr(device, "gpus", {0: gpu})
    cuda_driver.contexts[GREEN] = 0
    cuda_driver.calls.clear()
    yield gpu
    gpu._kept.clear()


def kept_by(gpu, handle):
    """Let a device keep a new operand; return a reference to it."""
    operand = Operand()
    gpu.keep_alive(handle, operand)
    return weakref.ref(operand)


class TestContexts:
    @pytest.mark.parametrize(("ordinal", "before", "after"), [(0, 0, 100), (1, 0, 0), (0, 101, 101), (1, 100, 100)])
    def test_opening_a_device_leaves_the_current_one(self, cuda_driver, ordinal, before, after):
        """Where none is current, CUDA's runtime takes the first."""
        cuda_driver.current = [before]
        Gpu(ordinal)
        assert cuda_driver.current == [after]

    @pytest.mark.parametrize(
        ("current", "entered"), [(0, [0, 100]), (100, [100]), (GREEN, [GREEN]), (OTHER_DEVICES, [OTHER_DEVICES, 100])]
    )
    def test_another_context_of_the_device_stays_current(self, gpu, cuda_driver, current, entered):
        cuda_driver.current = [current]
        switched = gpu.enter()
        assert cuda_driver.current == entered and switched is (len(entered) == 2)
        if switched:
            gpu.leave()
        assert cuda_driver.current == [current]

    def test_where_the_context_is_the_primary_one_nothing_else_is_asked(self, gpu, cuda_driver):
        assert not gpu.enter()
        assert [name for name, _ in cuda_driver.calls] == ["cuCtxGetCurrent"]

    def test_streams_of_its_own_are_of_the_primary_context(self, cuda_driver):
        cuda_driver.contexts[GREEN] = 0
        cuda_driver.current = [GREEN]
        gpu = Gpu(0)
        assert [cuda_driver.streams[each] for each in (gpu.copying, gpu.freeing)] == [100, 100]
        assert cuda_driver.current == [GREEN]

    @pytest.mark.parametrize(("context", "mine"), [(100, True), (GREEN, True), (OTHER_DEVICES, False)])
    def test_a_stream_is_asked_once_for_its_device(self, gpu, cuda_driver, context, mine):
        handle = cuda_driver.new_stream(context)
        if mine:
            gpu.adopt(handle)
        else:
            with pytest.raises(DeviceMismatchError, match="the stream is on cuda:1, the operands on cuda:0"):
                gpu.adopt(handle)
        assert (handle in gpu.streams) is mine and len(cuda_driver.current) == 1


class TestKeptOperands:
    def test_they_are_kept_until_the_stream_has_passed_the_work(self, gpu, cuda_driver):
        handle = cuda_driver.new_stream()
        cuda_driver.waiting.add(handle)
        operands = [kept_by(gpu, handle) for _ in range(3)]
        assert all(operand() for operand in operands)
        cuda_driver.waiting.clear()
        kept_by(gpu, 0)
        assert not any(operand() for operand in operands)

    def test_those_of_the_last_call_are_released_without_another_one(self, gpu, cuda_driver):
        handle = cuda_driver.new_stream()
        cuda_driver.waiting.add(handle)
        for release in gc.collect, fastsgemm.release_workspace:
            operand = kept_by(gpu, handle)
            release()
            alive = [operand() is not None]
            cuda_driver.waiting.clear()
            release()
            assert [*alive, operand() is not None] == [True, False]
            cuda_driver.waiting.add(handle)

    def test_a_stream_that_waits_keeps_none_of_other_streams(self, gpu, cuda_driver):
        one, other = cuda_driver.new_stream(), cuda_driver.new_stream()
        cuda_driver.waiting.add(one)
        waiting = [kept_by(gpu, one) for _ in range(300)]
        for _ in range(20):
            operand = kept_by(gpu, other)
        for _ in range(20):
            kept_by(gpu, 0)
        assert all(each() for each in waiting) and not operand()
        assert len(gpu._kept) < 330

    def test_the_collector_may_run_in_a_thread_that_never_used_cuda(self, gpu, cuda_driver, monkeypatch):
        from cuda.bindings import driver

        exchange, contexts = driver.cuThreadExchangeStreamCaptureMode, []
        monkeypatch.setattr(
            driver,
            "cuThreadExchangeStreamCaptureMode",
            lambda mode: contexts.append(cuda_driver.current[-1]) or exchange(mode),
        )
        operand = kept_by(gpu, 0)
        contexts.clear()
        cuda_driver.current = [0]
        gc.collect()
        assert not operand() and cuda_driver.current == [0]
        assert contexts and set(contexts) == {100}

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
    def test_a_child_that_was_forked_asks_for_no_events(self, gpu, cuda_driver):
        kept_by(gpu, 0)
        child = os.fork()
        if child == 0:
            cuda_driver.calls.clear()
            gc.collect()
            os._exit(len(cuda_driver.calls))
        assert os.waitpid(child, 0)[1] == 0

    def test_a_stream_may_be_gone(self, gpu, cuda_driver):
        handle = cuda_driver.new_stream()
        operand = kept_by(gpu, handle)
        cuda_driver.gone.add(handle)
        gpu.release_passed()
        assert not operand()

    def test_in_a_capture_nothing_is_kept(self, gpu, cuda_driver):
        cuda_driver.capturing.add(7)
        assert not kept_by(gpu, 7)()

    def test_what_the_driver_does_not_say_is_not_done(self, gpu, cuda_driver, monkeypatch):
        """As in a host function of a stream, where no call of the driver is permitted."""
        from cuda.bindings import driver

        operand = kept_by(gpu, 0)
        monkeypatch.setattr(driver, "cuEventQuery", lambda event: (driver.CUresult.CUDA_ERROR_NOT_PERMITTED,))
        gpu.release_passed()
        assert operand()

    def test_a_finaliser_that_multiplies_does_not_wait_for_itself(self, gpu):
        """It runs where the operand is released, in the middle of `release_passed`."""

        def multiply():
            kept_by(gpu, 0)
            gpu.release_passed()

        operand = Operand()
        weakref.finalize(operand, multiply)
        gpu.keep_alive(0, operand)
        del operand
        ended = threading.Thread(target=gpu.release_passed, daemon=True)
        ended.start()
        ended.join(30)
        assert not ended.is_alive()


class TestMemory:
    def test_the_pool_is_its_own_and_lets_no_stream_wait_for_another(self, gpu, cuda_driver):
        [pool] = cuda_driver.pools
        assert pool.ordinal == 0
        assert pool.attributes == {"RELEASE_THRESHOLD": 2**64 - 1, "REUSE_ALLOW_INTERNAL_DEPENDENCIES": 0}
        address = workspace.allocate(gpu, 0, 100, "a test")
        assert cuda_driver.named("cuMemAllocFromPoolAsync") == [(100, pool, 0)]
        workspace.free(gpu, 0, address)
        assert cuda_driver.named("cuMemFreeAsync") == [(address, 0)]

    def test_no_room_says_how_much_and_what_to_do(self, gpu, cuda_driver):
        cuda_driver.room = 2000
        message = r"a device has no room for partial sums: 3000 bytes .*, 1000 of 4000 are free\. Free some, .*empty_ca"
        with pytest.raises(DeviceMemoryError, match=message) as caught:
            workspace.allocate(gpu, 0, 3000, "partial sums")
        assert isinstance(caught.value, MemoryError)

    def test_a_device_without_pools_is_opened_and_says_so_where_memory_is_needed(self, cuda_driver):
        cuda_driver.has_pools = False
        gpu = Gpu(0)
        with pytest.raises(DeviceError, match="allocating 8 bytes for a test failed: the device has no memory pools"):
            workspace.allocate(gpu, 0, 8, "a test")

    def test_releasing_trims_the_pool_and_waits_for_nothing(self, gpu, cuda_driver):
        workspace.free(gpu, 0, workspace.allocate(gpu, 0, 512, "a test"))
        used = workspace.allocate(gpu, 0, 256, "a test")
        cuda_driver.calls.clear()
        assert fastsgemm.release_workspace() == 512
        assert not cuda_driver.named(*SYNCHRONISING) and not cuda_driver.ended
        assert [each.address for each in cuda_driver.memory if each.freed_on is None] == [used]

    def test_it_is_freed_where_no_stream_is_needed_that_may_be_gone(self, gpu, cuda_driver):
        handle = cuda_driver.new_stream()
        memory = DeviceMemory(gpu, handle, 100, "a test")
        cuda_driver.gone.add(handle)
        cuda_driver.calls.clear()
        del memory
        [made] = cuda_driver.memory
        assert made.freed_on == gpu.freeing
        names = [name for name, _ in cuda_driver.calls]
        assert names.index("cuStreamWaitEvent") < names.index("cuMemFreeAsync")  # behind what was written to it
        assert not SYNCHRONISING & set(names)

    def test_closed_memory_is_freed_once_on_its_stream(self, gpu, cuda_driver):
        handle = cuda_driver.new_stream()
        memory = DeviceMemory(gpu, handle, 100, "a test")
        memory.close()
        memory.close()
        del memory
        assert cuda_driver.named("cuMemFreeAsync") == [(cuda_driver.memory[0].address, handle)]


class TestCapturesOfOtherThreads:
    """In CUDA's default mode they end when any thread makes one of some calls, unless its own mode is relaxed."""

    @pytest.fixture(autouse=True)
    def none_is_ended(self, gpu, cuda_driver):
        yield
        assert cuda_driver.ended == [] and cuda_driver.mode is GLOBAL
        assert UNSAFE & {name for name, _ in cuda_driver.calls}

    def test_keeping_and_releasing_operands(self, gpu):
        kept_by(gpu, 0)
        gpu.release_passed()

    def test_collecting_garbage(self, gpu):
        kept_by(gpu, 0)
        gc.collect()

    def test_dropping_memory(self, gpu):
        DeviceMemory(gpu, 0, 100, "a test")

    def test_loading_a_kernel(self, gpu):
        gpu.load(b"", "naive", 0)

    def test_releasing_workspace(self):
        fastsgemm.release_workspace()

    def test_waiting_for_an_event(self):
        event = Event(0)
        event.synchronize()

    def test_opening_a_device(self):
        Gpu(1)


class TestKernels:
    def test_they_are_launched_as_kernels_of_any_context(self, gpu, cuda_driver):
        kernel = gpu.load(b"", "naive", 65536)
        assert (kernel.name, kernel.handle) == ("naive", 10)
        assert cuda_driver.named("cuKernelGetFunction") == [(10,)]  # loaded before a capture can need it
        assert [given[1:] for given in cuda_driver.named("cuKernelSetAttribute")] == [(65536, 10, 0)]

    def test_they_stay_loaded(self, gpu, cuda_driver):
        """A graph that the caller has captured may hold them."""
        kernel = gpu.load(b"", "naive", 0)
        del kernel
        gc.collect()
        assert cuda_driver.loaded == {1: True}

    def test_what_they_need_is_asked_of_the_driver(self, gpu):
        kernel = gpu.load(b"", "naive", 0)
        assert (kernel.local_bytes, kernel.blocks_per_sm(128, 0)) == (48, 3)

    @pytest.mark.parametrize(("version", "early"), [(12020, 0), (12030, 1)])
    def test_none_begins_early_where_a_capture_cannot_hold_that(self, cuda_driver, version, early):
        cuda_driver.version = version
        assert Gpu(0).launch_config((1,), 32, 0, True).numAttrs == early

    def test_a_device_with_tables_of_its_own_shares_the_kernels_that_are_loaded(self, gpu):
        gpu.kernels["loaded"], gpu.prepared["problem"] = "kernel", "plan"
        other = gpu.with_own_tables()
        other.kernels["tried"] = "candidate"
        assert other.kernels["loaded"] == "kernel" and not other.prepared
        assert gpu.kernels == {"loaded": "kernel"} and other.pool is gpu.pool

"""An opened device, with a driver made of Python functions: operands kept alive, memory, captures, streams."""

import collections
import threading
import weakref
from types import SimpleNamespace

import pytest
from cuda.bindings import driver

from fastsgemm.driver import LEGACY_STREAM
from fastsgemm.errors import DeviceError, DeviceMismatchError
from fastsgemm.gpu import Gpu

OK = driver.CUresult.CUDA_SUCCESS


@pytest.fixture
def keeper(monkeypatch):
    """A device of which only the list of kept operands is real; `recorded` has the stream of each event."""
    gpu = object.__new__(Gpu)
    found = SimpleNamespace(gpu=gpu, recorded=[], made=[], done=set())

    def make(flags):
        found.made.append(len(found.made))
        return OK, found.made[-1]

    gpu._kept, gpu._keeping, gpu._spare_events = collections.deque(), threading.Lock(), []
    monkeypatch.setattr("fastsgemm.gpu.is_capturing", lambda handle: False)
    monkeypatch.setattr(driver, "cuEventCreate", make)
    monkeypatch.setattr(driver, "cuEventRecord", lambda event, handle: found.recorded.append((event, handle)) or (OK,))
    not_ready = driver.CUresult.CUDA_ERROR_NOT_READY
    monkeypatch.setattr(driver, "cuEventQuery", lambda event: (OK if event in found.done else not_ready,))
    monkeypatch.setattr(driver, "cuThreadExchangeStreamCaptureMode", lambda mode: (OK, mode))
    return found


def test_operands_are_kept_until_the_work_on_them_is_done(keeper):
    class Operand:
        pass

    operands = [Operand() for _ in range(3)]
    alive = [weakref.ref(operand) for operand in operands]
    for operand in operands:
        keeper.gpu.keep_alive(7, operand)
    del operand, operands
    assert all(reference() for reference in alive)
    keeper.done.add(0)
    keeper.gpu.keep_alive(7, "a later call")
    assert [reference() is not None for reference in alive] == [False, True, True]
    assert keeper.recorded == [(0, 7), (1, 7), (2, 7), (0, 7)]  # the event of the first is used again
    keeper.done.update(keeper.made)
    keeper.gpu.keep_alive(0, "a later call")
    assert [reference() for reference in alive] == [None] * 3
    assert keeper.recorded[-1][1] == LEGACY_STREAM and keeper.made == [0, 1, 2]


@pytest.mark.parametrize("threshold", [0, 4096])
def test_the_pool_is_made_to_keep_memory(monkeypatch, threshold):
    gpu = object.__new__(Gpu)
    gpu.ordinal = 3
    monkeypatch.setattr(driver, "cuDeviceGet", lambda ordinal: (OK, ordinal))
    monkeypatch.setattr(driver, "cuDeviceGetMemPool", lambda number: (OK, f"pool {number}"))
    said = []
    monkeypatch.setattr(
        driver, "cuThreadExchangeStreamCaptureMode", lambda mode: said.append(("mode", mode)) or (OK, "global")
    )
    monkeypatch.setattr(
        driver, "cuMemPoolGetAttribute", lambda pool, which: said.append(("get", pool)) or (OK, threshold)
    )
    monkeypatch.setattr(
        driver, "cuMemPoolSetAttribute", lambda pool, which, value: said.append((pool, int(value))) or (OK,)
    )
    gpu._keep_freed_memory()
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    kept = [] if threshold else [("pool 3", 2**64 - 1)]  # what somebody has chosen stays
    assert said == [("mode", relaxed), ("get", "pool 3"), *kept, ("mode", "global")]


def test_a_capture_of_another_thread_is_not_ended_by_looking_for_what_is_done(keeper, monkeypatch):
    """While any thread captures in CUDA's default mode, asking for an event ends its capture, unless relaxed."""
    modes = ["global"]

    def exchange(mode):
        modes.append(mode)
        return OK, modes[-2]

    def query(event):
        assert modes[-1] == driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        return (OK,)

    monkeypatch.setattr(driver, "cuThreadExchangeStreamCaptureMode", exchange)
    monkeypatch.setattr(driver, "cuEventQuery", query)
    keeper.gpu.keep_alive(7, "an operand")
    keeper.gpu.keep_alive(7, "a later call")
    assert modes[-1] == "global" and keeper.made == [0]


def test_a_capture_of_another_thread_is_not_ended_by_loading_a_kernel(monkeypatch):
    modes = ["global"]

    def exchange(mode):
        modes.append(mode)
        return OK, modes[-2]

    monkeypatch.setattr(driver, "cuThreadExchangeStreamCaptureMode", exchange)
    monkeypatch.setattr("fastsgemm.gpu.Kernel", lambda *_: modes[-1])
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    assert Gpu.load(object.__new__(Gpu), b"", "naive", 0) == relaxed
    assert modes[-1] == "global"


def test_in_a_capture_nothing_is_kept(keeper, monkeypatch):
    monkeypatch.setattr("fastsgemm.gpu.is_capturing", lambda handle: True)
    keeper.gpu.keep_alive(7, "an operand")
    assert keeper.recorded == [] and not keeper.gpu._kept


@pytest.mark.parametrize(("context", "ordinal", "mine"), [(1, 0, True), (2, 0, True), (3, 1, False)])
def test_a_stream_is_asked_once_for_its_device(monkeypatch, context, ordinal, mine):
    gpu = object.__new__(Gpu)
    current = []
    gpu.ordinal, gpu.streams, gpu._context = 0, set(), 1
    gpu._push, gpu._pop = current.append, current.pop
    monkeypatch.setattr(driver, "cuStreamGetCtx", lambda handle: (OK, context))
    monkeypatch.setattr(driver, "cuCtxGetDevice", lambda: (OK, ordinal) if current == [context] else None)
    if mine:
        gpu.adopt(7)
    else:
        with pytest.raises(DeviceMismatchError, match="the stream is on cuda:1, the operands on cuda:0"):
            gpu.adopt(7)
    assert (7 in gpu.streams) is mine and current == []


@pytest.mark.parametrize(("ordinal", "before", "after"), [(0, 0, 100), (1, 0, 0), (0, 101, 101), (1, 100, 100)])
def test_opening_a_device_leaves_the_current_one(monkeypatch, ordinal, before, after):
    """Where none is current, CUDA's runtime takes the first."""
    current = [before]
    monkeypatch.setattr("fastsgemm.gpu.device_at", lambda ordinal: ordinal)
    monkeypatch.setattr("fastsgemm.gpu.attribute", lambda which, ordinal: 1)
    monkeypatch.setattr("fastsgemm.gpu.described", lambda ordinal: ("a device", "sm_90"))
    monkeypatch.setattr(driver, "cuDevicePrimaryCtxRetain", lambda number: (OK, 100 + number))
    monkeypatch.setattr(driver, "cuCtxGetCurrent", lambda: (OK, current[-1]))
    monkeypatch.setattr(driver, "cuCtxSetCurrent", lambda context: current.append(context) or (OK,))
    monkeypatch.setattr(driver, "cuDriverGetVersion", lambda: (OK, 13000))
    monkeypatch.setattr(Gpu, "_keep_freed_memory", lambda gpu: None)
    Gpu(ordinal)
    assert current[-1] == after


def test_a_stream_without_a_number_is_an_error():
    gpu = object.__new__(Gpu)
    gpu._stream_id = lambda handle: (driver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED, None)
    assert gpu.stream_number(0) == LEGACY_STREAM
    with pytest.raises(DeviceError, match="number of stream 0x7 failed: CUDA_ERROR_CONTEXT_IS_DESTROYED"):
        gpu.stream_number(7)

"""The look at the machine: no driver, no device, an old driver, no NVRTC, and what FASTSGEMM_DEVICE forces."""

import collections
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from cuda.bindings import driver, nvrtc

import fastsgemm
from fastsgemm import device, sgemm
from fastsgemm.errors import DeviceError, DeviceMismatchError, DriverTooOldError, NoDriverError, NoNvrtcError

OK = driver.CUresult.CUDA_SUCCESS
ONES = np.ones((2, 2), np.float32)


@pytest.fixture
def driver_of(fresh_machine, monkeypatch):
    """Return a function that gives the machine a driver of this version and this many devices."""

    def give(version=99000, devices=1, init=OK):
        monkeypatch.delenv("FASTSGEMM_DEVICE", raising=False)
        monkeypatch.setattr(driver, "cuInit", lambda flags: (init,))
        monkeypatch.setattr(driver, "cuDriverGetVersion", lambda: (OK, version))
        monkeypatch.setattr(driver, "cuDeviceGetCount", lambda: (OK, devices))

    return give


def test_no_driver(no_driver):
    with pytest.raises(NoDriverError, match=r"no NVIDIA driver was found; .* and a simulated device .*=sim"):
        device.probe()
    with pytest.raises(NoDriverError, match="no NVIDIA driver was found"):
        device.open_gpu(0)


def test_this_machine_answers_with_devices_or_with_our_own_error(fresh_machine):
    try:
        assert device.probe() >= 1
    except DeviceError:
        assert device.host_backend() in ("host", "cuda")


def test_a_driver_without_devices(driver_of):
    driver_of(init=driver.CUresult.CUDA_ERROR_NO_DEVICE)
    with pytest.raises(NoDriverError, match="cuInit returned CUDA_ERROR_NO_DEVICE"):
        device.probe()


def test_hidden_devices(driver_of):
    driver_of(devices=0)
    with pytest.raises(NoDriverError, match="CUDA_VISIBLE_DEVICES"):
        device.probe()


def test_a_usable_driver_is_asked_once(driver_of, monkeypatch):
    driver_of(devices=3)
    assert device.probe() == 3
    monkeypatch.setattr(driver, "cuInit", lambda flags: pytest.fail("asked again"))
    assert device.probe() == 3


@pytest.mark.parametrize("ordinal", [-1, 2, 99])
def test_a_device_that_is_not_there(driver_of, ordinal):
    driver_of(devices=2)
    with pytest.raises(DeviceError, match=rf"there is no cuda:{ordinal}, this machine has 2 device"):
        device.open_gpu(ordinal)


def test_a_driver_of_an_older_major_version(driver_of):
    driver_of(version=11080)
    major, minor = device.nvrtc_version()
    message = rf"the driver is for CUDA 11\.8, the installed NVRTC is {major}\.{minor}"
    with pytest.raises(DriverTooOldError, match=message):
        device.probe()


def test_a_driver_of_the_same_major_version_runs_cubins_of_newer_minors():
    device.require_driver(12000, (12, 9))
    device.require_driver(13000, (13, 0))
    device.require_driver(13020, (12, 8))


@pytest.fixture
def wheels(monkeypatch, tmp_path, driver_of):
    """Return a function that puts the NVRTC of these major versions where pip does; it has what is then loaded."""
    places = {12: "cuda_nvrtc/lib/libnvrtc.so.12", 13: "cu13/lib/libnvrtc.so.13"}
    shadowed, nvidia = tmp_path / "user", tmp_path / "site"  # the folders of a namespace package

    def put(*majors):
        for major in majors:
            path = nvidia / places[major]
            path.parent.mkdir(parents=True)
            path.touch()
        return loaded

    loaded = []
    spec = SimpleNamespace(submodule_search_locations=[str(shadowed), str(nvidia)])
    monkeypatch.setattr(device, "find_spec", {"nvidia": spec}.get)
    monkeypatch.setattr(device.ctypes, "CDLL", lambda path: loaded.append(path.rpartition(".")[2]))
    return put


@pytest.mark.parametrize(
    ("there", "driver_version", "bindings", "first"),
    [
        ((12, 13), 12080, "12.9.1", ["12"]),  # cu13 was there, then the recovery was followed
        ((12, 13), 13000, "12.9.1", ["12"]),
        ((12, 13), 12080, "13.0.1", ["12"]),  # cu12 was there, then cu13 was installed
        ((12, 13), 13000, "13.0.1", []),  # cuda.bindings loads the newest by itself
        ((12, 13), 0, "12.9.1", ["12"]),  # the simulated device needs no driver
        ((12, 13), 11080, "13.0.1", []),
        ((12,), 13000, "13.0.1", []),
        ((13,), 12080, "12.9.1", []),
        ((), 12080, "12.9.1", []),
    ],
)
def test_of_several_nvrtc_the_one_that_fits_is_loaded(
    wheels, driver_of, monkeypatch, there, driver_version, bindings, first
):
    driver_of(version=driver_version)
    monkeypatch.setattr("cuda.bindings.__version__", bindings)
    loaded = wheels(*there)
    for _ in range(2):
        device.nvrtc_version()
    assert loaded == first


def test_without_wheels_of_nvidia_nothing_is_loaded(wheels, monkeypatch):
    loaded = wheels(12, 13)
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    device.nvrtc_version()
    assert loaded == []


@pytest.mark.parametrize(
    ("driver_version", "there", "way_out"),
    [
        (12090, (13,), r"update the driver, or replace NVRTC: pip uninstall nvidia-cuda-nvrtc, then "
         r"pip install 'fastsgemm\[cu12\]'$"),
        (12090, (), r"update the driver, or replace NVRTC: pip install 'fastsgemm\[cu12\]'$"),
        (11080, (13,), "update the driver$"),  # there is no extra cu11
    ],
)  # fmt: skip
def test_an_nvrtc_that_is_too_new_is_named_with_the_way_out(wheels, driver_version, there, way_out):
    wheels(*there)
    with pytest.raises(DriverTooOldError, match=rf"the installed NVRTC is 13\.0 .*{way_out}"):
        device.require_driver(driver_version, (13, 0))


def test_a_device_without_nvrtc(driver_of, monkeypatch):
    driver_of()

    def missing():
        raise RuntimeError("libnvrtc.so.13: cannot open shared object file")

    monkeypatch.setattr(nvrtc, "nvrtcVersion", missing)
    with pytest.raises(NoNvrtcError, match=r"fastsgemm\[cu13\]"):
        device.probe()
    with pytest.raises(NoNvrtcError, match=r"fastsgemm\[cu13\]"):  # there is a device: NumPy would be a silent fallback
        sgemm(ONES, ONES)


def test_a_device_with_an_old_driver_is_not_silently_replaced_by_numpy(driver_of):
    driver_of(version=11080)
    with pytest.raises(DriverTooOldError):
        sgemm(ONES, ONES)


@pytest.mark.parametrize("value", ["gpu", "cpu", "0", "cuda:0"])
def test_another_value_of_the_variable_is_an_error(fresh_machine, monkeypatch, value):
    monkeypatch.setenv("FASTSGEMM_DEVICE", value)
    with pytest.raises(DeviceError, match=f"FASTSGEMM_DEVICE must be one of cuda, host, sim, got '{value}'"):
        sgemm(ONES, ONES)


@pytest.mark.parametrize(
    ("value", "expected"), [("", "cuda"), ("cuda", "cuda"), ("host", "host"), (" HOST ", "host"), ("sim", "sim")]
)
def test_what_multiplies_host_arrays_on_a_machine_with_a_device(driver_of, monkeypatch, value, expected):
    driver_of()
    monkeypatch.setenv("FASTSGEMM_DEVICE", value)
    assert device.host_backend() == expected


def test_with_a_simulated_device_no_other_is_opened(driver_of, monkeypatch):
    driver_of()
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
    with pytest.raises(DeviceError, match=r"FASTSGEMM_DEVICE=sim accepts host arrays only, .* needs cuda:0"):
        device.open_gpu(0)


@pytest.mark.parametrize("value", ["", "host"])
def test_without_a_device_the_host_multiplies(no_driver, monkeypatch, value):
    monkeypatch.setenv("FASTSGEMM_DEVICE", value)
    assert device.host_backend() == "host"


def test_an_answer_of_the_driver_that_is_no_success_names_itself():
    device.succeed("this", (OK,))
    with pytest.raises(DeviceError, match="that failed: CUDA_ERROR_OUT_OF_MEMORY"):
        device.succeed("that", (driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY,))


def test_capture_is_asked_of_the_driver(monkeypatch):
    status = driver.CUstreamCaptureStatus
    for answer, expected in (
        ((OK, status.CU_STREAM_CAPTURE_STATUS_NONE), False),
        ((OK, status.CU_STREAM_CAPTURE_STATUS_ACTIVE), True),
        ((driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, None), True),
    ):
        monkeypatch.setattr(driver, "cuStreamIsCapturing", lambda handle, answer=answer: answer)
        assert device.is_capturing(1) is expected


@pytest.fixture
def keeper(monkeypatch):
    """A device of which only the list of kept operands is real; `recorded` has the stream of each event."""
    gpu = object.__new__(device.Gpu)
    found = SimpleNamespace(gpu=gpu, recorded=[], made=[], done=set())

    def make(flags):
        found.made.append(len(found.made))
        return OK, found.made[-1]

    gpu._kept, gpu._keeping, gpu._spare_events = collections.deque(), threading.Lock(), []
    monkeypatch.setattr(device, "is_capturing", lambda handle: False)
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
    assert keeper.recorded[-1][1] == device.LEGACY_STREAM and keeper.made == [0, 1, 2]


@pytest.mark.parametrize("threshold", [0, 4096])
def test_the_pool_is_made_to_keep_memory(monkeypatch, threshold):
    gpu = object.__new__(device.Gpu)
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


def test_the_capture_mode_comes_back_after_an_error(monkeypatch):
    modes = []
    monkeypatch.setattr(driver, "cuThreadExchangeStreamCaptureMode", lambda mode: modes.append(mode) or (OK, "global"))
    with pytest.raises(KeyError), device.relaxed_capture():
        raise KeyError
    assert modes[1:] == ["global"]


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
    monkeypatch.setattr(device, "Kernel", lambda *_: modes[-1])
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    assert device.Gpu.load(object.__new__(device.Gpu), b"", "naive", 0) == relaxed
    assert modes[-1] == "global"


def test_in_a_capture_nothing_is_kept(keeper, monkeypatch):
    monkeypatch.setattr(device, "is_capturing", lambda handle: True)
    keeper.gpu.keep_alive(7, "an operand")
    assert keeper.recorded == [] and not keeper.gpu._kept


def test_the_version_is_public():
    assert fastsgemm.__version__.count(".") == 2


@pytest.mark.parametrize(
    ("place", "number"),
    [(2, 2), ("cuda", 0), ("cuda:1", 1), ("1", 1), ("NVIDIA A", 0), ("NVIDIA B", 1), ("sm_90", 1), ("sm_80", 0)],
)
def test_a_device_of_this_machine_has_three_spellings(monkeypatch, place, number):
    monkeypatch.setattr(device, "probe", lambda: 3)
    there = [("NVIDIA A", "sm_80"), ("NVIDIA B", "sm_90"), ("NVIDIA B", "sm_90")]
    monkeypatch.setattr(device, "described", lambda ordinal: there[ordinal])
    assert device.ordinal(place) == number


def test_a_device_that_is_not_here_is_refused_with_those_that_are(monkeypatch):
    monkeypatch.setattr(device, "probe", lambda: 1)
    monkeypatch.setattr(device, "described", lambda ordinal: ("NVIDIA A", "sm_80"))
    with pytest.raises(DeviceError, match=r"no device 'sm_90'; it has NVIDIA A \(sm_80\)"):
        device.ordinal("sm_90")


@pytest.mark.parametrize(("context", "ordinal", "mine"), [(1, 0, True), (2, 0, True), (3, 1, False)])
def test_a_stream_is_asked_once_for_its_device(monkeypatch, context, ordinal, mine):
    gpu = object.__new__(device.Gpu)
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

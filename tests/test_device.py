"""The look at the machine: no driver, no device, an old driver, no NVRTC, and what FASTSGEMM_DEVICE forces."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from cuda.bindings import driver, nvrtc

import fastsgemm
from fastsgemm import device, sgemm
from fastsgemm.errors import DeviceError, DriverTooOldError, NoDriverError

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
    device.probe()  # kernels may be stored
    assert device.host_backend() == "cuda"  # there is a device: NumPy would be a silent fallback


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
    with pytest.raises(
        DeviceError, match=r"FASTSGEMM_DEVICE=sim takes host arrays only, .* needs cuda:0; unset the variable"
    ):
        device.open_gpu(0)


def test_a_device_that_is_named_is_opened_beside_a_simulated_one(driver_of, monkeypatch):
    driver_of()
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
    monkeypatch.setattr(device, "gpus", {})
    monkeypatch.setattr(device, "Gpu", lambda ordinal: f"opened {ordinal}")
    assert device.open_gpu(0, by_name=True) == "opened 0"


@pytest.mark.parametrize("value", ["", "host"])
def test_without_a_device_the_host_multiplies(no_driver, monkeypatch, value):
    monkeypatch.setenv("FASTSGEMM_DEVICE", value)
    assert device.host_backend() == "host"


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


def test_a_finaliser_that_opens_the_device_that_is_being_opened_does_not_wait_for_itself(monkeypatch):
    """Python may run it at any step, in the thread that opens the device."""
    made = []

    def opened(ordinal):
        made.append(object())
        first = made[-1]
        if len(made) == 1:
            device.open_gpu(ordinal)
        return first

    monkeypatch.setattr(device, "gpus", {})
    monkeypatch.setattr(device, "probe", lambda: 1)
    monkeypatch.setattr(device, "Gpu", opened)
    monkeypatch.delenv("FASTSGEMM_DEVICE", raising=False)
    thread = threading.Thread(target=device.open_gpu, args=(0,), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive() and device.open_gpu(0) is made[1]

"""Kernels are made once a device, never inside a capture, and get the shared memory they need."""

import gc
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from cuda.bindings import driver

from fastsgemm import device
from fastsgemm.config import BlockConfig, VectorizedConfig
from fastsgemm.errors import CaptureError, DeviceError
from fastsgemm.geometry.variants import Variant
from fastsgemm.jit import compiler, kernel, source
from fastsgemm.rungs import RUNGS, find
from fastsgemm.tuning.spaces import PIPELINED

STREAM = 5


def get(gpu, rung, config, variant):
    return kernel.ready(gpu, source.rung_spec(rung, config, variant), config.shared_bytes, STREAM)


def helper(gpu, name):
    return kernel.ready(gpu, source.helper_spec(name), 0, STREAM)


OK = driver.CUresult.CUDA_SUCCESS
LARGE = VectorizedConfig(128, 128, 64, 4, 4)  # 64 KB of shared memory


@pytest.fixture
def unloaded():
    """The libraries that the driver was told to unload."""
    return []


@pytest.fixture
def gpu(monkeypatch, unloaded):
    """A device of which the driver's loader is missing: library n has kernel 10 n and function 100 n."""
    numbers = itertools.count(1)

    def load(code, *options):
        assert code.startswith(b"\x7fELF")
        return OK, next(numbers)

    monkeypatch.setattr(driver, "cuLibraryLoadData", load)
    monkeypatch.setattr(driver, "cuLibraryGetKernel", lambda library, name: (OK, 10 * library))
    monkeypatch.setattr(driver, "cuKernelGetFunction", lambda kernel: (OK, 10 * kernel))
    monkeypatch.setattr(driver, "cuLibraryUnload", unloaded.append)
    monkeypatch.setattr(driver, "cuThreadExchangeStreamCaptureMode", lambda mode: (OK, mode))
    monkeypatch.setattr(device, "is_capturing", lambda handle: False)
    gpu = object.__new__(device.Gpu)
    gpu.kernels, gpu.arch, gpu.name, gpu.ordinal, gpu.shared_limit = {}, "sm_90", "a device", 3, 232448
    return gpu


@pytest.fixture
def asked(monkeypatch):
    """The requests for shared memory that reach the driver."""
    seen = []

    def set_attribute(attribute, value, handle, ordinal):
        seen.append((attribute.name, value, handle, ordinal))
        return (OK,)

    monkeypatch.setattr(driver, "cuKernelSetAttribute", set_attribute)
    return seen


@pytest.mark.parametrize("rung", RUNGS[:5], ids=str)
def test_a_kernel_is_loaded_once_for_each_config_and_variant(gpu, asked, rung, monkeypatch):
    values = {"BM": 32, "BN": 32, "BK": 32, "TM": 4, "TN": 1}
    config = rung.config(**{name: value for name, value in values.items() if name in rung.config.declared()})
    first = get(gpu, rung, config, Variant())
    assert first.name == rung.kernel
    other = get(gpu, rung, config, Variant(True))
    assert other is not first
    monkeypatch.setattr(compiler, "cubin", lambda *arguments: pytest.fail("compiled again"))
    assert get(gpu, rung, config, Variant()) is first
    assert [value for _, value, *_ in asked] == [config.shared_bytes for _ in range(2) if config.shared_bytes]


def test_rungs_of_one_file_share_their_kernels(gpu, asked):
    config = VectorizedConfig(64, 64, 8, 8, 4)
    six, seven = (get(gpu, find(name), config, Variant()) for name in ("vectorized", "autotuned"))
    assert six is seven


@pytest.mark.parametrize("name", ["copy_strided", "pack", "reduce_parts"])
def test_a_kernel_without_constants_is_loaded_once(gpu, name):
    assert helper(gpu, name).name == f"fastsgemm_{name}"
    assert helper(gpu, name) is helper(gpu, name)


def test_different_kernels_are_compiled_side_by_side(gpu, monkeypatch):
    locks = {name: hash(source.helper_spec(name)) % len(kernel._locks) for name in source.HELPERS}
    one, other = next(pair for pair in itertools.combinations(locks, 2) if locks[pair[0]] != locks[pair[1]])
    together, real = threading.Barrier(2), compiler.cubin

    def cubin(*arguments):
        together.wait(timeout=30)
        return real(*arguments)

    monkeypatch.setattr(compiler, "cubin", cubin)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda name: helper(gpu, name).name, (one, other)))
    assert found == [f"fastsgemm_{one}", f"fastsgemm_{other}"]


def test_divisions_of_k_share_a_kernel(gpu, asked):
    config, rung = PIPELINED.quick[6], find("pipelined")
    one, four = (get(gpu, rung, replace(config, SPLIT_K=parts), Variant()) for parts in (1, 4))
    assert one is four is get(gpu, rung, config.kernel, Variant())
    assert get(gpu, rung, config, Variant(guard=True)) is not one


def test_inside_a_capture_nothing_is_compiled_but_what_is_loaded_is_used(gpu, monkeypatch):
    loaded = get(gpu, find("naive"), BlockConfig(32, 32), Variant())
    monkeypatch.setattr(device, "is_capturing", lambda handle: True)
    monkeypatch.setattr(compiler, "cubin", lambda *arguments: pytest.fail("compiled inside a capture"))
    assert get(gpu, find("naive"), BlockConfig(32, 32), Variant()) is loaded
    with pytest.raises(CaptureError, match=r"kernel fastsgemm_coalesced is not loaded yet .* call sgemm once"):
        get(gpu, find("coalesced"), BlockConfig(32, 32), Variant())
    for name in ("copy_strided", "reduce_parts"):
        with pytest.raises(CaptureError, match=f"kernel fastsgemm_{name} is not loaded yet"):
            helper(gpu, name)


def test_more_than_48_kb_of_shared_memory_is_asked_for(gpu, asked):
    get(gpu, find("blocktile_2d"), LARGE, Variant())
    assert asked == [("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", 65536, 10, 3)]


def test_a_kernel_is_unloaded_when_nothing_refers_to_it(gpu, unloaded):
    found = helper(gpu, "copy_strided")
    assert found.function == 100
    gpu.kernels.clear()
    assert unloaded == []
    del found
    gc.collect()
    assert unloaded == [1]


def test_machine_code_that_the_device_refuses(gpu, monkeypatch):
    monkeypatch.setattr(
        driver, "cuLibraryLoadData", lambda *given: (driver.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU, None)
    )
    with pytest.raises(DeviceError, match=r"loading fastsgemm_copy_strided on a device failed: .*NO_BINARY_FOR_GPU"):
        helper(gpu, "copy_strided")
    assert gpu.kernels == {}


def test_a_device_that_refuses_the_shared_memory_is_named(gpu, monkeypatch):
    refused = (driver.CUresult.CUDA_ERROR_INVALID_VALUE,)
    monkeypatch.setattr(driver, "cuKernelSetAttribute", lambda *arguments: refused)
    with pytest.raises(DeviceError, match=r"asking a device for 65536 bytes .*limit 232448.*CUDA_ERROR_INVALID_VALUE"):
        get(gpu, find("blocktile_2d"), LARGE, Variant())
    assert gpu.kernels == {}

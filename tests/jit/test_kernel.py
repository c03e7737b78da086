"""Kernels are made once a device, never inside a capture, and get the shared memory they need."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from cuda.bindings import driver
from quick_configs import quick_configs

from fastsgemm import device
from fastsgemm.config import VectorizedConfig
from fastsgemm.errors import DeviceError
from fastsgemm.geometry.variants import Variant
from fastsgemm.jit import compiler, kernel, source
from fastsgemm.rungs import RUNGS, find

STREAM = 5


def get(gpu, rung, config, variant):
    return kernel.ready(gpu, source.rung_spec(rung, config, variant), config.shared_bytes)


def helper(gpu, name):
    return kernel.ready(gpu, source.helper_spec(name), 0)


LARGE = VectorizedConfig(128, 128, 64, 4, 4)  # 64 KB of shared memory


@pytest.fixture
def gpu(cuda_driver, monkeypatch):
    """A device on the driver made of Python."""
    monkeypatch.setattr(device, "is_capturing", lambda handle: False)
    return device.Gpu(0)


@pytest.fixture
def asked(cuda_driver):
    """Return a function that returns the requests for shared memory that have reached the driver."""
    return lambda: cuda_driver.named("cuKernelSetAttribute")


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
    assert [value for _, value, *_ in asked()] == [config.shared_bytes for _ in range(2) if config.shared_bytes]


def test_rungs_of_one_file_share_their_kernels(gpu, asked):
    config = VectorizedConfig(64, 64, 8, 8, 4)
    six, seven = (get(gpu, find(name), config, Variant()) for name in ("vectorized", "autotuned"))
    assert six is seven


@pytest.mark.parametrize("name", ["copy_strided", "pack", "reduce_parts"])
def test_a_kernel_without_constants_is_loaded_once(gpu, name):
    assert helper(gpu, name).name == f"fastsgemm_{name}"
    assert helper(gpu, name) is helper(gpu, name)


def test_different_kernels_are_compiled_side_by_side(gpu, monkeypatch):
    locks = {name: hash(source.helper_spec(name)) % 64 for name in source.HELPERS}
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
    config, rung = quick_configs("pipelined")[6], find("pipelined")
    one, four = (get(gpu, rung, replace(config, SPLIT_K=parts), Variant()) for parts in (1, 4))
    assert one is four is get(gpu, rung, config.kernel, Variant())
    assert get(gpu, rung, config, Variant(guard=True)) is not one


def test_more_than_48_kb_of_shared_memory_is_asked_for(gpu, asked):
    get(gpu, find("blocktile_2d"), LARGE, Variant())
    [(attribute, *given)] = asked()
    assert attribute.name == "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES" and given == [65536, 10, 0]


def test_a_finaliser_that_needs_a_kernel_while_one_is_compiled_does_not_wait_for_itself(gpu, monkeypatch):
    """Python may run it at any step of the compilation, in the thread that compiles."""
    real, entered = compiler.cubin, []

    def compile_and_multiply(*arguments):
        if not entered:
            entered.append(threading.Thread(target=lambda: None))
            assert helper(gpu, "pack").name == "fastsgemm_pack"
        return real(*arguments)

    monkeypatch.setattr(compiler, "cubin", compile_and_multiply)
    found = []
    thread = threading.Thread(target=lambda: found.append(helper(gpu, "pack")), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive() and found == [helper(gpu, "pack")]


def test_a_kernel_that_another_thread_drops_from_the_table_is_still_returned(gpu, monkeypatch):
    class Forgetful(dict):
        def setdefault(self, spec, kernel):
            return kernel

    gpu.kernels = Forgetful()
    assert helper(gpu, "pack").name == "fastsgemm_pack"


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

"""The launcher without a device: a driver that runs the kernels of the Python device."""

import ctypes
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from python_kernels import PythonKernel

from fastsgemm.jit import host_compiler

_SUPPORT = Path(__file__).parents[1] / "support"


class _Config(ctypes.Structure):
    """The driver's description of a launch."""

    _fields_ = [
        *(("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint)),
        *(("stream", ctypes.c_uint64), ("attributes", ctypes.c_void_p), ("attribute_count", ctypes.c_uint)),
    ]


_Launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Config), ctypes.c_uint64, ctypes.c_uint64)


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory):
    """The library of a driver that only calls a function of the test; see ``support/fake_driver.cpp``."""
    compiler = host_compiler.compiler()
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    path = tmp_path_factory.mktemp("driver") / "libfake.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, _SUPPORT / "fake_driver.cpp"], check=True)
    return ctypes.CDLL(str(path))


@pytest.fixture
def launcher(device, fake_driver, monkeypatch):
    """The launcher, for tensors of the host, which launches on the Python device, on stream 5."""
    from fastsgemm.torch import cpp_launcher, execution, kernel_switch

    if not cpp_launcher.load():
        pytest.skip(cpp_launcher.reason())

    def launch(config, kernel, pointers):
        found = PythonKernel.made[kernel]
        grid = tuple(config.contents.grid)
        while len(grid) > 1 and grid[-1] == 1:
            grid = grid[:-1]
        told = SimpleNamespace(grid=grid, early=bool(config.contents.attribute_count))
        device._run(told, found, config.contents.stream, found.arguments(pointers))
        device.by_launcher += 1
        return device.refusal

    callback = _Launch(launch)
    ctypes.c_void_p.in_dll(fake_driver, "fake_launch").value = ctypes.cast(callback, ctypes.c_void_p).value
    device.by_launcher = device.refusal = 0
    monkeypatch.setattr(kernel_switch, "_LAUNCHER_DEVICES", ("cpu",))
    monkeypatch.setattr(execution, "gpu_of", lambda ordinal: device)
    monkeypatch.setattr(execution, "current_stream", lambda ordinal: 5)
    cpp_launcher._module.set_up(
        fake_driver._name, fake_driver._name, cpp_launcher.miss, execution.prepare_to_pass_on, cpp_launcher._renew
    )
    cpp_launcher.forget_plans()
    yield cpp_launcher
    cpp_launcher.forget_plans()
    cpp_launcher._connect(cpp_launcher._module)

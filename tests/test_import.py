"""``import fastsgemm`` is light: no CUDA package, no array library but NumPy, no CUDA library in the process."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

HEAVY = ("cuda.bindings", "cuda.core", "torch", "cupy", "jax", "matplotlib", "hypothesis")


def in_fresh_process(script):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_nothing_but_itself_is_imported():
    """So the command line is running, and answers Ctrl-C, before what takes time is imported."""
    loaded = in_fresh_process(
        "import __future__, importlib, sys; old = {*sys.modules}; import fastsgemm; print(*{*sys.modules} - old)"
    )
    assert loaded == ["fastsgemm"]
    loaded = in_fresh_process("import sys, fastsgemm.__main__; print(*sys.modules)")
    assert "numpy" not in loaded and "argparse" not in loaded


def test_the_public_names_are_all_that_is_shown():
    script = "import fastsgemm; names = dir(fastsgemm); [getattr(fastsgemm, name) for name in names]; print(*names)"
    names = in_fresh_process(script)
    assert {"sgemm", "tune", "explain", "Config", "RUNGS", "ShapeError"} < {*names}
    assert not {"gemm", "arrays", "import_module"} & {*names}


def test_no_public_name_is_a_module():
    """Also once every module has been imported: a module becomes an attribute of its package."""
    script = (
        "import types, fastsgemm, fastsgemm.gemm, fastsgemm.tuning.tuner, fastsgemm.heuristics.explanation\n"
        "shown = {*fastsgemm.__all__, *dir(fastsgemm)}\n"
        "print(*[name for name in shown if isinstance(getattr(fastsgemm, name), types.ModuleType)])"
    )
    assert in_fresh_process(script) == []


@pytest.mark.parametrize(
    "module", ["fastsgemm.gemm", "fastsgemm.call.arrays", "fastsgemm.device", "fastsgemm.jit.kernel"]
)
def test_no_cuda_package_and_no_other_array_library_is_imported(module):
    loaded = in_fresh_process(f"import sys, {module}; print(*sys.modules)")
    assert module in loaded
    assert [name for name in loaded if name.startswith(HEAVY)] == []


def test_what_a_product_does_not_need_is_not_imported():
    """Beyond NumPy: what the tuner, the command line and the writing of files need comes when they are used."""
    loaded = in_fresh_process(
        "import numpy, sys; old = {*sys.modules}; import fastsgemm.gemm; print(*{*sys.modules} - old)"
    )
    late = {"argparse", "concurrent", "filelock", "platformdirs", "statistics", "tempfile", "tqdm"}
    assert "fastsgemm.gemm" in loaded and not late.intersection(loaded)
    late_rooms = ("fastsgemm.tuning.tuner", "fastsgemm.tuning.evaluator", "fastsgemm.measure", "fastsgemm.sim")
    assert all(map(find_spec, late_rooms))  # a name that is gone would never be found loaded
    assert [name for name in loaded if name.startswith(late_rooms)] == []


def test_a_command_that_simulates_nothing_does_not_import_the_simulator():
    loaded = in_fresh_process("import sys, fastsgemm.command_line; print(*sys.modules)")
    assert "fastsgemm.command_line" in loaded and find_spec("fastsgemm.sim")
    assert [name for name in loaded if name.startswith("fastsgemm.sim")] == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_no_cuda_library_is_loaded():
    mapped = in_fresh_process("import fastsgemm.gemm; print(open('/proc/self/maps').read())")
    assert [path for path in mapped if "libcuda" in path or "libnvrtc" in path or "libcublas" in path] == []


def test_a_product_of_host_arrays_loads_no_library_that_was_not_there():
    script = (
        "import os, sys, warnings; os.environ['FASTSGEMM_DEVICE'] = 'host'; warnings.simplefilter('ignore')\n"
        "import numpy as np, fastsgemm\n"
        "fastsgemm.sgemm(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32))\n"
        "print(*sys.modules)"
    )
    assert [name for name in in_fresh_process(script) if name.startswith(HEAVY)] == []


def test_a_module_that_was_not_imported_says_how():
    script = "import fastsgemm\ntry: fastsgemm.blas\nexcept AttributeError as error: print(error)"
    assert " ".join(in_fresh_process(script)).endswith("has no attribute 'blas'; import fastsgemm.blas first")

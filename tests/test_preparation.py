import errno
import json
import os
import threading
import time
from types import SimpleNamespace

import numpy as np
import one_order_candidates
import pytest

import fastsgemm
from fastsgemm import preparation
from fastsgemm.call.product import plan_of
from fastsgemm.command_line import main
from fastsgemm.device import DeviceInfo
from fastsgemm.errors import (
    ArgumentError,
    CompileError,
    ConfigError,
    DeviceError,
    NoDriverError,
    PrecisionError,
    ShapeError,
)
from fastsgemm.geometry import variants
from fastsgemm.jit import compiler
from fastsgemm.jit.source import helper_spec
from fastsgemm.problem import LAYOUTS, Problem
from fastsgemm.progress import Bar
from fastsgemm.request import PLAIN, of_problem, resolve
from fastsgemm.tuning import first_use

H200 = DeviceInfo("NVIDIA H200", "sm_90", 232448, 132)
BATCH = range(1, 65)


@pytest.mark.parametrize("precision", ["ieee", "fp16x3"])
@pytest.mark.parametrize("how", [{"layout": "SYM"}, {"layout": "NT", "symmetric": True}])
def test_the_kernels_of_a_matrix_by_its_transpose(how, precision):
    problem = Problem(3000, 3000, 500, "NT", symmetric=True)
    request = of_problem(resolve(precision=precision), problem)
    wanted = {launch.kernel for launch in plan_of(H200, request, variants.dense(problem)).launches}
    assert any(dict(each.constants).get("SYM") == 1 for each in wanted)
    problems = preparation._problems(3000, 3000, 500, how["layout"], 1, how.get("symmetric", False))
    needed = preparation.kernels_of(H200, resolve(precision=precision), problems, "", Bar(False))
    assert {*needed} == wanted
    assert preparation.parse("3000,3000,500,SYM")[3] == "SYM"


def needed_by(problems, request=PLAIN):
    """Return the kernels that `sgemm` launches for these problems."""
    found = {}
    for problem in problems:
        for launch in plan_of(H200, request, variants.dense(problem)).launches:
            found[launch.kernel] = launch.shared_bytes
    return found


class FakeGpu:
    """A device on which a kernel is loaded by keeping its code."""

    name, arch, shared_limit, multiprocessors = "NVIDIA H200", "sm_90", 232448, 132

    def __init__(self):
        self.kernels, self.entered = {}, 0

    def load(self, cubin, name, shared_bytes):
        assert self.entered == 1
        return cubin, name, shared_bytes

    def enter(self):
        self.entered += 1
        return True

    def leave(self):
        self.entered -= 1


@pytest.fixture
def compiled(monkeypatch):
    """The names of the kernels that were compiled, and instead of their code the source."""
    seen = []

    def cubin(source, name, arch, stored=False):
        assert arch == ("sm_90a" if name == "fastsgemm_fp16x3" else "sm_90")
        seen.append(name)
        return source

    monkeypatch.setattr(compiler, "cubin", cubin)
    return seen


@pytest.fixture
def gpu(monkeypatch):
    found = FakeGpu()
    monkeypatch.setattr(first_use, "open_device", lambda ordinal: found)
    return found


def test_every_kernel_of_a_batched_layer_is_loaded_once(gpu, compiled):
    found = preparation.prepare(BATCH, 4096, 4096, "NT", progress=False)
    needed = needed_by(Problem(M, 4096, 4096, "NT") for M in BATCH)
    assert helper_spec("reduce_parts", VEC_C=4) in needed
    assert gpu.kernels.keys() == needed.keys()
    assert (found.problems, found.kernels, found.loaded) == (64, len(gpu.kernels), True)
    assert len(compiled) == found.kernels and gpu.entered == 0
    for spec, (text, name, shared_bytes) in gpu.kernels.items():
        assert (text, name, shared_bytes) == (spec.text, spec.name, needed[spec])
    assert str(found).startswith(f"{found.kernels} kernels for 64 problems loaded on NVIDIA H200 in ")


def test_a_benchmark_compiles_its_candidates_as_prepare_does(gpu, compiled):
    """It names configs, which `prepare` does not take."""
    problem, candidates = Problem(64, 64, 4096), one_order_candidates.NARROW
    one_order_candidates.compile_all(gpu, [(problem, config) for config in (None, *candidates)])
    compiled_for = [dict(spec.constants) for spec in gpu.kernels]
    assert all(any(one.compiled.items() <= each.items() for each in compiled_for) for one in candidates)
    assert len(compiled) == len(gpu.kernels) and gpu.entered == 0


LAYER = [*range(1, 1025), *range(1025, 8193, 61), 2048, 4096, 8192]  # rows of a batch
KERNELS = {"NN": 32, "NT": 38}  # at most, for N = K = 4096


@pytest.mark.parametrize("layout", KERNELS)
def test_batches_of_a_layer_share_kernels(layout):
    assert len(needed_by(Problem(M, 4096, 4096, layout) for M in LAYER)) <= KERNELS[layout]


def test_the_kernels_of_one_order_are_prepared_too(gpu, compiled):
    preparation.prepare([1, 64, 4096], 4096, [512, 8192], batch_invariant=True, progress=False)
    problems = [Problem(M, 4096, K) for M in (1, 64, 4096) for K in (512, 8192)]
    assert helper_spec("reduce_segments") in gpu.kernels
    assert gpu.kernels.keys() == needed_by(problems, resolve(batch_invariant=True)).keys()


def test_a_kernel_that_is_loaded_is_not_compiled_again(gpu, compiled):
    first = preparation.prepare(BATCH, 4096, 4096, progress=False)
    again = preparation.prepare(BATCH, 4096, 4096, progress=False)
    assert again.kernels == first.kernels == len(compiled)


def test_extents_and_layouts_are_combined(gpu, compiled):
    found = preparation.prepare([64, np.int64(100)], (333,), range(64, 66), LAYOUTS, rung="warptiled", progress=False)
    problems = [Problem(M, 333, K, layout) for M in (64, 100) for K in (64, 65) for layout in LAYOUTS]
    assert found.problems == len(problems)
    assert gpu.kernels.keys() == needed_by(problems, resolve("warptiled")).keys()


def test_for_a_named_device_kernels_are_compiled_and_none_is_loaded(gpu, compiled):
    found = fastsgemm.prepare(BATCH, 4096, 4096, device="sm_90", progress=False)
    assert len(compiled) == found.kernels and not found.loaded and not gpu.kernels
    assert "ready for NVIDIA H200" in str(found)


def test_kernels_are_compiled_side_by_side(gpu, monkeypatch):
    monkeypatch.setattr(compiler.os, "cpu_count", lambda: 3)
    together = threading.Barrier(3)

    def cubin(source, name, arch, stored=False):
        together.wait(30)
        return source

    monkeypatch.setattr(compiler, "cubin", cubin)
    problems = [Problem(M, 64, 64) for M in (1, 64, 8192)]
    assert len(needed_by(problems)) == 3
    preparation.prepare([1, 64, 8192], 64, 64, progress=False)


def test_a_kernel_that_cannot_be_compiled_is_an_error_and_ends_the_others(gpu, monkeypatch):
    def refused(source, name, arch, stored=False):
        time.sleep(0.01)
        raise CompileError("NVRTC refused it")

    monkeypatch.setattr(compiler, "cubin", refused)
    with pytest.raises(CompileError, match="refused it"):
        preparation.prepare(BATCH, 4096, 4096, progress=False)
    assert gpu.entered == 0 and not gpu.kernels


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((range(8), 64, 64), ShapeError, "got \\(0, 64, 64\\)"),
        ((64, 64, 64, "NX"), ShapeError, "NX"),
        ((range(1, 1), 64, 64), ShapeError, "1 to 65536 problems, got none, because a range is empty"),
        (
            (range(1, 10**9), range(1, 10**9), 64),
            ShapeError,
            "1 to 65536 problems, got more; divide them among several calls",
        ),
        ((64, 64.0, 64), ArgumentError, "N must be an int .* got 64.0"),
        ((64, 64, ["64"]), ArgumentError, "K must be an int .* got '64'"),
        (("64", 64, 64), ArgumentError, "M must be an int .* got '64'"),
    ],
    ids=str,
)
def test_what_cannot_be_prepared_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        preparation.prepare(*arguments, device="sm_90", progress=False)


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"precision": "tf32"}, PrecisionError, "got 'tf32'"),
        ({"rung": "warptiled", "batch_invariant": True}, ConfigError, "skinny_in_order, got 8 warptiled"),
        ({"rung": "warptiled", "precision": "fp16x3"}, PrecisionError, "computes with precision 'ieee'"),
        ({"split": "B"}, PrecisionError, "split='B' needs precision 'fp16x3', got 'ieee'"),
        ({"source": "C"}, ArgumentError, "source must be 'matrix', 'row' or 'column'.* got 'C'"),
        ({"split": "C", "precision": "fp16x3"}, ArgumentError, "split must be 'A', 'B' or 'AB'.* got 'C'"),
        ({"batch": 0}, ShapeError, "a batch has 1 to [0-9]+ products, got 0"),
        ({"batch": [1, 2.0]}, ArgumentError, "batch must be an int .* got 2.0"),
        ({"batch": 2000, "rung": "fp16x3"}, ShapeError, "at most 1024 products, got 2000"),
        ({"device": "sm_75", "rung": "fp16x3"}, DeviceError, "sm_80 or later"),
        ({"ragged": "m"}, ShapeError, "ragged must be 'M', 'N' or 'K'.* got 'm'"),
        (
            {"ragged": "M", "precision": "fp16x3", "batch_invariant": True},
            PrecisionError,
            "needs precision 'ieee' for g",
        ),
        ({"ragged": "M", "rung": "warptiled"}, ConfigError, "groups are computed by rung 9 pipelined, got 8 warptiled"),
        ({"ragged": "M", "source": "row"}, ArgumentError, "groups have no source but a matrix, got 'row'"),
        (
            {"ragged": "M", "precision": "fp16x3", "split": "B"},
            ArgumentError,
            "groups take no operands that were split before, got 'B'",
        ),
        ({"ragged": "M", "symmetric": True}, ShapeError, "groups have no symmetric results"),
    ],
    ids=str,
)
def test_what_sgemm_refuses_cannot_be_prepared(how, error, message):
    with pytest.raises(error, match=message):
        preparation.prepare(64, 64, 64, progress=False, **{"device": "sm_90"} | how)


@pytest.fixture
def python_h200(device, monkeypatch):
    """The Python device as an H200 whose kernels do nothing."""
    device.name, device.multiprocessors = H200.name, H200.multiprocessors
    device.loaded = []

    def load(code, name, shared_bytes):
        device.loaded.append((code, name, shared_bytes))
        return SimpleNamespace(name=name, handle=0)

    device.load = load
    device.launch = lambda *_: (0,)
    return device


def given(problem, batch):
    """Return A and B of a problem as arrays."""
    extents = (batch,) if batch > 1 else ()
    for (rows, columns), letter in zip(((problem.M, problem.K), (problem.K, problem.N)), problem.layout, strict=True):
        if letter == "N":
            yield np.zeros((*extents, rows, columns), np.float32)
        else:
            yield np.zeros((*extents, columns, rows), np.float32).swapaxes(-1, -2)


@pytest.mark.parametrize(
    ("problem", "batch", "how"),
    [
        (Problem(64, 512, 512), 1, {}),
        (Problem(64, 512, 512, "NT"), 3, {}),
        (Problem(2, 512, 2048, "TN"), 1, {}),
        (Problem(64, 512, 2048), 1, {"batch_invariant": True}),
        (Problem(64, 512, 2048), 3, {"batch_invariant": True}),
        (Problem(64, 512, 512), 2, {"rung": "warptiled"}),
        (Problem(1024, 1024, 1024, "NT"), 1, {"precision": "fp16x3"}),
        (Problem(1, 64, 64), 1, {"precision": "fp16x3"}),
        (Problem(256, 256, 256), 3, {"rung": "fp16x3"}),
        (Problem(256, 256, 256), 1, {"precision": "fp16x3", "split": "B"}),
        (Problem(256, 256, 4096, "TN"), 1, {"precision": "fp16x3", "split": "AB"}),
    ],
    ids=str,
)
def test_a_prepared_call_loads_what_was_prepared_and_nothing_else(python_h200, on_device, problem, batch, how):
    gpu = python_h200
    found = preparation.prepare(problem.M, problem.N, problem.K, problem.layout, batch=batch, progress=False, **how)
    prepared = dict(zip(gpu.kernels, gpu.loaded, strict=True))
    assert found.kernels == len(prepared) > 0
    operands = dict(zip("AB", map(on_device, given(problem, batch)), strict=True))
    operands |= {side: fastsgemm.split(operands[side], side) for side in how.get("split", "")}
    gpu.kernels.clear()
    gpu.loaded.clear()
    fastsgemm.sgemm(*operands.values(), **{name: value for name, value in how.items() if name != "split"})
    assert dict(zip(gpu.kernels, gpu.loaded, strict=True)) == prepared  # the same code, names and shared memory


GROUPED = {  # of an M, N and K of 40, 24 and 36 in 3 groups: the shapes of A, B and the result
    "M": ((40, 36), (3, 36, 24), (40, 24)),
    "N": ((3, 40, 36), (36, 24), (40, 24)),
    "K": ((40, 36), (36, 24), (3, 40, 24)),
}


def turned(shape):
    return *shape[:-2], shape[-1], shape[-2]


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("source", ["", "matrix"])
@pytest.mark.parametrize(("dtypes", "how"), [("f32xf32", {}), ("f16xf32", {"batch_invariant": True})])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("extent", GROUPED)
def test_a_prepared_grouped_call_loads_what_was_prepared(python_h200, on_device, extent, layout, dtypes, how, source):
    gpu = python_h200
    found = preparation.prepare(
        40, 24, 36, layout, batch=3, ragged=extent, dtypes=dtypes, source=source, progress=False, **how
    )
    prepared = dict(zip(gpu.kernels, gpu.loaded, strict=True))
    assert found.kernels == len(prepared) > 0
    gpu.kernels.clear()
    gpu.loaded.clear()
    types = np.float16 if dtypes == "f16xf32" else np.float32, np.float32
    A, B = (
        on_device(np.zeros(shape, dtype) if letter == "N" else np.zeros(turned(shape), dtype).swapaxes(-1, -2))
        for shape, letter, dtype in zip(GROUPED[extent], layout, types, strict=False)
    )
    C, out = (on_device(np.zeros(GROUPED[extent][2], np.float32)) for _ in range(2))
    ends = on_device(np.zeros(3, np.int64))
    if source:
        fastsgemm.grouped_mm(A, B, ends, 1.0, C, 1.0, out=out, **how)
    else:
        fastsgemm.grouped_mm(A, B, ends, C=C, **how)
    assert dict(zip(gpu.kernels, gpu.loaded, strict=True)) == prepared


def read_for_out(problem, batch, source):
    """Return what the calls with `out` read that are prepared with this `source`."""
    shapes = {"matrix": (problem.M, problem.N), "row": (1, problem.N), "column": (problem.M, 1)}
    extents = (batch,) if batch > 1 and source == "matrix" else ()
    return np.zeros((*extents, *shapes[source]), np.float32)


@pytest.mark.parametrize("order", ["row-major", "column-major"])
@pytest.mark.parametrize("source", preparation.SOURCES)
@pytest.mark.parametrize(
    ("problem", "batch", "how"),
    [
        (Problem(64, 512, 512), 1, {}),
        (Problem(64, 512, 512, "NT"), 3, {}),
        (Problem(64, 510, 512), 1, {}),
        (Problem(2, 512, 2048, "TN"), 1, {}),
        (Problem(512, 1, 256), 1, {}),
        (Problem(1, 512, 256), 1, {}),
        (Problem(512, 512, 16384), 1, {"rung": "pipelined"}),
        (Problem(1, 512, 2048), 1, {"batch_invariant": True}),
        (Problem(64, 512, 8192), 3, {"batch_invariant": True}),
        (Problem(64, 512, 512), 2, {"rung": "warptiled"}),
        (Problem(1, 64, 64), 1, {"precision": "fp16x3"}),
        (Problem(256, 256, 256), 3, {"rung": "fp16x3"}),
        (Problem(256, 512, 4096, "TN"), 1, {"precision": "fp16x3", "split": "B"}),
    ],
    ids=str,
)
def test_a_prepared_call_with_out_loads_what_was_prepared_and_nothing_else(
    python_h200, on_device, problem, batch, how, source, order
):
    gpu = python_h200
    p = problem
    preparation.prepare(p.M, p.N, p.K, p.layout, batch=batch, source=source, progress=False, **how)
    prepared = dict(zip(gpu.kernels, gpu.loaded, strict=True))
    A, B = given(problem, batch)
    C, D = read_for_out(problem, batch, source), np.zeros((*A.shape[:-1], problem.N), np.float32)
    sides = how.get("split", "")
    if order == "column-major":  # the transposed problem
        A, B, C, D = (x.swapaxes(-1, -2) for x in (B, A, C, D))
        sides = sides.translate({ord("A"): "B", ord("B"): "A"})
    operands = {"A": on_device(A), "B": on_device(B)}
    operands |= {side: fastsgemm.split(operands[side], side) for side in sides}
    gpu.kernels.clear()
    gpu.loaded.clear()
    options = {name: value for name, value in how.items() if name != "split"}
    fastsgemm.sgemm(*operands.values(), 1.0, 0.5, on_device(C), out=on_device(D), **options)
    assert dict(zip(gpu.kernels, gpu.loaded, strict=True)) == prepared


def keys_for(M, N, K, **how):
    gpu = FakeGpu()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first_use, "open_device", lambda ordinal: gpu)
        patch.setattr(compiler, "cubin", lambda source, name, arch, stored: source)
        preparation.prepare(M, N, K, progress=False, **how)
    return gpu.kernels


def kernels_for(M, N, K, **how):
    """Return the floats at which a product reads its source, and the other kernels that are prepared."""
    keys = keys_for(M, N, K, **how)
    [product] = (spec for spec in keys if spec.file[0].isdigit())
    helpers = {(spec.file, dict(spec.constants).get("SOURCE", 0)) for spec in keys if spec != product}
    return dict(product.constants).get("SOURCE", 0), helpers


@pytest.mark.parametrize(
    ("problem", "how", "expected"),
    [
        ((64, 512, 512), {}, (0, set())),
        ((64, 512, 512), {"source": "matrix"}, (4, set())),
        ((64, 512, 512), {"source": "row"}, (4, set())),
        ((64, 512, 512), {"source": "column"}, (1, set())),
        ((64, 510, 512), {"source": "row"}, (1, set())),
        ((512, 1, 256), {"source": "row"}, (1, set())),  # one number
        ((512, 1, 256), {"source": "matrix"}, (4, set())),
        ((512, 512, 16384), {"rung": "pipelined"}, (0, {("reduce_parts.cu", 0)})),
        ((512, 512, 16384), {"rung": "pipelined", "source": "row"}, (0, {("reduce_parts.cu", 4)})),
        ((64, 512, 8192), {"batch_invariant": True, "source": "row"}, (0, {("reduce_segments.cu", 1)})),
        ((64, 512, 512), {"rung": "warptiled", "source": "row"}, (0, {("copy_strided.cu", 0)})),
    ],
    ids=str,
)
def test_what_c_is_decides_which_kernels_read_it(problem, how, expected):
    assert kernels_for(*problem, **how) == expected


@pytest.mark.parametrize(
    ("problem", "how", "product", "guard", "adding"),
    [
        ((1024, 1024, 1024), {}, 0, 0, 0),
        ((1024, 1024, 1024), {"source": "matrix"}, 4, 1, 4),
        ((1024, 1024, 1024), {"source": "row"}, 4, 1, 4),
        ((1024, 1024, 1024), {"source": "column"}, 1, 1, 1),
        ((1024, 1022, 1024), {"source": "row"}, 1, 1, 1),
        ((64, 4096, 4096), {"source": "row"}, 0, 0, 4),  # several parts
        ((64, 4096, 4096), {"source": "column"}, 0, 0, 1),
        ((64, 4096, 4096), {}, 0, 0, 0),
    ],
    ids=str,
)
def test_the_kernels_of_rung_11_that_store_c_read_its_source(problem, how, product, guard, adding):
    constants = {spec.file: dict(spec.constants) for spec in keys_for(*problem, rung="fp16x3", **how)}
    reading = {file: values["SOURCE"] for file, values in constants.items() if file != "split.cu"}
    assert reading == {"11_fp16x3.cu": product, "guard_fp16x3.cu": guard, "reduce_parts.cu": adding}


def test_a_prepared_call_with_out_compiles_nothing_in_a_capture(python_h200, on_device):
    python_h200.capturing.add(5)
    A, B = map(on_device, given(Problem(64, 512, 512, "NT"), 1))
    bias, D = on_device(np.zeros(512, np.float32)), on_device(np.zeros((64, 512), np.float32))
    preparation.prepare(64, 512, 512, "NT", source="row", progress=False)
    python_h200.load = None
    fastsgemm.sgemm(A, B, 1.0, 1.0, bias, out=D)


PYTORCH = {
    "linear": ((64, 512, 256, "NT"), {"source": "row"}, (64, 256), (512, 256), (512,)),
    "linear of one column": ((64, 1, 256, "NT"), {"source": "row"}, (64, 256), (1, 256), (1,)),
    "linear of sequences": ((64, 512, 256, "NT"), {"source": "row"}, (2, 32, 256), (512, 256), (512,)),
    "linear without bias": ((64, 512, 256, "NT"), {}, (64, 256), (512, 256)),
    "addmm": ((64, 512, 256), {"source": "matrix"}, (64, 512), (64, 256), (256, 512)),
    "addmm_": ((64, 512, 256), {}, (64, 512), (64, 256), (256, 512)),
    "addmm with a row": ((64, 512, 256), {"source": "row"}, (512,), (64, 256), (256, 512)),
    "addmm with a column": ((64, 512, 256), {"source": "column"}, (64, 1), (64, 256), (256, 512)),
    "addmv": ((512, 1, 256), {"source": "matrix"}, (512,), (512, 256), (256,)),
    "baddbmm": ((64, 512, 256), {"batch": 3, "source": "matrix"}, (3, 64, 512), (3, 64, 256), (3, 256, 512)),
    "baddbmm with rows": ((64, 512, 256), {"batch": 3, "source": "row"}, (3, 1, 512), (3, 64, 256), (3, 256, 512)),
}


@pytest.mark.parametrize("precision", ["ieee", "fp16x3"])
@pytest.mark.parametrize("call", PYTORCH)
def test_the_products_of_pytorch_can_be_prepared(python_h200, on_host, torch, monkeypatch, call, precision):
    import fastsgemm.torch
    from fastsgemm.torch import execution

    gpu = python_h200
    monkeypatch.setattr(execution, "gpu_of", lambda ordinal: gpu)
    monkeypatch.setattr(execution, "current_stream", lambda ordinal: 5)
    problem, how, *shapes = PYTORCH[call]
    preparation.prepare(*problem, precision=precision, progress=False, **how)
    prepared = set(gpu.kernels)
    gpu.kernels.clear()
    name = call.split()[0]
    function = torch.nn.functional.linear if name == "linear" else getattr(torch.Tensor, name)
    with fastsgemm.torch.enabled(device="cpu", precision=precision) as turned:
        function(*(torch.zeros(shape) for shape in shapes))
    assert [line.reason for line in turned.report().lines] == [""]
    assert gpu.kernels.keys() == prepared


def test_rung_11_is_prepared_where_it_is_used(gpu, compiled):
    preparation.prepare(4096, 4096, 4096, precision="fp16x3", progress=False)
    assert "fastsgemm_fp16x3" in compiled and "fastsgemm_pipelined" not in compiled


def test_a_batch_is_no_problem_of_more_rows(gpu, compiled):
    found = preparation.prepare(64, 512, 512, batch=[1, 7], progress=False)
    batched = {dict(spec.constants)["BATCHED"] for spec in gpu.kernels if spec.file[0].isdigit()}
    assert found.problems == 2 and batched == {0, 1}


def test_a_device_that_is_not_there_is_an_error():
    with pytest.raises(DeviceError, match="nothing is known of a device 'Fake 9000'"):
        preparation.prepare(64, 64, 64, device="Fake 9000", progress=False)


def test_without_a_driver_the_error_says_how_to_name_a_device(no_driver):
    with pytest.raises(NoDriverError, match="device that is not in this machine, name it"):
        preparation.prepare(64, 64, 64, progress=False)


@pytest.mark.parametrize("mode", [0o777, 0o700])
def test_a_named_device_needs_a_cache_that_can_be_written(compiled, tmp_path, monkeypatch, mode):
    """What is compiled for it goes nowhere else. (Permissions do not stop root: the refusal is injected.)"""
    tmp_path.chmod(mode)
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("os.access", lambda path, how: False)
    with pytest.raises(DeviceError, match=f"kernel cache {tmp_path} cannot be written .*FASTSGEMM_CACHE_DIR"):
        preparation.prepare(64, 64, 64, device="sm_90", progress=False)
    assert compiled == []


@pytest.mark.parametrize("device", ["sm_90", 0])
def test_what_cannot_be_stored_was_not_prepared(gpu, tmp_path, monkeypatch, device):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr("fastsgemm.jit.cache._warned", False)
    with pytest.raises(DeviceError, match=f"kernel cache {tmp_path} cannot be written .*No space left"):
        preparation.prepare(64, 64, 64, rung="naive", device=device, stored=device == 0, progress=False)
    assert gpu.entered == 0
    with pytest.warns(RuntimeWarning, match="No space left"):  # here the kernel is loaded, too
        assert preparation.prepare(64, 64, 64, rung="naive", progress=False).loaded


def test_the_simulated_device_has_nothing_to_prepare(monkeypatch):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
    with pytest.raises(DeviceError, match="FASTSGEMM_DEVICE=sim"):
        preparation.prepare(64, 64, 64, progress=False)


# The command


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1..8192,4096,4096", (range(1, 8193), range(4096, 4097), range(4096, 4097), "NN", range(1, 2), "f32xf32", "")),
        ("64, 1..3 ,5,nt", (range(64, 65), range(1, 4), range(5, 6), "NT", range(1, 2), "f32xf32", "")),
        ("64,64,64,x96", (range(64, 65), range(64, 65), range(64, 65), "NN", range(96, 97), "f32xf32", "")),
        ("64", (range(64, 65), range(64, 65), range(64, 65), "NN", range(1, 2), "f32xf32", "")),
        ("64,x1..8", (range(64, 65), range(64, 65), range(64, 65), "NN", range(1, 9), "f32xf32", "")),
        ("1..4,64,64,bf16xf32,x2", (range(1, 5), range(64, 65), range(64, 65), "NN", range(2, 3), "bf16xf32", "")),
        ("1..4,64,64,m2..8", (range(1, 5), range(64, 65), range(64, 65), "NN", range(2, 9), "f32xf32", "M")),
        ("64,64,64,NT, x1..8 ", (range(64, 65), range(64, 65), range(64, 65), "NT", range(1, 9), "f32xf32", "")),
    ],
)
def test_a_range_includes_its_ends(text, expected):
    assert preparation.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1..8",
        "1..2..3,4,5",
        "1...3,4,5",
        "a,4,5",
        "1,2,3,XX",
        "-1,2,3",
        "1,2",
        "..,2,3",
        "1,2,3,x",
        "1,2,3,x1..",
        "x8",
    ],
)
def test_what_is_no_range_is_refused(text):
    with pytest.raises(ShapeError, match=r"such as 1\.\.512,4096,4096,NT: a number may be a range"):
        preparation.parse(text)


def test_the_command_prints_what_it_did(compiled, capsys):
    assert main(["prepare", "--size", "1..64,4096,4096,NT", "--device", "sm_90"]) == 0
    assert f"{len(compiled)} kernels for 64 problems ready for NVIDIA H200" in capsys.readouterr().out
    assert main(["prepare", "--size", "64,4096,4096,NT", "--device", "sm_90"]) == 0
    assert " for 1 problem ready" in capsys.readouterr().out
    assert main(["prepare", "--size", "1..64,4096,4096,NT", "--device", "sm_90", "--json"]) == 0
    assert [each["problems"] for each in json.loads(capsys.readouterr().out)] == [64]
    assert main(["prepare", "--size", "1..64,4096", "--device", "sm_90"]) == 2


def test_the_command_prepares_several_sizes(compiled, capsys):
    sizes = ["--size", "1..3,64,64", "--size", "32"]
    assert main(["prepare", *sizes, "--device", "sm_90"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert " for 3 problems ready" in first and " for 1 problem ready" in second
    assert main(["prepare", *sizes, "--device", "sm_90", "--json"]) == 0
    assert [each["problems"] for each in json.loads(capsys.readouterr().out)] == [3, 1]
    with pytest.raises(SystemExit):
        main(["prepare", "--device", "sm_90"])
    assert "--size" in capsys.readouterr().err


def test_the_command_prepares_batches(compiled, capsys):
    assert main(["prepare", "--size", "512,1024,2048,x1..3", "--device", "sm_90", "--json"]) == 0
    assert [each["problems"] for each in json.loads(capsys.readouterr().out)] == [3]
    from_command = sorted(compiled)
    compiled.clear()
    preparation.prepare(512, 1024, 2048, batch=[1, 2, 3], device="sm_90", progress=False)
    assert from_command == sorted(compiled) != []
    assert main(["prepare", "--size", "512,1024,2048,x0", "--device", "sm_90"]) == 2
    assert "a batch has 1 to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ([], {}),
        (["--batch-invariant"], {"batch_invariant": True}),
        (["--precision", "fp16x3"], {"precision": "fp16x3"}),
        (["--precision", "fp16x3", "--split", "B"], {"precision": "fp16x3", "split": "B"}),
        (["--rung", "warptiled", "--source", "row"], {"rung": "warptiled", "source": "row"}),
    ],
    ids=str,
)
def test_the_command_prepares_what_the_function_does(compiled, capsys, options, how):
    assert main(["prepare", "--size", "512,1024,2048", "--device", "sm_90", *options]) == 0
    from_command = sorted(compiled)
    compiled.clear()
    preparation.prepare(512, 1024, 2048, device="sm_90", progress=False, **how)
    assert from_command == sorted(compiled) != []

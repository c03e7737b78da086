"""What rung 11 launches, on a device made of Python whose kernels keep the contract in ``cuda_src/README.md``."""

import copy
import gc
import itertools

import fp16x3_kernels
import numpy as np
import pytest
from matrices import LAYOUTS, laid_out
from msgspec import structs
from python_kernels import PythonKernel, parameters_of

from fastsgemm import SplitOperand, resources, sgemm, split
from fastsgemm.call import arrays, driver
from fastsgemm.config import Fp16x3Config, Fp16x3MmaConfig, VectorizedConfig
from fastsgemm.errors import (
    ArgumentError,
    CaptureError,
    ConfigError,
    DeviceError,
    DeviceMemoryError,
    DeviceMismatchError,
    DTypeError,
    OperandError,
    OverlapError,
    PrecisionError,
    ShapeError,
)
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.heuristics import fp16x3 as heuristics
from fastsgemm.jit import kernel
from fastsgemm.problem import Sym
from fastsgemm.request import resolve

HOW = {"rung": "fp16x3"}


@pytest.fixture
def gpu(device, monkeypatch):
    """The Python device with the kernels of rung 11."""
    device.files = []
    others = kernel._load

    def load(gpu, spec, shared_bytes, code):
        file = spec.file
        if "fp16x3" not in file and file not in ("split.cu", "column_maxima.cu"):
            return others(gpu, spec, shared_bytes, code)
        gpu.files.append(file)
        text = (resources.folder("cuda_src") / file).read_text()
        run = fp16x3_kernels.make(file, dict(spec.constants))
        gpu.kernels[spec] = PythonKernel(spec.name, run, parameters_of(text, spec.name))
        return gpu.kernels[spec]

    monkeypatch.setattr("fastsgemm.jit.kernel._load", load)
    return device


def close(found, a, b, alpha=1.0, beta=0.0, c=0.0):
    exact = alpha * (a.astype(np.float64) @ b) + beta * np.float64(c)
    bound = abs(alpha) * (np.abs(a).astype(np.float64) @ np.abs(b)) + np.abs(beta * np.float64(c))
    assert (np.abs(found - exact) <= 8 * 2.0**-24 * bound + 1e-44).all()


@pytest.mark.parametrize("how_c", LAYOUTS)
def test_every_layout_gives_the_product_and_writes_nothing_else(gpu, on_device, random, how_c):
    a, b, c = random(37, 70), random(70, 26), random(37, 26)
    for how_a, how_b in itertools.product(LAYOUTS, LAYOUTS):
        A, B, C = laid_out(how_a, a), laid_out(how_b, b), laid_out(how_c, c)
        sgemm(on_device(A), on_device(B), 1.5, -0.5, on_device(C), **HOW)
        close(C, a, b, 1.5, -0.5, c)
        buffer = C if C.base is None else C.base
        assert (buffer == 99).sum() == buffer.size - C.size
    assert not gpu.leaks


def test_a_split_operand_without_a_unit_stride_is_packed_for_an_ieee_kernel(gpu, on_device, random):
    a, b, wide = random(40, 3), random(3, 50), random(3, 100)
    strided = wide[:, ::2]
    strided[...] = b
    C = np.full((40, 50), np.nan, np.float32)
    sgemm(on_device(a), split(on_device(strided)), C=on_device(C), precision="fp16x3")
    assert not any("fp16x3" in file for file in gpu.files)
    close(C, a, b)


def test_all_dimensions_of_a_batch_count(gpu, on_device):
    # Four dimensions that cannot be merged, of which a launch has room for three.
    a = np.zeros((3, 3, 2, 4, 3, 8, 2, 9, 4, 4), np.float32)[:, 0, :, 0, :, 0, :, 0]
    b = np.zeros((3, 2, 3, 2, 4, 4), np.float32)[:, :, :, :, ::1]
    assert a.shape[:-2] == (3, 2, 3, 2) == b.shape[:-2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heuristics, "MOST_PRODUCTS", 35)
        with pytest.raises(ShapeError, match="at most 35 products, got 36"):
            sgemm(on_device(a), on_device(b), rung="fp16x3")
        patch.setattr(heuristics, "MOST_PRODUCTS", 36)
        sgemm(on_device(a), on_device(b), rung="fp16x3")


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("sides", ["", "A", "B", "AB"])
@pytest.mark.parametrize("how_c", ["row-major", "column-major"])
def test_split_operands_take_the_place_of_arrays(gpu, on_device, random, arch, sides, how_c):
    gpu.arch = arch
    a, b = random(40, 130), random(130, 50)
    for how in LAYOUTS:
        A, B = on_device(laid_out(how, a)), on_device(laid_out(how, b))
        C = laid_out(how_c, np.full((40, 50), np.nan, np.float32))
        A = split(A, "A") if "A" in sides else A
        B = split(B) if "B" in sides else B
        sgemm(A, B, C=on_device(C), precision="fp16x3", rung="fp16x3")
        close(C, a, b)
    del A, B
    gc.collect()
    assert not gpu.leaks


def test_an_array_that_got_another_shape_since_it_was_split_is_refused(gpu, on_device, random):
    B = split(on_device(random(130, 50)))
    B.array = on_device(random(260, 50))  # as a resized array would be
    C = np.full((40, 50), 7, np.float32)
    with pytest.raises(
        OperandError, match=r"B\.array has become \(260, 50\) since B was split: .*130 x 50.*split it again"
    ):
        sgemm(on_device(random(40, 260)), B, C=on_device(C), precision="fp16x3", rung="fp16x3")
    assert (C == 7).all()


@pytest.mark.parametrize(
    "config",
    [
        Fp16x3Config(128, 128, 2, 7, 8),
        Fp16x3Config(128, 16, 1, 12, 8),
        Fp16x3Config(128, 16, 1, 12, 8, 2),
        Fp16x3Config(64, 64, 2, 12, 8, 3),
        Fp16x3MmaConfig(64, 64, 32, 32, 4, 8),
        Fp16x3MmaConfig(64, 64, 32, 32, 4, 8, 4),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(16, 300, 257), (300, 16, 257), (130, 200, 640), (1, 1, 1), (5, 3, 33)])
def test_every_tile_and_split_k(gpu, on_device, random, config, shape):
    gpu.arch = "sm_90" if isinstance(config, Fp16x3Config) else "sm_80"
    M, N, K = shape
    a, b, c = random(M, K), random(K, N), random(M, N)
    a[M // 2, K // 2] = 1e-20
    b[0, 0] = np.inf
    C = c.copy()
    with np.errstate(all="ignore"):
        sgemm(on_device(a), on_device(b), 2.0, 0.25, on_device(C), config=config, **HOW)
        expected = 2 * (a @ b) + 0.25 * c
    assert (np.isfinite(C) == np.isfinite(expected)).all()
    close(C[:, 1:], a, b[:, 1:], 2.0, 0.25, c[:, 1:])


def test_beta_zero_never_reads_c_and_alpha_zero_never_reads_a_or_b(gpu, on_device, random):
    a, b = random(20, 40), random(40, 30)
    C = np.full((20, 30), np.nan, np.float32)
    sgemm(on_device(a), on_device(b), 1.0, 0.0, on_device(C), **HOW)
    close(C, a, b)
    bad = np.full((20, 40), np.nan, np.float32)
    old = C.copy()
    launched = len(gpu.launched)
    sgemm(on_device(bad), on_device(b), 0.0, 2.0, on_device(C), **HOW)
    np.testing.assert_array_equal(C, 2 * old)
    assert len(gpu.launched) == launched + 1
    sgemm(on_device(bad), on_device(b), 0.0, 0.0, on_device(C), **HOW)
    assert (C == 0).all()


@pytest.mark.parametrize(("M", "N", "K"), [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_empty_extents(gpu, on_device, M, N, K):
    a, b, C = np.ones((M, K), np.float32), np.ones((K, N), np.float32), np.full((M, N), 3, np.float32)
    for A, B in ((on_device(a), on_device(b)), (split(on_device(a), "A"), split(on_device(b)))):
        sgemm(A, B, 1.0, 0.5, on_device(C), **HOW)
        sgemm(A, B, 1.0, 2.0, on_device(C), **HOW)
    assert (C == 3).all()


def test_the_order_of_launches_and_which_may_begin_early(gpu, on_device, random):
    sgemm(on_device(random(300, 300)), on_device(random(300, 300)), **HOW)
    assert gpu.files == ["split.cu", "11_fp16x3.cu", "guard_fp16x3.cu"]
    assert [bool(one) for one in gpu.early] == [False, True, True]
    gpu.early.clear()
    A, B = split(on_device(random(300, 300)), "A"), split(on_device(random(300, 300)))
    assert gpu.early == [False, False]
    sgemm(A, B, **HOW)
    assert [bool(one) for one in gpu.early[2:]] == [False, True]


SOURCES = {
    "row": lambda a: a[0],
    "column": lambda a: a[:, :1],
    "element": lambda a: a[:1, :1],
    "padded": lambda a: laid_out("padded", a),
    "column-major": lambda a: laid_out("column-major", a),
    "strided": lambda a: laid_out("strided", a),
    "upwards": lambda a: laid_out("upwards", a),
}


@pytest.mark.parametrize("lying", SOURCES)
@pytest.mark.parametrize(
    "config",
    [
        Fp16x3Config(128, 128, 2, 7, 8),
        Fp16x3Config(128, 16, 1, 12, 8, 2),
        Fp16x3MmaConfig(64, 64, 32, 32, 4, 8),
        Fp16x3MmaConfig(64, 64, 32, 32, 4, 8, 3),
    ],
    ids=str,
)
def test_a_source_is_read_where_it_lies(gpu, on_device, random, config, lying):
    """By each kernel that stores C, of lines without exceptions, with few and with many."""
    gpu.arch = "sm_90" if isinstance(config, Fp16x3Config) else "sm_80"
    for M, N in ((16, 70), (70, 24)):
        a, b = random(M, 290), random(290, N)
        a[1, 2], b[7, 3], a[5, ::3], b[::7, 6] = 1e-20, 1e-20, 1e-15, 1e-15
        source = SOURCES[lying](random(M, N))
        before = source.copy()
        for how in ("row-major", "column-major", "padded"):
            out = laid_out(how, np.full((M, N), np.nan, np.float32))
            sgemm(on_device(a), on_device(b), 1.5, -0.5, on_device(source), out=on_device(out), config=config, **HOW)
            close(out, a, b, 1.5, -0.5, source)
            sgemm(on_device(a), on_device(b), 0.0, 2.0, on_device(source), out=on_device(out), config=config, **HOW)
            np.testing.assert_array_equal(out, 2 * np.broadcast_to(source, (M, N)))
        np.testing.assert_array_equal(source, before)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_source_costs_no_launch(gpu, on_device, random, parts):
    a, b, bias, out = random(16, 300), random(300, 30), random(30), np.full((16, 30), np.nan, np.float32)
    how = {"config": Fp16x3Config(128, 16, 1, 12, 8, parts), **HOW}
    sgemm(on_device(a), on_device(b), C=on_device(out), **how)
    assert len(gpu.launched) == 2 + parts
    sgemm(on_device(a), on_device(b), 1.0, 1.0, on_device(bias), out=on_device(out), **how)
    close(out, a, b, 1.0, 1.0, bias)
    assert len(gpu.launched) == 2 * (2 + parts)


def test_without_products_the_source_is_scaled(gpu, on_device, random):
    a, b, out = random(20, 40), random(40, 30), np.full((20, 30), np.nan, np.float32)
    bias, empty = random(20, 1), (on_device(a[:, :0]), on_device(b[:0]))
    launched = len(gpu.launched)
    sgemm(*empty, 1.0, 2.0, on_device(bias), out=on_device(out), **HOW)
    np.testing.assert_array_equal(out, 2 * np.broadcast_to(bias, out.shape))
    assert len(gpu.launched) == launched + 1


def test_the_products_of_a_batch_have_their_own_source(gpu, on_device, random):
    a, b = random(2, 3, 40, 70), random(2, 3, 70, 50)
    for shape in ((2, 3, 40, 50), (3, 1, 50), (2, 1, 40, 1), (50,)):
        for how in ("row-major", "column-major"):
            source, out = random(*shape), np.full((2, 3, 40, 50), np.nan, np.float32)
            out = out if how == "row-major" else out.swapaxes(2, 3).copy().swapaxes(2, 3)
            sgemm(on_device(a), on_device(b), 1.0, 0.5, on_device(source), out=on_device(out), **HOW)
            for i, j in np.ndindex(2, 3):
                close(out[i, j], a[i, j], b[i, j], 1.0, 0.5, np.broadcast_to(source, out.shape)[i, j])
            sgemm(on_device(a), on_device(b), 0.0, 0.5, on_device(source), out=on_device(out), **HOW)
            np.testing.assert_array_equal(out, 0.5 * np.broadcast_to(source, out.shape))


@pytest.mark.parametrize(("order", "of_c"), [("C", (1700, 1600)), ("F", (1600,))])
def test_panels_read_their_part_of_the_source(gpu, on_device, random, monkeypatch, order, of_c):
    monkeypatch.setattr(geometry.panels, "__defaults__", (geometry.LINE_BYTES * 3 * 1600,))
    a, b, source = random(1700, 70), random(70, 1600), random(*of_c)
    out = np.full((1700, 1600), np.nan, np.float32, order=order)
    config = Fp16x3Config(128, 128, 2, 7, 8)
    sgemm(on_device(a), on_device(b), 1.0, -1.0, on_device(source), out=on_device(out), config=config, **HOW)
    close(out, a, b, 1.0, -1.0, source)


def test_before_hopper_a_kernel_finds_maxima_of_columns_and_none_begins_early(gpu, on_device, random):
    gpu.arch = "sm_86"
    gpu.shared_limit = 101376
    sgemm(on_device(random(300, 300)), on_device(random(300, 300)), **HOW)
    assert gpu.files == ["column_maxima.cu", "split.cu", "11_fp16x3_mma.cu", "guard_fp16x3.cu"]
    assert not any(gpu.early)


@pytest.mark.parametrize(("side", "arch"), [("A", "sm_90"), ("B", "sm_90"), ("B", "sm_80")])
def test_the_split_is_loaded_and_launched_with_the_shared_memory_of_its_tiles(
    gpu, on_device, random, monkeypatch, side, arch
):
    """A row-major A has contiguous lines, a row-major B strided ones."""
    gpu.arch = arch
    loaded, launched = {}, []
    load, launch_config = kernel._load, gpu.launch_config

    def loading(gpu, spec, shared_bytes, code):
        loaded[spec.file] = dict(spec.constants).get("TILES", 0), shared_bytes
        return load(gpu, spec, shared_bytes, code)

    def configuring(grid, threads, shared_bytes, early):
        launched.append(shared_bytes)
        return launch_config(grid, threads, shared_bytes, early)

    monkeypatch.setattr(kernel, "_load", loading)
    monkeypatch.setattr(gpu, "launch_config", configuring)
    split(on_device(random(200, 70)), side)
    tiles, shared_bytes = loaded["split.cu"]
    assert shared_bytes == launched[-1] == (16384 * tiles if side == "B" else 0)


def test_a_call_seen_before_prepares_nothing(gpu, on_device, random, monkeypatch):
    a, b = random(50, 60), random(60, 70)
    first = sgemm(on_device(a), on_device(b), **HOW)
    monkeypatch.setattr(driver, "make_plan", None)
    again = sgemm(on_device(a), on_device(b), **HOW)
    np.testing.assert_array_equal(first.values, again.values)
    assert not gpu.leaks


def test_the_workspace_is_bounded_by_panels_of_both_operands(gpu, on_device, random, monkeypatch):
    limit = geometry.LINE_BYTES * 4 * 1600  # 1600 lines of K = 70, which takes 4 blocks
    monkeypatch.setattr(geometry.panels, "__defaults__", (limit,))
    a, b, c = random(1700, 70), random(70, 1600), random(1700, 1600)
    a[900, 3], a[1699, 69], b[5, 800] = np.nan, 1e-30, 1e-20
    C = c.copy()
    sgemm(on_device(a), on_device(b), 1.0, 1.0, on_device(C), config=Fp16x3Config(128, 128, 2, 7, 8), **HOW)
    assert np.isnan(C[900]).all()
    keep = np.arange(1700) != 900
    close(C[keep], a[keep], b, 1.0, 1.0, c[keep])
    assert gpu.made[0].size < 1.2 * limit
    assert len(gpu.launched) == 9 * 3  # 3 panels of A, each with 3 of B, each with split, product and guard


@pytest.mark.parametrize(
    ("lines", "others", "expected"),
    [
        (1000, 1000, [(0, 1000)]),
        (100000, 0, [(0, 32256), (32256, 32256), (64512, 32256), (96768, 3232)]),
        (100000, 1000, [(0, 31488), (31488, 31488), (62976, 31488), (94464, 5536)]),
        (40000, 40000, [(0, 16128), (16128, 16128), (32256, 7744)]),
    ],
)
def test_panels_cover_every_line_once(lines, others, expected):
    assert geometry.panels(lines, 32768, others) == expected


def test_without_an_error_of_rung_11_the_quicker_is_taken(gpu, on_device, random):
    sgemm(on_device(random(16, 16)), on_device(random(16, 16)), precision="fp16x3")
    assert "11_fp16x3.cu" not in gpu.files and len(gpu.launched) == 1


def test_old_devices_use_ieee_kernels_and_refuse_what_needs_rung_11(gpu, on_device, random):
    gpu.arch, gpu.shared_limit = "sm_75", 65536
    a, b = random(30, 40), random(40, 20)
    result = sgemm(on_device(a), on_device(b), precision="fp16x3")
    close(result.values, a, b)
    assert gpu.files == []
    with pytest.raises(DeviceError, match=r"needs a device of sm_80 or later, got sm_75 \(Python\)"):
        sgemm(on_device(a), on_device(b), rung="fp16x3")
    with pytest.raises(DeviceError, match="sm_80 or later"):
        split(on_device(b))


def test_capture(gpu, on_device, random):
    a, b = on_device(random(100, 100)), on_device(random(100, 100))
    gpu.capturing.add(5)
    with pytest.raises(CaptureError, match="split before it"):
        split(b)
    assert gpu.launched == [] and gpu.made == []
    gpu.capturing.clear()
    sgemm(a, b, **HOW)
    gpu.capturing.add(5)
    sgemm(a, b, **HOW)


def test_a_split_operand_says_what_it_is(gpu, on_device, random):
    X = on_device(random(70, 40))
    made = split(X)
    assert isinstance(made, SplitOperand) and made.array is X and made.shape == (70, 40)
    assert (made.side, made.device, made.nbytes) == ("B", 0, 4 * 40 * 128 + 512 + 768)
    assert repr(made) == f"<SplitOperand B: 70 x 40 on cuda:0, {made.nbytes} bytes>"


def test_refusals(gpu, on_device, random):
    a, b = on_device(random(10, 20)), on_device(random(20, 30))
    S = split(b)
    with pytest.raises(PrecisionError, match=r"only precision='fp16x3' reads"):
        sgemm(a, S)
    with pytest.raises(OperandError, match="A is split for the other side"):
        sgemm(S, a, precision="fp16x3")
    with pytest.raises(ShapeError, match="A's columns must equal B's rows"):
        sgemm(b, S, precision="fp16x3")
    with pytest.raises(ArgumentError, match="side must be 'A' or 'B', got 'C'"):
        split(a, "C")
    with pytest.raises(ArgumentError, match="is split already"):
        split(S)
    with pytest.raises(DeviceMismatchError, match="host memory"):
        split(np.ones((3, 3), np.float32))
    with pytest.raises(DTypeError, match="X must be float32"):
        split(on_device(np.ones((3, 3))))
    with pytest.raises(ShapeError, match="X must have 2 dimensions"):
        split(on_device(random(3)))
    with pytest.raises(PrecisionError, match=r"'ieee' or 'fp16x3', got 'tf32'"):
        sgemm(a, b, precision="tf32")
    with pytest.raises(PrecisionError, match="rung naive computes with precision 'ieee'"):
        sgemm(a, b, rung="naive", precision="fp16x3")
    with pytest.raises(ConfigError, match=r"must be a fastsgemm\.Config"):
        sgemm(a, b, rung="fp16x3", config=object())
    with pytest.raises(ConfigError, match=r"takes a Fp16x3Config or .* on sm_90, got VectorizedConfig"):
        sgemm(a, b, rung="fp16x3", config=VectorizedConfig(64, 64, 8, 4, 4))
    with pytest.raises(ConfigError, match="shared memory of a block"):
        sgemm(a, b, config=Fp16x3Config(STAGES=8))
    with pytest.raises(DeviceMismatchError, match="on one device"):
        sgemm(np.ones((10, 20), np.float32), S, C=np.ones((10, 30), np.float32), precision="fp16x3")
    with pytest.raises(OverlapError, match="C shares memory with B"):
        sgemm(on_device(random(20, 20)), S, C=b, precision="fp16x3")


def test_no_room(gpu, on_device, random, monkeypatch):
    from cuda.bindings import driver

    monkeypatch.setattr(driver, "cuMemGetInfo", lambda: (0, 100, 1000))
    a, b = on_device(random(100, 100)), on_device(random(100, 100))
    sgemm(a, b, **HOW)
    gpu.room = 4096
    launched = len(gpu.launched)
    with pytest.raises(DeviceMemoryError, match="no room for the split operands"):
        sgemm(a, b, **HOW)
    with pytest.raises(DeviceMemoryError, match="no room for a split operand of 100 x 100"):
        split(b)
    assert len(gpu.launched) == launched


class Other:
    """A stream with a handle."""

    def __init__(self, handle=7):
        self._handle = handle

    def __cuda_stream__(self):
        return 0, self._handle


def waited(cuda_driver):
    """Return the handles of the streams that were made to wait."""
    return [handle for handle, *_ in cuda_driver.named("cuStreamWaitEvent")]


def test_another_stream_waits_for_the_split(gpu, on_device, random, cuda_driver):
    a, b = on_device(random(10, 20)), on_device(random(20, 30))
    cuda_driver.waiting.add(5)
    S = split(b)
    sgemm(a, S, **HOW)
    assert waited(cuda_driver) == []
    sgemm(a, S, stream=Other(), **HOW)
    assert waited(cuda_driver) == [7]
    cuda_driver.waiting.clear()
    sgemm(a, S, stream=Other(), **HOW)
    assert waited(cuda_driver) == [7] and cuda_driver.ended == []


@pytest.mark.parametrize("handle", [5, 7])
def test_every_stream_that_reads_a_split_operand_keeps_it(gpu, on_device, random, handle):
    """Then it can be dropped whatever has become of the streams."""
    S = split(on_device(random(20, 30)))
    gpu.kept.clear()
    sgemm(on_device(random(10, 20)), S, stream=None if handle == 5 else Other(), **HOW)
    assert [each for each, objects in gpu.kept if S in objects] == [handle]


def test_in_a_capture_the_host_waits_for_the_split(gpu, on_device, random, cuda_driver):
    a, b = on_device(random(10, 20)), on_device(random(20, 30))
    S = split(b)
    sgemm(a, S, **HOW)
    gpu.capturing.add(7)
    sgemm(a, S, stream=Other(), **HOW)
    assert len(cuda_driver.named("cuEventSynchronize")) == 1 and waited(cuda_driver) == []
    assert cuda_driver.ended == []


def test_the_memory_is_freed_whatever_has_become_of_its_stream(gpu, on_device, random, cuda_driver):
    S = split(on_device(random(20, 30)))
    [made] = gpu.made
    gpu.kept.clear()
    cuda_driver.gone.add(5)
    assert made.open and made.handle == 5
    del S
    gc.collect()
    assert not made.open and waited(cuda_driver) == [gpu.freeing] and cuda_driver.ended == []


def test_a_copy_of_a_split_operand_is_the_same_one(gpu, on_device, random):
    S = split(on_device(random(20, 30)))
    assert copy.copy(S) is S and copy.deepcopy([S])[0] is S


def test_threads_that_split_and_multiply_on_their_own_default_streams(gpu, on_device, random, cuda_driver):
    """All threads name their default stream 2, but each has its own, so one of them waits."""
    a, b = on_device(random(10, 20)), on_device(random(20, 30))
    cuda_driver.waiting.add(2)
    S = split(b, stream=Other(2))
    sgemm(a, S, stream=Other(2), **HOW)
    assert waited(cuda_driver) == [2]


@pytest.mark.parametrize("side", ["row-major", "column-major", "strided"])
@pytest.mark.parametrize("how_c", ["row-major", "column-major", "padded"])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_matrix_by_its_transpose_is_split_once(gpu, on_device, random, parts, how_c, side):
    a, c = random(70, 300), random(70, 70)
    a[3, 5], a[60, :9], a[66, 7] = 1e-20, 1e-15, 1e-18
    A, C = laid_out(side, a), laid_out(how_c, c)
    config = Fp16x3Config(64, 64, 2, 7, 8, parts)
    sgemm(on_device(A), on_device(A.T), 1.5, -0.5, on_device(C), config=config, **HOW)
    close(C, a, a.T, 1.5, -0.5, c)
    assert gpu.files.count("split.cu") == 1
    C = laid_out(how_c, c)
    sgemm(on_device(A), on_device(A.T), 1.5, C=on_device(C), config=config, **HOW)
    close(C, a, a.T, 1.5)
    np.testing.assert_array_equal(C, C.T)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("sym", [Sym.WHOLE, Sym.LOWER, Sym.UPPER])
def test_the_panels_of_a_symmetric_result(gpu, on_device, random, monkeypatch, sym, parts):
    """Blocks across the diagonal have the same bits, and nothing is written in the other triangle."""
    panels = geometry.panels
    monkeypatch.setattr(geometry, "_PANEL", 32)
    monkeypatch.setattr(geometry, "panels", lambda lines, K, others: panels(lines, K, others, 100_000))
    a, c = random(110, 400), random(110, 110)
    a[3, 5], a[90, :9] = 1e-20, 1e-15
    request = structs.replace(resolve(config=Fp16x3Config(64, 64, 2, 7, 8, parts)), symmetric=sym)
    C = c.copy()
    views = [arrays.library(each).view(each, 5, True, []) for each in map(on_device, (a, a.T, C))]
    driver.multiply(gpu, 5, request, views, 1.0, 0.0)
    assert gpu.files.count("11_fp16x3.cu") > 1 and len(gpu.launched) > 9
    kept = {0: np.ones(C.shape, bool), 2: np.tri(110, dtype=bool), 3: np.tri(110, dtype=bool).T}[sym]
    np.testing.assert_array_equal(C[~kept], c[~kept])
    close(np.where(kept, C, a @ a.T), a, a.T)
    if sym is Sym.WHOLE:
        np.testing.assert_array_equal(C, C.T)

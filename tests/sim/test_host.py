"""The public call with FASTSGEMM_DEVICE=sim: what it launches, what it gives back, and what it refuses."""

import dataclasses
import subprocess
import sys

import kernel_texts
import numpy as np
import pytest

import fastsgemm
from fastsgemm import BlockConfig, Fp16x3Config, SkinnyConfig, VectorizedConfig, known_devices, rungs, sim
from fastsgemm.errors import (
    ConfigError,
    DeviceError,
    DeviceMismatchError,
    FastsgemmError,
    OverlapError,
    ShapeError,
    StreamError,
)
from fastsgemm.geometry import variants
from fastsgemm.geometry.grid import blocks, split
from fastsgemm.heuristics import alternatives, database
from fastsgemm.heuristics.choice import choose_config
from fastsgemm.jit import source
from fastsgemm.measure.chains import has_several_chains
from fastsgemm.problem import Problem
from fastsgemm.sim.errors import GlobalAccessError
from fastsgemm.tuning import first_use

pytestmark = pytest.mark.usefixtures("on_sim")

M, N, K = 37, 70, 19


def same_bits(found, expected):
    np.testing.assert_array_equal(np.asarray(found).view(np.uint32), expected.view(np.uint32))


@pytest.fixture
def launches(monkeypatch):
    """(source, grid, threads, shared memory, arguments) of every launch."""
    made = []
    real = sim.Machine.launch

    def launch(self, text, kernel, grid, block, shared_bytes, args, operands, **more):
        made.append((text, grid, block, shared_bytes, tuple(args)))
        return real(self, text, kernel, grid, block, shared_bytes, args, operands, **more)

    monkeypatch.setattr(sim.Machine, "launch", launch)
    return made


@pytest.mark.parametrize("rung", [None, *(rung.name for rung in rungs.IEEE)])
def test_every_rung_with_the_constants_of_the_database(random, reference, launches, rung):
    A, B, C = random(M, K), random(K, N), random(M, N)
    expected = reference(A, B, 0.7, -1.3, C)
    assert fastsgemm.sgemm(A, B, 0.7, -1.3, C, rung=rung) is C
    np.testing.assert_allclose(C, expected, rtol=1e-4, atol=1e-4)
    choice = choose_config(known_devices.find("NVIDIA H200"), rungs.find(rung) if rung else None, Problem(M, N, K))
    used, config = choice.rung, choice.config
    peeled = database.fitted("sm_90").peeled_tiles
    variant = variants.variant_for(used, variants.dense_call(Problem(M, N, K)), config, peeled)
    text, grid, block, shared_bytes, args = launches[0]
    assert text == source.rung_spec(used, config, variant).text
    assert grid == (blocks(config, Problem(M, N, K)),)
    assert (block, shared_bytes) == (config.threads, config.shared_bytes)
    if split(config, K)[0] == 1:  # parts of K are added up in another order, by another kernel
        assert len(launches) == 1
        assert args[:11] == (M, N, K, np.float32(0.7), "A", K, "B", N, np.float32(-1.3), "C", N)
        if not has_several_chains(config.constants):
            same_bits(C, expected)


def test_the_database_is_asked_for_the_problem_that_the_kernel_gets(random, monkeypatch):
    asked = []
    picks = alternatives.Search.picks
    monkeypatch.setattr(
        alternatives.Search,
        "picks",
        lambda self, products: asked.extend(one.problem for one in products) or picks(self, products),
    )
    fastsgemm.sgemm(random(M, K), np.asfortranarray(random(K, N)))
    fastsgemm.sgemm(random(M, K), random(K, N), C=np.zeros((N, M), np.float32).T, rung=7)
    assert asked == [Problem(M, N, K, "NT"), Problem(N, M, K, "TT")]


def test_an_explicit_config(random, reference, launches):
    A, B = random(M, K), random(K, N)
    result = fastsgemm.sgemm(A, B, rung="naive", config=BlockConfig(16, 64))
    same_bits(result, reference(A, B))
    assert launches[0][1:3] == ((3 * 2,), 1024)
    with pytest.raises(ConfigError):
        fastsgemm.sgemm(A, B, rung="naive", config=BlockConfig(7, 9))


def test_another_device_has_its_own_constants_and_limits(random, launches, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_SIM_DEVICE", "NVIDIA RTX A6000")
    A = random(8, 8)
    fastsgemm.sgemm(A, A, rung="warptiled")
    config = choose_config(known_devices.find("sm_86"), rungs.find("warptiled"), Problem(8, 8, 8)).config
    assert launches[0][2:4] == (config.threads, config.shared_bytes)
    with pytest.raises(ConfigError, match="at most 101376 bytes"):
        fastsgemm.sgemm(A, A, rung="autotuned", config=VectorizedConfig(128, 128, 128, 4, 4))
    monkeypatch.setenv("FASTSGEMM_SIM_DEVICE", "sm_11")
    with pytest.raises(DeviceError, match="nothing is known of a device 'sm_11'"):
        fastsgemm.sgemm(A, A)


@pytest.mark.parametrize("how", [{"rung": "fp16x3"}, {"precision": "fp16x3", "config": Fp16x3Config(BN=16)}])
def test_rung_11_runs_too(random, how, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_SIM_DEVICE", "NVIDIA H200")
    A, B, C = random(20, 70), random(70, 30), random(20, 30)
    expected = 1.5 * (A.astype(float) @ B) - C
    fastsgemm.sgemm(A, B, 1.5, -1.0, C, **how)
    np.testing.assert_allclose(C, expected, rtol=1e-6, atol=2e-5)


def test_a_column_major_c_and_strides_of_every_kind(random, reference):
    A, B, old = random(M, K), random(K, N), random(M, N)
    spread = np.zeros((2 * M, 3 * K), np.float32)[::2, ::3]
    spread[...] = A
    for C in (np.asfortranarray(old), np.zeros((M, 2 * N), np.float32)[:, ::2]):
        C[...] = old
        fastsgemm.sgemm(spread, B, 1.0, 2.0, C, rung="warptiled")  # a sum is one chain
        same_bits(np.ascontiguousarray(C), reference(A, B, 1.0, 2.0, old))


def test_one_array_may_be_both_operands(random, reference):
    A = random(40, 40)
    same_bits(fastsgemm.sgemm(A, A, rung="warptiled"), reference(A, A))
    same_bits(fastsgemm.sgemm(A, A.T, rung="warptiled"), reference(A, A.T))


# Few columns: rung 10 computes the transposed product and writes C where it is

NARROW = SkinnyConfig(4, 32, 64, TN=4, TK=8, MIN_BLOCKS=1)


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(("rows", "columns"), [(45, 6), (6, 45), (40, 8)])
def test_a_narrow_result(launches, rows, columns, layout, parts):
    draw = np.random.default_rng(8)
    A, B, old = (
        draw.integers(-8, 9, shape).astype(np.float32) for shape in ((rows, 150), (150, columns), (rows, columns))
    )
    a, b = (np.asarray(x, order="CF"[letter == "T"]) for x, letter in zip((A, B), layout, strict=True))
    expected = 0.5 * (A @ B) - 2.0 * old
    for column_major in (False, True):
        lines = np.full((columns, rows + 5) if column_major else (rows, columns + 5), 7.0, np.float32)
        C = lines[:, :rows].T if column_major else lines[:, :columns]
        C[...] = old
        assert fastsgemm.sgemm(a, b, 0.5, -2.0, C, config=dataclasses.replace(NARROW, SPLIT_K=parts)) is C
        np.testing.assert_array_equal(C, expected)
        C[...] = np.nan
        fastsgemm.sgemm(a, b, C=C, config=dataclasses.replace(NARROW, SPLIT_K=parts))
        np.testing.assert_array_equal(C, A @ B)
        C[...] = 7.0
        assert (lines == 7.0).all()
    assert {launch[4][:2] for launch in launches if len(launch[4]) == 14} == {(min(rows, columns), max(rows, columns))}
    assert len(launches) == (4 if parts == 1 else 8)  # each sum is a launch of its own


class TestBlasRules:
    @pytest.mark.parametrize("rung", ["naive", "smem_tiled", "warptiled"])
    def test_as_on_a_device(self, random, rung):
        nan = np.full((5, 6), np.nan, np.float32)
        A, B = random(5, 4), random(4, 6)
        assert np.isfinite(fastsgemm.sgemm(A, B, 1.0, 0.0, nan.copy(), rung=rung)).all()
        assert (fastsgemm.sgemm(A, B, 0.0, 0.0, nan.copy(), rung=rung) == 0).all()
        C = random(5, 6)
        C[0, 0] = -0.0
        same_bits(fastsgemm.sgemm(nan[:, :4], nan[:4], 0.0, 3.0, C.copy(), rung=rung), 3 * C)
        same_bits(fastsgemm.sgemm(A[:, :0], B[:0], np.nan, 3.0, C.copy(), rung=rung), 3 * C)
        same_bits(fastsgemm.sgemm(A[:, :0], B[:0], rung=rung), np.zeros((5, 6), np.float32))

    def test_without_elements_nothing_is_launched(self, launches):
        for m, n in ((0, 4), (3, 0), (0, 0)):
            assert fastsgemm.sgemm(np.ones((m, 2), np.float32), np.ones((2, n), np.float32)).shape == (m, n)
        assert launches == []


class TestKinds:
    def test_torch_gives_torch_and_is_updated(self, random, reference, torch):
        A, B, old = random(3, 4), random(4, 5), random(3, 5)
        C = torch.from_numpy(old.copy())
        assert fastsgemm.sgemm(torch.from_numpy(A), torch.from_numpy(B), 2.0, 0.5, C) is C
        same_bits(C.numpy(), reference(A, B, 2.0, 0.5, old))
        assert isinstance(fastsgemm.sgemm(torch.from_numpy(A), B), torch.Tensor)

    def test_device_arrays_are_refused(self, device, on_device, random, monkeypatch):
        monkeypatch.delitem(fastsgemm.device.gpus, 0)
        monkeypatch.delitem(first_use.opened, 0)
        with pytest.raises(DeviceError, match=r"FASTSGEMM_DEVICE=sim .* needs cuda:0; unset the variable, or multiply"):
            fastsgemm.sgemm(on_device(random(3, 4)), on_device(random(4, 5)))
        with pytest.raises(DeviceMismatchError):
            fastsgemm.sgemm(random(3, 4), on_device(random(4, 5)))

    def test_streams_are_refused(self, random):
        with pytest.raises(StreamError):
            fastsgemm.sgemm(random(3, 4), random(4, 5), stream=object())


class TestErrors:
    def test_the_callers_mistakes(self, random):
        A, B = random(3, 4), random(4, 5)
        with pytest.raises(ShapeError):
            fastsgemm.sgemm(A, A)
        whole = random(4, 4)
        with pytest.raises(OverlapError, match="with A"):
            fastsgemm.sgemm(whole, B[:, :4], C=whole)

    def test_a_kernel_that_goes_wrong_is_an_error_and_leaves_c_alone(self, random, monkeypatch):
        kernel_texts.change(monkeypatch, lambda text: text.replace("m >= M", "m > M"))
        A, B, C = random(3, 4), random(4, 5), random(3, 5)
        before = C.copy()
        with pytest.raises(GlobalAccessError, match=r"thread \d+ of block 0 .* at 01_naive.cu:\d+") as caught:
            fastsgemm.sgemm(A, B, C=C, rung="naive")
        assert isinstance(caught.value, FastsgemmError)
        same_bits(C, before)


def test_it_is_imported_when_it_is_needed_and_brings_no_cuda_runtime():
    script = (
        "import os, sys; os.environ['FASTSGEMM_DEVICE'] = 'sim'\n"
        "import numpy as np, fastsgemm\n"
        "assert 'fastsgemm.sim' not in sys.modules\n"
        "print(fastsgemm.sgemm(np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)))\n"
        "assert not any(name.startswith(('cuda.core', 'torch')) for name in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout.split()) == (0, "", ["[[3.", "3.]", "[3.", "3.]]"])


@pytest.mark.parametrize(("K", "said"), [(1000, True), (999, False)])
def test_how_long_a_large_product_is_simulated_is_said_first(monkeypatch, capsys, K, said):
    shown = []
    monkeypatch.setattr(sim.gemm, "multiply", lambda *_: shown.append(capsys.readouterr().err))
    fastsgemm.sgemm(np.ones((1000, K), np.float32), np.ones((K, 1000), np.float32))
    message = "fastsgemm: simulating 1e+09 FMAs takes about 1.1 to 4.2 minutes; FASTSGEMM_DEVICE=host uses NumPy\n"
    assert shown == [message if said else ""]

"""Every rung on the simulated device: the bits of an exact chain of FMAs, whatever the layout.

Rung 10 shares K out and gets whole numbers instead, which every order of additions sums exactly.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import kernel_texts
import numpy as np
import pytest

from fastsgemm import resources, rungs
from fastsgemm.errors import ConfigError, OverlapError, ShapeError
from fastsgemm.geometry import variants
from fastsgemm.geometry.layout import LeadingDimension
from fastsgemm.geometry.matrix import Operand
from fastsgemm.heuristics import database
from fastsgemm.jit import source
from fastsgemm.measure.chains import has_several_chains
from fastsgemm.sim import Machine, nvrtc, sgemm
from fastsgemm.sim.errors import ForbiddenAccessError, RaceError, UnwrittenOutputError, UnwrittenSharedError

RUNGS = [rung.name for rung in rungs.IEEE]


def _problem(M, N, K, seed=0, whole=False):
    draw = np.random.default_rng(seed)
    shapes = (M, K), (K, N), (M, N)
    if whole:
        return tuple(draw.integers(-8, 9, shape).astype(np.float32) for shape in shapes)
    return tuple(draw.standard_normal(shape).astype(np.float32) for shape in shapes)


def _stored(x, layout):
    return np.asfortranarray(x) if layout == "T" else np.ascontiguousarray(x)


def _a_little_larger(config):
    """A problem that needs more than one block each way and whose every edge is ragged."""
    return config.BM + 5, config.BN + 3, getattr(config, "BK", 5) + 3


def _same_bits(found, expected):
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("name", RUNGS)
def test_ragged_problem_in_every_layout(name, layout, configs, reference):
    A, B, C = _problem(*_a_little_larger(configs[name]), whole=has_several_chains(configs[name].constants))
    alpha, beta = (1.0, 0.0) if layout in ("NN", "TT") else (0.7, -1.3)
    expected = reference(A, B, alpha, beta, C)
    found = C.copy()
    sgemm(rungs.find(name), configs[name], _stored(A, layout[0]), _stored(B, layout[1]), alpha, beta, found)
    _same_bits(found, expected)


@pytest.mark.sampled(every=5)  # of sixteen: the diagonal
@pytest.mark.parametrize("name", ["vectorized", "warptiled", "pipelined", "skinny"])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_vectors_and_columns(name, layout, configs, reference):
    """Extents that allow 128-bit access, and a column-major C, which swaps A and B."""
    A, B, C = _problem(136, 140, 12, whole=has_several_chains(configs[name].constants))
    expected = reference(A, B, 2.0, 0.5, C)
    for order in "NT":
        found = _stored(C.copy(), order)
        a, b = _stored(A, layout[0]), _stored(B, layout[1])
        _, report = sgemm(rungs.find(name), configs[name], a, b, 2.0, 0.5, found)
        _same_bits(np.ascontiguousarray(found), expected)
        assert report.total.stores["C"].bytes == 4 * C.size


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", RUNGS)
def test_padded_views(name, configs, reference):
    """What lies between the rows belongs to nobody and keeps its value."""
    M, N, K = 37, 42, 9
    A, B, C = _problem(M, N, K, whole=has_several_chains(configs[name].constants))
    wide = [np.full((x.shape[0] + 1, x.shape[1] + 7), 7.0, np.float32) for x in (A, B, C)]
    views = [w[1:, 3 : 3 + x.shape[1]] for w, x in zip(wide, (A, B, C), strict=True)]
    for view, x in zip(views, (A, B, C), strict=True):
        view[...] = x
    sgemm(rungs.find(name), configs[name], views[0], views[1], 1.0, 1.0, views[2])
    _same_bits(views[2].copy(), reference(A, B, 1.0, 1.0, C))
    wide[2][1:, 3 : 3 + N] = 7.0
    assert (wide[2] == 7.0).all()


def test_any_strides(configs, reference):
    A, B, C = _problem(20, 24, 6)
    spread = [np.zeros((2 * x.shape[0], 3 * x.shape[1]), np.float32)[::2, ::3] for x in (A, B, C)]
    for view, x in zip(spread, (A, B, C), strict=True):
        view[...] = x
    found, _ = sgemm(rungs.find("coalesced"), configs["coalesced"], *spread[:2], 1.0, 2.0, spread[2])
    assert found is spread[2]
    _same_bits(found.copy(), reference(A, B, 1.0, 2.0, C))


@pytest.mark.parametrize("name", ["naive", "smem_tiled", "warptiled", "pipelined", "skinny"])
def test_beta_zero_never_reads_c_and_alpha_zero_never_a_and_b(name, configs):
    A, B, C = _problem(33, 34, 5)
    nan = np.full_like(C, np.nan)
    found, report = sgemm(rungs.find(name), configs[name], A, B, 1.0, 0.0, nan)
    assert np.isfinite(found).all()
    assert report.total.loads["C"].requests == 0
    A[...], B[...] = np.nan, np.nan
    found, report = sgemm(rungs.find(name), configs[name], A, B, 0.0, 2.0, C.copy())
    _same_bits(found, 2.0 * C)
    assert set(report.total.loads) <= {"C"}
    found, _ = sgemm(rungs.find(name), configs[name], A[:, :0], B[:0], 1.0, 0.0)
    _same_bits(found, np.zeros_like(C))


def test_subnormals_nan_and_infinity(reference, configs):
    A = np.float32([[1e-30, np.inf, 1.0, 2.0**-100], [3e-39, 0.0, np.nan, 1.0]])
    B = np.float32([[1e-10, 2e-12], [1.0, 0.0], [1.0, 2.0], [2.0**-49, 1.0]])
    for rows, columns in (([0], [0, 2, 3]), ([0, 1], [0, 1, 2, 3])):
        a, b = A[np.ix_(rows, columns)], B[columns]
        found, _ = sgemm(rungs.find("warptiled"), configs["warptiled"], a, b)
        expected = reference(a, b)
        expected[np.isnan(expected)] = np.uint32(0x7FFFFFFF).view(np.float32)
        _same_bits(found, expected)


def _shipped():
    """Every distinct kernel of the tuning database, wherever it stands; parts of K are tested elsewhere."""
    found = {}

    def visit(node):
        if isinstance(node, dict) and "rung" in node and "constants" in node:
            config = rungs.find(node["rung"]).config.from_constants(node["constants"]).kernel
            found[f"{node['rung']} {config}"] = (node["rung"], config)
        for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            visit(child)

    for path in sorted(resources.folder("tuning_db").glob("*.json")):
        visit(json.loads(path.read_text(encoding="utf-8")))
    return found


class Ahead:
    """Compiles the shipped configs a few tests ahead, so that a second core has something to do."""

    def __init__(self, pool):
        self.jobs, self.running, self.pool = list(_shipped().values()), {}, pool

    def _compile(self, name, config):
        rung = rungs.find(name)
        call = variants.call_for(*(Operand(shape, LeadingDimension(False, shape[1])) for shape in _shapes(config)))
        text = source.rung_spec(
            rung,
            config,
            variants.variant_for(
                rung, variants.call_with_swap_ab(rung, call), config, database.fitted("sm_90").peeled_tiles
            ),
        ).text
        nvrtc.compile_source(text, Machine().device.arch)  # which keeps it

    def wait(self, name, config):
        first = self.jobs.index((name, config))
        for job in self.jobs[first : first + 8]:
            if job not in self.running:
                self.running[job] = self.pool.submit(self._compile, *job)
        self.running[name, config].result()


def _shapes(config):
    M, N, K = _a_little_larger(config)
    return (M, K), (K, N), (M, N)


@pytest.fixture(scope="module")
def ahead():
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # NVRTC compiles without the interpreter's lock
        yield Ahead(pool)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "config"), _shipped().values(), ids=_shipped())
def test_every_shipped_config(name, config, reference, ahead):
    M, N, K = _a_little_larger(config)
    A, B, _ = _problem(M, N, K, whole=has_several_chains(config.constants))
    ahead.wait(name, config)
    found, _ = sgemm(rungs.find(name), config, A, B)
    _same_bits(found, reference(A, B))


def test_nothing_to_do(configs):
    out, report = sgemm(rungs.find("naive"), configs["naive"], np.ones((0, 3), np.float32), np.ones((3, 4), np.float32))
    assert out.shape == (0, 4) and report is None


def test_the_callers_mistakes(configs):
    naive, config = rungs.find("naive"), configs["naive"]
    A, B, C = _problem(4, 5, 6)
    with pytest.raises(ShapeError):
        sgemm(naive, config, A, A)
    with pytest.raises(OverlapError):
        sgemm(naive, config, A, B, C=np.lib.stride_tricks.as_strided(C, (4, 5), (4, 4)))
    with pytest.raises(ConfigError):
        sgemm(naive, configs["warptiled"], A, B)


@pytest.mark.parametrize(
    "name",
    [
        name if name == "smem_tiled" else pytest.param(name, marks=pytest.mark.slow)
        for name in RUNGS[2:]
        if name != "pipelined"
    ],
)
def test_no_barrier_of_a_rung_can_be_left_out(name, configs, monkeypatch):
    """Every __syncthreads() is there for a reason that the simulated device sees. Rung 9's: test_pipelined.py."""
    A, B, _ = _problem(32, 32, 2 * configs[name].BK + 3)
    count = source.rung_spec(rungs.find(name), configs[name], variants.Variant()).text.count("__syncthreads();")
    assert count >= 3
    for left_out in range(count):

        def edit(text, left_out=left_out):
            parts = text.split("__syncthreads();")
            return "__syncthreads();".join(parts[: left_out + 1]) + "__syncthreads();".join(parts[left_out + 1 :])

        kernel_texts.change(monkeypatch, edit)
        with pytest.raises((RaceError, UnwrittenSharedError)):
            sgemm(rungs.find(name), configs[name], A, B)


@pytest.fixture
def broken(monkeypatch):
    """Return a function that replaces a piece of every source, which must be there."""

    def breaks(before, after):
        def edit(text):
            assert before in text
            return text.replace(before, after)

        kernel_texts.change(monkeypatch, edit)

    return breaks


def test_a_rung_that_reads_c_although_beta_is_zero(configs, broken):
    A, B, C = _problem(8, 8, 4)
    broken("beta == 0.0f ?", "false ?")
    for name in RUNGS[:2]:
        with pytest.raises(ForbiddenAccessError, match=r"thread 0 of block 0 reads 4 bytes at .*\(C \+ 0 bytes\)"):
            sgemm(rungs.find(name), configs[name], A, B, 1.0, 0.0, C)
        sgemm(rungs.find(name), configs[name], A, B, 1.0, 0.5, C)


def test_a_rung_that_reads_a_although_alpha_is_zero(configs, broken):
    A, B, C = _problem(8, 8, 4)
    broken("float acc = 0.0f;", "float acc = *A;")
    with pytest.raises(ForbiddenAccessError, match=r"reads 4 bytes at .*\(A \+ 0 bytes\), .* at 01_naive.cu:\d+"):
        sgemm(rungs.find("naive"), configs["naive"], A, B, 0.0, 1.0, C)


def test_a_rung_that_forgets_an_element(configs, broken):
    A, B, C = _problem(8, 8, 4)
    before = C.copy()
    broken("if (m >= M || n >= N) return;", "if (m >= M || n >= N || (m == 3 && n == 5)) return;")
    with pytest.raises(
        UnwrittenOutputError, match=r"1 of the 64 elements of C were never written, the first is \(3, 5\)"
    ):
        sgemm(rungs.find("naive"), configs["naive"], A, B, 1.0, 0.0, C)
    _same_bits(C, before)

"""Batches, vectors and `out`: on the host, on the Python device and on the simulated device, against float64."""

import itertools

import numpy as np
import pytest

from fastsgemm import BlockConfig, PipelinedConfig, SkinnyConfig, sgemm
from fastsgemm.errors import OverlapError

NAIVE = {"rung": "naive", "config": BlockConfig(32, 32)}

# Shapes of A and B before their last two dimensions.
BATCHES = [
    ((), ()),
    ((2,), (2,)),
    ((6,), ()),
    ((), (6,)),
    ((1,), (3,)),
    ((2, 1), (3,)),
    ((2, 1, 2), (1, 3, 1)),
    ((2, 3, 2), (2, 3, 2)),
    ((2, 1, 3, 1), (2, 1, 2)),
]


def lay(values, how):
    """Lay `values` out in memory as `how` says, between elements that are NaN."""
    *batch, rows, columns = values.shape
    if how == "row-major":
        return values.copy()
    if how == "column-major":
        return np.ascontiguousarray(values.swapaxes(-1, -2)).swapaxes(-1, -2)
    if how == "padded":
        found = np.full((*batch, rows + 1, columns + 3), np.nan, np.float32)[..., 1:, 1:-2]
    elif how == "strided":
        found = np.full((*batch, 2 * rows, 3 * columns), np.nan, np.float32)[..., ::2, ::3]
    elif how == "interleaved":  # the batch has the smallest strides but one
        found = np.moveaxis(np.full((rows, *batch, columns), np.nan, np.float32), 0, -2)
    elif how == "reversed batch":
        found = np.full(values.shape, np.nan, np.float32)[tuple([slice(None, None, -1)] * len(batch))]
    elif how == "one of two":
        found = np.full((*batch, 2, rows, columns), np.nan, np.float32)[..., 1, :, :]
    elif how == "transposed batch":
        found = np.full((*batch[::-1], rows, columns), np.nan, np.float32)
        found = found.transpose(*range(len(batch))[::-1], len(batch), len(batch) + 1)
    found[...] = values
    return found


LAYOUTS = [
    "row-major",
    "column-major",
    "padded",
    "strided",
    "interleaved",
    "reversed batch",
    "one of two",
    "transposed batch",
]


def caller(request, monkeypatch):
    """Return a function that calls `sgemm` on NumPy arrays, on the host, the Python device or the simulated one."""
    if request.param == "host":
        request.getfixturevalue("on_host")
        return sgemm
    if request.param == "sim":
        request.getfixturevalue("fresh_machine")
        monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
        return lambda *args, **options: sgemm(*args, **NAIVE, **options)
    request.getfixturevalue("device")
    on_device = request.getfixturevalue("on_device")

    def wrap(x):
        return on_device(x) if isinstance(x, np.ndarray) else x

    def run(*args, **options):
        result = sgemm(*map(wrap, args), **{name: wrap(x) for name, x in options.items()}, **NAIVE)
        return result.values

    return run


@pytest.fixture(params=["host", "device", "sim"])
def call(request, monkeypatch):
    return caller(request, monkeypatch)


@pytest.fixture(params=["host", "device"])
def quick_call(request, monkeypatch):
    return caller(request, monkeypatch)


def expected(A, B, alpha=1.0, beta=0.0, C=None):
    product = alpha * np.matmul(A.astype(np.float64), B.astype(np.float64))
    return product if not beta else product + beta * C.astype(np.float64)


def close(found, wanted):
    assert found.dtype == np.float32 and found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("of_a", "of_b"), BATCHES, ids=str)
def test_operands_broadcast_as_in_numpy_matmul(call, random, of_a, of_b):
    A, B = random(*of_a, 3, 4), random(*of_b, 4, 5)
    close(call(A, B), expected(A, B))


@pytest.mark.parametrize(("of_a", "of_b"), BATCHES, ids=str)
def test_vectors_lose_their_dimension_as_in_numpy_matmul(call, random, of_a, of_b):
    x, y = random(4), random(8)[::2]
    A, B = random(*of_a, 3, 4), random(*of_b, 4, 5)
    close(call(A, y), expected(A, y))
    close(call(x, B), expected(x, B))
    close(np.asarray(call(x, y)), np.asarray(expected(x, y)))
    for a, b in ((A, y), (x, B), (x, y)):
        C = random(*np.matmul(a, b).shape)
        wanted = expected(a, b, 1.5, -0.5, C)
        call(a, b, 1.5, -0.5, C)
        close(C, wanted)


def test_every_layout_of_every_operand(quick_call, random):
    layouts = itertools.product(LAYOUTS, repeat=3)
    a, b, c = random(2, 3, 3, 4), random(2, 3, 4, 5), random(2, 3, 3, 5)
    for how_a, how_b, how_c in layouts:
        A, B, C = lay(a, how_a), lay(b, how_b), lay(c, how_c)
        quick_call(A, B, 1.5, -0.5, C)
        np.testing.assert_allclose(C, expected(a, b, 1.5, -0.5, c), rtol=1e-5, atol=1e-5, err_msg=f"{how_a, how_b}")
        C[...] = np.nan
        whole = C
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        assert np.isnan(whole).all(), how_c  # nothing beside C was written


@pytest.mark.parametrize("how", LAYOUTS)
def test_every_layout_on_the_simulated_device(fresh_machine, monkeypatch, random, how):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
    a, b, c = random(2, 3, 3, 4), random(2, 1, 4, 5), random(2, 3, 3, 5)
    A, B, C = lay(a, how), np.broadcast_to(lay(b, how), (2, 3, 4, 5)), lay(c, how)
    sgemm(A, B, 1.5, -0.5, C, **NAIVE)
    close(C.copy(), expected(a, b, 1.5, -0.5, c))


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)], ids=str)
def test_nothing_to_do(call, random, shape):
    A, B = random(*shape), random(shape[0], shape[2], 5)
    close(call(A, B), expected(A, B))
    C = np.full((*shape[:2], 5), np.nan, np.float32)
    call(A, B, 1.0, 0.0, C)
    assert (C == 0).all()
    C[...] = 2
    call(A, B, 1.0, 3.0, C)
    assert (C == 6).all()


def test_nan_in_c_does_not_spread_without_beta_and_nan_in_a_not_without_alpha(call, random):
    A, B = random(2, 3, 4), random(4, 5)
    nan = np.full((2, 3, 5), np.nan, np.float32)
    call(A, B, 1.0, 0.0, nan)
    close(nan, expected(A, B))
    C = random(2, 3, 5)
    wanted = 2 * C.astype(np.float64)
    call(np.full_like(A, np.nan), B, 0.0, 2.0, C)
    close(C, wanted)


class TestOut:
    @pytest.mark.parametrize("of_c", [(3, 5), (5,), (1, 5), (3, 1), (1, 1), ()], ids=str)
    def test_c_is_read_and_out_is_written(self, call, random, of_c):
        A, B, C, out = random(3, 4), random(4, 5), random(*of_c), np.full((3, 5), np.nan, np.float32)
        old = C.copy()
        call(A, B, 1.5, -0.5, C, out=out)
        close(out, expected(A, B, 1.5, -0.5, old))
        np.testing.assert_array_equal(C, old)

    @pytest.mark.parametrize("of_c", [(2, 3, 5), (5,), (2, 1, 5), (1, 3, 1), (2, 1, 1)], ids=str)
    @pytest.mark.parametrize("how", ["row-major", "column-major", "strided", "reversed batch"])
    def test_in_a_batch(self, call, random, of_c, how):
        A, B, C, out = random(2, 3, 4), random(2, 4, 5), random(*of_c), lay(random(2, 3, 5), how)
        call(A, B, 1.5, -0.5, C, out=out)
        close(out.copy(), expected(A, B, 1.5, -0.5, C))

    def test_without_c_it_is_only_written(self, call, random):
        A, B, out = random(3, 4), random(4, 5), np.full((3, 5), np.nan, np.float32)
        call(A, B, out=out)
        close(out, expected(A, B))

    def test_may_be_c_itself(self, call, random):
        A, B, C = random(3, 4), random(4, 5), random(3, 5)
        wanted = expected(A, B, 1.0, 2.0, C)
        call(A, B, 1.0, 2.0, C, out=C)
        close(C, wanted)
        view = C[:]
        wanted = expected(A, B, 1.0, 2.0, C)
        call(A, B, 1.0, 2.0, C, out=view)
        close(C, wanted)

    def test_may_be_c_with_another_stride_along_an_extent_of_1(self, call, random):
        A, B, C = random(1, 4), random(4, 5), random(1, 5)
        wanted = expected(A, B, 1.0, 2.0, C)
        call(A, B, 1.0, 2.0, np.lib.stride_tricks.as_strided(C, (1, 5), (400, 4)), out=C)
        close(C, wanted)

    def test_may_not_overlap_anything_else(self, call, random):
        A, B, buffer = random(3, 4), random(4, 5), random(8, 5)
        before = buffer.copy()
        with pytest.raises(OverlapError, match="out shares memory with C"):
            call(A, B, 1.0, 1.0, buffer[1:4], out=buffer[:3])
        with pytest.raises(OverlapError, match="out shares memory with C"):
            call(A, B, 1.0, 1.0, buffer[0], out=buffer[:3])
        with pytest.raises(OverlapError, match="out shares memory with B"):
            call(A, buffer[:4], out=buffer[2:5])
        with pytest.raises(OverlapError, match="elements of out share memory"):
            call(A, B, out=np.lib.stride_tricks.as_strided(buffer, (3, 5), (0, 4)))
        np.testing.assert_array_equal(buffer, before)


def test_a_batch_that_overlaps_itself_is_refused_exactly(call, random):
    A, B, buffer = random(2, 3, 4), random(4, 5), random(100)

    def at(*strides):
        return np.lib.stride_tricks.as_strided(buffer, (2, 3, 5), [4 * each for each in strides])

    for strides in ((1, 10, 2), (15, 5, 1), (5, 20, 1), (50, 1, 3), (31, 6, 1)):
        call(A, B, C=at(*strides))
    for strides in ((14, 5, 1), (0, 5, 1), (4, 20, 1), (10, 5, 2), (4, 10, 2)):
        with pytest.raises(OverlapError, match="elements of C share memory"):
            call(A, B, C=at(*strides))


# What reads C itself where `out` is written, and how many kernels a call launches.
OUT_OF_PLACE = {
    "naive": (BlockConfig(32, 32), 2),  # which has C copied first
    "pipelined": (PipelinedConfig(64, 32, 8, 4, 4, 32, 32, 2), 1),
    "pipelined, split-K": (PipelinedConfig(64, 32, 8, 4, 4, 32, 32, 2, SPLIT_K=3), 2),
    "skinny": (SkinnyConfig(BM=4, BN=32, BK=64, TN=4, TK=8), 1),
    "skinny, split-K": (SkinnyConfig(BM=4, BN=32, BK=64, TN=4, TK=8, SPLIT_K=2), 2),
    "pipelined, in one order": (PipelinedConfig(64, 32, 8, 4, 4, 32, 32, 2), 1),
}


class TestLaunches:
    """What reaches the device."""

    def test_a_batch_is_one_launch(self, device, on_device, random):
        A, B = random(7, 3, 4), random(7, 4, 5)
        result = sgemm(on_device(A), on_device(B), **NAIVE)
        close(result.values, expected(A, B))
        ((_, arguments),) = device.launched
        batch = arguments[-1]
        assert (batch.count, batch.a[2], batch.b[2], batch.c[2]) == (7, 12, 20, 15) and not device.made

    def test_a_batch_that_shares_b_is_one_product_of_more_rows(self, device, on_device, random):
        A, B = random(2, 7, 3, 4), random(4, 5)
        close(sgemm(on_device(A), on_device(B), **NAIVE).values, expected(A, B))
        ((_, arguments),) = device.launched
        assert arguments[:3] == (42, 5, 4) and arguments[-1].count == 1

    def test_a_shared_matrix_is_read_where_it_is(self, device, on_device, random):
        A, B = random(3, 4), random(6, 4, 5)
        close(sgemm(on_device(A), on_device(B), **NAIVE).values, expected(A, B))
        ((_, arguments),) = device.launched
        assert arguments[-1].a == [0, 0, 0] and arguments[-1].count == 6

    def test_a_shared_matrix_is_packed_once(self, device, on_device, random):
        A, B = lay(random(3, 4), "strided"), random(6, 4, 5)
        close(sgemm(on_device(A), on_device(B), **NAIVE).values, expected(A, B))
        (workspace,) = device.made
        assert workspace.size == 256 and len(device.launched) == 2

    def test_more_dimensions_than_a_launch_has(self, device, on_device, random):
        A = np.full((4, 4, 4, 4, 4, 3, 4), np.nan, np.float32)[::2, ::2, ::2, ::2, ::2]
        A[...] = random(2, 2, 2, 2, 2, 3, 4)
        B = random(2, 2, 2, 2, 2, 4, 5)
        close(sgemm(on_device(A), on_device(B), **NAIVE).values, expected(A, B))
        assert len(device.launched) == 4

    @pytest.mark.parametrize("count", [65535, 65536, 70000, 131071])
    def test_more_products_than_a_grid_has_blocks_along_y(self, device, on_device, count):
        A = np.arange(count, dtype=np.float32).reshape(count, 1, 1) % 1000
        B = np.lib.stride_tricks.as_strided(np.ones(2 * count, np.float32), (count, 1, 1), (8, 4, 4))
        grids = []
        launch = device.launch

        def counted(config, kernel, *rest):
            grids.append(config.grid)
            return (0,)

        device.launch = counted
        sgemm(on_device(A), on_device(B), **NAIVE)
        device.launch = launch
        ((x, y, z),) = grids
        assert x == 1 and max(y, z) <= 65535 and count <= y * z < count + z

    def test_split_k_in_a_batch(self, device, on_device, random):
        A, B, C = random(3, 5, 70), random(3, 70, 6), random(3, 5, 6)
        wanted = expected(A, B, 1.5, -0.5, C)
        config = PipelinedConfig(BM=64, BN=32, BK=8, WM=32, WN=32, WNITER=2, TM=4, TN=4, SPLIT_K=3)
        sgemm(on_device(A), on_device(B), 1.5, -0.5, on_device(C), config=config)
        close(C, wanted)
        assert device.made[0].size == -(-4 * 3 * 3 * 30 // 256) * 256 and len(device.launched) == 2

    @pytest.mark.parametrize("of_c", [(5,), (3, 1), (3, 5)], ids=str)
    @pytest.mark.parametrize("rung", OUT_OF_PLACE)
    def test_c_is_read_by_the_kernel_that_writes_out(self, device, on_device, random, rung, of_c):
        config, launches = OUT_OF_PLACE[rung]
        A, B, C = random(3, 70), random(70, 5), random(*of_c)
        for how, more in (("row-major", 0), ("column-major", 0), ("strided", 1)):  # that is scattered afterwards
            out = lay(np.full((3, 5), np.nan, np.float32), how)
            device.launched.clear()
            how_computed = {"rung": rung.split(",")[0], "config": config, "batch_invariant": "order" in rung}
            sgemm(*map(on_device, (A, B)), 1.5, -0.5, on_device(C), out=on_device(out), **how_computed)
            close(out.copy(), expected(A, B, 1.5, -0.5, C))
            assert len(device.launched) == launches + more

    def test_a_source_in_a_batch_of_more_dimensions_than_a_launch_has(self, device, on_device, random):
        A = np.full((4, 4, 4, 4, 4, 3, 4), np.nan, np.float32)[::2, ::2, ::2, ::2, ::2]
        A[...] = random(2, 2, 2, 2, 2, 3, 4)
        B, C, out = random(2, 2, 2, 2, 2, 4, 5), random(2, 2, 1, 2, 1, 3, 1), np.empty((2, 2, 2, 2, 2, 3, 5), "f")
        config, _ = OUT_OF_PLACE["pipelined"]
        for _ in range(2):
            out[...] = np.nan
            sgemm(*map(on_device, (A, B)), 1.5, -0.5, on_device(C), out=on_device(out), config=config)
            close(out, expected(A, B, 1.5, -0.5, C))
        assert len(device.launched) == 2 * 4 and not device.made

    def test_a_source_at_another_address_and_one_that_is_aligned_otherwise(self, device, on_device, random):
        A, B, memory, out = random(3, 4), random(4, 8), random(40), np.empty((3, 8), "f")
        config, _ = OUT_OF_PLACE["pipelined"]
        first = -memory.ctypes.data % 16 // 4
        for begin, plans in ((first, 1), (first + 8, 1), (first + 1, 2), (first, 2)):
            C = memory[begin : begin + 8]
            sgemm(*map(on_device, (A, B)), 1.0, 2.0, on_device(C), out=on_device(out), config=config)
            close(out, expected(A, B, 1.0, 2.0, C))
            assert len(device.prepared) == plans

    def test_a_known_call_looks_its_plan_up(self, device, on_device, random):
        A, B, C, bias = random(2, 3, 4), random(2, 4, 5), random(2, 3, 5), random(5)
        for _ in range(3):
            sgemm(*map(on_device, (A, B)), 1.0, 1.0, on_device(bias), out=on_device(C), **NAIVE)
        assert len(device.prepared) == 1


SIMULATED = {
    "naive": BlockConfig(8, 8),
    "coalesced": BlockConfig(8, 8),
    "pipelined": PipelinedConfig(BM=64, BN=32, BK=8, WM=32, WN=32, WNITER=2, TM=4, TN=4, SPLIT_K=2),
    "skinny": SkinnyConfig(BM=4, BN=32, BK=64, TN=4, TK=8, SPLIT_K=2),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("rung", SIMULATED)
@pytest.mark.parametrize("transposed", [False, True])
def test_batched_kernels_compute_every_product(fresh_machine, monkeypatch, random, rung, transposed):
    """The real kernels, every product as if it were alone, bit by bit."""
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
    A, B, C = random(2, 1, 5, 68), random(3, 68, 36), random(2, 3, 5, 36)  # K is two parts
    if transposed:
        A, B = lay(A, "column-major"), lay(B, "column-major")
    how = {"rung": rung, "config": SIMULATED[rung]}
    found = C.copy()
    sgemm(A, B, 1.5, -0.5, found, **how)
    for i, j in np.ndindex(2, 3):
        alone = C[i, j].copy()
        sgemm(A[i, 0], B[j], 1.5, -0.5, alone, **how)
        np.testing.assert_array_equal(found[i, j], alone)

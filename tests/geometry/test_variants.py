"""Plans, carried out by a kernel of a few lines of Python that sees flat memory and the kernel's arguments only."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastsgemm.config import BlockConfig, PipelinedConfig, SharedTileConfig, SkinnyConfig, SkinnyInOrderConfig
from fastsgemm.errors import ShapeError
from fastsgemm.geometry import grid, variants
from fastsgemm.geometry.layout import LeadingDimension
from fastsgemm.geometry.matrix import Address, Base, Matrix, Operand
from fastsgemm.problem import LAYOUTS, Problem
from fastsgemm.rungs import IEEE, SKINNY_IN_ORDER, find


def tiled(BM, BN, BK, parts=1):
    """A config of rung 9 with one warp tile and these parts of K."""
    return PipelinedConfig(BM, BN, BK, TM=1, TN=1, WM=BM, WN=BN, WNITER=1, SPLIT_K=parts)


def kernel(memory, call, a, b, c):
    """C = A B as every rung computes it: A, B and, on rung 10, C by their leading dimension and transposition."""
    for m in range(call.problem.M):
        for n in range(call.problem.N):
            total = 0
            for k in range(call.problem.K):
                at = k * call.lda + m if call.variant.trans_a else m * call.lda + k
                bt = n * call.ldb + k if call.variant.trans_b else k * call.ldb + n
                total += memory[a + at] * memory[b + bt]
            memory[c + (n * call.ldc + m if call.variant.trans_c else m * call.ldc + n)] = total


@st.composite
def stored_matrices(draw, rows, columns, written=False):
    """A layout: row- or column-major, padded, walked backwards or, unless it is written, with stride 0."""
    trans = draw(st.booleans())
    lines, length = (columns, rows) if trans else (rows, columns)
    pitch = length + draw(st.integers(0, 3))
    ld = draw(st.sampled_from([pitch, -pitch] if written else [pitch, -pitch, 0]))
    low = min(0, ld * (lines - 1)) if lines else 0
    size = abs(ld) * max(lines - 1, 0) + length + 3
    return LeadingDimension(trans, ld), -low, size


@st.composite
def problems(draw):
    M, N, K = (draw(st.integers(1, 5)) for _ in range(3))
    a, b = draw(stored_matrices(M, K)), draw(stored_matrices(K, N))
    return (M, N, K), a, b, draw(stored_matrices(M, N, written=True)), draw(st.integers(0, 2**32 - 1))


def view(memory, shape, how, first):
    """The matrix as NumPy sees it: an independent statement of what `LeadingDimension` means."""
    strides = (1, how.ld) if how.trans else (how.ld, 1)
    return np.lib.stride_tricks.as_strided(memory[first:], shape, [8 * stride for stride in strides])


@pytest.mark.parametrize("rung", [find("naive"), find("skinny")], ids=str)
@given(problem=problems())
def test_the_planned_call_writes_the_product_and_nothing_else(rung, problem):
    (M, N, K), *matrices, seed = problem
    firsts, size = [], 0
    for _, offset, extent in matrices:
        firsts.append(size + offset)
        size += extent
    memory = np.random.default_rng(seed).integers(-9, 10, size)
    a, b, c = (matrix[0] for matrix in matrices)
    expected = memory.copy()
    product = view(memory, (M, K), a, firsts[0]) @ view(memory, (K, N), b, firsts[1])
    view(expected, (M, N), c, firsts[2])[...] = product

    planned = variants.call_for(Operand((M, K), a), Operand((K, N), b), Operand((M, N), c))
    call = variants.call_with_swap_ab(rung, planned)
    order = (1, 0) if call.swap_ab else (0, 1)
    kernel(memory, call, firsts[order[0]], firsts[order[1]], firsts[2])
    np.testing.assert_array_equal(memory, expected)
    assert call.problem.layout == call.variant.layout
    assert call.problem == variants.with_swap_ab(rung, planned.problem)
    assert not rung.narrow or call.problem.M <= call.problem.N
    assert call is planned or call.variant.trans_c


@pytest.mark.parametrize(
    ("layouts", "swap_ab", "expected"),
    [("RRR", False, "NN"), ("RCR", False, "NT"), ("CRR", False, "TN"), ("CCR", False, "TT"),
     ("CCC", True, "NN"), ("RCC", True, "NT"), ("CRC", True, "TN"), ("RRC", True, "TT")],
)  # fmt: skip
def test_a_column_major_c_swaps_and_transposes_the_operands(layouts, swap_ab, expected):
    a, b, c = (
        Operand(shape, LeadingDimension(how == "C", 100))
        for shape, how in zip([(3, 5), (5, 7), (3, 7)], layouts, strict=True)
    )
    call = variants.call_for(a, b, c)
    assert call.swap_ab is swap_ab
    extents = (call.problem.M, call.problem.N, call.problem.K)
    assert extents == ((7, 3, 5) if swap_ab else (3, 7, 5))
    assert call.variant.layout == expected


def test_vector_widths_are_those_of_the_kernels_operands():
    aligned, odd = Operand((8, 8), LeadingDimension(False, 8)), Operand((8, 8), LeadingDimension(False, 9))
    straight = variants.call_for(odd, aligned, aligned).variant
    assert (straight.vec_a, straight.vec_b, straight.vec_c) == (1, 4, 4)
    swap_ab = variants.call_for(odd, aligned, aligned.transposed).variant
    assert (swap_ab.vec_a, swap_ab.vec_b, swap_ab.vec_c) == (4, 1, 4)


def test_pairs_are_for_rung_9_and_for_what_it_reads():
    pairs = Operand((66, 66), LeadingDimension(False, 66))
    call = variants.call_for(pairs, pairs, pairs)
    assert pairs.width == 2
    for rung in IEEE:
        variant = variants.variant_for(rung, call, tiled(8, 8, 8), 16)
        width = 2 if rung.name == "pipelined" else 1
        assert (variant.vec_a, variant.vec_b, variant.vec_c) == (width, width, 1)


def test_a_misaligned_address_is_read_float_by_float():
    assert Operand((8, 8), LeadingDimension(False, 8), misalignment=8).width == 2
    assert Operand((8, 8), LeadingDimension(False, 8), misalignment=4).width == 1
    assert Operand((8, 8), LeadingDimension(False, 8), misalignment=4).transposed.width == 1


@pytest.mark.parametrize("rung", IEEE, ids=str)
def test_rungs_that_do_not_vectorise_have_one_kernel_for_all_alignments(rung):
    aligned = Operand((8, 8), LeadingDimension(True, 8))
    variant = variants.variant_for(
        rung, variants.call_for(aligned, aligned, aligned.transposed), SharedTileConfig(8, 8, 8), 16
    )
    assert not variant.guard
    assert variant.layout == "TT"
    assert (variant.vec_a, variant.vec_b, variant.vec_c) == ((4, 4, 4) if rung.vectorized else (1, 1, 1))


@pytest.mark.parametrize("beta", [0.0, -2.0])
@pytest.mark.parametrize(("K", "alpha"), [(0, 1.5), (7, 0.0), (7, -0.0), (0, np.nan), (0, 0.0)])
def test_no_steps_where_a_and_b_are_not_read_and_nothing_is_added_to_beta_c(K, alpha, beta):
    steps, factor = grid.steps(np.int32(K), np.float32(alpha), np.float32(beta))
    assert steps == 0 and type(steps) is np.int32 and type(factor) is np.float32
    accumulated = factor * np.float32(0.0)  # an epilogue's alpha * acc
    for c in (0.0, -0.0, 3.0):
        scaled = np.float32(beta) * np.float32(c)
        if beta:
            assert (accumulated + scaled).tobytes() == scaled.tobytes()
        else:
            assert accumulated.tobytes() == np.float32(0.0).tobytes()


@pytest.mark.parametrize("alpha", [1.0, -3.0, np.inf, np.nan])
def test_every_step_is_done_where_there_is_something_to_add(alpha):
    K, factor = np.int32(5), np.float32(alpha)
    assert grid.steps(K, factor, np.float32(0.0)) == (K, factor) or np.isnan(alpha)
    assert grid.steps(K, factor, np.float32(2.0))[0] == 5


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 9), st.integers(1, 9))
def test_there_is_one_block_for_every_tile_that_holds_an_element(M, N, BM, BN):
    tiles = {(m // BM, n // BN) for m in range(M) for n in range(N)}
    assert grid.blocks(BlockConfig(BM, BN), Problem(M, N, 1)) == len(tiles)


def test_a_grid_beyond_the_hardware_limit_is_refused_with_limit_and_value():
    largest = Problem(2**31 - 1, 1, 1)
    assert grid.blocks(BlockConfig(1, 1), largest) == grid.MAX_BLOCKS
    with pytest.raises(ShapeError, match=rf"{2 * (2**31 - 1)} blocks .* limit of a grid is {2**31 - 1}"):
        grid.blocks(BlockConfig(1, 1), Problem(2**31 - 1, 2, 1))


@given(st.integers(0, 5000), st.sampled_from([4, 8, 16, 32]), st.integers(1, 3000))
def test_parts_of_k_are_whole_tiles_and_cover_it_once(K, BK, parts):
    count, chunk = grid.split(tiled(8, 8, BK, parts), K)
    assert 1 <= count <= parts and chunk % BK == 0
    steps = [k for part in range(count) for k in range(part * chunk, min(K, (part + 1) * chunk))]
    assert steps == list(range(K))
    assert (count - 1) * chunk < K or count == 1  # no part is empty
    fewer = grid.split(tiled(8, 8, BK, count), K)
    assert fewer == (count, chunk)  # what a config asks for in vain makes no difference


def test_a_config_without_split_k_has_k_in_one_part():
    assert grid.split(BlockConfig(8, 8), 100) == (1, 100)
    assert grid.split(SharedTileConfig(8, 8, 16), 100) == grid.split(tiled(8, 8, 16), 100) == (1, 112)


def test_every_part_has_blocks_of_its_own():
    problem = Problem(33, 65, 100)
    assert grid.blocks(tiled(32, 32, 8, 3), problem) == 2 * 3 * 3
    assert grid.blocks(tiled(32, 32, 8, 1000), problem) == 2 * 3 * 13
    with pytest.raises(ShapeError, match="limit of a grid"):
        grid.blocks(tiled(1, 1, 1, 2), Problem(2**30, 1, 2**30))


def dense_call(M, N, K, ldc=None):
    shapes = ((M, K), K), ((K, N), N), ((M, N), ldc or N)
    return variants.call_for(*(Operand(shape, LeadingDimension(False, ld)) for shape, ld in shapes))


@pytest.mark.parametrize(("M", "N", "guard"), [(32, 64, False), (31, 64, True), (32, 63, True), (1, 1, True)])
def test_a_kernel_is_guarded_where_c_is_smaller_than_its_tile(M, N, guard):
    for rung in IEEE:
        variant = variants.variant_for(rung, dense_call(M, N, 64), tiled(32, 64, 8, 1), 16)
        assert variant.guard is (guard and rung.guarded)


@pytest.mark.parametrize(
    ("K", "parts", "peel"),
    [
        *(
            (7, 1, False),
            (8, 1, False),
            (9, 1, True),
            (16 * 8 + 7, 1, True),
            (16 * 8, 1, False),
            (17 * 8 + 1, 1, False),
        ),
        # parts of 17 tiles; of 16; the last part ends in less than a tile, is less than one, ends with one
        *((66 * 8 + 1, 4, False), (63 * 8 + 1, 4, True), (60 * 8 + 1, 5, True), (12 * 8 + 1, 4, False)),
        (63 * 8, 4, False),
    ],
)
def test_the_end_of_k_comes_first_after_a_tile_and_before_many(K, parts, peel):
    for rung in IEEE:
        variant = variants.variant_for(rung, dense_call(64, 64, K), tiled(32, 32, 8, parts), 16)
        assert variant.peel is (peel and rung.guarded)


def test_parts_are_stored_as_workspace_allows_and_not_as_c_does():
    rung, whole, divided = IEEE[8], tiled(32, 32, 8, 1), tiled(32, 32, 8, 4)
    unaligned = dense_call(64, 64, 64, ldc=65)
    assert variants.variant_for(rung, unaligned, whole, 16).vec_c == 1
    assert variants.variant_for(rung, unaligned, divided, 16).vec_c == 4
    assert variants.variant_for(rung, dense_call(64, 66, 64, ldc=68), divided, 16).vec_c == 1
    assert variants.variant_for(rung, dense_call(64, 64, 8, ldc=65), divided, 16).vec_c == 1  # K is a tile: one part


def source_of(M, N, strides, misalignment=0):
    return Matrix(Address(Base.SOURCE), (M, N), strides, misalignment)


@pytest.mark.parametrize("rung", [find("pipelined"), find("skinny")], ids=str)
@pytest.mark.parametrize(
    ("M", "N", "trans_c", "strides", "width"),
    [(64, 8, False, (0, 1), 4), (64, 8, False, (1, 0), 1), (8, 64, True, (1, 0), 4), (8, 64, True, (0, 1), 1)],
)
def test_a_source_goes_with_c_through_every_swap(rung, M, N, trans_c, strides, width):
    """It is read in vectors along the lines of C in memory."""
    a, b = Operand((M, 16), LeadingDimension(False, 16)), Operand((16, N), LeadingDimension(False, N))
    c, source = Operand((M, N), LeadingDimension(trans_c, M if trans_c else N)), source_of(M, N, strides)
    call = variants.call_with_swap_ab(rung, variants.call_for(a, b, c, source=source))
    assert call.source == (source.transposed if call.swap_ab else source)
    whole, divided = tiled(8, 8, 8, 1), tiled(8, 8, 8, 2)
    assert variants.variant_for(rung, call, whole, 16).source == width
    assert variants.variant_for(rung, call, divided, 16).source == 0  # what adds the parts up reads it


def test_a_source_is_read_no_wider_than_c_is_stored():
    c = Operand((64, 64), LeadingDimension(False, 65))
    a, b = Operand((64, 8), LeadingDimension(False, 8)), Operand((8, 64), LeadingDimension(False, 64))
    call = variants.call_for(a, b, c, source=source_of(64, 64, (0, 1)))
    assert variants.variant_for(find("pipelined"), call, tiled(8, 8, 8), 16).source == 1


def test_a_rung_that_stores_single_elements_has_one_kernel_for_every_alignment_of_c():
    config = SkinnyInOrderConfig(BM=1, BN=16, BK=16, WARPS=1, STAGES=2)
    a, b = Operand((1, 2048), LeadingDimension(False, 2048)), Operand((2048, 64), LeadingDimension(False, 64))
    found = {
        variants.variant_for(
            SKINNY_IN_ORDER,
            variants.call_for(a, b, Operand((1, 64), LeadingDimension(False, 64), at), source=source),
            config,
            16,
        )
        for at in (0, 4)
        for source in (source_of(1, 64, (0, 1)), source_of(1, 64, (0, 1), misalignment=4))
    }
    assert len(found) == 1


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_the_transposed_product_of_the_transposed_is_the_product(layout):
    problem = Problem(3, 5, 7, layout)
    swapped = problem.transposed
    assert (swapped.M, swapped.N, swapped.K) == (5, 3, 7) and swapped.transposed == problem


def test_only_rung_10_swaps_a_and_b_for_few_columns():
    tall, wide = dense_call(64, 8, 16), dense_call(8, 64, 16)
    for rung in IEEE:
        assert (
            variants.call_with_swap_ab(rung, wide) is wide and variants.with_swap_ab(rung, wide.problem) is wide.problem
        )
        swapped = variants.call_with_swap_ab(rung, tall)
        assert (swapped is not tall) == swapped.variant.trans_c == rung.narrow
        assert variants.with_swap_ab(rung, tall.problem) == swapped.problem
    square = dense_call(8, 8, 16)
    assert variants.call_with_swap_ab(find("skinny"), square) is square


def test_a_call_with_swap_ab_takes_each_operand_with_its_own_width_and_place():
    odd, aligned = Operand((64, 16), LeadingDimension(False, 17)), Operand((16, 8), LeadingDimension(False, 8))
    call = variants.call_for(odd, aligned, Operand((64, 8), LeadingDimension(False, 12)))
    swapped = variants.call_with_swap_ab(find("skinny"), call)
    assert (call.swap_ab, swapped.swap_ab) == (False, True)
    assert (swapped.lda, swapped.ldb, swapped.ldc) == (8, 17, 12)
    v = swapped.variant
    assert (v.vec_a, v.vec_b, v.vec_c, v.layout) == (4, 1, 4, "TT")


def test_parts_with_swap_ab_are_row_major():
    """It is their sum that is written where C is."""
    rung, whole, divided = (
        find("skinny"),
        SkinnyConfig(4, 32, 8, TN=4, TK=8, SPLIT_K=1),
        SkinnyConfig(4, 32, 8, TN=4, TK=8, SPLIT_K=4),
    )
    call = variants.call_with_swap_ab(rung, dense_call(64, 6, 64))
    assert variants.variant_for(rung, call, whole, 16).trans_c
    variant = variants.variant_for(rung, call, divided, 16)
    assert not variant.trans_c and variant.vec_c == 4  # rows of 64
    call = variants.call_with_swap_ab(rung, dense_call(66, 8, 64))
    assert (variants.variant_for(rung, call, whole, 16).vec_c, variants.variant_for(rung, call, divided, 16).vec_c) == (
        4,
        1,
    )


SMALL = st.integers(1, 9)
DENSE = st.builds(Problem, SMALL, SMALL, SMALL, st.sampled_from(LAYOUTS), st.integers(1, 3))


@given(DENSE)
def test_dense_operands_lie_as_arrays_of_numpy(problem):
    batch = (problem.batch,) if problem.batch > 1 else ()
    for array, extents, letter in zip(variants.dense(problem), ("MK", "KN", "MN"), (*problem.layout, "N"), strict=True):
        rows, columns = (getattr(problem, name) for name in extents)
        x = (
            np.empty((*batch, columns, rows), np.int8).swapaxes(-1, -2)
            if letter == "T"
            else np.empty((*batch, rows, columns), np.int8)
        )
        assert (array.shape, array.strides) == (x.shape, x.strides)


@given(DENSE)
def test_a_dense_call_is_looked_up_as_the_problem_that_it_computes(problem):
    """A batch keeps its size, and what a call is looked up by is a problem of the database."""
    call = variants.dense_call(problem)
    assert call.problem in (problem, problem.transposed) or 1 in (problem.M, problem.N, problem.K)
    assert call.problem.batch == call.batch.count == problem.batch
    operands, extents = variants.dense_operands(problem), variants.extents_of(problem)
    assert variants.dense_problem(*operands, extents=extents) == call.problem


def lying(rows, columns):
    """Yield operands of this shape in dense and padded lines, aligned and not."""
    for trans, padding, misalignment in product((False, True), (0, 1, 2), (0, 8)):
        yield Operand((rows, columns), LeadingDimension(trans, (rows if trans else columns) + padding), misalignment)


@pytest.mark.parametrize("shape", [(4, 8, 12), (6, 7, 8), (7, 6, 5)], ids=str)
def test_a_product_is_looked_up_as_the_nearest_one_with_its_loads(shape):
    M, N, K = shape
    for a, b, c in product(
        lying(M, K), lying(K, N), (Operand((M, N), LeadingDimension(trans, 8)) for trans in (False, True))
    ):
        asked, variant = variants.call_for(a, b, c).problem, variants.call_for(a, b, c).variant
        found = variants.dense_problem(a, b, c)
        loads = {"M": [], "N": [], "K": []}  # of the operands whose lines run along this extent
        loads["M" if variant.trans_a else "K"].append(variant.vec_a)
        loads["K" if variant.trans_b else "N"].append(variant.vec_b)
        for name, widths in loads.items():
            least = getattr(asked, name)
            fitting = [e for e in range(least, least + 8) if not widths or np.gcd(e, 4) == min(widths)]
            assert getattr(found, name) == fitting[0]
        assert (found.layout, found.batch) == (asked.layout, 1)


def test_a_batch_of_columns_is_computed_as_rows():
    assert variants.dense_call(Problem(4096, 1, 512, batch=8)).problem == Problem(1, 4096, 512, "NT", 8)

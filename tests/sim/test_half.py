"""16-bit operands on the simulated device: the bits of the cast operands, and the rounding of a 16-bit result."""

import numpy as np
import pytest

from fastsgemm import rungs
from fastsgemm.call.arrays.library import BFLOAT16
from fastsgemm.config import SkinnyConfig
from fastsgemm.errors import DTypeError
from fastsgemm.geometry import variants
from fastsgemm.geometry.layout import Meta
from fastsgemm.geometry.matrix import operand_of
from fastsgemm.host import as_float32, write
from fastsgemm.jit.source import rung_spec
from fastsgemm.problem import DTYPES, DType
from fastsgemm.request import resolve
from fastsgemm.sim import Machine
from fastsgemm.sim.gemm import multiply, sgemm

NUMPY = {DType.F32: np.float32, DType.BF16: BFLOAT16, DType.F16: np.float16}
SPECIAL = (
    np.inf,
    -np.inf,
    np.nan,
    0.0,
    -0.0,
    6e-8,
    -3e-41,
    1e-5,
    65504.0,
)  # with subnormals of both types


def of_type(dtype, values):
    made = np.empty(values.shape, NUMPY[dtype])
    write(made, values)
    return made


def lying(x, trans):
    return np.ascontiguousarray(x.T).T if trans else x


CONFIGS = {
    1: SkinnyConfig(1, 32, 128, TN=4, TK=8, SPLIT_K=2),
    4: SkinnyConfig(4, 64, 64, TN=4, TK=8),
    8: SkinnyConfig(8, 16, 64, TN=1, TK=16),
}


@pytest.mark.sampled(every=17)
@pytest.mark.parametrize("trans", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("pair", [name for name in DTYPES if name != "f32xf32"])
@pytest.mark.parametrize(("shape", "rows"), [((1, 68, 260), 1), ((3, 36, 132), 4), ((7, 33, 71), 8)])
def test_rung_10_reads_16_bit_operands_and_gives_the_bits_of_their_casts(random, shape, rows, pair, trans):
    (M, N, K), dtypes = shape, DTYPES[pair]
    A, B = lying(of_type(dtypes.a, random(M, K)), trans[0]), lying(of_type(dtypes.b, random(K, N)), trans[1])
    config, C = CONFIGS[rows], np.full((M, N), np.nan, np.float32)
    [(launch, _), *_] = multiply(resolve("skinny", config, precision="ieee"), A, B, C, 0.5, 0.0)
    assert launch.kernel.file == "10_skinny.cu"
    expected, _ = sgemm("skinny", config, as_float32(A), as_float32(B), 0.5, precision="ieee")
    if width_of(B) == width_of(as_float32(B)):  # the order of summation depends on how B is read
        np.testing.assert_array_equal(C, expected)
    np.testing.assert_allclose(C, 0.5 * (as_float32(A).astype(np.float64) @ as_float32(B)), rtol=1e-5, atol=1e-5)


def width_of(x):
    """The elements of a load of an operand."""
    return operand_of(Meta(x.shape, [step // x.itemsize for step in x.strides])).width


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_every_16_bit_number_is_converted_exactly(dtype):
    """All of them pass through rung 10 times one, a NaN as a NaN."""
    every = np.arange(1 << 16, dtype=np.uint16).view(NUMPY[dtype]).reshape(1, -1)
    one = np.ones((1, 1), np.float32)
    for operands in ((one, every), (every.reshape(-1, 1), one)):
        C, _ = sgemm("skinny", SkinnyConfig(1, 32, 64, TN=4, TK=8), *operands, precision="ieee")
        exact = as_float32(every).reshape(C.shape)
        np.testing.assert_array_equal(C, exact)
        finite = ~np.isnan(exact)
        np.testing.assert_array_equal(np.signbit(C[finite & (C != 0)]), np.signbit(exact[finite & (exact != 0)]))


@pytest.mark.parametrize("pair", ["bf16xf32", "f32xf16", "bf16xbf16", "f16xbf16"])
@pytest.mark.parametrize(("rung", "batch"), [(None, ()), ("pipelined", (3,)), ("warptiled", ()), ("naive", (2,))])
def test_other_rungs_get_float32_copies(random, pair, rung, batch):
    dtypes = DTYPES[pair]
    A, B = of_type(dtypes.a, random(*batch, 40, 37)), of_type(dtypes.b, random(*batch, 50, 37)).swapaxes(-1, -2)
    C, _ = sgemm(rung, None, A, B, precision="ieee")
    expected, _ = sgemm(rung, None, as_float32(A), as_float32(B))
    np.testing.assert_array_equal(C, expected)


def test_operands_without_a_unit_stride_keep_their_type_when_they_are_packed(random):
    A, B = of_type(DType.BF16, random(6, 80))[::2, ::2], of_type(DType.F16, random(80, 66))[::2, ::3]
    C, _ = sgemm("skinny", CONFIGS[4], A, B, precision="ieee")
    expected = sgemm("skinny", CONFIGS[4], as_float32(A), as_float32(B))[0]
    np.testing.assert_allclose(C, expected, rtol=1e-6, atol=1e-6)


def test_numbers_that_are_not_finite_and_subnormal_ones(random):
    for dtype in (DType.BF16, DType.F16):
        values = random(4, 64)
        values[:, ::7] = np.resize(SPECIAL, values[:, ::7].shape)
        A, B = of_type(dtype, values), of_type(dtype, random(64, 32))
        C, _ = sgemm("skinny", CONFIGS[4], A, B, precision="ieee")
        np.testing.assert_array_equal(C, sgemm("skinny", CONFIGS[4], as_float32(A), as_float32(B))[0])


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
@pytest.mark.parametrize("trans", [0, 1])
def test_a_16_bit_out_is_the_float32_result_rounded_once(random, dtype, trans):
    A, B, bias = of_type(dtype, random(5, 40)), random(40, 24), random(24)
    A.view(np.uint16)[1, 3] = 0x7FC0  # NaN
    bias[2], bias[3] = np.inf, 3e38
    out = lying(of_type(dtype, np.full((5, 24), 7.0, np.float32)), trans)
    for C, beta in ((None, 0.0), (bias, 0.5), (of_type(dtype, bias), 0.5)):
        given = None if C is None else as_float32(C)
        whole = np.zeros((5, 24), np.float32)
        exact, _ = sgemm(None, None, A, B, 1.0, beta, given, out=whole, precision="ieee")
        sgemm(None, None, A, B, 1.0, beta, C, out=out, precision="ieee")
        expected = of_type(dtype, exact)
        np.testing.assert_array_equal(as_float32(out), as_float32(expected))
    before = as_float32(out).copy()  # out is C itself
    exact, _ = sgemm(None, None, A, B, 1.0, 0.5, before, out=np.zeros((5, 24), np.float32), precision="ieee")
    sgemm(None, None, A, B, 1.0, 0.5, out, out=out, precision="ieee")
    np.testing.assert_array_equal(as_float32(out), as_float32(of_type(dtype, exact)))


@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_16_bit_source_is_scaled_where_alpha_is_0(random, batch):
    A, B, C = (of_type(DType.BF16, random(*batch, *shape)) for shape in ((40, 20), (20, 24), (40, 24)))
    out = of_type(DType.BF16, np.full((*batch, 40, 24), np.nan, np.float32))
    for how in ({"precision": "ieee"}, {"batch_invariant": True}):
        sgemm(None, None, A, B, 0.0, 0.5, C, out=out, **how)
        np.testing.assert_array_equal(as_float32(out), 0.5 * as_float32(C))


def test_one_memory_of_two_types_is_no_gram_product(random):
    """The bits of A, transposed and seen as another type, are another matrix."""
    A = of_type(DType.BF16, random(40, 64))
    B = A.view(np.uint16).view(np.float16).T
    exact = as_float32(A).astype(np.float64) @ as_float32(B)
    for precision in ("ieee", "fp16x3"):
        C, _ = sgemm(None, None, A, B, precision=precision)
        np.testing.assert_allclose(C, exact, rtol=1e-5, atol=1e-4)
    C, _ = sgemm("fp16x3", None, A, B, precision="fp16x3", machine=Machine("sm_90"))
    np.testing.assert_allclose(C, exact, rtol=1e-5, atol=1e-4)


def test_halves_are_rounded_to_nearest_even():
    ties = [0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x00008000, 0x80018000]
    ties = np.array([ties], np.uint32).view(np.float32)
    out = np.empty(ties.shape, BFLOAT16)
    sgemm(None, None, np.ones((1, 1), np.float32), ties, out=out, precision="ieee")
    assert out.view(np.uint16).tolist() == [[0x3F80, 0x3F82, 0x3F81, 0x7F80, 0x0000, 0x8002]]
    halves = np.array([[1 + 2.0**-11, 1 + 3 * 2.0**-11, 65520, 2.0**-25, 3 * 2.0**-25]], np.float32)
    out = np.empty(halves.shape, np.float16)
    sgemm(None, None, np.ones((1, 1), np.float32), halves, out=out, precision="ieee")
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out, halves.astype(np.float16))


@pytest.mark.parametrize("pair", ["bf16xf32", "bf16xbf16"])
def test_rows_do_not_depend_on_the_batch(random, pair):
    """With batch_invariant=True the bits are those of the cast operands, for one row and for many."""
    dtypes = DTYPES[pair]
    A, B = of_type(dtypes.a, random(33, 1100)), of_type(dtypes.b, random(40, 1100)).T
    whole, _ = sgemm(None, None, A, B, batch_invariant=True)
    np.testing.assert_array_equal(whole, sgemm(None, None, as_float32(A), as_float32(B), batch_invariant=True)[0])
    for rows in (1, 3):
        C, _ = sgemm(None, None, A[:rows], B, batch_invariant=True)
        np.testing.assert_array_equal(C, whole[:rows])


@pytest.mark.parametrize(
    ("A", "C", "how", "message"),
    [
        (np.float16, None, {}, "A must be float32, got float16; 16-bit operands need a precision by name: 'ieee'"),
        (np.float16, None, {"rung": "skinny"}, "need a precision by name"),
        (np.float32, np.float16, {}, "C must be float32, got float16; only what is passed as out="),
        (np.float16, np.float16, {"precision": "ieee"}, "C must be float32, got float16; only what is passed as out="),
        (np.float64, None, {"precision": "ieee"}, "A must be float32, got float64"),
    ],
)
def test_what_is_refused(A, C, how, message):
    C = None if C is None else np.zeros((4, 4), C)
    how = {"rung": None, **how}
    with pytest.raises(DTypeError, match=message):
        sgemm(how.pop("rung"), None, np.ones((4, 4), A), np.ones((4, 4), np.float32), 1.0, 0.0, C, **how)


def test_c_has_the_type_of_out_or_float32():
    ones, C = np.ones((4, 4), np.float32), np.zeros((4, 4), np.float16)
    with pytest.raises(DTypeError, match="C must be float32 or, as out is, bfloat16, got float16"):
        sgemm(None, None, ones, ones, 1.0, 1.0, C, out=np.zeros((4, 4), BFLOAT16), precision="ieee")
    for precision in (None, "ieee"):  # naming one would not help
        with pytest.raises(DTypeError, match=r"C must be float32, got float16$"):
            sgemm(None, None, ones, ones, 1.0, 1.0, C, out=np.zeros((4, 4), np.float32), precision=precision)


def test_a_16_bit_operand_moves_half_the_bytes(random):
    A, B = random(1, 512), random(64, 512)
    halves = of_type(DType.BF16, A), of_type(DType.BF16, B)
    whole, half = (sgemm("skinny", CONFIGS[1], a, b.T, precision="ieee")[1].total for a, b in ((A, B), halves))
    assert whole.loads["B"].sectors == 2 * half.loads["B"].sectors > 0
    assert whole.fmas == half.fmas


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_100"])
def test_every_architecture(random, arch):
    A, B, out = of_type(DType.BF16, random(3, 70)), of_type(DType.F16, random(70, 40)), np.empty((3, 40), BFLOAT16)
    sgemm(None, None, A, B, out=out, machine=Machine(arch), precision="ieee")
    exact = as_float32(A).astype(np.float64) @ as_float32(B)
    np.testing.assert_allclose(as_float32(out), exact, rtol=2**-8, atol=1e-5)


def test_kernels_of_float32_operands_have_no_other_types():
    call = variants.dense_call(variants.Problem(4, 64, 64))
    variant = variants.variant_for(rungs.find("skinny"), call, CONFIGS[4], 0)
    constants = dict(rung_spec(rungs.find("skinny"), CONFIGS[4], variant).constants)
    assert (constants["TYPE_A"], constants["TYPE_B"]) == (0, 0)


@pytest.mark.parametrize("pair", ["bf16xbf16", "bf16xf32", "f32xf16", "f16xbf16"])
@pytest.mark.parametrize("trans", [(0, 0), (1, 1)])
def test_float32_copies_of_operands_that_lie_alike_are_two(random, pair, trans):
    """A square product whose operands have the same shape, leading dimension and order."""
    dtypes = DTYPES[pair]
    A, B = lying(of_type(dtypes.a, random(64, 64)), trans[0]), lying(of_type(dtypes.b, random(64, 64)), trans[1])
    C, _ = sgemm("pipelined", None, A, B, precision="ieee")
    np.testing.assert_array_equal(C, sgemm("pipelined", None, as_float32(A), as_float32(B))[0])


@pytest.mark.parametrize("shape", [(4, 0, 5), (0, 3, 5), (4, 3, 0), (40, 0, 50)], ids=repr)
@pytest.mark.parametrize("precision", ["ieee", "fp16x3"])
def test_an_extent_of_0(shape, precision):
    M, N, K = shape[0], shape[2], shape[1]
    C = np.full((M, N), 3.0, np.float32)
    result, _ = sgemm(
        None, None, np.ones((M, K), np.float16), np.ones((K, N), np.float16), 1.0, 2.0, C, precision=precision
    )
    np.testing.assert_array_equal(result, np.full((M, N), 6.0 if K == 0 else 9.0, np.float32))

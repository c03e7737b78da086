"""16-bit operands on a device, against float64 and against the cast operands."""

import ctypes
import itertools
import random

import pytest

from fastsgemm import sgemm, split
from fastsgemm.config import SkinnyConfig
from fastsgemm.geometry.tensor_map import TensorMap
from fastsgemm.problem import DType

pytestmark = pytest.mark.gpu
UNIT = 2.0**-24  # float32's unit roundoff
PAIRS = [
    pair for pair in itertools.product(("float32", "bfloat16", "float16"), repeat=2) if pair != ("float32", "float32")
]
SHAPES = [(1, 512, 6144), (8, 256, 2048), (32, 1000, 777), (129, 65, 257), (300, 444, 130), (512, 256, 6144)]
HOW = [{"precision": "ieee"}, {"precision": "fp16x3"}, {"precision": "fp16x3", "rung": "fp16x3"}]
CONFIGS = {1: SkinnyConfig(1, 32, 256, TN=4, TK=8), 4: SkinnyConfig(4, 64, 128, TN=4, TK=8, SPLIT_K=2)}


@pytest.fixture
def normal(torch):
    torch.manual_seed(7)
    return lambda *shape, dtype="float32": torch.randn(*shape, device="cuda").to(getattr(torch, dtype))


def laid_out(x, how):
    """The same values in another layout."""
    if how == "T":
        return x.t().contiguous().t()
    if how == "padded":
        room = x.new_full((x.shape[0], x.shape[1] + 5), 9.0)
        room[:, 3:-2] = x
        return room[:, 3:-2]
    if how == "strided":
        return x.repeat_interleave(2, 0).repeat_interleave(3, 1)[::2, ::3]
    return x


def worst(torch, found, a, b):
    """The largest error in units of u |A| |B|."""
    a, b = a.double(), b.double()
    return float(((found.double() - a @ b).abs() / (a.abs() @ b.abs()).clamp_min(2.0**-126)).max()) / UNIT


@pytest.mark.parametrize("pair", PAIRS, ids="x".join)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "how", [{"precision": "ieee"}, {"precision": "fp16x3"}, {"precision": "fp16x3", "rung": "fp16x3"}]
)
def test_every_pair_and_layout(torch, normal, shape, pair, how):
    M, N, K = shape
    a, b = normal(M, K, dtype=pair[0]), normal(K, N, dtype=pair[1])
    for of_a, of_b in (("N", "N"), ("N", "T"), ("T", "T"), ("padded", "padded"), ("strided", "strided")):
        found = sgemm(laid_out(a, of_a), laid_out(b, of_b), **how)
        assert found.dtype is torch.float32 and worst(torch, found, a, b) < (K if how["precision"] == "ieee" else 92)


@pytest.mark.parametrize("pair", PAIRS, ids="x".join)
@pytest.mark.parametrize("rows", CONFIGS)
@pytest.mark.parametrize("trans", [False, True])
def test_rung_10_has_the_bits_of_the_cast_operands(torch, normal, pair, rows, trans):
    a, b = normal(rows, 2048, dtype=pair[0]), laid_out(normal(2048, 512, dtype=pair[1]), "T" if trans else "N")
    found = sgemm(a, b, precision="ieee", rung="skinny", config=CONFIGS[rows])
    assert torch.equal(found, sgemm(a.float(), b.float(), rung="skinny", config=CONFIGS[rows]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_16_bit_number_is_converted_exactly(torch, dtype):
    every = torch.arange(1 << 16, dtype=torch.int32, device="cuda").to(torch.int16).view(getattr(torch, dtype))
    one = torch.ones(1, 1, device="cuda")
    for rung in ("skinny", "pipelined", "naive"):
        found = sgemm(one, every[None], precision="ieee", rung=rung)[0]
        exact = every.float()
        assert torch.equal(found.isnan(), exact.isnan()) and torch.equal(found[~exact.isnan()], exact[~exact.isnan()])


def test_rows_do_not_depend_on_the_batch(torch, normal):
    a, b = normal(64, 4096, dtype="bfloat16"), normal(1024, 4096, dtype="bfloat16").t()
    whole = sgemm(a, b, batch_invariant=True)
    assert torch.equal(whole, sgemm(a.float(), b.float(), batch_invariant=True))
    for rows in (1, 7, 33):
        assert torch.equal(sgemm(a[:rows], b, batch_invariant=True), whole[:rows])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("precision", ["ieee", "fp16x3"])
def test_a_16_bit_out_is_rounded_once(torch, normal, dtype, precision):
    a, b, bias = normal(130, 512, dtype=dtype), normal(512, 300), normal(300)
    whole, out = torch.empty(130, 300, device="cuda"), torch.empty(130, 300, device="cuda", dtype=getattr(torch, dtype))
    sgemm(a, b, 1.0, 0.5, bias, out=whole, precision=precision)
    sgemm(a, b, 1.0, 0.5, bias, out=out, precision=precision)
    assert torch.equal(out, whole.to(out.dtype))


@pytest.mark.parametrize("pair", PAIRS, ids="x".join)
def test_a_split_weight_gives_the_same_bits_and_is_no_larger(torch, normal, pair):
    a, b = normal(64, 2048, dtype=pair[0]), normal(1024, 2048, dtype=pair[1]).t()
    if "float32" in pair:  # else it may be read as it lies where it was not split before
        b = b.contiguous()
    weight = split(b)
    assert weight.nbytes <= b.numel() * b.itemsize + 64 * 1024
    how = {"precision": "fp16x3", "rung": "fp16x3"}
    assert torch.equal(sgemm(a, weight, **how), sgemm(a, b, **how))


@pytest.mark.parametrize("pair", [("bfloat16", "float32"), ("bfloat16", "bfloat16")], ids="x".join)
def test_what_no_fp16_number_is_the_guard_has(torch, normal, pair):
    """Graded columns against graded rows, infinities, NaN, and what has no bfloat16 pieces; also as they lie."""
    a, b = normal(200, 512, dtype=pair[0]), normal(512, 150, dtype=pair[1])
    scale = torch.exp2(torch.randint(-60, 60, (512,), device="cuda").float())
    a, b = (a.float() * scale).to(a.dtype), (b.float() / scale[:, None]).to(b.dtype)
    tiny, large = (b * 2.0**-60).to(b.dtype), (a * 2.0**60).to(a.dtype)
    b_inf, a_inf = b.clone(), a.clone()
    a_inf[3, 5], b_inf[7, 9], b_inf[8, 20], a_inf[11] = float("inf"), float("nan"), float("-inf"), 0
    for how in "NT":
        found = sgemm(a, laid_out(b, how), precision="fp16x3", rung="fp16x3")
        assert worst(torch, found, a, b) < 512
        found = sgemm(large, laid_out(tiny, how), precision="fp16x3", rung="fp16x3")
        assert worst(torch, found, large, tiny) < 512
        found, exact = (
            sgemm(a_inf, laid_out(b_inf, how), precision="fp16x3", rung="fp16x3"),
            a_inf.double() @ b_inf.double(),
        )
        assert torch.equal(found.isnan(), exact.isnan()) and torch.equal(found.isinf(), exact.isinf())


def test_graphs_and_later_calls_give_the_same_bits(torch, normal):
    a, b = normal(16, 4096, dtype="bfloat16"), normal(2048, 4096, dtype="bfloat16").t()
    for precision in ("ieee", "fp16x3"):
        first = sgemm(a, b, precision=precision)
        assert all(torch.equal(sgemm(a, b, precision=precision), first) for _ in range(5))
        out, graph = torch.empty_like(first), torch.cuda.CUDAGraph()
        sgemm(a, b, C=out, precision=precision)
        with torch.cuda.graph(graph):
            sgemm(a, b, C=out, precision=precision)
        out.zero_()
        graph.replay()
        assert torch.equal(out, first)


def test_gradients_on_a_device(torch, normal):
    from fastsgemm.torch import linear_fp32

    x, w = normal(64, 512, dtype="bfloat16").requires_grad_(), normal(128, 512).requires_grad_()
    linear_fp32(x, w).square().sum().backward()
    y, v = x.detach().float().requires_grad_(), w.detach().clone().requires_grad_()
    (y @ v.t()).square().sum().backward()
    assert x.grad.dtype is torch.bfloat16 and w.grad.dtype is torch.float32
    assert (x.grad.float() - y.grad).norm() < 0.01 * y.grad.norm() and (w.grad - v.grad).norm() < 1e-5 * v.grad.norm()


@pytest.mark.parametrize("precision", ["ieee", "fp16x3"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_switch_takes_the_forms_with_a_dtype_on_tensor_cores_only(torch, normal, dtype, precision):
    import fastsgemm.torch

    a, b, c = normal(3, 70, 256, dtype=dtype), normal(3, 256, 90, dtype=dtype), normal(3, 70, 90)
    wide = {"out_dtype": torch.float32}
    with fastsgemm.torch.enabled(precision) as turned:
        found = [
            torch.mm(a[0], b[0], **wide), torch.mm(a[0], b[0], **wide, out=torch.empty_like(c[0])),
            torch.addmm(c[0], a[0], b[0], **wide), torch.bmm(a, b, **wide), torch.baddbmm(c, a, b, **wide),
        ]  # fmt: skip
        torch.mm(a[0], b[0])  # 16 bits: PyTorch's own
    reasons = {(line.operator, line.reason) for line in turned.report().lines}
    forms = ("mm.dtype", "mm.dtype_out", "addmm.dtype", "bmm.dtype", "baddbmm.dtype")
    replaced = forms if precision == "fp16x3" else ()  # FMAs are slower than the tensor cores that PyTorch takes
    assert reasons == {*((form, "") for form in replaced), ("mm", f"dtype {dtype}")}
    products = a.double() @ b.double()
    wanted = products[0], products[0], products[0] + c[0], products, products + c
    for one, exact in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), exact, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_16_bit_layer_has_the_same_bits_in_every_batch(torch, normal, dtype):
    """Forward and backward: rows alone and among others, in new arrays, by the launcher's second call, with a bias."""
    import fastsgemm.torch

    x, w, bias = normal(300, 4096, dtype=dtype), normal(1024, 4096, dtype=dtype), normal(1024, dtype=dtype)
    with fastsgemm.torch.enabled("fp16x3", batch_invariant=True) as turned:
        whole, gradient = torch.nn.functional.linear(x, w, bias), torch.mm(x[:, :1024], w)
        for rows in (1, 2, 7, 16, 64, 129, 256):
            for first in (0, 300 - rows):
                part = x[first : first + rows].clone()
                assert torch.equal(torch.nn.functional.linear(part, w, bias), whole[first : first + rows])
                assert torch.equal(torch.mm(part[:, :1024], w), gradient[first : first + rows])
    assert whole.dtype is x.dtype and not [line for line in turned.report().lines if line.reason]
    exact = x.double() @ w.double().t() + bias.double()
    ulp = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    assert ((whole.double() - exact).abs() <= 0.5001 * 2 * ulp * exact.abs() + 1e-4).all()


def test_jax_products_with_16_bit_results():
    jax = pytest.importorskip("jax")
    import fastsgemm.jax

    draw = jax.random.split(jax.random.key(0))
    a, b = (jax.random.normal(key, (96, 96), "bfloat16") for key in draw)
    wanted = jax.numpy.matmul(a.astype("float32"), b.astype("float32"), precision="highest").astype("bfloat16")
    with fastsgemm.jax.enabled("fp16x3", batch_invariant=True):
        found, one = jax.jit(jax.numpy.matmul)(a, b), jax.jit(jax.numpy.matmul)(a[5:6], b)
    assert found.dtype == "bfloat16" and bool((one[0] == found[5]).all())
    assert float(abs(found.astype("float32") - wanted.astype("float32")).max()) < 0.2


def test_jax_and_cupy_arrays(torch):
    ran = False
    for name in ("jax", "cupy"):
        try:
            library = __import__(name)
        except ImportError:
            continue
        numpy = library.numpy if name == "jax" else library
        a, b = numpy.ones((4, 64), "float16"), numpy.ones((64, 8), "float32")
        found = sgemm(a, b, precision="ieee")
        assert found.dtype == "float32" and float(found.sum()) == 4 * 64 * 8
        if name == "jax":
            assert float(sgemm(a.astype("bfloat16"), b, precision="ieee").sum()) == 4 * 64 * 8
        ran = True
    if not ran:
        pytest.skip("neither JAX nor CuPy is installed")


def test_tensor_maps_are_those_of_the_driver():
    """The kernels read the bits that `TensorMap` writes; NVIDIA's own function must write the same."""
    from cuda.bindings import driver

    draw = random.Random(0)
    kinds = {DType.F32: "FLOAT32", DType.BF16: "BFLOAT16", DType.F16: "FLOAT16"}
    for _ in range(300):
        dtype = draw.choice(list(DType))
        extents = [draw.randrange(1, 1 << draw.randrange(1, 32)) for _ in range(2)]
        step, box = draw.randrange(1, 1 << draw.randrange(1, 36)) * 16, draw.randrange(1, 257)
        answer = driver.cuTensorMapEncodeTiled(
            getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{kinds[dtype]}"), 4, 0,
            list(map(driver.cuuint64_t, (*extents, 1 << 30, 1 << 14))),
            list(map(driver.cuuint64_t, (step, 16, 1 << 34))),
            list(map(driver.cuuint32_t, (128 // dtype.item, box, 1, 1))), [driver.cuuint32_t(1)] * 4,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )  # fmt: skip
        assert int(answer[0]) == 0
        mine = TensorMap(dtype, *extents, step // dtype.item, box)
        assert ctypes.string_at(answer[1].getPtr(), 128) == mine.packed, mine

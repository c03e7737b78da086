"""16-bit operands on the host, and as a device gets them."""

import numpy as np
import pytest

from fastsgemm import sgemm
from fastsgemm.call import arrays
from fastsgemm.call.arrays.library import BFLOAT16, host_dtype
from fastsgemm.call.product import plan_of
from fastsgemm.config import F16DirectConfig
from fastsgemm.errors import ConfigError, DTypeError, OverlapError
from fastsgemm.geometry import variants
from fastsgemm.geometry.layout import Meta
from fastsgemm.geometry.tensor_map import TensorMap
from fastsgemm.host import as_float32, write
from fastsgemm.jit.source import helper_spec
from fastsgemm.known_devices import find
from fastsgemm.problem import DType, parse
from fastsgemm.request import of_call, of_problem, resolve

H200 = find("NVIDIA H200")


def bfloat16(values):
    made = np.empty(values.shape, BFLOAT16)
    write(made, values)
    return made


def test_numpy_multiplies_16_bit_host_arrays_as_float32(on_host, random):
    A, B = bfloat16(random(5, 7)), random(7, 3).astype(np.float16)
    result = sgemm(A, B, precision="ieee")
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, as_float32(A) @ as_float32(B))


def test_the_type_of_ml_dtypes_is_bfloat16(on_host, random):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = random(4, 4)
    x = values.astype(ml_dtypes.bfloat16)
    assert host_dtype(x) is DType.BF16
    np.testing.assert_array_equal(as_float32(x), x.astype(np.float32))
    np.testing.assert_array_equal(bfloat16(values).view(np.uint16), x.view(np.uint16))


def test_bfloat16_is_rounded_to_nearest_even(random):
    """Against a reference that compares with both neighbours."""
    bits = np.random.default_rng(3).integers(0, 1 << 32, 20000, np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values)]
    below = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
    above = ((values.view(np.uint32) & np.uint32(0xFFFF0000)) + np.uint32(0x10000)).view(np.float32).astype(np.float64)
    rounded = as_float32(bfloat16(values)).astype(np.float64)
    up, down = abs(above - values), abs(values - below)
    even = (values.view(np.uint32) >> np.uint32(16) & np.uint32(1)) == 0
    assert (rounded == np.where((down < up) | ((down == up) & even), below, above)).all()


@pytest.mark.parametrize("dtype", [BFLOAT16, np.float16])
def test_a_16_bit_out_on_the_host(on_host, random, dtype):
    A, B, C = random(4, 6), random(6, 5), random(5)
    out = np.zeros((4, 5), dtype)
    assert sgemm(A, B, 1.0, 0.5, C, out=out, precision="ieee") is out
    expected = np.zeros((4, 5), dtype)
    write(expected, np.float32(A @ B) + np.float32(0.5) * C)
    np.testing.assert_array_equal(as_float32(out), as_float32(expected))


def test_a_tensor_of_16_bits_on_the_host(on_host, torch):
    A, B = torch.randn(3, 8).bfloat16(), torch.randn(8, 4).half()
    result = sgemm(A, B.T.contiguous().T, precision="ieee")
    assert result.dtype is torch.float32
    torch.testing.assert_close(result, A.float() @ B.float())
    out = torch.zeros(3, 4, dtype=torch.bfloat16)
    assert sgemm(A, B, out=out, precision="ieee") is out
    assert torch.equal(out, result.bfloat16())


@pytest.mark.parametrize("place", ["A", "B", "out"])
def test_without_a_precision_they_are_refused(on_host, random, place):
    given = {"A": random(4, 4), "B": random(4, 4), "out": np.zeros((4, 4), np.float32)}
    given[place] = given[place].astype(np.float16)
    before = given["out"].copy()
    with pytest.raises(DTypeError, match=f"{place} must be float32, got float16; 16-bit .* 'ieee', .* or 'fp16x3'"):
        sgemm(**given)
    np.testing.assert_array_equal(given["out"], before)


def test_every_call_on_a_device_has_the_types_in_its_key(device, on_device, random):
    """Two calls that differ in the type alone have plans of their own."""
    A, B = random(4, 8), random(8, 6)
    halves = [on_device(x) for x in (bfloat16(A), A.astype(np.float16), bfloat16(B))]
    for a in halves[:2]:
        result = sgemm(a, halves[2], precision="ieee")
        np.testing.assert_allclose(result.values, as_float32(a.values) @ as_float32(halves[2].values), rtol=1e-6)
    assert len(device.prepared) == 2
    with pytest.raises(DTypeError, match="need a precision by name"):
        sgemm(halves[0], halves[2])


@pytest.mark.parametrize("shape", [(40, 24), (3, 40, 24)])
def test_other_rungs_on_a_device_get_copies(device, on_device, random, shape):
    *batch, M, K = shape
    A, B = bfloat16(random(*batch, M, K)), random(*batch, K, 36).astype(np.float16)
    C = sgemm(on_device(A), on_device(B), rung="pipelined", precision="ieee")
    np.testing.assert_allclose(C.values, as_float32(A) @ as_float32(B), rtol=1e-5, atol=1e-5)
    assert device.compiled.count("copy_strided") == 2


def test_a_16_bit_out_on_a_device(device, on_device, random):
    A, B, out = random(4, 8), random(8, 6), on_device(np.zeros((4, 6), np.float16))
    sgemm(on_device(A), on_device(B), 1.0, 0.5, on_device(random(6)), out=out, precision="ieee")
    assert out.values.any() and device.compiled.count("copy_strided") == 1


def test_out_may_not_share_bytes_with_an_operand_of_another_type(device, on_device, random):
    memory = np.zeros((8, 8), np.float32)
    out = memory.view(np.float16)[:, :8]
    with pytest.raises(OverlapError, match="out shares memory with A"):
        sgemm(on_device(memory), on_device(random(8, 8)), out=on_device(out), precision="ieee")
    odd = memory.view(np.float16)[:, 1::2]  # every second 16 bits: inside of the floats, too
    with pytest.raises(OverlapError, match="out shares memory with A"):
        sgemm(on_device(memory), on_device(random(8, 8)), out=on_device(odd), precision="ieee")


def test_a_misaligned_16_bit_operand_is_named(device, on_device, random):
    memory = np.zeros(65, np.uint8)
    A = np.frombuffer(memory.data, np.float16, 16, 1).reshape(4, 4)
    assert arrays.misaligned(3, (4, 4), (8, 2), 2) is not None and arrays.misaligned(2, (4, 4), (8, 2), 2) is None
    with pytest.raises(Exception, match="A must lie at an address divisible by 2"):
        sgemm(on_device(A), on_device(random(4, 4)), precision="ieee")


def test_the_plan_converts_what_no_kernel_reads(device):
    problem = parse("512,512,512,NT,bf16xf32")
    request = of_problem(resolve("pipelined", precision="ieee"), problem)
    first, product = plan_of(H200, request, variants.dense(problem)).launches[:2]
    assert first.kernel == helper_spec("copy_strided", FROM=DType.BF16, TO=DType.F32)
    assert product.kernel.file == "09_pipelined.cu" and first.writes[0].matrix in product.matrices


@pytest.mark.parametrize("before", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("strides_of_a", [(2048, 1), (4100, 2)])
@pytest.mark.parametrize(("of_a", "direct"), [(DType.BF16, True), (DType.F16, False)])
def test_a_weight_that_was_split_is_read_as_it_lies_where_it_can_be(before, strides_of_a, of_a, direct):
    metas = Meta((64, 2048), strides_of_a, of_a), Meta((2048, 1024), (1, 2048), DType.BF16), Meta((64, 1024), (1024, 1))
    plain = resolve("fp16x3", precision="fp16x3")
    launches, others = (plan_of(H200, request, metas).launches for request in (of_call(plain, before), plain))
    assert (launches == others) is direct
    assert any(launch.kernel.file == "11_half.cu" for launch in launches) is direct


@pytest.mark.parametrize(
    ("shape", "strides", "direct"),
    [
        ((64, 2048), (2048, 1), True),
        ((64, 2048), (2056, 1), True),
        ((64, 2048), (2052, 1), False),  # lines begin at multiples of 8 bytes
        ((1, 2048), (3, 1), True),
        ((64, 2048), (0, 1), False),  # one row, repeated
        ((64, 2048), (-2048, 1), False),  # from the last row to the first
        ((2, 2048), (1 << 40, 1), False),  # farther apart than a tensor map can say
    ],
)
@pytest.mark.parametrize("of_a", [DType.BF16, DType.F32])
def test_lines_that_a_tensor_map_describes_are_read_as_they_lie(shape, strides, direct, of_a):
    a, b = Meta(shape, strides, of_a), Meta((2048, 1024), (1, 2048), DType.BF16)
    request = resolve("fp16x3", F16DirectConfig(64, 32, 6), precision="fp16x3")
    c = Meta((shape[0], 1024), (1024, 1))
    if of_a is DType.F32 and strides[0] == 2052:
        direct = True  # of 16 bytes
    if not direct:
        with pytest.raises(ConfigError, match="lines that begin at multiples of 16 bytes"):
            plan_of(H200, request, (a, b, c))
        return
    maps = [each for launch in plan_of(H200, request, (a, b, c)).launches for each in launch.arguments]
    assert {each.lines for each in maps if isinstance(each, TensorMap)} == {shape[0], 1024}

"""How 16-bit operands change what an IEEE kernel is chosen for: fewer bytes as they lie, or a copy first."""

import pytest

from fastsgemm import explain, known_devices
from fastsgemm.geometry import variants
from fastsgemm.geometry.matrix import Operand
from fastsgemm.geometry.variants import dense_operands
from fastsgemm.heuristics import conversion
from fastsgemm.heuristics.choice import PREDICTED, choose
from fastsgemm.heuristics.device_database import device_database
from fastsgemm.problem import parse
from fastsgemm.request import of_call, resolve

H200 = known_devices.find("NVIDIA H200")
IEEE = resolve(precision="ieee")


def chosen(text, request=IEEE, device=H200):
    problem = parse(text)
    return choose(device, request, *dense_operands(problem), extents=variants.extents_of(problem))


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_few_rows_take_about_half_the_time(rows):
    """A head of a language model: nearly all the time is that of reading B."""
    whole, halved = chosen(f"{rows},151936,4096,NT"), chosen(f"{rows},151936,4096,NT,bf16xbf16")
    assert halved.rung.name == whole.rung.name == "skinny"
    assert 0.5 * whole.ms <= halved.ms < 0.6 * whole.ms
    assert halved.rule == PREDICTED  # though the float32 problem may have been tuned


def test_a_product_of_many_rows_is_converted_first_and_pays_for_it():
    whole, halved = chosen("4096,4096,4096,NT"), chosen("4096,4096,4096,NT,bf16xf32")
    assert halved.rung.name == "pipelined" and halved.config == whole.config
    a, _, _ = dense_operands(parse("4096,4096,4096,NT,bf16xf32"))
    fitted = device_database(halved_device()).fitted
    added = 0.0 if "A" in halved.packed else conversion.cast_ms(fitted, a, ())
    assert halved.ms == pytest.approx(whole.ms + added)
    odd = chosen("1000,1000,1000,NT,f32xf16")
    assert odd.ms > chosen("1000,1000,1000,NT").ms or "B" in odd.packed


def halved_device():
    from fastsgemm.device import info_of

    return info_of(H200)


def test_a_batch_that_shares_an_operand_converts_it_once():
    fitted = device_database(halved_device()).fitted
    a, _, _ = dense_operands(parse("64,64,64,bf16xf32,x8"))
    shared = Operand(a.shape, a.how, steps=(0,), dtype=a.dtype)
    moved = 6 * 64 * 64 / fitted.packing_bytes_per_ms
    assert conversion.cast_ms(fitted, shared, (8,)) == pytest.approx(fitted.cast_ms + moved)
    assert conversion.cast_ms(fitted, a, (8,)) == pytest.approx(fitted.cast_ms + 8 * moved)


@pytest.mark.parametrize("how", [{"rung": "skinny"}, {"rung": "pipelined"}, {"batch_invariant": True}])
def test_what_was_asked_for_is_kept(how):
    found = chosen("8,512,512,NT,bf16xf16", resolve(precision="ieee", **how))
    assert found.rung.name == how.get("rung", found.rung.name)
    assert found.rung.name != "skinny" or not how.get("batch_invariant")


def test_the_operands_of_a_column_major_result_are_turned():
    a, b, c = dense_operands(parse("4,256,512,NT,bf16xf32"))
    straight, turned = choose(H200, IEEE, a, b, c), choose(H200, IEEE, b.transposed, a.transposed, c.transposed)
    assert turned.config == straight.config and turned.ms == straight.ms


@pytest.mark.parametrize("device", ["sm_75", "sm_120", "NVIDIA H200"])
def test_the_ways_are_listed_with_what_converting_adds(device):
    text = str(explain(8, 1024, 1024, "NT", device=device, dtypes="bf16xbf16"))
    assert "NT, bfloat16 by bfloat16, on" in text and "rung       skinny" in text
    alternatives = explain(8, 1024, 1024, "NT", device="NVIDIA H200", dtypes="bf16xbf16").alternatives
    assert alternatives[0].ms == min(way.ms for way in alternatives)


@pytest.mark.parametrize("text", ["4096,4096,4096,NT", "2048,2048,2048,NN", "8192,8192,8192,NT"])
def test_rung_11_takes_two_products_or_one(text):
    times = [chosen(f"{text},{pair}", resolve(precision="fp16x3")) for pair in ("f32xf32", "bf16xf32", "bf16xbf16")]
    assert all(one.rung.name == "fp16x3" for one in times)
    whole, two, one = (each.ms for each in times)
    assert 0.6 * whole < two < 0.8 * whole and 0.3 * whole < one < 0.55 * whole


def test_rung_11_is_compared_with_the_ieee_kernel_of_the_same_operands():
    few = chosen("1,151936,4096,NN,bf16xbf16", resolve(precision="fp16x3"))
    assert few.rung.name == "skinny" and few.ieee_ms == chosen("1,151936,4096,NN,bf16xbf16").ms
    many = chosen("512,151936,4096,NT,bf16xbf16", resolve(precision="fp16x3"))
    assert many.rung.name == "fp16x3" and many.ieee_ms == chosen("512,151936,4096,NT,bf16xbf16").ms


def test_an_explanation_says_what_is_read_as_it_lies_and_that_nothing_tunes_it():
    found = explain(512, 4096, 4096, "NT", device="NVIDIA H200", precision="fp16x3", dtypes="bf16xbf16")
    assert "(predicted, operands as they lie)" in str(found) and found.command is None
    assert "improve    nothing: tuning takes float32 operands" in str(found)
    assert found.json()["problem"]["dtypes"] == "bf16xbf16"


def test_two_operands_that_lie_right_are_not_split():
    request = resolve(precision="fp16x3")
    lying, turned = (chosen(f"512,4096,4096,{layout},bf16xbf16", request) for layout in ("NT", "NN"))
    assert lying.direct and not turned.direct and lying.ms < turned.ms
    assert not chosen("512,4096,4096,NT,bf16xf16", request).direct
    router, square = "256,256,6144,NT,bf16xf32", "8192,8192,8192,NT,bf16xf32"
    assert chosen(router, request).direct and not chosen(square, request).direct
    weight = "158,5565,4472,NT,bf16xf32"  # as it lies or, split before, by two products
    assert chosen(weight, request).direct and not chosen(weight, of_call(request, (False, True))).direct
    assert not chosen(
        "4096,4096,4096,NT,bf16xbf16", resolve("fp16x3", precision="fp16x3"), known_devices.find("sm_80")
    ).direct
    assert chosen("512,4096,4096,NT,bf16xbf16", of_call(request, (False, True))) == lying

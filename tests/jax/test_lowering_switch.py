"""The switch: which of JAX's products are fastsgemm's when a program is lowered for CUDA."""

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from jax import lax
from jax_programs import TARGET, calls, lowered

import fastsgemm.jax
from fastsgemm.errors import MissingExtraError, PrecisionError
from fastsgemm.jax import lowering_switch

A, B = jnp.ones((64, 32)), jnp.ones((32, 48))
highest = partial(jnp.dot, precision="highest")
of_halves = partial(highest, preferred_element_type=np.float32)


@pytest.fixture(autouse=True)
def _off_afterwards():
    yield
    fastsgemm.jax.disable()


def replaced(function, *operands):
    return lowered(function, *operands).count(TARGET)


def of_algorithm(name):
    return partial(lax.dot, precision=getattr(lax.DotAlgorithmPreset, name))


@pytest.mark.parametrize(
    ("function", "operands", "count"),
    [
        (highest, (A, B), 1),
        (partial(lax.dot, precision=lax.Precision.HIGHEST), (A, B), 1),
        (partial(lax.dot, precision=(lax.Precision.HIGHEST, lax.Precision.HIGHEST)), (A, B), 1),
        (of_algorithm("F32_F32_F32"), (A, B), 1),
        (jax.grad(lambda a, b: highest(a, b).sum(), (0, 1)), (A, B), 2),
        (jax.vmap(highest, (0, None)), (jnp.ones((3, 64, 32)), B), 1),
        (lambda a: jnp.einsum("bik,bjk->bij", a, a, precision="highest"), (jnp.ones((3, 8, 5)),), 1),
        (lambda x: jnp.einsum("bqhd,bkhd->bhqk", x, x, precision="highest"), (jnp.ones((2, 8, 3, 4)),), 1),
        (lambda a, b: lax.scan(lambda c, _: (highest(a, b) + c, None), jnp.zeros((64, 48)), None, 5)[0], (A, B), 1),
        (jax.grad(jax.checkpoint(lambda a, b: jnp.tanh(highest(a, b)).sum())), (A, B), 2),
        (jnp.dot, (A, B), 0),
        (partial(jnp.dot, precision="high"), (A, B), 0),
        (of_algorithm("BF16_BF16_F32_X9"), (A, B), 0),
        (of_algorithm("TF32_TF32_F32"), (A, B), 0),
        (highest, (A.astype(jnp.bfloat16), B.astype(jnp.bfloat16)), 0),
        (of_halves, (A[:8].astype(jnp.float16), B), 1),
        (of_halves, (A, B.astype(jnp.bfloat16)), 2),  # one makes B float32
        (of_halves, (A.astype(jnp.bfloat16), B.astype(jnp.bfloat16)), 0),
        (partial(jnp.dot, preferred_element_type=np.float32), (A.astype(jnp.bfloat16), B.astype(jnp.bfloat16)), 0),
        (of_halves, (A.astype(jnp.int8), B.astype(jnp.int8)), 0),
        (highest, (A[:0], B), 0),
        (lambda a, b: lax.dot_general(a, b, (((), ()), ((), ())), precision="highest"), (A, jnp.float32(2.0)), 0),
    ],
)
def test_what_is_replaced(function, operands, count):
    with fastsgemm.jax.enabled():
        assert replaced(function, *operands) == count
    assert replaced(function, *operands) == 0


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ((2**20, 2**12, 1), (1, 1), "4294967296 rows, columns or steps of k, above 2147418112"),
        ((2**17, 2**16, 1, 1), (2**17, 2**16, 1, 1), "a batch of 8589934592, above 4294836225"),
    ],
)
def test_what_no_kernel_can_count_is_passed_on(a, b, reason):
    operands = [jax.ShapeDtypeStruct(shape, np.float32) for shape in (a, b)]
    with fastsgemm.jax.enabled() as on:
        assert replaced(partial(jnp.matmul, precision="highest"), *operands) == 0
    assert [line.reason for line in on.report().lines] == [reason]


@pytest.mark.parametrize(
    ("subscripts", "shapes"), [("i,j->ij", ((8,), (9,))), ("bik,bkj->bij", ((2, 8, 1), (2, 1, 9)))]
)
def test_what_xla_can_multiply_element_by_element_is_passed_on(subscripts, shapes):
    with fastsgemm.jax.enabled() as on:
        assert replaced(partial(jnp.einsum, subscripts, precision="highest"), *map(jnp.ones, shapes)) == 0
    assert [line.reason for line in on.report().lines] == ["nothing is summed"]


TOKENS, EXPERTS, SIZES = jnp.ones((12, 4)), jnp.ones((3, 4, 8)), jnp.array([3, 0, 7])
of_groups = partial(lax.ragged_dot, precision="highest")


def ragged(summed, batch, of_a, of_b=()):
    numbers = lax.RaggedDotDimensionNumbers((summed, batch), of_a, of_b)
    return partial(lax.ragged_dot_general, ragged_dot_dimension_numbers=numbers, precision="highest")


class TestGroups:
    def test_a_product_and_its_gradients_are_a_launch_each(self):
        gradients = jax.grad(lambda a, b: (of_groups(a, b, SIZES) ** 2).sum(), (0, 1))
        with fastsgemm.jax.enabled() as on:
            assert replaced(of_groups, TOKENS, EXPERTS, SIZES) == 1
            assert replaced(gradients, TOKENS, EXPERTS) == 3
        assert replaced(of_groups, TOKENS, EXPERTS, SIZES) == 0
        assert {(line.problem, line.products, line.flops, line.reason) for line in on.report().lines} == {
            ("ragged_dot of (12, 4) and (3, 4, 8) in 3 groups", 2, 2 * 2 * 12 * 4 * 8, ""),
            ("ragged_dot of (12, 8) and (3, 4, 8) in 3 groups", 1, 2 * 12 * 4 * 8, ""),
            ("ragged_dot of (12, 4) and (12, 8) in 3 groups", 1, 2 * 12 * 4 * 8, ""),
        }

    def test_the_modes_of_ragged_dot_general(self):
        with fastsgemm.jax.enabled() as on:
            assert replaced(ragged(((0,), (0,)), ((), ()), [0]), TOKENS, jnp.ones((12, 8)), SIZES) == 1
            batch = jnp.ones((12, 4, 5))
            assert replaced(ragged(((2,), (2,)), ((0,), (0,)), [0]), batch, batch, SIZES) == 1
        assert [line.problem for line in on.report().replaced] == [
            "abc,aec->abe of (12, 4, 5) and (12, 4, 5)", "ragged_dot of (12, 4) and (12, 8) in 3 groups",
        ]  # fmt: skip

    def test_what_is_past_the_last_group_is_zero_and_offsets_are_made_on_the_device(self):
        with fastsgemm.jax.enabled():
            text = lowered(of_groups, TOKENS, EXPERTS, SIZES)
        [call] = calls(text)
        zeros, offsets = re.search(r"custom_call @\S+\(%arg0, %arg1, (%\d+), (%\d+)\)", call).groups()
        assert re.search(rf"{zeros} = stablehlo.broadcast_in_dim .*-> tensor<12x8xf32>", text)
        assert re.search(rf"{offsets} = (func.)?call @cumsum", text)
        assert "output_operand_alias<output_tuple_indices = [], operand_index = 2" in call

    @pytest.mark.parametrize(
        ("function", "operands", "reason"),
        [
            (lax.ragged_dot, (TOKENS, EXPERTS, SIZES), "its precision is not 'highest'"),
            (of_groups, (TOKENS.astype(jnp.bfloat16), EXPERTS.astype(jnp.bfloat16), SIZES), "not float32"),
            (of_groups, (TOKENS[:0], EXPERTS, SIZES), "an empty operand"),
            (
                ragged(((2,), (2,)), ((0,), (0,)), [1], [1]),
                (jnp.ones((2, 12, 4)), jnp.ones((2, 3, 4, 8)), jnp.ones((2, 3), int)),
                "groups of other than the rows or k of two matrices",
            ),
            (
                jax.vmap(of_groups), tuple(jnp.stack([x, x]) for x in (TOKENS, EXPERTS, SIZES)),
                "groups of other than the rows or k of two matrices",
            ),
        ],
    )  # fmt: skip
    def test_what_is_passed_on(self, function, operands, reason):
        with fastsgemm.jax.enabled() as on:
            lowered(function, *operands)
        assert [line.reason for line in on.report().lines if line.problem.startswith("ragged")] == [reason]

    def test_symbolic_shapes_are_passed_on(self):
        (tokens,) = jax.export.symbolic_shape("tokens")
        operands = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((tokens, 4), EXPERTS.shape)]
        with fastsgemm.jax.enabled() as on:
            jax.export.export(jax.jit(lambda a, b: of_groups(a, b, SIZES)), platforms=["cuda"])(*operands)
        assert [line.reason for line in on.report().lines] == ["symbolic shapes"]

    def test_the_order_on_tensor_cores_is_left_to_xla(self):
        with fastsgemm.jax.enabled(batch_invariant=True):
            assert replaced(of_groups, TOKENS, EXPERTS, SIZES) == 1
        with fastsgemm.jax.enabled("fp16x3", batch_invariant=True) as on:
            assert replaced(of_groups, TOKENS, EXPERTS, SIZES) == 0
        assert [line.reason for line in on.report().lines] == ["the order on tensor cores, which groups do not have"]

    def test_a_jax_without_it(self, monkeypatch):
        monkeypatch.setattr(lowering_switch, "_ragged_dot_p", None)
        with fastsgemm.jax.enabled():
            assert replaced(highest, A, B) == 1


@pytest.mark.parametrize("name", ["BF16_BF16_F32_X9", "TF32_TF32_F32_X3", "F32_F32_F32"])
def test_fp16x3_is_for_algorithms_of_that_accuracy(name):
    with fastsgemm.jax.enabled("fp16x3"):
        assert replaced(of_algorithm(name), A, B) == 1


@pytest.mark.parametrize("how", [{"precision": "fp16x3"}, {"batch_invariant": True}], ids=str)
def test_two_16_bit_operands_are_for_tensor_cores_or_one_order(how):
    a, b = A[:8].astype(jnp.bfloat16), B.astype(jnp.bfloat16)
    with fastsgemm.jax.enabled(**how):
        assert replaced(of_halves, a, b) > 0
        assert replaced(jax.grad(lambda a, b: of_halves(a, b).sum()), a, b) > 0


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=str)
def test_both_together_replace_products_with_16_bit_results(dtype):
    a, b = A.astype(dtype), B.astype(dtype)
    name = {jnp.bfloat16: "bf16", jnp.float16: "f16"}[dtype]
    with fastsgemm.jax.enabled("fp16x3", batch_invariant=True) as on:
        for precision in (None, "high", "highest"):
            *_, last = calls(lowered(partial(jnp.matmul, precision=precision), a, b))
            assert last.rpartition(" : ")[2].endswith(f"-> tensor<64x48x{name}>")
        assert replaced(jax.grad(lambda a, b: jnp.matmul(a, b).sum(), (0, 1)), a, b) >= 2
        assert not [line for line in on.report().lines if line.reason]
        assert replaced(partial(jnp.dot, preferred_element_type=dtype), A.astype(jnp.bfloat16), B) == 0
        assert replaced(of_algorithm("BF16_BF16_F32"), a, b) == 0
        assert replaced(jnp.matmul, A, B) == 0  # float32 where TF32 is allowed


@pytest.mark.parametrize(("value", "count"), [("highest", 1), ("float32", 1), ("high", 0), ("tensorfloat32", 0)])
def test_the_default_precision(value, count):
    with fastsgemm.jax.enabled(), jax.default_matmul_precision(value):
        assert replaced(jnp.matmul, A, B) == count


def test_a_transposed_operand_is_read_where_it_lies():
    with fastsgemm.jax.enabled():
        (call,) = calls(lowered(lambda a, b: highest(a, b.T), A, B.T))
    assert "(%arg0, %arg1)" in call
    assert call.rpartition(" : ")[2] == "(tensor<64x32xf32>, tensor<48x32xf32>) -> tensor<64x48xf32>"


@pytest.mark.parametrize(
    ("function", "operands"),
    [
        (lambda a: highest(a, a.T), "(tensor<2048x2048xf32>)"),
        (lambda a: highest(a.T, a), "(tensor<2048x2048xf32>)"),
        (lambda a: jnp.einsum("mbk,nbk->bmn", *[a.reshape(512, 4, 2048)] * 2, precision="highest"),
         "(tensor<512x4x2048xf32>)"),
        (lambda a: highest(a, a), "(tensor<2048x2048xf32>, tensor<2048x2048xf32>)"),
        (lambda a: highest(a, (a + 1).T), "(tensor<2048x2048xf32>, tensor<2048x2048xf32>)"),
    ],
)  # fmt: skip
def test_an_operand_by_itself_transposed_is_read_once(function, operands):
    with fastsgemm.jax.enabled():
        first, *_ = calls(lowered(function, jnp.ones((2048, 2048))))
    assert first.rpartition(" : ")[2].startswith(f"{operands} -> ")


def test_the_gradient_of_a_second_factor_lies_as_jax_transposes_it():
    def f(a, b):
        return jax.grad(lambda b: (highest(a, b) ** 2).sum())(b)

    with fastsgemm.jax.enabled():
        forward, back = calls(lowered(f, A, B))
    assert "result_layouts = [dense<[1, 0]>" in forward
    assert back.endswith("(tensor<64x48xf32>, tensor<64x32xf32>) -> tensor<48x32xf32>")
    assert "result_layouts = [dense<[0, 1]>" in back


def test_the_host_is_left_alone():
    with fastsgemm.jax.enabled() as on:
        assert TARGET not in jax.jit(highest).lower(A, B).as_text()
        np.testing.assert_array_equal(jax.jit(highest)(A, B), np.full((64, 48), 32.0))
    assert on.report().lines == ()


def test_what_was_traced_before_is_lowered_anew():
    f = jax.jit(highest)

    def count():
        return f.trace(A, B).lower(lowering_platforms=("cuda",)).as_text().count(TARGET)

    with fastsgemm.jax.lowering_for("sm_90"):
        assert count() == 0
        fastsgemm.jax.enable()
        assert count() == 1
        fastsgemm.jax.disable()
        assert count() == 0


def test_settings_of_a_block_end_with_it():
    outer = fastsgemm.jax.enable("fp16x3")
    with fastsgemm.jax.enabled(batch_invariant=True) as inner:
        assert "on: precision 'ieee', batch-invariant" in repr(inner)
        assert "off" in repr(outer)
    assert "on: precision 'fp16x3'" in repr(outer)


def test_a_block_that_fails_ends_too():
    with pytest.raises(ZeroDivisionError), fastsgemm.jax.enabled():
        raise ZeroDivisionError
    assert replaced(highest, A, B) == 0


def is_on():
    return replaced(highest, A, B) == 1


def test_one_block_entered_twice():
    block = fastsgemm.jax.enabled()
    with block as outer:
        with block as inner:
            assert is_on() and inner is not outer
        assert is_on()
    assert not is_on()
    with block:
        assert is_on()
    assert not is_on()


def test_a_decorated_function_that_calls_itself():
    @fastsgemm.jax.enabled()
    def f(depth):
        return is_on() and (depth == 0 or f(depth - 1)) and is_on()

    assert f(2) and not is_on()


def meet_in_two_threads(first, second):
    """Call both functions in threads of their own; what they are given returns when both have called it."""
    barrier = threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        for call in [threads.submit(function, partial(barrier.wait, 20)) for function in (first, second)]:
            call.result(timeout=120)


def test_one_block_that_two_threads_are_in_at_once():
    """Each thread ends its own period, whichever of them began last."""
    block = fastsgemm.jax.enabled()

    def first(meet):
        with block as on:
            meet()
            meet()  # the second has begun
        assert repr(on).startswith("<Switch off")
        meet()

    def second(meet):
        meet()
        with block as on:
            meet()
            meet()  # the first has ended
            assert repr(on).startswith("<Switch on")

    meet_in_two_threads(first, second)
    assert not is_on()


def test_a_decorated_function_that_two_threads_call_at_once():
    """Each call is a block of its own, which ends when that call does."""
    on = []

    @fastsgemm.jax.enabled()
    def call(*meetings):
        on.append(lowering_switch.periods.current)
        for meet in meetings:
            meet()

    def first(meet):
        call(meet, meet)
        meet()

    def second(meet):
        meet()
        call(meet, meet, lambda: on.append(lowering_switch.periods.current))

    meet_in_two_threads(first, second)
    assert on[0] is not on[1] and on[2] is on[1]
    assert not is_on()


def test_blocks_of_generators_that_overlap():
    def generator(**how):
        with fastsgemm.jax.enabled(**how) as switch:
            yield switch

    first, second = generator(), generator(precision="fp16x3")
    next(first)
    on = next(second)
    first.close()  # before the second, which began later
    assert is_on() and repr(on).startswith("<Switch on")
    second.close()
    assert not is_on()


def test_blocks_of_tasks_that_overlap():
    async def task(end):
        with fastsgemm.jax.enabled():
            await end.wait()

    async def main():
        ends = [asyncio.Event() for _ in range(3)]
        tasks = []
        for end in ends:
            tasks.append(asyncio.create_task(task(end)))
            await asyncio.sleep(0)  # it begins
        for which in (1, 0, 2):
            assert is_on()
            ends[which].set()
            await tasks[which]

    asyncio.run(main())
    assert not is_on()


def test_enable_within_a_block_ends_with_it_and_outside_stays():
    with fastsgemm.jax.enabled():
        fastsgemm.jax.disable()
        assert not is_on()
        assert fastsgemm.jax.enable("fp16x3").precision == "fp16x3" and is_on()
    assert not is_on()
    fastsgemm.jax.enable()
    with fastsgemm.jax.enabled():
        pass
    assert is_on()


def test_other_threads_are_concerned():
    counted = []
    with fastsgemm.jax.enabled():
        thread = threading.Thread(target=lambda: counted.append(replaced(highest, A, B)))
        thread.start()
        thread.join()
    assert counted == [1]


def test_the_report():
    with fastsgemm.jax.enabled() as on:
        lowered(highest, A, B)
        lowered(jnp.dot, A, B)
        lowered(highest, A.astype(jnp.int32), B.astype(jnp.int32))
    (mine,) = on.report().replaced
    assert (mine.problem, mine.products, mine.flops) == ("ab,bd->ad of (64, 32) and (32, 48)", 1, 2 * 64 * 32 * 48)
    assert {line.reason for line in on.report().passed_on} == {
        "its precision is not 'highest'",
        "not float32",
    }
    assert "1 product of 0.000197 GFLOP by fastsgemm" in repr(fastsgemm.jax.report())


def test_a_report_of_nothing():
    with fastsgemm.jax.enabled() as on:
        pass
    assert "lowered no product" in repr(on.report()) and "jax.devices()" in repr(on.report())


@pytest.mark.parametrize("arguments", [("fp8",), ("tf32", True)])
def test_settings_that_are_refused_change_nothing(arguments):
    before = fastsgemm.jax.enable()
    with pytest.raises(PrecisionError):
        fastsgemm.jax.enable(*arguments)
    assert "on" in repr(before)


def test_a_jax_whose_lowerings_are_elsewhere_is_refused(monkeypatch):
    monkeypatch.setattr(lowering_switch, "_original", None)
    monkeypatch.setattr(lowering_switch, "mlir", object())
    with pytest.raises(MissingExtraError, match="does not know where JAX"):
        fastsgemm.jax.enable()

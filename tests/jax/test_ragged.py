"""The dimensions of ``ragged_dot_general`` as matrices of groups."""

import pytest

pytest.importorskip("jax")

from jax.lax import RaggedDotDimensionNumbers

from fastsgemm.geometry.layout import Meta
from fastsgemm.jax.ragged import ragged_product
from fastsgemm.problem import DType, Ragged


def product(a, b, sizes, summed, batch, of_a, of_b):
    return ragged_product(a, b, sizes, RaggedDotDimensionNumbers((summed, batch), of_a, of_b))


def meta(shape, strides):
    return Meta(shape, strides, DType.F32, 0)


def test_rows():
    found = product((12, 4), (3, 4, 5), (3,), ((1,), (1,)), ((), ()), [0], [0])
    assert found.ragged is Ragged.ROWS and found.flops == 2 * 12 * 4 * 5
    assert found.metas == (meta((12, 4), (4, 1)), meta((3, 4, 5), (20, 5, 1)), meta((12, 5), (5, 1)))


def test_dimensions_in_another_order_are_strides():
    found = product((4, 12), (5, 3, 4), (3,), ((0,), (2,)), ((), ()), [1], [1])
    assert found.metas == (meta((12, 4), (1, 12)), meta((3, 4, 5), (4, 1, 12)), meta((12, 5), (5, 1)))


def test_k():
    found = product((12, 4), (12, 5), (3,), ((0,), (0,)), ((), ()), [0], [])
    assert found.ragged is Ragged.K and found.flops == 2 * 12 * 4 * 5
    assert found.metas == (meta((4, 12), (1, 4)), meta((12, 5), (5, 1)), meta((3, 4, 5), (20, 5, 1)))


@pytest.mark.parametrize(
    "dimensions",
    [
        ((2, 12, 4), (2, 3, 4, 5), (2, 3), ((2,), (2,)), ((0,), (0,)), [1], [1]),  # a batch
        ((2, 12, 4), (3, 4, 5), (2, 3), ((2,), (1,)), ((), ()), [1], [0]),  # two dimensions of rows
        ((12, 4, 2), (3, 4, 2, 5), (3,), ((1, 2), (1, 2)), ((), ()), [0], [0]),  # two that are summed
        ((12,), (12,), (3,), ((0,), (0,)), ((), ()), [0], []),  # vectors
        (("n", 4), (3, 4, 5), (3,), ((1,), (1,)), ((), ()), [0], [0]),  # a symbol
    ],
)
def test_what_is_no_product_of_two_matrices(dimensions):
    assert product(*dimensions) is None

"""Contractions as matrices in memory: the views hold what `numpy.einsum` contracts."""

import numpy as np
import pytest

pytest.importorskip("jax")

from numpy.lib.stride_tricks import as_strided

from fastsgemm.geometry.layout import Meta
from fastsgemm.jax import contraction

CONTRACTIONS = (
    *("ik,kj->ij", "ki,kj->ij", "ik,jk->ij", "ik,kj->ji", "k,kj->j", "ik,k->i", "k,k->", "i,j->ij"),
    *("bik,bkj->bij", "kbi,jbk->bij", "bik,kj->bij", "ik,bkj->bij", "ik,bkj->ibj", "bik,bkj->ijb"),
    *("abik,abkj->abij", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "bmk,bmn->kn", "abmk,kn->abmn", "amk,bkn->abmn"),
    *("aik,kbj->abij", "ijk,kl->ijl", "k,kn->n"),
)


@pytest.mark.parametrize("subscripts", CONTRACTIONS)
@pytest.mark.parametrize("ones", ["", "i", "k", "b", "n", "ab"])
def test_the_matrices_hold_what_is_contracted(subscripts, ones):
    labels = contraction.labels_of(subscripts)
    sizes = {label: 1 if label in ones else 2 + i for i, label in enumerate(sorted({*labels.a, *labels.b}))}
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-5, 5, [sizes[x] for x in of]).astype(np.float32) for of in (labels.a, labels.b))
    metas = contraction.metas(labels, a.shape, b.shape)
    c = np.zeros(contraction.shape_of_result(labels, a.shape, b.shape), np.float32)
    views = [
        as_strided(x, meta.shape, [4 * step for step in meta.strides]) for x, meta in zip((a, b, c), metas, strict=True)
    ]
    for index in np.ndindex(views[2].shape[:-2]):
        views[2][index] = views[0][index] @ views[1][index]
    np.testing.assert_array_equal(c, np.einsum(subscripts, a, b))


def test_neighbouring_rows_of_a_batch_are_rows_of_one_product():
    of_a, of_b, of_c = contraction.metas(contraction.labels_of("bik,kj->bij"), (3, 4, 5), (5, 6))
    assert (of_a, of_b, of_c) == (Meta((12, 5), (5, 1)), Meta((5, 6), (6, 1)), Meta((12, 6), (6, 1)))


def test_labels_that_are_not_summed_in_one_order_have_no_matrices():
    assert contraction.metas(contraction.labels_of("abi,baj->ij"), (2, 3, 4), (3, 2, 5)) is None


@pytest.mark.parametrize(
    ("dimensions", "subscripts"),
    [((2, 2), "mk,kn->mn"), ((1, 2), "k,kn->n"), ((2, 1), "mk,k->m"), ((1, 1), "k,k->"), ((3, 2), "amk,kn->amn"),
     ((4, 3), "abmk,bkn->abmn"), ((1, 3), "k,akn->an")],
)  # fmt: skip
def test_of_matmul(dimensions, subscripts):
    assert contraction.of_matmul(*dimensions) == subscripts


@pytest.mark.parametrize(
    ("a", "b", "left"),
    [((2, 3), (3, 4), ("mk,kn->mn", [], [])), ((1, 2, 3), (7, 3, 4), ("mk,akn->amn", [0], [])),
     ((5, 2, 3), (1, 3, 4), ("amk,kn->amn", [], [0])), ((1, 2, 3), (1, 3, 4), ("amk,akn->amn", [], [])),
     ((5, 1, 2, 3), (1, 7, 3, 4), ("amk,bkn->abmn", [1], [0])), ((3,), (7, 3, 4), ("k,akn->an", [], []))],
)  # fmt: skip
def test_dimensions_that_are_repeated_are_left_out(a, b, left):
    assert contraction.of_broadcast(a, b) == left


@pytest.mark.parametrize(
    ("dimension_numbers", "subscripts"),
    [((((1,), (0,)), ((), ())), "ab,bd->ad"), ((((0,), (1,)), ((), ())), "ab,ca->bc"),
     ((((1,), (1,)), ((0,), (0,))), "ab,ab->a")],
)  # fmt: skip
def test_of_dot_general(dimension_numbers, subscripts):
    assert contraction.of_dot_general(2, 2, dimension_numbers) == subscripts


def test_a_fresh_label_is_in_no_operand():
    assert contraction.fresh("ab,bc->ac") == "d"

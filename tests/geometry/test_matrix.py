"""Matrices that lie somewhere: parts and copies of them."""

from fastsgemm.geometry.layout import LeadingDimension
from fastsgemm.geometry.matrix import Address, Base, Matrix

A, WORKSPACE = Address(Base.A), Address(Base.WORKSPACE, 512)


def test_the_parts_of_a_batch_lie_where_its_strides_say():
    batch = Matrix(A, (2, 3, 4, 5), (100, 30, 7, 1), 4)
    assert (batch.extents, batch.steps, batch.rows_and_columns) == ((2, 3), (100, 30), (4, 5))
    one = batch.at((1, 2))
    assert one == Matrix(Address(Base.A, 640), (4, 5), (7, 1), 4) and one.stored == LeadingDimension(False, 7)
    assert batch.block((1, 2), (3, 3)) == Matrix(Address(Base.A, 36), (2, 3, 3, 3), (100, 30, 7, 1), 8)
    assert batch.transposed.strides == (100, 30, 1, 7) and batch.at(()) is batch


def test_a_copy_is_row_major_and_has_what_a_batch_repeats_once():
    spread = Matrix(A, (2, 3, 4, 5), (0, 300, 60, 3), 4, "A")
    copy = spread.copy_at(WORKSPACE)
    assert spread.stored is None and spread.nbytes == copy.nbytes == 4 * 3 * 4 * 5
    assert copy == Matrix(WORKSPACE, (2, 3, 4, 5), (0, 20, 5, 1), 0, "A packed")

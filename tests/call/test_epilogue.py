"""What the kernels of a product store, and where, and the launch that adds up parts of K: without a device."""

import numpy as np
import pytest
from msgspec.structs import replace

from fastsgemm.call.epilogue import Epilogue
from fastsgemm.call.plan import Draft, Scalar, When, Write
from fastsgemm.geometry.batch import Batch
from fastsgemm.geometry.matrix import Address, Base, Matrix
from fastsgemm.heuristics.explanation import device_at
from fastsgemm.problem import Sym

ALPHA, BETA = Scalar.ALPHA, Scalar.BETA
C = Matrix(Address(Base.C), (6, 8), (12, 1), name="C")
SOURCE = Matrix(Address(Base.SOURCE), (6, 8), (0, 1), name="S")


@pytest.fixture
def draft():
    return Draft(device_at("sm_90"))


def reduction(draft, c, source=None, sym=Sym.WHOLE, parts=3, **how):
    """Return the launch that adds up the parts, and its constants."""
    Epilogue(draft, c, source, sym, parts).add_reduction(draft, **how)
    [launch] = draft.launches
    return launch, dict(launch.kernel.constants)


@pytest.mark.parametrize("sym", Sym)
def test_one_part_is_stored_as_the_call_says(draft, sym):
    for source, reads in ((None, When.BETA), (SOURCE, None)):
        epilogue = Epilogue(draft, C, source, sym, 1)
        assert (epilogue.matrix, epilogue.ld, epilogue.steps) == (C, 12, ())
        assert (epilogue.alpha, epilogue.beta, epilogue.source, epilogue.sym) == (ALPHA, BETA, source, sym)
        assert epilogue.write == Write(C, complete=sym not in (Sym.LOWER, Sym.UPPER), reads=reads)
        epilogue.add_reduction(draft)
    assert draft.launches == [] and draft.size == 0


@pytest.mark.parametrize("sym", Sym)
def test_several_parts_are_stored_as_they_are_and_then_added_up(draft, sym):
    draft.reserve(100, "something else")
    epilogue = Epilogue(draft, C, SOURCE, sym, 3)
    sums = Matrix(Address(Base.WORKSPACE, 256), (3, 6, 8), (48, 8, 1), name="W")
    assert (epilogue.matrix, epilogue.ld, epilogue.part_stride) == (sums, 8, 48)
    assert (epilogue.alpha, epilogue.beta, epilogue.source) == (1, 0, None)
    assert epilogue.sym is (Sym.LOWER if sym else Sym.WHOLE)
    assert epilogue.write == Write(sums, complete=not sym)
    assert epilogue.constants(False) == {"TRANS_C": 0, "VEC_C": 4, "SOURCE": 0, "SYM": int(epilogue.sym)}
    assert epilogue.source_arguments() == (0, 0, 0)
    epilogue.add_reduction(draft, when=When.READS)
    [launch] = draft.launches
    assert launch.kernel.file == "reduce_parts.cu" and launch.early and launch.when is When.READS
    assert launch.arguments[:9] == (np.int32(6), np.int32(8), np.int32(3), sums, 48, ALPHA, BETA, C, 12)
    assert launch.arguments[9:] == (1, Batch((), (), (), ()).with_source(SOURCE))
    assert launch.writes == (Write(C, complete=sym not in (Sym.LOWER, Sym.UPPER)),)
    assert draft.size == 256 + 3 * 256  # 4 * 3 * 48 bytes, and up to 256


def test_the_parts_of_a_batch_lie_one_product_after_the_other(draft):
    batch = Matrix(Address(Base.C), (2, 5, 6, 8), (1000, 100, 1, 6), name="C")
    epilogue = Epilogue(draft, batch, None, Sym.WHOLE, 3)
    assert epilogue.steps == (5 * 3 * 48, 3 * 48) and epilogue.matrix.shape == (2, 5, 3, 6, 8)
    launch, _ = reduction(draft, batch)
    assert launch.arguments[8:10] == (1, 6)
    assert launch.arguments[10] == Batch((2, 5), epilogue.steps, epilogue.steps, (1000, 100))
    assert launch.grid[1:] == (10, 1)


def test_without_parts_beta_times_c_is_stored(draft):
    launch, _ = reduction(draft, C, parts=0, when=When.READS_NOTHING)
    assert launch.arguments[2:5] == (np.int32(0), 0, 0) and not launch.early and draft.size == 0


@pytest.mark.parametrize(
    ("c", "sym", "vec"),
    [
        (C, Sym.WHOLE, 4),
        (C, Sym.BOTH, 1),
        (replace(C, misalignment=4), Sym.WHOLE, 1),
        (C.as_strided((6, 7), (12, 1)), Sym.WHOLE, 1),
        (C.as_strided((6, 8), (11, 1)), Sym.WHOLE, 1),
        (C.as_strided((6, 8), (1, 12)), Sym.WHOLE, 1),
        (C.as_strided((3, 6, 8), (99, 12, 1)), Sym.WHOLE, 1),
        (C.as_strided((3, 6, 8), (100, 12, 1)), Sym.WHOLE, 4),
    ],
    ids=str,
)
def test_parts_are_read_four_floats_at_a_time_where_c_can_be_stored_so(draft, c, sym, vec):
    _, constants = reduction(draft, c, None, sym)
    assert constants["VEC_C"] == vec and constants["SOURCE"] == 0


@pytest.mark.parametrize(
    ("source", "read"), [(SOURCE, 4), (replace(SOURCE, misalignment=8), 1), (SOURCE.as_strided((6, 8), (1, 0)), 1)]
)
def test_so_is_a_source_that_lies_so(draft, source, read):
    _, constants = reduction(draft, C, source)
    assert (constants["VEC_C"], constants["SOURCE"]) == (4, read)
    narrow = C.as_strided((6, 7), (12, 1))
    draft.launches.clear()
    _, constants = reduction(draft, narrow, source.as_strided((6, 7), source.strides))
    assert (constants["VEC_C"], constants["SOURCE"]) == (1, 1)


def test_segments_have_a_kernel_of_their_own(draft):
    launch, constants = reduction(draft, C, SOURCE, Sym.BOTH, in_order=True)
    assert launch.kernel.file == "reduce_segments.cu" and (constants["SOURCE"], constants["SYM"]) == (1, 1)

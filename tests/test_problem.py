import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastsgemm.errors import ShapeError
from fastsgemm.problem import (
    DTYPES,
    LAYOUTS,
    MAX_BATCH,
    MAX_EXTENT,
    DType,
    Dtypes,
    Problem,
    Ragged,
    as_data,
    checked,
    format_problem,
    octaves,
    of_data,
    parse,
    ragged_of,
    require_plain,
)

EXTENTS = st.integers(1, MAX_EXTENT)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1,2,3", Problem(1, 2, 3)),
        ("4096, 32 ,7,tn", Problem(4096, 32, 7, "TN")),
        ("1,1,1,NN", Problem(1, 1, 1)),
        ("64", Problem(64, 64, 64)),
        ("64,64,64,x512", Problem(64, 64, 64, "NN", 512)),
        ("1024,64,32, nt , X96 ", Problem(1024, 64, 32, "NT", 96)),
        ("64,x8", Problem(64, 64, 64, "NN", 8)),
        ("1,2,3,TT,x1", Problem(1, 2, 3, "TT")),
        ("64,64,32,sym", Problem(64, 64, 32, "NT", 1, True)),
        ("64,64,32,SYM,x3", Problem(64, 64, 32, "NT", 3, True)),
        ("1,2,3,NT,bf16xf32", Problem(1, 2, 3, "NT", dtypes=Dtypes(DType.BF16))),
        ("64,F32xF16,x2", Problem(64, 64, 64, "NN", 2, dtypes=Dtypes(b=DType.F16))),
        ("4096,64,32,m8", Problem(4096, 64, 32, "NN", 8, ragged=Ragged.ROWS)),
        ("1,2,3,NT,bf16xf32,N1", Problem(1, 2, 3, "NT", 1, dtypes=Dtypes(DType.BF16), ragged=Ragged.COLUMNS)),
        ("64, k3", Problem(64, 64, 64, "NN", 3, ragged=Ragged.K)),
    ],
)
def test_a_problem_is_read(text, problem):
    assert parse(text) == problem


@pytest.mark.parametrize(
    "text",
    [
        "", "1,2", "1,2,3,4", "1,2,3,NX", "1,2,x", "-1,2,3", "1.5,2,3", "1,2,3,NN,4",
        "x8", "1,2,x8", "1,2,3,x8,NN", "1,2,3,NN,x", "1,2,3,NN,x-8", "1,2,3,NN,xx8", "1,2,3,x2,x2", "1,2,3,x8.0",
        "1,2,3,bf16", "1,2,3,bf16xf64",
        "1,2,3,x2,bf16xf32", "bf16xf32",
        "m8", "1,2,3,m", "1,2,3,m8,x2", "1,2,3,g8", "1,2,3,m-8", "1,2,3,m8.0",
    ],
)  # fmt: skip
def test_what_is_no_problem_is_refused(text):
    with pytest.raises(ShapeError, match=r"N or M,N,K\[,LAYOUT\]\[,DTYPES\]\[,xCOUNT\], such as"):
        parse(text)


@given(
    EXTENTS, EXTENTS, EXTENTS, st.sampled_from(LAYOUTS), st.integers(1, MAX_BATCH),
    st.sampled_from([*DTYPES.values()]), st.sampled_from(Ragged),
)  # fmt: skip
def test_every_problem_is_read_back(M, N, K, layout, batch, dtypes, ragged):
    problem = Problem(M, N, K, layout, batch, dtypes=dtypes, ragged=ragged)
    assert parse(format_problem(problem)) == problem


def test_what_goes_without_saying_is_not_written():
    assert format_problem(Problem(1, 2, 3)) == "1,2,3"
    assert format_problem(Problem(1, 2, 3, "NT", 4)) == "1,2,3,NT,x4"
    assert format_problem(Problem(2, 2, 3, "NT", 4, True)) == "2,2,3,SYM,x4"


def test_the_types_of_the_operands():
    problem = parse("1,2,3,NN,bf16xf32")
    assert format_problem(problem.transposed) == "2,1,3,TT,f32xbf16"
    assert as_data(problem)["dtypes"] == "bf16xf32" and "dtypes" not in as_data(Problem(1, 2, 3))
    with pytest.raises(ShapeError, match="so it has A's type, got bf16xf32"):
        parse("2,2,3,SYM,bf16xf32")


def test_a_symmetric_result_is_square():
    with pytest.raises(ShapeError, match="as many rows as columns, got 2 and 3"):
        parse("2,3,4,SYM")
    assert as_data(Problem(2, 2, 3)).keys() < as_data(Problem(2, 2, 3, symmetric=True)).keys()
    assert Problem(2, 2, 3, "NT", symmetric=True).transposed.symmetric


def test_groups():
    problem = parse("100,64,32,TN,m8")
    assert format_problem(problem.transposed) == "64,100,32,TN,n8"
    assert problem.mean == Problem(13, 64, 32, "TN", 8) and Problem(1, 2, 3).mean == Problem(1, 2, 3)
    assert problem.flops == Problem(100, 64, 32).flops
    assert parse("100,64,32,k7").mean == Problem(100, 64, 5, batch=7)
    assert as_data(problem)["ragged"] == "M" and "ragged" not in as_data(Problem(1, 2, 3))
    with pytest.raises(ShapeError, match="groups have no symmetric results"):
        parse("64,64,32,SYM,m8")
    with pytest.raises(ShapeError, match=r"ragged must be 'M', 'N' or 'K', or empty .* got 'm'"):
        ragged_of("m")
    with pytest.raises(ShapeError, match="the ladder takes no groups, got 64,64,64,k2"):
        require_plain(parse("64,k2"), "the ladder")


@pytest.mark.parametrize("written", ["1,2,3", "4,4,3,SYM,x2", "1,2,3,NT,bf16xf32,x5", "7,8,9,m3"])
def test_data_are_read_back(written):
    problem = parse(written)
    assert of_data(as_data(problem) | {"ms": 1.0}) == problem
    assert of_data({"M": 1, "N": 2, "K": 3}) == Problem(1, 2, 3)


@pytest.mark.parametrize("extents", [(0, 1, 1), (1, MAX_EXTENT + 1, 1)])
def test_extents_have_limits(extents):
    with pytest.raises(ShapeError, match=str(MAX_EXTENT)):
        checked(Problem(*extents))


@pytest.mark.parametrize("batch", [0, -1, MAX_BATCH + 1, 2.0, True, "2", None])
def test_a_batch_has_limits(batch):
    with pytest.raises(ShapeError, match=f"a batch has 1 to {MAX_BATCH} products, got {batch!r}"):
        checked(Problem(64, 64, 64, "NN", batch))


def test_a_batch_is_as_far_away_as_an_extent():
    assert octaves(Problem(64, 64, 64), Problem(64, 64, 64, "TT")) == 0.0
    assert octaves(Problem(64, 64, 64, batch=8), Problem(64, 32, 128, batch=2)) == 4.0

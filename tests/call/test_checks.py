"""Every refusal, through the public call on host arrays: which error, what it says, and that C is left alone."""

import fractions
import math
import re

import numpy as np
import pytest

import fastsgemm
from fastsgemm import SkinnyConfig, sgemm
from fastsgemm.call import checks
from fastsgemm.errors import (
    ConfigError,
    DeviceMismatchError,
    DTypeError,
    NoDriverError,
    OperandError,
    OverlapError,
    ScalarError,
    ScalarRangeError,
    ShapeError,
    StreamError,
    UnknownRungError,
)
from fastsgemm.problem import MAX_EXTENT

pytestmark = pytest.mark.usefixtures("on_host")


def ones(*shape):
    return np.ones(shape, np.float32)


def refuses(error, message, *args, C=None, **options):
    """See that the call raises exactly this error with this message, and that no byte of C's buffer changes."""
    memory = C.base if C is not None and isinstance(C.base, np.ndarray) else C
    before = None if memory is None else memory.tobytes()
    with pytest.raises(error, match=message) as caught:
        sgemm(*args, C=C, **options)
    assert caught.type is error
    assert memory is None or memory.tobytes() == before


@pytest.fixture
def C():
    return np.full((3, 5), 7.5, np.float32)


A, B = ones(3, 4), ones(4, 5)

NOT_ARRAYS = {"list": [[1.0]], "float": 2.0, "none": None, "numpy scalar": np.float32(1), "string": "A"}


@pytest.mark.parametrize("thing", NOT_ARRAYS.values(), ids=NOT_ARRAYS)
def test_what_is_not_an_array(C, thing):
    name = f"{type(thing).__module__}.{type(thing).__qualname__}"
    refuses(DTypeError, f"operands must be arrays .* got {name}; numpy.asarray.x, 'float32'. makes one", thing, B, C=C)
    refuses(DTypeError, f"operands must be arrays .* got {name}", A, thing, C=C)
    if thing is not None:
        with pytest.raises(DTypeError, match=name):
            sgemm(A, B, C=thing)


def test_what_to_do_with_complex_operands():
    message = r"A must be float32, got complex64; complex products .* parts, such as sgemm\(A\.real, B\.real\)"
    refuses(DTypeError, message, A.astype(np.complex64), B)


@pytest.mark.parametrize("dtype", ["float16", "int32", "complex64", "bool", ">f4", "float64"])
@pytest.mark.parametrize("place", ["A", "B", "C"])
def test_a_dtype_that_is_not_native_float32_is_named(C, dtype, place):
    operands = {"A": A, "B": B, "C": C}
    operands[place] = operands[place].astype(dtype)
    name = str(np.dtype(dtype))
    real = "int" in name or name.startswith(("float", ">"))
    hint = f"; {name} is not converted silently, cast it yourself" if real else ""
    if dtype == "float16":
        hint = "; only what is passed as out=" if place == "C" else "; 16-bit operands need a precision by name"
    message = f"{place} must be float32, got {name}{hint}"
    refuses(DTypeError, message, operands["A"], operands["B"], C=operands["C"])


@pytest.mark.parametrize("place", ["A", "B", "C"])
def test_float64_is_said_not_to_be_converted(C, place):
    operands = {"A": A, "B": B, "C": C}
    operands[place] = operands[place].astype(np.float64)
    refuses(DTypeError, "float64 is not converted silently", operands["A"], operands["B"], C=operands["C"])


def test_the_number_of_dimensions(C):
    refuses(ShapeError, "A must have at least 1 dimension, got 0: .*B .4, 5., C .3, 5.", ones(), B, C=C)
    refuses(ShapeError, "B must have at least 1 dimension, got 0", A, ones(), C=C)
    for shape in ((), (15,), (1, 3, 5)):
        refuses(ShapeError, r"C must have shape \(3, 5\)", A, B, C=ones(*shape))


def test_batches_that_do_not_broadcast():
    message = r"before the last two must broadcast: A \(2, 3, 4\), B \(3, 4, 5\)"
    refuses(ShapeError, message, ones(2, 3, 4), ones(3, 4, 5))
    refuses(ShapeError, r"C must have shape \(2, 3, 5\)", ones(2, 3, 4), B, C=ones(3, 5))


def test_c_where_out_is_written():
    refuses(ShapeError, r"out must have shape \(3, 5\): A \(3, 4\), B \(4, 5\), C \(5,\), out \(5, 3\)",
            A, B, 1.0, 1.0, C=ones(5), out=ones(5, 3))  # fmt: skip
    for shape in ((4,), (2, 1), (1, 3, 5)):
        refuses(ShapeError, r"C must broadcast to \(3, 5\)", A, B, 1.0, 1.0, C=ones(*shape), out=ones(3, 5))


@pytest.mark.parametrize("beta", [{}, {"beta": 0}, {"beta": np.float32(0)}, {"beta": fractions.Fraction(0)}], ids=repr)
def test_c_beside_out_that_beta_leaves_out(beta):
    """As in sgemm(x, W.T, C=bias, out=y), whose beta is 0 where none is given."""
    out = np.full((3, 5), 7.5, np.float32)
    message = "C beside out= is multiplied by beta, which is 0, so it would be left out; pass beta=1 to add it, or no C"
    refuses(ScalarRangeError, message, A, B, C=ones(5), out=out, **beta)
    assert (out == 7.5).all()
    np.testing.assert_array_equal(sgemm(A, B, C=out, out=out, **beta), np.full((3, 5), 4.0))
    np.testing.assert_array_equal(sgemm(A, B, beta=1, C=ones(5), out=out), np.full((3, 5), 5.0))


def test_shapes_that_do_not_fit_are_all_shown(C):
    shown = r"A \(3, 4\), B \(6, 5\), C \(3, 5\)"
    refuses(ShapeError, rf"A's columns must equal B's rows, got 4 and 6: {shown}", A, ones(6, 5), C=C)
    refuses(ShapeError, r"got 4 and 6: A \(3, 4\), B \(6, 5\)$", A, ones(6, 5))
    shown = r"A \(3, 4\), B \(4, 5\), C \(5, 3\)"
    refuses(ShapeError, rf"C must have shape \(3, 5\): {shown}", A, B, C=ones(5, 3))


def test_an_extent_above_the_limit():
    wide = np.broadcast_to(np.float32(1), (MAX_EXTENT + 1, 1))
    refuses(ShapeError, f"at most {MAX_EXTENT}, got {MAX_EXTENT + 1}", wide, ones(1, 1))
    refuses(ShapeError, f"at most {MAX_EXTENT}, got {MAX_EXTENT + 1}", ones(1, 1), wide.T)
    refuses(ShapeError, f"at most {MAX_EXTENT}, got {MAX_EXTENT + 1}", wide.T, wide)
    assert checks.result_shape((MAX_EXTENT, 1), (1, 1)) == (MAX_EXTENT, 1)


def test_a_read_only_c():
    C = ones(3, 5)
    C.flags.writeable = False
    refuses(OperandError, "C is read-only", A, B, C=C)


def test_an_expanded_c():
    row = np.full(5, 7.5, np.float32)
    expanded = np.lib.stride_tricks.as_strided(row, (3, 5), (0, 4))
    refuses(
        OverlapError,
        r"elements of C share memory \(shape \(3, 5\), strides \(0, 1\).*; pass a copy of C",
        A,
        B,
        C=expanded,
    )
    refuses(OperandError, "C is read-only", A, B, C=np.broadcast_to(row, (3, 5)))


def test_a_c_whose_lines_overlap():
    buffer = np.full(20, 7.5, np.float32)
    sliding = np.lib.stride_tricks.as_strided(buffer, (3, 5), (16, 4))
    refuses(OverlapError, "elements of C share memory", A, B, C=sliding)
    assert (buffer == 7.5).all()


def test_c_overlapping_an_operand():
    buffer = ones(8, 8)
    refuses(OverlapError, "C shares memory with A", buffer[:3, :4], B, C=buffer[2:5, 3:])
    refuses(OverlapError, "C shares memory with B", A, buffer[:4, :5], C=buffer[3:6, :5])
    refuses(OverlapError, "C shares memory with A", buffer[:3, :3], ones(3, 3), C=buffer[:3, :3])


def test_interleaved_views_of_one_buffer_do_not_overlap():
    buffer = ones(8, 16)
    C = buffer[:, 1::2]
    assert sgemm(buffer[:, ::2], ones(8, 8), C=C) is C
    assert (buffer[:, ::2] == 1).all() and (C == 8).all()


@pytest.mark.parametrize("value", [1j, "2", None, [1.0], np.complex64(1), np.ones(1, np.float32)], ids=repr)
@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_scalar_that_is_no_real_number(C, name, value):
    refuses(ScalarError, f"{name} must be a real number, got {type(value).__name__}", A, B, C=C, **{name: value})


def test_an_array_as_scalar_may_be_meant_as_c(C):
    refuses(ScalarError, "alpha must be a real number, got ndarray; an array to update is passed as C=", A, B, C)


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_tensor_as_scalar(C, name, torch):
    refuses(
        ScalarError, f"{name} must be a real number, got Tensor; pass .item()", A, B, C=C, **{name: torch.tensor(1.0)}
    )


BEYOND = {
    3.402823567797337e38: "3.402823567797337e+38",  # rounds to 2**128
    1e39: "1e+39",
    -1e300: "-1e+300",
    10**39: "1e+39",
    -(2**1100): "about -2**1100",
    fractions.Fraction(2**1100, 3): "about 2**1098",
}


@pytest.mark.parametrize(("value", "shown"), BEYOND.items(), ids=BEYOND.values())
@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_finite_scalar_beyond_float32(C, name, value, shown):
    message = f"{name} must fit float32, whose largest number is 3.4028235e+38, got {shown}"
    refuses(ScalarRangeError, f"^{re.escape(message)}$", A, B, C=C, **{name: value})


@pytest.mark.parametrize("value", [3.4028235e38, -3.4028235677973362e38])
def test_a_scalar_that_rounds_to_the_largest_float32(value):
    assert checks.scalar("alpha", value) == math.copysign(np.finfo(np.float32).max, value)


@pytest.mark.parametrize(
    "value",
    [2, True, np.float64(2.5), np.int8(3), fractions.Fraction(1, 3), 3.4028234663852886e38, math.inf, -0.0],
    ids=repr,
)
def test_every_real_number_is_rounded_to_float32(value):
    rounded = checks.scalar("alpha", value)
    assert type(rounded) is float
    assert np.float64(rounded).tobytes() == np.float64(np.float32(float(value))).tobytes()
    assert math.isnan(checks.scalar("alpha", math.nan))


def test_beta_without_c():
    refuses(ScalarRangeError, "beta must be 0 when C is not given, got 0.5", A, B, 1.0, 0.5)
    refuses(ScalarRangeError, "beta must be 0 when C is not given, got nan", A, B, 1.0, math.nan)


@pytest.mark.parametrize("rung", ["cublas", 0, len(fastsgemm.RUNGS) + 1, -1, 1.0, True, "8", ()], ids=repr)
def test_an_unknown_rung(C, rung):
    refuses(UnknownRungError, "the ladder has 1 naive, 2 coalesced, .* 11 fp16x3", A, B, C=C, rung=rung)


def test_a_config_of_another_type(C):
    given = {"BM": 8, "BN": 8}
    refuses(ConfigError, "config must be a fastsgemm.Config, got dict", A, B, C=C, config=given)
    message = "config must be a fastsgemm.Config, such as the BlockConfig of rung coalesced, got dict"
    refuses(ConfigError, message, A, B, C=C, config=given, rung=2)


def test_a_rung_or_a_config_where_there_is_no_device(C):
    refuses(NoDriverError, "rung=8 warptiled.* needs an NVIDIA GPU", A, B, C=C, rung="warptiled")
    config = SkinnyConfig(4, 32, 64, TN=4, TK=8)
    refuses(NoDriverError, r"config=SkinnyConfig\(BM=4, .* asks for", A, B, C=C, config=config)
    refuses(NoDriverError, "batch_invariant=True asks for", A, B, C=C, batch_invariant=True)


def test_a_stream_for_host_arrays(C):
    refuses(StreamError, "a call on host arrays returns when the result is there", A, B, C=C, stream=object())


def test_a_tensor_that_requires_grad(torch):
    a, b, c = (torch.ones(4, 4) for _ in range(3))
    learned = torch.ones(4, 4, requires_grad=True)
    for operands, name in (((learned, b, c), "A"), ((a, learned, c), "B"), ((a, b, learned), "C")):
        with pytest.raises(OperandError, match=rf"{name} requires grad.*\.detach\(\)"):
            sgemm(operands[0], operands[1], C=operands[2], rung="naive")
        with pytest.raises(OperandError, match=rf"{name} requires grad.*all operands must be tensors"):
            sgemm(*(x if x is learned else x.numpy() for x in operands[:2]), C=operands[2])
        assert (operands[2] == 1).all()


def test_a_tensor_with_the_negative_bit(torch):
    lazy = torch.ones(4, 4, dtype=torch.complex64).conj().imag
    assert lazy.is_neg()
    c = torch.full((4, 4), 7.5)
    with pytest.raises(OperandError, match=r"A has the negative bit.*\.resolve_neg\(\)"):
        sgemm(lazy, torch.ones(4, 4), C=c)
    assert (c == 7.5).all()


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "complex64"])
def test_the_dtype_of_a_tensor(torch, dtype):
    of_bfloat16 = "bfloat16; 16-bit operands need a precision by name"
    hint = {"float64": "torch.float64; float64 is not converted silently", "bfloat16": of_bfloat16}.get(dtype, "")
    with pytest.raises(DTypeError, match=f"B must be float32, got {hint or (dtype and 'torch.' + dtype)}"):
        sgemm(torch.ones(3, 3), torch.ones(3, 3, dtype=getattr(torch, dtype)))


def test_a_sparse_tensor(torch):
    with pytest.raises(OperandError, match=r"A is stored as torch.sparse_coo; only strided"):
        sgemm(torch.eye(3).to_sparse(), torch.ones(3, 3))


def test_an_expanded_tensor_as_c(torch):
    row = torch.full((1, 5), 7.5)
    with pytest.raises(OverlapError, match="elements of C share memory"):
        sgemm(torch.ones(3, 4), torch.ones(4, 5), C=row.expand(3, 5))
    assert (row == 7.5).all()


def test_a_tensor_and_an_array_that_share_memory(torch):
    buffer = ones(4, 4)
    refuses(OverlapError, "C shares memory with A", torch.from_numpy(buffer), ones(4, 4), C=buffer)


def test_a_tensor_that_is_nowhere(torch):
    with pytest.raises(DeviceMismatchError, match="a torch tensor on meta is neither on the host nor"):
        sgemm(torch.ones(3, 3, device="meta"), torch.ones(3, 3))


class OnDevice:
    """What an array on a CUDA device says of itself."""

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **options):
        raise AssertionError("nothing may be exported")


def test_an_operand_on_another_device_than_the_rest(C):
    refuses(DeviceMismatchError, "an operand on the host, B on cuda:0", A, OnDevice(), C=C)


def test_operands_on_two_devices_are_shown():
    with pytest.raises(DeviceMismatchError, match="one device, got A on cuda:0, B on cuda:1, C on cuda:0"):
        checks.one_device({"A": "cuda:0", "B": "cuda:1", "C": "cuda:0"})
    checks.one_device({"A": "cuda:1", "B": "cuda:1"})


def test_the_first_fault_found_is_a_fastsgemm_error(C):
    with pytest.raises(fastsgemm.FastsgemmError):
        sgemm(A, A, C=C)

"""Every integer instruction against Python's own integers."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastsgemm.sim import alu
from fastsgemm.sim.slots import DTYPES

EDGES = (
    0,
    1,
    2,
    3,
    7,
    31,
    32,
    33,
    63,
    64,
    255,
    256,
    2**15,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**63,
    2**64 - 1,
)
patterns = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**64 - 1))


def _width(t):
    return 8 * np.dtype(DTYPES[t]).itemsize


def _wrap(value, t):
    """Return an integer as type `t` holds it."""
    value &= (1 << _width(t)) - 1
    return value - (1 << _width(t)) if t[0] == "s" and value >> (_width(t) - 1) else value


def _towards_zero(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _run_all(opcode, *columns):
    """Return the results for all rows of operands at once, as the lanes of a warp have them."""
    operation = alu.TABLE[opcode]
    arrays = [np.array(column, DTYPES[t]) for column, t in zip(columns, operation.sources, strict=True)]
    with np.errstate(all="ignore"):
        result = operation.compute(*arrays)
    assert result.dtype == DTYPES[operation.result], opcode
    return result.tolist()


def _run(opcode, *values):
    return _run_all(opcode, *([value] for value in values))[0]


def _values(t):
    """Edges, numbers beside them and random ones, as type `t` holds them."""
    draw = np.random.default_rng(4)
    near = [(edge + step) % 2**64 for edge in EDGES for step in (-1, 0, 1)]
    anything = [int(draw.integers(2**63)) >> int(shift) for shift in draw.integers(0, 63, 12)]
    return sorted({_wrap(value, t) for value in near + anything})


TWO = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
    "div": lambda a, b: _towards_zero(a, b) if b else -1,
    "rem": lambda a, b: a - _towards_zero(a, b) * b if b else a,
}


@pytest.mark.parametrize("t", alu.INTEGERS)
@pytest.mark.parametrize("name", TWO)
def test_two_operands(name, t):
    pairs = list(itertools.product(_values(t), repeat=2))
    found = _run_all(f"{name}.{t}", *zip(*pairs, strict=True))
    assert found == [_wrap(TWO[name](a, b), t) for a, b in pairs]


@pytest.mark.parametrize("t", alu.WIDER)
@given(patterns, patterns, patterns)
def test_wide_products(t, a, b, c):
    a, b, c, wide = _wrap(a, t), _wrap(b, t), _wrap(c, alu.WIDER[t]), alu.WIDER[t]
    assert _run(f"mul.wide.{t}", a, b) == a * b
    assert _run(f"mad.wide.{t}", a, b, c) == _wrap(a * b + c, wide)
    assert _run(f"mul.hi.{t}", a, b) == _wrap(a * b >> _width(t), t)


@given(patterns, patterns, patterns)
def test_dot_products_of_halves(a, b, c):
    a, b, c = (_wrap(x, "u32") for x in (a, b, c))
    expected = c + a % 2**16 * (b % 2**8) + (a >> 16) * (b // 2**8 % 2**8)
    assert _run("dp2a.lo.u32.u32", a, b, c) == _wrap(expected, "u32")


@pytest.mark.parametrize("t", alu.INTEGERS)
@given(patterns, patterns, st.integers(0, 80))
def test_shifts_and_mad(t, a, b, count):
    a, b, bits = _wrap(a, t), _wrap(b, t), _wrap(a, "u" + t[1:])
    assert _run(f"shr.{t}", a, count) == a >> count
    assert _run(f"shl.b{t[1:]}", bits, count) == _wrap(bits << count, "u" + t[1:])
    assert _run(f"mad.lo.{t}", a, b, 5 if count else 0) == _wrap(a * b + (5 if count else 0), t)


@pytest.mark.parametrize("width", [32, 64])
@given(patterns, patterns, st.integers(0, 70), st.integers(0, 70))
def test_bit_fields(width, a, b, start, length):
    a, b = a % 2**width, b % 2**width
    field = (1 << length) - 1
    inserted = (b & ~(field << start) | (a & field) << start) % 2**width
    assert _run(f"bfi.b{width}", a, b, start, length) == inserted
    assert _run(f"bfe.u{width}", a, start, length) == a >> start & field


@given(patterns, patterns, patterns, st.integers(0, 255))
def test_look_up_table(a, b, c, table):
    a, b, c = (x % 2**32 for x in (a, b, c))
    expected = sum((table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i for i in range(32))
    assert _run("lop3.b32", a, b, c, table) == expected


@given(patterns, patterns, patterns)
def test_permuted_bytes(a, b, selector):
    a, b, selector = (x % 2**32 for x in (a, b, selector))
    source = a.to_bytes(4, "little") + b.to_bytes(4, "little")
    choices = [selector >> 4 * i & 15 for i in range(4)]
    chosen = [source[choice & 7] if choice < 8 else 255 * (source[choice & 7] > 127) for choice in choices]
    assert _run("prmt.b32", a, b, selector) == int.from_bytes(bytes(chosen), "little")


@pytest.mark.parametrize("source", ["u8", "s8", *alu.INTEGERS])
@pytest.mark.parametrize("result", alu.INTEGERS)
def test_conversions(source, result):
    values = _values(source)
    assert _run_all(f"cvt.{result}.{source}", values) == [_wrap(value, result) for value in values]


@pytest.mark.parametrize("t", [*alu.INTEGERS, "b32"])
@given(patterns, patterns)
def test_integer_comparisons(t, a, b):
    a, b = _wrap(a, t), _wrap(b, t)
    found = {name: _run(f"setp.{name}.{t}", a, b) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
    assert found == {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}


@pytest.mark.parametrize("a", [0.0, -0.0, 1.0, -2.0, float("inf"), float("nan")])
@pytest.mark.parametrize("b", [0.0, 1.0, float("nan")])
def test_float_comparisons(a, b):
    unordered = a != a or b != b
    ordered = {"eq": a == b, "ne": a != b and not unordered, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    for name, expected in ordered.items():
        assert _run(f"setp.{name}.f32", a, b) == expected
        assert _run(f"setp.{name}u.f32", a, b) == (expected or unordered)
    assert _run("setp.nan.f32", a, b) == unordered
    assert _run("setp.num.f32", a, b) != unordered
    assert _run("setp.ltu.and.f32", a, b, False) is False
    assert _run("setp.lt.or.f32", a, b, True) is True


def test_selection_and_shared_window():
    assert _run("selp.b32", 5, 6, True) == 5
    assert _run("selp.f32", 5.0, 6.0, False) == 6.0
    assert _run("cvta.to.shared.u64", _run("cvta.shared.u64", 48)) == 48


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("a", [-(2**31), -5, -1, 0, 1, 2**31 - 1])
@pytest.mark.parametrize("b", [-7, 0, 3])
def test_relu_after_min_and_max(name, a, b):
    """What NVRTC 13.5 uses for sm_100 and sm_120."""
    assert _run(f"{name}.relu.s32", a, b) == max({"min": min, "max": max}[name](a, b), 0)

"""A problem: M, N, K, a layout, a batch or groups, types and symmetry; its spelling, and the distance of two."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

from fastsgemm import arguments
from fastsgemm.errors import ShapeError

_MOST_DIGITS = 20  # Python refuses to read more than 4300


class Sym(IntEnum):
    """The part of a result that is stored: the constant SYM of the kernels, see ``cuda_src/device/triangle.cuh``.

    Except with WHOLE, alpha A B is symmetric and one triangle of it is computed.
    """

    WHOLE = 0
    BOTH = 1  # the triangle is stored twice, the second time transposed
    LOWER = 2  # only this triangle of C is stored
    UPPER = 3

    @property
    def leaves_one(self) -> bool:
        """Whether one triangle of C is left as it was."""
        return self >= Sym.LOWER

    @property
    def transposed(self) -> Sym:
        """The value for the same elements of C^T."""
        return {Sym.LOWER: Sym.UPPER, Sym.UPPER: Sym.LOWER}.get(self, self)

    @property
    def of_parts(self) -> Sym:
        """What is stored of the sums over a part of K: what adds the parts up stores both triangles."""
        return Sym.LOWER if self else self


class Ragged(IntEnum):
    """What of a product is divided into groups: the constant GROUPED of rung 9, see ``cuda_src/device/groups.cuh``."""

    NOTHING = 0
    ROWS = 1  # of A and C; each group has its own B
    K = 2  # the columns of A and rows of B; each group has its own C
    COLUMNS = 3  # of B and C; each group has its own A

    @property
    def extent(self) -> str:
        """The name of the extent that is divided; empty with NOTHING."""
        return ("", "M", "K", "N")[self]

    @property
    def transposed(self) -> Ragged:
        """What is divided in C^T = B^T A^T."""
        return {Ragged.ROWS: Ragged.COLUMNS, Ragged.COLUMNS: Ragged.ROWS}.get(self, self)


class DType(IntEnum):
    """The type of an operand's elements: the constants TYPE_A and TYPE_B of the kernels, see ``device/element.cuh``."""

    F32 = 0
    BF16 = 1
    F16 = 2

    __hash__ = int.__hash__  # Enum's is written in Python, and every call looks a plan up by its types

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return 2 if self else 4

    @property
    def numpy_name(self) -> str:
        """The name in NumPy, PyTorch and JAX."""
        return ("float32", "bfloat16", "float16")[self]


class Dtypes(NamedTuple):
    """The types of A and B: one property of a problem."""

    a: DType = DType.F32
    b: DType = DType.F32

    @property
    def are_float32(self) -> bool:
        """Whether both are float32."""
        return not (self.a or self.b)

    def __str__(self) -> str:
        return f"{self.a.name}x{self.b.name}".lower()


FLOAT32 = Dtypes()
DTYPES = {str(pair): pair for pair in (Dtypes(a, b) for a in DType for b in DType)}  # by their spelling
LAYOUTS: tuple[str, ...] = ("NN", "NT", "TN", "TT")
SYMMETRIC = "SYM"  # written in place of a layout: NT with B = A transposed, in the same memory
WORDS = (*LAYOUTS, SYMMETRIC)
WRITTEN = "M,N,K[,LAYOUT][,DTYPES][,xCOUNT]"  # the spelling of a problem, in the help of the commands
_MARKS = {Ragged.NOTHING: "x", Ragged.ROWS: "m", Ragged.COLUMNS: "n", Ragged.K: "k"}
_LETTERS = {letter: ragged for ragged, letter in _MARKS.items()}


def parse(text: str) -> Problem:
    """Return the problem written as ``M,N,K`` or ``M,N,K,LAYOUT``, or ``N`` for M = N = K. A layout may be ``SYM``.

    The types of A and B, such as ``,bf16xf32``, may follow, and then ``,xCOUNT``, the number of products of a batch, or
    ``,mCOUNT``, ``,nCOUNT`` or ``,kCOUNT``, the number of groups that M, N or K is divided into.

    Raises
    ------
    ShapeError
        The text has another form, or a number is out of range.
    """
    extents, layout, dtypes, count, ragged = pieces(text)
    digits = all(part.isascii() and part.isdecimal() and len(part) <= _MOST_DIGITS for part in (*extents, count))
    if len(extents) not in (1, 3) or layout not in WORDS or dtypes not in DTYPES or not digits:
        raise ShapeError(
            f"a problem is written N or {WRITTEN}, such as 4096,4096,4096,TN or 64,64,64,x512, with numbers from 1 to "
            f"{MAX_EXTENT}, a LAYOUT of {', '.join(WORDS)}, and DTYPES such as bf16xf32; got {text!r}"
        )
    M, N, K = map(int, extents if len(extents) == 3 else 3 * extents)
    return of(M, N, K, layout, int(count), DTYPES[dtypes], ragged)


def of(
    M: int, N: int, K: int, word: str, batch: int = 1, dtypes: Dtypes = FLOAT32, ragged: Ragged = Ragged.NOTHING
) -> Problem:
    """Return the checked problem of these extents and a layout or ``SYM``; see `checked`."""
    symmetric = arguments.is_one_of(word, (SYMMETRIC,))
    return checked(Problem(M, N, K, "NT" if symmetric else word, batch, symmetric, dtypes, ragged))


def pieces(text: str) -> tuple[list[str], str, str, str, Ragged]:
    """Split a text such as ``64,64,64,NT,bf16xf32,x512`` into unchecked extents, layout, types and count.

    The last is what the letter before the count says.
    """
    extents, count, ragged = [part.strip() for part in text.split(",")], "1", Ragged.NOTHING
    if len(extents) > 1 and extents[-1][:1].lower() in _LETTERS and extents[-1][1:2].isdecimal():
        last = extents.pop()
        count, ragged = last[1:], _LETTERS[last[0].lower()]
    dtypes = extents.pop().lower() if extents and "x" in extents[-1].lower() and len(extents) > 1 else str(FLOAT32)
    layout = extents.pop().upper() if len(extents) == 4 else "NN"
    return extents, layout, dtypes, count, ragged


def ragged_of(extent: Any) -> Ragged:
    """Return what is ragged where this extent, ``M``, ``N`` or ``K``, is divided into groups; empty: nothing."""
    named = {each.extent: each for each in Ragged}
    if not arguments.is_one_of(extent, tuple(named)):
        raise ShapeError(f"ragged must be 'M', 'N' or 'K', or empty for products of one size, got {extent!r}")
    return named[extent]


def dtypes_of(text: Any) -> Dtypes:
    """Return the types of A and B from a text such as ``bf16xf32``, or raise `ShapeError`."""
    if not arguments.is_one_of(text, tuple(DTYPES)):
        raise ShapeError(f"the types of A and B are one of {', '.join(DTYPES)}, got {text!r}")
    return DTYPES[text]


def require_plain(problem: Problem, what: str) -> None:
    """Raise `ShapeError` for a problem of 16-bit operands or of groups; `what` begins the message."""
    if not problem.dtypes.are_float32:
        raise ShapeError(f"{what} takes float32 operands, got {format_problem(problem)}")
    require_one_size(problem, what)


def require_one_size(problem: Problem, what: str) -> None:
    """Raise `ShapeError` for a problem of groups; `what` begins the message."""
    if problem.ragged:
        raise ShapeError(f"{what} takes no groups, got {format_problem(problem)}")


def checked(problem: Problem) -> Problem:
    """Return `problem`, with ints, if it is valid and not empty, else raise `ShapeError`."""
    original = M, N, K, batch = problem.M, problem.N, problem.K, problem.batch
    if not type(M) is type(N) is type(K) is type(batch) is int:  # thousands of these are read with the database
        M, N, K, batch = (arguments.integer(extent) or 0 for extent in original)  # 0 is out of range, too
        problem = Problem(M, N, K, problem.layout, batch, problem.symmetric, problem.dtypes, problem.ragged)
    if min(M, N, K) < 1 or max(M, N, K) > MAX_EXTENT:
        raise ShapeError(f"M, N and K must be ints from 1 to {MAX_EXTENT}, got {original[:3]}")
    if not arguments.is_one_of(problem.layout, LAYOUTS):
        raise ShapeError(f"a layout is one of {', '.join(LAYOUTS)}, got {problem.layout!r}")
    if not 1 <= batch <= MAX_BATCH:
        raise ShapeError(f"a batch has 1 to {MAX_BATCH} products, got {original[3]!r}")
    if problem.ragged and problem.symmetric:
        raise ShapeError("groups have no symmetric results")
    if problem.symmetric and M != N:
        raise ShapeError(f"a symmetric result has as many rows as columns, got {M} and {N}")
    if problem.symmetric and problem.layout in ("NT", "TN") and len(set(problem.dtypes)) > 1:
        raise ShapeError(f"B is A transposed where a result is symmetric, so it has A's type, got {problem.dtypes}")
    return problem


def as_data(problem: Problem) -> dict[str, Any]:
    """Return the fields of `problem`, with `symmetric` and `ragged` only if true, and `dtypes` unless float32."""
    data = {name: value for name, value in asdict(problem).items() if name not in ("symmetric", "ragged") or value}
    dtypes = data.pop("dtypes")
    if problem.ragged:
        data["ragged"] = problem.ragged.extent
    return data if dtypes == FLOAT32 else data | {"dtypes": str(problem.dtypes)}


def of_data(data: Mapping[str, Any]) -> Problem:
    """Return the problem from fields in `data`, as `as_data` returns them; missing ones have defaults."""
    fields = {name: data[name] for name in ("M", "N", "K", "layout", "batch", "symmetric") if name in data}
    return Problem(
        **fields, dtypes=dtypes_of(data.get("dtypes", str(FLOAT32))), ragged=ragged_of(data.get("ragged", ""))
    )  # fmt: skip


def octaves(first: Problem, second: Problem) -> float:
    """Return the distance of two problems in octaves of extents and batch, regardless of layouts."""
    pairs = ((first.M, second.M), (first.N, second.N), (first.K, second.K), (first.batch, second.batch))
    return sum(abs(math.log2(max(1, a) / max(1, b))) for a, b in pairs)


def format_problem(problem: Problem) -> str:
    """Return `problem` as `parse` reads it, without NN and a batch of 1."""
    suffix = "" if problem.word == "NN" else f",{problem.word}"
    suffix += "" if problem.dtypes.are_float32 else f",{problem.dtypes}"
    batch = "" if problem.batch == 1 and not problem.ragged else f",{_MARKS[problem.ragged]}{problem.batch}"
    return f"{problem.M},{problem.N},{problem.K}{suffix}{batch}"


MAX_EXTENT = 2**31 - 2**16  # M, N and K are 32-bit in the kernels, with room for the largest tile past the end
MAX_GRID = 65535  # blocks of a grid along y and along z, which are the products of a batch
MAX_BATCH = MAX_GRID**2  # products of one launch


@dataclass(frozen=True)
class Problem:
    """The properties of a product that the choice of constants depends on."""

    M: int  # C is (M, N), A is (M, K), B is (K, N)
    N: int
    K: int
    layout: str = "NN"  # ``NN``, ``NT``, ``TN`` or ``TT``: whether A and B are row-major (N) or column-major (T)
    batch: int = 1  # number of such products computed at once, or of groups
    symmetric: bool = False  # the result is symmetric, and one triangle of it is computed
    dtypes: Dtypes = FLOAT32  # the types of A and B
    ragged: Ragged = Ragged.NOTHING  # the groups have this extent together, and no size in common

    @property
    def mean(self) -> Problem:
        """The products of all groups as if they had one size."""
        if not self.ragged:
            return self
        M, N, K = (
            -(-extent // self.batch) if name == self.ragged.extent else extent
            for name, extent in (("M", self.M), ("N", self.N), ("K", self.K))
        )
        return replace(self, M=M, N=N, K=K, ragged=Ragged.NOTHING)

    @property
    def word(self) -> str:
        """The spelling of the layout: ``SYM`` if the result is symmetric."""
        return SYMMETRIC if self.symmetric else self.layout

    @property
    def transposed(self) -> Problem:
        """The same product as C^T = B^T A^T."""
        return Problem(
            self.N, self.M, self.K, _TRANSPOSED[self.layout], self.batch, self.symmetric, Dtypes(*self.dtypes[::-1]),
            self.ragged.transposed,
        )  # fmt: skip

    @property
    def flops(self) -> int:
        """Floating-point operations: a multiplication and an addition for each step of each element."""
        return 2 * self.M * self.N * self.K * (1 if self.ragged else self.batch)


_TRANSPOSED = {"NN": "TT", "NT": "NT", "TN": "TN", "TT": "NN"}

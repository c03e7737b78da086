"""The problems on which `sgemm` and cuBLAS are timed, in sets, and the size classes of the reports."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastsgemm.geometry import variants
from fastsgemm.geometry.layout import Meta
from fastsgemm.geometry.matrix import Operand, operand_of
from fastsgemm.geometry.variants import Call
from fastsgemm.problem import LAYOUTS as OPERAND_LAYOUTS
from fastsgemm.problem import Problem, format_problem, of_data, parse

SEED = 107  # of the random problems; changed whenever these influenced a change, or one of them was tuned
LAUNCH_FLOPS = 10**8  # 0.1 GFLOP: an H200 computes that in 2 us, less than a launch takes
H200_FLOPS_PER_BYTE = 65.7 / 4.27  # TFLOP/s of its FP32 pipe over TB/s of a device copy, both measured
_DENSE, _ODD, _ALIGNED = 0, 1, 2  # kinds of padding of a random problem
_PADDINGS = (_DENSE, _DENSE, _ODD, _ALIGNED)
_ALIGNMENT = 32  # floats: 128 bytes, a cache line
_MULTIPLE = 8  # of the extents in every second round of problems

_LEAST = f"{LAUNCH_FLOPS / 1e9:g} GFLOP"
_DENSITY = f"{H200_FLOPS_PER_BYTE:.1f} FLOP per byte"
SIZES = {
    "launch-bound": f"less than {_LEAST}",
    "memory-bound": f"at least {_LEAST}, but less than {_DENSITY} of A, B and C",
    "compute-bound": f"at least {_LEAST} and {_DENSITY}",
}


def size_class(problem: Problem) -> str:
    """Return the size class of `problem`, a key of `SIZES`."""
    if problem.flops < LAUNCH_FLOPS:
        return "launch-bound"
    M, N, K = problem.M, problem.N, problem.K
    a, b = problem.dtypes
    moved_bytes = problem.batch * (a.item * M * K + b.item * K * N + 4 * M * N)
    return "memory-bound" if problem.flops < H200_FLOPS_PER_BYTE * moved_bytes else "compute-bound"


@dataclass(frozen=True)
class Sample:
    """A problem and the padding of its operands."""

    problem: Problem
    # Floats between the end of a line and the start of the next, for A, B and C. A line is a row, or a column of a
    # column-major operand. C is row-major.
    padding: tuple[int, int, int] = (0, 0, 0)

    @property
    def operands(self) -> tuple[Meta, ...]:
        """A, B and C. A batch is the first of three dimensions."""
        metas = []
        for array, padding in zip(variants.dense(self.problem), self.padding, strict=True):
            shape, (*_, down, right) = array.shape, array.strides
            lines, strides = (shape[-2], (down + padding, 1)) if right == 1 else (shape[-1], (1, right + padding))
            metas.append(Meta(shape, (*(lines * max(strides) for _ in shape[:-2]), *strides), array.dtype))
        return tuple(metas)

    @property
    def leading_dimensions(self) -> tuple[int, ...]:
        """lda, ldb and ldc."""
        return tuple(max(operand.strides[-2:]) for operand in self.operands)

    @property
    def call(self) -> Call:
        """The kernel's view of a call with these operands, at aligned addresses."""
        return variants.call_for(*self.described, extents=self.extents)

    @property
    def described(self) -> tuple[Operand, ...]:
        """A, B and C, at aligned addresses."""
        return tuple(map(operand_of, self.operands))

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents of the batch; none for one product."""
        return variants.extents_of(self.problem)

    @property
    def load_bytes(self) -> int:
        """Bytes of the widest load that A and B both allow: 16 to 2."""
        variant, dtypes = self.call.variant, self.problem.dtypes
        return min(dtypes.a.item * variant.vec_a, dtypes.b.item * variant.vec_b)

    def __str__(self) -> str:
        padded = "" if self.padding == (0, 0, 0) else "+" + "+".join(map(str, self.padding))
        return format_problem(self.problem) + padded


def sample_of(row: Mapping[str, Any]) -> Sample:
    """Return the sample of a row of results, which has the fields of the problem and lda, ldb and ldc."""
    sample = Sample(of_data(row))
    a, b, c = (row[name] - ld for name, ld in zip(("lda", "ldb", "ldc"), sample.leading_dimensions, strict=True))
    return Sample(sample.problem, (a, b, c))


def _dense_samples(text: str) -> tuple[Sample, ...]:
    """Return dense samples of the problems in a text; see `fastsgemm.problem.parse`."""
    return tuple(Sample(parse(size)) for size in text.split())


NAMED = (
    *_dense_samples("128 256 512 1024 2048 4096 8192 16384 1000 3000"),
    *_dense_samples("4095,4097,4093 333,777,555 4096,4096,128 8192,8192,64"),
    *_dense_samples("65536,64,64 100000,96,96 128,4096,4096 16,4096,4096 4096,32,4096 1,4096,4096 4096,1,4096"),
    *_dense_samples("2048,11008,4096 64,64,65536 256,256,16384 32,32,262144"),
)
LAYOUTS = tuple(Sample(Problem(4096, 4096, 4096, layout)) for layout in OPERAND_LAYOUTS)
# For the figure of the rate against the size: every multiple of 256 to 2048, then every 1024.
_SIDES = (*range(256, 2048, 256), *range(2048, 9216, 1024))
SQUARES = tuple(Sample(Problem(n, n, n, layout)) for n in _SIDES for layout in OPERAND_LAYOUTS)
_NARROW = (1, 8, 32)
NARROW = (
    *(Sample(Problem(rows, 4096, 4096, layout)) for rows in _NARROW for layout in OPERAND_LAYOUTS),
    *(Sample(Problem(4096, columns, 4096, layout)) for columns in _NARROW for layout in OPERAND_LAYOUTS),
    Sample(Problem(1, 1, 10**6)),
)
BATCHES = (
    # Attention: scores and their product with the values, for 1024 and 128 tokens, and for one new token.
    *_dense_samples("1024,1024,64,NT,x96 1024,64,1024,NN,x96 128,128,64,NT,x96 128,64,128,NN,x96"),
    *_dense_samples("1,1024,64,NT,x96 1,64,1024,NN,x96"),
    *(
        Sample(Problem(n, n, n, layout, count))
        for layout in ("NN", "NT")
        for n, count in ((16, 16384), (32, 4096), (64, 512), (128, 256), (256, 64), (512, 8), (1024, 16))
    ),
    # Small and deep, and odd extents.
    *_dense_samples("32,32,256,NN,x512 64,64,4096,NN,x64 64,64,4096,TN,x64 256,256,4096,NN,x8 33,65,129,NN,x300"),
)


def all_sizes() -> list[Sample]:
    """Return 100 random problems of every size class, with log-uniform extents from 1 to 8192."""
    samples = []
    for number, size in enumerate(SIZES):
        samples += _draw(100, SEED + number, 1, 8192, partial(_is_of, size))
    return samples


def _is_of(size: str, problem: Problem) -> bool:
    return size_class(problem) == size


def large(count: int = 200) -> list[Sample]:
    """Return `count` random problems of 1 to 300 GFLOP, with log-uniform extents from 64 to 12288."""
    return _draw(count, SEED + len(SIZES), 64, 12288, lambda problem: 10**9 <= problem.flops <= 3 * 10**11)


def _draw(count: int, seed: int, smallest: int, largest: int, accepted: Callable[[Problem], bool]) -> list[Sample]:
    """Return distinct random samples of `accepted` problems.

    The four layouts take turns; one turn of all four is a round. Every second round has extents that are multiples of
    8. Half of the rounds are dense, a quarter has 1 to 31 floats of padding a line, and a quarter is padded to the
    second multiple of 128 bytes after the end of the line.
    """
    generator = random.Random(seed)
    samples: list[Sample] = []
    while len(samples) < count:
        turn, layout = divmod(len(samples), len(OPERAND_LAYOUTS))
        multiple = _MULTIPLE if turn % 2 else 1
        M, N, K = (_extent(generator, smallest, largest, multiple) for _ in range(3))
        problem = Problem(M, N, K, OPERAND_LAYOUTS[layout])
        padding = _PADDINGS[turn // 2 % len(_PADDINGS)]
        a, b, c = (_padding(generator, padding, operand.strides) for operand in variants.dense(problem))
        sample = Sample(problem, (a, b, c))
        if accepted(problem) and sample not in samples:
            samples.append(sample)
    return samples


def _extent(generator: random.Random, smallest: int, largest: int, multiple: int) -> int:
    drawn: float = smallest * (largest / smallest) ** generator.random()
    return min(largest, max(multiple, multiple * round(drawn / multiple)))


def _padding(generator: random.Random, padding: int, strides: Sequence[int]) -> int:
    if padding == _DENSE:
        return 0
    if padding == _ODD:
        return generator.randint(1, _ALIGNMENT - 1)
    return _ALIGNMENT + -max(strides) % _ALIGNMENT


@dataclass(frozen=True)
class ProblemSet:
    """Problems that are timed together."""

    what: str  # the title in a report
    seconds: float  # of timing for each problem and library, `sgemm` and cuBLAS
    samples: Callable[[], Sequence[Sample]]


SETS = {  # in the order of a report
    "shapes": ProblemSet("named shapes", 0.3, lambda: NAMED),
    "layouts": ProblemSet("4096 x 4096 x 4096 in four layouts", 0.5, lambda: LAYOUTS),
    "narrow": ProblemSet("narrow results", 0.1, lambda: NARROW),
    "squares": ProblemSet("squares in four layouts", 0.1, lambda: SQUARES),
    "batches": ProblemSet("batches", 0.1, lambda: BATCHES),
    "random": ProblemSet("random problems of all sizes", 0.06, all_sizes),
    "large": ProblemSet("random problems of 1 to 300 GFLOP", 0.08, large),
}
GIVEN = "given"  # the set of problems from the command line
SETS_OF_A_RUN = SETS | {GIVEN: ProblemSet("problems that were asked for", 0.5, lambda: ())}

"""Rung 11 on the simulated device, launch by launch: what the split writes, and a product of given pairs."""

from dataclasses import dataclass

import numpy as np
from msgspec import structs

from fastsgemm import rungs
from fastsgemm.call.arrays import host_dtype
from fastsgemm.call.fp16x3 import add_product
from fastsgemm.call.plan import Draft
from fastsgemm.call.splitting import Unsplit, add_split, pairs_at
from fastsgemm.config import Fp16x3Config, Fp16x3MmaConfig
from fastsgemm.geometry.fp16x3 import SPARSE, line_bytes, split_arrays, stored_blocks
from fastsgemm.geometry.matrix import Address, Base, Matrix
from fastsgemm.heuristics.selection import GIVEN, Choice, Selection
from fastsgemm.host import as_float32
from fastsgemm.jit import source as jit_source
from fastsgemm.problem import DType, Sym
from fastsgemm.sim.gemm import run
from fastsgemm.sim.global_memory import misalignment
from fastsgemm.sim.machine import Machine

SPLIT = (Base.SPLIT_A, Base.SPLIT_B)
KERNELS = {
    "mma": ("sm_80", Fp16x3MmaConfig(BM=64, BN=64, WM=32, WN=32, STAGES=3, GROUP_M=2)),
    "wgmma": ("sm_90", Fp16x3Config(BM=64, BN=16, PROMOTE_STAGES=2, STAGES=4, GROUP_M=2)),
    "wide": ("sm_90", Fp16x3Config(BM=128, BN=32, PROMOTE_STAGES=1, STAGES=5, GROUP_M=1)),
}


@dataclass(frozen=True)
class Pairs:
    """A split operand: bits of pairs (blocks, lines, 64), info (lines, 2), places left out (lines, 4), and K."""

    pairs: np.ndarray
    info: np.ndarray
    where: np.ndarray
    K: int


def worst(found, A, B, alpha, beta, C):
    """Return the largest error in units of u = 2^-24 times (|alpha| |A| |B| + |beta| |C|)."""
    a, b, c = (as_float32(np.asarray(x)).astype(np.float64) for x in (A, B, C))
    exact, magnitude = alpha * (a @ b) + beta * c, abs(alpha) * (abs(a) @ abs(b)) + abs(beta) * abs(c)
    return float(np.max(np.abs(found - exact) / magnitude)) * 2.0**24


def machine(arch, multiprocessors=6):
    """Return a small simulated device: the guard has a block for each multiprocessor, and idle ones take time, too."""
    made = Machine(arch)
    made.device = structs.replace(made.device, multiprocessors=multiprocessors)
    return made


def as_stored(X, order, padding):
    """Return X with its rows or its columns contiguous, and so many elements between them."""
    if order == "columns":
        return as_stored(X.T, "rows", padding).T
    room = np.zeros((X.shape[0], X.shape[1] + padding), X.dtype)
    room[:, : X.shape[1]] = X
    return room[:, : X.shape[1]]


def source_of(file, constants):
    """Return the source of a kernel with these constants, and its defaults for the others."""
    return jit_source.with_constants(file, {**jit_source.defaults(file), **constants})


def lying(base, x):
    """Return where an array lies."""
    strides = tuple(step // x.itemsize for step in x.strides)
    return Matrix(Address(base), x.shape, strides, misalignment(x) % 16, base.name, host_dtype(x))


def memory_for(lines, K, dtype=DType.F32):
    """Return memory for a split operand, filled with what nothing leaves so, and its arrays."""
    at, blocks, halves = split_arrays(lines, K, dtype), stored_blocks(K), line_bytes(dtype) // 2
    memory = np.full(at.end, 0xFF, np.uint8)
    return memory, Pairs(
        memory[: blocks * lines * 2 * halves].view(np.uint16).reshape(blocks, lines, halves),
        memory[at.info :][: 8 * lines].view(np.int32).reshape(lines, 2),
        memory[at.where :][: 4 * SPARSE * lines].view(np.int32).reshape(lines, SPARSE),
        K,
    )


def split(matrices, machine, times=1):
    """Split matrices of (lines, K), some times in turn; return their arrays and the reports of the kernels."""
    draft, memory, found, operands = Draft(machine.device), {}, [], []
    for x, base, target in zip(matrices, (Base.A, Base.B), SPLIT, strict=False):
        dtype = host_dtype(x)
        memory[base], (memory[target], arrays) = x, memory_for(*x.shape, dtype)
        found.append(arrays)
        place = pairs_at(Address(target), split_arrays(*x.shape, dtype), *x.shape, base.name, dtype)
        operands.append(Unsplit(lying(base, x), place))
    for number in range(times):
        add_split(draft, operands, early=number > 0)
    reports = run(draft.plan(matrices[0].shape[1]), machine, memory, 1.0, 0.0)
    return found, [report for _, report in reports]


def plan_of(A, B, C, config, machine, swap_ab=False, source=None, split=(False, False), sym=Sym.WHOLE):
    """Return the plan of a product by rung 11 with this config, transposed or not."""
    draft = Draft(machine.device)
    operands = [lying(base, x) for base, x in zip((Base.A, Base.B, Base.C), (A, B, C), strict=True)]
    if source is not None:
        operands.append(lying(Base.SOURCE, source))
    add_product(draft, split, Choice(Selection(rungs.find("fp16x3"), config, GIVEN), trans_c=swap_ab), sym, *operands)
    return draft.plan(A.shape[1])


def multiply(A, B, alpha, beta, C, config, machine, swap_ab=False, source=None, sym=Sym.WHOLE):
    """Compute C <- alpha * A @ B + beta * C, or with beta times the source, or what `sym` says of it."""
    arrays = {Base.A: A, Base.B: B, Base.C: C, Base.SOURCE: source}
    plan = plan_of(A, B, C, config, machine, swap_ab, source, sym=sym)
    return run(plan, machine, arrays, np.float32(alpha), beta)


def product(a, b, alpha, beta, C, config, machine, swap_ab=False):
    """Compute all of a product of pairs but what the guard does; return the words that the guard looks at."""
    K = a.K
    A, B = np.zeros((a.pairs.shape[1], K), np.float32), np.zeros((K, b.pairs.shape[1]), np.float32)
    plan = plan_of(A, B, C, config, machine, swap_ab, split=(True, True))
    launches = tuple(launch for launch in plan.launches if launch.kernel.file != "guard_fp16x3.cu")
    plan = structs.replace(plan, launches=launches)
    arrays = {Base.A: A, Base.B: B, Base.C: C, Base.WORKSPACE: np.zeros(plan.workspace, np.uint8)}
    for base, one in zip(SPLIT, (a, b), strict=True):
        arrays[base], of_memory = memory_for(one.pairs.shape[1], K)
        for name in ("pairs", "info", "where"):
            getattr(of_memory, name)[...] = getattr(one, name)
    run(plan, machine, arrays, np.float32(alpha), beta)
    [words] = {write.matrix for launch in launches for write in launch.writes if write.matrix.name == "exceptions"}
    return arrays[Base.WORKSPACE][: 4 * words.shape[0]].view(np.int32)

"""Symmetric results: which calls compute one triangle, and that they write what the whole product has, once."""

import itertools

import numpy as np
import pytest
from msgspec.structs import replace

from fastsgemm import sgemm
from fastsgemm.call.plan import When
from fastsgemm.call.product import plan_of
from fastsgemm.config import PipelinedConfig
from fastsgemm.device import DeviceInfo
from fastsgemm.errors import ArgumentError, ShapeError
from fastsgemm.gemm import multiply_triangle
from fastsgemm.geometry import variants
from fastsgemm.geometry.layout import Meta, is_transpose
from fastsgemm.geometry.matrix import Base
from fastsgemm.problem import Problem, Sym, checked
from fastsgemm.request import PLAIN, of_gram, resolve

H200 = DeviceInfo("NVIDIA H200", "sm_90", 232448, 132)
CONFIG = PipelinedConfig(32, 32, 8, 4, 4, 16, 32, 1)
HOW = {"config": CONFIG}
LAYOUTS = {
    "row-major": lambda rows, columns: np.full((rows, columns), 99, np.float32),
    "column-major": lambda rows, columns: np.full((columns, rows), 99, np.float32).T,
    "padded": lambda rows, columns: np.full((rows + 1, columns + 3), 99, np.float32)[1:, 2:-1],
    "upwards": lambda rows, columns: np.full((rows, columns + 1), 99, np.float32)[::-1, 1:],
    "strided": lambda rows, columns: np.full((2 * rows, 3 * columns), 99, np.float32)[::2, ::3],
}


def laid_out(how, values):
    buffer = LAYOUTS[how](*values.shape)
    buffer[...] = values
    return buffer


def sym_of(gpu):
    """Return SYM of the last loaded kernel of rung 9."""
    spec = [each for each in gpu.kernels if each.file == "09_pipelined.cu"][-1]
    return dict(spec.constants)["SYM"]


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("how_a", "how_c"), [*itertools.product(LAYOUTS, LAYOUTS)])
def test_a_matrix_by_its_transpose(device, on_device, random, how_a, how_c):
    a, c = random(70, 30), random(70, 70)
    A, C = laid_out(how_a, a), laid_out(how_c, c)
    sgemm(on_device(A), on_device(A.T), 1.5, -0.5, on_device(C), **HOW)
    assert sym_of(device) == 1
    close(C, 1.5 * (a @ a.T) - 0.5 * c)
    buffer = C if C.base is None else C.base
    assert (buffer == 99).sum() == buffer.size - C.size
    new = laid_out(how_c, c)
    sgemm(on_device(A), on_device(A.T), 1.5, C=on_device(new), **HOW)
    assert np.array_equal(new, new.T)
    strided = how_a == "strided"
    assert device.compiled.count("copy_strided") == (strided or how_c == "strided")


def test_a_transpose_by_its_matrix_and_one_copy_for_both(device, on_device, random):
    a = random(70, 60)[:, ::2]
    C = np.full((30, 30), np.nan, np.float32)
    sgemm(on_device(a.T), on_device(a), C=on_device(C), **HOW)
    close(C, a.T @ a)
    assert len(device.launched) == 2 and sym_of(device) == 1  # one copy, one product


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 2, 2), (1, 4)])
def test_batches(device, on_device, random, shape, parts):
    a, c = random(*shape, 40, 50), random(*shape, 40, 40)
    out = np.full((*shape, 40, 40), np.nan, np.float32)
    if len(shape) == 4:  # of which a launch has room for three dimensions
        a = np.repeat(a, 2, axis=1)[:, ::2]
    B = a.swapaxes(-1, -2)
    sgemm(on_device(a), on_device(B), 0.5, 2.0, on_device(c), out=on_device(out), config=CONFIG.replace(SPLIT_K=parts))
    close(out, 0.5 * (a @ B) + 2.0 * c)
    assert sym_of(device) == (1 if parts == 1 else 2)


def test_a_matrix_that_the_batch_shares(device, on_device, random):
    a = np.broadcast_to(random(40, 50), (3, 40, 50))
    C = np.full((3, 40, 40), np.nan, np.float32)
    sgemm(on_device(a), on_device(a.swapaxes(1, 2)), C=on_device(C), **HOW)
    close(C, a @ a.swapaxes(1, 2))
    assert sym_of(device) == 1


@pytest.mark.parametrize("source", ["row", "column", "matrix", "transposed"])
def test_what_beta_multiplies_need_not_be_symmetric(device, on_device, random, source):
    a, c = random(70, 30), random(70, 70)
    S = {"row": c[0], "column": c[:, :1], "matrix": c, "transposed": c.T}[source]
    out = np.full((70, 70), np.nan, np.float32)
    sgemm(on_device(a), on_device(a.T), 1.0, -2.0, on_device(S), out=on_device(out), **HOW)
    close(out, a @ a.T - 2.0 * S)


def test_other_memory_of_the_same_shape_is_another_problem(device, on_device, random):
    """The first call on one does not decide for the other, whichever comes first."""
    a, b = random(64, 32), random(64, 32)
    for first, second in ((a, b), (b, b), (a, b), (b, a), (a, a)):
        C = np.full((64, 64), np.nan, np.float32)
        sgemm(on_device(first), on_device(second.T), C=on_device(C), **HOW)
        close(C, first @ second.T)
    specs = [each for each in device.kernels if each.file == "09_pipelined.cu"]
    assert sorted(dict(each.constants)["SYM"] for each in specs) == [0, 1]


def test_what_is_no_transpose_is_computed_whole(device, on_device, random):
    square, wide = random(64, 64), random(64, 128)
    stack = random(2, 64, 64)
    for A, B in (
        (square, square), (wide[:, :64], wide[:, 64:].T), (wide[:32], wide[32:].T), (square, square[::-1].T),
        (stack, stack), (stack, stack[::-1].swapaxes(1, 2)),
    ):  # fmt: skip
        C = np.full((*A.shape[:-1], B.shape[-1]), np.nan, np.float32)
        sgemm(on_device(A), on_device(B), C=on_device(C), **HOW)
        close(C, A @ B)
        assert sym_of(device) == 0


def test_is_transpose():
    one = Meta((2, 3, 4), (12, 4, 1))
    assert is_transpose(one, Meta((2, 4, 3), (12, 1, 4)))
    assert is_transpose(Meta((1, 3, 4), (7, 4, 1)), Meta((1, 4, 3), (12, 1, 4)))  # a batch of one has any step
    assert not is_transpose(one, one) and not is_transpose(Meta((3,), (1,)), Meta((3,), (1,)))
    assert not is_transpose(one, Meta((2, 4, 3), (0, 1, 4))) and not is_transpose(one, Meta((4, 3), (1, 4)))
    assert not is_transpose(Meta((), ()), Meta((), ()))
    assert not is_transpose(Meta((3, 4), ()), Meta((4, 3), ()))


@pytest.mark.parametrize("order", "CF")
def test_a_declared_result_is_mirrored(device, on_device, random, order):
    a, b = random(70, 30), random(30, 70)
    C = np.full((70, 70), np.nan, np.float32, order=order)
    sgemm(on_device(a), on_device(b), C=on_device(C), symmetric=True, **HOW)
    half = np.tril(a @ b) if order == "C" else np.triu(a @ b)
    close(C, half + half.T - np.diag(np.diag(half)))
    assert np.array_equal(C, C.T)


def test_refusals(device, on_device, random):
    a, b = on_device(random(70, 30)), on_device(random(30, 60))
    with pytest.raises(ShapeError, match=r"rows of A as columns of B, got A \(70, 30\) and B \(30, 60\)"):
        sgemm(a, b, symmetric=True)
    # The results of the last two look like square matrices.
    for one, other in ((70, 30), (30,)), ((70, 70, 30), (30,)), ((30,), (5, 30, 5)):
        with pytest.raises(ShapeError, match="needs matrices A and B"):
            sgemm(on_device(random(*one)), on_device(random(*other)), symmetric=True)
    with pytest.raises(ArgumentError, match="symmetric"):
        sgemm(a, b, symmetric=np.zeros(2))
    with pytest.raises(ShapeError, match="as many rows as columns, got 4 and 5"):
        checked(Problem(4, 5, 6, symmetric=True))


@pytest.mark.parametrize("how_c", LAYOUTS)
@pytest.mark.parametrize("beta", [0.0, -0.5])
@pytest.mark.parametrize("alpha", [0.0, 1.5])
@pytest.mark.parametrize("sym", [Sym.LOWER, Sym.UPPER])
def test_of_a_triangle_nothing_else_is_written(device, on_device, random, sym, alpha, beta, how_c):
    a, c = random(70, 600), random(70, 70)
    kept = np.tri(70, dtype=bool) if sym is Sym.LOWER else np.tri(70, dtype=bool).T
    c[kept & (beta == 0.0)] = np.nan
    C = laid_out(how_c, c)
    multiply_triangle(on_device(a), on_device(a.T), alpha, beta, on_device(C), sym)
    old = beta * c if beta else 0.0
    np.testing.assert_allclose(C, np.where(kept, alpha * (a @ a.T) + old, c), rtol=1e-4, atol=1e-3)
    assert np.array_equal(C[~kept], c[~kept])


PLANS = {
    "one launch": (PLAIN, Problem(2048, 2048, 2048, "TN")),
    "packed": (PLAIN, Problem(4096, 4096, 4096, "NT")),
    "split-K": (PLAIN, Problem(512, 512, 65536, "TN")),
    "batch": (PLAIN, Problem(512, 512, 512, "NT", 64)),
    "one order": (resolve(batch_invariant=True), Problem(512, 512, 65536, "NT")),
    "rung 11": (resolve("fp16x3"), Problem(2048, 2048, 2048, "NT")),
    "rung 11, split-K": (resolve("fp16x3"), Problem(256, 256, 65536, "TN")),
}


@pytest.mark.parametrize("symmetric", [Sym.WHOLE, Sym.LOWER, Sym.UPPER])
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_reads_a_once_and_knows_what_it_writes(name, symmetric):
    request, problem = PLANS[name]
    request = replace(of_gram(request), symmetric=symmetric)
    plan = plan_of(H200, request, variants.dense(problem))
    stored = [launch for launch in plan.launches if any(w.matrix.address.base is Base.C for w in launch.writes)]
    wanted = int(symmetric or Sym.BOTH)
    assert {dict(launch.kernel.constants)["SYM"] for launch in stored} == {wanted}
    assert not any(matrix.address.base is Base.B for launch in plan.launches for matrix in launch.matrices)
    for launch in stored:
        if launch.kernel.file in ("09_pipelined.cu", "reduce_parts.cu", "reduce_segments.cu"):
            [write] = [w for w in launch.writes if w.matrix.address.base is Base.C]
            assert write.complete is (wanted == 1)
    copies = [launch for launch in plan.launches if launch.kernel.file == "pack.cu"]
    assert len(copies) == (name == "packed")
    whole = plan_of(H200, request if "rung" in name else replace(request, symmetric=Sym.WHOLE, gram=False),
                    variants.dense(problem))  # fmt: skip
    assert plan.workspace <= whole.workspace or "split" in name
    splits = [launch for launch in plan.launches if launch.kernel.file == "split.cu"]
    assert all(launch.when is When.READS and launch.arguments[6:8] != (0, 0) for launch in splits)


def test_only_the_rungs_that_can_compute_a_triangle_do():
    for rung in ("naive", "warptiled", "skinny"):
        plan = plan_of(H200, of_gram(resolve(rung)), variants.dense(Problem(512, 512, 64, "NT")))
        assert all(dict(launch.kernel.constants).get("SYM", 0) == 0 for launch in plan.launches)


def test_split_operands_serve_for_both_sides():
    for split in ((True, False), (False, True), (True, True)):
        request = replace(of_gram(resolve("fp16x3")), split=split)
        plan = plan_of(H200, request, variants.dense(Problem(512, 512, 512, "NT")))
        assert not any(launch.kernel.file == "split.cu" for launch in plan.launches)
        bases = {matrix.address.base for launch in plan.launches for matrix in launch.matrices}
        assert len(bases & {Base.SPLIT_A, Base.SPLIT_B}) == 1

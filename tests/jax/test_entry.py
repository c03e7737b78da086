"""Entries for XLA: on the simulated device, they give the bits of the plan's own launches."""

import re

import numpy as np
import pytest
from msgspec.structs import replace

pytest.importorskip("jax")

from jax.lax import RaggedDotDimensionNumbers

from fastsgemm.call.arrays.library import KINDS
from fastsgemm.call.product import plan_of
from fastsgemm.config import F16DirectConfig
from fastsgemm.errors import CompileError
from fastsgemm.geometry.matrix import Base, Matrix
from fastsgemm.jax import contraction
from fastsgemm.jax.entry import Case, Entry, entries
from fastsgemm.jax.lowering import calls_of_groups
from fastsgemm.jax.ragged import ragged_product
from fastsgemm.jit.source import target
from fastsgemm.problem import FLOAT32, DType, Dtypes, Ragged
from fastsgemm.request import of_call, of_gram, resolve
from fastsgemm.sim import gemm, grouped, nvrtc, ptx
from fastsgemm.sim.global_memory import Region
from fastsgemm.sim.machine import Machine

ALPHA, BETA = 2.0, 0.5


def compiled(kernel, arch):
    return nvrtc.compile_source(kernel.text, target(kernel.file, arch))


def behind(entry, arch):
    """Return what NVRTC makes of a kernel, behind the entry."""
    kernel = entry.launch.kernel
    plain = compiled(kernel, arch)
    return replace(plain, ptx=entry.wrap(plain.ptx), log=plain.log.replace(kernel.name, entry.name))


def bits(
    subscripts, a, b, alpha=ALPHA, beta=BETA, *, traced, request=None, device="sm_90", dtypes=FLOAT32, written=DType.F32
):
    """Return C by the launches of a plan and by the entries for XLA, as integers."""
    machine, request = Machine(device), request or resolve()
    labels = contraction.labels_of(subscripts)
    shape = contraction.shape_of_result(labels, a, b)
    A, B, C = (np.random.default_rng(0).standard_normal(each).astype(np.float32) for each in (a, b, shape))
    A, B = (x.astype(KINDS[dtype]) if dtype else x for x, dtype in zip((A, B), dtypes, strict=True))
    C.reshape(-1)[::3] = -0.0  # a zero that is added to it may change it
    metas = contraction.metas(labels, a, b, dtypes, not request.symmetric, written)
    plan = plan_of(machine.device, of_call(request, output="out"), metas)
    C = C.astype(KINDS[written])
    wanted, result = C.copy(), C.copy()
    arrays = {Base.A: A.ravel(), Base.B: B.ravel(), Base.C: wanted.reshape(-1)}
    gemm.run(plan, machine, arrays, np.float32(alpha), np.float32(beta))
    memory = {
        "A": A, "B": B, "C": result, "WORKSPACE": np.full(max(1, -(-plan.workspace // 4)), np.nan, np.float32),
        "ALPHA": np.float32([alpha]), "BETA": np.float32([beta]),
    }  # fmt: skip
    run(entries(plan, Case(None, None, plan.K) if traced else Case(alpha, beta, plan.K)), memory, machine)
    return tuple(x.view(np.dtype(f"u{written.item}")) for x in (wanted, result))


def run(launched, memory, machine):
    """Launch entries on arrays by the names of `Base`."""
    for entry in launched:
        regions = {
            name: Region(memory[name].reshape(-1), read=True, write=name in entry.results, complete=False)
            for name in (*entry.operands, *entry.results)
        }
        launch = entry.launch
        machine.launch(
            behind(entry, machine.device.arch), entry.name, launch.grid, launch.threads, launch.shared_bytes,
            [*entry.operands, *entry.results], regions,
        )  # fmt: skip


NUMBERS = {  # of arrays A and B, the dimensions of ragged_dot_general and their shapes; of 100 rows or steps
    "rows": ((((1,), (1,)), ((), ())), [0], [0], (100, 24), (3, 24, 40)),
    "rows, each matrix transposed": ((((0,), (2,)), ((), ())), [1], [0], (24, 100), (3, 40, 24)),
    "rows, groups last": ((((1,), (0,)), ((), ())), [0], [2], (100, 24), (24, 40, 3)),
    "k": ((((0,), (0,)), ((), ())), [0], [], (100, 24), (100, 40)),
    "k, B transposed": ((((1,), (1,)), ((), ())), [1], [], (24, 100), (40, 100)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_groups(name):
    """They have the bits of the plan's own launch; what belongs to no group is left as it is."""
    numbers, ragged, group, *shapes = NUMBERS[name]
    machine, ends = Machine("sm_90"), np.array([30, 30, 90], np.int32)
    of = ragged_product(*shapes, (3,), RaggedDotDimensionNumbers(numbers, ragged, group))
    A, B = (np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in shapes)
    launched, workspace = calls_of_groups(machine.device, of.metas, 3, False)
    result = np.zeros(of.metas[2].shape, np.float32)
    memory = {
        "A": A, "B": B, "C": result, Base.OFFSETS.name: ends,
        "WORKSPACE": np.full(max(1, -(-workspace // 4)), np.nan, np.float32),
    }  # fmt: skip
    run([entry for entry, _ in launched], memory, machine)
    a, b = (
        np.lib.stride_tricks.as_strided(x, meta.shape, [4 * step for step in meta.strides])
        for x, meta in zip((A, B), of.metas, strict=False)
    )
    wanted = np.zeros_like(result)
    grouped.grouped_mm(a, b, ends, 1.0, 0.0, wanted, machine=machine)
    np.testing.assert_array_equal(result, wanted)
    if of.ragged is Ragged.K:
        expected = np.stack([a[:, i:j].astype(float) @ b[i:j] for i, j in ((0, 30), (30, 30), (30, 90))])
    else:
        expected = np.concatenate([a[:30].astype(float) @ b[0], a[30:90].astype(float) @ b[2], np.zeros((10, 40))])
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-4)


def test_an_address_that_is_loaded_with_other_words_is_refused():
    of = ragged_product((100, 24), (3, 24, 40), (3,), RaggedDotDimensionNumbers(*NUMBERS["rows"][:3]))
    [(entry, _)], _ = calls_of_groups(Machine("sm_90").device, of.metas, 3, False)
    text = compiled(entry.launch.kernel, "sm_90").ptx
    number = len(entry.launch.arguments) - 1
    load = re.search(rf"ld.param.u64\s+%rd\d+, \[fastsgemm_pipelined_param_{number}\+88\];", text)[0]
    assert "operand_SPLIT_A" in entry.wrap(text)
    for other in (".v2.u64", ".u32"):
        with pytest.raises(CompileError, match="in an unknown way"):
            entry.wrap(text.replace(load, load.replace(".u64", other)))
    with pytest.raises(CompileError, match="in an unknown way"):
        entry.wrap(text.replace(load, load.replace(".u64", ".v2.u64").replace("+88", "+80")))


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (ALPHA, BETA), (0.0, BETA), (0.0, 0.0), (-0.0, 0.0)])
def test_alpha_and_beta(traced, alpha, beta):
    np.testing.assert_array_equal(*bits("ik,kj->ij", (33, 40), (40, 50), alpha, beta, traced=traced))


@pytest.mark.parametrize(
    ("subscripts", "a", "b"),
    [
        ("ik,kj->ij", (8, 2000), (2000, 50)),  # skinny
        ("ik,kj->ij", (64, 2000), (2000, 64)),  # parts of K, which a second launch adds up
        ("kbi,jbk->bij", (40, 3, 33), (50, 3, 40)),
        ("ik,bkj->bij", (33, 40), (3, 40, 50)),
        ("bmk,bmn->kn", (3, 11, 40), (3, 11, 50)),
        ("ik,kj->ji", (33, 40), (40, 50)),
        ("k,k->", (40,), (40,)),
    ],
)
def test_layouts(subscripts, a, b):
    np.testing.assert_array_equal(*bits(subscripts, a, b, traced=True))


@pytest.mark.parametrize("subscripts", ["ik,jk->ij", "bik,bjk->bij", "ik,kj->ij"])
@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_results_of_16_bits(dtype, subscripts):
    """By the kernel that reads operands as they lie, of which tensor copies of several products are one launch."""
    request = resolve(precision="fp16x3", batch_invariant=True)
    a, b = (
        tuple({"b": 3, "i": 40, "j": 24, "k": 72}[label] for label in x)
        for x in subscripts.partition("->")[0].split(",")
    )
    found = bits(
        subscripts, a, b, 1.0, 0.0, traced=False, request=request, dtypes=Dtypes(dtype, dtype), written=dtype
    )  # fmt: skip
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("rung", ["naive", "vectorized", "warptiled", "skinny_in_order"])
def test_rungs(rung):
    np.testing.assert_array_equal(*bits("ik,kj->ij", (9, 40), (40, 50), traced=True, request=resolve(rung)))


@pytest.mark.parametrize(("subscripts", "shape"), [("ik,jk->ij", (100, 40)), ("ki,kj->ji", (40, 100))])
def test_a_result_is_symmetric_where_both_operands_are_one(subscripts, shape):
    request = of_gram(resolve())
    wanted, found = bits(subscripts, shape, shape, 1.0, 0.0, traced=False, request=request)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(found, found.T)
    A = np.random.default_rng(0).standard_normal(shape)
    np.testing.assert_allclose(found.view(np.float32), np.einsum(subscripts, A, A), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("how", [{}, {"precision": "fp16x3"}, {"batch_invariant": True}], ids=str)
@pytest.mark.parametrize("N", [1, 20])
@pytest.mark.parametrize("subscripts", ["abik,kj->abij", "ik,abkj->abij", "aik,bkj->abij", "iak,kjb->abij"])
def test_declared_batches_that_share_an_operand(subscripts, N, how):
    """Each result is symmetric, and its lower triangle is that of the product."""
    sizes = {"a": 2, "b": 3, "i": N, "j": N, "k": 15}
    of_a, of_b, _ = contraction.labels_of(subscripts)
    a, b = (tuple(sizes[label] for label in of) for of in (of_a, of_b))
    request = resolve(symmetric=True, **how)
    wanted, found = bits(subscripts, a, b, 1.0, 0.0, traced=False, request=request)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(found, found.swapaxes(2, 3))
    A, B = (np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in (a, b))
    lower = np.tril(np.einsum(subscripts, A, B))
    np.testing.assert_allclose(np.tril(found.view(np.float32)), lower, rtol=1e-4, atol=1e-4)


def test_batch_invariant():
    request = resolve(batch_invariant=True)
    np.testing.assert_array_equal(*bits("ik,kj->ij", (9, 2100), (2100, 33), traced=True, request=request))


@pytest.mark.parametrize(
    ("a", "b", "wish"),
    [
        ((3, 40), (40, 50), resolve(precision="ieee")),  # skinny reads them as they lie
        ((64, 40), (40, 70), resolve(precision="ieee")),  # they are converted first
        ((40, 40), (40, 72), resolve("fp16x3", precision="fp16x3")),
    ],
)
@pytest.mark.parametrize("dtypes", [Dtypes(DType.F16, DType.F32), Dtypes(DType.F16, DType.F16)])
def test_16_bit_operands(a, b, wish, dtypes):
    wanted, found = bits("ik,kj->ij", a, b, traced=True, request=wish, device="sm_80", dtypes=dtypes)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtypes", [Dtypes(DType.BF16, DType.BF16), Dtypes(DType.F32, DType.BF16)])
def test_operands_as_they_lie(dtypes):
    """Their tensor maps lie in constant memory."""
    request = resolve("fp16x3", F16DirectConfig(64, 32, 6), precision="fp16x3")
    wanted, found = bits("ik,jk->ij", (70, 136), (40, 136), traced=True, request=request, dtypes=dtypes)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [ALPHA, 0.0])
def test_fp16x3(alpha):
    request = resolve("fp16x3")
    sizes = ("ik,kj->ij", (40, 130), (130, 72))
    np.testing.assert_array_equal(*bits(*sizes, alpha, traced=True, request=request, device="sm_80"))


def made(subscripts, a, b, alpha=1.0, beta=0.0):
    plan = plan_of(Machine("sm_90").device, resolve(), contraction.metas(contraction.labels_of(subscripts), a, b))
    return entries(plan, Case(alpha, beta, plan.K))


@pytest.mark.parametrize(
    ("subscripts", "a", "b", "beta"),
    [
        ("ik,kj->ij", (4096, 4096), (4096, 4096), 0.0),
        ("ik,kj->ij", (64, 64), (64, 64), 0.5),
        ("ik,kj->ij", (8, 4096), (4096, 4096), 0.0),
        ("bik,bkj->bij", (4, 512, 512), (4, 512, 512), 0.0),
        ("ik,kj->ij", (64, 2000), (2000, 64), 0.5),  # two launches
    ],
)
def test_an_entry_has_the_instructions_of_the_kernel(subscripts, a, b, beta):
    """Only numbers are loaded from elsewhere, with the types of the parameters: of others, ptxas makes other code."""
    for entry in made(subscripts, a, b, beta=beta):
        text = behind(entry, "sm_90").ptx
        plain = compiled(entry.launch.kernel, "sm_90").ptx
        kernel, own = ptx.parse(plain)[entry.launch.kernel.name], ptx.parse(text)[entry.name]
        for kind, number, extent in re.findall(r"\.const \.align \d \.(\w+) number_(\d+)(?:\[(\d+)\])?", text):
            parameter = kernel.parameters[int(number)]
            assert (ptx.SIZES[kind], int(extent or 0)) == (ptx.SIZES[parameter.type], parameter.extent)
        for one, other in zip(own.instructions, kernel.instructions, strict=True):
            if not other.opcode.startswith("ld.param"):
                assert one == other
                continue
            assert one.opcode in (other.opcode, other.opcode.replace("param", "const"))
            assert (one.operands[0], one.operands[1].offset) == (other.operands[0], other.operands[1].offset)


def test_a_kernel_that_reads_its_parameters_in_another_way():
    (entry,) = made("ik,kj->ij", (64, 64), (64, 64))
    text = compiled(entry.launch.kernel, "sm_90").ptx
    with pytest.raises(CompileError, match="PTX of fastsgemm_pipelined reads its parameters in an unknown way"):
        entry.wrap(text.replace("ret;", "mov.b64 %rd1, fastsgemm_pipelined_param_1; ret;"))


def test_only_what_may_be_launched_is_there():
    plan = plan_of(Machine("sm_80").device, resolve("fp16x3"), contraction.metas(
        contraction.labels_of("ik,kj->ij"), (40, 130), (130, 72)))  # fmt: skip
    of = {alpha: len(entries(plan, Case(alpha, 0.0, plan.K))) for alpha in (0.0, 1.0, None)}
    assert of[0.0] == 1 < of[1.0] == of[None] - 1


def test_a_workspace_goes_from_a_launch_to_the_next():
    product, sum_ = made("ik,kj->ij", (64, 2000), (2000, 64), beta=1.0)
    assert (product.operands, product.results) == (("A", "B"), ("WORKSPACE",))
    assert (sum_.operands, sum_.results, sum_.aliases) == (("C", "WORKSPACE"), ("C",), {0: 0})


def test_entries_that_differ_have_different_names():
    sizes = [((33, 40), (40, 50)), ((33, 44), (44, 50)), ((256, 256), (256, 256))]
    one, *others = (made("ik,kj->ij", a, b)[0] for a, b in sizes)
    moved = [
        replace(x, address=replace(x.address, offset=16)) if isinstance(x, Matrix) else x for x in one.launch.arguments
    ]
    others.append(Entry(replace(one.launch, arguments=tuple(moved)), {"A", "B"}, Case(1.0, 0.0, 40)))
    assert one.launch.kernel == others[0].launch.kernel
    assert one.name == made("ik,kj->ij", *sizes[0])[0].name
    for other in (*others, made("ik,kj->ij", *sizes[0], alpha=0.5)[0], made("ik,kj->ij", *sizes[0], alpha=None)[0]):
        assert one.launch.kernel.name == other.launch.kernel.name
        assert one.name != other.name

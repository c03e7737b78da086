import itertools

import numpy as np
import pytest

from fastsgemm import candidates, choose, cublas, device, kernel, problems, rungs, tuner, workbench
from fastsgemm.config import Config
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.plan import Problem
from fastsgemm.source import Variant
from fastsgemm.workbench import Job, Workbench, variant

WARP = rungs.find("warptiled")
VARIANTS = [
    Variant(a, b, *widths)
    for a in (False, True)
    for b in (False, True)
    for widths in itertools.product((1, 4), repeat=3)
]


def reachable(wanted):
    """Whether dense operands can have these widths: an extent that lies along two of them decides for both."""
    along_a = "M" if wanted.trans_a else "K"
    along_b = "K" if wanted.trans_b else "N"
    widths = [(along_a, wanted.vec_a), (along_b, wanted.vec_b), ("N", wanted.vec_c)]
    return len(set(widths)) == len({extent for extent, _ in widths})


@pytest.mark.parametrize("wanted", [each for each in VARIANTS if reachable(each)], ids=str)
def test_the_check_is_of_the_variant_that_is_asked_for(wanted):
    problem = workbench._problem_of(wanted)
    assert problems.call(problem).variant == wanted
    for config in candidates.REFINED.quick:
        assert problem.M > config.BM and problem.N > config.BN and problem.K > config.BK
        assert problem.M % config.BM and problem.N % config.BN and problem.K % config.BK


def test_a_rung_without_vectors_is_checked_in_its_layout():
    wanted = variant(rungs.find("naive"), Problem(64, 64, 64, "TN"))
    assert workbench._problem_of(wanted).layout == "TN"


@pytest.mark.parametrize("layout", problems.LAYOUTS)
def test_the_reference_is_the_float64_product_of_what_is_stored(layout):
    reference = workbench._reference(Problem(8, 12, 16, layout))
    a = reference.a.T if layout[0] == "T" else reference.a
    b = reference.b.T if layout[1] == "T" else reference.b
    assert a.shape == (8, 16) and b.shape == (16, 12) and a.dtype == np.float32
    np.testing.assert_allclose(reference.exact, a.astype(np.float64) @ b.astype(np.float64), rtol=0, atol=1e-12)


def test_the_bound_holds_for_float32_and_for_nothing_else():
    reference = workbench._reference(Problem(64, 64, 132))
    product = np.zeros((64, 64), np.float32)
    for k in range(132):  # one product after the other: the worst order
        product += reference.a[:, k : k + 1] * reference.b[k : k + 1]
    assert (np.abs(product - reference.exact) <= reference.bound).all()
    dropped = product - reference.a[:, 77:78] * reference.b[77:78]
    assert (np.abs(dropped - reference.exact) > reference.bound).mean() > 0.95


# On a card


@pytest.fixture
def real():
    gpu = device.open_gpu(0)
    switched = gpu.enter()
    made = Workbench(gpu)
    yield made
    made.close()
    if switched:
        gpu.leave()


GOOD = candidates.REFINED.quick[0]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "problem", [Problem(512, 512, 512), Problem(511, 510, 509), Problem(100, 60, 36, "TT")], ids=problems.text
)
def test_good_kernels_pass(real, problem):
    jobs = [Job(WARP, config, variant(WARP, problem)) for config in candidates.REFINED.quick[:6]]
    assert dict(real.compile(jobs)) == dict.fromkeys(jobs)
    assert [real.check(job) for job in jobs] == [None] * len(jobs)
    timer = real.operands(problem)
    assert all(0 < timer.once(WARP, job.config) < 100 for job in jobs)
    assert all(1 <= real.blocks_per_sm(job) <= 32 for job in jobs)


@pytest.mark.gpu
def test_a_wrong_kernel_is_found_out(real, monkeypatch):
    job = Job(WARP, GOOD, variant(WARP, Problem(512, 512, 512)))
    other = Job(WARP, candidates.REFINED.quick[5], job.variant)  # of fewer rows a block: part of C stays NaN
    wrong = kernel.get(real.gpu, other.rung, other.config, other.variant, real.gpu.stream(LEGACY_STREAM))
    monkeypatch.setitem(real.gpu.kernels, (WARP.file, GOOD, job.variant), wrong)
    assert "wrong result" in real.check(job)


@pytest.mark.gpu
def test_a_kernel_that_spills_is_refused(real):
    tight = Config(128, 128, 16, 8, 8, 64, 32, 1, 1, 1, 8, 4)
    assert "spills" in real.check(Job(WARP, tight, variant(WARP, Problem(512, 512, 512))))


@pytest.mark.gpu
def test_what_does_not_compile_is_a_value(real):
    bad = Config(100, 128, 8, 8, 8, 64, 32, 1, 1, 1, 8, 1)
    [(_, reason)] = real.compile([Job(WARP, bad, variant(WARP, Problem(512, 512, 512)))])
    assert "static assertion" in reason or "static_assert" in reason


@pytest.mark.gpu
@pytest.mark.parametrize(
    "problem", [Problem(300, 200, 100), Problem(300, 200, 100, "TN"), Problem(1, 64, 64)], ids=problems.text
)
def test_cublas_runs_on_the_same_operands(real, problem):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch sees no card")
    timer = real.operands(problem)
    assert timer.once(WARP, GOOD) > 0
    ours = np.empty((problem.M, problem.N), np.float32)
    real._memory[2].download(ours)
    assert timer.baseline() > 0
    theirs = np.empty_like(ours)
    real._memory[2].download(theirs)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)
    assert cublas.product is not None


@pytest.mark.gpu
def test_one_problem_is_tuned_on_the_card(data_folder):
    outcome = tuner.tune(["512,512,512"], rung="warptiled", quick=True, budget=60, progress=False)
    assert outcome.complete and outcome.tuned[0].ms > 0
    gpu = device.open_gpu(0)
    assert choose.choose(gpu, WARP, Problem(512, 512, 512)).config == outcome.tuned[0].config
    assert gpu.plans == {}

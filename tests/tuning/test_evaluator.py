import dataclasses
import itertools

import numpy as np
import pytest
from python_kernels import PythonKernel

from fastsgemm import device, rungs
from fastsgemm.config import BlockConfig, WarptiledConfig
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.geometry import variants
from fastsgemm.geometry.variants import Variant
from fastsgemm.heuristics import choose
from fastsgemm.jit import cache, kernel
from fastsgemm.measure import cublas
from fastsgemm.problem import LAYOUTS, Problem, spell
from fastsgemm.tuning import evaluator, search_spaces, tuner
from fastsgemm.tuning.evaluator import DeviceEvaluator, Job, job_of

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
    problem = evaluator._problem_of("sm_90", Job(WARP, search_spaces.REFINED.quick[0], wanted))
    assert variants.dense_call(problem).variant == wanted
    for config in search_spaces.REFINED.quick:
        assert problem.M > config.BM and problem.N > config.BN and problem.K > config.BK
        assert problem.M % config.BM and problem.N % config.BN and problem.K % config.BK


def test_a_rung_without_vectors_is_checked_in_its_layout():
    job = job_of("sm_90", rungs.find("naive"), BlockConfig(32, 32), Problem(64, 64, 64, "TN"))
    assert evaluator._problem_of("sm_90", job).layout == "TN"


PIPELINE = rungs.find("pipelined")


@pytest.mark.parametrize("config", search_spaces.PIPELINED.quick, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("parts", [1, 4])
def test_the_check_of_a_guarded_kernel_is_smaller_than_its_tile_and_that_of_the_others_larger(config, layout, parts):
    for shape in (
        (2048, 2048, 2048),
        (2047, 2045, 2043),
        (2046, 2042, 2038),
        (8, 8, 4096),
        (8, 2046, 4094),
        (2048, 9, 4095),
        (7, 2048, 4096),
    ):
        job = job_of("sm_90", PIPELINE, dataclasses.replace(config, SPLIT_K=parts), Problem(*shape, layout))
        assert job.config == config.kernel and job.config.SPLIT_K == 1
        problem = evaluator._problem_of("sm_90", job)
        assert job_of("sm_90", PIPELINE, config, problem) == job
        smaller = problem.M < config.BM or problem.N < config.BN
        assert smaller is job.variant.guard is (shape[0] < config.BM or shape[1] < config.BN)
        assert problem.K > config.BK and problem.K % config.BK
        if not smaller:
            assert problem.M % config.BM and problem.N % config.BN


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_reference_is_the_float64_product_of_what_is_stored(layout):
    reference = evaluator._reference(Problem(8, 12, 16, layout))
    a = reference.a.T if layout[0] == "T" else reference.a
    b = reference.b.T if layout[1] == "T" else reference.b
    assert a.shape == (8, 16) and b.shape == (16, 12) and a.dtype == np.float32
    np.testing.assert_allclose(reference.exact, a.astype(np.float64) @ b.astype(np.float64), rtol=0, atol=1e-12)


def test_the_bound_holds_for_float32_and_for_nothing_else():
    reference = evaluator._reference(Problem(64, 64, 132))
    product = np.zeros((64, 64), np.float32)
    for k in range(132):  # one product after the other: the worst order
        product += reference.a[:, k : k + 1] * reference.b[k : k + 1]
    assert (np.abs(product - reference.exact) <= reference.bound).all()
    dropped = product - reference.a[:, 77:78] * reference.b[77:78]
    assert (np.abs(dropped - reference.exact) > reference.bound).mean() > 0.95


# On the device made of Python


class HostArray:
    """A `DeviceArray` in host memory."""

    def __init__(self, shape, gpu, handle):
        self.shape, self.stream, self.buffer = shape, None, self
        self.values = np.zeros(shape, np.float32)
        self.open = True

    @property
    def pointer(self):
        return self.values.ctypes.data

    @property
    def view(self):
        return self.pointer, (self.shape, (self.shape[1], 1), 0, None, False)

    def upload(self, source):
        self.values.reshape(-1)[: source.size] = source.reshape(-1)

    def download(self, target):
        target.reshape(-1)[:] = self.values.reshape(-1)[: target.size]

    def fill(self, byte, stream):
        self.values.view(np.uint8)[...] = byte

    def close(self):
        self.open = False


class CountingWatch:
    def __init__(self, gpu):
        self.runs = 0

    def once(self, work):
        work()
        self.runs += 1
        return 0.25

    def close(self):
        pass


@pytest.fixture
def device_info(request):
    return request.getfixturevalue("device")  # by this name, as `device` is the module here


@pytest.fixture
def python_evaluator(device_info, monkeypatch):
    monkeypatch.setattr(evaluator, "DeviceArray", HostArray)
    monkeypatch.setattr(evaluator, "Stopwatch", CountingWatch)
    monkeypatch.setattr(evaluator, "_tools", lambda: None)
    monkeypatch.setattr(DeviceEvaluator, "survive", lambda self, error: None)
    return DeviceEvaluator(device_info)


@pytest.mark.parametrize("extents", [(64, 64, 64), (63, 61, 59)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_right_kernel_passes_in_every_layout(python_evaluator, layout, extents):
    job = job_of("sm_90", WARP, search_spaces.REFINED.quick[0], Problem(*extents, layout))
    assert python_evaluator.check(job) is None


@pytest.mark.parametrize("damage", ["nothing written", "a wrong element", "raised"])
def test_a_wrong_kernel_is_refused(python_evaluator, device_info, damage):
    def damaged(M, N, K, alpha, pa, lda, pb, ldb, beta, pc, ldc):
        if damage == "raised":
            raise RuntimeError("too many resources requested")
        if damage == "a wrong element":
            right.run(M, N, K, alpha, pa, lda, pb, ldb, beta, pc, ldc)
            python_evaluator._memory[2].values.reshape(-1)[77] += np.float32(0.01)

    job = job_of("sm_90", WARP, search_spaces.REFINED.quick[0], Problem(64, 64, 64))
    right = python_evaluator._kernel(job)
    device_info.kernels[kernel.key(WARP, job.config, job.variant)] = PythonKernel(right.name, damaged, right.types)
    device_info.prepared.clear()
    expected = {
        "nothing written": "200208 of 200208",
        "a wrong element": "wrong result: 1 of",
        "raised": "too many resources",
    }
    assert expected[damage] in python_evaluator.check(job)


def test_a_kernel_that_uses_local_memory_is_refused(python_evaluator, monkeypatch):
    monkeypatch.setattr(PythonKernel, "local_bytes", 16)
    job = job_of("sm_90", WARP, search_spaces.REFINED.quick[0], Problem(64, 64, 64))
    assert python_evaluator.check(job) == "it spills: 16 bytes of local memory a thread"


def test_products_are_timed_on_memory_that_grows_and_is_shared(python_evaluator, device_info):
    small = python_evaluator.operands(Problem(8, 8, 8))
    assert small.once(WARP, search_spaces.REFINED.quick[0]) == 0.25
    first = list(python_evaluator._memory)
    python_evaluator.operands(Problem(4, 4, 4))
    assert python_evaluator._memory == first
    python_evaluator.operands(Problem(16, 8, 8, "TN")).once(WARP, search_spaces.REFINED.quick[0])
    assert python_evaluator._memory[1] is first[1] and python_evaluator._memory[0] is not first[0]
    assert not first[0].open and not first[2].open
    assert python_evaluator._memory[0].values.any() and python_evaluator.stopwatch.runs == 2


@pytest.mark.parametrize(("problem", "runs"), [(Problem(64, 64, 64), 2), (Problem(64, 64, 4 * 10**6), 1)], ids=str)
def test_a_short_product_is_timed_when_the_host_and_the_code_are_ready_for_it(
    python_evaluator, monkeypatch, problem, runs
):
    """Else the first of its times is that of the host, which takes longer than the kernel."""
    seen = []
    monkeypatch.setattr(evaluator, "multiply", lambda *given: seen.append(python_evaluator.stopwatch.runs))
    monkeypatch.setattr(CountingWatch, "once", lambda watch, work: (setattr(watch, "runs", 1), work(), 0.25)[2])
    monkeypatch.setattr(evaluator, "views", lambda *given: ())
    monkeypatch.setattr(DeviceEvaluator, "_allocate", lambda self, size, place: HostArray((1, 1), None, 0))
    python_evaluator.operands(problem).once(WARP, search_spaces.REFINED.quick[0])
    assert seen == [0, 1][2 - runs :]


def test_afterwards_nothing_is_left(python_evaluator, device_info):
    timer = python_evaluator.operands(Problem(8, 8, 8))
    timer.once(WARP, search_spaces.REFINED.quick[0])
    assert device_info.kernels and device_info.prepared
    python_evaluator.close()
    assert device_info.kernels == {} and device_info.prepared == {}
    assert not any(array.open for array in python_evaluator._memory)


def test_real_kernels_compile_side_by_side_and_failures_are_values(python_evaluator):
    good = job_of("sm_90", WARP, search_spaces.REFINED.quick[15], Problem(64, 64, 64))
    bad = dataclasses.replace(good, config=WarptiledConfig(100, 128, 8, 8, 8, 64, 32, 1, 1, 1, 8, 1))
    found = dict(python_evaluator.compile([good, bad]))
    assert found[good] is None
    assert "static" in found[bad]


def test_what_is_tried_stays_out_of_the_kernel_cache_and_is_compiled_once(
    python_evaluator, device_info, monkeypatch, tmp_path
):
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(tmp_path))
    job = job_of("sm_90", WARP, search_spaces.REFINED.quick[15], Problem(64, 64, 64))
    assert list(python_evaluator.compile([job])) == [(job, None)]
    assert cache.entries() == (0, 0)

    def again(*how):
        raise AssertionError("compiled a second time")

    monkeypatch.setattr("fastsgemm.jit.compiler.cubin", again)
    monkeypatch.setattr("fastsgemm.jit.compiler.compiled", again)
    loaded = python_evaluator._kernel(job)
    assert python_evaluator._kernel(job) is loaded is device_info.kernels[kernel.key(WARP, job.config, job.variant)]


@pytest.mark.parametrize("found", [None, (3e-7, 2e-7)], ids=["no cuBLAS", "both"])
def test_errors_are_those_of_the_config_and_of_cublas(python_evaluator, monkeypatch, found):
    timer = python_evaluator.operands(Problem(64, 64, 64))
    written = iter(found or ())
    beside = None if found is None else cublas.Baseline("cuBLAS", lambda: None, lambda: next(written))
    monkeypatch.setitem(timer.__dict__, "_beside", beside)
    assert timer.errors(WARP, search_spaces.REFINED.quick[15]) == found


def test_without_room_for_float64_the_errors_are_not_known(python_evaluator, monkeypatch):
    def error():
        raise MemoryError("6 GB")

    survived = []
    monkeypatch.setattr(python_evaluator, "survive", survived.append)
    timer = python_evaluator.operands(Problem(64, 64, 64))
    monkeypatch.setitem(timer.__dict__, "_beside", cublas.Baseline("cuBLAS", lambda: None, error))
    assert timer.errors(WARP, search_spaces.REFINED.quick[15]) is None
    assert [str(one) for one in survived] == ["6 GB"]


# On a device


@pytest.fixture
def real():
    gpu = device.open_gpu(0)
    switched = gpu.enter()
    made = DeviceEvaluator(gpu)
    yield made
    made.close()
    if switched:
        gpu.leave()


GOOD = search_spaces.REFINED.quick[0]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "problem", [Problem(512, 512, 512), Problem(511, 510, 509), Problem(100, 60, 36, "TT")], ids=spell
)
def test_good_kernels_pass(real, problem):
    jobs = [job_of("sm_90", WARP, config, problem) for config in search_spaces.REFINED.quick[:6]]
    assert dict(real.compile(jobs)) == dict.fromkeys(jobs)
    assert [real.check(job) for job in jobs] == [None] * len(jobs)
    timer = real.operands(problem)
    assert all(0 < timer.once(WARP, job.config) < 100 for job in jobs)
    assert all(1 <= real.blocks_per_sm(job) <= 32 for job in jobs)


@pytest.mark.gpu
def test_a_wrong_kernel_is_found_out(real, monkeypatch):
    job = job_of("sm_90", WARP, GOOD, Problem(512, 512, 512))
    other = Variant(True, False, *([job.variant.vec_a] * 3))  # the same geometry, but A is read as if column-major
    wrong = kernel.get(real.gpu, WARP, GOOD, other, LEGACY_STREAM)
    monkeypatch.setitem(real.gpu.kernels, kernel.key(WARP, GOOD, job.variant), wrong)
    assert "wrong result" in real.check(job)


@pytest.mark.gpu
def test_a_kernel_that_spills_is_refused(real):
    tight = WarptiledConfig(128, 128, 16, 8, 8, 64, 32, 1, 1, 1, 8, 4)
    assert "spills" in real.check(job_of("sm_90", WARP, tight, Problem(512, 512, 512)))


@pytest.mark.gpu
def test_what_does_not_compile_is_a_value(real):
    bad = WarptiledConfig(100, 128, 8, 8, 8, 64, 32, 1, 1, 1, 8, 1)
    [(_, reason)] = real.compile([job_of("sm_90", WARP, bad, Problem(512, 512, 512))])
    assert "static assertion" in reason or "static_assert" in reason


@pytest.mark.gpu
@pytest.mark.parametrize(
    "problem", [Problem(300, 200, 100), Problem(300, 200, 100, "TN"), Problem(1, 64, 64)], ids=spell
)
def test_cublas_runs_on_the_same_operands(real, problem):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch sees no device")
    timer = real.operands(problem)
    assert timer.once(WARP, GOOD) > 0
    ours = np.empty((problem.M, problem.N), np.float32)
    real._memory[2].download(ours)
    assert timer.baseline() > 0
    theirs = np.empty_like(ours)
    real._memory[2].download(theirs)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)
    assert all(0 < error < 1e-6 for error in timer.errors(WARP, GOOD))


@pytest.mark.gpu
def test_one_problem_is_tuned_on_the_device(data_folder):
    outcome = tuner.tune(["512,512,512"], rung="warptiled", quick=True, budget=60, progress=False)
    assert outcome.complete and outcome.tuned[0].ms > 0
    gpu = device.open_gpu(0)
    assert choose.choose(gpu, WARP, Problem(512, 512, 512)).config == outcome.tuned[0].config
    assert gpu.prepared == {}

"""The evaluator, on a device made of Python and on a real one: what it checks, times and leaves behind."""

import ctypes
import dataclasses
import itertools
import re

import numpy as np
import pytest
from cuda.bindings import driver
from python_kernels import PythonKernel
from quick_configs import quick_configs

from fastsgemm import device, rungs
from fastsgemm.call.arrays import DeviceArray
from fastsgemm.config import BlockConfig, PipelinedConfig, WarptiledConfig
from fastsgemm.errors import DeviceMemoryError, TuningError
from fastsgemm.geometry import variants
from fastsgemm.geometry.layout import Meta
from fastsgemm.geometry.variants import Variant
from fastsgemm.heuristics import curve_problems, database
from fastsgemm.heuristics.choice import choose_config
from fastsgemm.jit import cache, kernel, source
from fastsgemm.measure import cublas, operands
from fastsgemm.problem import LAYOUTS, Problem, format_problem
from fastsgemm.tuning import evaluator, tuner
from fastsgemm.tuning.evaluator import Evaluator, Job, job_of

WARP = rungs.find("warptiled")
QUICK = {rung: quick_configs(rung) for rung in ("autotuned", "pipelined", "skinny", "warptiled")}
GOOD, QUICK_TO_COMPILE = QUICK["warptiled"][0], QUICK["warptiled"][15]
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


class HostArray:
    """A `DeviceArray` in host memory."""

    def __init__(self, shape, gpu, handle):
        self.shape, self.handle = shape, handle
        self.values = np.zeros(shape, np.float32)
        self.open = True

    @property
    def pointer(self):
        return self.values.ctypes.data

    @property
    def view(self):
        return self.pointer, Meta(self.shape, (self.shape[1], 1))

    def upload(self, source):
        self.values.reshape(-1)[: source.size] = source.reshape(-1)

    def download(self, target):
        target.reshape(-1)[:] = self.values.reshape(-1)[: target.size]

    def fill(self, byte):
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


class HostDriver:
    """What the evaluator asks of the CUDA driver. `context` can be set."""

    def __init__(self):
        self.context = driver.CUresult.CUDA_SUCCESS

    def copy(self, target, source, size, handle):
        ctypes.memmove(target, source, size)
        return (driver.CUresult.CUDA_SUCCESS,)


@pytest.fixture
def device_info(request):
    return request.getfixturevalue("device")  # by this name, as `device` is the module here


@pytest.fixture
def host_driver(monkeypatch):
    made = HostDriver()
    monkeypatch.setattr(driver, "cuMemcpyDtoDAsync", made.copy)
    monkeypatch.setattr(driver, "cuCtxSynchronize", lambda: (made.context,))
    return made


def recorded(monkeypatch, make):
    """Return a list of all operands that evaluators allocate from now on, in order."""
    made = []
    monkeypatch.setattr(operands, "DeviceArray", lambda *given: made.append(make(*given)) or made[-1])
    return made


@pytest.fixture
def arrays(monkeypatch):
    """The operands that evaluators have allocated: A, B and C, and again those that grew."""
    return recorded(monkeypatch, HostArray)


@pytest.fixture
def python_evaluator(device_info, arrays, host_driver, monkeypatch):
    """A `Evaluator` on the device made of Python."""
    monkeypatch.setattr(evaluator, "Stopwatch", CountingWatch)
    return Evaluator(device_info)


@pytest.fixture
def checked_problem(python_evaluator, monkeypatch):
    """Return a function that returns the problem on which a job is checked."""
    seen = []

    def multiply(gpu, handle, request, operands, alpha, beta):
        a, b, _ = operands
        (M, K), (_, N) = a[1].shape, b[1].shape
        seen.append(Problem(M, N, K, "".join("N" if view[1].strides[1] == 1 else "T" for view in (a, b))))

    monkeypatch.setattr(evaluator, "multiply", multiply)

    def find(job):
        assert "wrong result" in python_evaluator.check(job)  # nothing was multiplied
        return seen[-1]

    return find


def test_the_check_is_of_the_variant_that_is_asked_for(checked_problem):
    for wanted in filter(reachable, VARIANTS):
        problem = checked_problem(Job(WARP, GOOD, wanted))
        assert variants.dense_call(problem).variant == wanted
        for config in QUICK["warptiled"]:
            assert problem.M > config.BM and problem.N > config.BN and problem.K > config.BK
            assert problem.M % config.BM and problem.N % config.BN and problem.K % config.BK


def test_the_kernels_of_the_smallest_shipped_tile_can_be_checked(checked_problem):
    """A check of a kernel for less than a tile of C fits into 8 x 8 elements."""
    shipped = (curve for curve in database.shipped("sm_90").curves if isinstance(curve.config, PipelinedConfig))
    least = min(shipped, key=lambda curve: curve.config.BM * curve.config.BN)
    found = curve_problems.problems_of(least.config, least.blocks_per_sm, least.multiprocessors).problems()
    for wanted in {job_of("sm_90", rungs.RUNGS[8], least.config, problem) for problem in found}:
        assert job_of("sm_90", rungs.RUNGS[8], least.config, checked_problem(wanted)).variant == wanted.variant


def test_a_rung_without_vectors_is_checked_in_its_layout(checked_problem):
    job = job_of("sm_90", rungs.find("naive"), BlockConfig(32, 32), Problem(64, 64, 64, "TN"))
    assert checked_problem(job).layout == "TN"


PIPELINE = rungs.find("pipelined")


SHAPES = [
    (2048, 2048, 2048),
    (2047, 2045, 2043),
    (2046, 2042, 2038),
    (8, 8, 4096),
    (8, 2046, 4094),
    (2048, 9, 4095),
    (7, 2048, 4096),
]


@pytest.mark.sampled(every=3)  # of four: no operand transposed, and both
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_check_of_a_guarded_kernel_is_smaller_than_its_tile_and_that_of_the_others_larger(checked_problem, layout):
    jobs = {}
    for config, shape, parts in itertools.product(QUICK["pipelined"], SHAPES, (1, 4)):
        job = job_of("sm_90", PIPELINE, config.replace(SPLIT_K=parts), Problem(*shape, layout))
        assert job.config == config.kernel and job.config.SPLIT_K == 1
        assert job.variant.guard is (shape[0] < config.BM or shape[1] < config.BN)
        jobs[job] = config
    for job, config in jobs.items():
        problem = checked_problem(job)
        assert job_of("sm_90", PIPELINE, config, problem) == job
        smaller = problem.M < config.BM or problem.N < config.BN
        assert smaller is job.variant.guard
        assert problem.K > config.BK and problem.K % config.BK
        if not smaller:
            assert problem.M % config.BM and problem.N % config.BN


def job_64(config=GOOD):
    return job_of("sm_90", WARP, config, Problem(64, 64, 64))


@pytest.mark.parametrize("extents", [(64, 64, 64), (63, 61, 59)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_right_kernel_passes_in_every_layout(python_evaluator, layout, extents):
    job = job_of("sm_90", WARP, GOOD, Problem(*extents, layout))
    assert python_evaluator.check(job) is None


def in_the_worst_order(a, b):
    """One product after the other in float32: the order of summation that errs most."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total += a[:, k : k + 1] * b[k : k + 1]
    return total


def with_one_element_off(a, b):
    product = a @ b
    product[0, 77] += 0.01
    return product


def without_one_product(a, b):
    return a @ b - a[:, 77:78] * b[77:78]


@pytest.mark.parametrize(
    ("result", "wrong"),
    [
        (in_the_worst_order, (0, 0)),
        (with_one_element_off, (1, 1)),
        (without_one_product, (190_000, 200_208)),
        (lambda a, b: np.nan, (200_208, 200_208)),
    ],
    ids=["the worst order", "an element off by 0.01", "one product of 132 left out", "nothing written"],
)
def test_elements_are_wrong_that_are_further_off_than_rounding_can_be(python_evaluator, device_info, result, wrong):
    def replaced(grid, M, N, K, alpha, pa, lda, pb, ldb, beta, pc, ldc, batch):
        assert np.isnan(matrix_at(pc, M, N, ldc)).all() and batch.count == 1
        matrix_at(pc, M, N, ldc)[...] = result(matrix_at(pa, M, K, lda), matrix_at(pb, K, N, ldb))

    replace_kernel(python_evaluator.gpu, job_64(), replaced)
    found = python_evaluator.check(job_64())
    counted = re.fullmatch("wrong result: ([0-9]+) of 200208 elements beyond the rounding bound", found or "")
    assert (found is None) is (wrong == (0, 0))
    assert found is None or wrong[0] <= int(counted[1]) <= wrong[1]


def job_of_batch(layout="NN", rung=WARP, config=GOOD):
    return job_of("sm_90", rung, config, Problem(64, 64, 64, layout, 5))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rung", ["warptiled", "pipelined", "skinny"])
def test_a_right_kernel_of_a_batch_passes(python_evaluator, layout, rung):
    assert python_evaluator.check(job_of_batch(layout, rungs.find(rung), QUICK[rung][0])) is None


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("extents", [(64, 64, 64), (63, 63, 2059), (8, 8, 64)])
def test_a_right_kernel_of_a_symmetric_result_passes(python_evaluator, extents, parts):
    """B is A transposed, in the memory of A; of parts of K, one triangle is stored and added up."""
    config = QUICK["pipelined"][0].replace(SPLIT_K=parts)
    job = job_of("sm_90", PIPELINE, config, Problem(*extents, "NT", symmetric=True))
    assert job.variant.sym == (2 if parts > 1 and extents[2] > 64 else job.variant.sym) != 0
    assert python_evaluator.check(job) is None
    timer = python_evaluator.operands(Problem(*extents, "NT", symmetric=True))
    (a, _), (b, _), _ = timer._given
    assert a == b


@pytest.mark.parametrize("left_out", [0, 1, None])
def test_every_product_of_a_batch_is_checked(python_evaluator, device_info, left_out):
    def replaced(grid, M, N, K, alpha, pa, lda, pb, ldb, beta, pc, ldc, batch):
        assert batch.count == grid[1] == 2
        for number in range(batch.count):
            places = ((pa, batch.a), (pb, batch.b), (pc, batch.c))
            at_a, at_b, at_c = (first + 4 * number * steps[-1] for first, steps in places)
            assert np.isnan(matrix_at(at_c, M, N, ldc)).all()
            if number != left_out:
                matrix_at(at_c, M, N, ldc)[...] = matrix_at(at_a, M, K, lda) @ matrix_at(at_b, K, N, ldb)

    replace_kernel(python_evaluator.gpu, job_of_batch(), replaced)
    found = python_evaluator.check(job_of_batch())
    assert (found is None) is (left_out is None)
    assert found is None or found.startswith("wrong result: 200208 of 400416 elements")


def test_a_batch_of_one_matrix_read_over_and_over_is_wrong(python_evaluator, device_info):
    def replaced(grid, M, N, K, alpha, pa, lda, pb, ldb, beta, pc, ldc, batch):
        for number in range(batch.count):
            C = matrix_at(pc + 4 * number * batch.c[-1], M, N, ldc)
            C[...] = matrix_at(pa, M, K, lda) @ matrix_at(pb, K, N, ldb)

    replace_kernel(python_evaluator.gpu, job_of_batch(), replaced)
    assert "of 400416 elements beyond the rounding bound" in python_evaluator.check(job_of_batch())


def test_a_batch_is_timed_on_operands_of_its_own(python_evaluator, device_info, arrays):
    """Each product has its A, B and C: the result is that of NumPy on the memory that was allocated."""
    problem = Problem(8, 12, 16, "NT", 5)
    assert python_evaluator.operands(problem).once(WARP, GOOD) == 0.25
    a, b, c = (array.values.reshape(-1) for array in arrays)
    assert [a.size, b.size, c.size] == [5 * 8 * 16, 5 * 12 * 16, 5 * 8 * 12]
    wanted = a.reshape(5, 8, 16) @ b.reshape(5, 12, 16).swapaxes(1, 2)
    np.testing.assert_allclose(c.reshape(5, 8, 12), wanted, rtol=1e-4, atol=1e-4)


def matrix_at(pointer, rows, columns, leading):
    whole = np.ctypeslib.as_array((ctypes.c_float * (rows * leading)).from_address(pointer))
    return whole.reshape(rows, leading)[:, :columns]


def replace_kernel(gpu, job, function):
    spec = source.rung_spec(job.rung, job.config, job.variant)
    gpu.kernels[spec] = PythonKernel("replaced", function, "iiifPqPqfPqb")


def refusing(*arguments):
    raise RuntimeError("too many resources requested")


def test_a_kernel_that_cannot_be_launched_is_refused(python_evaluator, device_info):
    replace_kernel(python_evaluator.gpu, job_64(), refusing)
    assert python_evaluator.check(job_64()) == "launch failed: too many resources requested"


def test_a_kernel_that_breaks_the_context_ends_the_run(python_evaluator, device_info, host_driver):
    replace_kernel(python_evaluator.gpu, job_64(), refusing)
    host_driver.context = driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(TuningError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        python_evaluator.check(job_64())


def test_a_kernel_that_uses_local_memory_is_refused(python_evaluator, monkeypatch):
    monkeypatch.setattr(PythonKernel, "local_bytes", 16)
    assert python_evaluator.check(job_64()) == "it spills: 16 bytes of local memory a thread"


def test_products_are_timed_on_memory_that_grows_and_is_shared(python_evaluator, arrays):
    small = python_evaluator.operands(Problem(8, 8, 8))
    assert small.once(WARP, GOOD) == 0.25
    first = list(arrays)
    python_evaluator.operands(Problem(4, 4, 4))
    assert arrays == first
    python_evaluator.operands(Problem(16, 8, 8, "TN")).once(WARP, GOOD)
    assert [array.shape[1] for array in arrays] == [64, 64, 64, 128, 128]
    assert [array.open for array in arrays] == [False, True, False, True, True]  # B did not grow
    assert arrays[3].values.any() and python_evaluator.stopwatch.runs == 2


def test_after_a_product_that_does_not_fit_smaller_ones_get_memory_of_their_own(python_evaluator, arrays, monkeypatch):
    """What was freed to make room for it is not used again."""
    python_evaluator.operands(Problem(16, 16, 16))
    allocate = operands.DeviceArray

    def refused(*_):
        raise DeviceMemoryError("no room")

    monkeypatch.setattr(operands, "DeviceArray", refused)
    with pytest.raises(DeviceMemoryError):
        python_evaluator.operands(Problem(64, 64, 64))
    monkeypatch.setattr(operands, "DeviceArray", allocate)
    assert python_evaluator.operands(Problem(8, 8, 8)).once(WARP, GOOD) == 0.25
    assert [array.open for array in arrays] == [False, True, True, True]
    assert python_evaluator._memory._arrays[0] is arrays[3]


def test_operands_are_random_numbers_to_the_last_element(python_evaluator, arrays):
    """They are drawn once and repeated: 2.1 times here, for a matrix of 9 million elements."""
    python_evaluator.operands(Problem(3000, 3, 3000))
    for array in arrays[:2]:
        values = array.values.reshape(-1)
        assert 0.9 < values[-1000:].std() < 1.1 and (values != 0).mean() > 0.99


LONG = Problem(2154, 2154, 2156)


@pytest.mark.parametrize(("problem", "runs"), [(Problem(64, 64, 64), 2), (LONG, 1)], ids=["short", "long"])
def test_only_a_product_of_less_than_20_gflop_is_warmed_up(python_evaluator, monkeypatch, problem, runs):
    """Preparing the first call takes the host longer than a short kernel runs."""
    timed = []  # how many runs had been timed when each product was launched
    monkeypatch.setattr(evaluator, "multiply", lambda *given: timed.append(python_evaluator.stopwatch.runs))
    timer = python_evaluator.operands(problem)
    assert timer.once(WARP, GOOD) == 0.25
    assert timed == [0] * runs and python_evaluator.stopwatch.runs == 1


def test_afterwards_nothing_is_left(python_evaluator, device_info, arrays, monkeypatch):
    unloaded = []
    monkeypatch.setattr(PythonKernel, "unload", lambda each: unloaded.append(each))
    timer = python_evaluator.operands(Problem(8, 8, 8))
    timer.once(WARP, GOOD)
    tried = [*python_evaluator.gpu.kernels.values()]
    device_info.prepared["a problem"] = "a plan made with the database as it was"
    python_evaluator.close()
    assert device_info.kernels == {} and device_info.prepared == {} and unloaded == tried != []
    assert arrays and not any(array.open for array in arrays)


def test_calls_of_other_threads_never_meet_a_candidate(python_evaluator, device_info, monkeypatch):
    """A graph may hold what a call has loaded, so that stays; what a run has loaded goes when the run ends."""
    unloaded = []
    monkeypatch.setattr(PythonKernel, "unload", lambda each: unloaded.append(each))
    python_evaluator.operands(Problem(8, 8, 8)).once(WARP, GOOD)
    [spec] = python_evaluator.gpu.kernels
    assert device_info.kernels == {}
    loaded = kernel.ready(device_info, spec, GOOD.shared_bytes)  # by a call between
    python_evaluator.close()
    assert device_info.kernels == {spec: loaded} and loaded not in unloaded


def test_a_kernel_that_a_call_has_loaded_is_shared_and_stays(device_info, arrays, host_driver, monkeypatch):
    unloaded = []
    monkeypatch.setattr(PythonKernel, "unload", lambda each: unloaded.append(each))
    monkeypatch.setattr(evaluator, "Stopwatch", CountingWatch)
    first = Evaluator(device_info)
    first.operands(Problem(8, 8, 8)).once(WARP, GOOD)
    [spec] = first.gpu.kernels
    loaded = kernel.ready(device_info, spec, GOOD.shared_bytes)
    second = Evaluator(device_info)
    second.operands(Problem(8, 8, 8)).once(WARP, GOOD)
    second.close()
    assert device_info.kernels == {spec: loaded} and unloaded == []


def test_real_kernels_compile_side_by_side_and_failures_are_values(python_evaluator):
    good = job_64(QUICK_TO_COMPILE)
    bad = dataclasses.replace(good, config=WarptiledConfig(100, 128, 8, 8, 8, 64, 32, 1, 1, 1, 8, 1))
    found = dict(python_evaluator.compile([good, bad]))
    assert found[good] is None
    assert "static" in found[bad]


def test_what_is_tried_stays_out_of_the_kernel_cache_and_is_compiled_and_loaded_once(
    python_evaluator, device_info, monkeypatch, tmp_path
):
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(tmp_path))
    job = job_64(QUICK_TO_COMPILE)
    assert list(python_evaluator.compile([job])) == [(job, None)]
    assert cache.entries() == (0, 0)

    def again(*how):
        raise AssertionError("compiled a second time")

    monkeypatch.setattr("fastsgemm.jit.compiler.cubin", again)
    monkeypatch.setattr("fastsgemm.jit.compiler.compiled", again)
    for _ in range(2):
        python_evaluator.check(job)
        assert device_info.compiled == ["warptiled"]
    assert [*python_evaluator.gpu.kernels] == [source.rung_spec(WARP, job.config, job.variant)]


@pytest.fixture
def cublas_with(monkeypatch):
    """Return a function that makes `error` cuBLAS's, or takes cuBLAS away."""
    monkeypatch.setattr(operands, "Lent", lambda array, meta: None)

    def use(error):
        baseline = error and cublas.Baseline("cuBLAS", lambda: None, error)
        monkeypatch.setattr(cublas, "product", lambda *operands: baseline)

    return use


@pytest.mark.parametrize("found", [None, (3e-7, 2e-7)], ids=["no cuBLAS", "both"])
def test_errors_are_those_of_the_config_and_of_cublas(python_evaluator, cublas_with, found):
    cublas_with(found and iter(found).__next__)
    timer = python_evaluator.operands(Problem(64, 64, 64))
    assert timer.errors(WARP, QUICK_TO_COMPILE) == found


def test_without_room_for_float64_the_errors_are_not_known(python_evaluator, cublas_with, host_driver):
    def error():
        raise MemoryError("6 GB")

    cublas_with(error)
    timer = python_evaluator.operands(Problem(64, 64, 64))
    assert timer.errors(WARP, QUICK_TO_COMPILE) is None
    host_driver.context = driver.CUresult.CUDA_ERROR_LAUNCH_FAILED
    with pytest.raises(TuningError, match="CUDA_ERROR_LAUNCH_FAILED"):
        timer.errors(WARP, QUICK_TO_COMPILE)


# On a device


@pytest.fixture
def real():
    gpu = device.open_gpu(0)
    switched = gpu.enter()
    made = Evaluator(gpu)
    yield made
    made.close()
    if switched:
        gpu.leave()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "problem",
    [Problem(512, 512, 512), Problem(511, 510, 509), Problem(100, 60, 36, "TT"), Problem(64, 60, 36, "NT", 300)],
    ids=format_problem,
)
def test_good_kernels_pass(real, problem):
    jobs = [job_of("sm_90", WARP, config, problem) for config in QUICK["warptiled"][:6]]
    assert dict(real.compile(jobs)) == dict.fromkeys(jobs)
    assert [real.check(job) for job in jobs] == [None] * len(jobs)
    timer = real.operands(problem)
    assert all(0 < timer.once(WARP, job.config) < 100 for job in jobs)
    assert all(1 <= real.blocks_per_sm(job) <= 32 for job in jobs)


@pytest.mark.gpu
def test_a_wrong_kernel_is_found_out(real, monkeypatch):
    job = job_of("sm_90", WARP, GOOD, Problem(512, 512, 512))
    other = Variant(True, False, *([job.variant.vec_a] * 3))  # the same geometry, but A is read as if column-major
    spec = source.rung_spec(WARP, GOOD, other)
    wrong = kernel.ready(real.gpu, spec, GOOD.shared_bytes)
    monkeypatch.setitem(real.gpu.kernels, source.rung_spec(WARP, GOOD, job.variant), wrong)
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
    "problem", [Problem(300, 200, 100), Problem(300, 200, 100, "TN"), Problem(1, 64, 64)], ids=format_problem
)
def test_cublas_runs_on_the_same_operands(real, problem, monkeypatch):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch sees no device")
    made = recorded(monkeypatch, DeviceArray)
    timer = real.operands(problem)
    assert timer.once(WARP, GOOD) > 0
    ours = np.empty((problem.M, problem.N), np.float32)
    made[2].download(ours)
    assert timer.baseline() > 0
    theirs = np.empty_like(ours)
    made[2].download(theirs)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)
    assert all(0 < error < 1e-6 for error in timer.errors(WARP, GOOD))


@pytest.mark.gpu
def test_one_problem_is_tuned_on_the_device(data_folder):
    outcome = tuner.tune(["512,512,512"], rung="warptiled", quick=True, budget=60, progress=False)
    assert outcome.complete and outcome.tuned[0].ms > 0
    gpu = device.open_gpu(0)
    assert choose_config(gpu, WARP, Problem(512, 512, 512)).config == outcome.tuned[0].config
    assert gpu.prepared == {}

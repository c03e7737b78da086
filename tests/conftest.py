"""Fixtures that several test files share, and the rule that GPU tests are skipped where there is no device."""

import copy
import ctypes
import gc
import math
import os
import re
import warnings
from collections import Counter
from functools import cache, lru_cache
from types import SimpleNamespace

import compilations
import missing_device
import numpy as np
import pytest
import python_kernels
from fake_driver import FakeDriver
from hypothesis import settings
from msgspec import structs
from skips import pytest_terminal_summary as pytest_terminal_summary

from fastsgemm import device, host, private_files, resources, rungs
from fastsgemm.call import arrays
from fastsgemm.call.arrays.library import BFLOAT16, offsets_meta
from fastsgemm.config import SkinnyConfig, VectorizedConfig
from fastsgemm.device import DeviceInfo
from fastsgemm.geometry import grid, variants
from fastsgemm.geometry.layout import Meta
from fastsgemm.gpu import when_forgotten
from fastsgemm.heuristics import database, database_entries
from fastsgemm.heuristics.fields import Tools
from fastsgemm.host import as_float32, write
from fastsgemm.jit import cache as kernel_cache
from fastsgemm.jit import compiler, packs
from fastsgemm.problem import DType
from fastsgemm.sim import nvrtc
from fastsgemm.tuning import first_use
from fastsgemm.tuning.evaluator import Job

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes most of a device's memory

settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.load_profile("fixed")


missing_device = cache(missing_device.reason)


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and missing_device():
        pytest.skip(missing_device())


@pytest.hookimpl(tryfirst=True)  # before cases are deselected by their marks
def pytest_collection_modifyitems(items):
    """Mark the cases of a sampled test as slow, but every Nth.

    N should share no factor with the number of values of any parameter: then a quick run of enough cases meets each.
    """
    seen = Counter()
    for item in items:
        if sampled := item.get_closest_marker("sampled"):
            name = (item.path, item.originalname)
            if seen[name] % sampled.kwargs["every"]:
                item.add_marker("slow")
            seen[name] += 1


def pytest_collection_finish():
    """Let the garbage collector look at few objects and seldom: a sixth of the time of a run is its own otherwise.

    Thousands of tests, and the programs that the simulated device decodes, are objects that live long.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def forget_the_machine():
    """Forget what was found out about the machine, and that it was warned about."""
    device.probe.cache_clear()
    device.host_backend.cache_clear()
    device._load_fitting_nvrtc.cache_clear()
    host._warned = False
    kernel_cache._warned = packs._warned = False
    packs.installed.cache_clear()
    private_files._warn_no_home.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def kernel_folder(tmp_path_factory):
    """Keep the user's own kernels and tuning out of it. All worker processes of a run share one folder of kernels.

    FASTSGEMM_CACHE_DIR names a folder that outlives the run.
    """
    run_folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run_folder = run_folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTSGEMM_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        patch.setenv("FASTSGEMM_TUNE", "off")
        if not os.environ.get("FASTSGEMM_CACHE_DIR"):
            private_files.make_folder(run_folder / "kernels")
            patch.setenv("FASTSGEMM_CACHE_DIR", str(run_folder / "kernels"))
        yield


@pytest.fixture(scope="session", autouse=True)
def compile_once():
    """The simulated device takes what NVRTC made of the same source before, in this run or an earlier one."""
    compile_source = nvrtc.compile_source.__wrapped__  # without the few results that a process remembers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvrtc, "compile_source", lru_cache(64)(compilations.kept(compile_source)))
        yield


@pytest.fixture
def fresh_machine():
    """A process that has not looked at its machine yet, and forgets afterwards what it saw."""
    forget_the_machine()
    yield
    forget_the_machine()


@pytest.fixture
def on_host(fresh_machine, monkeypatch):
    """Host arrays are multiplied by NumPy, whatever the machine has; the one warning is past."""
    monkeypatch.setenv("FASTSGEMM_DEVICE", "host")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        host._say_once()


@pytest.fixture
def no_driver(fresh_machine, monkeypatch):
    """A machine without an NVIDIA driver."""
    from cuda.bindings import driver

    def missing(flags):
        raise RuntimeError("libcuda.so.1: cannot open shared object file")

    monkeypatch.delenv("FASTSGEMM_DEVICE", raising=False)
    monkeypatch.setattr(driver, "cuInit", missing)


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def random():
    """Return a function that makes a float32 matrix of normal numbers, the same in every run."""
    generator = np.random.default_rng(20)
    return lambda *shape: generator.standard_normal(shape).astype(np.float32)


def at(pointer, shape, strides, dtype=0):
    """A matrix at an address of host memory, strides in elements; the type is that of the kernels' constants."""
    item = DType(dtype).item
    interface = {
        "version": 3, "typestr": ("<f4", "<u2", "<f2")[dtype], "data": (int(pointer), False),
        "shape": tuple(map(int, shape)), "strides": tuple(item * int(stride) for stride in strides),
    }  # fmt: skip
    values = np.asarray(SimpleNamespace(__array_interface__=interface))
    return values.view(BFLOAT16) if dtype == DType.BF16 else values


def type_of(constants, name):
    """The type of A or B that a kernel is compiled for; most read float32 only."""
    return DType(getattr(constants, f"TYPE_{name}", 0))


_CONSTANT = re.compile(r"^constexpr int (\w+) = (-?\d+);", re.MULTILINE)


def constants_of(code):
    """Return the constants that a kernel's source declares."""
    return SimpleNamespace(**{name: int(value) for name, value in _CONSTANT.findall(code)})


def for_batch(kernel, a, b, c, asks_for_blocks=False, items=(4, 4, 4)):
    """Run a NumPy kernel for every product of a batch; its arguments `a`, `b` and `c` are the addresses.

    Where there is a source, the kernel also gets its address and strides.
    """

    items = dict(zip((a, b, c), items, strict=True))

    def run(grid, *arguments):
        *arguments, batch = arguments
        x, y, z = (*grid, 1, 1)[:3]
        assert y <= 65535 >= z and y * z >= batch.count and (batch.count == 1) == (y * z == 1)
        for index in np.ndindex(batch.count // (batch.middle * batch.inner), batch.middle, batch.inner):
            moved = list(arguments)
            for place, steps in ((a, batch.a), (b, batch.b), (c, batch.c)):
                if place is not None:
                    moved[place] += items[place] * int(np.dot(index, steps))
            more = {"blocks": x} if asks_for_blocks else {}
            if batch.source:
                first, strides, steps = batch.source
                more["source"] = first + 4 * int(np.dot(index, steps)), strides
            kernel(*moved, **more)

    return run


def store(C, total, beta, source=None, sym=0):
    """What an epilogue does: beta multiplies C, or the source at this address with these strides.

    With `sym`, what is above the diagonal is taken from below it, and one triangle may be all that is stored.
    """
    kept = np.ones(C.shape, bool)
    if sym:
        lower = np.tri(len(C), dtype=bool)
        total, kept = np.where(lower, total, total.T), {1: kept, 2: lower, 3: lower.T}[sym]
    values = total + beta * (C if source is None else at(source[0], C.shape, source[1])) if beta else total
    np.copyto(C, values, where=kept)


def tiles_of(constants, M, N):
    """How many tiles of C a kernel computes: with SYM those that meet the lower triangle."""
    starts = np.arange(0, M, constants.BM), np.arange(0, N, constants.BN)
    ends = np.minimum(starts[0] + constants.BM, M)
    return len(starts[0]) * len(starts[1]) if not constants.SYM else int((starts[1][None] < ends[:, None]).sum())


def product_kernel(constants):
    """What every rung computes, in NumPy, from a rung's own arguments."""

    def kernel(M, N, K, alpha, pa, lda, pb, ldb, beta, pc, ldc):
        A = at(pa, (M, K), (1, lda) if constants.TRANS_A else (lda, 1))
        B = at(pb, (K, N), (1, ldb) if constants.TRANS_B else (ldb, 1))
        C = at(pc, (M, N), (ldc, 1))
        total = alpha * (A @ B if K else np.zeros((M, N), np.float32))
        store(C, total, beta)

    return for_batch(kernel, 4, 6, 9)


def parts_kernel(constants):
    """The same for a rung that splits K: which part a block computes follows from the grid."""

    def kernel(M, N, K, alpha, pa, lda, pb, ldb, beta, pc, ldc, k_chunk, split_stride, *k_chain, blocks, source=None):
        A = as_float32(at(pa, (M, K), (1, lda) if constants.TRANS_A else (lda, 1), type_of(constants, "A")))
        B = as_float32(at(pb, (K, N), (1, ldb) if constants.TRANS_B else (ldb, 1), type_of(constants, "B")))
        trans_c = getattr(constants, "TRANS_C", 0)  # rung 9 does not have it
        sym = getattr(constants, "SYM", 0)  # rung 10 does not have it
        parts, rest = divmod(blocks, tiles_of(SimpleNamespace(BM=constants.BM, BN=constants.BN, SYM=sym), M, N))
        assert all(steps > 0 and steps % constants.BK == 0 for steps in k_chain)  # of rung 9
        assert rest == 0 and parts * k_chunk >= K and (source is None or parts == 1)
        for part in range(parts):
            steps = slice(min(part * k_chunk, K), min((part + 1) * k_chunk, K))
            C = at(pc + 4 * part * split_stride, (M, N), (1, ldc) if trans_c else (ldc, 1))
            total = alpha * (A[:, steps] @ B[steps] if steps.start < steps.stop else np.zeros((M, N), np.float32))
            store(C, total, beta, source, sym)

    items = type_of(constants, "A").item, type_of(constants, "B").item, 4
    return for_batch(kernel, 4, 6, 9, asks_for_blocks=True, items=items)


def grouped_kernel(constants):
    """Rung 9 with GROUPED: what it reads and writes of each group follows from the ends in the memory of the device."""

    def run(grid, M, N, K, alpha, pa, lda, pb, ldb, beta, pc, ldc, k_chunk, split_stride, k_chain, batch):
        ends, words = batch.groups
        begin, extent, ragged = 0, {1: M, 2: K, 3: N}[constants.GROUPED], constants.GROUPED
        for g in range(batch.count):
            end = min(max(ctypes.c_int32.from_address(ends + 4 * words * g).value, begin), extent)
            rows, steps, columns = (slice(begin, end) if ragged == each else slice(None) for each in (1, 2, 3))
            A = at(pa + 4 * g * batch.a[2], (M, K), (1, lda) if constants.TRANS_A else (lda, 1))[rows, steps]
            B = at(pb + 4 * g * batch.b[2], (K, N), (1, ldb) if constants.TRANS_B else (ldb, 1))[steps, columns]
            C = at(pc + 4 * g * batch.c[2], (M, N), (ldc, 1))
            old = C
            if batch.source:
                first, strides, of_groups = batch.source
                old = at(first + 4 * g * of_groups[2], (M, N), strides)
            C[rows, columns] = alpha * (A @ B) + (beta * old[rows, columns] if beta else 0)
            begin = end

    return run


def reduce_kernel(constants):
    """What adds up the parts of K."""

    def kernel(M, N, count, pw, part_stride, alpha, beta, pc, *strides, source=None):
        total = np.zeros((M, N), np.float32)
        for part in range(count):
            total = total + at(pw + 4 * part * part_stride, (M, N), (N, 1))
        store(at(pc, (M, N), strides), alpha * total, beta, source, constants.SYM)

    return for_batch(kernel, 3, None, 7)


def copy_kernel(constants):
    """What copies matrices, between types."""

    def kernel(rows, columns, source, *rest):
        *from_strides, target, to_row, to_column = rest
        into = at(target, (rows, columns), (to_row, to_column), constants.TO)
        values = at(source, (rows, columns), from_strides, constants.FROM)
        if constants.FROM == constants.TO:
            into[...] = values
        else:
            write(into, as_float32(values))

    items = DType(constants.FROM).item, 4, DType(constants.TO).item
    return for_batch(kernel, 2, None, 5, items=items)


def pack_kernel(constants):
    """What packs an operand into lines of whole vectors."""

    def kernel(lines, length, source, from_line, from_step, target, to_line):
        whole = -(-length // 4) * 4
        into = at(target, (lines, whole), (to_line, 1))
        into[:, :length] = as_float32(at(source, (lines, length), (from_line, from_step), constants.FROM))
        into[:, length:] = 0.0

    return kernel


class PythonDevice:
    """A device in host memory with NumPy kernels: what is launched on it is done at once and recorded."""

    ordinal, name, arch, shared_limit, multiprocessors, context = 0, "Python", "sm_90", 232448, 1, 1

    def __init__(self):
        self.prepared, self.kernels = {}, {}
        self.capturing = set()  # handles of streams
        self.streams = set()
        self.launched = []  # (handle, arguments)
        self.early = []  # of each launch, whether it may begin before the one before it has ended
        self.made = []  # every workspace
        self.room = 1 << 30  # bytes of one
        self.compiled = []
        self.kept = []
        self.pool = "a pool"
        self.copying, self.freeing = 8, 9  # handles of streams

    def with_own_tables(self):
        other = copy.copy(self)
        other.prepared, other.kernels = {}, dict(self.kernels)
        return other

    def forget_problems(self):
        self.prepared.clear()
        for forget in when_forgotten:
            forget()

    def enter(self):
        return False

    def load(self, code, name, shared_bytes):
        """Make a NumPy kernel of a source, which is what the fixture's compiler returns."""
        entry, name = name, name.removeprefix("fastsgemm_")
        self.compiled.append(name)
        if code.startswith(b"\x7fELF"):  # compiled past the fixture; nothing here can run it
            return python_kernels.PythonKernel(entry, None, "")
        text = code.decode()
        helpers = {"copy_strided": copy_kernel, "pack": pack_kernel}
        helpers |= dict.fromkeys(("reduce_parts", "reduce_segments"), reduce_kernel)
        product = parts_kernel if name in ("pipelined", "skinny") else product_kernel
        product = grouped_kernel if getattr(constants_of(text), "GROUPED", 0) else product
        return python_kernels.PythonKernel(
            entry, helpers.get(name, product)(constants_of(text)), python_kernels.parameters_of(text, entry)
        )

    def adopt(self, handle):
        self.streams.add(handle)

    def keep_alive(self, handle, objects):
        self.kept.append((handle, objects))

    def allocate(self, size, handle):
        if size > self.room:
            return 2, None  # CUDA_ERROR_OUT_OF_MEMORY
        values = np.full(-(-size // 4), np.nan, np.float32)
        address = values.ctypes.data
        self.made.append(SimpleNamespace(values=values, address=address, size=size, handle=handle, open=True))
        return 0, address

    def free(self, address, handle):
        [found] = [each for each in self.made if each.open and each.address == address]
        assert handle in (found.handle, self.freeing)
        found.open = False
        return (0,)

    def is_capturing(self, handle):
        return handle in self.capturing

    @property
    def leaks(self):
        """Every workspace that was not freed, once what was kept is released: all work here is done at once."""
        self.kept.clear()
        return [each for each in self.made if each.open]

    def launch_config(self, grid, threads, shared_bytes, early):
        return SimpleNamespace(grid=grid, threads=threads, shared_bytes=shared_bytes, early=early, hStream=None)

    def launch(self, config, function, pointers, extra):
        kernel = python_kernels.PythonKernel.made[int(function)]
        self._run(config, kernel, config.hStream, kernel.arguments(pointers))
        return (0,)

    def _run(self, config, kernel, handle, arguments):
        self.launched.append((handle, arguments))
        self.early.append(config.early)
        if kernel.types[-1] in "bsgh":
            kernel.run(config.grid, *arguments)
        else:
            kernel.run(*arguments)


class OnDevice:
    """An array on the Python device."""

    def __init__(self, values):
        self.values = values

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **options):
        raise AssertionError("the library of these arrays exports them itself")


class DeviceLibrary(arrays.Library):
    """The library of `OnDevice`: its current stream is 5."""

    has_streams = True

    def __init__(self):
        self.viewed = []  # (handle, ordered)

    def current_stream(self, device):
        return 5

    def view(self, x, handle, ordered, kept):
        self.viewed.append((handle, ordered))
        values = x.values
        strides = tuple(stride // values.itemsize for stride in values.strides)
        dtype = arrays.host_dtype(values) or DType.F32
        fault, readonly = arrays.host_fault(values), not values.flags.writeable
        return values.ctypes.data, Meta(values.shape, strides, dtype, 0, fault, readonly)

    def offsets_view(self, x, handle, ordered, kept):
        self.viewed.append((handle, ordered))
        values = x.values
        strides = tuple(stride // values.itemsize for stride in values.strides)
        return values.ctypes.data, offsets_meta(values.dtype, values.shape, strides, 0)

    def empty(self, like, shape, gpu, handle):
        return OnDevice(np.full(shape, np.nan, np.float32))


@pytest.fixture
def cuda_driver(monkeypatch):
    """The CUDA driver in Python."""
    return FakeDriver().install(monkeypatch)


@pytest.fixture(name="device")
def python_device(monkeypatch, cuda_driver):
    """The Python device as cuda:0, with `OnDevice` for arrays and a compiler that returns the source."""
    gpu = PythonDevice()
    monkeypatch.setitem(device.gpus, 0, gpu)
    monkeypatch.setitem(first_use.opened, 0, gpu)
    monkeypatch.setattr(compiler, "cubin", lambda source, name, arch, stored=False: source.encode())
    monkeypatch.setitem(arrays.by_type, OnDevice, DeviceLibrary())
    monkeypatch.setattr(device, "is_capturing", lambda handle: handle in gpu.capturing)
    yield gpu
    gpu.kept.clear()


@pytest.fixture
def on_device():
    """Return a function that puts a float32 matrix on the Python device."""
    return OnDevice


class FakeTimer:
    """Times of one problem on a `FakeEvaluator`."""

    def __init__(self, evaluator, problem):
        self._evaluator, self._problem = evaluator, problem

    def once(self, rung, config):
        return self._evaluator.time(rung, config, self._problem)

    def baseline(self):
        return self._evaluator.baseline_ms

    def errors(self, rung, config):
        return self._evaluator.errors(config, self._problem)


class FakeEvaluator:
    """An evaluator without a device: times follow a formula, and its clock advances by what each step takes."""

    device = DeviceInfo("Fake 9000", "sm_90", 232448, 132)
    tools = Tools("580.0", "13.0", "2026-01-01")
    baseline_ms = None
    cublas_error = None

    def __init__(self):
        self.now = 0.0  # seconds
        self.compiled, self.checked, self.timed = [], [], []
        self.compile_failures, self.check_failures, self.time_failures = {}, {}, {}  # by config
        self.interrupt_after = None  # timings

    def clock(self):
        return self.now

    def compile(self, jobs):
        for job in jobs:
            self.now += 0.02
            self.compiled.append(job)
            yield job, self.compile_failures.get(job.config)

    def check(self, job):
        self.now += 0.001
        self.checked.append(job)
        return self.check_failures.get(job.config)

    def blocks_per_sm(self, job):
        return max(1, min(16, 1024 // job.config.threads))

    def operands(self, problem):
        return FakeTimer(self, problem)

    def fp16x3_rates(self, quick=False):
        return structs.replace(database.rates(self.device.arch), device=self.device.name)

    def errors(self, config, problem):
        """Errors that grow with the root of a chain's length."""
        if self.cublas_error is None:
            return None
        chains = getattr(config, "PARTIAL_ACCUMULATORS", 1) * config.sliced_k * grid.split(config, problem.K)[0]
        return 1e-8 * math.sqrt(problem.K / chains), self.cublas_error

    def time(self, rung, config, problem):
        if self.interrupt_after is not None and len(self.timed) >= self.interrupt_after:
            raise KeyboardInterrupt
        self.timed.append((problem, config))
        if config in self.time_failures:
            return self.time_failures[config]
        ms = self.formula(config, problem)
        self.now += 1e-3 * ms + 1e-4
        return ms

    def formula(self, config, problem):
        """Waves of blocks, small tiles being dear a step and large ones wasting what they do not cover.

        Parts of K are blocks with less to do, and are added up afterwards.
        """
        full = self.blocks_per_sm(Job(None, config, None))
        problem = variants.with_swap_ab(rungs.find("skinny"), problem) if type(config) is SkinnyConfig else problem
        load = problem.batch * grid.blocks(config, problem) / self.device.multiprocessors
        waves, rest = divmod(load, full)
        area = config.BM * config.BN
        step = 1e-8 * (area + 40 * (config.BM + config.BN)) * (1.0 + 0.2 * (not getattr(config, "PREFETCH", 0)))
        parts, chunk = grid.split(config, problem.K)
        reduction = 0.003 + 2e-9 * problem.batch * problem.M * problem.N * (parts + 2) if parts > 1 else 0.0
        depth = min(problem.K, chunk) + config.tile_k
        return 0.004 + step * depth * (full * waves + math.ceil(rest)) + reduction


@pytest.fixture
def evaluator():
    return FakeEvaluator()


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    """An empty folder for the user's own tuning results."""
    folder = tmp_path / "data"
    monkeypatch.setenv("FASTSGEMM_DATA_DIR", str(folder))
    database.forget()
    yield folder
    database.forget()


@pytest.fixture(scope="session")
def configs():
    """Constants for every rung, by its name: those that hold everywhere, and others where two rungs share a file."""
    records = database.load(database_entries.GENERIC).records
    generic = {record.rung: record.config for record in reversed(records)}  # of one order of summation last
    skinny = SkinnyConfig(4, 32, 64, TN=4, TK=8, MIN_BLOCKS=1, SPLIT_K=1)
    return generic | {"autotuned": VectorizedConfig(64, 64, 16, 4, 4), "skinny": skinny}


@pytest.fixture
def tuning_folder(tmp_path, monkeypatch, data_folder):
    """An empty folder in place of the shipped database, and no results of the user."""
    folder = tmp_path / "tuning_db"
    folder.mkdir()
    real = resources.folder
    monkeypatch.setattr(resources, "folder", lambda name: folder if name == "tuning_db" else real(name))
    return folder

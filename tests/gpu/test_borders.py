"""Where the package meets other libraries, streams, captures and processes: what lives how long, and who waits.

What could hang or end a process runs in one of its own.
"""

from contextlib import suppress

import numpy as np
import pytest
import subprocesses

from fastsgemm import sgemm

pytestmark = pytest.mark.gpu

# What the programs below share. A torch stream is never destroyed, so they make streams of their own.
PRELUDE = """
import copy, gc, os, sys, threading
import numpy as np, torch
from cuda.bindings import driver
import fastsgemm
from fastsgemm import sgemm

class Stream:
    def __init__(self):
        self.handle = int(driver.cuStreamCreate(1)[1])  # it does not wait for the legacy stream

    def __cuda_stream__(self):
        return 0, self.handle

    def destroy(self):
        assert int(driver.cuStreamDestroy(self.handle)[0]) == 0

def busy(stream, seconds):
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle)):
        torch.cuda._sleep(int(seconds * 1.5e9))

def full(value, *shape):
    return torch.full(shape, float(value), device="cuda")
"""


def run(program, **variables):
    """Run a program in a process of its own, which must end by itself and without complaint."""
    done = subprocesses.run(PRELUDE + program, **variables)
    assert "Exception ignored" not in done.stderr, done.stderr


@pytest.mark.parametrize("end", ["donated", "deleted"])
def test_a_jax_operand_that_is_given_up_after_the_call_is_read_before(torch, jax, make_busy, end):
    """The product waits behind a busy stream, and XLA's streams do not wait for it."""
    step = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    size = 512
    for round_ in range(9):
        a, b = (jax.numpy.full((size, size), value, "float32") for value in (2.0, 3.0))
        jax.block_until_ready((a, b, sgemm(a, b), step(a + 0)))
        if round_ % 3 == 0:
            torch.cuda.synchronize()
            make_busy(0)
        c = sgemm(a, b)
        if end == "deleted":
            a.delete()
            others = [jax.numpy.full((size, size), -1.0) for _ in range(3)]
        else:
            others = []
            with suppress(RuntimeError):  # JAX may refuse to donate what is exported
                others.append(step(a))
        jax.block_until_ready(others)
        np.testing.assert_array_equal(np.asarray(c), 6 * size)


def test_a_jax_result_that_is_dropped_while_xla_reads_it(jax):
    """Its memory must not go to the next product before XLA has read it."""
    size = 2048

    @jax.jit
    def late(c, x):
        for _ in range(60):
            x = jax.numpy.sin(x @ x)
        return c + 0 * x

    a, b, x = (jax.numpy.full((size, size), value, "float32") for value in (2.0, 3.0, 0.01))
    jax.block_until_ready((late(sgemm(a, b), x), sgemm(a, a)))
    for _ in range(3):
        c = sgemm(a, b)
        found = late(c, x)
        del c
        others = [sgemm(a, a) for _ in range(4)]
        np.testing.assert_array_equal(np.asarray(found), 6 * size)
        del others


def test_operands_of_the_last_call_are_let_go(jax, torch, gpu, make_busy):
    """511 MiB, and not even while another stream, which keeps its own, waits."""
    memory = jax.local_devices()[0].memory_stats
    b = jax.numpy.ones((16352, 8))
    sgemm(jax.numpy.ones((8192, 16352)), b).block_until_ready()
    torch.cuda.synchronize()
    import gc

    gc.collect()
    before = memory()["bytes_in_use"]
    side = torch.cuda.Stream()
    small = torch.ones(8, 8, device="cuda")
    for _ in range(10):  # about 2 s
        make_busy(side.cuda_stream)
    sgemm(small, small, stream=side)
    a = jax.numpy.ones((8192, 16352))
    c = sgemm(a, b)
    del a
    np.testing.assert_array_equal(np.asarray(c), 16352)
    torch.cuda.default_stream().synchronize()
    gc.collect()
    still_busy = not side.query()
    assert memory()["bytes_in_use"] - before < 64 << 20
    assert still_busy
    torch.cuda.synchronize()
    gc.collect()


def test_a_second_stream_does_not_wait_for_the_first(torch):
    streams = [torch.cuda.Stream() for _ in range(2)]
    cases = {
        "plain": ((64, 64, 64), {}),
        "parts of k": ((64, 64, 20000), {}),
        "fp16x3": ((1024, 1024, 1024), {"precision": "fp16x3"}),
    }
    for (M, N, K), how in cases.values():
        A, B = torch.ones(M, K, device="cuda"), torch.ones(K, N, device="cuda")
        results = [torch.zeros(M, N, device="cuda") for _ in streams]
        for stream, C in zip(streams, results, strict=True):
            with torch.cuda.stream(stream):
                for _ in range(4):
                    sgemm(A, B, C=C, **how)
        torch.cuda.synchronize()
        first, second = streams
        with torch.cuda.stream(first):
            torch.cuda._sleep(600_000_000)  # clock cycles
            sgemm(A, B, C=results[0], **how)
        with torch.cuda.stream(second):
            sgemm(A, B, C=results[1], **how)
        second.synchronize()
        waits = first.query()
        torch.cuda.synchronize()
        assert not waits
        assert all((C == K).all() for C in results)


def test_a_current_green_context():
    run("""
try:
    from torch.cuda.green_contexts import GreenContext
    green = GreenContext.create(num_sms=16, device_id=0)
except (ImportError, RuntimeError, TypeError) as error:
    print("no green contexts:", error)
    sys.exit(0)
A, B, C = full(2, 512, 512), full(3, 512, 512), full(0, 512, 512)
deep, host = full(1, 64, 20000), np.full((64, 64), 2, np.float32)
calls = {"plain": {}, "fp16x3": {"precision": "fp16x3"}, "rung 1": {"rung": 1}}
for how in calls.values():
    sgemm(A, B, C=C, **how)
torch.cuda.synchronize()
green.set_context()
try:
    for name, how in calls.items():
        for value in range(1, 6):
            A.fill_(0)
            torch.cuda._sleep(30_000_000)
            A.fill_(value)
            sgemm(A, B, C=C, **how)
            copied = C.clone()
            torch.cuda.synchronize()
            assert (copied == 3 * 512 * value).all(), (name, value, copied.unique())
    assert (sgemm(deep, deep.T) == 20000).all()
    assert (sgemm(A[:, ::2], A[::2]) == 25 * 256).all()  # packed
    weight = fastsgemm.split(B)
    assert (sgemm(A, weight, precision="fp16x3") == 15 * 512).all()
    assert (sgemm(host, host) == 4 * 64).all()
    torch.cuda.synchronize()
    del weight
    gc.collect()
finally:
    green.pop_context()
del green
gc.collect()
assert (sgemm(host, host) == 4 * 64).all()  # on a stream that outlives the green context
assert (sgemm(A, B) == 15 * 512).all()
fastsgemm.release_workspace()
torch.cuda.synchronize()
""")


def test_tuning_beside_calls_and_the_replay_of_a_graph():
    run("""
A, C, D = full(1, 256, 256), full(0, 256, 256), full(0, 256, 256)
sgemm(A, A, C=C)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    sgemm(A, A, C=C)
failed = []

def tune():
    try:
        fastsgemm.tune(["256,256,256", "300,300,300"], rung=9, quick=True, budget=20, store=False, progress=False)
    except BaseException as error:
        failed.append(error)

thread = threading.Thread(target=tune)
thread.start()
rounds = 0
while thread.is_alive():
    size = 256 - rounds % 7
    C.zero_()
    graph.replay()
    new = sgemm(A[:size, :size], A[:size, :size])
    sgemm(A, A, C=D)
    torch.cuda.current_stream().synchronize()
    assert (C == 256).all() and (D == 256).all() and (new == size).all()
    rounds += 1
thread.join()
assert not failed and rounds > 1, (failed, rounds)
gc.collect()
C.zero_()
graph.replay()
torch.cuda.synchronize()
assert (C == 256).all()
""")


def test_what_is_dropped_after_its_stream_is_gone():
    run("""
X, W = full(2, 256, 256), full(3, 256, 256)
wanted = sgemm(X, W, precision="fp16x3", rung="fp16x3")
for waits in (False, True):
    stream = Stream()
    if waits:
        busy(stream, 0.2)
    weight = fastsgemm.split(W, stream=stream)
    shared = copy.copy(weight)
    found = sgemm(X, weight, precision="fp16x3", stream=stream)
    if not waits:
        torch.cuda.synchronize()
    stream.destroy()
    assert torch.equal(sgemm(X, weight, precision="fp16x3"), wanted)
    del weight
    gc.collect()
    others = [fastsgemm.split(-W) for _ in range(3)]  # would get what was freed too early
    assert torch.equal(sgemm(X, shared, precision="fp16x3"), wanted)
    del shared, others
    gc.collect()
    torch.cuda.synchronize()
    assert torch.equal(found, wanted)
fastsgemm.release_workspace()
""")


def test_a_jax_result_that_is_dropped_after_its_stream_is_gone(jax):
    run("""
import jax
a = jax.numpy.full((256, 256), 2.0)
for waits in (False, True):
    stream = Stream()
    if waits:
        busy(stream, 0.2)
    result = sgemm(a, a, stream=stream)
    if not waits:
        np.testing.assert_array_equal(np.asarray(result), 4 * 256)
        torch.cuda.synchronize()
    stream.destroy()
    del result
    gc.collect()
    np.testing.assert_array_equal(np.asarray(sgemm(a, a)), 4 * 256)
fastsgemm.release_workspace()
torch.cuda.synchronize()
""", XLA_PYTHON_CLIENT_PREALLOCATE="false")  # fmt: skip


ACTIONS = {
    "release_workspace": """
spare = [fastsgemm.split(A) for _ in range(2)]

def act():
    spare.pop()
    fastsgemm.release_workspace()
""",
    "host arrays": """
host = np.full((96, 96), 2, np.float32)

def act():
    assert (sgemm(host, host) == 4 * 96).all()
""",
    "split operands dropped": """
operands = [fastsgemm.split(A) for _ in range(2)]

def act():
    operands.pop()
""",
    "collection": """
operands = [fastsgemm.split(A) for _ in range(2)]

def act():
    ring = [operands.pop()]
    ring.append(ring)
    del ring
    assert gc.collect()
""",
    "70 streams with workspace": """
streams = [Stream() for _ in range(70)]
deep, results = full(1, 64, 20000), [full(0, 64, 64) for _ in range(70)]

def act():
    for stream, result in zip(streams, results):
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle)):
            sgemm(deep, deep.T, C=result, stream=stream)
""",
    "a new problem": """
sizes = iter(((100, 33), (101, 35)))
values = full(1, 128, 128)

def act():
    M, K = next(sizes)
    sgemm(values[:M, :K], values[:K, :M], C=values[:M, :M].clone() if M == 100 else out, rung=5)

out = full(0, 101, 101)
""",
}


@pytest.mark.parametrize("action", ACTIONS)
def test_a_capture_of_another_thread_goes_on(action):
    run(
        """
A, C = full(1, 256, 256), full(0, 256, 256)
sgemm(A, A, C=C)
"""
        + ACTIONS[action]
        + """
act()  # once before, and so is what the capture records: PyTorch loads a kernel at its first use
C.add_(1)
torch.cuda.synchronize()
begin, end, failed = threading.Event(), threading.Event(), []

def other():
    begin.wait()
    try:
        act()
    except BaseException as error:
        failed.append(error)
    end.set()

thread = threading.Thread(target=other)
thread.start()
graph = torch.cuda.CUDAGraph()
gc.disable()
try:
    with torch.cuda.graph(graph):  # no thread may synchronise
        sgemm(A, A, C=C)
        begin.set()
        assert end.wait(60)
        C.add_(1)
finally:
    begin.set()
thread.join()
assert not failed, failed
C.zero_()
graph.replay()
torch.cuda.synchronize()
assert (C == 257).all()
""",
    )


def test_memory_is_given_back_and_the_pool_of_all_is_left_alone():
    run("""
torch.cuda.init()
shared = driver.cuDeviceGetDefaultMemPool(driver.cuDeviceGet(0)[1])[1]
which = driver.CUmemPool_attribute
limits = which.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, which.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES
limits_now = lambda: [int(driver.cuMemPoolGetAttribute(shared, each)[1]) for each in limits]
before = limits_now()
X = full(1, 8192, 8192)
weight, stream = fastsgemm.split(X), Stream()
size = weight.nbytes
packed = sgemm(X[:, ::2], X[:, ::2].T, stream=stream)  # with workspace of our own
torch.cuda.synchronize()
assert (packed == 4096).all()
del weight
gc.collect()
torch.cuda.synchronize()
given = fastsgemm.release_workspace()
assert given >= size > 0, (given, size)
assert fastsgemm.release_workspace() == 0
assert limits_now() == before
""")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_new_problem_in_a_capture_with_the_switch_on(dtype):
    """Float64 is passed on to cuBLAS, whose first call of the process is then within the capture."""
    run(f"""
import fastsgemm.torch
x = torch.full((120, 130), 2.0, device="cuda", dtype=torch.{dtype})
with fastsgemm.torch.enabled() as switch:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x @ x.T
        z = torch.bmm(x[None], x.T[None])
    x.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    assert (y == 9 * 130).all() and (z == 9 * 130).all(), (y.unique(), z.unique())
    assert x.dtype == torch.float64 or not switch.report().passed_on
""")


def test_enabling_the_switch_leaves_cuda_to_processes_that_are_forked():
    run("""
import fastsgemm.torch
fastsgemm.torch.enable()
child = os.fork()
if child == 0:
    x = full(2, 64, 64)
    right = bool((x @ x == 4 * 64).all())
    sys.stderr.flush()
    os._exit(0 if right else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
x = full(2, 64, 64)
assert (x @ x == 4 * 64).all()
""")


def test_a_process_that_is_forked_later_drops_operands_in_silence():
    """As the workers of a data loader do: CUDA is not usable in them."""
    run("""
x = full(2, 64, 64)
stream, weight = Stream(), fastsgemm.split(x)
busy(stream, 0.5)
y = sgemm(x, x, stream=stream)
child = os.fork()
if child == 0:
    del weight
    gc.collect()
    sys.stderr.flush()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
torch.cuda.synchronize()
assert (y == 4 * 64).all()
""")


def test_1500_blocks_of_the_switch_need_no_more_memory():
    run("""
import resource
import fastsgemm.torch
x = full(2, 64, 64)

def blocks(count):
    for _ in range(count):
        with fastsgemm.torch.enabled():
            x @ x
    torch.cuda.synchronize()
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

blocks(300)
before = blocks(200)
grown = blocks(1500) - before
# PyTorch keeps 48 bytes, in at most twice the room, whenever it is asked for the kernel of an operator.
asked = 2 * 48 * sum(map(len, fastsgemm.torch.OPERATORS.values())) * 1500
assert grown < asked + (1 << 20), grown
""")

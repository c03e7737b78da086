"""Streams, captures and lifetimes on a device: nothing waits for, ends or overwrites what belongs to others.

Streams that wait are bounded: they sleep for about a fifth of a second. What used to end or hang the process
runs in one of its own.
"""

import gc
import textwrap
import threading
import time
import weakref

import numpy as np
import pytest
import subprocesses

import fastsgemm
from fastsgemm import sgemm, split

pytestmark = pytest.mark.gpu

SPLIT_K = (256, 256, 8192)  # M, N, K: several kernels and workspace


def run(script):
    """Run a script in a process of its own, which must end well within a minute or two; return what it printed."""
    return subprocesses.run(textwrap.dedent(script), timeout=120).stdout


def donate(function, a):
    """Call a function that its argument is donated to, or return None where JAX refuses that: an export is alive."""
    try:
        return function(a)
    except Exception as error:  # its class is not public
        if "donat" not in str(error).lower():
            raise
        return None


@pytest.fixture
def operands(torch):
    """A and B of a product with workspace, called before."""
    M, N, K = SPLIT_K
    A, B = torch.randn(M, K, device="cuda"), torch.randn(K, N, device="cuda")
    for _ in range(4):
        sgemm(A, B)
    torch.cuda.synchronize()
    return A, B


class TestExports:
    """An array of JAX is given away neither by donation nor by deletion until it has been read."""

    SIZE = 4096

    @pytest.mark.parametrize("how", ["donated", "deleted"])
    def test_an_operand_of_jax_is_read_before_it_is_overwritten(self, torch, jax, make_busy, how):
        jnp, size = jax.numpy, self.SIZE
        overwrite = jax.jit(lambda x: x * 0 + 7, donate_argnums=0)
        fill = jax.jit(lambda: jnp.full((size, size), 7.0, jnp.float32))
        fill().block_until_ready()
        np.asarray(sgemm(fill(), fill()))  # loads the kernel
        for _ in range(9):
            a, b = jnp.ones((size, size), jnp.float32), jnp.ones((size, size), jnp.float32)
            jax.block_until_ready((a, b))
            make_busy(0)  # the legacy stream, on which JAX's arrays are multiplied
            c = sgemm(a, b)
            if how == "deleted":
                a.delete()
                rest = [fill() for _ in range(8)]
            else:
                rest = donate(overwrite, a)
            jax.block_until_ready(rest)
            assert (np.asarray(c) == size).all()

    def test_an_operand_can_be_donated_once_the_work_is_done(self, jax):
        a = jax.numpy.ones((64, 64), jax.numpy.float32)
        sgemm(a, a).block_until_ready()
        gc.collect()
        donated = jax.jit(lambda x: x + 1, donate_argnums=0)(a)
        assert (np.asarray(donated) == 2).all()

    def test_an_exporter_of_temporary_copies(self, torch, make_busy):
        """What it exports lives as long as the export."""

        class Copying:
            def __init__(self, x):
                self.x = x

            def __dlpack_device__(self):
                return self.x.__dlpack_device__()

            def __dlpack__(self, **options):
                return self.x.clone().__dlpack__(**options)

        size = 1024
        ones, C = torch.ones(size, size, device="cuda"), torch.zeros(size, size, device="cuda")
        sgemm(Copying(ones), Copying(ones), C=C)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        make_busy(stream.cuda_stream)
        sgemm(Copying(ones), Copying(ones), C=C, stream=stream)
        rubbish = [torch.full((size, size), float("nan"), device="cuda") for _ in range(8)]
        torch.cuda.synchronize()
        assert len(rubbish) == 8
        assert (size == C).all()

    def test_the_last_operands_are_not_kept_for_ever(self, torch, gpu):
        stream, size = torch.cuda.Stream(), 64 << 20
        A = torch.ones(1024, size // 4096, device="cuda")
        B = torch.ones(size // 4096, 8, device="cuda")
        sgemm(A, B, stream=stream)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        del A
        gc.collect()
        assert before - torch.cuda.memory_allocated() >= size

    def test_a_stream_that_waits_keeps_only_its_own(self, torch, gpu, make_busy):
        one, other = torch.cuda.Stream(), torch.cuda.Stream()
        A, B = torch.ones(64, 64, device="cuda"), torch.ones(64, 64, device="cuda")
        for stream in (one, other):
            sgemm(A, B, stream=stream)
        torch.cuda.synchronize()
        fastsgemm.release_workspace()
        ours, theirs = weakref.ref(A), weakref.ref(B)
        make_busy(one.cuda_stream)
        sgemm(A, A, stream=one)
        sgemm(B, B, stream=other)
        del A, B
        other.synchronize()
        fastsgemm.release_workspace()
        alive = [each() is not None for each in (ours, theirs)]
        still_busy = not one.query()
        torch.cuda.synchronize()
        fastsgemm.release_workspace()
        assert still_busy and alive == [True, False]
        assert ours() is None


class TestStreamsAreIndependent:
    def test_a_second_stream_does_not_wait_for_what_the_first_waits_for(self, torch, operands, make_busy):
        A, B = operands
        one, other = torch.cuda.Stream(), torch.cuda.Stream()
        for stream in (one, other):
            with torch.cuda.stream(stream):
                sgemm(A, B)
        torch.cuda.synchronize()
        make_busy(one.cuda_stream)
        with torch.cuda.stream(one):
            sgemm(A, B)
        began = time.perf_counter()
        with torch.cuda.stream(other):
            sgemm(A, B)
        other.synchronize()
        took, still_busy = time.perf_counter() - began, not one.query()
        torch.cuda.synchronize()
        assert still_busy and took < 0.1

    def test_two_streams_that_signal_each_other(self):
        run("""
            import torch
            from fastsgemm import sgemm
            A, B = torch.randn(256, 8192, device="cuda"), torch.randn(8192, 256, device="cuda")
            one, other = torch.cuda.Stream(), torch.cuda.Stream()
            for _ in range(4):
                for stream in (one, other):
                    with torch.cuda.stream(stream):
                        sgemm(A, B)
            torch.cuda.synchronize()
            for _ in range(50):
                with torch.cuda.stream(one):
                    first = sgemm(A, B)
                    event = torch.cuda.Event()
                    event.record()
                with torch.cuda.stream(other):
                    event.wait()
                    second = sgemm(A, B)
                    event = torch.cuda.Event()
                    event.record()
                with torch.cuda.stream(one):
                    event.wait()
                    third = sgemm(A, B)
            torch.cuda.synchronize()
            assert torch.equal(first, second) and torch.equal(first, third)
        """)

    def test_many_streams_wait_for_nothing(self, torch, operands, make_busy):
        """The 65th used to wait for the device 64 times."""
        A, B = operands
        sleeping = torch.cuda.Stream()
        streams = [torch.cuda.Stream() for _ in range(32)] + [torch.cuda.Stream(priority=-1) for _ in range(32)]
        extern = [torch.cuda.ExternalStream(each.cuda_stream) for each in streams]
        make_busy(sleeping.cuda_stream)
        for stream in extern:
            with torch.cuda.stream(stream):
                sgemm(A, B)
        assert not sleeping.query()
        torch.cuda.synchronize()

    def test_a_current_green_context(self):
        """Work goes to its default stream, which has the handle 0 of every context."""
        out = run("""
            import sys, torch
            from fastsgemm import sgemm
            try:
                from torch.cuda.green_contexts import GreenContext
                torch.zeros(1, device="cuda")
                green = GreenContext.create(num_sms=16, device_id=0)
            except Exception as error:
                print("skipped:", error)
                sys.exit()
            A, B = torch.ones(512, 8192, device="cuda"), torch.ones(8192, 512, device="cuda")
            for _ in range(4):
                sgemm(A, B)
            torch.cuda.synchronize()
            for value in range(2, 8):
                green.set_context()
                torch.cuda._sleep(100_000_000)
                A.fill_(value)
                C = sgemm(A, B)
                D = C + 0
                green.pop_context()
                torch.cuda.synchronize()
                assert (D == value * 8192).all(), value
        """)
        if out.startswith("skipped"):
            pytest.skip(out.strip())


class TestEndings:
    def test_a_graph_is_replayed_after_a_tuning_run(self):
        run(
            """
            import os, tempfile
            os.environ["FASTSGEMM_DATA_DIR"] = tempfile.mkdtemp()
            import torch, fastsgemm
            from fastsgemm import sgemm
            A = torch.ones(512, 512, device="cuda")
            C = torch.zeros(512, 512, device="cuda")
            with fastsgemm.tuning.tuner.evaluating(fastsgemm.device.open_gpu(0)) as evaluator:
                sgemm(A, A, C=C, rung="warptiled")
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    sgemm(A, A, C=C, rung="warptiled")
            fastsgemm.tune(["512,512,512"], rung="warptiled", quick=True, budget=5, progress=False)
            A.fill_(2)
            graph.replay()
            torch.cuda.synchronize()
            assert (C == 4 * 512).all()
        """.replace("import torch, fastsgemm\n", "import torch, fastsgemm, fastsgemm.tuning.tuner\n")
        )

    def test_a_split_operand_outlives_its_stream(self):
        run("""
            import copy, gc, torch
            from cuda.bindings import driver
            from fastsgemm import sgemm, split
            x, W = torch.randn(64, 512, device="cuda"), torch.randn(512, 512, device="cuda")
            expected = sgemm(x, split(W), precision="fp16x3")
            for _ in range(5):
                handle = int(driver.cuStreamCreate(1)[1])
                stream = torch.cuda.ExternalStream(handle)
                torch.cuda.synchronize()
                S = split(W, stream=stream)
                T = copy.copy(S)
                stream.synchronize()
                assert int(driver.cuStreamDestroy(handle)[0]) == 0
                assert torch.equal(sgemm(x, S, precision="fp16x3"), expected)
                del S
                gc.collect()
                assert torch.equal(sgemm(x, T, precision="fp16x3"), expected)
                del T
                gc.collect()
            torch.cuda.synchronize()
        """)

    def test_a_result_of_jax_outlives_its_stream(self, jax):
        run("""
            import gc, jax, numpy as np
            from cuda.bindings import driver
            from fastsgemm import sgemm
            a = jax.numpy.ones((256, 256), jax.numpy.float32)
            np.asarray(sgemm(a, a))

            class Stream:
                def __init__(self):
                    self.handle = int(driver.cuStreamCreate(1)[1])

                def __cuda_stream__(self):
                    return 0, self.handle

            for _ in range(5):
                stream = Stream()
                c = sgemm(a, a, stream=stream)
                assert (np.asarray(c) == 256).all()
                assert int(driver.cuStreamSynchronize(stream.handle)[0]) == 0
                assert int(driver.cuStreamDestroy(stream.handle)[0]) == 0
                del c
                gc.collect()
        """)

    def test_finalisers_that_multiply(self):
        run("""
            import gc, torch
            from fastsgemm import sgemm
            A = torch.ones(64, 64, device="cuda")
            stream = torch.cuda.Stream()

            class Finalised:
                def __init__(self):
                    self.cycle = self

                def __del__(self):
                    sgemm(A, A, stream=stream)

            gc.set_threshold(5)
            for size in range(40, 80):
                made = [Finalised() for _ in range(10)]
                del made
                B = torch.ones(size, size, device="cuda")
                sgemm(B, B, stream=stream)
            torch.cuda.synchronize()
        """)


class TestCapturesOfOtherThreads:
    """A capture in CUDA's default mode ends when any thread makes a call that it forbids."""

    def in_a_capture(self, torch, work):
        """Capture a graph while another thread does `work`, and replay it."""
        x, graph = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        failed = []

        def body():
            try:
                work()
            except BaseException as error:
                failed.append(error)

        with torch.cuda.graph(graph, capture_error_mode="global"):
            x += 1
            thread = threading.Thread(target=body)
            thread.start()
            thread.join(60)
            x += 1
        assert not thread.is_alive() and not failed, failed
        graph.replay()
        torch.cuda.synchronize()
        assert (x == 2).all()

    def test_workspace_that_is_released(self, torch, operands):
        self.in_a_capture(torch, fastsgemm.release_workspace)

    def test_products_with_workspace_on_new_streams(self, torch, operands):
        A, B = operands
        streams = [torch.cuda.Stream() for _ in range(32)]
        C = torch.empty(SPLIT_K[0], SPLIT_K[1], device="cuda")

        def work():
            for stream in streams:
                with torch.cuda.stream(stream):
                    sgemm(A, B, C=C)

        self.in_a_capture(torch, work)

    def test_host_arrays(self, torch):
        a = np.ones((300, 300), np.float32)
        sgemm(a, a)
        results = []
        self.in_a_capture(torch, lambda: results.append(sgemm(a, a)))
        assert (results[0] == 300).all()

    def test_split_operands_and_kept_operands_that_are_dropped(self, torch):
        x, W = torch.randn(64, 512, device="cuda"), torch.randn(512, 512, device="cuda")
        made = [split(W) for _ in range(3)]
        stream = torch.cuda.Stream()
        sgemm(x, made[0], precision="fp16x3", stream=stream)

        def work():
            made.clear()
            gc.collect()

        self.in_a_capture(torch, work)

    def test_plans_that_are_forgotten(self, torch, gpu, operands):
        def work():
            gpu.forget_problems()
            gc.collect()

        self.in_a_capture(torch, work)

    def test_a_garbage_collection_in_the_middle_of_the_capture_itself(self, torch, operands):
        A, B = operands
        x, W = torch.randn(64, 512, device="cuda"), torch.randn(512, 512, device="cuda")
        made = [split(W)]
        sgemm(x, made[0], precision="fp16x3", stream=torch.cuda.Stream())
        made.append(made)  # a cycle, which only the collector frees
        C = torch.empty(SPLIT_K[0], SPLIT_K[1], device="cuda")
        expected = sgemm(A, B)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="global"):
            del made
            gc.collect()
            sgemm(A, B, C=C)
            gc.collect()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(C, expected)


class TestPool:
    def test_workspace_is_given_back(self, torch):
        A = torch.randn(4096, 8192, device="cuda")
        for _ in range(3):
            sgemm(A, A.t(), precision="fp16x3")
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0]
        freed = fastsgemm.release_workspace()
        after = torch.cuda.mem_get_info()[0]
        assert freed >= 64 << 20 and after - before >= freed // 2
        assert fastsgemm.release_workspace() == 0

    def test_the_pool_of_the_process_is_left_as_it_is(self):
        run("""
            import torch
            from cuda.bindings import driver
            from fastsgemm import sgemm
            A, B = torch.randn(256, 8192, device="cuda"), torch.randn(8192, 256, device="cuda")
            sgemm(A, B)
            torch.cuda.synchronize()
            pool = driver.cuDeviceGetDefaultMemPool(0)[1]
            which = driver.CUmemPool_attribute
            for name in ("RELEASE_THRESHOLD", "RESERVED_MEM_CURRENT"):
                answer = driver.cuMemPoolGetAttribute(pool, getattr(which, f"CU_MEMPOOL_ATTR_{name}"))
                assert int(answer[0]) == 0 and int(answer[1]) == 0, (name, answer)
        """)

    def test_calls_that_repeat_reserve_no_more(self, torch, gpu, operands):
        from cuda.bindings import driver

        A, B = operands
        stream = torch.cuda.current_stream()  # on a stream by name tensors, too, get workspace from the pool
        reserved = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
        sizes = []
        for _ in range(2):
            for _ in range(200):
                sgemm(A, B, stream=stream)
            torch.cuda.synchronize()
            sizes.append(int(driver.cuMemPoolGetAttribute(gpu.pool, reserved)[1]))
        assert sizes[0] == sizes[1] > 0

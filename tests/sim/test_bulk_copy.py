"""Bulk copies that memory barriers count, on small kernels: what threads may load and store there, and when."""

import numpy as np
import pytest

from fastsgemm.jit import source
from fastsgemm.sim import Machine, Region
from fastsgemm.sim.errors import RaceError

KERNEL = """
extern "C" __global__ void k(const float *A, float *C) {
    __shared__ __align__(16) float s[4];
    __shared__ unsigned long long object;
    const unsigned to = (unsigned)__cvta_generic_to_shared(s), barrier = (unsigned)__cvta_generic_to_shared(&object);
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        fence_mbarrier_init();
    }
    __syncthreads();
    BEFORE
    if (threadIdx.x == 0) {
        fence_proxy_async();
        mbarrier_arrive_expect_tx(barrier, 16);
        cp_async_bulk(to, A, 16, barrier);
    }
    if (threadIdx.x == 32) {
        WAIT
        USE
    }
}
"""
USES = {"loads": "C[0] = s[0];", "stores": "s[0] = 5.0f; C[0] = s[0];"}
RESULTS = {"loads": 7.0, "stores": 5.0}


def run(machine, wait, use, before="if (threadIdx.x == 0) s[0] = -1.0f;"):
    helpers = "\n".join(source.plain(f"device/{name}.cuh") for name in ("mbarrier", "cp_async_bulk"))
    text = helpers + KERNEL.replace("WAIT", wait).replace("USE", USES[use]).replace("BEFORE", before)
    arrays = {"A": np.full(4, 7, np.float32), "C": np.zeros(1, np.float32)}
    regions = {"A": Region(arrays["A"]), "C": Region(arrays["C"], write=True)}
    machine.launch(text, "k", (1,), 64, 0, ["A", "C"], regions)
    return arrays["C"][0]


@pytest.mark.parametrize("use", USES)
def test_a_thread_that_has_waited_may_use_what_a_copy_wrote_over_a_store(use):
    """The store of another thread, with no barrier of the block since, is over."""
    assert run(Machine("sm_90"), "mbarrier_wait_parity(barrier, 0);", use) == RESULTS[use]


@pytest.mark.parametrize("use", USES)
def test_a_thread_that_has_not_waited_may_not(use):
    with pytest.raises(RaceError, match=r"thread 32 .* while an asynchronous copy to it is in flight"):
        run(Machine("sm_90"), "", use)


@pytest.mark.parametrize("use", USES)
def test_a_copy_does_not_begin_before_another_warp_is_done_there(use):
    """That warp has arrived nowhere, so on a device its access may come after the copy."""
    before = "if (threadIdx.x == 0) s[0] = 1.0f; __syncthreads(); if (threadIdx.x == 32) {" + USES[use] + "}"
    with pytest.raises(RaceError, match="which warp 1 uses, and has not waited for it"):
        run(Machine("sm_90"), "mbarrier_wait_parity(barrier, 0);", use, before)

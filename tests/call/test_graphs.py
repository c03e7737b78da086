"""Plans launched as graphs, on a device made of Python: which call gets which graph, and the arguments of each."""

import threading

import numpy as np
import pytest

from fastsgemm import BlockConfig, PipelinedConfig, sgemm
from fastsgemm.call import driver, graphs, workspace
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.errors import DeviceError

STREAM = 5
SPLIT = {"rung": "pipelined", "config": PipelinedConfig(32, 64, 8, 4, 4, 32, 32, 1, SPLIT_K=3)}


@pytest.fixture
def product(on_device, random):
    """Return a function that multiplies new operands of one shape, or given ones, and checks the result."""

    def multiply(A=None, alpha=1.0, beta=0.0, **how):
        a = random(20, 96) if A is None else A
        b, c = multiply.b, random(20, 40)
        C = c.copy()
        sgemm(on_device(a), on_device(b), alpha, beta, on_device(C), **(how or SPLIT))
        np.testing.assert_allclose(C, alpha * (a @ b) + beta * c, rtol=1e-4, atol=1e-4)
        return C

    multiply.b = random(96, 40)
    return multiply


def test_the_first_calls_launch_one_by_one_and_later_ones_a_graph(device, product):
    for _ in range(graphs.AFTER):
        product()
    assert device.graph_launches == []
    launched = len(device.launched)
    for _ in range(3):
        product()
    assert device.graph_launches == 3 * [STREAM]
    assert len(device.launched) == launched + 3 * 2  # the parts, and their sum
    assert device.early[-2:] == [False, True]


def test_a_graph_gets_the_arguments_of_each_call(device, product):
    for alpha, beta in (1.0, 0.0), (2.0, 0.5), (0.0, 2.0), (1.0, 0.0), (0.0, 0.0), (-1.0, 1.0):
        for _ in range(graphs.AFTER + 2):
            product(alpha=alpha, beta=beta)
    assert device.graphs >= 4  # one per case at least: memory that NumPy uses again makes calls recur


def test_calls_that_recur_get_a_graph_each_and_others_share_one(device, on_device, random):
    b, sites = random(96, 40), [(random(20, 96), np.empty((20, 40), np.float32)) for _ in range(5)]

    def calls():
        for a, c in sites:
            sgemm(on_device(a), on_device(b), C=on_device(c), **SPLIT)
            np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)

    for _ in range(4):
        calls()
    assert device.graphs == 5
    device.set_node = None  # no graph has to be changed any more
    calls()


def test_calls_that_never_recur_share_a_graph(device, product):
    results = [product() for _ in range(30)]
    assert device.graphs == 1 and len(results) == 30


def test_a_plan_has_so_many_graphs_at_most(device, on_device, random, monkeypatch):
    monkeypatch.setattr(graphs, "MOST_PER_PLAN", 2)
    b, sites = random(96, 40), [(random(20, 96), np.empty((20, 40), np.float32)) for _ in range(4)]
    for _ in range(5):
        for a, c in sites:
            sgemm(on_device(a), on_device(b), C=on_device(c), **SPLIT)
            np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)
    assert device.graphs == 2


def test_no_graphs_in_a_capture_and_where_there_are_none(device, product):
    for _ in range(4):
        product()
    before, kept = len(device.graph_launches), len(device.made)
    device.capturing.add(STREAM)
    product()
    assert len(device.graph_launches) == before
    assert len(device.made) == kept + 1 and not device.made[-1].open  # a workspace of the capture's own
    device.capturing.clear()
    device.forget_problems()
    device.has_graphs = False
    for _ in range(5):
        product()
    assert len(device.graph_launches) == before


def test_a_graph_follows_the_workspace_when_it_has_grown(device, product, on_device, random):
    for _ in range(4):
        product()
    [old] = [each for each in device.made if each.open]
    a, b = random(200, 96), random(96, 300)
    C = np.empty((200, 300), np.float32)
    sgemm(on_device(a), on_device(b), C=on_device(C), **SPLIT)
    assert not old.open
    product()
    product()
    assert len([each for each in device.made if each.open]) == 1


def test_what_streams_keep_is_given_back(device, product):
    product()
    [kept] = [each for each in device.made if each.open]
    device.capturing.add(7)  # then the device cannot be waited for
    assert workspace.release(device) == 0 and kept.open
    device.capturing.clear()
    assert workspace.release(device) == kept.size and not kept.open
    product()


def test_no_thread_launches_between_the_wait_and_what_is_given_back(device, product, monkeypatch):
    product()
    [kept] = device.workspaces.values()
    waits, free = [], device.free
    monkeypatch.setattr(device, "synchronize", lambda: waits.append(kept.lock.locked()) or True)
    monkeypatch.setattr(device, "free", lambda *given: waits.append("free") or free(*given))
    assert workspace.release(device)
    assert waits[-2:] == [True, "free"]


def test_what_cannot_be_given_back_during_a_capture_is_given_back_later(device):
    for handle in range(2, 2 + 70):
        with workspace.of_stream(device, handle).lock:
            workspace.of_stream(device, handle).address_of(256, "a test")
        device.capturing.add(1000)
    device.capturing.clear()
    assert workspace.release(device) == 70 * 256
    assert not any(each.open for each in device.made)


def test_a_large_workspace_is_not_kept(device, product, monkeypatch):
    monkeypatch.setattr(driver, "MOST_KEPT", 100)
    for _ in range(4):
        product()
    assert device.workspaces == {} and len(device.made) == 4 and not any(each.open for each in device.made)


def test_streams_that_are_gone_do_not_pile_up(device, monkeypatch):
    for handle in range(2, 2 + 200):
        kept = workspace.of_stream(device, handle)
        with kept.lock:
            kept.address_of(256, "a test")
    assert len([each for each in device.made if each.open]) <= 64
    assert workspace.of_stream(device, 0) is workspace.of_stream(device, 0)
    assert LEGACY_STREAM not in device.workspaces  # on a device of Python a stream's number is its handle


def test_a_call_that_interrupts_another_has_a_workspace_of_its_own(device, product):
    """As from a finaliser, which Python may run between any two steps: waiting for the other call would never end."""
    product()
    [kept] = device.workspaces.values()
    with kept.lock:
        product()
        assert workspace.release(device) == 0  # the interrupted call uses it
    assert [each.open for each in device.made] == [True, False]
    size = kept.size
    assert size and workspace.release(device) == size


def test_where_no_memory_is_left_to_upload_a_graph_kernels_are_launched_one_by_one(device, product):
    from cuda.bindings.driver import CUresult

    for _ in range(graphs.AFTER):
        product()
    asked = []
    device.launch_graph = lambda graph, handle: asked.append(graph) or (CUresult.CUDA_ERROR_OUT_OF_MEMORY,)
    for _ in range(3):
        product()
    assert len(asked) == 1


def test_a_graph_that_the_driver_refuses_is_an_error(device, product):
    from cuda.bindings.driver import CUresult

    for _ in range(3):
        product()
    device.launch_graph = lambda graph, handle: (CUresult.CUDA_ERROR_LAUNCH_FAILED,)
    with pytest.raises(DeviceError, match=r"launching the graph of fastsgemm_pipelined, fastsgemm_reduce_parts failed"):
        product()


def test_kernels_are_launched_one_by_one_where_no_graph_can_be_made(device, product, monkeypatch):
    asked = []

    def refuse(nodes):
        asked.append(nodes)
        raise DeviceError("instantiating a graph failed: CUDA_ERROR_OUT_OF_MEMORY")

    monkeypatch.setattr(device, "instantiate", refuse)
    for _ in range(graphs.AFTER + 3):
        product()
    assert len(asked) == 1 and device.graph_launches == []


def test_a_plan_without_a_graph_gets_none_beyond_the_limit_of_the_device(device, product, monkeypatch):
    monkeypatch.setattr(graphs, "MOST_PER_DEVICE", 1)
    for beta in (0.0, 0.5):  # of which each has graphs of its own
        for _ in range(graphs.AFTER + 3):
            product(beta=beta)
    assert device.graphs == 1 and len(device.graph_launches) == 3


def test_threads_never_have_the_same_graph(device, on_device, random):
    b = random(96, 40)
    how = {"rung": "naive", "config": BlockConfig(32, 32)}
    wrong = []

    def work():
        for _ in range(50):
            a = random(20, 96)
            C = np.empty((20, 40), np.float32)
            sgemm(on_device(a), on_device(b), C=on_device(C), **how)
            if not np.allclose(C, a @ b, rtol=1e-4, atol=1e-4):
                wrong.append(a)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

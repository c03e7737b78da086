"""A plan's launches as CUDA graphs: the driver is asked once, however many kernels there are.

A graph holds the arguments of one call. A call with the same ones launches it as it is. For another call the arguments
of its kernels are set first, which takes about 0.8 us per kernel. So call sites that alternate get a graph each, up to
a limit: a graph takes some 100 KB of device memory, and 0.4 ms to make.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastsgemm import device
from fastsgemm.call.launches import Arguments, Values
from fastsgemm.call.plan import Launch
from fastsgemm.device import OUT_OF_MEMORY
from fastsgemm.errors import DeviceError

if TYPE_CHECKING:
    from fastsgemm.device import Gpu, Kernel

AFTER = 2  # calls of a plan that launch its kernels one by one: most shapes of a program that never repeats end there
MOST_PER_PLAN = 16  # graphs: a model calls a plan once per layer
MOST_PER_DEVICE = 1024
_MOST_MISSED = 64  # calls that are remembered because no graph had their arguments

_Call = tuple[int, Values]  # raw stream and values


class _Graph:
    """An instantiated graph of some launches, and the host memory in which the driver finds their arguments."""

    def __init__(self, gpu: Gpu, launches: Sequence[tuple[Launch, Kernel]], values: Values) -> None:
        self.arguments = Arguments([launch for launch, _ in launches])
        self.arguments.set(values)
        self.instance = gpu.instantiate([
            (kernel, launch.grid, launch.threads, launch.shared_bytes, launch.early, pointers)
            for (launch, kernel), pointers in zip(launches, self.arguments.pointers, strict=True)
        ])  # fmt: skip


class Graphs:
    """The graphs of a plan's launches in one case, the least recently used first.

    A call takes a graph out and puts it back, so no two threads have it at a time. What a graph was given before it was
    launched stays as it was for that launch.
    """

    def __init__(self, gpu: Gpu, launches: Sequence[tuple[Launch, Kernel]]) -> None:
        self._gpu, self._launches = gpu, launches
        self._graphs: dict[_Call, _Graph] = {}
        self._missed: dict[_Call, None] = {}
        self._refused = False  # by the driver

    def launch(self, handle: int, values: Values) -> bool:
        """Launch all kernels with these arguments on the stream with this raw handle, which is not capturing.

        Returns
        -------
        bool
            False if there is no graph and none can be made: then nothing was launched.
        """
        call = handle, values
        graph = self._graphs.pop(call, None) or self._with_arguments(call)
        if graph is None:
            return False
        answer = self._gpu.launch_graph(graph.instance.executable, handle)
        if answer[0] == OUT_OF_MEMORY:  # the first launch of a graph uploads it, which takes memory of the device
            self._refused = True
            return False
        if answer[0]:
            names = ", ".join(kernel.name for _, kernel in self._launches)
            device.succeed(f"launching the graph of {names}", answer)
        self._graphs[call] = graph
        return True

    def _with_arguments(self, call: _Call) -> _Graph | None:
        """Return a graph with the arguments of a call: a new one if the call recurs, or else another call's.

        None: there is no other, and the device has as many as it may, or refuses another, as where it is out of memory.
        """
        recurs = call in self._missed
        if len(self._missed) >= _MOST_MISSED:
            self._missed.clear()
        self._missed[call] = None
        full = self._refused or len(self._graphs) >= MOST_PER_PLAN or self._gpu.graphs >= MOST_PER_DEVICE
        if full or not recurs:
            try:
                graph = self._graphs.pop(next(iter(self._graphs)))
            except (StopIteration, KeyError, RuntimeError):  # none is left, or another thread has just taken it
                pass
            else:
                graph.arguments.set(call[1])
                for node in graph.instance.nodes:
                    answer = self._gpu.set_node(graph.instance.executable, *node)
                    if answer[0]:
                        device.succeed("setting the arguments of a kernel in a graph", answer)
                return graph
        if self._refused or self._gpu.graphs >= MOST_PER_DEVICE:
            return None
        try:
            return _Graph(self._gpu, self._launches, call[1])
        except DeviceError:
            self._refused = True  # asking again in each call would take longer than single launches
            return None

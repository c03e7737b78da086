"""The executor on a device: loads a plan's kernels once, and launches them by the driver's own functions.

The first calls of a plan, and those that are captured, launch its kernels one by one. Later calls launch them as one
CUDA graph; see `fastsgemm.call.graphs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastsgemm.call import checks, workspace
from fastsgemm.call.arrays import View
from fastsgemm.call.graphs import AFTER, Graphs
from fastsgemm.call.launches import CASES, Launches
from fastsgemm.call.plan import Launch, Plan
from fastsgemm.call.product import make_plan
from fastsgemm.call.workspace import MOST_KEPT
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.geometry.matrix import Base
from fastsgemm.jit import kernel
from fastsgemm.request import Request

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

_MOST_LOADED = 16384  # plans per device; then the table is emptied and starts again

# Addresses of A, B, what is written, A and B where they were split before, and the source: in the order of `Base`.
Addresses = tuple[int, int, int, int, int, int]


def multiply(
    gpu: Gpu,
    handle: int,
    request: Request,
    operands: Sequence[View],
    alpha: float,
    beta: float,
    split: Sequence[int] = (0, 0),
) -> LoadedPlan:
    """Compute C <- alpha * A @ B + beta * C on views of device memory; see `fastsgemm.sgemm` for the errors.

    Return the plan: that of an earlier call like it, with its graphs, or a new one.

    The device is current in this thread; `handle` is the raw stream. The operands are A, B, what is written and, if
    that is another array, C: it broadcasts to the shape of what is written, and shares no memory with it. alpha and
    beta are rounded to float32. `split` are the addresses of A and B as pairs of FP16 numbers, where they were split
    before.
    """
    key: tuple[Any, ...]
    if len(operands) == 3:
        (pa, a), (pb, b), (pc, c) = operands
        ps, key = 0, (a, b, c, pa & 15, pb & 15, pc & 15, pa == pb, request)
    else:
        (pa, a), (pb, b), (pc, c), (ps, source) = operands
        key = (a, b, c, pa & 15, pb & 15, pc & 15, pa == pb, request, source, ps & 15)
    loaded: LoadedPlan | None = gpu.prepared.get(key)
    if loaded is None:
        plan = make_plan(gpu, request, [meta for _, meta in operands], [address for address, _ in operands])
        loaded = LoadedPlan(gpu, plan, handle)
        if len(gpu.prepared) >= _MOST_LOADED:
            gpu.forget_problems()
        gpu.prepared[key] = loaded
    if not loaded.apart(pa, pb, pc, ps):
        checks.overlap(operands, request.output)
    split_a, split_b = split
    loaded.launch(handle, (pa, pb, pc, split_a, split_b, ps), alpha, beta)
    return loaded


class LoadedPlan:
    """A plan whose kernels are loaded on a device, to be launched by many threads.

    `handle` is the raw stream of the first call, which may be capturing: then no kernel can be loaded.

    Raises
    ------
    CaptureError
        A kernel is not loaded yet and the stream is being captured.
    """

    def __init__(self, gpu: Gpu, plan: Plan, handle: int) -> None:
        self._gpu, self.plan, self._K = gpu, plan, plan.K
        self._kernels = [kernel.ready(gpu, each.kernel, each.shared_bytes, handle) for each in plan.launches]
        self.apart = plan.apart
        # Of workspace, in the order of `CASES`.
        working = [launch for launch in plan.launches if _uses_workspace(launch)] if plan.workspace else []
        self._sizes = [plan.workspace if any(launch.when.holds(*case) for launch in working) else 0 for case in CASES]
        # A call takes one out, or makes one where there is none, and puts it back. `list.pop` is atomic, so no other
        # thread has it meanwhile. The driver has copied the arguments when a launch returns.
        self._spare = [Launches(gpu, plan, self._kernels)]
        self._calls = [0] * len(CASES)
        self._graphs: list[Graphs | None] = [None] * len(CASES)

    def launch(self, handle: int, addresses: Addresses, alpha: float, beta: float) -> None:
        """Launch the kernels on the raw stream, whose device is current in this thread.

        The addresses are those of A, B, what is written, A and B where they were split before, and what is read in
        place of C: 0 where there is none. alpha and beta are rounded to float32.

        Raises
        ------
        DeviceMemoryError
            The device has no room for the workspace.
        DeviceError
            The driver refuses a launch.
        """
        gpu, steps = self._gpu, self._K
        if not (alpha and steps):
            alpha, steps = self.plan.scalars(alpha, beta)
        case = (2 if steps else 0) + (1 if beta else 0)
        size, work = self._sizes[case], 0
        # With a workspace of its own, which is freed behind it, a call takes no graph.
        own = size > MOST_KEPT or (handle > LEGACY_STREAM and gpu.is_capturing(handle))
        if size and not own:
            kept = workspace.of_stream(gpu, handle)
            own = not kept.lock.acquire(blocking=False)  # another thread, or the call that this one interrupts, has it
        try:
            if size:
                purpose = self.plan.purpose
                work = workspace.allocate(gpu, handle, size, purpose) if own else kept.address_of(size, purpose)
            a, b, c, split_a, split_b, source = addresses  # a tuple with a star takes longer to make
            values = (a, b, c, split_a, split_b, source, work, alpha, beta, steps)
            graphs = self._graphs[case]
            if own or graphs is None or not graphs.launch(handle, values):
                try:
                    launches = self._spare.pop()
                except IndexError:
                    launches = Launches(gpu, self.plan, self._kernels)
                launches.launch(handle, case, values)
                self._spare.append(launches)  # not after an error or Ctrl-C: they may be half changed
                if graphs is None and not own:
                    self._count(case)
        finally:
            if size and not own:
                kept.lock.release()
            elif work:
                workspace.free(gpu, handle, work)

    def _count(self, case: int) -> None:
        """Count a call that launched kernel by kernel; after some, later ones launch a graph."""
        self._calls[case] += 1
        if self._calls[case] >= AFTER and self._gpu.has_graphs:
            selected = [
                (launch, kernel)
                for launch, kernel in zip(self.plan.launches, self._kernels, strict=True)
                if launch.when.holds(*CASES[case])
            ]
            self._graphs[case] = Graphs(self._gpu, selected) if selected else None


def _uses_workspace(launch: Launch) -> bool:
    return any(write.matrix.address.base is Base.WORKSPACE for write in launch.writes) or any(
        matrix.address.base is Base.WORKSPACE for matrix in launch.matrices
    )

"""The executor on a device: loads a plan's kernels once, and launches them by the driver's own functions.

The first calls of a plan, and those that are captured, launch its kernels one by one. Later calls launch them as one
CUDA graph; see `fastsgemm.call.graphs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastsgemm import device
from fastsgemm.call import checks, workspace
from fastsgemm.call.arguments import Arguments, Values
from fastsgemm.call.arrays import Meta, View
from fastsgemm.call.graphs import AFTER, Graphs
from fastsgemm.call.plan import Launch, Plan
from fastsgemm.call.product import make_plan
from fastsgemm.call.workspace import MOST_KEPT
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.geometry import layout
from fastsgemm.geometry.matrix import Base
from fastsgemm.jit import kernel
from fastsgemm.known_devices import EARLY, compute_capability
from fastsgemm.request import Request, of_operands

if TYPE_CHECKING:
    from fastsgemm.device import Gpu, Kernel

_MOST_LOADED = 16384  # plans per device; then the table is emptied and starts again

_CASES = [(reads, beta) for reads in (False, True) for beta in (False, True)]

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
) -> None:
    """Compute C <- alpha * A @ B + beta * C on views of device memory; see `fastsgemm.sgemm` for the errors.

    Parameters
    ----------
    gpu : Gpu
        The device, current in this thread.
    handle : int
        The raw stream.
    request : Request
    operands : sequence of View
        Address and meta of A, B, what is written and, if that is another array, C: it broadcasts to the shape of what
        is written, and shares no memory with it.
    alpha, beta : float
        Rounded to float32.
    split : sequence of two int
        The addresses of A and B as pairs of FP16 numbers, where they were split before.
    """
    key: tuple[Any, ...]
    if len(operands) == 3:
        (pa, a), (pb, b), (pc, c) = operands
        if pa == pb:
            request = of_operands(request, (a, b), (pa, pb))
        ps, key = 0, (request, a, b, c, pa & 15, pb & 15, pc & 15)
    else:
        (pa, a), (pb, b), (pc, c), (ps, source) = operands
        if pa == pb:
            request = of_operands(request, (a, b), (pa, pb))
        key = (request, a, b, c, pa & 15, pb & 15, pc & 15, source, ps & 15)
    loaded: LoadedPlan | None = gpu.prepared.get(key)
    if loaded is None:
        metas = [meta for _, meta in operands]
        plan = make_plan(gpu, request, metas, [address & 15 for address, _ in operands])
        loaded = LoadedPlan(gpu, plan, handle)
        if len(gpu.prepared) >= _MOST_LOADED:
            gpu.forget_problems()
        gpu.prepared[key] = loaded
    if not loaded.apart(pa, pb, pc, ps):
        check_overlap([meta for _, meta in operands], (pa, pb, pc, ps), request.output)
    split_a, split_b = split
    loaded.launch(handle, (pa, pb, pc, split_a, split_b, ps), alpha, beta)


def check_overlap(metas: Sequence[Meta], addresses: Sequence[int], output: str = "C") -> None:
    """Raise `OverlapError` if what is written shares an element with another operand.

    Parameters
    ----------
    metas, addresses : sequence
        Of A, B, what is written and, if it is another array, C.
    output : str
        What the caller calls the array that is written.
    """
    written, address = metas[2], addresses[2]
    for name, at in (("A", 0), ("B", 1), ("C", 3)):
        if at < len(metas):
            other = metas[at]
            shapes = (tuple(each) for each in (written[0], written[1], other[0], other[1]))
            items = written[5].item, other[5].item
            checks.apart(name, layout.overlap(addresses[at] - address, *shapes, items), output)


class StreamLaunches:
    """The launches of a plan as the driver gets them, with arguments of their own: of one call at a time.

    Attributes
    ----------
    arguments : Arguments
    handle : int
        The raw stream that all launches have, or -1.
    cases : list of tuple
        In the order of `_CASES`, which is 2 * (A and B are read) + (beta != 0); of each kernel the driver's description
        of the launch, the function, pointers to the arguments, and what is launched.
    """

    def __init__(self, gpu: Gpu, plan: Plan, kernels: Sequence[Kernel]) -> None:
        self.handle = -1
        self.arguments = Arguments(plan.launches)
        has_early = compute_capability(gpu.arch) >= EARLY
        self._all = [
            (
                gpu.launch_config(launch.grid, launch.threads, launch.shared_bytes, launch.early and has_early),
                kernel.function, pointers, launch,
            )
            for launch, kernel, pointers in zip(plan.launches, kernels, self.arguments.pointers, strict=True)
        ]  # fmt: skip
        self.cases = [tuple([each for each in self._all if each[3].when.holds(*case)]) for case in _CASES]

    def change_stream(self, handle: int) -> None:
        """Launch on the stream with this raw handle from now on."""
        for config, *_ in self._all:
            config.hStream = handle
        self.handle = handle


class LoadedPlan:
    """A plan whose kernels are loaded on a device, to be launched by many threads.

    Parameters
    ----------
    gpu : Gpu
    plan : Plan
    handle : int
        The raw stream of the first call, which may be capturing: then no kernel can be loaded.

    Raises
    ------
    CaptureError
        A kernel is not loaded yet and the stream is being captured.
    """

    def __init__(self, gpu: Gpu, plan: Plan, handle: int) -> None:
        self._gpu, self.plan, self._K = gpu, plan, plan.K
        self._kernels = [kernel.get(gpu, each.kernel, each.shared_bytes, handle) for each in plan.launches]
        a, b, c, *source = zip(plan.ranges[::2], plan.ranges[1::2], strict=True)
        # C shares bytes with A, B or the source if that begins so many bytes after C, between two bounds.
        bounds = [bound for low, high in (a, b, *source) for bound in (c[0] - high, c[1] - low)]
        self._bounds = tuple(bounds if source else [*bounds, 0, 0])
        # Of workspace, in the order of `_CASES`.
        working = [launch for launch in plan.launches if _uses_workspace(launch)] if plan.workspace else []
        self._sizes = [plan.workspace if any(launch.when.holds(*case) for launch in working) else 0 for case in _CASES]
        # A call takes one out, or makes one where there is none, and puts it back. `list.pop` is atomic, so no other
        # thread has it meanwhile. The driver has copied the arguments when a launch returns.
        self._spare = [StreamLaunches(gpu, plan, self._kernels)]
        self._calls = [0] * len(_CASES)
        self._graphs: list[Graphs | None] = [None] * len(_CASES)

    def apart(self, a: int, b: int, c: int, source: int) -> bool:
        """Return whether the bytes that are written lie apart from those of the other operands, at these addresses.

        Where they do not, elements may still be apart.
        """
        from_a, to_a, from_b, to_b, from_source, to_source = self._bounds
        return not (from_a < a - c < to_a or from_b < b - c < to_b or from_source < source - c < to_source)

    def launch(self, handle: int, addresses: Addresses, alpha: float, beta: float) -> None:
        """Launch the kernels.

        Parameters
        ----------
        handle : int
            The raw stream; its device is current in this thread.
        addresses : tuple of int
            Of A, B, what is written, A and B where they were split before, and what is read in place of C: 0 where
            there is none.
        alpha, beta : float
            Rounded to float32.

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
        size = self._sizes[case]
        a, b, c, split_a, split_b, source = addresses  # a tuple with a star takes longer to make
        if size > MOST_KEPT or (handle > LEGACY_STREAM and gpu.is_capturing(handle)):
            self._launch_apart(handle, case, addresses, (alpha, beta, steps))
        elif not size:
            self._launch(handle, case, (a, b, c, split_a, split_b, source, 0, alpha, beta, steps))
        elif (kept := workspace.of_stream(gpu, handle)).lock.acquire(blocking=False):
            try:
                work = kept.address_of(size, self.plan.purpose)
                self._launch(handle, case, (a, b, c, split_a, split_b, source, work, alpha, beta, steps))
            finally:
                kept.lock.release()
        else:  # another thread, or the call that this one interrupts, as from a finaliser
            self._launch_apart(handle, case, addresses, (alpha, beta, steps))

    def _launch_apart(self, handle: int, case: int, addresses: Addresses, scalars: tuple[float, float, int]) -> None:
        """Launch the kernels one by one, with a workspace of their own that is freed behind them."""
        gpu, size = self._gpu, self._sizes[case]
        work = workspace.allocate(gpu, handle, size, self.plan.purpose) if size else 0
        try:
            self._launch_one_by_one(handle, case, (*addresses, work, *scalars))
        finally:
            if size:
                workspace.free(gpu, handle, work)

    def _launch(self, handle: int, case: int, values: Values) -> None:
        """Launch the kernels as a graph or, in the first calls and where no graph can be made, one by one."""
        graphs = self._graphs[case]
        if graphs is not None and graphs.launch(handle, values):
            return
        self._launch_one_by_one(handle, case, values)
        self._calls[case] += 1
        if graphs is None and self._calls[case] >= AFTER and self._gpu.has_graphs:
            selected = [
                (launch, kernel)
                for launch, kernel in zip(self.plan.launches, self._kernels, strict=True)
                if launch.when.holds(*_CASES[case])
            ]
            self._graphs[case] = Graphs(self._gpu, selected) if selected else None

    def _launch_one_by_one(self, handle: int, case: int, values: Values) -> None:
        try:
            launches = self._spare.pop()
        except IndexError:
            launches = StreamLaunches(self._gpu, self.plan, self._kernels)
        launches.arguments.set(values)
        if handle != launches.handle:
            launches.change_stream(handle)
        launch = self._gpu.launch
        for config, function, pointers, what in launches.cases[case]:
            answer = launch(config, function, pointers, 0)
            if answer[0]:
                of_what = f"launching {what.kernel.name} with {what.grid} blocks of {what.threads} threads"
                device.succeed(of_what, answer)
        self._spare.append(launches)  # not after an error or Ctrl-C: they may be half changed


def _uses_workspace(launch: Launch) -> bool:
    return any(write.matrix.address.base is Base.WORKSPACE for write in launch.writes) or any(
        matrix.address.base is Base.WORKSPACE for matrix in launch.matrices
    )

"""The executor on a device: loads a plan's kernels once, and launches them by the driver's own functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fastsgemm.call import checks, workspace
from fastsgemm.call.arrays import View
from fastsgemm.call.grouped import make_grouped_plan, problem_of
from fastsgemm.call.launches import CASES, Launches
from fastsgemm.call.plan import Launch, Plan
from fastsgemm.call.product import make_plan
from fastsgemm.errors import NoNvrtcError, OperandError
from fastsgemm.geometry import layout, variants
from fastsgemm.geometry.matrix import Base
from fastsgemm.geometry.tensor_map import END, TensorMap
from fastsgemm.jit import kernel
from fastsgemm.problem import Problem, format_problem
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

    Return the plan: that of an earlier call like it, or a new one.

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
        metas = [meta for _, meta in operands[:3]]
        loaded = _keep(gpu, key, plan, request, partial(variants.problem_of, metas, request.gram))
    if not loaded.apart(pa, pb, pc, ps):
        checks.overlap(operands, request.output)
    split_a, split_b = split
    loaded.launch(handle, (pa, pb, pc, split_a, split_b, ps), alpha, beta)
    return loaded


def multiply_groups(
    gpu: Gpu, handle: int, request: Request, operands: Sequence[View], offsets: View, alpha: float, beta: float
) -> LoadedPlan:
    """Compute the products of groups that end at these offsets; see `multiply` and `fastsgemm.grouped_mm`."""
    addresses, metas = zip(*operands, strict=True)
    place, ends = offsets
    key = ("grouped", request, metas, ends, *[address & 15 for address in addresses])
    loaded: LoadedPlan | None = gpu.prepared.get(key)
    if loaded is None:
        plan = make_grouped_plan(gpu, request, metas, ends, addresses)
        loaded = _keep(gpu, key, plan, request, partial(problem_of, metas, ends.shape[0]))
    a, b, c, *source = addresses
    of_source = source[0] if source else 0
    if not loaded.apart(a, b, c, of_source):
        checks.overlap(operands, request.output)
    before, after = loaded.plan.of_offsets
    if before < place - c < after:
        lie = (tuple(each) for meta in (metas[2], ends) for each in (meta.shape, meta.strides))
        checks.apart("offsets", layout.overlap(place - c, *lie), request.output)
    loaded.launch(handle, (a, b, c, place, 0, of_source), alpha, beta)
    return loaded


def _keep(
    gpu: Gpu, key: tuple[Any, ...], plan: Plan, request: Request, problem: Callable[[], Problem]
) -> LoadedPlan:  # fmt: skip
    """Load a plan, and keep it for later calls; `problem` returns what it computes, for a message."""
    try:
        loaded = LoadedPlan(gpu, plan)
    except NoNvrtcError as error:
        raise NoNvrtcError(f"{format_problem(problem())} with {request.arithmetic}: {error}") from error
    if len(gpu.prepared) >= _MOST_LOADED:
        gpu.forget_problems()
    gpu.prepared[key] = loaded
    return loaded


class LoadedPlan:
    """A plan whose kernels are loaded on a device, to be launched by many threads."""

    def __init__(self, gpu: Gpu, plan: Plan) -> None:
        self.gpu, self.plan, self._K = gpu, plan, plan.K
        self.kernels = [kernel.ready(gpu, each.kernel, each.shared_bytes) for each in plan.launches]
        self.apart = plan.apart
        self.launcher: Any = None  # the same plan for PyTorch's launcher; see `fastsgemm.torch.cpp_launcher`
        # Of workspace, in the order of `CASES`.
        working = [launch for launch in plan.launches if _uses_workspace(launch)] if plan.workspace else []
        self._sizes = [plan.workspace if any(launch.when.holds(*case) for launch in working) else 0 for case in CASES]
        # A call takes one out, or makes one where there is none, and puts it back. `list.pop` is atomic, so no other
        # thread has it meanwhile. The driver has copied the arguments when a launch returns.
        self._spare = [Launches(gpu, plan, self.kernels)]
        # Whether a tensor map addresses A or B: tensor copies read zeros from END on.
        self.has_tensor_maps = any(type(each) is TensorMap for launch in plan.launches for each in launch.arguments)

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
        OperandError
            An address is beyond those of tensor copies.
        """
        gpu, steps = self.gpu, self._K
        if not (alpha and steps):
            alpha, steps = self.plan.scalars(alpha, beta)
        case = (2 if steps else 0) + (1 if beta else 0)
        size, work = self._sizes[case], 0
        a, b, c, split_a, split_b, source = addresses  # a tuple with a star takes longer to make
        if self.has_tensor_maps and (a >= END or b >= END):
            raise OperandError(f"tensor copies read addresses below 2^48; A is at {a:#x}, B at {b:#x}; pass a copy")
        if size:
            work = workspace.allocate(gpu, handle, size, self.plan.purpose)
        try:
            try:
                launches = self._spare.pop()
            except IndexError:
                launches = Launches(gpu, self.plan, self.kernels)
            launches.launch(handle, case, (a, b, c, split_a, split_b, source, work, alpha, beta, steps))
            self._spare.append(launches)  # not after an error or Ctrl-C: they may be half changed
        finally:
            if size:
                workspace.free(gpu, handle, work)

    @property
    def workspace_mask(self) -> int:
        """The cases, of `CASES`, whose launches use the workspace; bit i stands for case i."""
        return sum(1 << i for i, size in enumerate(self._sizes) if size)


def case_mask(launch: Launch) -> int:
    """Return in which cases, of `CASES`, a launch is made; bit i stands for case i."""
    return sum(1 << i for i, case in enumerate(CASES) if launch.when.holds(*case))


def _uses_workspace(launch: Launch) -> bool:
    return any(write.matrix.address.base is Base.WORKSPACE for write in launch.writes) or any(
        matrix.address.base is Base.WORKSPACE for matrix in launch.matrices
    )

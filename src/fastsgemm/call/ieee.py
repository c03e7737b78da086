"""One product by a kernel of precision ``ieee``.

With split-K, each part of K writes its partial sums to workspace, and a second kernel adds them up in a fixed order, so
that the same call gives the same bits every time.
"""

from __future__ import annotations

from fastsgemm.call import dispatch, packing
from fastsgemm.call.matrix import Matrix
from fastsgemm.call.plan import Draft, Scalar
from fastsgemm.config import Config
from fastsgemm.geometry import grid, variants
from fastsgemm.geometry.batch import Source
from fastsgemm.geometry.layout import ITEM, Stored
from fastsgemm.geometry.variants import Operand
from fastsgemm.jit import kernel
from fastsgemm.rungs import Rung


def add_product(
    draft: Draft,
    a: Matrix,
    b: Matrix,
    c: Matrix,
    rung: Rung | None,
    config: Config | None,
    extents: tuple[int, ...] = (),
    source: Matrix | None = None,
) -> None:
    """Add the steps of C <- alpha * A @ B + beta * C; each operand has a unit stride.

    Parameters
    ----------
    draft : Draft
    a, b, c : Matrix
    rung : Rung or None
        None: the heuristics choose.
    config : Config or None
        None: the heuristics choose. Else legal for the rung on the device.
    extents : tuple of int
        Of a batch; see `Batch`.
    source : Matrix, optional
        What is read in place of C, with any strides: by the kernel that stores C or, on rungs 1 to 8, by one that
        copies it to C first.

    Raises
    ------
    ShapeError
        A grid would have more blocks than the hardware allows.
    CaptureError
        A kernel is not loaded yet and the stream is being captured.
    """
    gpu, handle = draft.gpu, draft.handle
    operands = [Operand(each.shape, each.how or Stored(False, 0), each.misalignment, each.steps) for each in (a, b, c)]
    chosen = dispatch.choose_config(gpu, rung, config, *operands, extents=extents)
    rung, config = chosen.rung, chosen.config
    if source is not None and not rung.reads_source:
        packing.add_copy(draft, source, c, extents, "beta")
        source = None
    lying = None if source is None else Source(source.strides, source.steps, source.misalignment)
    call = variants.call_for(chosen.a, chosen.b, operands[2], extents=extents, source=lying)
    launch = dispatch.kernel_launch(gpu.arch, rung, config, call)
    from_a, from_b = (
        packing.add_lines(draft, each.address, how, to) if to.padded else each.address
        for each, how, to in zip((a, b), operands, (chosen.a, chosen.b), strict=False)
    )
    K, alpha, beta = Scalar.STEPS, Scalar.ALPHA, Scalar.BETA
    threads, shared_bytes = config.threads, config.shared_bytes
    read = None if source is None else source.address
    if launch.parts == 1:
        product = kernel.get(gpu, rung, config, launch.variant, handle)
        arguments = launch.arguments(from_a, from_b, c.address, K, alpha, beta, read)
        draft.add(product, launch.grid, threads, *arguments, shared_bytes=shared_bytes)
        return
    blocks, adders = grid.reduction_blocks(int(launch.M), int(launch.N), int(launch.parts), in_order=config.segment > 0)
    reduction = kernel.helper(gpu, launch.reduction, handle, **launch.reduction_constants)
    product = kernel.get(gpu, rung, config, launch.variant, handle)
    sums = draft.reserve(ITEM * launch.partial_sums, "the partial sums of split-K")
    arguments = launch.partial_arguments(from_a, from_b, sums, K)
    draft.add(product, launch.grid, threads, *arguments, shared_bytes=shared_bytes)
    adding = launch.reduction_arguments(sums, c.address, alpha, beta, read)
    draft.add(reduction, (blocks, *launch.grid[1:]), adders, *adding, early=True)

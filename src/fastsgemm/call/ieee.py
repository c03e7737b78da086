"""One product by a kernel of precision ``ieee``.

With split-K, each part of K writes its partial sums to workspace, and a second kernel adds them up in a fixed order, so
that the same call gives the same bits every time.
"""

from __future__ import annotations

from fastsgemm.call import dispatch, packing
from fastsgemm.call.dispatch import Share
from fastsgemm.call.matrix import Matrix
from fastsgemm.call.plan import Address, Draft, Scalar
from fastsgemm.config import Config
from fastsgemm.geometry import grid, variants
from fastsgemm.geometry.batch import Source
from fastsgemm.geometry.layout import ITEM, Stored
from fastsgemm.geometry.variants import Call, Operand
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
    lying_a, lying_b, lying_c = (
        Operand(each.shape, each.how or Stored(False, 0), each.misalignment, each.steps) for each in (a, b, c)
    )
    shares = dispatch.choose_shares(draft.gpu, rung, config, lying_a, lying_b, lying_c, extents=extents)
    if source is not None and not all(share.rung.reads_source for share in shares):
        packing.add_copy(draft, source, c, extents, "beta")
        source = None
    places_a = _places(draft, a, lying_a, *(share.a for share in shares))
    places_b = _places(draft, b, lying_b, *(share.b for share in shares))
    for number, share in enumerate(shares):
        of_a, of_b, of_c = share.firsts
        from_a, from_b = places_a[share.a] + share.a.offset(of_a), places_b[share.b] + share.b.offset(of_b)
        into, read, lying = c.address + lying_c.offset(of_c), None, None
        if source is not None:
            whole = Source(source.strides, source.steps, source.misalignment)
            lying, read = whole.block(of_c), source.address + whole.offset(of_c)
        call = variants.call_for(*share.operands(lying_c), extents=extents, source=lying)
        _add_share(draft, share, call, from_a, from_b, into, read, early=number > 0)


def _places(draft: Draft, matrix: Matrix, lying: Operand, *reads: Operand) -> dict[Operand, Address]:
    """Return where an operand is as it lies and, if a share reads it packed, where its lines are; add what packs it."""
    places = {lying: matrix.address}
    for read in reads:
        if read.padded:
            places[read] = packing.add_lines(draft, matrix.address, lying, read)
    return places


def _add_share(
    draft: Draft,
    share: Share,
    call: Call,
    a: Address,
    b: Address,
    c: Address,
    source: Address | None = None,
    *,
    early: bool,
) -> None:
    """Add the steps that compute one share of a product.

    It may begin early behind another share. That one began after the copies before it had ended, and no share needs the
    results of another; see `cuda_src/device/dependent_launch.cuh`.
    """
    gpu, handle, config = draft.gpu, draft.handle, share.config
    launch = dispatch.kernel_launch(gpu.arch, share.rung, config, call)
    K, alpha, beta = Scalar.STEPS, Scalar.ALPHA, Scalar.BETA
    how = {"shared_bytes": config.shared_bytes, "early": early}
    if launch.parts == 1:
        product = kernel.get(gpu, share.rung, config, launch.variant, handle)
        draft.add(product, launch.grid, config.threads, *launch.arguments(a, b, c, K, alpha, beta, source), **how)
        return
    blocks, adders = grid.reduction_blocks(int(launch.M), int(launch.N), int(launch.parts), in_order=config.segment > 0)
    reduction = kernel.helper(gpu, launch.reduction, handle, **launch.reduction_constants)
    product = kernel.get(gpu, share.rung, config, launch.variant, handle)
    sums = draft.reserve(ITEM * launch.partial_sums, "the partial sums of split-K")
    draft.add(product, launch.grid, config.threads, *launch.partial_arguments(a, b, sums, K), **how)
    adding = launch.reduction_arguments(sums, c, alpha, beta, source)
    draft.add(reduction, (blocks, *launch.grid[1:]), adders, *adding, early=True)

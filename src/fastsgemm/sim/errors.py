"""The errors of the simulated device; all derive from `FastsgemmError`.

The message of a `KernelFault` names the thread, its block, the address and the line of CUDA source.
"""

from __future__ import annotations

from fastsgemm.errors import FastsgemmError


class SimError(FastsgemmError, RuntimeError):
    """Base of all errors of the simulated device."""


class PtxError(SimError):
    """PTX that the parser cannot read."""


class UnknownInstructionError(SimError):
    """An instruction that the simulated device does not have; the message names it and its source line."""


class LaunchError(SimError):
    """A launch that no device would accept: arguments, block or shared memory do not fit the kernel."""


class KernelFault(SimError):
    """Something that a kernel must not do; the base of the errors below."""


class GlobalAccessError(KernelFault):
    """A global access outside every operand; padding between the rows of a view is outside."""


class ParameterAccessError(KernelFault):
    """A load past the end of the kernel's parameters, or of its constants."""


class ForbiddenAccessError(KernelFault):
    """A read of an operand that must not be read (C with beta = 0) or a write to one that is only read."""


class MisalignedError(KernelFault):
    """An access whose address is not a multiple of its size."""


class SharedAccessError(KernelFault):
    """An access past the end of the block's shared memory."""


class UnwrittenSharedError(KernelFault):
    """A read of shared memory that nobody wrote."""


class RaceError(KernelFault):
    """Two threads met in shared or global memory, at least one writing, with no barrier (or wait) between them."""


class BarrierError(KernelFault):
    """A barrier that not every thread of the block, or of the warp, reaches."""


class EndlessWaitError(KernelFault):
    """A wait for a memory barrier that no thread is left to end."""


class UnfinishedProductError(KernelFault):
    """Registers of a wgmma used before it was waited for, or given to one without a fence."""


class UnfinishedCopyError(KernelFault):
    """An asynchronous copy that its thread did not wait for before the kernel ended."""


class TrapError(KernelFault):
    """A thread executed ``trap``: an assertion of the kernel, or what the compiler makes of undefined behaviour."""


class UnreachableCodeError(KernelFault):
    """A thread ran past the end of the code: the compiler took the way that it came for impossible."""


class InstructionLimitError(KernelFault):
    """A warp executed more instructions than the launch allows; most likely a loop never ends."""


class UnwrittenOutputError(KernelFault):
    """Elements of an output that the launch never wrote."""

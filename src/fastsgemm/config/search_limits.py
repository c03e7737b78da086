"""Numbers that narrow the search spaces. The tuning database has them, and who asks a space passes them to it."""

from msgspec import Struct


class SearchLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """Which legal configs of a search space are worth their compilation, as found on an H200.

    *Results* are the elements of C that a block computes. The defaults are those of an empty database, which limits
    nothing that the hardware allows.
    """

    # Threads of a block. Beyond this, every barrier waits for too many warps.
    most_threads: int = 1024
    large_results: int = 2**31  # from so many results on, a thread must compute at least the next number
    least_thread_results: int = 1
    # Shared memory of a stage of rung 9, in floats. A smaller stage hides the copies too and leaves room for other
    # blocks.
    most_stage_floats: int = 2**31
    # Results of a block with sliced-K. A larger tile has warps enough.
    most_sliced_results: int = 2**31
    # Results of a block with three or four stages, which has little time for each.
    most_three_stage_results: int = 2**31
    most_four_stage_results: int = 2**31
    # Results of a block with two stages and CP_ASYNC of 2. It saves registers, and a smaller tile has enough.
    least_scattered_results: int = 0
    # Results of a block with CP_ASYNC of 1. A larger tile has no registers left for copies.
    most_async_results: int = 2**31
    most_unsliced_k: int = 2**31  # BK without sliced-K
    slice_k: tuple[int, int] = (1, 2**31)  # least and most steps of a tile that a slice gets with sliced-K

"""What a caller asks of a product besides its operands."""

from __future__ import annotations

from msgspec import Struct

from fastsgemm.config import Config
from fastsgemm.rungs import Rung


class Request(Struct, frozen=True):
    """What a caller asks of a product besides its operands.

    Attributes
    ----------
    rung : Rung or None
        None: any of the default rungs.
    config : Config or None
        None: the heuristics choose.
    precision : str
        ``ieee`` or ``fp16x3``.
    batch_invariant : bool
        The order of summation depends on K alone; see ``docs/order-of-summation.md``.
    split : (bool, bool)
        Whether A and B were split before the call.
    """

    rung: Rung | None = None
    config: Config | None = None
    precision: str = "ieee"
    batch_invariant: bool = False
    split: tuple[bool, bool] = (False, False)

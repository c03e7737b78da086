"""The search spaces: the configs that a tuning run tries, as named data. A file has what belongs to one rung."""

from fastsgemm.tuning.spaces.autotuned import AUTOTUNED
from fastsgemm.tuning.spaces.pipelined import PIPELINED
from fastsgemm.tuning.spaces.skinny import SKINNY
from fastsgemm.tuning.spaces.space import Space
from fastsgemm.tuning.spaces.warptiled import WARPTILED

__all__ = ["AUTOTUNED", "PIPELINED", "SKINNY", "SPACES", "WARPTILED", "Space"]

# By rung, the default rungs of `sgemm` first.
SPACES: dict[str, Space] = {space.rung: space for space in (PIPELINED, SKINNY, WARPTILED, AUTOTUNED)}

"""The search spaces: the configs that a tuning run tries, as named data. A file has what belongs to one rung."""

from fastsgemm.tuning.spaces.autotuned import CLASSIC
from fastsgemm.tuning.spaces.pipelined import PIPELINED
from fastsgemm.tuning.spaces.skinny import SKINNY
from fastsgemm.tuning.spaces.space import Space
from fastsgemm.tuning.spaces.warptiled import LITERATURE, REFINED

__all__ = ["CLASSIC", "DEFAULTS", "LITERATURE", "PIPELINED", "REFINED", "SKINNY", "SPACES", "Space"]

SPACES: dict[str, Space] = {space.name: space for space in (CLASSIC, LITERATURE, REFINED, PIPELINED, SKINNY)}
# The space that is searched for each rung whose constants are searched; the default rungs of `sgemm` come first.
DEFAULTS: dict[str, Space] = {space.rung: space for space in (PIPELINED, SKINNY, REFINED, CLASSIC)}

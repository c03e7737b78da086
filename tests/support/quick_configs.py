"""The configs that a quick run tries, which serve as examples of configs as well."""

from fastsgemm.heuristics import database
from fastsgemm.tuning.candidates import with_curves


def quick_configs(rung):
    """Return them for a rung, the most useful first."""
    return with_curves(rung) or database.candidates(rung, "quick")

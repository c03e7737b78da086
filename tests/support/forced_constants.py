"""The simulated ladder with constants that a test gives, in place of those of the tuning database."""

import pytest

from fastsgemm.measure import constants, simulated_ladder


def climb_with(configs, problem, rungs=None):
    """Return what `simulated_ladder.climb` does with these configs, by the name of their rung."""

    def of_test(device, rung, problem, tried):
        if rung.name in configs:
            return constants.Constants(rung, configs[rung.name])
        return constants.constants_of(device, rung, problem, tried)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulated_ladder, "constants_of", of_test)
        return simulated_ladder.climb(problem, rungs)

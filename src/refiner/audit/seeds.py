"""The random streams of an audit: a seed for each, so that no two of them draw the same numbers."""

from refiner import checks

SEED_OFFSET = 2**32
"""The seed of an audit is below this; the attack draws from that seed itself."""
VICTIMS = SEED_OFFSET
"""Added to the audit's seed for the defence of the victims."""
TUNING = 2 * SEED_OFFSET
"""Added to the audit's seed for the defence of the images on which an attack is tuned."""
SIMULATION = 3 * SEED_OFFSET
"""Added to the seed that an attack chooses for simulated clients: no victim has that noise."""
STEP_SEED = 2**40
"""Added to the seed of every further local step: more than any seed of the first one."""
ROUND_SEED = 2**45
"""Added to the seed of every further round, unless it has so many steps that their seeds need more."""
# Far above the seeds of all steps and rounds.
_LARGE_SEED = 2**128


def simulation_seed(seed: int) -> int:
    """Return the seed of the defence of simulated clients: that of no victim, in whichever step or round.

    Modulo `STEP_SEED` it is at least `SIMULATION`, and those of the victims are less.

    Args:
        seed: The seed that an attack chooses; no two have the same result.

    Raises:
        SettingError: It is negative or no integer.

    >>> simulation_seed(7) - SIMULATION
    7
    >>> simulation_seed(-1)
    Traceback (most recent call last):
    refiner.errors.SettingError: seed = -1: expected an integer ≥ 0
    """
    excess, low = divmod(checks.integer("seed", seed, 0), STEP_SEED - SIMULATION)
    return SIMULATION + low + excess * _LARGE_SEED

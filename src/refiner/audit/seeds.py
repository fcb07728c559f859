"""The random streams of an audit: a seed for each, so that no two of them draw the same numbers."""

SEED_OFFSET = 2**32
"""The seed of an audit is below this; the attack draws from that seed itself."""
VICTIMS = SEED_OFFSET
"""Added to the audit's seed for the defence of the victims."""
TUNING = 2 * SEED_OFFSET
"""Added to the audit's seed for the defence of the images on which an attack is tuned."""
SIMULATION = 3 * SEED_OFFSET
"""Added to the seed that an attack chooses for simulated clients: no victim has that noise."""

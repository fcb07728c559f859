"""The weights that a run of Flower has trained, or an error if no client took part in it."""

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Result

from refiner.errors import ProtectionError


def trained_arrays(result: Result) -> ArrayRecord:
    """The weights that a strategy's `start` returned; a run in which every client failed has none.

    Flower's own strategies go on when every reply of a round is an error, and end with an empty record,
    which is then saved like a model.

    Args:
        result: What `strategy.start(...)` returned.

    Returns:
        The weights after the last round that had a result.

    Raises:
        ProtectionError: No round had a result.

    >>> trained_arrays(Result())
    Traceback (most recent call last):
    refiner.errors.ProtectionError: no round had a valid reply, so there are no trained weights; every ...
    """
    if not result.arrays:
        raise ProtectionError(
            "no round had a valid reply, so there are no trained weights; every client's log says why it "
            "sent none"
        )
    return result.arrays

"""The error of secure aggregation."""

from refiner.errors import ProtectionError


class AggregationError(ProtectionError):
    """A message or a step of a round was rejected, or too few clients are left.

    The side that raises it sends nothing further in this round. The text may be sent to the server, so it
    never contains a value of an update or a secret.
    """

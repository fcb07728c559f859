"""The errors of secure aggregation."""

from refiner.errors import ProtectionError


class AggregationError(ProtectionError):
    """A message or a step of a round was rejected, or too few clients are left.

    The side that raises it sends nothing further in this round. The text may be sent to the server, so it
    never contains a value of an update or a secret.
    """


class SpoiledSum(AggregationError):
    """Enough clients answered, but a client did not follow the protocol, and the sum is lost.

    Attributes:
        client: The client whose shares are missing or wrong; None if a masked update was, since nobody can
            tell whose.
    """

    def __init__(self, message: str, client: int | None = None) -> None:
        super().__init__(message)
        self.client = client

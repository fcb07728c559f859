"""The one error of secure aggregation."""

from refiner.errors import ProtectionError


class AggregationError(ProtectionError):
    """A message of a round was refused; what the refusing side had not sent yet, it never sends.

    Its text may travel to the server, so no value of an update and no secret is ever part of it.
    """

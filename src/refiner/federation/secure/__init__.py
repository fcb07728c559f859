"""Secure aggregation (Bonawitz et al. 2017): a server learns the sum of clients' updates, no single one."""

from refiner.federation.secure.client import SecureClient
from refiner.federation.secure.errors import AggregationError
from refiner.federation.secure.fixedpoint import FixedPoint
from refiner.federation.secure.identity import Identity
from refiner.federation.secure.messages import STEPS, Message
from refiner.federation.secure.round_config import Agreement
from refiner.federation.secure.server import Aggregate, SecureServer
from refiner.federation.secure.simulation import secure_mean, server_view

__all__ = [
    "STEPS",
    "Aggregate",
    "AggregationError",
    "Agreement",
    "FixedPoint",
    "Identity",
    "Message",
    "SecureClient",
    "SecureServer",
    "secure_mean",
    "server_view",
]

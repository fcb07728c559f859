"""Secure aggregation: the server learns the weighted mean of the clients' updates, and no single update.

Implements the protocol of Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine
Learning", CCS 2017, in its variant against an actively malicious server (signed keys, consistency check). It
needs the extra `secure`.
"""

from refiner.federation.secure.client import SecureClient
from refiner.federation.secure.errors import AggregationError, SpoiledSum
from refiner.federation.secure.fixedpoint import FixedPoint
from refiner.federation.secure.identity import Identity
from refiner.federation.secure.messages import STEPS, Message
from refiner.federation.secure.round_config import RoundConfig
from refiner.federation.secure.server import Aggregate, SecureServer
from refiner.federation.secure.simulation import secure_mean, server_view
from refiner.federation.secure.spoilers import SpoilerSearch

__all__ = [
    "STEPS",
    "Aggregate",
    "AggregationError",
    "FixedPoint",
    "Identity",
    "Message",
    "RoundConfig",
    "SecureClient",
    "SecureServer",
    "SpoiledSum",
    "SpoilerSearch",
    "secure_mean",
    "server_view",
]

"""Rounds of secure aggregation to play, step by step."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import NoReturn

import pytest
import torch
from torch import Tensor

from refiner.federation.secure import Agreement, FixedPoint, Identity, SecureClient, SecureServer


@pytest.fixture(autouse=True)
def _extra(missing: Callable[[str], NoReturn]) -> None:
    for package in ("flwr", "cryptography"):
        if find_spec(package) is None:
            missing(package)


@dataclass
class Round:
    """Clients 0 to n−1 and a server; `lost` has a client's first step that it no longer answers."""

    identities: dict[int, Identity]
    agreement: Agreement
    updates: Tensor
    weights: list[int]
    clients: dict[int, SecureClient] = field(init=False)
    server: SecureServer = field(init=False)

    def __post_init__(self) -> None:
        self.clients = {
            client: SecureClient(self.agreement, client, identity)
            for client, identity in self.identities.items()
        }
        self.server = SecureServer(self.agreement)

    def adverts(self, lost: Collection[int] = ()) -> dict[int, dict[str, bytes]]:
        return {c: client.advertise() for c, client in self.clients.items() if c not in lost}

    def shares(self, keys: Mapping[str, bytes], lost: Collection[int] = ()) -> dict[int, dict[str, bytes]]:
        present = [int(name.split(":")[1]) for name in keys if ":" in name]
        return {c: self.clients[c].share(keys) for c in present if c not in lost}

    def masked(
        self, sealed: Mapping[int, Mapping[str, bytes]], lost: Collection[int] = ()
    ) -> dict[int, dict[str, bytes]]:
        return {
            c: self.clients[c].mask(self.updates[c], message, self.weights[c])
            for c, message in sealed.items()
            if c not in lost
        }

    def until_mask(self) -> dict[int, dict[str, bytes]]:
        """What the server sends for `mask`, when all are there."""
        return self.server.relay(self.shares(self.server.keys(self.adverts())))

    def until_confirm(self, lost: Collection[int] = ()) -> dict[str, bytes]:
        """What the server sends for `confirm`; `lost` never send their masked vector."""
        return self.server.survivors(self.masked(self.until_mask(), lost))


@pytest.fixture
def make_round() -> Callable[..., Round]:
    """`make_round(5, threshold=3)`: five clients with updates of 6 values."""

    def make(
        clients: int = 5,
        threshold: int | None = 3,
        *,
        number: int = 1,
        session: str = "training",
        identities: dict[int, Identity] | None = None,
        size: int = 6,
        max_weight: int = 1,
        encoding: FixedPoint | None = None,
        order: bytes = b"",
    ) -> Round:
        identities = identities or {c: Identity.generate() for c in range(clients)}
        known = {c: identity.public for c, identity in identities.items()}
        agreement = Agreement(
            session, number, known, size, threshold, max_weight, encoding or FixedPoint(), order
        )
        return Round(identities, agreement, torch.randn(clients, size), [1] * clients)

    return make

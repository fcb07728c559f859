"""A round of secure aggregation whose steps a test runs one by one."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import NoReturn

import pytest
import torch
from torch import Tensor

from refiner.federation.secure import Aggregate, FixedPoint, Identity, RoundConfig, SecureClient, SecureServer

Responses = dict[int, dict[str, bytes]]


@pytest.fixture(autouse=True)
def _secure_extra(missing: Callable[[str], NoReturn]) -> None:
    for module, package in (("Crypto", "pycryptodome"), ("cryptography", "cryptography")):
        if find_spec(module) is None:
            missing(package)


@dataclass
class Round:
    """Clients 0 to n−1 and a server; `dropouts` are clients that do not respond."""

    identities: dict[int, Identity]
    config: RoundConfig
    updates: Tensor
    weights: list[int]
    clients: dict[int, SecureClient] = field(init=False)
    server: SecureServer = field(init=False)

    def __post_init__(self) -> None:
        self.clients = {
            client: SecureClient(self.config, client, identity)
            for client, identity in self.identities.items()
        }
        self.server = SecureServer(self.config)

    def advertise_keys(self, dropouts: Collection[int] = ()) -> Responses:
        return {c: client.advertise_keys() for c, client in self.clients.items() if c not in dropouts}

    def share_keys(self, keys: Mapping[str, bytes], dropouts: Collection[int] = ()) -> Responses:
        present = [int(name.split(":")[1]) for name in keys if ":" in name]
        return {c: self.clients[c].share_keys(keys) for c in present if c not in dropouts}

    def mask_updates(
        self, shares: Mapping[int, Mapping[str, bytes]], dropouts: Collection[int] = ()
    ) -> Responses:
        return {
            c: self.clients[c].mask_update(self.updates[c], message, self.weights[c])
            for c, message in shares.items()
            if c not in dropouts
        }

    def until_mask(self) -> Responses:
        """The server's messages for `mask_update`, when all clients take part."""
        return self.server.collect_shares(self.share_keys(self.server.collect_keys(self.advertise_keys())))

    def until_confirm(self, dropouts: Collection[int] = ()) -> dict[str, bytes]:
        """The server's message for `confirm_survivors`; `dropouts` do not send a masked update."""
        return self.server.collect_masked_updates(self.mask_updates(self.until_mask(), dropouts))

    def until_unmask(self, dropouts: Collection[int] = ()) -> dict[str, bytes]:
        """The server's message for `unmask`."""
        return self._confirm(self.until_confirm(dropouts), dropouts)

    def finish(self, shares: Mapping[int, Mapping[str, bytes]], dropouts: Collection[int] = ()) -> Aggregate:
        """The result of the steps from `mask_update` on."""
        masked = self.server.collect_masked_updates(self.mask_updates(shares, dropouts))
        return self.finish_unmasking(masked, dropouts)

    def finish_unmasking(self, survivors: Mapping[str, bytes], dropouts: Collection[int] = ()) -> Aggregate:
        """The result of the steps from `confirm_survivors` on."""
        message = self._confirm(survivors, dropouts)
        return self.server.aggregate(
            {c: client.unmask(message) for c, client in self.clients.items() if c not in dropouts}
        )

    def _confirm(self, message: Mapping[str, bytes], dropouts: Collection[int]) -> dict[str, bytes]:
        survivors = [c for c in self.clients if c not in dropouts]
        return self.server.collect_signatures(
            {c: self.clients[c].confirm_survivors(message) for c in survivors}
        )


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
        instructions_digest: bytes = b"",
    ) -> Round:
        identities = identities or {c: Identity.generate() for c in range(clients)}
        public_keys = {c: identity.public for c, identity in identities.items()}
        config = RoundConfig(
            session,
            number,
            public_keys,
            size,
            threshold,
            max_weight,
            encoding or FixedPoint(),
            instructions_digest,
        )
        return Round(identities, config, torch.randn(clients, size), [1] * clients)

    return make

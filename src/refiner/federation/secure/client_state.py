"""The state of a client between the steps of a round, as bytes that stay on its machine."""

import json
from dataclasses import dataclass, field

from refiner.federation.secure.errors import AggregationError
from refiner.federation.secure.messages import STEPS, KeyAdvertisement
from refiner.federation.secure.primitives import draw_secret
from refiner.federation.secure.round_config import RoundConfig

DONE, ABORTED = "done", "aborted"


def _draw_secrets() -> tuple[bytes, ...]:
    return tuple(draw_secret() for _ in range(3))


@dataclass
class ClientState:
    """The next step of a client, its secrets and what it received from the other clients."""

    step: str = STEPS[0]
    secrets: tuple[bytes, ...] = field(default_factory=_draw_secrets, repr=False)
    """Encryption secret, masking secret and self-mask seed; empty once the round is over."""
    advertisements: dict[int, KeyAdvertisement] = field(default_factory=dict)
    shares: dict[int, tuple[bytes, bytes]] = field(default_factory=dict, repr=False)
    """By client, the shares of its masking secret and its seed, as far as they could be decrypted."""
    shared: tuple[int, ...] = ()
    """All clients that shared their secrets, as the server said; known after the step `mask`."""
    survivors: tuple[int, ...] = ()
    """The survivors that this client signed."""

    def erase_secrets(self) -> None:
        """Drop all secrets and shares."""
        self.secrets, self.shares = (), {}

    def to_bytes(self, config: RoundConfig, client: int) -> bytes:
        """The whole state, secrets included."""
        record = {
            "context": config.context.hex(),
            "client": client,
            "step": self.step,
            "secrets": [secret.hex() for secret in self.secrets],
            "adverts": {other: sent.to_bytes().hex() for other, sent in self.advertisements.items()},
            "shares": {other: [share.hex() for share in pair] for other, pair in self.shares.items()},
            "shared": self.shared,
            "survivors": self.survivors,
        }
        return json.dumps(record).encode()

    @classmethod
    def from_bytes(cls, raw: bytes, config: RoundConfig, client: int) -> "ClientState":
        """The state that `to_bytes` wrote for the same client and round configuration."""
        try:
            record = json.loads(raw)
            same_round = (record["context"], record["client"]) == (config.context.hex(), client)
            secrets = tuple(bytes.fromhex(secret) for secret in record["secrets"])
            raw_keys = {int(other): bytes.fromhex(text) for other, text in record["adverts"].items()}
            state = cls(
                str(record["step"]),
                secrets,
                {
                    other: KeyAdvertisement.from_bytes(keys, config.context, other, config.identities[other])
                    for other, keys in raw_keys.items()
                },
                {
                    int(other): (bytes.fromhex(key), bytes.fromhex(seed))
                    for other, (key, seed) in record["shares"].items()
                },
                tuple(int(other) for other in record["shared"]),
                tuple(int(other) for other in record["survivors"]),
            )
            complete = len(secrets) == (3 if state.step in STEPS else 0)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise AggregationError(f"state of client {client}: not written by SecureClient.state()") from None
        if not same_round or not complete or state.step not in (*STEPS, DONE, ABORTED):
            raise AggregationError(f"state of client {client}: of another client, session, round or settings")
        return state

"""What a client holds between the steps of a round, as bytes that stay on its machine."""

import json
from dataclasses import dataclass, field

from refiner.federation.secure.errors import AggregationError
from refiner.federation.secure.messages import STEPS, Advert
from refiner.federation.secure.primitives import draw_secret
from refiner.federation.secure.round_config import Agreement

DONE, LEFT = "done", "left"


def _draw() -> tuple[bytes, ...]:
    return tuple(draw_secret() for _ in range(3))


@dataclass
class Holding:
    """Where a client stands, its secrets and what it has of the others."""

    step: str = STEPS[0]
    secrets: tuple[bytes, ...] = field(default_factory=_draw, repr=False)
    """Sealing secret, masking secret, seed of the self-mask; none once the round is over."""
    adverts: dict[int, Advert] = field(default_factory=dict)
    shares: dict[int, tuple[bytes, bytes]] = field(default_factory=dict, repr=False)
    """By client, the shares of its masking secret and of its seed; from `mask` on, of all that shared."""
    survivors: tuple[int, ...] = ()
    """Those that this client signed."""

    def forget(self) -> None:
        """Drop every secret."""
        self.secrets, self.shares = (), {}

    def to_bytes(self, agreement: Agreement, client: int) -> bytes:
        """All of it."""
        held = {
            "context": agreement.context.hex(),
            "client": client,
            "step": self.step,
            "secrets": [secret.hex() for secret in self.secrets],
            "adverts": {other: advert.to_bytes().hex() for other, advert in self.adverts.items()},
            "shares": {other: [share.hex() for share in pair] for other, pair in self.shares.items()},
            "survivors": self.survivors,
        }
        return json.dumps(held).encode()

    @classmethod
    def from_bytes(cls, raw: bytes, agreement: Agreement, client: int) -> "Holding":
        """What `to_bytes` gave for the same client and agreement."""
        try:
            held = json.loads(raw)
            same = (held["context"], held["client"]) == (agreement.context.hex(), client)
            secrets = tuple(bytes.fromhex(secret) for secret in held["secrets"])
            adverts = {int(other): bytes.fromhex(text) for other, text in held["adverts"].items()}
            made = cls(
                str(held["step"]),
                secrets,
                {
                    other: Advert.read(text, agreement.context, other, agreement.identities[other])
                    for other, text in adverts.items()
                },
                {
                    int(other): (bytes.fromhex(key), bytes.fromhex(seed))
                    for other, (key, seed) in held["shares"].items()
                },
                tuple(int(other) for other in held["survivors"]),
            )
            whole = len(secrets) == (3 if made.step in STEPS else 0)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise AggregationError(f"state of client {client}: not what state() gave") from None
        if not same or not whole or made.step not in (*STEPS, DONE, LEFT):
            raise AggregationError(f"state of client {client}: of another client, session, round or settings")
        return made

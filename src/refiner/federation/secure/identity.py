"""A client's long-term signing key, by which the other clients recognise it."""

from typing import Self

from refiner import checks
from refiner.errors import Description
from refiner.federation.secure import primitives


class Identity:
    """An Ed25519 key pair that signs a client's messages.

    The other clients must get `public` before training, through a channel that the server does not control.

    Args:
        secret: The private key, 32 bytes.

    Raises:
        SettingError: `secret` is not 32 bytes.

    >>> identity = Identity.generate()
    >>> Identity(identity.secret()).public == identity.public
    True
    >>> Identity(b"short")
    Traceback (most recent call last):
    refiner.errors.SettingError: identity = <5 bytes>: expected 32 bytes, an Ed25519 private key
    """

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes) or len(secret) != primitives.SECRET_BYTES:
            # Only its length or type: a secret must not be part of an error.
            length = f"{len(secret)} bytes" if isinstance(secret, bytes) else type(secret).__name__
            raise checks.wrong("identity", Description(f"<{length}>"), "32 bytes, an Ed25519 private key")
        self._secret = secret
        self.public = primitives.signing_public_key(secret)

    @classmethod
    def generate(cls) -> Self:
        """Return a new identity, drawn from the operating system's entropy."""
        return cls(primitives.draw_secret())

    def secret(self) -> bytes:
        """Return the private key, to be stored on the client's own machine only."""
        return self._secret

    def sign(self, *parts: str | int | bytes) -> bytes:
        """Sign a sequence of values.

        Args:
            parts: The values; encoded without ambiguity, so ("ab", "c") and ("a", "bc") differ.

        Returns:
            The Ed25519 signature, 64 bytes.
        """
        return primitives.sign(self._secret, *parts)

    def __repr__(self) -> str:
        return f"Identity(public={self.public.hex()})"

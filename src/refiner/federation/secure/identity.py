"""A client's long-term key, by which the others know it."""

from typing import Self

from refiner import checks
from refiner.federation.secure import primitives


class Identity:
    """An Ed25519 key pair; the other clients get `public` before training, by a way that is not the server's.

    >>> identity = Identity.generate()
    >>> Identity(identity.secret()).public == identity.public
    True
    >>> Identity(b"short")
    Traceback (most recent call last):
    refiner.errors.SettingError: identity = <5 bytes>: expected 32 bytes, an Ed25519 private key
    """

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes) or len(secret) != primitives.SECRET_BYTES:
            raise checks.wrong("identity", _Sized(secret), "32 bytes, an Ed25519 private key")
        self._secret = secret
        self.public = primitives.signing_public(secret)

    @classmethod
    def generate(cls) -> Self:
        """A new one, from the operating system's entropy."""
        return cls(primitives.draw_secret())

    def secret(self) -> bytes:
        """The private key, to be kept on the client's own machine."""
        return self._secret

    def sign(self, *parts: str | int | bytes) -> bytes:
        """A signature of these parts."""
        return primitives.sign(self._secret, *parts)

    def __repr__(self) -> str:
        return f"Identity(public={self.public.hex()})"


class _Sized:
    """Shown in an error in the place of a secret."""

    def __init__(self, value: object) -> None:
        self._text = f"<{len(value)} bytes>" if isinstance(value, bytes) else f"<{type(value).__name__}>"

    def __repr__(self) -> str:
        return self._text

"""Encryption of the two shares that one client sends to another through the server."""

from dataclasses import dataclass

from refiner.federation.secure.primitives import decrypt, encrypt, shared_key
from refiner.federation.secure.secret_sharing import SHARE_BYTES, share_index


@dataclass(frozen=True)
class ShareCipher:
    """Encrypts shares between this client and others, bound to the round and to all advertised keys."""

    secret: bytes
    """This client's encryption secret."""
    context: bytes
    keys: bytes
    """Digest of all advertised keys."""

    def encrypt(self, public: bytes, sender: int, recipient: int, shares: tuple[bytes, bytes]) -> bytes:
        """Encrypt the shares of the masking secret and the seed of `sender`, this client, for `recipient`."""
        key = shared_key(self.secret, public, self.context, "shares", sender, recipient)
        return encrypt(key, b"".join(shares), self.keys, sender, recipient)

    def decrypt(
        self, public: bytes, sender: int, recipient: int, index: int, ciphertext: bytes
    ) -> tuple[bytes, bytes] | None:
        """The two shares from `sender`; None if they are damaged or made for another index than `index`."""
        key = shared_key(self.secret, public, self.context, "shares", sender, recipient)
        plaintext = decrypt(key, ciphertext, self.keys, sender, recipient)
        if plaintext is None or len(plaintext) != 2 * SHARE_BYTES:
            return None
        shares = plaintext[:SHARE_BYTES], plaintext[SHARE_BYTES:]
        # The sender wrote the index; a wrong one would make the recovered secret wrong.
        return shares if all(share_index(share) == index for share in shares) else None

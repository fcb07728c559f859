"""The masks are ChaCha20 key streams (RFC 8439), and the pairwise masks of two clients cancel."""

import numpy as np
import pytest

from refiner.federation.secure import masks, primitives
from refiner.federation.secure.fixedpoint import RingVector

# RFC 8439, A.1: test vectors 1 to 4, all with the nonce 0: key, counter, keystream.
VECTORS = [
    (
        "00" * 32,
        0,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        "00" * 32,
        1,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        "00" * 31 + "01",
        1,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    (
        "00ff" + "00" * 30,
        2,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
]


def key_stream(key: bytes, values: int, dtype: str) -> RingVector:
    vector = np.zeros(values, dtype=dtype)
    masks.add_mask(vector, key)
    return vector


@pytest.mark.parametrize("dtype", ["<u4", "<u8"])
@pytest.mark.parametrize(("key", "block", "expected"), VECTORS)
def test_the_key_stream_matches_the_rfc_vectors(key: str, block: int, expected: str, dtype: str) -> None:
    produced = key_stream(bytes.fromhex(key), 512, dtype).tobytes()
    assert produced[64 * block : 64 * (block + 1)].hex() == expected


@pytest.mark.parametrize("dtype", ["<u4", "<u8"])
@pytest.mark.parametrize("values", [1, 15, 16, 17, 1000])
def test_the_mask_does_not_depend_on_the_chunk_size(
    dtype: str, values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = key_stream(b"k" * 32, values, dtype)
    monkeypatch.setattr(masks, "_CHUNK_BYTES", 64)
    assert (key_stream(b"k" * 32, values, dtype) == whole).all()


def test_pairwise_masks_cancel_and_can_be_removed() -> None:
    low, high = primitives.draw_secret(), primitives.draw_secret()
    keys = (
        masks.pairwise_mask_key(b"round", low, 3, 8, primitives.public_key(high)),
        masks.pairwise_mask_key(b"round", high, 8, 3, primitives.public_key(low)),
    )
    assert keys[0] == keys[1]
    lower, higher = np.arange(99, dtype="<u8"), np.arange(99, dtype="<u8")
    masks.add_pairwise_mask(lower, keys[0], 3, 8)
    masks.add_pairwise_mask(higher, keys[1], 8, 3)
    assert (lower != np.arange(99)).all()
    assert (lower + higher == 2 * np.arange(99)).all()
    masks.add_pairwise_mask(lower, keys[0], 3, 8, undo=True)
    assert (lower == np.arange(99)).all()


def test_keys_differ_by_purpose_round_and_pair() -> None:
    secret, public = primitives.draw_secret(), primitives.public_key(primitives.draw_secret())
    keys = {
        masks.pairwise_mask_key(b"round 1", secret, 1, 2, public),
        masks.pairwise_mask_key(b"round 2", secret, 1, 2, public),
        masks.pairwise_mask_key(b"round 1", secret, 1, 3, public),
        masks.self_mask_key(b"round 1", 1, secret),
        masks.self_mask_key(b"round 2", 1, secret),
        masks.self_mask_key(b"round 1", 2, secret),
        masks.seed_commitment(b"round 1", 1, secret),
        secret,
    }
    assert len(keys) == 8

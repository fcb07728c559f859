"""Keyed noise: ChaCha's published vectors, uniformity, and the same noise in every chunk."""

import hmac
import struct
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from refiner.core.noise import NoiseSource, _chacha, uniform
from refiner.errors import SettingError

# RFC 8439: appendix A.1, test vectors 1 and 2 (key and nonce zero, blocks 0 and 1).
BLOCK_0 = (
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
)
BLOCK_1 = (
    "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
)
MASK = 0xFFFFFFFF
KEYS = st.binary(min_size=32, max_size=32)
IDS = st.integers(-(2**63), 2**63 - 1)


def reference(key: bytes, counter: int, nonce: int, rounds: int) -> list[int]:
    """One block of ChaCha on Python's integers; a 64-bit nonce follows a 64-bit counter."""
    initial = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key)]
    initial += [counter & MASK, counter >> 32, nonce & MASK, nonce >> 32 & MASK]
    state = list(initial)

    def rotate(word: int, bits: int) -> int:
        return (word << bits | word >> (32 - bits)) & MASK

    def quarter_round(a: int, b: int, c: int, d: int) -> None:
        for left, right, other, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[left] = (state[left] + state[right]) & MASK
            state[other] = rotate(state[other] ^ state[left], bits)

    for _ in range(rounds // 2):
        for column in range(4):
            quarter_round(column, 4 + column, 8 + column, 12 + column)
        for column in range(4):
            quarter_round(column, 4 + (column + 1) % 4, 8 + (column + 2) % 4, 12 + (column + 3) % 4)
    return [(word + first) & MASK for word, first in zip(state, initial, strict=True)]


def unsigned(words: Tensor) -> list[int]:
    return [word & MASK for word in words.tolist()]


def test_the_reference_gives_the_published_vectors() -> None:
    for counter, block in enumerate((BLOCK_0, BLOCK_1)):
        assert struct.pack("<16I", *reference(bytes(32), counter, 0, 20)).hex() == block


def test_chacha_gives_the_published_vectors() -> None:
    words = _chacha(NoiseSource(bytes(32)).key, torch.tensor([0]), blocks=2, rounds=20)
    assert words.shape == (1, 32)
    assert struct.pack("<32I", *unsigned(words[0])).hex() == BLOCK_0 + BLOCK_1


@settings(max_examples=50)
@example(key=bytes(32), ids=[-1, 2**32, 2**32 - 1, 2**31, -(2**63), 2**63 - 1], rounds=12, blocks=3)
@given(
    key=KEYS,
    ids=st.lists(IDS, min_size=1, max_size=4),
    rounds=st.sampled_from([8, 12, 20]),
    blocks=st.integers(1, 3),
)
def test_chacha_equals_the_reference(key: bytes, ids: list[int], rounds: int, blocks: int) -> None:
    words = _chacha(NoiseSource(key).key, torch.tensor(ids), blocks, rounds)
    for row, sample in zip(words, ids, strict=True):
        expected = [word for block in range(blocks) for word in reference(key, block, sample, rounds)]
        assert unsigned(row) == expected


@settings(max_examples=20)
@given(key=KEYS, sample=IDS, count=st.integers(1, 40))
def test_the_noise_is_chacha_with_twelve_rounds(key: bytes, sample: int, count: int) -> None:
    noise = NoiseSource(key).uniform(torch.tensor([sample]), (count,), torch.float64)
    words = [word for block in range(3) for word in reference(key, block, sample, 12)]
    assert noise[0].tolist() == [(word >> 8) / 2**24 for word in words[:count]]


def test_the_noise_is_uniform() -> None:
    values = NoiseSource(seed=0).uniform(torch.arange(100), (3, 32, 32), torch.float64).flatten()
    count = len(values)
    assert abs(float(values.mean()) - 1 / 2) < 4 * (1 / 12 / count) ** 0.5
    assert abs(float(values.var()) - 1 / 12) < 4 * (1 / 180 / count) ** 0.5
    # Kolmogorov–Smirnov: the distance from the uniform distribution, at a level of one in a thousand.
    steps = torch.arange(count, dtype=torch.float64) / count
    ordered = values.sort().values
    assert float(torch.maximum(ordered - steps, steps + 1 / count - ordered).max()) < 1.95 / count**0.5
    # χ² over 256 bins, at about five standard deviations; each of the upper bits alone is fair.
    bins = torch.histc(values, 256, 0, 1)
    assert float(((bins - count / 256) ** 2 / (count / 256)).sum()) < 255 + 5 * (2 * 255) ** 0.5
    bits = (values * 2**24).long()[:, None] >> torch.arange(24) & 1
    assert (bits.double().mean(0) - 0.5).abs().max() < 5 * 0.5 / count**0.5


def test_noise_of_ids_keys_and_positions_is_uncorrelated() -> None:
    ids = torch.tensor([0, 1, 2, 3, 2**32, 2**33, -1, -2, 2**62, 1 ^ 2**62])
    rows = torch.cat([NoiseSource(seed=s).uniform(ids, (64, 64), torch.float64).flatten(1) for s in (0, 1)])
    correlations = torch.corrcoef(rows) - torch.eye(len(rows), dtype=torch.float64)
    assert correlations.abs().max() < 5 / rows.shape[1] ** 0.5
    centred = rows - 0.5
    for lag in (1, 4, 16, 64):
        autocorrelation = (centred[:, lag:] * centred[:, :-lag]).mean(1) * 12
        assert autocorrelation.abs().max() < 5 / rows.shape[1] ** 0.5


@settings(max_examples=20)
@given(
    ids=st.lists(IDS, min_size=1, max_size=6),
    chunk=st.integers(1, 6),
    seed=st.integers(0, 2**31),
    channels=st.integers(1, 3),
)
def test_noise_of_an_id_does_not_depend_on_chunks(
    ids: list[int], chunk: int, seed: int, channels: int
) -> None:
    tensor, shape = torch.tensor(ids), (channels, 5, 7)
    whole = NoiseSource(seed=seed).uniform(tensor, shape)
    source = NoiseSource(seed=seed)
    chunks = torch.cat([source.uniform(ids, shape) for ids in torch.split(tensor, chunk)])
    assert torch.equal(whole, chunks)
    assert torch.equal(uniform(source.key, tensor.flip(0), shape), whole.flip(0))
    assert torch.equal(source.uniform(tensor[:, None], shape), whole[:, None])
    # A longer draw begins with the shorter one.
    longer = source.uniform(tensor, (channels * 35 + 20,))
    assert torch.equal(longer[:, : channels * 35], whole.flatten(1))


def test_the_same_id_gets_the_same_noise_and_another_id_does_not() -> None:
    source = NoiseSource(seed=3)
    first = source.uniform(torch.tensor([5, 5, 6]), (2, 8))
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])
    assert torch.equal(source.uniform(torch.tensor([5]), (2, 8))[0], first[0])


@pytest.mark.processes
def test_keys_come_from_the_operating_system() -> None:
    """In this process they don't: see conftest.py."""
    code = "from refiner.core.noise import NoiseSource; print(NoiseSource().key.tolist())"
    keys = {subprocess.check_output([sys.executable, "-c", code]) for _ in range(2)}
    assert len(keys) == 2


def test_sources_without_key_or_seed_differ() -> None:
    ids = torch.tensor([0])
    draws = [NoiseSource().uniform(ids, (8,)) for _ in range(3)]
    assert not any(torch.equal(a, b) for a, b in zip(draws, draws[1:] + draws[:1], strict=True))
    seeded = [NoiseSource(seed=s).uniform(ids, (8,)) for s in (0, 0, 1, 10)]
    assert torch.equal(seeded[0], seeded[1])
    assert not any(torch.equal(a, b) for a, b in pairwise(seeded[1:]))
    key = bytes(range(32))
    assert torch.equal(NoiseSource(key).uniform(ids, (8,)), NoiseSource(key).uniform(ids, (8,)))
    assert torch.equal(NoiseSource(key, seed=1).key, NoiseSource(key).key)


def test_torchs_seed_does_not_determine_the_key() -> None:
    torch.manual_seed(0)
    first = NoiseSource().key
    torch.manual_seed(0)
    assert not torch.equal(NoiseSource().key, first)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33), bytearray(32), "0" * 32, 0, [0] * 32])
def test_a_wrong_key_is_an_error_that_does_not_show_it(key: bytes) -> None:
    with pytest.raises(SettingError) as caught:
        NoiseSource(key)
    assert str(caught.value) == "key: expected 32 secret bytes"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_values_stay_below_one_in_every_precision(dtype: torch.dtype) -> None:
    values = NoiseSource(seed=0).uniform(torch.arange(64), (64, 64), dtype)
    assert values.dtype == dtype
    assert values.min() >= 0
    assert values.max() < 1
    assert values.max() > 0.99
    assert abs(float(values.double().mean()) - 0.5) < 0.003
    # The coarse types drop bits of the fine one and round none of them up.
    fine = NoiseSource(seed=0).uniform(torch.arange(64), (64, 64), torch.float64)
    lost = fine - values.double()
    assert lost.min() >= 0
    assert lost.max() <= torch.finfo(dtype).eps / 2


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), pixel=st.integers(0, 3 * 8 * 8 - 1))
def test_an_id_depends_on_the_samples_content(seed: int, pixel: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    x = (torch.rand(4, 2, 3, 8, 8, generator=draws) * 255).round() / 255
    source = NoiseSource(seed=seed)
    ids = source.identify(x, axes=2)
    assert ids.shape == (4, 2)
    assert ids.unique().numel() == 8
    assert torch.equal(source.identify(x.flip(0), axes=2), ids.flip(0))
    assert torch.equal(source.identify(x[:, 0], axes=1), ids[:, 0])
    changed = x.clone()
    changed[0, 0].view(-1)[pixel] = 1 - changed[0, 0].view(-1)[pixel]
    assert source.identify(changed, axes=2)[0, 0] != ids[0, 0]
    assert not torch.equal(NoiseSource(seed=seed + 1).identify(x, axes=2), ids)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (-2.5, 2.7)])
def test_rounding_does_not_change_an_id(low: float, high: float) -> None:
    byte = torch.randint(256, (50, 3, 8, 8), generator=torch.Generator().manual_seed(0)).float()
    divided, multiplied = (low + (high - low) * unit for unit in (byte / 255, byte * (1 / 255)))
    assert not torch.equal(divided, multiplied)
    source = NoiseSource(seed=0)
    ids = [
        source.identify(x, 1, low, high)
        for x in (divided, multiplied, divided.double(), divided.nextafter(-divided))
    ]
    assert ids[0].unique().numel() == 50
    assert all(torch.equal(other, ids[0]) for other in ids[1:])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_have_ids_too(dtype: torch.dtype) -> None:
    assert NoiseSource(seed=0).identify(torch.rand(5, 3, 8, 8).to(dtype), axes=1).unique().numel() == 5


def test_children_have_their_own_keys() -> None:
    ids = torch.arange(3)
    parent = NoiseSource(seed=0)
    sources = [
        parent,
        parent.child(0),
        parent.child(1),
        parent.child(0).child(1),
        NoiseSource(seed=1).child(0),
    ]
    rows = torch.cat([source.uniform(ids, (64, 64), torch.float64).flatten(1) for source in sources])
    correlations = torch.corrcoef(rows) - torch.eye(len(rows), dtype=torch.float64)
    assert correlations.abs().max() < 5 / rows.shape[1] ** 0.5
    again = NoiseSource(seed=0).child(1)
    assert torch.equal(again.key, parent.child(1).key)
    # Fixed for ever, so that a study can be repeated on any machine.
    key = hmac.digest(bytes(range(32)), b"refiner child 7", "sha256")
    assert torch.equal(NoiseSource(bytes(range(32))).child(7).key, NoiseSource(key).key)
    with pytest.raises(SettingError, match="index = -1: expected an integer ≥ 0"):
        parent.child(-1)


def test_seeded_is_true_only_for_keys_from_a_seed() -> None:
    assert NoiseSource(seed=0).seeded and NoiseSource(seed=0).child(0).seeded
    for source in (NoiseSource(), NoiseSource(bytes(32)), NoiseSource(bytes(32), seed=1)):
        assert not source.seeded and not source.child(0).seeded

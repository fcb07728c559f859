"""Shamir's secret sharing: any t of n shares recover the secret, fewer or wrong ones do not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refiner.federation.secure.primitives import draw_secret
from refiner.federation.secure.secret_sharing import (
    SHARE_BYTES,
    combine_shares,
    share_index,
    share_secret,
)


@st.composite
def sharing(draw: st.DrawFn) -> tuple[bytes, int, list[bytes]]:
    """A secret, a threshold t ≥ 2 and n ≥ t shares, shuffled."""
    count = draw(st.integers(2, 8))
    threshold = draw(st.integers(2, count))
    secret = draw(st.binary(min_size=32, max_size=32))
    return secret, threshold, draw(st.permutations(share_secret(secret, threshold, count)))


@settings(max_examples=40)
@given(sharing())
def test_any_t_shares_recover_the_secret_and_t_minus_1_do_not(shared: tuple[bytes, int, list[bytes]]) -> None:
    secret, threshold, shares = shared
    assert combine_shares(shares[:threshold]) == secret
    assert combine_shares(shares[: threshold - 1]) != secret


def test_shares_have_the_indices_1_to_n_and_a_fixed_length() -> None:
    shares = share_secret(draw_secret(), 3, 300)
    assert [share_index(share) for share in shares] == list(range(1, 301))
    assert {len(share) for share in shares} == {SHARE_BYTES} == {52}


def test_the_shares_of_the_same_secret_differ_each_time() -> None:
    secret = draw_secret()
    assert set(share_secret(secret, 2, 3)).isdisjoint(share_secret(secret, 2, 3))


def test_fewer_than_t_shares_are_uniform_whatever_the_secret() -> None:
    # χ² with 255 degrees of freedom exceeds 390 once in ten million times.
    samples = b"".join(share_secret(bytes(32), 2, 2)[0][4:36] for _ in range(400))
    expected = len(samples) / 256
    assert sum((samples.count(bytes([value])) - expected) ** 2 / expected for value in range(256)) < 390


@given(st.integers(0, 2), st.integers(4, SHARE_BYTES - 1), st.integers(1, 255))
@settings(max_examples=40)
def test_a_changed_share_does_not_recover_the_secret(which: int, position: int, change: int) -> None:
    secret = bytes(range(32))
    shares = share_secret(secret, 3, 5)[:3]
    changed = bytearray(shares[which])
    changed[position] ^= change
    shares[which] = bytes(changed)
    assert combine_shares(shares) != secret


def test_shares_of_two_secrets_do_not_recover_either() -> None:
    first, second = draw_secret(), draw_secret()
    mixed = [share_secret(first, 2, 3)[0], share_secret(second, 2, 3)[1]]
    assert combine_shares(mixed) not in (first, second)


def test_duplicate_indices_index_0_and_wrong_lengths_are_rejected() -> None:
    secret = bytes(range(32))
    shares = share_secret(secret, 2, 3)
    assert combine_shares([shares[0], shares[0]]) is None
    assert combine_shares([shares[0], shares[0][:4] + shares[1][4:]]) is None
    # The polynomial at 0 is the secret: a share with index 0 would decide the result alone.
    assert combine_shares([shares[0], bytes(4) + shares[1][4:]]) is None
    assert combine_shares([shares[0], shares[1][:-1]]) is None
    assert combine_shares([shares[0][:36], shares[1][:36]]) is None
    assert combine_shares([]) is None


@pytest.mark.parametrize(
    ("length", "threshold", "count"), [(31, 2, 3), (48, 2, 3), (32, 0, 3), (32, 4, 3), (32, 2, 2**32)]
)
def test_splits_that_could_not_be_recovered_raise(length: int, threshold: int, count: int) -> None:
    with pytest.raises(ValueError, match="cannot split"):
        share_secret(bytes(length), threshold, count)

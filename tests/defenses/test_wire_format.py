"""The encoded size of uploads: zeros and quantisation levels that survive a chain."""

import pytest
from torch import Size

from refiner.defenses import NoDefense, Pruning, Quantisation, Refiner, WireFormat, make_defense

SHAPES = {"weight": Size([100, 10]), "bias": Size([10])}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none+none", 4040),
        ("refiner+none", 4040),
        ("gq:bits=8", 1018),
        # Of 1000 entries 100 are kept, each with an index of two bytes and a value; of 10 one, with one byte.
        ("pruning:rate=0.9", 100 * (4 + 2) + 1 * (4 + 1)),
        ("none+pruning:rate=0.9+none", 605),
        ("pruning:rate=0.9+gq:bits=8", 100 * (1 + 2) + 1 * (1 + 1) + 8),
        ("gq:bits=8+pruning:rate=0.9", 310),
        ("refiner+pruning:rate=0.9+gq:bits=4", 100 * 2 + 50 + 1 + 1 + 8),
        # With few zeros a dense encoding is shorter than one with indices.
        ("pruning:rate=0.1+gq:bits=8", 1018),
        # All tensors are pruned as one: 101 of 1010 entries are kept.
        ("pruning:rate=0.9,scope=global+gq:bits=8", 101 * (1 + 2) + 8),
        # The higher of two rates decides.
        ("pruning:rate=0.5+pruning:rate=0.9", 605),
        ("pruning:rate=0.9+pruning:rate=0.5", 605),
        # One bit has no level for zero; noise removes zeros and levels.
        ("pruning:rate=0.9+gq:bits=1", 125 + 2 + 8),
        ("gq:bits=1+pruning:rate=0.9", 605),
        ("pruning:rate=0.9+dp-gaussian", 4040),
        ("gq:bits=8+dp-gaussian+gq:bits=2", 250 + 3 + 8),
    ],
)
def test_encoded_size_of_an_upload(text: str, expected: int) -> None:
    assert make_defense(text).wire_bytes(SHAPES) == expected


def test_a_chain_with_no_defence_has_the_size_of_the_other_part() -> None:
    for part in (Pruning(rate=0.7, scope="global"), Quantisation(bits=3)):
        text = f"{part.name}:" + ",".join(f"{k}={v}" for k, v in part.settings().items())
        assert make_defense(f"none+{text}").wire_bytes(SHAPES) == part.wire_bytes(SHAPES)


def test_each_defence_states_the_format_of_its_upload() -> None:
    pruned = Pruning(rate=0.9).wire_format(WireFormat())
    assert pruned == WireFormat(zero_rate=0.9)
    assert Quantisation(bits=8).wire_format(pruned) == WireFormat(bits=8, zero_rate=0.9)
    assert Quantisation(bits=1).wire_format(pruned) == WireFormat(bits=1)
    assert NoDefense().wire_format(pruned) == pruned
    assert Refiner().wire_format(pruned) == WireFormat()

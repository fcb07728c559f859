"""Names with settings: text that builds an object, and the errors of invalid text."""

from dataclasses import dataclass

import pytest

from refiner.errors import DataError
from refiner.registry import make_by_name, parse_chain


@dataclass(frozen=True)
class Thing:
    rate: float = 0.0
    word: str = ""
    pair: tuple[float, float] = (0.0, 0.0)
    flag: bool | None = False

    @classmethod
    def loud(cls, **changes: object) -> "Thing":
        return cls(**{"word": "LOUD", **changes})  # type: ignore[arg-type]


KNOWN = {"thing": Thing, "loud": Thing.loud}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("thing", Thing()),
        ("thing:", Thing()),
        ("thing:rate=1e-3", Thing(rate=1e-3)),
        ("thing:rate=2,word=cosine", Thing(rate=2, word="cosine")),
        ("thing:pair=(0, 1),flag=true", Thing(pair=(0, 1), flag=True)),
        ("thing:flag=None", Thing(flag=None)),
        ("loud:rate=1", Thing(rate=1, word="LOUD")),
    ],
)
def test_valid_text_builds_the_object(text: str, expected: Thing) -> None:
    assert make_by_name(KNOWN, "thing", text) == expected


def test_settings_in_the_text_take_precedence() -> None:
    assert make_by_name(KNOWN, "thing", "thing:rate=1", rate=2, word="a") == Thing(rate=1, word="a")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("think", "did you mean 'thing'"),
        ("thing:rates=1", "setting of thing = 'rates': unknown; did you mean 'rate'"),
        ("loud:x=1", "setting of loud = 'x'"),
        ("thing:rate", "expected NAME:setting=value"),
        ("thing:=1", "expected NAME:setting=value"),
        ("thing:rate=", "expected NAME:setting=value"),
        ("thing:rate=1,word=a,rate=2", "thing = 'thing:rate=1,word=a,rate=2': rate is set twice"),
    ],
)
def test_invalid_text_raises(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_by_name(KNOWN, "thing", text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("thing", ["thing"]),
        ("thing+loud", ["thing", "loud"]),
        ("thing:rate=1e+2+loud:rate=+3", ["thing:rate=1e+2", "loud:rate=+3"]),
        ("thing:word=a+b", ["thing:word=a+b"]),
        # Only the whole name counts.
        ("thing:word=a+louder+thing", ["thing:word=a+louder", "thing"]),
        ("think+loud+thing:", ["think", "loud", "thing:"]),
        ("thing+lout:rate=1", ["thing", "lout:rate=1"]),
        ("+thing", ["", "thing"]),
    ],
)
def test_a_plus_separates_names(text: str, parts: list[str]) -> None:
    assert parse_chain(KNOWN, text) == parts

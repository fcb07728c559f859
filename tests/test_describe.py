"""The settings of a registered method: from its fields, their docstrings and its own checks."""

from dataclasses import dataclass, field

import pytest

from refiner import checks
from refiner.attacks import ATTACKS
from refiner.defenses import DEFENSES
from refiner.describe import Setting, attribute_docs, settings_of


@dataclass(frozen=True)
class Base:
    rate: float = 0.5
    """How much of it;
    the rest stays."""
    plain: int = 3

    def __post_init__(self) -> None:
        checks.number("rate", self.rate, 0, 1, above=True)


@dataclass(frozen=True)
class Thing(Base):
    """A thing."""

    limit: float | None = None
    """Where it ends."""
    word: str = "a"
    flag: bool = True
    pair: tuple[float, float] = (0.0, 1.0)
    secret: bytes | None = field(default=None, metadata={"private": True})
    cache: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.limit is not None:
            checks.integer("limit", self.limit, 1)
        checks.choice("word", self.word, ("a", "b"))
        if len(self.pair) != 2:
            raise AssertionError

    @classmethod
    def small(cls, **changes: object) -> "Thing":
        return cls(**{"rate": 0.1, **changes})  # type: ignore[arg-type]


def test_every_setting_with_default_range_and_help() -> None:
    assert settings_of(Thing) == [
        Setting("rate", "float", "0.5", "a number in (0, 1]", "How much of it; the rest stays."),
        Setting("plain", "int", "3", "", ""),
        Setting("limit", "float | None", "none", "an integer ≥ 1 or none", "Where it ends."),
        Setting("word", "str", "a", "one of 'a', 'b'", ""),
        Setting("flag", "bool", "true", "", ""),
        Setting("pair", "tuple[float, float]", "(0.0, 1.0)", "", ""),
        Setting("secret", "bytes | None", "none", "", "", private=True),
    ]


def test_a_class_method_has_its_own_defaults() -> None:
    assert [setting.default for setting in settings_of(Thing.small)][:2] == ["0.1", "3"]


def test_a_class_without_source_has_no_docs() -> None:
    bare = type("Bare", (), {})
    assert attribute_docs(bare) == {} and attribute_docs(int) == {}


@pytest.mark.parametrize("name", [*DEFENSES, *ATTACKS])
def test_every_registered_method_is_described(name: str) -> None:
    settings = settings_of(DEFENSES[name] if name in DEFENSES else ATTACKS[name])
    assert all(setting.name and setting.kind and setting.default for setting in settings)
    # Every number needs a range check.
    unchecked = [s.name for s in settings if s.kind in ("int", "float") and not s.expected and not s.private]
    assert not unchecked, f"{name}: {unchecked}"

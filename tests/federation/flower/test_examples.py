"""The examples say what they promise; that they run is tested on a deployment."""

from pathlib import Path

from refiner.federation.flower.run_config import Rules
from refiner.federation.flower.study import app_text

EXAMPLES = Path(__file__).parents[3] / "examples" / "flower"


def lines(name: str) -> list[str]:
    text = (EXAMPLES / "adopt" / f"{name}.py").read_text().split('"""', 2)[2]
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_three_lines_change() -> None:
    plain, protected = lines("plain"), lines("protected")
    assert len(set(protected) - set(plain)) == 3
    assert len(set(plain) - set(protected)) == 1
    assert len(protected) == len(plain) + 2


def test_the_app_for_a_superlink_of_ones_own_is_what_the_command_submits() -> None:
    assert (EXAMPLES / "training" / "pyproject.toml").read_text() == app_text(Rules(out="/srv/training"))

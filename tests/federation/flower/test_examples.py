"""The examples match what their README says; that they run is tested in test_deployed.py."""

from pathlib import Path

from refiner.federation.flower.app_files import app_toml
from refiner.federation.flower.run_config import RunConfig

EXAMPLES = Path(__file__).parents[3] / "examples" / "flower"


def code_lines(name: str) -> list[str]:
    code = (EXAMPLES / "adopt" / f"{name}.py").read_text().split('"""', 2)[2]
    return [line.strip() for line in code.splitlines() if line.strip()]


def test_the_protected_client_differs_in_four_lines() -> None:
    plain, protected = code_lines("plain"), code_lines("protected")
    assert len(set(protected) - set(plain)) == 4
    assert len(set(plain) - set(protected)) == 1
    assert len(protected) == len(plain) + 3


def test_the_training_app_is_the_one_that_the_command_submits() -> None:
    expected = app_toml(RunConfig(out="/srv/training"))
    assert (EXAMPLES / "training" / "pyproject.toml").read_text() == expected

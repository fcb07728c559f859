"""The package `refiner`: its names are imported when they are used, and `audit` stays the function."""

import subprocess
import sys

import pytest

import refiner

IN_EVERY_ORDER = """
import importlib, sys

assert "torch" not in sys.modules
import refiner
assert "torch" not in sys.modules
for imports in (
    "import refiner",
    "import refiner.backward, refiner.audit.report; refiner.Refiner",
    "import refiner; refiner.audit; import refiner.audit.report",
    "from refiner import audit; import refiner.audit.report, refiner; assert refiner.audit is audit",
):
    for name in [name for name in sys.modules if name.partition(".")[0] == "refiner"]:
        del sys.modules[name]
    exec(imports)
    print(type(refiner.audit).__name__, type(refiner.backward).__name__, refiner.audit.__module__)
"""


def test_every_public_name_is_found() -> None:
    assert set(refiner.__all__) <= set(dir(refiner))
    for name in refiner.__all__:
        assert getattr(refiner, name) is not None
    assert refiner.Refiner.__module__ == "refiner.defenses.refiner"
    assert refiner.metrics.psnr.__name__ == "psnr"


def test_an_unknown_name_is_an_attribute_error() -> None:
    for name in ("Refner", "__wrapped__", "_nothing"):
        with pytest.raises(AttributeError, match=f"module 'refiner' has no attribute '{name}'"):
            getattr(refiner, name)
    with pytest.raises(ImportError, match="cannot import name 'Refner'"):
        exec("from refiner import Refner")


@pytest.mark.processes
def test_audit_and_backward_are_functions_in_every_order_of_imports() -> None:
    done = subprocess.run([sys.executable, "-c", IN_EVERY_ORDER], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["function function refiner.audit.run_audit"] * 4

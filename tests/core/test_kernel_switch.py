"""REFINER_KERNELS turns the Triton kernels off; a wrong value is a one-line error."""

from collections.abc import Iterator

import pytest
import torch

from refiner.core import kernels, norm_ops
from refiner.errors import SettingError


@pytest.fixture(autouse=True)
def unread_switch() -> Iterator[None]:
    """The switch as in a new process: it is read once."""
    kernels._enabled.cache_clear()
    yield
    kernels._enabled.cache_clear()


@pytest.mark.parametrize(("value", "enabled"), [("0", False), ("1", True), (None, True)])
def test_the_switch_is_on_unless_it_is_0(
    value: str | None, enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("REFINER_KERNELS", raising=False)
    else:
        monkeypatch.setenv("REFINER_KERNELS", value)
    assert kernels._enabled() is enabled


def test_the_switch_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFINER_KERNELS", "0")
    assert not kernels._enabled()
    monkeypatch.setenv("REFINER_KERNELS", "1")
    assert not kernels._enabled()


@pytest.mark.parametrize("value", ["", "2", "off", "true", " 0"])
def test_a_wrong_value_is_a_one_line_error(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFINER_KERNELS", value)
    with pytest.raises(SettingError) as caught:
        norm_ops.standardise(torch.ones(1, 2), 0.1)
    expected = "0 (kernels off) or 1 (on, the default)"
    assert str(caught.value) == f"REFINER_KERNELS = {value!r}: expected {expected}"
    assert (caught.value.field, caught.value.value, caught.value.expected) == (
        "REFINER_KERNELS",
        value,
        expected,
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: on a CPU kernels never run")
def test_on_a_gpu_the_switch_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 64, device="cuda")
    monkeypatch.setenv("REFINER_KERNELS", "1")
    assert kernels.kernels_available(x)
    with_kernels = norm_ops.standardise(x, 1e-5)
    kernels._enabled.cache_clear()
    monkeypatch.setenv("REFINER_KERNELS", "0")
    assert not kernels.kernels_available(x)
    for a, b in zip(with_kernels, norm_ops.standardise(x, 1e-5), strict=True):
        torch.testing.assert_close(a, b)

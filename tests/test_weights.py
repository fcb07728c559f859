"""Fixed networks from files: whole ones are loaded, others refused by name."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from refiner.errors import DataError
from refiner.weights import frozen


def line(weights: dict[str, torch.Tensor]) -> nn.Linear:
    return nn.Linear(weights["weight"].shape[1], 1)


def test_half_precision_is_used_in_float32_and_stays_fixed(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(1, 3).half(), "bias": torch.zeros(1).half()}, tmp_path / "w")
    network = frozen(tmp_path / "w", line, "a line")
    assert network.weight.dtype == torch.float32 and not network.weight.requires_grad and not network.training
    assert network(torch.ones(2, 3)).tolist() == [[3], [3]]


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_what_is_no_such_network(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "w"
    if content is None:
        save_file({"other": torch.ones(1)}, path)
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"not a line \(.+\)") as caught:
        frozen(path, line, "a line")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_refused(value: float, tmp_path: Path) -> None:
    path = tmp_path / "w"
    save_file({"weight": torch.tensor([[1.0, value]]), "bias": torch.zeros(1)}, path)
    with pytest.raises(DataError) as caught:
        frozen(path, line, "a line")
    assert str(caught.value) == f"weights = {str(path)!r}: not a line (weight holds NaN or infinity)"

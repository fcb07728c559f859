"""Fixed networks from files: intact ones are loaded, others are a one-line error."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from refiner.errors import DataError
from refiner.weights import load_frozen


def line(weights: dict[str, torch.Tensor]) -> nn.Linear:
    return nn.Linear(weights["weight"].shape[1], 1)


def test_half_precision_weights_are_loaded_in_float32_without_gradients(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(1, 3).half(), "bias": torch.zeros(1).half()}, tmp_path / "w")
    network = load_frozen(tmp_path / "w", line, "a line")
    assert network.weight.dtype == torch.float32 and not network.weight.requires_grad and not network.training
    assert network(torch.ones(2, 3)).tolist() == [[3], [3]]


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_a_file_of_another_kind_is_a_one_line_error(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "w"
    if content is None:
        save_file({"other": torch.ones(1)}, path)
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"not a line \(.+\)") as caught:
        load_frozen(path, line, "a line")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_an_error(value: float, tmp_path: Path) -> None:
    path = tmp_path / "w"
    save_file({"weight": torch.tensor([[1.0, value]]), "bias": torch.zeros(1)}, path)
    with pytest.raises(DataError) as caught:
        load_frozen(path, line, "a line")
    assert str(caught.value) == f"weights = {str(path)!r}: not a line (weight holds NaN or infinity)"

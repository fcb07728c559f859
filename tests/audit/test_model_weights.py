"""Tests of loading model weights: exact match, or an error that names the first difference."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from refiner.audit.model_weights import load_model_weights
from refiner.errors import DataError
from refiner.models import LeNet, ResNet


def test_weights_are_loaded_exactly(tmp_path: Path) -> None:
    for make in (LeNet, lambda: ResNet((1, 1, 1, 1), norm="batch")):
        saved, loaded = make(), make()
        save_file(saved.state_dict(), tmp_path / "w.safetensors")
        load_model_weights(loaded, tmp_path / "w.safetensors")
        for name, value in saved.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], value), name
        assert all(p.requires_grad for p in loaded.parameters())


def test_half_precision_is_converted(tmp_path: Path) -> None:
    saved, loaded = LeNet(), LeNet()
    save_file({n: t.half() for n, t in saved.state_dict().items()}, tmp_path / "w.safetensors")
    load_model_weights(loaded, tmp_path / "w.safetensors")
    assert loaded.head.weight.dtype == torch.float32
    torch.testing.assert_close(loaded.head.weight, saved.head.weight, atol=1e-3, rtol=1e-3)


def changed(change: str) -> dict[str, Tensor]:
    weights = dict(LeNet().state_dict())
    if change == "missing":
        del weights["body.2.bias"], weights["head.bias"]
    elif change == "extra":
        weights |= {"other.weight": torch.zeros(1)}
    elif change == "shape":
        weights = dict(LeNet(classes=7).state_dict())
    else:
        weights["head.bias"] = torch.zeros(10, dtype=torch.long)
    return weights


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", "has no tensor body.2.bias, which LeNet needs"),
        ("extra", "has a tensor other.weight, which LeNet does not have"),
        (
            "shape",
            r"head.weight is torch.float32 \[7, 768\], expected torch.float32 \[10, 768\] for LeNet",
        ),
        ("type", r"head.bias is torch.int64 \[10\], expected torch.float32 \[10\]"),
    ],
)
def test_first_difference_is_named(change: str, message: str, tmp_path: Path) -> None:
    save_file(changed(change), tmp_path / "w.safetensors")
    model = LeNet()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(DataError, match=rf"^weights = '.*w\.safetensors': {message}") as caught:
        load_model_weights(model, tmp_path / "w.safetensors")
    assert "\n" not in str(caught.value)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("content", [b"", b"\x80\x02}q\x00.", b"\x08\x00\x00\x00\x00\x00\x00\x00nonsense"])
def test_other_files_are_rejected(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(DataError, match=r"w\.pt': not a safetensors file \(.+\)"):
        load_model_weights(LeNet(), tmp_path / "w.pt")
    with pytest.raises(DataError, match="no such file"):
        load_model_weights(LeNet(), tmp_path)

"""The weights of a model under audit: whole and fitting, or refused with the first misfit."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from refiner.audit.weights import load_weights
from refiner.errors import DataError
from refiner.models import LeNet, ResNet


def test_they_come_back(tmp_path: Path) -> None:
    for make in (LeNet, lambda: ResNet((1, 1, 1, 1), norm="batch")):
        given, taken = make(), make()
        save_file(given.state_dict(), tmp_path / "w.safetensors")
        load_weights(taken, tmp_path / "w.safetensors")
        for name, value in given.state_dict().items():
            assert torch.equal(taken.state_dict()[name], value), name
        assert all(p.requires_grad for p in taken.parameters())


def test_half_precision_becomes_the_models_own(tmp_path: Path) -> None:
    given, taken = LeNet(), LeNet()
    save_file({n: t.half() for n, t in given.state_dict().items()}, tmp_path / "w.safetensors")
    load_weights(taken, tmp_path / "w.safetensors")
    assert taken.head.weight.dtype == torch.float32
    torch.testing.assert_close(taken.head.weight, given.head.weight, atol=1e-3, rtol=1e-3)


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
    ("change", "told"),
    [
        ("missing", "lacks body.2.bias of LeNet"),
        ("extra", "has other.weight, which LeNet has not"),
        (
            "shape",
            r"head.weight is torch.float32 \[7, 768\], expected torch.float32 \[10, 768\] as LeNet has it",
        ),
        ("type", r"head.bias is torch.int64 \[10\], expected torch.float32 \[10\]"),
    ],
)
def test_the_first_misfit_is_named(change: str, told: str, tmp_path: Path) -> None:
    save_file(changed(change), tmp_path / "w.safetensors")
    model = LeNet()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(DataError, match=rf"^weights = '.*w\.safetensors': {told}") as caught:
        load_weights(model, tmp_path / "w.safetensors")
    assert "\n" not in str(caught.value)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("content", [b"", b"\x80\x02}q\x00.", b"\x08\x00\x00\x00\x00\x00\x00\x00nonsense"])
def test_what_is_no_such_file(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(DataError, match=r"w\.pt': not a safetensors file \(.+\)"):
        load_weights(LeNet(), tmp_path / "w.pt")
    with pytest.raises(DataError, match="no such file"):
        load_weights(LeNet(), tmp_path)

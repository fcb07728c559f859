"""Tests of loading model weights: exact match, or an error that names the first difference."""

import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from refiner.errors import DataError
from refiner.models import LeNet, ResNet
from refiner.models.model_weights import load_model_weights


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
@pytest.mark.parametrize("suffix", ["pt", "pth", "safetensors", "bin"])
def test_other_files_are_rejected(content: bytes, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"w.{suffix}"
    file.write_bytes(content)
    kind = "not a file of torch.save|is damaged" if suffix.startswith("pt") else "not a safetensors file"
    with pytest.raises(DataError, match=rf"w\.{suffix}': ({kind})") as caught:
        load_model_weights(LeNet(), file)
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="no such file"):
        load_model_weights(LeNet(), tmp_path)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("suffix", ["pt", "pth"])
def test_a_state_dict_of_pytorch_is_loaded(suffix: str, tmp_path: Path) -> None:
    saved, loaded = LeNet(), LeNet()
    torch.save(saved.state_dict(), tmp_path / f"w.{suffix}")
    load_model_weights(loaded, tmp_path / f"w.{suffix}")
    assert torch.equal(loaded.head.weight, saved.head.weight)


@pytest.mark.parametrize("container", ["state_dict", "model", "model_state_dict", None])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
def test_containers_and_prefixes_are_removed_with_a_note(
    container: str | None, prefix: str, tmp_path: Path
) -> None:
    saved, loaded = LeNet(), LeNet()
    weights: dict[str, object] = {f"{prefix}{name}": value for name, value in saved.state_dict().items()}
    content = weights if container is None else {container: weights, "epoch": 3}
    torch.save(content, tmp_path / "w.pt")
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        load_model_weights(loaded, tmp_path / "w.pt")
    assert torch.equal(loaded.head.weight, saved.head.weight)
    text = " ".join(str(note.message) for note in notes)
    assert (f"its entry {container!r}" in text) == (container is not None)
    assert (f"the prefix {prefix!r} of a wrapper is removed" in text) == bool(prefix)


def test_a_prefix_that_the_model_has_stays(tmp_path: Path) -> None:
    saved, loaded = (nn.ModuleDict({"module": nn.Linear(2, 1)}) for _ in range(2))
    torch.save(saved.state_dict(), tmp_path / "w.pt")
    load_model_weights(loaded, tmp_path / "w.pt")
    assert torch.equal(loaded["module"].weight, saved["module"].weight)


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


@pytest.mark.hostile
def test_no_code_of_a_file_runs(tmp_path: Path) -> None:
    for content in (Touch(tmp_path / "ran"), {"state_dict": Touch(tmp_path / "ran")}, LeNet()):
        torch.save(content, tmp_path / "w.pt")
        with pytest.raises(
            DataError, match=r"save the state_dict: torch\.save\(model\.state_dict\(\), FILE\)$"
        ):
            load_model_weights(LeNet(), tmp_path / "w.pt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "contains an empty dict, expected a state_dict"),
        ([torch.zeros(1)], "contains list, expected a state_dict"),
        ({"optimizer": 3}, "its entry 'optimizer' is int, expected a state_dict of tensors"),
        ({"weight": torch.zeros(1, 2).to_sparse(), "bias": torch.zeros(1)}, "weight is torch.sparse_coo "),
    ],
)
def test_other_contents_are_rejected(content: object, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(DataError, match=message):
        load_model_weights(nn.Linear(2, 1), tmp_path / "w.pt")

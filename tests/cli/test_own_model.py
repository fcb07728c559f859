"""The user's own model on the command line: code, weights, classes and normalisation in every command."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from refiner.audit import AuditResult
from refiner.cli import app
from refiner.data import load_sample, write_image_grid

CODE = """
from torch import nn

def make(classes, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * size**2, 6), nn.Tanh(), nn.Linear(6, classes))

def fixed():
    return make(4, 12)

def wide():
    return make(1000, 12)
"""
NORMALISED = ("--mean", "0.485,0.456,0.406", "--std", "0.229,0.224,0.225")


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "nets.py").write_text(CODE)
    return f"{tmp_path / 'nets.py'}:make"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twenty images of 12×12 pixels in four classes."""
    file = tmp_path_factory.mktemp("data") / "small.npz"
    pixels = torch.nn.functional.avg_pool2d(load_sample().images[:20, :, :24, :24], 2) * 255
    np.savez(file, images=pixels.byte().permute(0, 2, 3, 1).numpy(), labels=np.arange(20) % 4)
    return f"npz:{file}"


def audit(*words: str, out: Path, code: int = 0) -> Result:
    quick = ("--defense", "none", "--victims", "2", "--iterations", "2", "--out", str(out))
    return run("audit", *quick, *words, code=code)


def model_settings(file: Path) -> dict[str, Any]:
    settings = AuditResult.load(file).settings["model"]
    assert isinstance(settings, dict)
    return settings


def test_audit_of_code_with_weights_and_normalisation(model: str, data: str, tmp_path: Path) -> None:
    data, out = data.removeprefix("npz:"), tmp_path / "out"
    weights = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(432, 6), torch.nn.Tanh(), torch.nn.Linear(6, 4)
    ).state_dict()
    torch.save({"state_dict": {f"module.{n}": t for n, t in weights.items()}}, tmp_path / "w.pth")
    words = ("--data", data, "--model", model, "--weights", str(tmp_path / "w.pth"))
    notes = audit(*words, *NORMALISED, out=out).stderr
    assert "refiner: warning: " in notes and "the prefix 'module.' of a wrapper is removed" in notes
    audit(*words, out=out)
    models = {record["name"]: record for record in map(model_settings, out.glob("*.json"))}
    assert set(models) == {"Sequential on normalised inputs", "Sequential"}
    assert all(record["classes"] == 4 for record in models.values())


# As in torchvision, with fewer blocks and channels: in-place ReLU, batch norm, a factory of any keywords.
RESNET = """
from torch import nn

class BasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1:
            shortcut = nn.Conv2d(inplanes, planes, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(planes))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)

class ResNet(nn.Module):
    def __init__(self, num_classes=1000, width=4):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        planes, layers = width, []
        for stride in (1, 2, 2):
            layers.append(BasicBlock(planes, planes * stride, stride))
            planes *= stride
        self.layers = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(planes, num_classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(self.avgpool(self.layers(x)).flatten(1))

def resnet18(*, weights=None, progress=True, **kwargs):
    return ResNet(**kwargs)
"""


@pytest.mark.processes
def test_audit_of_a_model_like_those_of_torchvision(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(RESNET)
    namespace: dict[str, Any] = {}
    exec(RESNET, namespace)
    weights = ("--weights", str(tmp_path / "tuned.pth"))
    torch.save(namespace["resnet18"](num_classes=3).state_dict(), tmp_path / "tuned.pth")
    for number, image in enumerate((load_sample().images[:6, :, :30] * 255).byte()):
        folder = tmp_path / "photos" / f"class {number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        write_image_grid(folder / f"{number}.png", image[None], columns=1)
    model = ("--model", f"{tmp_path / 'nets.py'}:resnet18", "--data", str(tmp_path / "photos"))
    resized = (*model, "--size", "20", *weights, *NORMALISED)
    error = audit(*resized, out=tmp_path / "out", code=2).stderr
    assert "fc.weight is torch.float32 [3, 16], expected torch.float32 [1000, 16]" in error
    audit(*resized, "--classes", "3", "--attack", "inverting", out=tmp_path / "out")
    (file,) = (tmp_path / "out").glob("*.json")
    settings = model_settings(file)
    assert settings["name"] == "ResNet on normalised inputs" and settings["classes"] == 3
    assert settings["input"] == [3, 20, 20] and AuditResult.load(file).candidates == 6


def test_changed_code_is_another_audit(data: str, tmp_path: Path) -> None:
    file = tmp_path / "nets.py"
    for scale in (1, 2):  # quickly: compiled code of the first version would look up to date
        file.write_text(
            "from torch import nn\nclass Net(nn.Linear):\n    def __init__(self): super().__init__(432, 4)\n"
            f"    def forward(self, x): return {scale} * super().forward(x.flatten(1)).tanh()\n"
        )
        audit("--data", data.removeprefix("npz:"), "--model", f"{file}:Net", out=tmp_path / "out")
    # A factory of PyTorch's own modules has no code of its own: another activation, the same weights.
    for activation in ("Tanh", "GELU"):
        file.write_text(
            "from torch import nn\ndef make(): "
            f"return nn.Sequential(nn.Flatten(), nn.Linear(432, 4), nn.{activation}())\n"
        )
        audit("--data", data.removeprefix("npz:"), "--model", f"{file}:make", out=tmp_path / "out")
    assert len(list((tmp_path / "out").glob("none-inverting-*.json"))) == 4


def test_classes_of_the_model(model: str, data: str, tmp_path: Path) -> None:
    words = ("--data", data.removeprefix("npz:"), "--model")
    audit(*words, model, "--classes", "9", out=tmp_path / "nine")
    audit(*words, model.replace("make", "wide"), out=tmp_path / "wide")
    counts = [model_settings(next((tmp_path / name).glob("*.json")))["classes"] for name in ("nine", "wide")]
    assert counts == [9, 1000]
    for asked, code, message in (
        ("3", model, "--classes = 3: expected at least 4"),
        ("5", model.replace("make", "fixed"), "--classes = 5: the model has 4 classes"),
    ):
        error = audit(*words, code, "--classes", asked, out=tmp_path / "out", code=2).stderr
        assert message in error and error.count("\n") == 1
    fixed = model.replace("make", "fixed")
    (tmp_path / "images").mkdir()
    error = audit("--model", fixed, out=tmp_path / "out", code=2).stderr
    assert "the model fails on it" in error and error.count("\n") == 1


def test_refine_and_train_build_the_same_model(model: str, data: str, tmp_path: Path) -> None:
    own = ("--model", model, *NORMALISED, "--classes", "5")
    quick = ("--size", "28", "--limit", "3", "--iterations", "1", "--out", str(tmp_path / "refine"))
    run("refine", "--data", data.removeprefix("npz:"), *own, *quick)
    assert "nets.py:make" in (tmp_path / "refine" / "index.html").read_text(encoding="utf-8")
    short = ("--rounds", "2", "--clients", "2", "--batch", "4", "--evaluate-every", "1")
    first, second = tmp_path / "first", tmp_path / "second"
    run("train", "--data", data, *own, *short, "--out", str(first))
    weights = load_file(first / "weights.safetensors")
    assert {name: list(t.shape) for name, t in weights.items()}["3.weight"] == [5, 6]
    options = ("--weights", str(first / "weights.safetensors"), "--lr", "1e-9", "--out", str(second))
    run("train", "--data", data, *own, *short, *options)
    torch.testing.assert_close(load_file(second / "weights.safetensors"), weights)
    assert (
        "made with another mean, std"
        in run("train", "--data", data, *own[:2], *own[6:], *short, *options, "--resume", code=2).stderr
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "absent.py:make"), "--model = 'absent.py:make': no such file: absent.py"),
        (("--model", "absent.nets:make"), "--model = 'absent.nets:make': no such module: absent"),
        (("--model", "torch.nn:Absent"), "--model = 'torch.nn:Absent': torch.nn has no attribute Absent"),
        (("--model", "torch.nn:Conv2d"), "--model = 'torch.nn:Conv2d': Conv2d fails (TypeError: "),
        (("--model", "builtins:dict"), "--model = 'builtins:dict': dict returned a dict, expected"),
        (("--mean", "0.5"), "mean = (0.5,): can be given only together with std"),
        (("--mean", "a,b", "--std", "1"), "--mean = 'a,b': expected numbers separated by commas"),
        (("--mean", "0.5", "--std", "0"), "std = 0.0: expected a number in (0, 1e+06]"),
        (("--weights", "absent.pt"), "--weights = 'absent.pt': no such file"),
    ],
)
def test_errors_are_one_line_in_every_command(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    for command in ("audit", "refine", "train"):
        error = run(command, *words, "--out", str(tmp_path / "out"), code=2).stderr
        assert error.startswith("refiner: ") and error.count("\n") == 1
        assert message in error


def test_flower_takes_models_by_name_only(model: str, tmp_path: Path) -> None:
    for words, message in (
        (
            ("--model", model),
            f"--model = {model!r}: code of your own can be given only with the engine local",
        ),
        (("--weights", "w.pt"), "--weights = 'w.pt': can be given only with the engine local"),
    ):
        error = run("train", "--engine", "flower", *words, "--out", str(tmp_path / "out"), code=2).stderr
        assert error == f"refiner: {message}\n"

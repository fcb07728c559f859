"""Models of the user's own code: what the factory gets, and one-line errors."""

import sys
from pathlib import Path

import pytest
import torch

from refiner.errors import DataError, RefinerError
from refiner.models import build_model, make_model
from refiner.models.user_model import make_user_model

CODE = """
import torch
from torch import nn
from helper_beside_it import WIDTH

class Net(nn.Sequential):
    def __init__(self, num_classes=5, image_size=8):
        pixels = 3 * image_size**2
        super().__init__(nn.Flatten(), nn.Linear(pixels, WIDTH), nn.Tanh(), nn.Linear(WIDTH, num_classes))

    @classmethod
    def small(cls, **settings):
        return cls(**settings)

def plain():
    return Net()

def by_shape(*, input_shape, classes):
    from lazy_helper import CHANNELS
    assert input_shape[0] == CHANNELS
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0] * input_shape[1] * input_shape[2], classes))

def broken():
    raise KeyError("two\\nlines")

def leaves():
    raise SystemExit(3)

def nothing():
    pass

def weights():
    return Net().state_dict()

ready, number = Net(), 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my nets.py"
    path.write_text(CODE)
    (tmp_path / "helper_beside_it.py").write_text("WIDTH = 4\n")
    (tmp_path / "lazy_helper.py").write_text("CHANNELS = 3\n")
    return path


@pytest.mark.parametrize(
    ("name", "side", "classes"), [("Net", 16, 7), ("plain", 8, 5), ("by_shape", 16, 7), ("Net.small", 8, 5)]
)
def test_a_factory_gets_the_arguments_that_it_names(name: str, side: int, classes: int, file: Path) -> None:
    before = list(sys.path)
    model = make_user_model(f"{file}:{name}", 7, (3, 16, 16))
    assert model(torch.rand(2, 3, side, side)).shape == (2, classes)
    assert sys.path == before


def test_a_factory_of_any_keyword_gets_chosen_classes_only(tmp_path: Path) -> None:
    """Those of torchvision have 1,000 classes unless they get another number as `num_classes`."""
    (tmp_path / "any.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Linear):\n    def __init__(self, num_classes=1000): super().__init__(4, num_classes)\n"
        "def make(*, weights=None, **kwargs): return Net(**kwargs)\n"
    )
    for given, classes in ((False, 1000), (True, 7)):
        model = build_model(f"{tmp_path / 'any.py'}:make", 7, (1, 2, 2), classes_given=given)
        assert isinstance(model, torch.nn.Linear) and model.out_features == classes


def test_a_module_in_the_current_folder_is_imported(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file.rename(tmp_path / "nets_of_this_test.py")
    assert build_model("nets_of_this_test:Net", 7, (3, 16, 16))(torch.rand(2, 3, 16, 16)).shape == (2, 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{file}x.py:Net", "no such file: {file}x.py"),
        ("no_such_package.nets:Net", "no such module: no_such_package"),
        ("torch.nn.no_such_module:Net", "torch.nn.no_such_module"),
        ("{file}:", "expected package.module:factory or path/to/file.py:factory"),
        (":Net", "expected package.module:factory or path/to/file.py:factory"),
        ("{file}:Nett", "{file} has no attribute Nett"),
        ("{file}:ready", "ready is a Net, expected a function or class that makes a model"),
        ("{file}:number", "number is a int, expected a function or class that makes a model"),
        ("{file}:broken", "broken fails (KeyError: 'two\\nlines')"),
        ("{file}:leaves", "leaves fails (SystemExit: 3)"),
        ("{file}:nothing", "nothing returned None, expected a torch.nn.Module"),
        ("{file}:weights", "weights returned a OrderedDict, expected a torch.nn.Module"),
        ("torch.nn:Linear", "Linear fails (TypeError: "),
    ],
)
def test_errors_are_one_line(text: str, message: str, file: Path) -> None:
    with pytest.raises(DataError) as caught:
        make_user_model(text.format(file=file), 7, (3, 16, 16))
    shown = str(caught.value)
    assert shown.startswith("model = ") and "\n" not in shown
    assert message.format(file=file) in shown


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("def f(:\n", "SyntaxError: "),
        ("raise SystemExit\n", "SystemExit:"),
    ],
)
def test_code_that_can_not_be_imported(content: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(content)
    with pytest.raises(DataError, match=rf"bad\.py can't be imported \({reason}"):
        make_user_model(f"{tmp_path / 'bad.py'}:f", 7, (3, 16, 16))


@pytest.mark.hostile
def test_a_name_from_another_machine_never_imports_code(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\ndef make(): pass\n")
    for settings in (":make", ":make=1"):
        with pytest.raises(RefinerError, match=r"expected (one of 'lenet'|NAME:setting=value)"):
            make_model(f"{tmp_path / 'evil.py'}{settings}")
    assert not (tmp_path / "ran").exists()
    with pytest.raises(DataError, match="make returned None"):
        build_model(f"{tmp_path / 'evil.py'}:make")
    assert (tmp_path / "ran").exists()

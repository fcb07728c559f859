"""Recalibration of batch-norm running statistics."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from refiner.errors import DataError, SettingError, UnsupportedModelError
from refiner.models import LeNet, recalibrate, resnet10


def copy_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def is_unchanged(model: nn.Module, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_statistics_equal_the_mean_and_variance_of_the_batches() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3)).double()
    model(torch.rand(5, 3, 4, 4, dtype=torch.float64))  # old statistics, to be replaced
    batches = [torch.randn(size, 3, 4, 4, dtype=torch.float64) * 3 + 1 for size in (4, 4, 2)]
    recalibrate(model, batches)
    mean = torch.stack([x.mean((0, 2, 3)) for x in batches]).mean(0)
    var = torch.stack([x.var((0, 2, 3)) for x in batches]).mean(0)
    torch.testing.assert_close(model[0].running_mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(model[0].running_var, var, rtol=1e-12, atol=1e-12)
    assert int(model[0].num_batches_tracked) == 3


def test_deeper_layers_see_batch_normalised_inputs() -> None:
    model = resnet10(norm="batch", input_shape=(3, 8, 8)).double()
    x = torch.rand(6, 3, 8, 8, dtype=torch.float64)
    recalibrate(model, [x])
    inner = model.stages[0][0].conv1(model.train().stem(x))
    torch.testing.assert_close(model.stages[0][0].norm1.running_mean, inner.mean((0, 2, 3)))
    torch.testing.assert_close(model.stages[0][0].norm1.running_var, inner.var((0, 2, 3)))


def test_momentum_gives_exponential_averages() -> None:
    model, x = nn.Sequential(nn.BatchNorm2d(3)), torch.rand(4, 3, 4, 4)
    recalibrate(model, [x], momentum=0.25)
    torch.testing.assert_close(model[0].running_mean, 0.25 * x.mean((0, 2, 3)))


def test_parameters_modes_and_momentum_do_not_change() -> None:
    model = resnet10(norm="batch", input_shape=(3, 8, 8)).train()
    model.stages[1].eval()
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.named_parameters()}
    recalibrate(model, iter([torch.rand(4, 3, 8, 8)]))
    assert modes == [module.training for module in model.modules()]
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
    assert all(value.grad is None for value in model.parameters())
    assert {m.momentum for m in model.modules() if isinstance(m, nn.BatchNorm2d)} == {0.1}


def test_dropout_does_not_change_the_statistics() -> None:
    model, x = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm2d(3)).train(), torch.rand(4, 3, 4, 4)
    recalibrate(model, [x])
    torch.testing.assert_close(model[1].running_mean, x.mean((0, 2, 3)))
    assert model[0].training


def failing() -> Iterator[Tensor]:
    yield torch.rand(4, 3, 8, 8)
    raise OSError("the disk is gone")


@pytest.mark.parametrize(
    ("batches", "error"),
    [
        ([], DataError),
        ([torch.full((2, 3, 8, 8), torch.nan)], DataError),
        ([(torch.rand(4, 3, 8, 8), torch.zeros(4))], DataError),
        ([torch.rand(4, 3, 8, 8), torch.rand(4, 3, 9, 9)], DataError),
        (failing(), OSError),
    ],
)
def test_a_failure_restores_the_old_statistics(batches: list[Tensor], error: type[Exception]) -> None:
    model = resnet10(norm="batch", input_shape=(3, 8, 8))
    before = copy_state(model)
    with pytest.raises(error):
        recalibrate(model, batches)
    assert is_unchanged(model, before)
    assert all(module.training for module in model.modules())
    assert {m.momentum for m in model.modules() if isinstance(m, nn.BatchNorm2d)} == {0.1}


@pytest.mark.parametrize(
    "model", [LeNet(), resnet10(), nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False))]
)
def test_a_model_without_running_statistics_is_unsupported(model: nn.Module) -> None:
    with pytest.raises(UnsupportedModelError, match="expected a batch-norm layer with running statistics"):
        recalibrate(model, [torch.rand(4, 3, 32, 32)])


@pytest.mark.parametrize("momentum", [0, 1.5, "0.1"])
def test_a_wrong_momentum_is_an_error(momentum: float) -> None:
    with pytest.raises(SettingError, match=r"^momentum = .*: expected a number in \(0, 1\]$"):
        recalibrate(resnet10(norm="batch"), [], momentum=momentum)


def test_a_wrong_model_or_wrong_batches_are_a_one_line_error() -> None:
    wrong: Any
    for wrong, shown in (("x", "str"), (None, "NoneType"), (nn.BatchNorm2d, "type")):
        with pytest.raises(DataError) as caught:
            recalibrate(wrong, [torch.rand(4, 3, 8, 8)])
        assert str(caught.value) == f"model = {shown}: expected a torch.nn.Module"
    for wrong, shown in ((5, "int"), (None, "NoneType")):
        with pytest.raises(DataError) as caught:
            recalibrate(nn.Sequential(nn.BatchNorm2d(3)), wrong)
        assert str(caught.value) == f"batches = {shown}: expected tensors of inputs, as a list"

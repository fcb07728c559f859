"""Models as users have them: wrapped, with outputs around their scores, with code that can't be batched."""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import HashStore
from torch.utils.checkpoint import checkpoint

import refiner
from refiner.core.task import Task
from refiner.errors import DataError, UnsupportedModelError

LOSS = nn.functional.cross_entropy


class Net(nn.Module):
    """With an in-place activation that does no harm."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.relu, self.head = nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3)

    def features(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.body(x))
        return out

    def forward(self, x: Tensor) -> object:
        return self.head(self.features(x))


NAMES = ("body.weight", "body.bias", "head.weight", "head.bias")


@pytest.fixture
def process_group() -> object:
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield None
    torch.distributed.destroy_process_group()


def check_wrapped(wrapped: nn.Module, model: nn.Module, note: str) -> None:
    device = next(wrapped.parameters()).device  # DataParallel moves a model to the GPU where there is one
    x, y = torch.rand(2, 4, device=device), torch.tensor([0, 2], device=device)
    with pytest.warns(UserWarning, match=note):
        task = Task(wrapped, example=x)
    assert task.names == NAMES and task.model is model
    with pytest.warns(UserWarning, match=note):
        update = refiner.backward(wrapped, LOSS, x, y, refiner.NoDefense()).update
    assert tuple(update.tensors) == NAMES
    expected = torch.autograd.grad(LOSS(model(x), y), list(model.parameters()))
    for gradient, parameter in zip(expected, wrapped.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient)


def test_distributed_data_parallel_is_unwrapped(process_group: object) -> None:
    model = Net()
    wrapped = nn.parallel.DistributedDataParallel(model)
    check_wrapped(wrapped, model, "inside of DistributedDataParallel; gradients are not averaged")


def compiled(model: nn.Module) -> nn.Module:
    wrapped: object = torch.compile(model)
    assert isinstance(wrapped, nn.Module)
    return wrapped


@pytest.mark.processes
def test_data_parallel_and_compiled_models_are_unwrapped() -> None:
    model = Net()
    check_wrapped(nn.DataParallel(model), model, "inside of DataParallel$")
    model = Net()
    check_wrapped(compiled(model), model, r"inside of torch\.compile$")
    model = Net()
    check_wrapped(
        nn.DataParallel(compiled(model)),
        model,
        r"inside of DataParallel and torch\.compile$",
    )


def test_a_plain_model_gives_no_note() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Task(Net(), example=torch.rand(2, 4))
    assert not caught


@dataclass
class Output:
    logits: Tensor | None
    loss: None = None


class Pair(NamedTuple):
    hidden: Tensor
    logits: Tensor


class WithOutput(Net):
    def __init__(self, make: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> object:
        return self.make(self.head(self.features(x)))


@pytest.mark.parametrize("make", [Output, lambda scores: Pair(scores + 1, scores)])
def test_logits_of_an_output_are_the_scores(make: Callable[[Tensor], object]) -> None:
    model, plain = WithOutput(make), Net()
    plain.load_state_dict(model.state_dict())
    x, y = torch.rand(1, 2, 4), torch.tensor([[0, 2]])
    task, reference = (Task(network, example=x[0]) for network in (model, plain))
    assert task.names == reference.names and task.classes == 3
    one, other = (refiner.NoDefense().protect(t, x, y).flat() for t in (task, reference))
    torch.testing.assert_close(one, other)
    assert isinstance(model(x[0]), Output | Pair)


@pytest.mark.parametrize("make", [lambda s: {"scores": s}, lambda s: Output(None), lambda s: (s, s)])
def test_other_outputs_are_an_error(make: Callable[[Tensor], object]) -> None:
    with pytest.raises(DataError, match=r"^model output: expected one tensor of finite scores"):
        Task(WithOutput(make), example=torch.rand(2, 4))


class Branches(Net):
    def forward(self, x: Tensor) -> object:
        z = self.features(x)
        if z.sum() > 0:
            z = 2 * z
        return self.head(z)


class ReadsItem(Net):
    def forward(self, x: Tensor) -> object:
        z = self.features(x)
        return self.head(z) * z.detach().mean().item()


class ReadsList(Net):
    def forward(self, x: Tensor) -> object:
        z = self.features(x)
        return self.head(z) * z.detach().tolist()[0][0]


class Masks(Net):
    def forward(self, x: Tensor) -> object:
        z = self.features(x)
        return self.head(z) + z[z > 0].sum()


class Checkpoints(Net):
    reentrant = False

    def forward(self, x: Tensor) -> object:
        return self.head(checkpoint(self.features, x, use_reentrant=self.reentrant))


class OldCheckpoints(Checkpoints):
    reentrant = True


class Draws(Net):
    def forward(self, x: Tensor) -> object:
        return self.head(self.features(x) + torch.rand(6))


VALUES = r"its forward pass depends on the values of a tensor, by an if, \.item\(\), float\(\) or the like"
WHERE = "compute all cases and choose with torch.where, and keep numbers in tensors"
CHECKPOINT = r"its forward pass uses activation checkpointing \(torch\.utils\.checkpoint\)"


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("model", "reason", "line", "remedy"),
    [
        (Branches, VALUES, "if z.sum() > 0:", WHERE),
        (ReadsItem, VALUES, "return self.head(z) * z.detach().mean().item()", WHERE),
        (ReadsList, VALUES, "return self.head(z) * z.detach().tolist()[0][0]", WHERE),
        (
            Masks,
            "its forward pass selects by the values of a tensor, so that a shape depends on them",
            "return self.head(z) + z[z > 0].sum()",
            "use torch.where, or multiply by the mask",
        ),
        (Checkpoints, CHECKPOINT, "", "turn checkpointing off"),
        (OldCheckpoints, CHECKPOINT, "", "turn checkpointing off"),
        (
            Draws,
            "its forward pass draws random numbers in evaluation mode",
            "return self.head(self.features(x) + torch.rand(6))",
            "draw them only if self.training",
        ),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_code_that_fails_is_named_with_its_line_and_remedy(
    model: type[Net], reason: str, line: str, remedy: str, nested: bool
) -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), model()) if nested else model()
    with pytest.raises(UnsupportedModelError) as caught:
        Task(network, example=torch.rand(2, 4))
    owner = f"{'2' if nested else 'the model'} ({model.__name__})"
    where = (
        rf" \(test_own_models\.py, line \d+: {re.escape(line)}" if line else r" \(test_own_models\.py, line "
    )
    assert re.fullmatch(rf"{re.escape(owner)}: {reason}{where}.*\); {remedy}", str(caught.value)), (
        caught.value
    )


def test_autocast_is_refused_in_a_sentence() -> None:
    x, y, model = torch.rand(2, 4), torch.tensor([0, 2]), Net()
    message = (
        r"^torch\.autocast is on for cpu: refiner does not work under it, since it would round gradients "
        r"to half precision; call refiner outside of the autocast block$"
    )
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(DataError, match=message):
            Task(model, example=x)
        with pytest.raises(DataError, match=message):
            refiner.backward(model, LOSS, x, y, refiner.NoDefense())
    assert all(p.grad is None for p in model.parameters())
    refiner.backward(model, LOSS, x, y, refiner.NoDefense())
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(DataError, match=message):
        refiner.backward(model, LOSS, x, y, refiner.NoDefense())


class AutocastInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores: Tensor = self.body(x)
        return scores


def test_autocast_inside_of_a_model_is_refused_in_a_sentence() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        Task(AutocastInside(), example=torch.rand(2, 4))
    assert str(caught.value) == (
        "body (Linear): runs under torch.autocast, which the model switches on in its forward pass; "
        "refiner runs models in full precision: remove it, or set a trainer's bf16 and fp16 to False"
    )

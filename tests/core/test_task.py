"""A task finds the layers in forward order, leaves the model unchanged, and names unsupported modules."""

import copy
import re
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import cross_entropy

from refiner.core.gradients import gradients, gradients_jvp
from refiner.core.task import Layer, Task
from refiner.defenses.none import NoDefense
from refiner.errors import DataError, UnsupportedModelError
from refiner.models import ViT

REMEDY = "replace it by operations that have second derivatives and keep no state"


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


class Shuffled(nn.Module):
    """Its modules are registered from the last to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.middle = nn.Sequential(nn.Tanh(), nn.Linear(5, 6))
        self.first = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.first(x)).tanh())


class Attending(nn.Module):
    """Registered last to first too, with an attention whose `out_proj` is never called as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.embed = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x)
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return self.head((tokens + mixed).mean(1))


class Busy(nn.Module):
    """Everything that a training pass would change: batch norm, dropout, buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.norm1d = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(self.norm(self.conv(x)).tanh()).mean((2, 3))
        return self.head(self.norm1d(hidden) * self.scale)


def around(module: nn.Module) -> nn.Module:
    """`module` as number 2 of a small model."""
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), module, nn.Linear(6, 3))


def test_layers_are_in_the_order_in_which_they_run() -> None:
    task = Task(Shuffled(), example=torch.randn(2, 4))
    assert task.layers == (
        Layer("first", ("first.weight", "first.bias")),
        Layer("middle.1", ("middle.1.weight", "middle.1.bias")),
        Layer("head", ("head.weight", "head.bias")),
    )
    assert task.names == tuple(name for layer in task.layers for name in layer.parameters)
    assert list(task.parameters()) == list(task.names)
    assert task.size == sum(p.numel() for p in task.model.parameters())
    assert {name: tuple(shape) for name, shape in task.shapes.items()} == {
        name: tuple(p.shape) for name, p in task.model.named_parameters()
    }
    assert (task.classes, task.input_shape) == (3, (4,))


def test_parameters_of_the_root_module_come_first() -> None:
    task = Task(ViT(10, (3, 8, 8), width=16, depth=1, heads=2), example=torch.rand(2, 3, 8, 8))
    assert task.layers[0] == Layer("", ("token", "position"))
    assert [layer.name for layer in task.layers[1:]] == [
        "embed",
        "blocks.0.norm1",
        "blocks.0.attention.qkv",
        "blocks.0.attention.out",
        "blocks.0.norm2",
        "blocks.0.mlp.0",
        "blocks.0.mlp.2",
        "norm",
        "head",
    ]


def test_a_module_that_is_never_called_ranks_with_its_parent() -> None:
    task = Task(Attending(), example=torch.randn(2, 5, 4))
    assert [layer.name for layer in task.layers] == ["embed", "attention", "attention.out_proj", "head"]


def test_a_frozen_parameter_is_not_listed_and_still_used() -> None:
    model = Shuffled()
    model.first.weight.requires_grad_(False)
    model.middle.requires_grad_(False)
    task = Task(model, example=torch.randn(2, 4))
    assert task.names == ("first.bias", "head.weight", "head.bias")
    x, y = torch.randn(2, 3, 4), torch.zeros(2, 3, dtype=torch.long)
    before = gradients(task, x, y)
    assert tuple(before) == task.names
    with torch.no_grad():
        model.middle[1].weight.mul_(2)
    assert not torch.equal(gradients(task, x, y)["head.weight"], before["head.weight"])


def test_inference_mode_is_an_error() -> None:
    x = torch.randn(2, 4)
    with torch.inference_mode():
        inner = Shuffled()
        with pytest.raises(DataError, match="inference mode"):
            Task(Shuffled(), example=x)
    with pytest.raises(DataError, match="inference mode"):
        Task(inner, example=x)


def test_tied_weights_count_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3))
    model[2].weight = model[0].weight
    task = Task(model, example=torch.randn(2, 4))
    assert task.names == ("0.weight", "0.bias", "2.bias", "3.weight", "3.bias")
    x = torch.randn(5, 4)
    torch.testing.assert_close(task.scores(task.parameters(), x), model(x))


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_not_changed(training: bool) -> None:
    model = Busy().train(training)
    model.norm.eval()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    modes = [module.training for module in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict(keep_vars=True).items()}
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    identities = {name: id(value) for name, value in model.state_dict(keep_vars=True).items()}

    x, y = torch.rand(3, 4, 2, 5, 5), torch.randint(3, (3, 4))
    task = Task(model, example=x[0])
    gradients(task, x.requires_grad_(), y)
    gradients(task, x[:1], y[:1])
    gradients_jvp(task, x.detach(), y, torch.randn(x.shape))
    NoDefense().protect(task, x.detach(), y)

    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict(keep_vars=True).items())
    assert all(p.grad is not None and torch.equal(p.grad, grads[n]) for n, p in model.named_parameters())
    assert {name: id(value) for name, value in model.state_dict(keep_vars=True).items()} == identities
    assert all(p.requires_grad for p in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("training", [True, False])
def test_each_victim_uses_its_own_batch_statistics_and_no_dropout(training: bool) -> None:
    model = Busy().double().train(training)
    x, y = double(3, 4, 2, 5, 5) * torch.tensor([1.0, 3.0, 0.2]).view(3, 1, 1, 1, 1), torch.randint(3, (3, 4))
    batched = gradients(Task(model, example=x[0]), x, y)
    for victim in range(3):
        alone = copy.deepcopy(model).train()
        alone.drop.eval()
        cross_entropy(alone(x[victim]), y[victim]).backward()
        for name, parameter in alone.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(batched[name][victim], parameter.grad, rtol=1e-9, atol=1e-12)


def test_the_loss_is_the_same_at_every_call() -> None:
    model = Busy().train()
    x, y = torch.rand(4, 2, 5, 5), torch.randint(3, (4,))
    task = Task(model, example=x)
    first = task.loss(task.parameters(), x, y)
    assert torch.equal(task.loss(task.parameters(), x, y), first)
    doubled = {name: 2 * value for name, value in task.parameters().items()}
    assert not torch.equal(task.loss(doubled, x, y), first)


def test_a_custom_loss_is_used() -> None:
    model, x, y = nn.Linear(4, 3).double(), double(2, 4), torch.tensor([0, 1])
    weight = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    task = Task(model, x, loss=lambda scores, labels: cross_entropy(scores, labels, weight))
    torch.testing.assert_close(task.loss(task.parameters(), x, y), cross_entropy(model(x), y, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_loss_that_accepts_one_precision_only(dtype: torch.dtype) -> None:
    """Validation prefers float64, and must do without it here."""
    weight = torch.ones(3, dtype=dtype)
    task = Task(
        nn.Linear(4, 3, dtype=dtype), torch.randn(2, 4, dtype=dtype), lambda s, y: cross_entropy(s, y, weight)
    )
    assert task.classes == 3


def test_parameters_and_buffers_are_read_from_the_model_at_every_use() -> None:
    model = Busy()
    x, y = torch.rand(4, 2, 5, 5), torch.randint(3, (4,))
    task = Task(model, example=x)
    before = {name: value.clone() for name, value in task.parameters().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cross_entropy(model(x), y).backward()
    optimizer.step()
    after = task.parameters()
    assert not torch.equal(after["head.weight"], before["head.weight"])
    assert all(torch.equal(after[name], p) for name, p in model.named_parameters())
    assert not any(value.requires_grad for value in after.values())
    loss = task.loss(after, x, y)
    model.scale.fill_(0.5)
    assert not torch.equal(task.loss(after, x, y), loss)
    model.load_state_dict({name: torch.zeros_like(value) for name, value in model.state_dict().items()})
    assert all(not value.any() for value in task.parameters().values())


class OnceSine(torch.autograd.Function):
    """Can be batched over victims, but not differentiated twice."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return grad * x.cos()


class OldSine(torch.autograd.Function):
    """Without `setup_context`, so that it can't be batched over victims."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return grad * x.cos()


class Applied(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.function.apply(x)
        return out


class Counting(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            self.calls.add_(1)
        else:
            self.calls = self.calls + 1
        return 2 * x


class OwnLayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


WRONG = "its second derivative is wrong when victims are batched"
NOT_DIFFERENTIABLE = "its gradient does not depend on the input in a way that can be differentiated"

UNSUPPORTED: list[tuple[Callable[[], nn.Module], str]] = [
    (lambda: around(Applied(OnceSine)), rf"2 \(Applied\): {NOT_DIFFERENTIABLE}; {REMEDY}"),
    (lambda: around(Applied(OldSine)), rf"2 \(Applied\): .*setup_context.*; {REMEDY}"),
    (lambda: around(Counting(True)), rf"2 \(Counting\): changes its state '2.calls' at every pass; {REMEDY}"),
    (
        lambda: around(Counting(False)),
        rf"2 \(Counting\): changes its state '2.calls' at every pass; {REMEDY}",
    ),
    (lambda: around(nn.ReLU(inplace=True)), r"2 \(ReLU\): .*in-place.*; make it with inplace=False"),
    (
        lambda: around(nn.Sequential(nn.Tanh(), nn.ReLU(True))),
        r"2.1 \(ReLU\): .*; make it with inplace=False",
    ),
    (lambda: around(OwnLayerNorm(6)), rf"2 \(OwnLayerNorm\): {WRONG}; {REMEDY}"),
    (lambda: around(nn.Sequential(OwnLayerNorm(6))), rf"2.0 \(OwnLayerNorm\): {WRONG}; {REMEDY}"),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("make", "message"), UNSUPPORTED)
def test_an_unsupported_module_is_named_with_reason_and_remedy(
    make: Callable[[], nn.Module], message: str, seed: int
) -> None:
    torch.manual_seed(seed)
    with pytest.raises(UnsupportedModelError) as caught:
        Task(make(), example=torch.randn(2, 4))
    assert re.fullmatch(message, str(caught.value)), str(caught.value)


class Recurrent(nn.Module):
    """Reads a sequence with PyTorch's recurrent network, or with the cell that is the remedy."""

    def __init__(self, looped: bool) -> None:
        super().__init__()
        self.looped = looped
        self.cells: nn.Module = nn.GRUCell(4, 5) if looped else nn.GRU(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        if not self.looped:
            return self.head(self.cells(x)[0][:, -1])
        hidden = x.new_zeros(len(x), 5)
        for step in x.unbind(1):
            hidden = self.cells(step, hidden)
        return self.head(hidden)


def test_a_recurrent_network_is_unsupported_and_its_remedy_works() -> None:
    remedy = "use an nn.RNNCell, nn.GRUCell or nn.LSTMCell in a loop, or attention"
    with pytest.raises(UnsupportedModelError, match=rf"^cells \(GRU\): .*; {remedy}$"):
        Task(Recurrent(looped=False), example=torch.randn(2, 5, 4))
    assert Task(Recurrent(looped=True), example=torch.randn(2, 5, 4)).classes == 3


def test_the_error_names_a_specific_remedy() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.SyncBatchNorm(4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3))
    with pytest.raises(UnsupportedModelError) as caught:
        Task(model, example=torch.rand(2, 2, 5, 5))
    assert str(caught.value) == f"1 (SyncBatchNorm): {WRONG}; use nn.BatchNorm2d or nn.GroupNorm"


def test_a_tied_weight_does_not_hide_the_unsupported_module() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), OwnLayerNorm(6)), nn.Linear(6, 3))
    model[1][0].weight = model[0].weight
    with pytest.raises(UnsupportedModelError, match=rf"^1\.1 \(OwnLayerNorm\): {WRONG}; "):
        Task(model, example=torch.randn(2, 6))


@pytest.mark.parametrize(
    "module",
    [nn.LayerNorm(6), nn.BatchNorm1d(6), nn.RMSNorm(6), nn.Dropout(), nn.ReLU(), nn.Softmax(-1), nn.PReLU()],
)
def test_supported_modules_are_accepted(module: nn.Module) -> None:
    assert Task(around(module), example=torch.randn(2, 4)).classes == 3


def test_an_in_place_relu_is_accepted_where_it_does_no_harm() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Linear(6, 3))
    assert Task(model, example=torch.randn(2, 4)).classes == 3


class ChangedOutput(nn.Module):
    """A linear layer whose scores are passed through a function."""

    def __init__(self, change: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.change = change

    def forward(self, x: Tensor) -> object:
        return self.change(self.linear(x))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("lenet", r"model = str: expected a torch\.nn\.Module"),
        (nn.Linear, r"model = type: expected a torch\.nn\.Module"),
        (nn.Linear(4, 3).requires_grad_(False), r"model: no parameter requires a gradient"),
        (nn.Tanh(), r"model: no parameter requires a gradient"),
        (nn.Linear(5, 3), r"example = \(2, 4\): the model fails on it \(mat1 and mat2 .*\)"),
        (nn.Linear(4, 3).double(), r"example = \(2, 4\): the model fails on it \(.*dtype.*\)"),
        (ChangedOutput(lambda s: s[:, 0]), r"model output = \(2,\): expected scores \[B, classes\]"),
        (
            ChangedOutput(lambda s: s[:, :, None]),
            r"model output = \(2, 3, 1\): expected scores \[B, classes\]",
        ),
        (ChangedOutput(lambda s: (s, s)), r"model output: expected one tensor of finite scores"),
        (ChangedOutput(lambda s: s.log() - torch.inf), r"model output: expected one tensor of finite scores"),
        (around(nn.BatchNorm1d(7)), r"example = \(2, 4\): the model fails on it \(.*size.*\)"),
    ],
)
def test_a_wrong_model_is_a_one_line_error(model: nn.Module, message: str) -> None:
    with pytest.raises(DataError) as caught:
        Task(model, example=torch.randn(2, 4))
    assert re.fullmatch(message, str(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    ("example", "shown"),
    [
        (None, "NoneType"),
        ([[0.0]], "list"),
        (torch.zeros(2, 4, dtype=torch.long), "torch.int64 [2, 4]"),
        (torch.zeros(4), "torch.float32 [4]"),
        (torch.zeros(0, 4), "torch.float32 [0, 4]"),
        (torch.ones(2, 4).to_sparse(), "torch.sparse_coo torch.float32 [2, 4]"),
        (torch.ones(2, 4).to_mkldnn(), "torch._mkldnn torch.float32 [2, 4]"),
    ],
)
def test_a_wrong_example_is_a_one_line_error(example: Tensor, shown: str) -> None:
    with pytest.raises(DataError) as caught:
        Task(nn.Linear(4, 3), example=example)
    expected = "a dense batch [B, *input] of floating-point inputs, B ≥ 1"
    assert str(caught.value) == f"example = {shown}: expected {expected}"
    assert (caught.value.field, caught.value.expected) == ("example", expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_example_is_an_error() -> None:
    with pytest.raises(DataError, match=r"^example = nested torch.float32: expected a dense batch \["):
        Task(nn.Linear(4, 3), example=torch.nested.nested_tensor([torch.ones(4)]))


def test_a_model_without_values_or_an_example_elsewhere_is_an_error() -> None:
    example, without_values = torch.randn(2, 4), torch.empty(2, 4, device="meta")
    for batch in (example, without_values):
        with pytest.raises(DataError, match=r"^model: weight on meta: expected a device that holds values$"):
            Task(nn.Linear(4, 3).to("meta"), example=batch)
    with pytest.raises(DataError, match=r"^example on meta: expected the model's device, cpu$"):
        Task(nn.Linear(4, 3), example=without_values)
    buffered = around(nn.BatchNorm1d(6))
    buffered.register_buffer("offset", torch.empty(1, device="meta"), persistent=False)
    with pytest.raises(DataError, match=r"^model: offset on meta: expected a device that holds values$"):
        Task(buffered, example=example)


def test_one_value_per_channel_is_too_few_for_batch_norm() -> None:
    with pytest.raises(
        DataError, match=r"^batch norm: 1 value per channel: expected at least 2; use larger batches$"
    ):
        Task(around(nn.BatchNorm1d(6)), example=torch.randn(1, 4))


class Shifted(nn.Module):
    """Adds a buffer, or a new float32 tensor."""

    def __init__(self, buffer: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("shift", torch.ones(4) if buffer else None)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x + (torch.ones(4) if self.shift is None else self.shift))


def test_supports_bfloat16_is_true_for_models_without_other_float_tensors() -> None:
    images, rows = torch.rand(2, 3, 8, 8), torch.rand(2, 4)
    normed = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    assert Task(normed, example=images).supports_bfloat16
    assert Task(nn.Linear(4, 3), example=rows).supports_bfloat16
    assert not Task(Shifted(buffer=True), example=rows).supports_bfloat16
    assert not Task(Shifted(buffer=False), example=rows).supports_bfloat16


def test_a_lazy_layer_is_an_error() -> None:
    with pytest.raises(DataError, match=r"model: 0.weight has no shape yet; run the model once before"):
        Task(nn.Sequential(nn.LazyLinear(3)), example=torch.rand(2, 4))


def test_extra_state_of_a_module_is_ignored() -> None:
    class Counting(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"calls": 3}

    task = Task(Counting(4, 3), example=torch.rand(2, 4))
    assert task.names == ("weight", "bias")


class Locked(nn.Linear):
    """Has an attribute that can't be copied."""

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.lock = threading.Lock()


class KeepsOutput(nn.Linear):
    """Keeps its latest output."""

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.last = self(torch.zeros(1, 6))

    def forward(self, x: Tensor) -> Tensor:
        self.last = super().forward(x)
        return self.last


COMPILED = "it is compiled by torch.jit); give the plain module that it was made from"
COMPUTED = (
    r"the model can't be copied \(its '{}' is a computed tensor, no parameter\); keep none in the module; "
    "for nn.utils.weight_norm use nn.utils.parametrizations.weight_norm"
)
NOT_COPYABLE: list[tuple[Callable[[], nn.Module], str]] = [
    (
        lambda: torch.jit.script(around(nn.Tanh())),
        rf"the model \(.*Script.*\): the model can't be copied \({re.escape(COMPILED)}",
    ),
    (
        lambda: torch.jit.trace(around(nn.Tanh()), torch.randn(2, 4)),
        rf"the model \(.*\): the model can't be copied \({re.escape(COMPILED)}",
    ),
    (
        lambda: around(torch.jit.script(nn.Linear(6, 6))),
        rf"2 \(.*Script.*\): the model can't be copied \({re.escape(COMPILED)}",
    ),
    (lambda: around(nn.utils.weight_norm(nn.Linear(6, 6))), rf"2 \(Linear\): {COMPUTED.format('weight')}"),
    (lambda: around(KeepsOutput()), rf"2 \(KeepsOutput\): {COMPUTED.format('last')}"),
    (
        lambda: around(Locked()),
        r"2 \(Locked\): the model can't be copied \(its 'lock': TypeError: cannot pickle .*lock.*\); "
        "keep it outside of the model",
    ),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(("make", "message"), NOT_COPYABLE)
def test_a_model_that_can_not_be_copied_is_a_one_line_error(
    make: Callable[[], nn.Module], message: str
) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        Task(make(), example=torch.randn(2, 4))
    assert re.fullmatch(message, str(caught.value)), str(caught.value)


def raising(error: Exception) -> Callable[..., Tensor]:
    def call(*_: Tensor) -> Tensor:
        raise error

    return call


RAISED: list[tuple[Exception, str]] = [
    (ValueError("expected 4D input\nand more"), "ValueError: expected 4D input"),
    (TypeError("no such thing. And more."), "TypeError: no such thing"),
    (AttributeError("no 'logits'"), "AttributeError: no 'logits'"),
    (KeyError("pixels"), "KeyError: 'pixels'"),
    (AssertionError(), "AssertionError"),
    (RuntimeError("size\nand more"), "size"),
    (RuntimeError("x" * 500), "x" * 197 + "..."),
    (OSError(2, "No such file"), r"FileNotFoundError: [Errno 2] No such file"),
]


@pytest.mark.parametrize(("error", "summary"), RAISED)
def test_a_model_that_raises_is_a_one_line_error(error: Exception, summary: str) -> None:
    with pytest.raises(DataError) as caught:
        Task(ChangedOutput(raising(error)), example=torch.randn(2, 4))
    assert str(caught.value) == f"example = (2, 4): the model fails on it ({summary})"


@pytest.mark.parametrize(("error", "summary"), RAISED)
def test_a_loss_that_raises_is_a_one_line_error(error: Exception, summary: str) -> None:
    with pytest.raises(DataError) as caught:
        Task(nn.Linear(4, 3), torch.randn(2, 4), loss=raising(error))
    expected = "loss: expected one number from loss(scores [B, classes], labels [B])"
    assert str(caught.value) == f"{expected}, but it fails ({summary})"


@pytest.mark.hostile
def test_errors_of_a_users_loss_or_model_quote_no_data() -> None:
    """They are shown, logged and perhaps sent on."""
    example = torch.tensor([[0.0, 0.123456, 0.654321, 1.0], [0.0, 0.777777, 0.333333, 1.0]])
    seen: list[Tensor] = []

    def quote(out: Tensor, labels: Tensor) -> Tensor:
        raise ValueError(f"bad scores {out.tolist()}")

    def keep(out: Tensor) -> Tensor:
        raise ValueError(f"bad input {seen[-1].tolist()}")

    identity = nn.Linear(4, 4, bias=False)
    nn.init.eye_(identity.weight)
    identity.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    for attempt in (
        lambda: Task(identity, example, loss=quote),
        lambda: Task(nn.Sequential(identity, ChangedOutput(keep)), example),
    ):
        with pytest.raises(DataError) as caught:
            attempt()
        assert not any(digits in str(caught.value) for digits in ("0.12345", "0.65432", "0.77777", "0.33333"))


class AssertsFloat32(nn.Linear):
    """Accepts one precision only, by an assertion."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.float32, "expected float32"
        return super().forward(x)


def test_a_model_that_asserts_its_precision_is_accepted() -> None:
    task = Task(AssertsFloat32(4, 3), example=torch.randn(2, 4))
    assert task.classes == 3 and not task.supports_bfloat16


class ReadsValues(nn.Linear):
    """Reads a tensor's value, which is impossible under vmap."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        try:
            float(out.detach().sum())
        except RuntimeError as error:
            raise ValueError("no values here") from error
        return out


def test_a_model_that_fails_only_under_vmap_is_unsupported() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        Task(around(ReadsValues(6, 6)), example=torch.randn(2, 4))
    assert str(caught.value) == f"2 (ReadsValues): ValueError: no values here; {REMEDY}"

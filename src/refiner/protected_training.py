"""`protect_training`: an existing training loop applies protected gradients without a changed line.

The model that it returns computes scores without a graph to its parameters. `loss.backward()` therefore ends
at the scores, where the protected gradient of the batch is added to each `.grad`: no raw gradient is computed
outside the defence. Two guards refuse what goes past the model: hooks on the parameters, and one on the
optimizer, which steps only with the gradients that were put there.
"""

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from refiner import checks
from refiner.backward import add_to_grads, cached_task, check_defense, protected_batch
from refiner.core.input_checks import input_error
from refiner.core.task import Loss, Task
from refiner.defenses.base import Defense
from refiner.defenses.state import DefenseState
from refiner.errors import DataError, ProtectionError

# How much the gradient of the loop's loss may differ from that of the stated loss, relative to its largest
# value: rounding, by the dtype of the scores.
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}


@dataclass
class _Batch:
    """The batch that the loop works on."""

    x: Tensor
    y: Tensor
    noisy: Tensor | None
    passed: bool = False
    """Whether the model was called with it in training mode."""
    used: bool = False
    """Whether its protected gradient was added."""


class ProtectedLoader:
    """The batches of a loader as pairs `(x, y)` on the model's device, known to the protected model.

    Args:
        loader: Yields `(x, y)`, or `(x, noisy, y)` from a `NoisyDataset`.
        model: The protected model.
    """

    def __init__(self, loader: Iterable[Any], model: "ProtectedModel") -> None:
        self.loader, self._model = loader, model

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        device = next(self._model.module.parameters()).device
        for item in self.loader:
            if not isinstance(item, Sequence) or len(item) not in (2, 3):
                raise input_error("loader", item, "batches (x, y), or (x, noisy, y) from a NoisyDataset")
            for value in item:
                if not isinstance(value, Tensor):
                    raise input_error("loader", value, "batches of tensors")
            x, *noisy, y = (value.to(device) for value in item)
            self._model._batch = _Batch(x, y, noisy[0] if noisy else None)
            yield x, y
        self._model._batch = None

    def __len__(self) -> int:
        if not isinstance(self.loader, Sized):
            raise TypeError("the loader has no length")
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class ProtectedModel(nn.Module):
    """A model whose `loss.backward()` gives protected gradients; made by `protect_training`.

    In training mode it takes the batches of the protected loader, each once, and as in `refiner.backward`
    dropout is off and batch norm updates no running statistics. In evaluation mode, and under
    `torch.no_grad()`, it takes any inputs and nothing can be differentiated.

    Attributes:
        module: The model itself; `state_dict` and `load_state_dict` are its own.
        defense_state: What the defence remembers; save its `state_dict()` with your model.
    """

    def __init__(
        self, module: nn.Module, loss: Loss, defense: Defense, state: DefenseState, loss_scale: float
    ) -> None:
        super().__init__()
        self.module, self.defense_state = module, state
        self._loss, self._defense, self._loss_scale = loss, defense, loss_scale
        self._batch: _Batch | None = None
        self._grads: dict[nn.Parameter, Tensor] = {}
        self.train(module.training)
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_hook(_refuse_raw_gradient)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        """The scores `[B, classes]`.

        Raises:
            ProtectionError: In training mode: the inputs are not the loader's current batch, the model was
                called with it before, or torch.autocast is on.
        """
        if not self.training:
            with torch.no_grad():
                scores: Tensor = self.module(x)
            return _attach(scores, _refuse_evaluation) if torch.is_grad_enabled() else scores
        _refuse_autocast(x)
        task = cached_task(self.module, self._loss, x)
        with torch.no_grad():
            scores = task.scores(task.parameters(), x)
        if not torch.is_grad_enabled():
            return scores
        batch = self._batch
        if batch is None or batch.x is not x:
            raise ProtectionError(
                "model: called in training mode with inputs that are not the protected loader's current "
                "batch; pass on its x unchanged (normalise inside the model, augment in a NoisyDataset)"
            )
        if batch.passed:
            raise ProtectionError(
                "model: called twice with one batch in training mode; use torch.no_grad() for a second look"
            )
        batch.passed = True
        return _attach(scores, lambda cotangent: self._add_protected(task, batch, scores, cotangent))

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of the model itself, without a prefix."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a `state_dict` of the model itself."""
        return self.module.load_state_dict(*args, **kwargs)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a protected model refers to the client's defence; save its state_dict() instead")

    def _add_protected(self, task: Task, batch: _Batch, scores: Tensor, cotangent: Tensor) -> None:
        """Add the protected gradient of a batch to each `.grad`, if the loop's loss is the stated one."""
        if batch.used:
            raise ProtectionError("loss.backward(): called twice for one batch; expected once")
        if batch is not self._batch:
            raise ProtectionError("loss.backward(): the loader has gone on; call it before the next batch")
        batch.used = True
        _refuse_autocast(scores)
        self._check_loss(batch.y, scores, cotangent)
        self._check_grads(self.module.parameters())
        with torch.enable_grad():
            result = protected_batch(
                task, batch.x, batch.y, self._defense, state=self.defense_state, noisy=batch.noisy
            )
        add_to_grads(self.module, result.update, self._loss_scale)
        self._grads = {p: p.grad for p in self.module.parameters() if p.grad is not None}

    def _check_loss(self, y: Tensor, scores: Tensor, cotangent: Tensor) -> None:
        """Raise unless the cotangent of the scores is that of the stated loss times `loss_scale`."""
        with torch.enable_grad():
            leaf = scores.detach().requires_grad_()
            (expected,) = torch.autograd.grad(self._loss(leaf, y), leaf)
        rounding = _ROUNDING.get(scores.dtype, 2e-2)
        expected = expected * self._loss_scale
        scale = expected.abs().nan_to_num(0.0, 0.0, 0.0).max().item()
        if not torch.allclose(cotangent, expected, rtol=rounding, atol=rounding * scale, equal_nan=True):
            raise ProtectionError(
                "loss.backward(): not the gradient of the loss that protect_training was given; "
                "pass the loop's own as loss=, and a constant factor, such as 1/4, as loss_scale=; "
                "GradScaler is not supported"
            )

    def _check_grads(self, parameters: Iterable[nn.Parameter]) -> None:
        """Raise, and empty every `.grad`, if one of them was not put there by this model."""
        parameters = list(parameters)
        if any(p.grad is not None and p.grad is not self._grads.get(p) for p in parameters):
            for parameter in parameters:
                parameter.grad = None
            self._grads = {}
            raise ProtectionError(
                "optimizer: a .grad did not come from the protected model; every .grad was emptied"
            )

    def _before_step(self, optimizer: Optimizer, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """The optimizer's hook: raises unless all its gradients are protected ones, and there is one."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._check_grads(parameters)
        if any(callable(value) for value in (*args[1:], *kwargs.values())):
            raise ProtectionError(
                "optimizer.step(closure): not supported, as it computes a batch's gradient more than once"
            )
        if all(parameter.grad is None for parameter in parameters):
            raise ProtectionError("optimizer.step(): no protected gradient; call loss.backward() before it")


def protect_training(
    model: nn.Module,
    optimizer: Optimizer,
    loader: Iterable[Any],
    defense: Defense,
    *,
    loss: Loss = F.cross_entropy,
    loss_scale: float = 1.0,
    state: DefenseState | None = None,
) -> tuple[ProtectedModel, Optimizer, ProtectedLoader]:
    """Return model, optimizer and loader with which an ordinary training loop applies protected gradients.

    The loop stays as it is; each `.grad` has the bits that `refiner.backward` gives. Several
    `loss.backward()` of different batches before a step add up, and `clip_grad_norm_` clips. What would
    apply a raw gradient raises an error: another loss, a batch that was changed or used twice, a step
    without a protected gradient, a backward pass through the original model, torch.autocast around the
    training step. Not supported are DistributedDataParallel, GradScaler and optimizers with a closure.

    Args:
        model: The model.
        optimizer: An optimizer of parameters of the model; it is changed in place.
        loader: Yields batches `(x, y)`, or `(x, noisy, y)` from a `NoisyDataset`; the returned one yields
            `(x, y)` on the model's device.
        defense: The defence; keep one object, with one secret, for the whole training. The noise of an image
            depends on its content and the secret, so that it is the same in every epoch.
        loss: The loss of the loop, a function of scores `[B, outputs]` and targets, as in `backward`.
        loss_scale: The constant that the loop multiplies the loss by, such as 1/4 where it divides the loss
            by the number of accumulated batches.
        state: What the defence remembers, to continue a training; by default a new `defense.init_state()`.

    Returns:
        The protected model, the optimizer and the protected loader. Call each in place of the original.

    Raises:
        RefinerError: If an argument is wrong.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> batches = [(torch.rand(4, 3, 2, 2), torch.arange(4) % 2)]
    >>> from refiner import NoDefense
    >>> model, optimizer, loader = protect_training(model, optimizer, batches, NoDefense())
    >>> for x, y in loader:
    ...     optimizer.zero_grad()
    ...     loss = F.cross_entropy(model(x), y)
    ...     loss.backward()
    ...     optimizer.step()
    """
    if not isinstance(model, nn.Module) or isinstance(model, ProtectedModel):
        raise input_error("model", model, "a torch.nn.Module that is not protected yet")
    if not isinstance(optimizer, Optimizer):
        raise input_error("optimizer", optimizer, "a torch.optim.Optimizer")
    if not isinstance(loader, Iterable) or isinstance(loader, Iterator | Tensor):
        raise input_error("loader", loader, "a DataLoader, or a list of batches (x, y)")
    check_defense(defense)
    checks.number("loss_scale", loss_scale, 0, above=True)
    if not callable(loss):
        raise input_error("loss", loss, "a function loss(scores, labels)")
    own = set(model.parameters())
    if any(parameter not in own for group in optimizer.param_groups for parameter in group["params"]):
        expected = "only parameters of the model: the gradients of others would not be protected"
        raise DataError(f"optimizer: expected {expected}", field="optimizer", expected=expected)
    if any(parameter.grad is not None for parameter in own):
        expected = "none: call optimizer.zero_grad() first"
        raise DataError(f"model: has gradients; expected {expected}", field="model", expected=expected)
    dataset = getattr(loader, "dataset", None)
    samples = len(dataset) if isinstance(dataset, Sized) else 0
    state = defense.init_state(samples) if state is None else state
    protected = ProtectedModel(model, loss, defense, state, loss_scale)
    optimizer.register_step_pre_hook(protected._before_step)
    return protected, optimizer, ProtectedLoader(loader, protected)


class _Attached(torch.autograd.Function):
    """Scores whose cotangent is passed to a function; the gradient ends there."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, scores: Tensor, receive: Any) -> Tensor:
        ctx.receive = receive
        return scores.clone()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[None, None, None]:
        ctx.receive(cotangent)
        return None, None, None


def _attach(scores: Tensor, receive: Any) -> Tensor:
    # The anchor is there to be differentiated; its own gradient is of no use.
    attached: Tensor = _Attached.apply(torch.zeros((), requires_grad=True), scores, receive)  # type: ignore[no-untyped-call]
    return attached


def _refuse_autocast(tensor: Tensor) -> None:
    device = tensor.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        raise ProtectionError(
            f"torch.autocast is on for {device}: protected gradients are computed in full precision only; "
            "move model(x) and loss.backward() out of the autocast block"
        )


def _refuse_evaluation(cotangent: Tensor) -> NoReturn:
    raise ProtectionError(
        "loss.backward(): the model was called in evaluation mode; call model.train() first"
    )


def _refuse_raw_gradient(gradient: Tensor) -> NoReturn:
    raise ProtectionError(
        "loss.backward(): would compute a raw gradient; call the model that protect_training returned"
    )

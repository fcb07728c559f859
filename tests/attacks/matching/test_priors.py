"""Priors against closed forms and against PyTorch's own functions."""

import pytest
import torch
from torch import Tensor, nn

from refiner.attacks import GradInversion, Observation, ThreatModel
from refiner.attacks.matching.priors import (
    BatchNormStatistics,
    GroupConsistency,
    Guess,
    LatentGaussian,
    SquaredLength,
    TotalVariation,
)
from refiner.attacks.observation import running_statistics
from refiner.core import Task
from refiner.defenses import NoDefense
from refiner.errors import ThreatModelError
from refiner.models import ResNet, resnet


def guess(x: Tensor, **changes: object) -> Guess:
    return Guess(**{"x": x, "latent": x, "task": None, "models": (), "restarts": 1, **changes})


def test_priors_match_closed_forms() -> None:
    ramp = torch.arange(4.0).expand(1, 1, 3, 4, 4)
    assert TotalVariation(1.0)(guess(ramp)).item() == pytest.approx(0.5)
    assert SquaredLength(2.0)(guess(ramp)).item() == pytest.approx(2 * 3.5)
    pair = torch.stack([torch.zeros(1, 3, 2, 2), torch.ones(1, 3, 2, 2)])
    assert GroupConsistency(4.0)(guess(pair, restarts=2)).tolist() == [1, 1]
    z = torch.randn(2, 1, 50, generator=torch.Generator().manual_seed(0)) * 2 + 1
    flat = z.flatten(1).double()
    mean, var = flat.mean(1), flat.var(1, correction=0)
    expected = [
        torch.distributions.kl_divergence(
            torch.distributions.Normal(m, v.sqrt()), torch.distributions.Normal(0.0, 1.0)
        ).item()
        for m, v in zip(mean, var, strict=True)
    ]
    assert LatentGaussian(1.0)(guess(z, latent=z)).tolist() == pytest.approx(expected, rel=1e-5)


def test_batch_norm_statistics_match_a_plain_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    """And they are zero for data with the running statistics."""
    monkeypatch.setattr(resnet, "WIDTHS", (8, 8, 16, 16))
    torch.manual_seed(0)
    model = ResNet((1, 1, 1, 1), norm="batch", groups=4, input_shape=(3, 8, 8))
    x = torch.rand(2, 4, 3, 8, 8)
    task = Task(model, example=x[0])
    inputs: dict[str, Tensor] = {}
    norms = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)]
    for name, module in norms:
        module.register_forward_pre_hook(lambda _m, args, name=name: inputs.__setitem__(name, args[0]))
    model.train()
    with torch.no_grad():
        model(x[0])
    expected = 0.0
    for name, module in norms:
        mean, var = inputs[name].mean((0, 2, 3)), inputs[name].var((0, 2, 3), correction=0)
        # This pass changed the running statistics; the prior compares with their present values.
        assert module.running_mean is not None and module.running_var is not None
        error = (mean - module.running_mean).square().sum() + (var - module.running_var).square().sum()
        expected += float(error) / len(mean)
    cost = BatchNormStatistics(1.0)(
        guess(x, task=task, models=[(task.parameters(), running_statistics(task.model))])
    )
    assert float(cost[0]) == pytest.approx(expected, rel=1e-3)
    for name, module in norms:
        assert module.running_mean is not None and module.running_var is not None
        module.running_mean.copy_(inputs[name].mean((0, 2, 3)))
        module.running_var.copy_(inputs[name].var((0, 2, 3), correction=0))
    cost = BatchNormStatistics(1.0)(
        guess(x, task=task, models=[(task.parameters(), running_statistics(task.model))])
    )
    assert float(cost[0]) == pytest.approx(0, abs=1e-6) and float(cost[1]) > 1e-6


def test_batch_norm_statistics_must_be_granted() -> None:
    x, y = torch.rand(1, 2, 3, 16, 16), torch.tensor([[1, 2]])
    body = nn.Conv2d(3, 4, 5, stride=2, padding=2)
    model = nn.Sequential(body, nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(4 * 8 * 8, 10))
    task = Task(model, example=x[0])
    untrained = Observation.of(task, NoDefense().protect(task, x, y))
    assert not untrained.statistics and not GradInversion().needs_for(task)
    assert GradInversion(iterations=1).reconstruct(untrained).x.shape == x.shape
    with torch.no_grad():
        model.train()(x[0])
    observation = Observation.of(task, NoDefense().protect(task, x, y))
    with pytest.raises(ThreatModelError, match="statistics"):
        GradInversion(iterations=1).reconstruct(observation)
    attack, granted = GradInversion(iterations=1), ThreatModel(statistics=True)
    before = attack.reconstruct(observation, threat=granted).objective
    # They are those of the upload's round: later changes of the model have no effect.
    model[1].running_mean += 3
    assert torch.equal(attack.reconstruct(observation, threat=granted).objective, before)
    later = Observation.of(task, NoDefense().protect(task, x, y))
    assert not torch.allclose(attack.reconstruct(later, threat=granted).objective, before)

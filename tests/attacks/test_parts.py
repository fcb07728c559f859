"""Distances and priors against closed forms and against PyTorch's own."""

import pytest
import torch
from torch import Tensor, nn

from refiner.attacks import GradInversion, Observation, ThreatModel
from refiner.attacks.distance import Distance
from refiner.attacks.observation import remembered_statistics
from refiner.attacks.priors import (
    BatchNormStatistics,
    GroupConsistency,
    Guess,
    LatentGaussian,
    SquaredLength,
    TotalVariation,
)
from refiner.core import Task, flatten, gradients
from refiner.defenses import NoDefense
from refiner.errors import SettingError, ThreatModelError
from refiner.models import ResNet


def guess(x: Tensor, **changes: object) -> Guess:
    return Guess(**{"x": x, "latent": x, "task": None, "states": (), "restarts": 1, **changes})


def test_distances(task: Task) -> None:
    a, b = torch.randn(2, 3, task.size, dtype=torch.float64)
    torch.testing.assert_close(Distance("euclidean").over(task)(a, b), ((a - b) ** 2).sum(1))
    torch.testing.assert_close(Distance("relative").over(task)(a, b), ((a - b) ** 2).sum(1) / (b**2).sum(1))
    torch.testing.assert_close(Distance("cosine").over(task)(a, b), 1 - torch.cosine_similarity(a, b))


def test_some_layers_only(task: Task, victims: tuple[Tensor, Tensor]) -> None:
    g = gradients(task, *victims)
    head = torch.cat([g["head.weight"].flatten(1), g["head.bias"]], 1)
    found = Distance("euclidean", {"head": 2.0}).over(task)(flatten(g), torch.zeros(3, task.size))
    torch.testing.assert_close(found, 4 * head.square().sum(1))
    with pytest.raises(SettingError, match="'tail' is none of"):
        Distance("cosine", {"tail": 1.0}).over(task)
    with pytest.raises(SettingError, match="distance"):
        Distance("manhattan")


def test_a_zero_gradient_has_a_slope(task: Task) -> None:
    g = torch.zeros(1, task.size, requires_grad=True)
    Distance("cosine").over(task)(g, torch.ones(1, task.size)).sum().backward()
    assert g.grad is not None and bool(g.grad.isfinite().all())


def test_priors_by_hand() -> None:
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


def test_batch_norm_statistics() -> None:
    """Zero for data with the remembered statistics, and equal to a plain computation elsewhere."""
    torch.manual_seed(0)
    model = ResNet((1, 1, 1, 1), norm="batch", input_shape=(3, 16, 16))
    x = torch.rand(2, 4, 3, 16, 16)
    task = Task(model, example=x[0])
    seen: dict[str, Tensor] = {}
    norms = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)]
    for name, module in norms:
        module.register_forward_pre_hook(lambda _m, args, name=name: seen.__setitem__(name, args[0]))
    model.train()
    with torch.no_grad():
        model(x[0])
    expected = 0.0
    for name, module in norms:
        mean, var = seen[name].mean((0, 2, 3)), seen[name].var((0, 2, 3), correction=0)
        # Running statistics moved with this very pass: what the prior compares with is their present value.
        assert module.running_mean is not None and module.running_var is not None
        off = (mean - module.running_mean).square().sum() + (var - module.running_var).square().sum()
        expected += float(off) / len(mean)
    found = BatchNormStatistics(1.0)(
        guess(x, task=task, states=[(task.parameters(), remembered_statistics(task.model))])
    )
    assert float(found[0]) == pytest.approx(expected, rel=1e-3)
    for name, module in norms:
        assert module.running_mean is not None and module.running_var is not None
        module.running_mean.copy_(seen[name].mean((0, 2, 3)))
        module.running_var.copy_(seen[name].var((0, 2, 3), correction=0))
    again = BatchNormStatistics(1.0)(
        guess(x, task=task, states=[(task.parameters(), remembered_statistics(task.model))])
    )
    assert float(again[0]) == pytest.approx(0, abs=1e-6) and float(again[1]) > 1e-6


def test_batch_norm_statistics_must_be_granted() -> None:
    x, y = torch.rand(1, 2, 3, 16, 16), torch.tensor([[1, 2]])
    body = nn.Conv2d(3, 4, 5, stride=2, padding=2)
    model = nn.Sequential(body, nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(4 * 8 * 8, 10))
    task = Task(model, example=x[0])
    observation = Observation.of(task, NoDefense().protect(task, x, y))
    with pytest.raises(ThreatModelError, match="statistics"):
        GradInversion(iterations=1).reconstruct(observation)
    attack, granted = GradInversion(iterations=1), ThreatModel(statistics=True)
    before = attack.reconstruct(observation, threat=granted).objective
    # They are those of the upload's round: what the model remembers later changes nothing.
    model[1].running_mean += 3
    assert torch.equal(attack.reconstruct(observation, threat=granted).objective, before)
    later = Observation.of(task, NoDefense().protect(task, x, y))
    assert not torch.allclose(attack.reconstruct(later, threat=granted).objective, before)

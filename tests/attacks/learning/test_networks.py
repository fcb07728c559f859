"""The attackers' networks and filters: shapes, determinism, and estimates with known answers."""

import math

import pytest
import torch
from torch import Tensor, nn

from refiner.attacks.learning.network_training import (
    TrainingSettings,
    TrainingState,
    one_cycle,
    train_network,
)
from refiner.attacks.learning.simulated_batches import canonical_rank, derive_seed, draw_batches
from refiner.attacks.learning.unet import UNet, seeded_network
from refiner.attacks.stages.frequency_filter import FrequencyFilter
from refiner.attacks.stages.restoration import train_restorer
from refiner.errors import SettingError


@pytest.mark.parametrize(("height", "width"), [(8, 8), (7, 9), (32, 32), (28, 28), (45, 33), (4, 4)])
def test_a_unet_keeps_the_size_of_images(height: int, width: int) -> None:
    network = UNet(2, 3, width=8, side=min(height, width), classes=5)
    images = torch.rand(2, 2, height, width)
    out = network(images, torch.tensor([0, 4]))
    assert out.shape == (2, 3, height, width) and not bool(out.any())


def test_the_output_of_a_unet_depends_on_the_class_and_on_the_whole_image() -> None:
    network = seeded_network(lambda: UNet(1, 1, width=8, side=32, classes=2), seed=0)
    nn.init.ones_(network.end.weight)
    images = torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    one, other = (network(images, torch.tensor([label])) for label in (0, 1))
    assert not torch.allclose(one, other)
    changed = images.clone()
    changed[..., 0, 0] += 1
    difference = network(changed, torch.tensor([0])) - one
    assert float(difference.detach()[..., -1, -1].abs()) > 0


def test_the_rate_is_that_of_one_cycle_lr() -> None:
    parameter, steps = nn.Parameter(torch.zeros(1)), 200
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=steps + 1)
    for step in range(steps):
        assert one_cycle(step / steps) == pytest.approx(optimizer.param_groups[0]["lr"], abs=0.02)
        optimizer.step()
        schedule.step()


def test_a_training_stops_after_the_epoch_in_which_the_loss_is_not_finite() -> None:
    network, calls = nn.Linear(1, 1), 0

    def loss(index: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return network(torch.ones(1, 1)).sum() * (math.inf if calls == 5 else 1)

    settings = TrainingSettings(epochs=9, batch=1)
    assert not train_network(network, loss, 4, settings, seed=0, state=TrainingState(None, {}))
    assert calls == 8


@pytest.mark.parametrize(("field", "value"), [("epochs", 0), ("batch", 1.5), ("lr", -1), ("lr", math.nan)])
def test_training_settings_out_of_range_raise(field: str, value: object) -> None:
    with pytest.raises(SettingError, match=field):
        TrainingSettings(**{field: value})  # type: ignore[arg-type]


def test_every_pass_has_each_image_once() -> None:
    passes = draw_batches(torch.arange(10) + 5, 3, 2, torch.Generator().manual_seed(0))
    assert len(passes) == 6
    assert all(len(set(batches.flatten().tolist())) == 9 for batches in passes)
    assert len({tuple(batches.flatten().tolist()) for batches in passes}) == 6


def test_images_are_sorted_by_label_then_by_brightness() -> None:
    draws = torch.Generator().manual_seed(0)
    images, labels = torch.rand(50, 3, 4, 4, generator=draws), torch.randint(4, (50,), generator=draws)
    keys = [(int(label), float(image.double().mean())) for image, label in zip(images, labels, strict=True)]
    expected = {key: place for place, key in enumerate(sorted(keys))}
    assert canonical_rank(images, labels).tolist() == [expected[key] for key in keys]


def test_streams_have_different_seeds() -> None:
    seeds = {derive_seed(seed, purpose, n) for seed in range(3) for purpose in "ab" for n in range(3)}
    assert len(seeds) == 18 and all(0 <= seed < 2**40 for seed in seeds)


def test_the_filter_is_wieners() -> None:
    """Images of variance 1 and noise of variance s² at every frequency: the gain is 1 / (1 + s²)."""
    draws = torch.Generator().manual_seed(0)
    clean, noise = (torch.randn(4000, 2, 4, 4, generator=draws) for _ in range(2))
    gain = FrequencyFilter.fit(clean + 2 * noise, clean).gain
    torch.testing.assert_close(gain, torch.eye(2).expand(4, 4, 2, 2) / 5, atol=0.03, rtol=0)


def restoration_errors(degraded: Tensor, clean: Tensor, epochs: int) -> tuple[float, float]:
    """The errors of the restorer and of the filter on images that neither has seen."""
    labels = torch.zeros(len(clean), dtype=torch.long)
    restorer = train_restorer(
        degraded[:-40],
        clean[:-40],
        labels[:-40],
        classes=1,
        held_out=60,
        width=8,
        settings=TrainingSettings(epochs=epochs, batch=30, lr=5e-3),
        seed=0,
        state=TrainingState(None, {}),
    )
    assert restorer is not None
    low, high = clean[:-40].aminmax()
    estimates = restorer(degraded[-40:], labels[-40:]), restorer.linear(degraded[-40:]).clamp(low, high)
    first, second = (float((e - clean[-40:]).square().mean()) for e in estimates)
    return first, second


@pytest.mark.processes
def test_a_restorer_learns_what_a_filter_can_not_and_is_no_worse_than_it() -> None:
    draws = torch.Generator().manual_seed(0)
    clean = torch.rand(700, 1, 8, 8, generator=draws)
    # Black and white images: under noise a threshold finds them, which is not linear.
    binary = (clean > 0.5).float()
    noise = torch.randn(clean.shape, generator=draws)
    learned, linear = restoration_errors(binary + 0.3 * noise, binary, epochs=6)
    assert learned < 0.85 * linear
    learned, linear = restoration_errors(noise[:200], clean[:200], epochs=2)
    assert learned < 1.03 * linear

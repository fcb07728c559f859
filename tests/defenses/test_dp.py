"""Clipping and noise against plain loops over victims and samples."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from refiner import LeNet, NoDefense, ProtectionError, Refiner, SettingError, Task
from refiner.core.gradients import flatten, gradients
from refiner.core.noise import NoiseSource
from refiner.data import load_sample
from refiner.defenses import Chain, DPGaussian, DPLaplace, dp, make_defense

KINDS = (DPGaussian, DPLaplace)
Kind = type[DPGaussian] | type[DPLaplace]
both = pytest.mark.parametrize("kind", KINDS)


@cache
def _task(dtype: torch.dtype = torch.float32) -> Task:
    torch.manual_seed(0)
    return Task(LeNet().to(dtype), example=torch.rand(2, 3, 32, 32, dtype=dtype))


@cache
def _broken(value: float) -> Task:
    """A model that returns `value`."""
    model = LeNet()
    task = Task(model, example=torch.rand(2, 3, 32, 32))
    with torch.no_grad():
        model.head.bias[0] = value
    return task


@pytest.fixture(scope="module")
def task() -> Task:
    return _task()


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor]:
    sample = load_sample()
    return sample.images[:6].view(3, 2, 3, 32, 32), sample.labels[:6].view(3, 2)


def _clipped(vector: np.ndarray, kind: Kind, clip: float) -> np.ndarray:
    length = np.abs(vector).sum() if kind is DPLaplace else math.sqrt((vector**2).sum())
    return vector * min(1.0, clip / length)


@both
@pytest.mark.parametrize("clip", [1e-3, 1.0, 1e6])
def test_the_upload_is_clipped_as_one_vector(
    kind: Kind, clip: float, task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    raw = flatten(gradients(task, *batch)).double().numpy()
    upload = kind(magnitude=0, clip=clip).protect(task, *batch).flat().double().numpy()
    expected = np.stack([_clipped(row, kind, clip) for row in raw])
    assert np.abs(upload - expected).max() <= 1e-6 * np.abs(expected).max()


@both
def test_neither_noise_nor_clip_is_the_plain_gradient(
    kind: Kind, task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    plain = NoDefense().protect(task, *batch)
    bare = kind(magnitude=0, clip=None).protect(task, *batch)
    assert all(torch.equal(bare.tensors[name], plain.tensors[name]) for name in task.names)


@both
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("magnitude", [1e-6, 1e-2, 1e2])
def test_the_noise_has_the_stated_scale_and_distribution(
    kind: Kind, clip: float | None, magnitude: float, batch: tuple[Tensor, Tensor]
) -> None:
    task = _task(torch.float64)
    x, y = batch[0].double(), batch[1]
    still = kind(magnitude=0, clip=clip).protect(task, x, y).flat()
    noise = (kind(magnitude=magnitude, clip=clip).protect(task, x, y, seed=0).flat() - still).numpy()
    law = stats.norm if kind is DPGaussian else stats.laplace
    scale = magnitude * (clip or 1)
    for row in noise:
        assert stats.kstest(row / scale, law.cdf).pvalue > 1e-4
    assert np.abs(np.corrcoef(noise) - np.eye(3)).max() < 0.05


@both
@pytest.mark.parametrize(("victims", "size"), [(1, 5), (3, 2), (2, 1)])
def test_samples_are_clipped_one_by_one(
    kind: Kind, victims: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, sample = _task(torch.float64), load_sample()
    x = sample.images[: victims * size].double().view(victims, size, 3, 32, 32)
    y = sample.labels[: victims * size].view(victims, size)
    alone = [[flatten(gradients(task, x[v, b][None, None], y[v, b][None, None]))[0] for b in range(size)]
             for v in range(victims)]  # fmt: skip
    # Half of the samples have a larger norm.
    lengths = torch.stack([g.norm(kind.norm) for row in alone for g in row])
    clip = float(lengths.median()) * 1.001
    expected = [np.mean([_clipped(g.numpy(), kind, clip) for g in row], axis=0) for row in alone]
    for most in (1, 2, 3, 128):
        monkeypatch.setattr(dp, "_MAX_SAMPLES", most)
        upload = kind(magnitude=0, clip=clip, per_sample=True).protect(task, x, y).flat().numpy()
        assert np.abs(upload - np.stack(expected)).max() < 1e-9 * np.abs(expected).max()


@both
def test_the_noise_on_the_mean_of_samples_is_divided_by_their_number(kind: Kind) -> None:
    task, sample = _task(torch.float64), load_sample()
    x, y = sample.images[:4].double(), sample.labels[:4]
    still = kind(magnitude=0, clip=0.5, per_sample=True).protect(task, x, y).flat()
    noisy = kind(magnitude=3, clip=0.5, per_sample=True).protect(task, x, y, seed=1).flat()
    law = stats.norm if kind is DPGaussian else stats.laplace
    assert stats.kstest(((noisy - still)[0] / (3 * 0.5 / 4)).numpy(), law.cdf).pvalue > 1e-4


@both
def test_unclipped_samples_without_noise_are_the_plain_gradient(
    kind: Kind, batch: tuple[Tensor, Tensor]
) -> None:
    task, x, y = _task(torch.float64), batch[0].double(), batch[1]
    plain = NoDefense().protect(task, x, y).flat()
    upload = kind(magnitude=0, clip=None, per_sample=True).protect(task, x, y).flat()
    assert (upload - plain).abs().max() < 1e-12


@pytest.mark.parametrize("per_sample", [False, True])
@both
def test_a_seed_determines_the_noise(
    kind: Kind, per_sample: bool, task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    defense = kind(per_sample=per_sample)
    seeded = [defense.protect(task, *batch, seed=s).flat() for s in (4, 4, 5)]
    assert torch.equal(seeded[0], seeded[1])
    assert not torch.equal(seeded[0], seeded[2])
    free = [defense.protect(task, *batch).flat() for _ in range(2)]
    assert (free[0] - free[1]).abs().median() > 1e-3 * (0.1 if per_sample else 1)
    # Clients with equal data get different noise, the first one the same as alone.
    x, y = batch[0][:1].expand(2, -1, -1, -1, -1), batch[1][:1].expand(2, -1)
    twins = defense.protect(task, x, y, seed=4).flat()
    assert (twins[0] - twins[1]).abs().median() > 1e-4
    assert torch.allclose(twins[0], defense.protect(task, x[:1], y[:1], seed=4).flat()[0], atol=1e-6)


@both
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("per_sample", [False, True])
def test_other_dtypes(kind: Kind, dtype: torch.dtype, per_sample: bool, batch: tuple[Tensor, Tensor]) -> None:
    task = _task(dtype)
    update = kind(magnitude=1e-2, per_sample=per_sample).protect(task, batch[0].to(dtype), batch[1], seed=0)
    wide = kind(magnitude=1e-2, per_sample=per_sample).protect(_task(), *batch, seed=0).flat()
    assert update.flat().dtype == dtype
    assert float((update.flat().float() - wide).norm() / wide.norm()) < 0.05


@both
def test_transform_does_not_change_its_input(kind: Kind) -> None:
    gradient = {"a": torch.rand(2, 3, 4), "b": torch.rand(2), "c": torch.rand(2, 0)}
    before = {name: value.clone() for name, value in gradient.items()}
    after = kind().transform(gradient, NoiseSource(seed=0), 1)
    assert all(torch.equal(gradient[name], before[name]) for name in gradient)
    assert {name: (t.shape, t.dtype) for name, t in after.items()} == {
        name: (t.shape, t.dtype) for name, t in gradient.items()
    }
    single = kind().transform({"a": before["a"]}, NoiseSource(seed=0), 1)
    assert not torch.equal(single["a"], before["a"])
    assert torch.equal(gradient["a"], before["a"])


@given(
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=20),
    clip=st.floats(1e-3, 1e3),
    kind=st.sampled_from(KINDS),
)
def test_no_gradient_exceeds_the_clip(values: list[float], clip: float, kind: Kind) -> None:
    gradient = torch.tensor([values])
    (upload,) = kind(magnitude=0, clip=clip).transform({"a": gradient}, NoiseSource(), 1).values()
    assert float(upload.double().norm(kind.norm)) <= clip * (1 + 1e-6)
    if float(gradient.double().norm(kind.norm)) <= clip:
        assert torch.equal(upload, gradient)
    else:
        assert torch.equal(upload.sign().abs() > 0, upload != 0)
        assert bool((upload * gradient >= 0).all())


@both
@pytest.mark.parametrize("per_sample", [False, True])
def test_noise_that_overflows_raises(
    kind: Kind, per_sample: bool, task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    assert kind(magnitude=1e10, per_sample=per_sample).protect(task, *batch).flat().abs().median() > 1e9
    with pytest.raises(ProtectionError, match="not finite"):
        kind(magnitude=1e60, per_sample=per_sample).protect(task, *batch)


@both
@pytest.mark.parametrize("per_sample", [False, True])
def test_a_model_that_is_not_finite_raises(
    kind: Kind, per_sample: bool, batch: tuple[Tensor, Tensor]
) -> None:
    for value in (torch.nan, torch.inf):
        task = _broken(value)
        with pytest.raises(ProtectionError, match="not finite"):
            kind(per_sample=per_sample).protect(task, *batch)
        with pytest.raises(ProtectionError, match="not finite"):
            Chain([kind(per_sample=per_sample), make_defense("gq:bits=1")]).protect(task, *batch)


@both
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"magnitude": -1e-9}, "magnitude = -1e-09: expected a number in [0, ∞)"),
        ({"magnitude": math.nan}, "magnitude = nan: expected a number in [0, ∞)"),
        ({"magnitude": "1"}, "magnitude = '1': expected a number in [0, ∞)"),
        ({"clip": 0}, "clip = 0: expected a number in (0, ∞)"),
        ({"clip": math.inf}, "clip = inf: expected a number in (0, ∞)"),
        ({"per_sample": 1}, "per_sample = 1: expected True or False"),
    ],
)
def test_settings_out_of_range_raise(kind: Kind, settings: dict[str, object], text: str) -> None:
    with pytest.raises(SettingError) as raised:
        kind(**settings)  # type: ignore[arg-type]
    assert str(raised.value) == text


@both
def test_needs_guarantee_and_size(kind: Kind, task: Task, batch: tuple[Tensor, Tensor]) -> None:
    whole, single = kind(), kind(per_sample=True)
    assert (whole.needs, single.needs) == ("gradient", "data")
    assert replace(single, per_sample=False).needs == "gradient"
    assert whole.guarantee().startswith("none: the clip bounds a client's whole upload")
    assert "dp_epsilon" in single.guarantee()
    assert kind(per_sample=True, clip=None).guarantee().startswith("none")
    assert kind(per_sample=True, magnitude=0).guarantee().startswith("none")
    assert whole.wire_bytes(task.shapes) == 4 * task.size
    with pytest.raises(SettingError, match=r"per_sample = True: expected False if only a gradient"):
        single.transform(gradients(task, *batch), NoiseSource(), 2)
    with pytest.raises(SettingError, match=r"per_sample|needs the data"):
        Chain([Refiner(iterations=0), single]).protect(task, *batch)
    assert Chain([single, NoDefense()]).protect(task, *batch).victims == 3


@both
def test_made_by_name(kind: Kind) -> None:
    made = make_defense(f"{kind.name}:magnitude=0.1,clip=none,per_sample=true")
    assert made == kind(magnitude=0.1, clip=None, per_sample=True)
    assert made.settings() == {"magnitude": 0.1, "clip": None, "per_sample": True}


def test_per_sample_gradients_of_a_large_model_are_computed_in_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    task = Task(nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), example=torch.rand(2, 3, 2, 2))
    seen: list[int] = []

    def counted(task: Task, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        seen.append(len(x))
        return gradients(task, x, y)

    monkeypatch.setattr(dp, "gradients", counted)
    monkeypatch.setattr(dp, "_MAX_ENTRIES", 4 * task.size + 1)
    DPGaussian(per_sample=True).protect(
        task, torch.rand(3, 10, 3, 2, 2), torch.zeros(3, 10, dtype=torch.long)
    )
    assert max(seen) == 4
    assert sum(seen) == 30

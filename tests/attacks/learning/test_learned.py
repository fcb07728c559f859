"""The learned attack: planted leaks, batches, several uploads, resuming, divergence, bad input."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.attacks.small_learning import (
    CLASSES,
    SIDE,
    error_of,
    observe,
    planted,
    simulator_of,
    small_task,
    smooth_images,
)
from torch import Tensor

from refiner.attacks import LearnedReconstruction, Observation, ThreatModel, make_attack
from refiner.attacks.learning.network_training import TrainingState
from refiner.errors import DataError, SettingError, ThreatModelError

QUICK = LearnedReconstruction(epochs=6, batch=32, lr=3e-3, draws=2, hidden=48, width=0)
TASK = small_task()
X = smooth_images(6, seed=0)[:, None]
Y = torch.tensor([[0], [1], [2], [3], [0], [1]])
BLIND = error_of(smooth_images(500, seed=3).mean(0), X)
NOTHING = planted(TASK, strength=0.0)


def attack(encode: object = None, learned: LearnedReconstruction = QUICK, **options: object) -> Tensor:
    encode = encode or planted(TASK)
    uploads = observe(TASK, encode, X, Y)  # type: ignore[arg-type]
    return learned.reconstruct(uploads, simulator=simulator_of(TASK, encode), **options).x  # type: ignore[arg-type]


@pytest.mark.processes
def test_a_planted_leak_is_learned_and_none_is_found_where_there_is_none() -> None:
    assert error_of(attack(), X) < 0.3 * BLIND
    assert error_of(attack(learned=replace(QUICK, width=8)), X) < 0.35 * BLIND
    # Noise alone: the correction is scaled down until it is no worse than the mean image.
    assert 0.8 * BLIND < error_of(attack(NOTHING), X) < 1.3 * BLIND


def test_results_depend_on_the_seed_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    first, again, other = (attack(seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())
    low, high = smooth_images(120, seed=1).aminmax()
    assert float(first.min()) >= low and float(first.max()) <= high


def test_a_batch_is_reconstructed_in_the_order_of_its_labels() -> None:
    x = smooth_images(12, seed=0).view(6, 2, 3, SIDE, SIDE)
    y = torch.tensor([[3, 1], [0, 2], [1, 0], [2, 3], [3, 0], [1, 2]])
    encode = planted(TASK)
    result = QUICK.reconstruct(observe(TASK, encode, x, y), simulator=simulator_of(TASK, encode))
    assert torch.equal(result.labels, y.sort(1).values)
    ordered = torch.stack([batch[rows] for batch, rows in zip(x, y.argsort(1), strict=True)])
    assert error_of(result.x, ordered) < 0.5 * error_of(smooth_images(500, seed=3).mean(0), x)


@pytest.mark.processes
def test_several_uploads_reveal_more_than_one() -> None:
    encode = planted(TASK, noise=1.0)
    errors = [
        error_of(
            QUICK.reconstruct(
                observe(TASK, encode, X, Y, states), simulator=simulator_of(TASK, encode, states=states)
            ).x,
            X,
        )
        for states in (1, 4)
    ]
    assert errors[1] < 0.9 * errors[0]


def test_large_uploads_are_projected() -> None:
    learned = replace(QUICK, max_inputs=64)
    assert TASK.size > 10 * learned.max_inputs
    assert error_of(attack(learned=learned), X) < 0.8 * BLIND


def test_granted_labels_are_an_input() -> None:
    """Uploads that show nothing, not even the labels: what is granted is used."""

    def encode(x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        return torch.zeros(len(x), TASK.size)

    simulator = simulator_of(TASK, encode)
    # Images of class k are of brightness k.
    simulator = replace(
        simulator, images=simulator.labels[:, None, None, None].expand_as(simulator.images) / CLASSES
    )
    x = Y[:, :, None, None, None].expand(6, 1, 3, SIDE, SIDE) / CLASSES
    uploads = [replace(o, labels=Y) for o in observe(TASK, encode, x, Y)]
    result = QUICK.reconstruct(uploads, simulator=simulator, threat=ThreatModel(labels=True))
    assert error_of(result.x, x) < 0.1 * error_of(simulator.images.mean(0), x)


@pytest.mark.parametrize("interrupted_in", [1, 3])
def test_an_interrupted_training_resumes_with_the_same_bits(
    interrupted_in: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = replace(QUICK, epochs=4)
    uninterrupted = attack(learned=learned)
    save, state = TrainingState.save, tmp_path / "a.state.safetensors"

    def save_and_stop(self: TrainingState, *args: object) -> None:
        save(self, *args)  # type: ignore[arg-type]
        if args[-1] == interrupted_in:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainingState, "save", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            attack(learned=learned, resume=state)
    calls: list[tuple[int, int]] = []
    resumed = attack(learned=learned, resume=state, on_progress=lambda *call: calls.append(call))
    assert torch.equal(resumed, uninterrupted)
    assert calls[-1][0] == calls[-1][1] and len({total for _, total in calls}) == 1
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    # A finished attack is read, not repeated, and its state is small.
    calls.clear()
    assert torch.equal(attack(learned=learned, resume=state, on_progress=lambda *c: calls.append(c)), resumed)
    assert not calls and state.stat().st_size < 100_000
    with pytest.raises(DataError, match="differs in seed; nothing was overwritten"):
        attack(learned=learned, resume=state, seed=9)
    with pytest.raises(DataError, match="differs in settings"):
        attack(learned=replace(learned, epochs=5), resume=state)


def test_a_diverged_training_says_so() -> None:
    encode = planted(TASK)
    learned = replace(QUICK, lr=1e18, epochs=2)
    result = learned.reconstruct(observe(TASK, encode, X, Y), simulator=simulator_of(TASK, encode))
    assert result.diverged.tolist() == [True] * 6
    assert bool(result.x.isfinite().all()) and bool(result.objective.isinf().all())


def test_a_huge_upload_does_not_affect_the_others() -> None:
    encode = planted(TASK)
    (upload,) = observe(TASK, encode, X, Y)
    gradient = upload.gradient.clone()
    gradient[1] = 3e38
    simulator = simulator_of(TASK, encode)
    expected, result = (
        QUICK.reconstruct(o, simulator=simulator).x for o in (upload, replace(upload, gradient=gradient))
    )
    assert bool(result.isfinite().all())
    torch.testing.assert_close(result[[0, 2, 3, 4, 5]], expected[[0, 2, 3, 4, 5]])


@pytest.mark.parametrize("denied", ["public", "defense"])
def test_it_needs_public_images_and_the_defence(denied: str) -> None:
    with pytest.raises(ThreatModelError, match=f"learned needs {denied}"):
        attack(threat=ThreatModel(**{denied: False}))
    with pytest.raises(DataError, match="simulator = None: expected a Simulator"):
        QUICK.reconstruct(observe(TASK, NOTHING, X, Y))


def test_too_few_public_images_raise() -> None:
    with pytest.raises(DataError, match="public_images = 15: expected at least 16"):
        QUICK.reconstruct(observe(TASK, NOTHING, X, Y), simulator=simulator_of(TASK, NOTHING, count=15))
    x, y = smooth_images(5, seed=0)[None], torch.zeros(1, 5, dtype=torch.long)
    uploads = Observation(TASK, TASK.parameters(), torch.zeros(1, TASK.size), samples=5)
    with pytest.raises(DataError, match=r"public_images = 19: expected at least 20 .* for batches of 5"):
        QUICK.reconstruct(uploads, simulator=simulator_of(TASK, NOTHING, count=19))
    assert x.shape[1] == y.shape[1]


@pytest.mark.parametrize(
    ("field", "value"),
    [("epochs", 0), ("batch", 0), ("lr", 0.0), ("draws", 0), ("hidden", 0), ("width", 7), ("max_inputs", 0)],
)
def test_settings_out_of_range_raise(field: str, value: object) -> None:
    with pytest.raises(SettingError, match=f"{field} = {value}"):
        make_attack("learned", **{field: value})

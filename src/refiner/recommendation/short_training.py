"""A short training of a copy of the model, with and without a defence: what accuracy the defence keeps."""

import copy
import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from refiner.core.task import Task
from refiner.data.image_dataset import ImageDataset
from refiner.data.train_test_split import hold_out
from refiner.defenses import Defense
from refiner.federation.federated_settings import FederatedSettings
from refiner.federation.training import CheckpointConfig, train


def short_training(
    task: Task,
    images: tuple[Tensor, Tensor],
    settings: FederatedSettings,
    defense: Defense,
    folder: Path,
    on_round: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[float, Task]:
    """Train a copy of the model on four fifths of the images, and test it on the others.

    Args:
        task: The model and its loss; the model itself is not changed.
        images: Images in 0..1 `[N, C, H, W]` and their labels `[N]`.
        settings: Rounds, batch size, learning rate and seed; one client.
        defense: The client's defence.
        folder: For checkpoints: each training has a folder of its own in it, named after all that it depends
            on, so that only the same training is continued.
        on_round: Called with the rounds done and their total.

    Returns:
        The accuracy in [0, 1], and the task of the trained copy.

    Raises:
        DataError: No class has five images.
        ProtectionError: The model is no longer finite.
    """
    x, y = images
    pixels = (x * 255).round().to(torch.uint8).cpu()
    data = ImageDataset(pixels, y.cpu(), task.classes, "images of the audit", "train")
    training_data, test_data = hold_out(data)
    trained = Task(copy.deepcopy(task.model), example=x[:2].to(_device(task)), loss=task.loss_function)
    own_folder = folder / f"training-{defense.name}-{_identity(task, data, settings, defense)}"
    own_folder.mkdir(parents=True, exist_ok=True)
    curve = train(
        trained,
        training_data,
        test_data,
        [torch.arange(len(training_data))],
        settings,
        defense,
        evaluate_every=settings.rounds,
        checkpoints=CheckpointConfig(own_folder),
        on_round=lambda rounds, _: on_round(rounds, settings.rounds),
    )
    return curve[-1][1], trained


def _identity(task: Task, data: ImageDataset, settings: FederatedSettings, defense: Defense) -> str:
    """A checksum of everything that a training depends on."""
    digest = hashlib.sha256(repr((settings, sorted(defense.settings().items()))).encode())
    for tensor in (*task.model.state_dict().values(), data.images, data.labels):
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


def _device(task: Task) -> torch.device:
    return next(iter(task.parameters().values())).device

"""InvertingGrad of the package breaching, run on a gradient of this library, for `attack_throughput.py`."""

import logging
from types import SimpleNamespace

import torch
from torch import Tensor

from refiner.attacks import Observation
from refiner.core import Task


def breaching(
    task: Task, observation: Observation, y: Tensor, steps: int, total_variation: float = 1e-4
) -> Tensor:
    """Reconstruct one victim with breaching, with its own settings of this attack."""
    import breaching as package

    logging.disable(logging.INFO)
    config = package.get_attack_config(
        "invertinggradients",
        [f"optim.max_iterations={steps}", f"regularization.total_variation.scale={total_variation}"],
    )
    setup = {"dtype": torch.float, "device": y.device}
    attacker = package.attacks.prepare_attack(task.model, task.loss_function, config, setup)
    gradients = task.unflatten(observation.gradient)
    names = [name for name, _ in task.model.named_parameters()]
    metadata = SimpleNamespace(shape=task.input_shape, mean=[0.0] * 3, std=[1.0] * 3, modality="vision")
    payload = {
        "parameters": [p.detach() for p in task.model.parameters()],
        "buffers": list(task.model.buffers()),
        "metadata": metadata,
    }
    shared = {
        "gradients": [gradients[name][0] for name in names],
        "buffers": None,
        "metadata": {"num_data_points": len(y), "labels": y, "local_hyperparams": None},
    }
    reconstruction, _ = attacker.reconstruct([payload], [shared], {})
    return reconstruction["data"].detach()

"""InvertingGrad as the package breaching runs it, on a gradient of ours: a peer to be timed beside."""

import logging
from types import SimpleNamespace

import torch
from torch import Tensor

from refiner.attacks import Observation
from refiner.core import Task, unflatten


def breaching(task: Task, seen: Observation, y: Tensor, steps: int, total_variation: float = 1e-4) -> Tensor:
    """What breaching makes of one victim in so many iterations, by its own settings of this attack."""
    import breaching as peer

    logging.disable(logging.INFO)
    config = peer.get_attack_config(
        "invertinggradients",
        [f"optim.max_iterations={steps}", f"regularization.total_variation.scale={total_variation}"],
    )
    setup = {"dtype": torch.float, "device": y.device}
    attacker = peer.attacks.prepare_attack(task.model, task.loss_function, config, setup)
    parts = unflatten(task, seen.gradient)
    order = [name for name, _ in task.model.named_parameters()]
    about = SimpleNamespace(shape=task.input_shape, mean=[0.0] * 3, std=[1.0] * 3, modality="vision")
    payload = {
        "parameters": [p.detach() for p in task.model.parameters()],
        "buffers": list(task.model.buffers()),
        "metadata": about,
    }
    shared = {
        "gradients": [parts[name][0] for name in order],
        "buffers": None,
        "metadata": {"num_data_points": len(y), "labels": y, "local_hyperparams": None},
    }
    found, _ = attacker.reconstruct([payload], [shared], {})
    return found["data"].detach()

"""Inverting Gradients for one victim as a plain autograd loop: an independent oracle for the tests."""

import torch
from torch import Tensor

from refiner.attacks import Observation


def plain_inverting(
    observation: Observation, x: Tensor, y: Tensor, *, iterations: int, total_variation: float
) -> Tensor:
    """Reconstruct the first victim from the start `x [1, C, H, W]`, with signed Adam 0.1 decayed."""
    task = observation.task
    weights = [task.model.get_parameter(name) for name in task.names]
    sizes = [weight.numel() for weight in weights]
    observed = torch.split(observation.gradient[0], sizes)
    x = x.clone().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.1)
    # The library decays at fractions of the iterations, which are integers for a multiple of eight.
    milestones = [iterations * k // 8 for k in (3, 5, 7)]
    decay = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    for _ in range(iterations):
        optimizer.zero_grad()
        loss = task.loss_function(task.model(x), y)
        gradient = torch.autograd.grad(loss, weights, create_graph=True)
        flat, target = torch.cat([g.flatten() for g in gradient]), torch.cat(list(observed))
        smoothness = (x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()) / 2
        objective = 1 - torch.cosine_similarity(flat, target, dim=0) + total_variation * smoothness
        (x.grad,) = torch.autograd.grad(objective, x)
        x.grad.sign_()
        optimizer.step()
        decay.step()
        x.data.clamp_(0, 1)
    return x.detach()

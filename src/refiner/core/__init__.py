"""The ground floor: tasks, victim-batched gradients, updates, optimizers, noise."""

from refiner.core.gradients import Gradients, flatten, gradients, unflatten
from refiner.core.noise import NoiseSource
from refiner.core.task import Layer, Task
from refiner.core.update import Update

__all__ = ["Gradients", "Layer", "NoiseSource", "Task", "Update", "flatten", "gradients", "unflatten"]

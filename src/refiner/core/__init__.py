"""The base of everything else: tasks, victim-batched gradients, updates, optimizers, keyed noise."""

from refiner.core.gradients import Gradients, flatten, gradients
from refiner.core.noise import NoiseSource
from refiner.core.task import Layer, Task
from refiner.core.update import Update

__all__ = ["Gradients", "Layer", "NoiseSource", "Task", "Update", "flatten", "gradients"]

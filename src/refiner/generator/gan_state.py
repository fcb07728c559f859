"""The state of a GAN training: both networks, the generator's running average, and their optimizers."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from refiner.checkpoint import select_prefix
from refiner.generator.discriminator import Discriminator
from refiner.generator.network import Generator

BETAS = (0.0, 0.99)


@dataclass(frozen=True, eq=False)
class GANState:
    """Everything that changes during a GAN training."""

    generator: Generator
    average: Generator
    """The running average of the generator's weights, less noisy than the last ones: the result."""
    discriminator: Discriminator
    generator_adam: torch.optim.Adam
    discriminator_adam: torch.optim.Adam

    @classmethod
    def start(
        cls, generator: Generator, discriminator: Discriminator, rates: tuple[float, float]
    ) -> "GANState":
        """Return the state before the first step; `rates` are the learning rates of both networks.

        >>> state = GANState.start(Generator(16, 10, 8), Discriminator(10, 8), (1e-4, 2e-4))
        >>> bool((state.average.start.weight == state.generator.start.weight).all())
        True
        """
        return cls(
            generator,
            deepcopy(generator).requires_grad_(False).eval(),
            discriminator,
            torch.optim.Adam(generator.parameters(), rates[0], BETAS),
            torch.optim.Adam(discriminator.parameters(), rates[1], BETAS),
        )

    @torch.no_grad()
    def update_average(self, decay: float) -> None:
        """Set the average to decay · average + (1 − decay) · generator."""
        for average, weight in zip(self.average.parameters(), self.generator.parameters(), strict=True):
            average.lerp_(weight, 1 - decay)

    def tensors(self) -> dict[str, Tensor]:
        """Return the whole state as tensors by name."""
        tensors = {
            f"{part}.{name}": t
            for part, network in self._networks().items()
            for name, t in network.state_dict().items()
        }
        for part, adam in self._adams().items():
            for index, state in adam.state_dict()["state"].items():
                tensors |= {f"{part}.{index}.{name}": t for name, t in state.items()}
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state from what `tensors` returned."""
        for part, network in self._networks().items():
            network.load_state_dict(select_prefix(part, tensors))
        for part, adam in self._adams().items():
            state: dict[int, dict[str, Tensor]] = {}
            for name, tensor in select_prefix(part, tensors).items():
                index, field = name.split(".")
                state.setdefault(int(index), {})[field] = tensor
            adam.load_state_dict({"state": state, "param_groups": adam.state_dict()["param_groups"]})

    def _networks(self) -> dict[str, nn.Module]:
        return {"generator": self.generator, "average": self.average, "discriminator": self.discriminator}

    def _adams(self) -> dict[str, torch.optim.Adam]:
        return {"generator_adam": self.generator_adam, "discriminator_adam": self.discriminator_adam}

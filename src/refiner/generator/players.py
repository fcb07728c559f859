"""The two players of a training, the generator's running average, and their optimizers."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from refiner.checkpoint import under
from refiner.generator.discriminator import Discriminator
from refiner.generator.network import Generator

BETAS = (0.0, 0.99)


@dataclass(frozen=True, eq=False)
class Players:
    """All that a training carries from step to step."""

    generator: Generator
    average: Generator
    """The mean of the generator's past weights: steadier than the last ones, and what is kept in the end."""
    discriminator: Discriminator
    generator_adam: torch.optim.Adam
    discriminator_adam: torch.optim.Adam

    @classmethod
    def start(
        cls, generator: Generator, discriminator: Discriminator, rates: tuple[float, float]
    ) -> "Players":
        """Players before their first step, with the learning rates of both.

        >>> players = Players.start(Generator(16, 10, 8), Discriminator(10, 8), (1e-4, 2e-4))
        >>> bool((players.average.start.weight == players.generator.start.weight).all())
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
    def follow(self, share: float) -> None:
        """Let the average keep `share` of itself and take the rest from the generator."""
        for mean, now in zip(self.average.parameters(), self.generator.parameters(), strict=True):
            mean.lerp_(now, 1 - share)

    def tensors(self) -> dict[str, Tensor]:
        """The whole state by name."""
        found = {
            f"{part}.{name}": t for part, m in self._networks().items() for name, t in m.state_dict().items()
        }
        for part, adam in self._adams().items():
            for index, state in adam.state_dict()["state"].items():
                found |= {f"{part}.{index}.{name}": t for name, t in state.items()}
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` gave."""
        for part, network in self._networks().items():
            network.load_state_dict(under(part, tensors))
        for part, adam in self._adams().items():
            state: dict[int, dict[str, Tensor]] = {}
            for name, tensor in under(part, tensors).items():
                index, field = name.split(".")
                state.setdefault(int(index), {})[field] = tensor
            adam.load_state_dict({"state": state, "param_groups": adam.state_dict()["param_groups"]})

    def _networks(self) -> dict[str, nn.Module]:
        return {"generator": self.generator, "average": self.average, "discriminator": self.discriminator}

    def _adams(self) -> dict[str, torch.optim.Adam]:
        return {"generator_adam": self.generator_adam, "discriminator_adam": self.discriminator_adam}

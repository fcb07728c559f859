"""Images and people on which no setting of an inference attack was chosen, for the other benchmarks."""

import torch
from torch import Tensor

from refiner.inference import pair_by_label

FIRST_VICTIM = 40_000
FIRST_CANDIDATE = 45_000
"""Settings of membership attacks are chosen on earlier CIFAR-10 training images from now on."""
_CHOSEN_ON = {"clients": 64, "batch": 16, "seed": 0}
"""The clients whose scores were looked at when `likelihood` was made, of all images from 40,000 on."""
UNSEEN_PEOPLE = {"least_images": 2, "most_images": 4}
"""People of LFW with so few images: the attribute attack was made on those with five or more."""
DEFAULT_SEED = 1
"""Settings were chosen with seed 0."""


def unseen_candidates(labels: Tensor) -> Tensor:
    """The numbers of the CIFAR-10 training images that may be candidates of a membership attack.

    Args:
        labels: The labels of all training images `[50000]`.

    Returns:
        Numbers from 45,000 on, without the images of the clients on whom settings were chosen.
    """
    victims = torch.arange(FIRST_VICTIM, len(labels))
    members, others, _ = pair_by_label(victims, labels[victims], **_CHOSEN_ON)
    seen = torch.cat([members.flatten(), others.flatten()])
    candidates = torch.arange(FIRST_CANDIDATE, len(labels))
    return candidates[~torch.isin(candidates, seen)]

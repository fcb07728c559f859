"""DLG (Zhu et al. 2019): Deep Leakage's match by L-BFGS, the labels searched together with the images."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from refiner.attacks.idlg import IDLG
from refiner.attacks.joint import JointLabels
from refiner.attacks.matching import Matching
from refiner.attacks.observation import Observation
from refiner.attacks.parametrisation import Pixels
from refiner.attacks.threat import ThreatModel


@dataclass(frozen=True)
class DLG(IDLG):
    """iDLG without the label: squared Euclidean distance, no prior, a softmax of scores for a label.

    >>> DLG().engine().iterations
    6000
    """

    name: ClassVar[str] = "dlg"

    def engine(self) -> Matching:
        """The attack as the engine runs it where the labels are not granted."""
        pixels = Pixels.over(self.input_range, bounded=False)
        return replace(super().engine(), parametrisation=JointLabels(pixels))

    def _ready(self, observations: list[Observation], granted: ThreatModel) -> tuple[Matching, Tensor]:
        first = observations[0]
        if granted.labels and first.labels is not None:
            # With them only the images are left to search.
            return super().engine(), first.labels
        return self.engine(), torch.zeros(first.victims, first.samples, dtype=torch.long)

"""DLG: gradient matching by L-BFGS, with the labels optimised together with the images."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from refiner.attacks.matching.gradient_matching import GradientMatching
from refiner.attacks.matching.idlg import IDLG
from refiner.attacks.matching.joint_labels import JointLabels
from refiner.attacks.matching.parametrisation import Pixels
from refiner.attacks.observation import Observation
from refiner.attacks.threat_model import ThreatModel


@dataclass(frozen=True)
class DLG(IDLG):
    """Squared Euclidean distance, no prior; the labels are the softmax of optimised logits.

    Zhu, Liu and Han, "Deep Leakage from Gradients", NeurIPS 2019. The settings are those of `IDLG`. Granted
    labels are used as they are.

    >>> DLG().matching().iterations
    6000
    """

    name: ClassVar[str] = "dlg"
    reference: ClassVar[str] = "Zhu, Liu and Han, Deep Leakage from Gradients, NeurIPS 2019"

    def matching(self) -> GradientMatching:
        """Return the matching for labels that are not granted."""
        pixels = Pixels.from_range(self.input_range, bounded=False)
        return replace(super().matching(), parametrisation=JointLabels(pixels))

    def prepare(
        self, observations: list[Observation], threat: ThreatModel
    ) -> tuple[GradientMatching, Tensor]:
        """Return iDLG's matching with granted labels, or else the joint one with labels that it ignores."""
        first = observations[0]
        if threat.labels and first.labels is not None:
            return super().matching(), first.labels
        return self.matching(), torch.zeros(first.victims, first.samples, dtype=torch.long)

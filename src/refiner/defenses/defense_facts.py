"""What is known of a defence without running it: what it needs and proves, how large its uploads are."""

from collections.abc import Mapping
from dataclasses import fields
from typing import ClassVar, Literal, final

import torch
from torch import nn

from refiner.core.task import Task
from refiner.defenses.wire_format import WireFormat


class DefenseFacts:
    """The facts about a `Defense`; a subclass states those that differ from the defaults."""

    name: ClassVar[str]
    reference: ClassVar[str] = ""
    """The paper that proposed the defence: authors, title, venue, year."""
    needs: ClassVar[Literal["data", "gradient"]] = "data"
    """Whether it must see the data, or only a gradient (see `GradientTransform`)."""
    cost: ClassVar[str] = ""
    """What it costs beyond the plain gradient, in a few words."""
    uses_secret_key: ClassVar[bool] = False
    """Whether its noise comes from a key that is kept for a whole training, not from fresh draws."""
    accepts_noisy_inputs: ClassVar[bool] = False
    """Whether it starts from inputs that carry their noise already, if it is given any."""

    def networks(self, task: Task) -> Mapping[str, nn.Module]:
        """Return the networks whose weights an upload depends on beside the model.

        Args:
            task: The model and its loss.

        Returns:
            The networks by name.
        """
        return {}

    @property
    def noise_ratio_applies(self) -> bool:
        """Whether the noise ratio says something about reconstructions behind this defence."""
        return True

    def reveals_more_in_batches(self, batch: int) -> bool:
        """Whether a batch of this size may reveal more of an image than an upload of the image alone."""
        return False

    @property
    def has_guarantee(self) -> bool:
        """Whether anything is proven about an upload; `guarantee` says what."""
        return False

    def guarantee(self) -> str:
        """What is proven about an upload, as one sentence; for most defences nothing is."""
        return "none: the protection is measured, not proven"

    def wire_format(self, incoming: WireFormat) -> WireFormat:
        """The format of this defence's upload, given that of the gradient it receives.

        Args:
            incoming: The format of the gradient; `WireFormat()` for a plain one.

        Returns:
            By default floats without known zeros.
        """
        return WireFormat()

    @final
    def wire_bytes(self, shapes: Mapping[str, torch.Size]) -> int:
        """Return the number of bytes that one client's upload takes in a lossless compact encoding.

        Args:
            shapes: The shape of every parameter, by name: `task.shapes`.

        Returns:
            The number of bytes.

        >>> from refiner.defenses import NoDefense
        >>> NoDefense().wire_bytes({"weight": torch.Size([10, 3])})
        120
        """
        return self.wire_format(WireFormat()).size(shapes)

    def settings(self) -> dict[str, object]:
        """The settings by name, without those that are private to the client."""
        public = (f.name for f in fields(self) if f.init and not f.metadata.get("private"))  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in public}

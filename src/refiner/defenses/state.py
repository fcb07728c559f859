"""`DefenseState`: what a defence remembers between the uploads of one training."""

from collections.abc import Mapping

from torch import Tensor


class DefenseState:
    """The state of a defence that remembers nothing; the base of those that remember something.

    A state belongs to one training on one client and never leaves the client's machine.

    >>> from refiner.defenses import Pruning
    >>> Pruning().init_state().state_dict()
    {}
    """

    def state_dict(self) -> dict[str, Tensor]:
        """All that is remembered, as named tensors for a checkpoint on the client."""
        return {}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace what is remembered by the result of an earlier `state_dict()`.

        Args:
            tensors: That result; an empty mapping clears the state. A stateless defence ignores it.
        """

    def start_training(self, earlier: Mapping[str, Tensor]) -> None:
        """Take over what outlives a training: limits of what a client ever sends. By default nothing.

        Args:
            earlier: The `state_dict()` at the end of an earlier training, of any defence.
        """

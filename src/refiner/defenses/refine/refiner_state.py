"""`RefinerState`: what Refiner remembers between the uploads of a client."""

from collections.abc import Mapping

from torch import Tensor

from refiner.defenses.refine.error_feedback import ErrorFeedback
from refiner.defenses.refine.search_counts import SearchCounts
from refiner.defenses.state import DefenseState
from refiner.errors import DataError

_FEEDBACK, _COUNTS = {"clients", "residuals"}, {"samples", "searches"}


class RefinerState(DefenseState):
    """The residuals of error feedback, and how often each sample has been searched.

    >>> import torch
    >>> state = RefinerState()
    >>> state.searches.take([torch.tensor([[3]])], budget=5).item(), sorted(state.state_dict())
    (True, ['samples', 'searches'])
    """

    def __init__(self) -> None:
        self.feedback = ErrorFeedback()
        self.searches = SearchCounts()

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors of both parts; empty if there are none."""
        return {**self.feedback.state_dict(), **self.searches.state_dict()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the content by that of an earlier `state_dict()`."""
        names = set(tensors)
        if names not in (set(), _FEEDBACK, _COUNTS, _FEEDBACK | _COUNTS):
            expected = "clients and residuals, samples and searches, or both: the tensors of Refiner's state"
            raise DataError(field="state", value=sorted(tensors), expected=expected)
        self.feedback.load_state_dict({name: tensors[name] for name in names & _FEEDBACK})
        self.searches.load_state_dict({name: tensors[name] for name in names & _COUNTS})

    def start_training(self, earlier: Mapping[str, Tensor]) -> None:
        """Take over how often each sample has been searched; residuals belong to their training."""
        if earlier.keys() >= _COUNTS:
            self.searches.load_state_dict({name: earlier[name] for name in _COUNTS})

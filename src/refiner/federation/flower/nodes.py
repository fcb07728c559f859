"""Which nodes of a grid are there, and free to be asked."""

import time
from dataclasses import dataclass, field

from flwr.serverapp import Grid

from refiner import checks
from refiner.errors import DataError

_POLL = 0.25


@dataclass
class Nodes:
    """The nodes of a grid.

    A node does one order after the other. One that is late would be late again: it is asked anew once its old
    answer is there, which is thrown away.

    >>> Nodes(patience=0)
    Traceback (most recent call last):
    refiner.errors.SettingError: patience = 0: expected a number in (0, ∞)
    """

    patience: float = 600.0
    """Seconds to wait for as many as are wanted."""
    owing: dict[str, int] = field(default_factory=dict)
    """By the id of an order that was not answered in time, the node that it went to."""
    busy: int = 0
    """How many of those who were there at the last look still owe an answer."""

    def __post_init__(self) -> None:
        checks.number("patience", self.patience, 0, above=True)

    def free(self, grid: Grid, wanted: int) -> list[int]:
        """Those who are there and owe nothing, in rising order, once there are `wanted`."""
        end = time.monotonic() + self.patience
        while True:
            if self.owing:
                for late in grid.pull_messages(list(self.owing)):
                    self.owing.pop(late.metadata.reply_to_message_id, None)
            there = set(grid.get_node_ids())
            found = sorted(there - set(self.owing.values()))
            self.busy = len(there) - len(found)
            if len(found) >= wanted:
                return found
            if time.monotonic() >= end:
                waited = f"waited {self.patience:g} s for {wanted} nodes"
                raise DataError(f"{waited}, {len(found)} are there and free")
            time.sleep(_POLL)

"""Which nodes of a Flower grid are connected and free to be asked."""

import time
from dataclasses import dataclass, field

from flwr.serverapp import Grid

from refiner import checks
from refiner.errors import DataError

_POLL_SECONDS = 0.25


@dataclass
class NodeTracker:
    """Tracks which nodes still owe a reply.

    A node handles one message after the other, so one that missed a deadline would miss the next one too. It
    is asked again once its late reply has arrived; the late reply is discarded.

    Args:
        timeout: Seconds to wait until enough nodes are free.

    >>> NodeTracker(timeout=0)
    Traceback (most recent call last):
    refiner.errors.SettingError: timeout = 0: expected a number in (0, ∞)
    """

    timeout: float = 600.0
    unanswered: dict[str, int] = field(default_factory=dict)
    """The node of each message, by message id, that was not answered in time."""
    busy: int = 0
    """Number of connected nodes that still owed a reply when `wait_for_free` last looked."""

    def __post_init__(self) -> None:
        checks.number("timeout", self.timeout, 0, above=True)

    def wait_for_free(self, grid: Grid, count: int) -> list[int]:
        """The ids of all free nodes, in ascending order, as soon as there are `count`."""
        end = time.monotonic() + self.timeout
        while True:
            if self.unanswered:
                for late in grid.pull_messages(list(self.unanswered)):
                    self.unanswered.pop(late.metadata.reply_to_message_id, None)
            connected = set(grid.get_node_ids())
            free = sorted(connected - set(self.unanswered.values()))
            self.busy = len(connected) - len(free)
            if len(free) >= count:
                return free
            if time.monotonic() >= end:
                raise DataError(
                    f"nodes: {len(free)} connected and free after {self.timeout:g} s, expected {count}",
                    field="nodes",
                    value=len(free),
                    expected=str(count),
                )
            time.sleep(_POLL_SECONDS)

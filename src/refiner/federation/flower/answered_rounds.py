"""`answered.json`: a client answers once for every round of a run, and keeps a run's settings.

A batch is a position in an order that only the client knows. With another batch size, number of local steps
or model, a server could ask for known positions again: for one image of a batch, or for the batches of two
rounds as the steps of one.
"""

import json
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from refiner import checks
from refiner.errors import SettingError
from refiner.federation.flower.messages import RefusedRequest, TrainInstructions
from refiner.federation.flower.received_array import quote
from refiner.files import file_error, locked, write_atomically


@dataclass(frozen=True)
class AnsweredRun:
    """What a client keeps of a run: its last round, and the settings that every round of the run has.

    Args:
        round: The last round begun.
        model: Name of the model, with settings.
        batch: Samples in a local step, as requested.
        local_steps: Number of local steps.

    Raises:
        SettingError: If a value has the wrong type or lies outside its range.

    >>> AnsweredRun(round=0, model="lenet", batch=16, local_steps=1)
    Traceback (most recent call last):
    refiner.errors.SettingError: round = 0: expected an integer ≥ 1
    """

    round: int
    model: str
    batch: int
    local_steps: int

    def __post_init__(self) -> None:
        for name in ("round", "batch", "local_steps"):
            checks.integer(name, getattr(self, name), 1)
        if not isinstance(self.model, str):
            raise checks.wrong("model", self.model, "a string")

    @classmethod
    def begin(cls, instructions: TrainInstructions) -> "AnsweredRun":
        """The run whose first request has these instructions."""
        return cls(instructions.round, instructions.model, instructions.batch, instructions.local_steps)

    def next(self, instructions: TrainInstructions) -> "AnsweredRun":
        """The run after a request with these instructions.

        Raises:
            RefusedRequest: The round is not a later one, or the settings are not those of the run.

        >>> instructions = TrainInstructions(4, "lenet", 10, batch=1, local_steps=1, lr=0.1)
        >>> AnsweredRun(round=3, model="lenet", batch=16, local_steps=1).next(instructions)
        Traceback (most recent call last):
        refiner.federation.flower.messages.RefusedRequest: batch = 1: this client accepts 16 in this run, ...
        """
        if instructions.round <= self.round:
            raise RefusedRequest(
                f"round {instructions.round}: this client has begun round {self.round} already"
            )
        for name in ("model", "batch", "local_steps"):
            value, kept = getattr(instructions, name), getattr(self, name)
            if value != kept:
                value, kept = (quote(each) if isinstance(each, str) else each for each in (value, kept))
                raise RefusedRequest(
                    f"{name} = {value}: this client accepts {kept} in this run, as in its first round"
                )
        return replace(self, round=instructions.round)


def begin_round(folder: Path, run: int, instructions: TrainInstructions) -> None:
    """Remember that a client answers a request; on the disk when this returns.

    Args:
        folder: The client's private folder.
        run: Flower's id of the run.
        instructions: The instructions of the request.

    Raises:
        RefusedRequest: The client has answered for this round, or a later one, or answers at the moment; or
            model, batch size or local steps are not those of the first request begun in this run.
        DataError: The file is damaged. Only the client may decide to delete it.

    >>> import tempfile
    >>> instructions = TrainInstructions(3, "lenet", 10, batch=16, local_steps=1, lr=0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     begin_round(Path(folder), 1, instructions)
    ...     begin_round(Path(folder), 2, instructions)
    ...     begin_round(Path(folder), 1, instructions)
    Traceback (most recent call last):
    refiner.federation.flower.messages.RefusedRequest: round 3: this client has begun round 3 already
    """
    with one_at_a_time(folder):
        begin_round_unlocked(folder, run, instructions)


def begin_round_unlocked(folder: Path, run: int, instructions: TrainInstructions) -> None:
    """As `begin_round`, for a caller that is within `one_at_a_time` already."""
    path = folder / "answered.json"
    try:
        runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        kept = runs.get(str(run))
        answered = None if kept is None else AnsweredRun(**kept)
    except (OSError, ValueError, AttributeError, TypeError, SettingError) as error:
        expected = (
            "the last round and the settings of every run as JSON; delete it when no training is running"
        )
        raise file_error(path, f"expected {expected}", expected) from error
    answered = answered.next(instructions) if answered else AnsweredRun.begin(instructions)
    write_atomically(path, json.dumps({**runs, str(run): asdict(answered)}).encode(), private=True)


def one_at_a_time(folder: Path) -> AbstractContextManager[None]:
    """Let one process of a client at a time decide on a request: two could start from the same state."""
    return locked(folder, RefusedRequest("this client is answering another request; nothing is sent"))

"""`answered.json`: a client answers once for every round of a run, whatever a server asks for."""

import json
from contextlib import AbstractContextManager
from pathlib import Path

from refiner import checks
from refiner.errors import SettingError
from refiner.federation.flower.messages import RefusedRequest
from refiner.files import file_error, locked, write_atomically


def begin_round(folder: Path, run: int, round: int) -> None:
    """Remember that a client answers for a round; on the disk when this returns.

    Args:
        folder: The client's private folder.
        run: Flower's id of the run.
        round: Number of the round.

    Raises:
        RefusedRequest: The client has answered for this round, or a later one, or answers at the moment.
        DataError: The file is damaged. Only the client may decide to delete it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     begin_round(Path(folder), run=1, round=3)
    ...     begin_round(Path(folder), run=2, round=3)
    ...     begin_round(Path(folder), run=1, round=3)
    Traceback (most recent call last):
    refiner.federation.flower.messages.RefusedRequest: round 3: this client has begun round 3 already
    """
    path = folder / "answered.json"
    with one_at_a_time(folder):
        try:
            last_rounds = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            last = checks.integer("round", last_rounds.get(str(run), 0), 0)
        except (OSError, ValueError, AttributeError, SettingError) as error:
            expected = "the last round of every run as JSON; delete it when no training is running"
            raise file_error(path, f"expected {expected}", expected) from error
        if round <= last:
            raise RefusedRequest(f"round {round}: this client has begun round {last} already")
        write_atomically(path, json.dumps({**last_rounds, str(run): round}).encode(), private=True)


def one_at_a_time(folder: Path) -> AbstractContextManager[None]:
    """Let one process of a client at a time decide on a request: two could start from the same state."""
    return locked(folder, RefusedRequest("this client is answering another request; nothing is sent"))

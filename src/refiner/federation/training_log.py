"""The log of a training: one line of JSON for every evaluation."""

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from refiner.files import file_error, write_atomically


@dataclass(frozen=True)
class Evaluation:
    """The scores of a model on test data, which the server has, after some rounds.

    Args:
        round: Rounds done.
        accuracy: The share of test samples classified correctly, in [0, 1].
        loss: The mean loss of a test sample; None if it is not finite, or was not logged.
    """

    round: int
    accuracy: float
    loss: float | None = None


def append_to_log(log: Path, evaluation: Evaluation) -> None:
    """Append an evaluation to a log, and wait until it is on the disk.

    Args:
        log: The file; it and its folder are created if need be.
        evaluation: The scores.

    Raises:
        DataError: The file can't be written.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(_line(evaluation))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise file_error(
            log, f"can't be written ({error.strerror or error})", "a path that can be written"
        ) from error


def read_log(log: Path, rounds: int) -> list[Evaluation]:
    """Return the evaluations after up to `rounds` rounds; later ones are removed from the file.

    Args:
        log: The file; there may be none.
        rounds: The rounds that the training's checkpoint has done.

    Returns:
        The evaluations; those of a log without losses have none.

    Raises:
        DataError: A line other than the last, which may be incomplete, is not an evaluation.
    """
    if not log.exists():
        return []
    found: list[Evaluation] = []
    lines = log.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            evaluation = _parse(line)
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):  # half a line: the process was killed while it wrote
                break
            raise file_error(
                log,
                f"line {number} is not an entry of a training's log",
                "an entry of a training's log in every line",
            ) from error
        if evaluation.round <= rounds:
            found.append(evaluation)
    write_atomically(log, "".join(map(_line, found)).encode())
    return found


def _parse(line: str) -> Evaluation:
    row = json.loads(line)
    loss = row.get("loss")
    if loss is not None and not math.isfinite(loss := float(loss)):
        raise ValueError("loss is not finite")
    return Evaluation(int(row["round"]), float(row["accuracy"]), loss)


def _line(evaluation: Evaluation) -> str:
    return json.dumps(asdict(evaluation)) + "\n"

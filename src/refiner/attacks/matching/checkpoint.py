"""The state of an attack on disk: rejected if it is damaged or belongs to another attack."""

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from refiner.attacks.matching.descent import DescentState
from refiner.checkpoint import tensors_digest
from refiner.errors import DataError
from refiner.files import write_atomically

_FORMAT_PREFIX = "refiner-attack-"
_FORMAT = f"{_FORMAT_PREFIX}4"
_RESULTS = ("z", "value", "diverged")
_NOT_OVERWRITTEN = "nothing was overwritten"
_START_ANEW = f"{_NOT_OVERWRITTEN}. Remove it to start anew"
_SECONDS_BETWEEN_SAVES = 20.0


def fingerprint(*settings: object, tensors: Iterable[Tensor] = ()) -> str:
    """Return the SHA-256 of settings, by their `repr`, and of the bytes of tensors.

    >>> fingerprint("a", tensors=[torch.zeros(2)]) == fingerprint("b", tensors=[torch.zeros(2)])
    False
    """
    sha256 = hashlib.sha256(repr(settings).encode())
    for tensor in tensors:
        sha256.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return sha256.hexdigest()


class AttackCheckpoint:
    """Results of finished victims and the state of the present chunk, saved to a file if there is a path.

    Args:
        path: The file, or None. An existing one is loaded.
        fingerprints: One for each thing that the state depends on, by name.
        device: Where loaded tensors go.
        chunk: Victims at a time; a run that continues keeps the chunk with which it began.

    Raises:
        DataError: The file is damaged, or of another attack.

    >>> checkpoint = AttackCheckpoint(None, {}, "cpu", chunk=8)
    >>> checkpoint.begin, checkpoint.iteration, checkpoint.state
    (0, 0, None)
    """

    def __init__(self, path: Path | None, fingerprints: Mapping[str, str], device: str, chunk: int) -> None:
        self.path = path
        self.fingerprints = fingerprints
        self.chunk = chunk
        self.begin = 0
        """The first victim that is not finished."""
        self.iteration = 0
        self.state: DescentState | None = None
        self._finished: list[tuple[Tensor, ...]] = []
        self._saved_at = time.perf_counter()
        if path is not None and path.exists():
            self._load(path, device)

    def advance(self, iteration: int, state: DescentState) -> None:
        """Set the state of the present chunk, and save it if the last save is some time ago."""
        self.iteration, self.state = iteration, state
        if time.perf_counter() - self._saved_at > _SECONDS_BETWEEN_SAVES:
            self.save()

    def finish(self, until: int, *results: Tensor) -> None:
        """Add the results of the present chunk: all victims before `until` are finished."""
        self.begin, self.iteration, self.state = until, 0, None
        self._finished.append(results)
        self.save()

    def results(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the finished victims' variables, objectives, and whether they diverged."""
        z, value, diverged = (torch.cat(column) for column in zip(*self._finished, strict=True))
        return z, value, diverged

    def save(self) -> None:
        """Write everything to the file, if there is a path."""
        if self.path is None:
            return
        tensors: dict[str, Tensor] = {}
        if self._finished:
            tensors |= {f"finished {name}": t for name, t in zip(_RESULTS, self.results(), strict=True)}
        if self.state is not None:
            *state, optimizer_state = self.state
            tensors |= {f"state {name}": t for name, t in zip(DescentState._fields, state, strict=False)}
            tensors |= {f"optimizer {i}": t for i, t in enumerate(optimizer_state)}
        position = {"begin": self.begin, "iteration": self.iteration, "chunk": self.chunk}
        write_attack_state(self.path, self.fingerprints, position, tensors)
        self._saved_at = time.perf_counter()

    def _load(self, path: Path, device: str) -> None:
        position, tensors = read_same_attack(path, self.fingerprints)
        try:
            tensors = {name: t.to(device) for name, t in tensors.items()}
            self.begin, self.iteration = int(position["begin"]), int(position["iteration"])
            self.chunk = int(position["chunk"])
            if self.begin:
                self._finished = [tuple(tensors[f"finished {name}"] for name in _RESULTS)]
            if self.iteration:
                count = sum(name.startswith("optimizer ") for name in tensors)
                optimizer_state = tuple(tensors[f"optimizer {i}"] for i in range(count))
                z, best_z, value, diverged = (tensors[f"state {n}"] for n in DescentState._fields[:-1])
                self.state = DescentState(z, best_z, value, diverged, optimizer_state)
        except (KeyError, ValueError, AttributeError, TypeError) as error:
            raise _unreadable(path) from error


def write_attack_state(
    path: Path, fingerprints: Mapping[str, str], position: Mapping[str, int], tensors: Mapping[str, Tensor]
) -> None:
    """Write the state of an attack, completely or not at all.

    Args:
        path: The file; an existing one is replaced.
        fingerprints: One for each thing that the state depends on, by name.
        position: How far the attack is, by name.
        tensors: The state by name.

    Raises:
        DataError: The file can't be written.
    """
    header = {
        "format": _FORMAT,
        "attack": json.dumps(fingerprints),
        "position": json.dumps(position),
    }
    # Clones: safetensors rejects tensors that share memory, as the first and the best point do.
    copies = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    write_atomically(path, save(copies, header | {"sum": tensors_digest(copies, header)}), private=True)


def read_same_attack(path: Path, fingerprints: Mapping[str, str]) -> tuple[dict[str, int], dict[str, Tensor]]:
    """Return the position and the tensors of a state on disk, if it is of the same attack.

    Args:
        path: A file that `write_attack_state` wrote.
        fingerprints: Those of the attack that continues.

    Raises:
        DataError: The file is damaged, or of another attack.
    """
    header, tensors = read_attack_state(path)
    try:
        position = {str(name): int(value) for name, value in json.loads(header["position"]).items()}
        saved = dict(json.loads(header["attack"]))
    except (KeyError, ValueError, AttributeError, TypeError) as error:
        raise _unreadable(path) from error
    different = [n for n in dict.fromkeys([*fingerprints, *saved]) if saved.get(n) != fingerprints.get(n)]
    if different:
        names = ", ".join(different)
        raise _rejected(path, f"of an attack that differs in {names}; {_NOT_OVERWRITTEN}")
    return position, tensors


def read_attack_state(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the header and the tensors of a state on disk.

    Raises:
        DataError: The file is damaged, of another version of refiner, or no state of an attack.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            version = header.get("format", "")
            if version != _FORMAT:
                problem = (
                    "of another version of refiner"
                    if version.startswith(_FORMAT_PREFIX)
                    else "not the state of an attack"
                )
                raise _rejected(path, f"{problem}; {_NOT_OVERWRITTEN}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise _unreadable(path) from error
    # The checksum comes before any other use of the content.
    if header.pop("sum", "") != tensors_digest(tensors, header):
        raise _rejected(path, f"its checksum is wrong, it was damaged or changed; {_START_ANEW}")
    return header, tensors


def _unreadable(path: Path) -> DataError:
    return _rejected(path, f"unreadable or cut short; {_START_ANEW}")


def _rejected(path: Path, problem: str) -> DataError:
    return DataError(
        f"resume = {str(path)!r}: {problem}",
        field="resume",
        value=str(path),
        expected="the state of this attack, or no file",
    )

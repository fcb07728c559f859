"""How far an attack has come, and its state on disk: refused if it is not whole, or of another attack."""

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from refiner.attacks.search import Search
from refiner.checkpoint import digest
from refiner.errors import DataError
from refiner.files import write_whole

_KIND = "refiner-attack-"
_FORMAT = f"{_KIND}3"
_RESULTS = ("z", "best", "diverged")
_KEPT = "nothing was overwritten"
# Seconds between two states on disk.
_SAVE = 20.0


def fingerprint(*parts: object, tensors: Iterable[Tensor] = ()) -> str:
    """A checksum of settings, as text, and of tensors.

    >>> fingerprint("a", tensors=[torch.zeros(2)]) == fingerprint("b", tensors=[torch.zeros(2)])
    False
    """
    digest = hashlib.sha256(repr(parts).encode())
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Checkpoint:
    """Finished victims, and the search for those under attack; with a path it outlives a kill.

    >>> held = Checkpoint(None, {}, "cpu", size=8)
    >>> held.begin, held.iteration, held.search
    (0, 0, None)
    """

    def __init__(self, path: Path | None, identity: Mapping[str, str], device: str, size: int) -> None:
        self.path = path
        self.identity = identity
        """What the attack is: the checksum of each of its parts, by name."""
        self.size = size
        """Victims at a time; a run that goes on keeps to the size with which it began."""
        self.begin = 0
        """The first victim that is not finished."""
        self.iteration = 0
        self.search: Search | None = None
        self._done: list[tuple[Tensor, ...]] = []
        self._saved = time.perf_counter()
        if path is not None and path.exists():
            self._load(path, device)

    def advance(self, iteration: int, search: Search) -> None:
        """The search goes on."""
        self.iteration, self.search = iteration, search
        if time.perf_counter() - self._saved > _SAVE:
            self.store()

    def finish(self, until: int, *results: Tensor) -> None:
        """All victims before `until` are finished."""
        self.begin, self.iteration, self.search = until, 0, None
        self._done.append(results)
        self.store()

    def results(self) -> tuple[Tensor, Tensor, Tensor]:
        """The finished victims' variables, objectives and whether they diverged."""
        z, best, diverged = (torch.cat(parts) for parts in zip(*self._done, strict=True))
        return z, best, diverged

    def store(self) -> None:
        """Put the state on disk, if there is a place for it."""
        if self.path is None:
            return
        tensors: dict[str, Tensor] = {}
        if self._done:
            tensors |= {f"done {n}": t for n, t in zip(_RESULTS, self.results(), strict=True)}
        if self.search is not None:
            *held, memory = self.search
            tensors |= {f"search {n}": t for n, t in zip(Search._fields, held, strict=False)}
            tensors |= {f"memory {i}": t for i, t in enumerate(memory)}
        about = {"begin": self.begin, "iteration": self.iteration, "size": self.size}
        told = {"attack": self.identity, "position": about}
        header = {"format": _FORMAT, **{name: json.dumps(value) for name, value in told.items()}}
        # Clones: the format refuses tensors that share memory, as a first guess and the best one do.
        whole = {name: t.cpu().contiguous().clone() for name, t in tensors.items()}
        write_whole(self.path, save(whole, header | {"sum": digest(whole, header)}))
        self._saved = time.perf_counter()

    def _load(self, path: Path, device: str) -> None:
        about, tensors = read_state(path)
        try:
            tensors = {name: t.to(device) for name, t in tensors.items()}
            position = json.loads(about["position"])
            identity = json.loads(about["attack"])
            names = dict.fromkeys([*self.identity, *identity])
            other = [name for name in names if identity.get(name) != self.identity.get(name)]
            if other:
                raise DataError(
                    f"resume = {str(path)!r}: of an attack that differs in {', '.join(other)}; {_KEPT}"
                )
            self.begin, self.iteration = int(position["begin"]), int(position["iteration"])
            self.size = int(position["size"])
            if self.begin:
                self._done = [tuple(tensors[f"done {name}"] for name in _RESULTS)]
            if self.iteration:
                memory = [
                    tensors[f"memory {i}"] for i in range(sum(n.startswith("memory ") for n in tensors))
                ]
                z, best_z, best, diverged = (tensors[f"search {name}"] for name in Search._fields[:-1])
                self.search = Search(z, best_z, best, diverged, tuple(memory))
        except (KeyError, ValueError, AttributeError, TypeError) as error:
            raise error if isinstance(error, DataError) else _unreadable(path) from error


def read_state(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """What a state on disk tells of itself, and its tensors; refused if it is not whole."""
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if (found := about.get("format", "")) != _FORMAT:
                another = found.startswith(_KIND)
                told = "of another version of refiner" if another else "not the state of an attack"
                raise DataError(f"resume = {str(path)!r}: {told}; {_KEPT}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise _unreadable(path) from error
    # Before anything in it is believed.
    if about.pop("sum", "") != digest(tensors, about):
        raise DataError(
            f"resume = {str(path)!r}: its checksum is wrong, it was damaged or changed; {_KEPT}. "
            "Remove it to start anew"
        )
    return about, tensors


def _unreadable(path: Path) -> DataError:
    return DataError(f"resume = {str(path)!r}: unreadable or cut short; {_KEPT}. Remove it to start anew")

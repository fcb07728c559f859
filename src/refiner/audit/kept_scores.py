"""The scores of an inference attack in a folder: finished ones are read, so that an audit continues."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from refiner.attacks import ThreatModel
from refiner.audit.local_update import UPLOADS_REVISION
from refiner.audit.seeds import VICTIMS
from refiner.audit.serialization import dump_with_checksum, load_with_checksum, to_json_value
from refiner.audit.settings_identity import library_versions, model_settings, settings_digest, tensors_sha256
from refiner.core.task import Task
from refiner.defenses import Defense
from refiner.errors import DataError
from refiner.files import write_atomically


@dataclass(frozen=True, eq=False)
class ScoreSettings:
    """Everything that the scores of an attack depend on except the defence, as JSON values.

    Args:
        folder: Where scores are kept; None keeps nothing.
        values: The settings.
    """

    folder: Path | None
    values: Mapping[str, object]

    @classmethod
    def of(
        cls,
        folder: Path | None,
        task: Task,
        data: Mapping[str, Tensor | None],
        *,
        attack: str,
        attack_settings: Mapping[str, object],
        threat: ThreatModel,
        seed: int,
        further: Mapping[str, object] | None = None,
    ) -> "ScoreSettings":
        """Return the settings of an audit.

        Args:
            folder: Where scores are kept; None keeps nothing, and nothing is computed for it.
            task: The model and its loss.
            data: Images, labels and whatever else the attack reads, by name.
            attack: The attack's name.
            attack_settings: Its settings.
            threat: What the attacker is given.
            seed: The seed of the audit.
            further: Whatever else the scores depend on.
        """
        if folder is None:
            return cls(None, {})
        parameter = next(iter(task.parameters().values()))
        return cls(
            folder,
            {
                "seed": seed,
                "attack": {"name": attack, **to_json_value(attack_settings)},
                "threat": asdict(threat),
                "model": model_settings(task),
                "data": {
                    name: [list(tensor.shape), tensors_sha256([tensor])]
                    for name, tensor in data.items()
                    if tensor is not None
                },
                "device": str(parameter.device),
                "deterministic": torch.are_deterministic_algorithms_enabled(),
                "dtype": str(parameter.dtype).removeprefix("torch."),
                "uploads revision": UPLOADS_REVISION,
                "versions": library_versions(),
                **to_json_value(further or {}),
            },
        )

    def kept(self, task: Task, defense: Defense, compute: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return the scores of one defence: those in the folder, or else the computed ones, which are saved.

        Args:
            task: The model and its loss.
            defense: The defence of the uploads.
            compute: Returns the scores as JSON values; not called if the folder has them.

        Raises:
            DataError: The file of these settings is damaged or has others, or can't be written.
        """
        if self.folder is None:
            return dict(compute())
        networks = defense.networks(task).items()
        settings = {
            **self.values,
            "defense": {"name": defense.name, "seed": VICTIMS, **to_json_value(defense.settings())},
            "networks": {name: tensors_sha256(network.state_dict().values()) for name, network in networks},
        }
        path = self.folder / f"{defense.name}-{settings_digest(settings)[:12]}.json"
        if path.exists():
            return _read(path, settings)
        scores = dict(compute())
        body = {"settings": settings, "scores": scores}
        write_atomically(path, dump_with_checksum(body).encode())
        return scores


def _read(path: Path, settings: Mapping[str, object]) -> dict[str, Any]:
    """The scores of a file; raises if it is damaged, or was renamed from that of other settings."""
    try:
        body = load_with_checksum(path.read_text(encoding="utf-8"), str(path))
    except (DataError, OSError, ValueError) as error:
        problem = f"{error}; remove it to run this audit again"
        raise DataError(problem, field="out", value=str(path.parent)) from error
    kept = body.get("settings")
    scores = body.get("scores")
    is_same = isinstance(kept, Mapping) and settings_digest(kept) == settings_digest(settings)
    if not is_same or not isinstance(scores, dict):
        problem = f"{path}: has other settings; rename it to run this audit again"
        raise DataError(problem, field="out", value=str(path.parent))
    return scores

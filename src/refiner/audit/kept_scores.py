"""What the scores of an inference attack depend on: which control belongs to them, which files have them."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from refiner.attacks import ThreatModel
from refiner.audit.local_update import UPLOADS_REVISION
from refiner.audit.seeds import VICTIMS
from refiner.audit.serialization import dump_with_checksum, load_with_checksum, to_json_value
from refiner.audit.settings_identity import (
    first_difference,
    library_versions,
    model_settings,
    settings_digest,
    tensors_sha256,
)
from refiner.core.task import Task
from refiner.defenses import Defense, NoDefense
from refiner.errors import DataError
from refiner.files import write_atomically


class InferenceResult(Protocol):
    """The result of an audit of inference."""

    @property
    def defense(self) -> str:
        """Name of the defence."""

    @property
    def settings(self) -> Mapping[str, object]:
        """`ScoreSettings.values` of the audit."""


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
            folder: Where scores are kept; None keeps nothing.
            task: The model and its loss.
            data: Images, labels and whatever else the attack reads, by name.
            attack: The attack's name.
            attack_settings: Its settings.
            threat: What the attacker is given.
            seed: The seed of the audit.
            further: Whatever else the scores depend on.
        """
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

    def check_control(self, control: InferenceResult) -> None:
        """Raise a DataError unless a result is that of these settings without a defence.

        Args:
            control: The result.

        Raises:
            DataError: It has a defence, or is of other data, another model, attack, training or seed.
        """
        is_undefended = control.defense == NoDefense.name
        if is_undefended and settings_digest(control.settings) == settings_digest(self.values):
            return
        difference = first_difference(self.values, control.settings) if is_undefended else "defense"
        expected = f"the same audit without a defence (other: {difference})"
        raise DataError(field="control", value=control, expected=expected)

    def kept(
        self,
        task: Task,
        defense: Defense,
        compute: Callable[[], Mapping[str, Any]],
        further: Mapping[str, object] | None = None,
    ) -> dict[str, Any]:
        """Return the scores of one defence: those in the folder, or else the computed ones, which are saved.

        Args:
            task: The model and its loss.
            defense: The defence of the uploads.
            compute: Returns the scores as JSON values; not called if the folder has them.
            further: Settings that this defence's file has besides those of the audit.

        Raises:
            DataError: The file of these settings is damaged or has others, or can't be written.
        """
        if self.folder is None:
            return dict(compute())
        networks = defense.networks(task).items()
        settings = {
            **self.values,
            **to_json_value(further or {}),
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

"""The result of an audit: scores of every image, their means, verdicts, images and all settings."""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refiner.audit import serialization
from refiner.audit.result_records import (
    SCORES,
    Control,
    Finding,
    FromRobust,
    Mean,
    Seconds,
    TuningResult,
    UploadCost,
    control_from_json,
    cost_from_json,
    finding_from_json,
    from_robust_from_json,
    tuning_from_json,
)
from refiner.errors import DataError
from refiner.files import write_atomically
from refiner.metrics import GroupVerdict, Share

Pixels = NDArray[np.uint8]
"""`[N, height, width, 3]`"""

IMAGE_FIELDS = ("original", "reconstruction", "robust")
_OPTIONAL_PARTS: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
    "tuned": tuning_from_json,
    "control": control_from_json,
    "from_robust": from_robust_from_json,
    "cost": cost_from_json,
}
_ADDED_LATER = ("cost",)  # files of earlier versions lack them


@dataclass(frozen=True, eq=False)
class AuditResult:
    """The result of one attack on one defence, with everything that is needed to repeat it.

    Returned by `refiner.audit`; saved and loaded as one JSON file.

    Attributes:
        defense: Name of the defence.
        attack: Name of the attack.
        victims: Number of clients.
        batch: Images in each client's batch.
        findings: Scores and verdict of every image, client by client.
        means: Means with intervals of all scores, of `top1_pixels` and `top1_lpips` (how often the original
            is the most similar candidate), and of the blind guess (`blind_psnr`, `blind_ssim`, …).
        verdict: The verdict on all images together; "no verdict" where the attack fails on undefended
            uploads, diverged, or was not tried on them.
        candidates: Number of images among which the original was sought; None if it was not.
        label_recovery: Share of labels inferred from the uploads; None if the attacker was given them.
        objective: The attack's lowest objective for every client.
        diverged: For every client, whether the attack stopped early because of non-finite numbers, or
            returned some.
        original: Images uint8 `[N, height, width, 3]`.
        reconstruction: The reconstructions, in the order of the originals.
        robust: The robust data that the defence uploaded gradients of; None if it does not make any.
        seconds: Time spent on each stage.
        made: When the audit was finished.
        settings: Settings of defence, attack, model, data and threat model, with all seeds and versions.
        tuned: How the attack was tuned; None if it was not.
        upload_bytes: Size of one client's upload in its compact encoding; None if unknown.
        control: The same attack on undefended uploads of the same images, for a lone result of `none` the
            result itself; None if it was not run.
        from_robust: What can be reached from the robust data themselves; None if that was not measured.
        cost: Gradient error and time of an upload; None in files of versions that did not measure them.

    >>> import torch
    >>> from refiner.attacks import InvertingGradients
    >>> from refiner.audit import audit
    >>> from refiner.core import Task
    >>> from refiner.data import load_sample
    >>> sample = load_sample()
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10))
    >>> task = Task(model, example=sample.images[:1])
    >>> attack = InvertingGradients(iterations=2)
    >>> result = audit(task, sample.images[:2], sample.labels[:2], defense="none", attack=attack, metrics=[])
    >>> len(result.findings), len(result.scores("psnr")), result.reconstruction.shape
    (2, 2, (2, 32, 32, 3))
    >>> result.means["psnr"].value == sum(result.scores("psnr")) / 2
    True
    >>> AuditResult.from_json(result.to_json()).to_json() == result.to_json()
    True
    """

    defense: str
    attack: str
    victims: int
    batch: int
    findings: tuple[Finding, ...]
    means: Mapping[str, Mean]
    verdict: GroupVerdict
    candidates: int | None
    label_recovery: float | None
    objective: tuple[float, ...]
    diverged: tuple[bool, ...]
    original: Pixels
    reconstruction: Pixels
    robust: Pixels | None
    seconds: Seconds
    made: datetime
    settings: Mapping[str, object]
    tuned: TuningResult | None = None
    upload_bytes: int | None = None
    control: Control | None = None
    from_robust: FromRobust | None = None
    cost: UploadCost | None = None

    def __post_init__(self) -> None:
        count = self.victims * self.batch
        if len(self.findings) != count or not count:
            raise DataError(
                f"findings: {len(self.findings)}, expected {self.victims} × {self.batch}", field="findings"
            )
        if len(self.objective) != self.victims or len(self.diverged) != self.victims:
            name = "objective" if len(self.objective) != self.victims else "diverged"
            raise DataError(
                f"objective, diverged: expected one value for each of {self.victims} victims",
                field=name,
                value=len(getattr(self, name)),
                expected=f"{self.victims} values",
            )
        for name in IMAGE_FIELDS:
            pixels = getattr(self, name)
            if pixels is None and name == "robust":
                continue
            if pixels.dtype != np.uint8 or pixels.ndim != 4 or len(pixels) != count or pixels.shape[3] != 3:
                raise DataError(
                    f"{name}: {pixels.dtype} {list(pixels.shape)}, "
                    f"expected uint8 [{count}, height, width, 3]",
                    field=name,
                )

    def scores(self, name: str) -> list[float]:
        """Return one score of every image that has it.

        Args:
            name: One of `SCORES`: "mse", "psnr", "ssim", "lpips", "noise", "rank_pixels", "rank_lpips",
                "blind_psnr", "blind_ssim", "blind_lpips".

        Returns:
            The scores in the order of the images.

        Raises:
            DataError: if there is no score of that name.
        """
        if name not in SCORES:
            raise DataError(field="name", value=name, expected=f"one of {', '.join(SCORES)}")
        return [value for finding in self.findings if (value := getattr(finding, name)) is not None]

    def __repr__(self) -> str:
        psnr = f"PSNR {self.means['psnr'].value:.1f} dB"
        return (
            f"AuditResult({self.defense} against {self.attack}, {psnr}, "
            f"{self.verdict.level}: {self.verdict.reason})"
        )

    def to_json(self) -> str:
        """Return the result as JSON without loss; equal results give equal text."""
        record = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in IMAGE_FIELDS:
            record[name] = None if record[name] is None else serialization.encode_pixels(record[name])
        record |= {"findings": [asdict(finding) for finding in self.findings], "made": self.made.isoformat()}
        record |= {"means": {name: asdict(mean) for name, mean in self.means.items()}}
        record |= {"verdict": asdict(self.verdict), "seconds": asdict(self.seconds)}
        for name in _OPTIONAL_PARTS:
            record[name] = None if record[name] is None else asdict(record[name])
        return serialization.dump_with_checksum(serialization.to_json_value(record))

    @classmethod
    def from_json(cls, text: str, name: str = "audit") -> "AuditResult":
        """Return the result that `to_json` wrote.

        Args:
            text: The JSON text.
            name: What to call it in an error, as the file's name.

        Returns:
            The result.

        Raises:
            DataError: if the text is not a complete, unchanged audit result.

        >>> AuditResult.from_json("{}", name="a.json")
        Traceback (most recent call last):
        refiner.errors.DataError: a.json: not an audit result (its format is not 'refiner-audit-2')
        """
        record = serialization.load_with_checksum(text, name)
        try:
            for images in IMAGE_FIELDS:
                record[images] = (
                    None if record[images] is None else serialization.decode_pixels(record[images])
                )
            record["findings"] = tuple(finding_from_json(finding) for finding in record["findings"])
            record["means"] = {score: Mean(**mean) for score, mean in record["means"].items()}
            record["objective"] = tuple(
                serialization.from_json_number(value) for value in record["objective"]
            )
            record["diverged"] = tuple(bool(value) for value in record["diverged"])
            shares = {share: Share(**record["verdict"][share]) for share in ("visible", "identifiable")}
            record["verdict"] = GroupVerdict(**{**record["verdict"], **shares})
            record["seconds"] = Seconds(**record["seconds"])
            record["made"] = datetime.fromisoformat(record["made"])
            record = {**dict.fromkeys(_ADDED_LATER), **record}
            for part, parse in _OPTIONAL_PARTS.items():
                record[part] = None if record[part] is None else parse(record[part])
            return cls(**record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise serialization.invalid_result(name, f"{type(error).__name__}: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the result as one JSON file, completely or not at all.

        Args:
            path: The file.

        Returns:
            Its path.
        """
        return write_atomically(path, self.to_json().encode("utf-8", "surrogatepass"), private=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "AuditResult":
        """Return the result that `save` wrote.

        Args:
            path: The file.

        Returns:
            The result.

        Raises:
            DataError: if the file is missing, incomplete, changed, or not an audit result.

        >>> AuditResult.load("absent.json")
        Traceback (most recent call last):
        refiner.errors.DataError: absent.json: not an audit result (No such file or directory)
        """
        try:
            text = Path(path).read_text(encoding="utf-8", errors="surrogatepass")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "not text"
            raise serialization.invalid_result(str(path), reason) from error
        return cls.from_json(text, str(path))

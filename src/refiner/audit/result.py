"""What an audit found: scores of every image, their means, verdicts, images, and all that led to them."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refiner.audit import serialization
from refiner.errors import DataError
from refiner.files import write_whole
from refiner.metrics import GroupVerdict, Verdict

Pixels = NDArray[np.uint8]
"""`[N, height, width, 3]`"""

SCORES = ("mse", "psnr", "ssim", "lpips", "noise", "rank_pixels", "rank_lpips", "blind_psnr", "blind_ssim")
PICTURES = ("original", "reconstruction", "robust")


@dataclass(frozen=True)
class Finding:
    """What the attack rebuilt of one image, in numbers; None where a metric was left out or doesn't fit."""

    name: str
    victim: int
    """The client it belongs to, from 0."""
    label: int
    mse: float
    psnr: float
    ssim: float
    lpips: float | None
    noise: float | None
    """The share of noise in the reconstruction."""
    rank_pixels: float | None
    """The place of the original among all candidates, nearest first, by the correlation of pixels."""
    rank_lpips: float | None
    """The same by LPIPS."""
    blind_psnr: float
    """What the best guess of someone who saw no gradient has."""
    blind_ssim: float
    verdict: Verdict


@dataclass(frozen=True)
class Mean:
    """A mean over all images and its 95 % interval, a percentile bootstrap over the victims."""

    value: float
    low: float | None
    """None, as `high`, with fewer than two victims."""
    high: float | None


@dataclass(frozen=True)
class Tuned:
    """What was chosen for the attacker on other images than those reported, by their mean PSNR."""

    chosen: Mapping[str, float]
    """In place of those in `settings["attack"]`."""
    trials: tuple[Mapping[str, float], ...]
    """All that was tried, each with its `psnr`."""
    images: int


@dataclass(frozen=True)
class Seconds:
    """How long each part took."""

    defense: float
    attack: float
    metrics: float
    resumed: bool = False
    """Whether the attack went on from a file: its seconds are those since then."""
    tuning: float = 0.0


@dataclass(frozen=True, eq=False)
class AuditResult:
    """One attack on one defence: what is left of the victims' privacy, and all it takes to repeat it.

    >>> import torch
    >>> from refiner.attacks import InvertingGradients
    >>> from refiner.audit import audit
    >>> from refiner.core import Task
    >>> from refiner.data import load_sample
    >>> sample = load_sample()
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10))
    >>> task = Task(model, example=sample.images[:1])
    >>> attack = InvertingGradients(iterations=2)
    >>> found = audit(task, sample.images[:2], sample.labels[:2], defense="none", attack=attack, metrics=[])
    >>> len(found.findings), len(found.scores("psnr")), found.reconstruction.shape
    (2, 2, (2, 32, 32, 3))
    >>> found.means["psnr"].value == sum(found.scores("psnr")) / 2
    True
    >>> AuditResult.from_json(found.to_json()).to_json() == found.to_json()
    True
    """

    defense: str
    attack: str
    victims: int
    batch: int
    findings: tuple[Finding, ...]
    """One an image: victim by victim, each victim's batch in its order."""
    means: Mapping[str, Mean]
    """Of every score that all images have, of `top1_pixels` and `top1_lpips`."""
    verdict: GroupVerdict
    candidates: int | None
    """Among how many images the attacker looked for the original; None if it was not asked to."""
    label_recovery: float | None
    """The share of labels read from the upload, as multisets of each victim; None if they were granted."""
    objective: tuple[float, ...]
    """The attacker's own best value for every victim."""
    diverged: tuple[bool, ...]
    """For every victim: its attack ended early, at its best, for want of finite numbers."""
    original: Pixels
    reconstruction: Pixels
    robust: Pixels | None
    """What Refiner made of the originals; None for another defence, and for a chain."""
    seconds: Seconds
    made: datetime
    settings: Mapping[str, object]
    """Of the defence, attack, model, data and threat model, with all seeds and versions."""
    tuned: Tuned | None = None
    """None if the attacker was taken as it is."""
    upload_bytes: int | None = None
    """What one client's upload takes, packed."""

    def __post_init__(self) -> None:
        count = self.victims * self.batch
        if len(self.findings) != count or not count:
            raise DataError(f"findings: {len(self.findings)}, expected {self.victims} × {self.batch}")
        if len(self.objective) != self.victims or len(self.diverged) != self.victims:
            raise DataError(f"objective, diverged: expected one value for each of {self.victims} victims")
        for name in PICTURES:
            pixels = getattr(self, name)
            if pixels is None and name == "robust":
                continue
            if pixels.dtype != np.uint8 or pixels.ndim != 4 or len(pixels) != count or pixels.shape[3] != 3:
                raise DataError(
                    f"{name}: {pixels.dtype} {list(pixels.shape)}, expected uint8 [{count}, height, width, 3]"
                )

    def scores(self, name: str) -> list[float]:
        """One score of every image, one of `SCORES`; of those that have it."""
        if name not in SCORES:
            raise DataError(f"score = {name!r}: expected one of {', '.join(SCORES)}")
        return [value for finding in self.findings if (value := getattr(finding, name)) is not None]

    def __repr__(self) -> str:
        told = f"PSNR {self.means['psnr'].value:.1f} dB, {self.verdict.level}: {self.verdict.reason}"
        return f"AuditResult({self.defense} against {self.attack}, {told})"

    def to_json(self) -> str:
        """All of it as JSON, without loss; the same result gives the same text."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in PICTURES:
            held[name] = None if held[name] is None else serialization.pack(held[name])
        held |= {"findings": [asdict(finding) for finding in self.findings], "made": self.made.isoformat()}
        held |= {"means": {name: asdict(mean) for name, mean in self.means.items()}}
        held |= {"verdict": asdict(self.verdict), "seconds": asdict(self.seconds)}
        held |= {"tuned": None if self.tuned is None else asdict(self.tuned)}
        return serialization.seal(serialization.plain(held))

    @classmethod
    def from_json(cls, text: str, name: str = "audit") -> "AuditResult":
        """What `to_json` wrote; anything else is refused, with `name` in the error.

        >>> AuditResult.from_json("{}", name="a.json")
        Traceback (most recent call last):
        refiner.errors.DataError: a.json: not an audit's result (no format 'refiner-audit-1')
        """
        held = serialization.unseal(text, name)
        try:
            for stack in PICTURES:
                held[stack] = None if held[stack] is None else serialization.unpack(held[stack])
            held["findings"] = tuple(_finding(found) for found in held["findings"])
            held["means"] = {score: Mean(**mean) for score, mean in held["means"].items()}
            held["objective"] = tuple(serialization.number(value) for value in held["objective"])
            held["diverged"] = tuple(bool(value) for value in held["diverged"])
            held["verdict"], held["seconds"] = GroupVerdict(**held["verdict"]), Seconds(**held["seconds"])
            held["made"] = datetime.fromisoformat(held["made"])
            held["tuned"] = None if held.get("tuned") is None else _tuned(held["tuned"])
            return cls(**held)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise serialization.refused(name, f"{type(error).__name__}: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as one JSON file, whole or not at all."""
        return write_whole(path, self.to_json().encode("utf-8", "surrogatepass"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "AuditResult":
        """Read what `save` wrote.

        >>> AuditResult.load("absent.json")
        Traceback (most recent call last):
        refiner.errors.DataError: absent.json: not an audit's result (No such file or directory)
        """
        try:
            text = Path(path).read_text(encoding="utf-8", errors="surrogatepass")
        except (OSError, ValueError) as error:
            raise serialization.refused(str(path), getattr(error, "strerror", None) or "not text") from error
        return cls.from_json(text, str(path))


def _tuned(held: dict[str, Any]) -> Tuned:
    chosen, *trials = (
        {name: serialization.number(value) for name, value in point.items()}
        for point in (held["chosen"], *held["trials"])
    )
    return Tuned(chosen, tuple(trials), int(held["images"]))


def _finding(held: dict[str, Any]) -> Finding:
    told = held.pop("verdict")
    verdict = Verdict(told["level"], dict(told["votes"]), tuple(told["reasons"]))
    scores = {name: None if held[name] is None else serialization.number(held[name]) for name in SCORES}
    return Finding(**{**held, **scores}, verdict=verdict)

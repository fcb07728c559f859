"""The parts of an audit result: the findings for every image, means, and what they are compared with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from refiner.audit.serialization import from_json_number
from refiner.metrics import Level, Share, Verdict

TuningCriterion = Literal["psnr", "rank"]
SCORES = (
    "mse",
    "psnr",
    "ssim",
    "lpips",
    "noise",
    "rank_pixels",
    "rank_lpips",
    "blind_psnr",
    "blind_ssim",
    "blind_lpips",
)


@dataclass(frozen=True)
class Finding:
    """The scores and the verdict of one image; a metric that was not computed is None."""

    name: str
    victim: int
    """The client that the image belongs to, from 0."""
    label: int
    mse: float
    psnr: float
    """In dB; higher means a better reconstruction, as for `ssim`."""
    ssim: float
    lpips: float | None
    """Lower means a better reconstruction."""
    noise: float | None
    """The share of noise in the reconstruction, from 0 to 1."""
    rank_pixels: float | None
    """The rank of the original among all candidates by correlation of pixels; 1 is the nearest."""
    rank_lpips: float | None
    """The same by LPIPS."""
    blind_psnr: float
    """The PSNR of the best guess that uses no gradient."""
    blind_ssim: float
    """The SSIM of the best guess that uses no gradient."""
    blind_lpips: float | None
    """The LPIPS of the best guess that uses no gradient."""
    verdict: Verdict


@dataclass(frozen=True)
class Mean:
    """A mean over all images with its 95 % interval, a percentile bootstrap over the victims."""

    value: float
    low: float | None
    """None, like `high`, with fewer than two victims."""
    high: float | None


@dataclass(frozen=True)
class Control:
    """How the same attack did on undefended uploads of the same images."""

    level: Level
    """As measured: "visible", "identifiable" or, if the attack fails, "neither"."""
    visible: Share
    identifiable: Share
    psnr: float
    """The mean PSNR, in dB."""

    @property
    def works(self) -> bool:
        """Whether the attack reveals undefended images; only then it says something about a defence."""
        return self.level != "neither"


@dataclass(frozen=True)
class FromRobust:
    """How well the images can be estimated from the robust data themselves, which no upload reveals fully."""

    psnr: float | None
    """The mean PSNR that a network reaches which was trained on other images, in dB; None if its training
    diverged."""
    top1: float | None = None
    """How often its estimate is closest to its own original among all candidates; None if not measured."""
    wiener_psnr: float | None = None
    """The mean PSNR of the best linear estimator, in dB; None where there is none."""
    likelihood_top1: float | None = None
    """How often the likelihood of the robust data is highest for their own image, among candidates that the
    attacker has; None if not measured. Not part of any verdict: no noise that keeps an image useful hides it
    from somebody who already has it."""
    likelihood_top1_uploads: float | None = None
    """The same from one upload."""


@dataclass(frozen=True)
class UploadCost:
    """What a defence costs: how far its uploads are from the real gradients, and how long one takes."""

    gradient_error: float
    """Mean over the clients of ‖upload − gradient‖ / ‖gradient‖, at the batch size of the audit."""
    seconds: float
    """Time in which one client computes its upload."""
    undefended_seconds: float
    """Time in which the same client computes it without a defence."""

    @property
    def relative_time(self) -> float:
        """The time of one upload, in multiples of the time without a defence.

        >>> UploadCost(0.1, 0.03, 0.01).relative_time
        3.0
        """
        return self.seconds / self.undefended_seconds if self.undefended_seconds else float("inf")


@dataclass(frozen=True)
class TuningResult:
    """The settings that were chosen for the attack on images that are not victims."""

    chosen: Mapping[str, float]
    """They replace those in `AuditResult.settings["attack"]`."""
    trials: tuple[Mapping[str, float], ...]
    """Every combination that was tried, with its mean `psnr`, and with `rank`, the geometric mean of the
    originals' ranks, if there are enough candidates to identify an image."""
    images: int
    """Number of images that were tuned on."""
    criterion: TuningCriterion = "psnr"
    """What they were chosen by: "psnr", or "rank" where no setting beats the blind guess."""

    def settings_of(self, trial: Mapping[str, float]) -> dict[str, float]:
        """Return a trial without its scores."""
        return {name: trial[name] for name in self.chosen}


@dataclass(frozen=True)
class Seconds:
    """How long each stage of the audit took, in seconds."""

    defense: float
    attack: float
    metrics: float
    resumed: bool = False
    """Whether the attack was resumed from a file: `attack` then counts only the time since."""
    tuning: float = 0.0


def finding_from_json(record: Mapping[str, Any]) -> Finding:
    """Return the finding that was saved as `record`."""
    saved = record["verdict"]
    verdict = Verdict(
        saved["level"],
        {name: bool(met) for name, met in saved["criteria"].items()},
        tuple(saved["reasons"]),
        _optional_number(saved["chance"]),
    )
    scores = {name: _optional_number(record[name]) for name in SCORES}
    return Finding(**{**record, **scores, "verdict": verdict})


def control_from_json(record: Mapping[str, Any]) -> Control:
    """Return the control that was saved as `record`."""
    shares = {name: Share(**record[name]) for name in ("visible", "identifiable")}
    return Control(**{**record, **shares, "psnr": from_json_number(record["psnr"])})


def from_robust_from_json(record: Mapping[str, Any]) -> FromRobust:
    """Return the estimate from robust data that was saved as `record`."""
    return FromRobust(**{name: _optional_number(value) for name, value in record.items()})


def cost_from_json(record: Mapping[str, Any]) -> UploadCost:
    """Return the cost that was saved as `record`."""
    return UploadCost(**{name: from_json_number(value) for name, value in record.items()})


def tuning_from_json(record: Mapping[str, Any]) -> TuningResult:
    """Return the tuning that was saved as `record`."""
    chosen, *trials = (
        # A number of iterations is an integer and stays one.
        {name: value if type(value) is int else from_json_number(value) for name, value in settings.items()}
        for settings in (record["chosen"], *record["trials"])
    )
    return TuningResult(chosen, tuple(trials), int(record["images"]), record["criterion"])


def _optional_number(value: object) -> float | None:
    return None if value is None else from_json_number(value)

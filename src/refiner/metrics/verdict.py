"""The verdict for one image: visible, identifiable, or neither."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from refiner import checks
from refiner.errors import DataError
from refiner.metrics.ranks import Identification
from refiner.metrics.thresholds import PAPER_THRESHOLDS, Thresholds

Level = Literal["visible", "identifiable", "neither", "no verdict"]
LEVELS: tuple[Level, ...] = ("visible", "identifiable", "neither", "no verdict")
"""The worst first; "no verdict" where an audit can't tell, as when the attack fails without a defence."""
VISIBILITY = ("psnr", "ssim", "lpips")
"""The criteria of visibility; one of them is enough."""


@dataclass(frozen=True)
class Verdict:
    """The verdict for one image."""

    level: Level
    criteria: Mapping[str, bool]
    """Whether each criterion is met: psnr, ssim, lpips if it was measured, and identification if there were
    enough candidates."""
    reasons: tuple[str, ...]
    """One line for each score."""
    chance: float | None = None
    """The probability of identifying the image by chance; None if identification does not count."""

    @property
    def measured(self) -> Level:
        """The level by the criteria alone, also where the audit gives no verdict."""
        if any(self.criteria.get(name, False) for name in VISIBILITY):
            return "visible"
        return "identifiable" if self.criteria.get("identification", False) else "neither"


def judge(
    psnr: float,
    ssim: float,
    *,
    lpips: float | None = None,
    rank: float | None = None,
    candidates: int | None = None,
    attempts: int = 1,
    blind_psnr: float | None = None,
    blind_ssim: float | None = None,
    blind_lpips: float | None = None,
    thresholds: Thresholds = PAPER_THRESHOLDS,
) -> Verdict:
    """Return one image's verdict: is its reconstruction visible, identifiable or neither?

    Visible: PSNR, SSIM or LPIPS is beyond its threshold, and beyond the blind guess of the same image by a
    margin: a third of CIFAR-10's images score 15 dB or more against their own mean colour. PSNR counts only
    from an SSIM of 0.4 on: without structure 15 dB are a blur of the right colours. Identifiable: not
    visible, but of all candidates the original is the most similar to the reconstruction. That counts only if
    chance explains it with a probability of at most 1 %: among 100 candidates or more, and among 200 if the
    rank is the better of two.

    Args:
        psnr: PSNR of the reconstruction, in dB.
        ssim: SSIM of the reconstruction.
        lpips: LPIPS of the reconstruction; counts only with `blind_lpips`, since what a given LPIPS means
            depends on the size and kind of the images.
        rank: The original's rank among the candidates; 1 is the most similar.
        candidates: The number of candidates.
        attempts: How many ranks the given one is the best of; the probability is multiplied by it.
        blind_psnr: PSNR of the image's best blind guess; without it PSNR is compared with its threshold only.
        blind_ssim: SSIM of the image's best blind guess; likewise.
        blind_lpips: LPIPS of the image's best blind guess.
        thresholds: The thresholds to apply.

    Returns:
        The level, the criteria that are met, and the reasons.

    Raises:
        DataError: A score is not finite, or only one of `rank` and `candidates` is given.

    >>> judge(12.0, 0.2, rank=1, candidates=1000)
    Verdict(level='identifiable', criteria={'psnr': False, 'ssim': False, 'identification': True},
            reasons=('PSNR 12.0 dB', 'SSIM 0.20', 'the most similar of 1000, by chance 0.1 %'), chance=0.001)
    >>> judge(16.0, 0.2, blind_psnr=15.5).reasons
    ('PSNR 16.0 dB, hardly better than a blind guess (15.5 dB)', 'SSIM 0.20')
    """
    if (rank is None) != (candidates is None):
        raise DataError(
            f"rank = {rank}, candidates = {candidates}: expected both or neither",
            field="rank" if rank is None else "candidates",
            expected="rank and candidates, or neither",
        )
    criteria: dict[str, bool] = {}
    reasons: list[str] = []
    scores = {"psnr": (psnr, blind_psnr), "ssim": (ssim, blind_ssim), "lpips": (lpips, blind_lpips)}
    for name, (score, blind) in scores.items():
        if score is not None:
            criteria[name], reason = _is_beyond(name, score, blind, thresholds)
            reasons.append(reason)
    if criteria["psnr"] and ssim < thresholds.structure:
        criteria["psnr"] = False
        reasons[0] = f"PSNR {psnr:.1f} dB, but without structure (SSIM below {thresholds.structure:g})"
    chance = None
    if rank is not None and candidates is not None:
        chance, reason = _chance(rank, candidates, attempts, thresholds)
        reasons.append(reason)
        if chance is not None:
            criteria["identification"] = rank == 1
    verdict = Verdict("neither", criteria, tuple(reasons), chance)
    return Verdict(verdict.measured, criteria, tuple(reasons), chance)


def judge_each(
    psnr: Tensor,
    ssim: Tensor,
    *,
    lpips: Tensor | None = None,
    identifications: Sequence[Identification] = (),
    chosen_from: int = 1,
    blind_psnr: Tensor | None = None,
    blind_ssim: Tensor | None = None,
    blind_lpips: Tensor | None = None,
    thresholds: Thresholds = PAPER_THRESHOLDS,
) -> list[Verdict]:
    """Return `judge` for every image.

    Args:
        psnr: PSNR of each reconstruction, `[N]`.
        ssim: SSIM of each reconstruction, `[N]`.
        lpips: LPIPS of each reconstruction, `[N]`.
        identifications: Identifications of the same images in several ways. The best rank counts, corrected
            for their number.
        chosen_from: From how many reconstructions each one was chosen with knowledge of its original, as the
            best assignment of a batch does. Chance is as many times as likely.
        blind_psnr: PSNR of each image's best blind guess, `[N]`.
        blind_ssim: SSIM of each image's best blind guess, `[N]`.
        blind_lpips: LPIPS of each image's best blind guess, `[N]`.
        thresholds: The thresholds to apply.

    Returns:
        N verdicts.

    Raises:
        DataError: Shapes differ, or the identifications have different candidates.

    >>> [v.level for v in judge_each(torch.tensor([20.0, 20.0, 10.0]), torch.tensor([0.4, 0.1, 0.6]))]
    ['visible', 'neither', 'visible']
    """
    columns = {
        "psnr": psnr,
        "ssim": ssim,
        "lpips": lpips,
        "blind_psnr": blind_psnr,
        "blind_ssim": blind_ssim,
        "blind_lpips": blind_lpips,
    }
    _check_shapes({**columns, **{f"ranks by {result.by}": result.ranks for result in identifications}}, psnr)
    if len({result.candidates for result in identifications}) > 1:
        raise DataError(
            "identifications: expected the same candidates in each",
            field="identifications",
            value=sorted({result.candidates for result in identifications}),
            expected="the same candidates in each",
        )
    candidates = identifications[0].candidates if identifications else None
    ranks = torch.stack([i.ranks for i in identifications]).amin(0) if identifications else None
    optional = {
        name: [None] * len(psnr) if column is None else column.tolist()
        for name, column in {**columns, "rank": ranks}.items()
        if name not in ("psnr", "ssim")
    }
    return [
        judge(
            float(psnr[i]),
            float(ssim[i]),
            **{name: values[i] for name, values in optional.items()},
            candidates=candidates,
            attempts=max(1, len(identifications)) * chosen_from,
            thresholds=thresholds,
        )
        for i in range(len(psnr))
    ]


def _check_shapes(columns: Mapping[str, Tensor | None], psnr: Tensor) -> None:
    for name, column in columns.items():
        if column is not None and (column.ndim != 1 or column.shape != psnr.shape):
            raise DataError(
                f"{name}: shape {list(column.shape)}, expected [N] like psnr {list(psnr.shape)}",
                field=name,
                value=list(column.shape),
                expected=f"[N] like psnr {list(psnr.shape)}",
            )


def _is_beyond(name: str, score: float, blind: float | None, thresholds: Thresholds) -> tuple[bool, str]:
    """Whether a score is beyond its threshold and the blind guess, and the reason."""
    title, unit = name.upper(), " dB" if name == "psnr" else ""
    digits = {"psnr": 1, "ssim": 2, "lpips": 3}[name]
    for label, value in ((title, score), (f"blind {title}", blind)):
        if value is not None and not math.isfinite(value):
            raise DataError(
                f"{label} = {value}: expected a finite number",
                field=label,
                value=value,
                expected="a finite number",
            )
    threshold, margin = getattr(thresholds, name), getattr(thresholds, f"{name}_margin")
    reason = f"{title} {score:.{digits}f}{unit}"
    # A lower LPIPS is closer, a higher PSNR or SSIM.
    sign = -1 if name == "lpips" else 1
    if sign * score < sign * threshold:
        return False, reason
    if blind is None and name == "lpips":
        return False, f"{reason}, without a blind guess to compare it with"
    if blind is not None and sign * (score - blind) < margin:
        hardly = "hardly" if sign * (score - blind) > 0 else "no"
        return False, f"{reason}, {hardly} better than a blind guess ({blind:.{digits}f}{unit})"
    return True, f"{reason}, at or {'below' if name == 'lpips' else 'above'} {threshold:g}"


def _chance(rank: float, candidates: int, attempts: int, thresholds: Thresholds) -> tuple[float | None, str]:
    """The probability of rank 1 by chance, None with too few candidates, and the reason."""
    checks.integer("candidates", candidates, 2)
    checks.number("rank", rank, 1, candidates)
    # Union bound: that one of several ranks is 1 by chance is at most as many times as likely.
    chance = checks.integer("attempts", attempts, 1) / candidates
    reason = f"the most similar of {candidates}" if rank == 1 else f"rank {rank:g} of {candidates}"
    # 1 / 100 and 0.01 may differ in their last digit.
    if chance > thresholds.identified * (1 + 1e-9):
        return None, f"{reason}, too few candidates to tell"
    return chance, f"{reason}, by chance {100 * chance:.2g} %" if rank == 1 else reason

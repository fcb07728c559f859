"""The verdict for one victim: exposed, borderline or protected."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from refiner import checks
from refiner.errors import DataError
from refiner.metrics.identification import Identification
from refiner.metrics.thresholds import PAPER_THRESHOLDS, Thresholds

Level = Literal["exposed", "borderline", "protected"]
LEVELS: tuple[Level, ...] = ("exposed", "borderline", "protected")  # the worst first


@dataclass(frozen=True)
class Verdict:
    """The verdict for one victim."""

    level: Level
    """The worst of the votes."""
    votes: Mapping[str, Level]
    """The level by each criterion: psnr, ssim and, if it was tried on enough candidates, identification."""
    reasons: tuple[str, ...]
    """One line for each criterion."""


def judge(
    psnr: float,
    ssim: float,
    *,
    rank: float | None = None,
    candidates: int | None = None,
    attempts: int = 1,
    blind_psnr: float | None = None,
    blind_ssim: float | None = None,
    thresholds: Thresholds = PAPER_THRESHOLDS,
) -> Verdict:
    """Return one victim's verdict: the worst of what PSNR, SSIM and identification indicate.

    PSNR or SSIM at or above its threshold: exposed; less than a margin below: borderline. A score that does
    not exceed the blind guess's is ignored: a third of CIFAR's images score 15 dB or more against their own
    mean colour. Identification: rank / candidates is the probability that an unrelated image ranks as well;
    at most 1 %: exposed, at most 5 %: borderline. So rank 1 of 1,000 is exposed, rank 1 of 50 is borderline,
    and with fewer than 20 candidates identification is ignored.

    Args:
        psnr: PSNR of the reconstruction, in dB.
        ssim: SSIM of the reconstruction.
        rank: The original's rank among the candidates.
        candidates: The number of candidates.
        attempts: How many ranks the given one is the best of; the probability is multiplied by it.
        blind_psnr: PSNR of the victim's best blind guess.
        blind_ssim: SSIM of the victim's best blind guess.
        thresholds: The thresholds to apply.

    Returns:
        The level, the level by each score, and the reasons.

    Raises:
        DataError: A score is not finite, or only one of `rank` and `candidates` is given.

    >>> judge(12.0, 0.2, rank=1, candidates=1000)
    Verdict(level='exposed', votes={'psnr': 'protected', 'ssim': 'protected', 'identification': 'exposed'},
            reasons=('PSNR 12.0 dB', 'SSIM 0.20', 'rank 1 of 1000, by chance 0.1 %'))
    >>> judge(16.0, 0.2, blind_psnr=17.0).reasons
    ('PSNR 16.0 dB, no better than a blind guess (17.0 dB)', 'SSIM 0.20')
    """
    psnr_vote = _vote("PSNR", psnr, thresholds.psnr, thresholds.psnr_margin, blind_psnr)
    ssim_vote = _vote("SSIM", ssim, thresholds.ssim, thresholds.ssim_margin, blind_ssim)
    votes: dict[str, Level] = {"psnr": psnr_vote[0], "ssim": ssim_vote[0]}
    reasons = [psnr_vote[1], ssim_vote[1]]
    if (rank is None) != (candidates is None):
        raise DataError(
            f"rank = {rank}, candidates = {candidates}: expected both or neither",
            field="rank" if rank is None else "candidates",
            expected="rank and candidates, or neither",
        )
    if rank is not None and candidates is not None:
        level, reason = _identification_vote(rank, candidates, attempts, thresholds)
        reasons.append(reason)
        if level is not None:
            votes["identification"] = level
    return Verdict(min(votes.values(), key=LEVELS.index), votes, tuple(reasons))


def judge_each(
    psnr: Tensor,
    ssim: Tensor,
    *,
    identifications: Sequence[Identification] = (),
    chosen_from: int = 1,
    blind_psnr: Tensor | None = None,
    blind_ssim: Tensor | None = None,
    thresholds: Thresholds = PAPER_THRESHOLDS,
) -> list[Verdict]:
    """Return `judge` for every victim.

    Args:
        psnr: PSNR of each reconstruction, `[N]`.
        ssim: SSIM of each reconstruction, `[N]`.
        identifications: Identifications of the same victims in several ways. The best rank counts, corrected
            for their number.
        chosen_from: From how many reconstructions each one was chosen with knowledge of its original, as the
            best assignment of a batch does. Chance is as many times as likely.
        blind_psnr: PSNR of each victim's best blind guess, `[N]`.
        blind_ssim: SSIM of each victim's best blind guess, `[N]`.
        thresholds: The thresholds to apply.

    Returns:
        N verdicts.

    Raises:
        DataError: Shapes differ, or the identifications have different candidates.

    >>> [v.level for v in judge_each(torch.tensor([20.0, 14.5, 10.0]), torch.tensor([0.1, 0.1, 0.1]))]
    ['exposed', 'borderline', 'protected']
    """
    columns = {"psnr": psnr, "ssim": ssim, "blind_psnr": blind_psnr, "blind_ssim": blind_ssim}
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
    rows = zip(*(_to_list(c, len(psnr)) for c in (psnr, ssim, ranks, blind_psnr, blind_ssim)), strict=True)
    verdicts = []
    for victim_psnr, victim_ssim, rank, victim_blind_psnr, victim_blind_ssim in rows:
        assert victim_psnr is not None and victim_ssim is not None
        verdicts.append(
            judge(
                victim_psnr,
                victim_ssim,
                rank=rank,
                candidates=candidates,
                attempts=max(1, len(identifications)) * chosen_from,
                blind_psnr=victim_blind_psnr,
                blind_ssim=victim_blind_ssim,
                thresholds=thresholds,
            )
        )
    return verdicts


def _check_shapes(columns: Mapping[str, Tensor | None], psnr: Tensor) -> None:
    for name, column in columns.items():
        if column is not None and (column.ndim != 1 or column.shape != psnr.shape):
            raise DataError(
                f"{name}: shape {list(column.shape)}, expected [N] like psnr {list(psnr.shape)}",
                field=name,
                value=list(column.shape),
                expected=f"[N] like psnr {list(psnr.shape)}",
            )


def _to_list(column: Tensor | None, count: int) -> Sequence[float | None]:
    return [None] * count if column is None else column.tolist()


def _vote(name: str, score: float, threshold: float, margin: float, blind: float | None) -> tuple[Level, str]:
    """The level by one score, and the reason."""
    unit, digits = (" dB", 1) if name == "PSNR" else ("", 2)
    for title, value in ((name, score), (f"blind {name}", blind)):
        if value is not None and not math.isfinite(value):
            raise DataError(
                f"{title} = {value}: expected a finite number",
                field=title,
                value=value,
                expected="a finite number",
            )
    reason = f"{name} {score:.{digits}f}{unit}"
    if score < threshold - margin:
        return "protected", reason
    if blind is not None and score <= blind:
        return "protected", f"{reason}, no better than a blind guess ({blind:.{digits}f}{unit})"
    if score < threshold:
        return "borderline", f"{reason}, near {threshold:g}"
    return "exposed", f"{reason}, at or above {threshold:g}"


def _identification_vote(
    rank: float, candidates: int, attempts: int, thresholds: Thresholds
) -> tuple[Level | None, str]:
    """The level by a rank, None with too few candidates, and the reason."""
    checks.integer("candidates", candidates, 2)
    checks.number("rank", rank, 1, candidates)
    # Union bound: the best of several ranks is at most as many times as likely by chance.
    factor = checks.integer("attempts", attempts, 1) / candidates
    reason = f"rank {rank:g} of {candidates}"
    # 5 / 100 and 0.05 may differ in their last digit.
    tolerance = 1 + 1e-9
    if factor > thresholds.suspicious * tolerance:
        return None, f"{reason}, too few candidates to tell"
    level: Level = "protected"
    if rank * factor <= thresholds.suspicious * tolerance:
        level = "exposed" if rank * factor <= thresholds.identified * tolerance else "borderline"
    return level, f"{reason}, by chance {min(100.0, 100 * rank * factor):.2g} %"

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
from refiner.metrics.thresholds import PAPER, Thresholds

Level = Literal["exposed", "borderline", "protected"]
LEVELS: tuple[Level, ...] = ("exposed", "borderline", "protected")  # the worst first


@dataclass(frozen=True)
class Verdict:
    """One victim: the worst of the votes, each vote, and a line for each."""

    level: Level
    votes: Mapping[str, Level]
    reasons: tuple[str, ...]


def judge(
    psnr: float,
    ssim: float,
    *,
    rank: float | None = None,
    candidates: int | None = None,
    ways: int = 1,
    blind_psnr: float | None = None,
    blind_ssim: float | None = None,
    thresholds: Thresholds = PAPER,
) -> Verdict:
    """One victim's verdict: the worst of what PSNR, SSIM and identification say.

    PSNR or SSIM at or above its threshold: exposed; less than a margin below: borderline. Given the blind
    guess's score, a score that does not beat it says nothing: a third of CIFAR's images have 15 dB or more
    to their own mean colour. Identification: rank / candidates is the probability that an image that knows
    nothing ranks as well; at most 1 %: exposed, at most 5 %: borderline. So rank 1 of 1,000 exposes, rank 1
    of 50 is borderline, and with fewer than 20 candidates there is no vote. The best rank of several `ways`
    to identify counts as many times.

    >>> judge(12.0, 0.2, rank=1, candidates=1000)
    Verdict(level='exposed', votes={'psnr': 'protected', 'ssim': 'protected', 'identification': 'exposed'},
            reasons=('PSNR 12.0 dB', 'SSIM 0.20', 'rank 1 of 1000, by chance 0.1 %'))
    >>> judge(16.0, 0.2, blind_psnr=17.0).reasons
    ('PSNR 16.0 dB, no better than a blind guess (17.0 dB)', 'SSIM 0.20')
    """
    pixels = _vote("PSNR", psnr, thresholds.psnr, thresholds.psnr_margin, blind_psnr)
    structure = _vote("SSIM", ssim, thresholds.ssim, thresholds.ssim_margin, blind_ssim)
    votes: dict[str, Level] = {"psnr": pixels[0], "ssim": structure[0]}
    reasons = [pixels[1], structure[1]]
    if (rank is None) != (candidates is None):
        raise DataError(f"rank = {rank}, candidates = {candidates}: expected both or neither")
    if rank is not None and candidates is not None:
        level, reason = _identified(rank, candidates, ways, thresholds)
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
    thresholds: Thresholds = PAPER,
) -> list[Verdict]:
    """`judge` for every victim of scores `[N]`; of several identifications the best rank counts, corrected.

    `chosen_from` reconstructions were there to choose each one from, with knowledge of its original, as the
    best assignment of a batch does: that makes luck as many times as likely.

    >>> [v.level for v in judge_each(torch.tensor([20.0, 14.5, 10.0]), torch.tensor([0.1, 0.1, 0.1]))]
    ['exposed', 'borderline', 'protected']
    """
    given = {"psnr": psnr, "ssim": ssim, "blind_psnr": blind_psnr, "blind_ssim": blind_ssim}
    columns = {name: scores for name, scores in given.items() if scores is not None}
    columns |= {f"ranks by {found.by}": found.ranks for found in identifications}
    for name, column in columns.items():
        if column.ndim != 1 or column.shape != psnr.shape:
            raise DataError(f"{name}: shape {list(column.shape)}, expected [N] as psnr {list(psnr.shape)}")
    if len({found.candidates for found in identifications}) > 1:
        raise DataError("identifications: expected the same candidates in each")
    candidates = identifications[0].candidates if identifications else None
    ranks = torch.stack([i.ranks for i in identifications]).amin(0) if identifications else None
    rows = zip(*(_listed(c, len(psnr)) for c in (psnr, ssim, ranks, blind_psnr, blind_ssim)), strict=True)
    verdicts = []
    for pixels, structure, rank, guessed_pixels, guessed_structure in rows:
        assert pixels is not None and structure is not None
        verdicts.append(
            judge(
                pixels,
                structure,
                rank=rank,
                candidates=candidates,
                ways=max(1, len(identifications)) * chosen_from,
                blind_psnr=guessed_pixels,
                blind_ssim=guessed_structure,
                thresholds=thresholds,
            )
        )
    return verdicts


def _listed(column: Tensor | None, count: int) -> Sequence[float | None]:
    return [None] * count if column is None else column.tolist()


def _vote(name: str, score: float, threshold: float, margin: float, blind: float | None) -> tuple[Level, str]:
    unit, digits = (" dB", 1) if name == "PSNR" else ("", 2)
    for title, value in ((name, score), (f"blind {name}", blind)):
        if value is not None and not math.isfinite(value):
            raise DataError(f"{title} = {value}: expected a finite number")
    shown = f"{name} {score:.{digits}f}{unit}"
    if score < threshold - margin:
        return "protected", shown
    if blind is not None and score <= blind:
        return "protected", f"{shown}, no better than a blind guess ({blind:.{digits}f}{unit})"
    if score < threshold:
        return "borderline", f"{shown}, near {threshold:g}"
    return "exposed", f"{shown}, at or above {threshold:g}"


def _identified(rank: float, candidates: int, ways: int, thresholds: Thresholds) -> tuple[Level | None, str]:
    checks.integer("candidates", candidates, 2)
    checks.number("rank", rank, 1, candidates)
    # By the union bound the best of several ranks is by luck at most as many times as likely.
    factor = checks.integer("ways", ways, 1) / candidates
    shown = f"rank {rank:g} of {candidates}"
    # 5 / 100 and 0.05 may differ in their last digit.
    slack = 1 + 1e-9
    if factor > thresholds.suspicious * slack:
        return None, f"{shown}, too few candidates to tell"
    level: Level = "protected"
    if rank * factor <= thresholds.suspicious * slack:
        level = "exposed" if rank * factor <= thresholds.identified * slack else "borderline"
    return level, f"{shown}, by chance {min(100.0, 100 * rank * factor):.2g} %"

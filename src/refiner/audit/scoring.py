"""Reconstructions against their originals: every score, the blind guess, the verdicts."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from refiner import checks
from refiner.audit.public_images import Public
from refiner.audit.result import Finding, Mean
from refiner.audit.statistics import all_means
from refiner.errors import DataError
from refiner.metrics import (
    best_guesses,
    blind_guess,
    identify,
    judge_each,
    lpips,
    mse,
    noise_ratio,
    psnr,
    ssim,
)
from refiner.metrics.pairs import check_images
from refiner.metrics.thresholds import Thresholds

ALWAYS = ("mse", "psnr", "ssim")
CHOICES = (*ALWAYS, "lpips", "noise", "identification")


@dataclass(frozen=True, eq=False)
class Scorer:
    """All that is known before the attack: originals `[N, C, H, W]`, metrics that fit them, blind guesses."""

    original: Tensor
    metrics: tuple[str, ...]
    public: Public
    blind_psnr: Tensor
    blind_ssim: Tensor
    thresholds: Thresholds

    @property
    def guesses(self) -> tuple[str, ...]:
        """The blind guesses of which each image's best counts."""
        return ("grey", *(() if self.public.images is None else ("mean image",)), "own colour")

    @classmethod
    def over(
        cls, original: Tensor, public: Public, metrics: Collection[str] | None, thresholds: Thresholds
    ) -> "Scorer":
        """Refuses what can't be scored, before an attack is run for nothing."""
        check_images("x", original)
        chosen = _choose(original, public, metrics)
        known = _known(original, public)
        blind = {name: blind_guess(original, known, name).best for name in ("psnr", "ssim")}
        return cls(original, chosen, public, blind["psnr"], blind["ssim"], thresholds)

    def score(
        self, reconstructed: Tensor, names: Sequence[str], labels: Tensor, batch: int
    ) -> tuple[tuple[Finding, ...], dict[str, Mean], int | None]:
        """Findings and means of reconstructions in the originals' order, and the number of candidates."""
        pairs: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"mse": mse, "psnr": psnr, "ssim": ssim}
        columns: dict[str, Tensor | None] = {
            name: measure(reconstructed, self.original) for name, measure in pairs.items()
        }
        columns["lpips"] = lpips(reconstructed, self.original) if "lpips" in self.metrics else None
        columns["noise"] = noise_ratio(reconstructed) if "noise" in self.metrics else None
        ways = ("pixels", *(("lpips",) if "lpips" in self.metrics else ()))
        found = {
            way: identify(reconstructed, self.original, way, others=self.public.others)
            for way in ways
            if "identification" in self.metrics
        }
        for way in ("pixels", "lpips"):
            columns[f"rank_{way}"] = found[way].ranks if way in found else None
        columns |= {"blind_psnr": self.blind_psnr, "blind_ssim": self.blind_ssim}
        assert columns["psnr"] is not None and columns["ssim"] is not None
        verdicts = judge_each(
            columns["psnr"],
            columns["ssim"],
            identifications=list(found.values()),
            chosen_from=batch,
            blind_psnr=self.blind_psnr,
            blind_ssim=self.blind_ssim,
            thresholds=self.thresholds,
        )
        lists: dict[str, list[Any] | None] = {
            name: None if column is None else column.tolist() for name, column in columns.items()
        }
        rows: list[dict[str, Any]] = [
            {name: None if column is None else column[i] for name, column in lists.items()}
            for i in range(len(verdicts))
        ]
        findings = tuple(
            Finding(name=names[i], victim=i // batch, label=label, verdict=verdicts[i], **rows[i])
            for i, label in enumerate(labels.flatten().tolist())
        )
        tops = {f"top1_{way}": (f.ranks == 1).double().tolist() for way, f in found.items()}
        means = all_means({**lists, **tops, **self._voteless_blind(ways)}, len(findings) // batch)
        return findings, means, next((f.candidates for f in found.values()), None)

    def _voteless_blind(self, ways: Sequence[str]) -> dict[str, list[float]]:
        """What the blind guess has where no verdict asks for it; not before, since a kept result has it.

        The best LPIPS of all guesses; of the guess with the best PSNR its noise, and whether it is nearest to
        its own original.
        """
        known = _known(self.original, self.public)
        guess = best_guesses(self.original, known)
        found = {}
        if "lpips" in self.metrics:
            found["blind_lpips"] = blind_guess(self.original, known, "lpips").best
        if "noise" in self.metrics:
            found["blind_noise"] = noise_ratio(guess)
        if "identification" in self.metrics:
            for way in ways:
                ranks = identify(guess, self.original, way, others=self.public.others).ranks
                found[f"blind_top1_{way}"] = (ranks == 1).double()
        return {name: column.tolist() for name, column in found.items()}


def _known(original: Tensor, public: Public) -> Tensor:
    """The images whose mean is a guess; without any a grey one, which adds nothing to the grey guess."""
    if public.images is not None:
        return public.images
    return original.new_full((1, *original.shape[1:]), 0.5)


def _choose(original: Tensor, public: Public, metrics: Collection[str] | None) -> tuple[str, ...]:
    """The metrics asked for, each tried on one image; without a choice all that fit the images."""
    for name in metrics or ():
        checks.choice("metrics", name, CHOICES)
    one = original[:1]
    another = original[1:2] if public.others is None else public.others[:1]
    tries: dict[str, Callable[[], object]] = {
        "lpips": lambda: lpips(one, one),
        "noise": lambda: noise_ratio(one),
        "identification": lambda: identify(one, one, others=another if len(another) else None),
    }
    chosen = list(ALWAYS)
    for name, attempt in tries.items():
        if metrics is not None and name not in metrics:
            continue
        try:
            attempt()
        except DataError:
            if metrics is not None:
                raise
            continue
        chosen.append(name)
    return tuple(chosen)


def recovered(found: Tensor, truth: Tensor) -> float:
    """The share of labels `[V, B]` that were found, each victim's as a multiset.

    >>> import torch
    >>> recovered(torch.tensor([[1, 1], [3, 2]]), torch.tensor([[1, 5], [2, 3]]))
    0.75
    """
    pairs = zip(found.tolist(), truth.tolist(), strict=True)
    return sum((Counter(a) & Counter(b)).total() for a, b in pairs) / truth.numel()

"""Scores of reconstructions against their originals, the blind guess, and the verdicts."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from refiner import checks
from refiner.audit.bootstrap import column_means
from refiner.audit.public_images import PublicImages
from refiner.audit.result_records import Finding, Mean
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
from refiner.metrics.image_checks import check_images
from refiner.metrics.thresholds import Thresholds

REQUIRED_METRICS = ("mse", "psnr", "ssim")
METRICS = (*REQUIRED_METRICS, "lpips", "noise", "identification")


@dataclass(frozen=True, eq=False)
class Scorer:
    """Everything that scoring needs and that is computed before the attack."""

    original: Tensor
    """`[N, C, H, W]`"""
    metrics: tuple[str, ...]
    public: PublicImages
    blind_psnr: Tensor
    """`[N]`: the PSNR of the best blind guess for each image."""
    blind_ssim: Tensor
    thresholds: Thresholds

    @property
    def guesses(self) -> tuple[str, ...]:
        """The kinds of blind guesses; for every image the best of them counts."""
        return ("grey", *(() if self.public.images is None else ("mean image",)), "own colour")

    @classmethod
    def create(
        cls, original: Tensor, public: PublicImages, metrics: Collection[str] | None, thresholds: Thresholds
    ) -> "Scorer":
        """Return the scorer; raises `DataError` for images that can't be scored, before the attack is run."""
        check_images("x", original)
        chosen = _choose_metrics(original, public, metrics)
        guess_images = _guess_images(original, public)
        blind = {name: blind_guess(original, guess_images, name).best for name in ("psnr", "ssim")}
        return cls(original, chosen, public, blind["psnr"], blind["ssim"], thresholds)

    def score(
        self, reconstructed: Tensor, names: Sequence[str], labels: Tensor, batch: int, *, noise: bool = True
    ) -> tuple[tuple[Finding, ...], dict[str, Mean], int | None]:
        """Return findings, means and the number of candidates of reconstructions in the originals' order.

        Without `noise` the noise ratio is left out, since it does not apply to the defence.
        """
        pairs: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"mse": mse, "psnr": psnr, "ssim": ssim}
        columns: dict[str, Tensor | None] = {
            name: measure(reconstructed, self.original) for name, measure in pairs.items()
        }
        columns["lpips"] = lpips(reconstructed, self.original) if "lpips" in self.metrics else None
        columns["noise"] = noise_ratio(reconstructed) if noise and "noise" in self.metrics else None
        similarities = ("pixels", *(("lpips",) if "lpips" in self.metrics else ()))
        identifications = {
            similarity: identify(reconstructed, self.original, similarity, others=self.public.candidates)
            for similarity in similarities
            if "identification" in self.metrics
        }
        for similarity in ("pixels", "lpips"):
            identification = identifications.get(similarity)
            columns[f"rank_{similarity}"] = None if identification is None else identification.ranks
        columns |= {"blind_psnr": self.blind_psnr, "blind_ssim": self.blind_ssim}
        columns["blind_lpips"] = self._blind_lpips()
        assert columns["psnr"] is not None and columns["ssim"] is not None
        verdicts = judge_each(
            columns["psnr"],
            columns["ssim"],
            lpips=columns["lpips"],
            identifications=list(identifications.values()),
            chosen_from=batch,
            blind_psnr=self.blind_psnr,
            blind_ssim=self.blind_ssim,
            blind_lpips=columns["blind_lpips"],
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
        top1 = {
            f"top1_{similarity}": (identification.ranks == 1).double().tolist()
            for similarity, identification in identifications.items()
        }
        means = column_means(
            {**lists, **top1, **self._other_blind_scores(similarities)}, len(findings) // batch
        )
        candidates = next((identification.candidates for identification in identifications.values()), None)
        return findings, means, candidates

    def blind_psnr_of(self, images: Tensor) -> Tensor:
        """Return the PSNR of the best blind guess for each of other images, `[N]`."""
        return blind_guess(images, _guess_images(images, self.public)).best

    def _blind_lpips(self) -> Tensor | None:
        """Return the LPIPS of the best blind guess for each image, `[N]`; None without LPIPS."""
        if "lpips" not in self.metrics:
            return None
        return blind_guess(self.original, _guess_images(self.original, self.public), "lpips").best

    def _other_blind_scores(self, similarities: Sequence[str]) -> dict[str, list[float]]:
        """Return those scores of the blind guess that no verdict needs, computed only after the attack.

        Of the guess with the best PSNR its noise, and whether its own original is the most similar candidate.
        """
        guess = best_guesses(self.original, _guess_images(self.original, self.public))
        scores = {}
        if "noise" in self.metrics:
            scores["blind_noise"] = noise_ratio(guess)
        if "identification" in self.metrics:
            for similarity in similarities:
                ranks = identify(guess, self.original, similarity, others=self.public.candidates).ranks
                scores[f"blind_top1_{similarity}"] = (ranks == 1).double()
        return {name: column.tolist() for name, column in scores.items()}


def _guess_images(original: Tensor, public: PublicImages) -> Tensor:
    """Return the images whose mean is a guess; without public images a grey one, equal to the grey guess."""
    if public.images is not None:
        return public.images
    return original.new_full((1, *original.shape[1:]), 0.5)


def _choose_metrics(
    original: Tensor, public: PublicImages, metrics: Collection[str] | None
) -> tuple[str, ...]:
    """Return the requested metrics, each tested on one image; for None all that can score the images."""
    for name in metrics or ():
        checks.choice("metrics", name, METRICS)
    one = original[:1]
    another = original[1:2] if public.candidates is None else public.candidates[:1]
    trials: dict[str, Callable[[], object]] = {
        "lpips": lambda: lpips(one, one),
        "noise": lambda: noise_ratio(one),
        "identification": lambda: identify(one, one, others=another if len(another) else None),
    }
    chosen = list(REQUIRED_METRICS)
    for name, attempt in trials.items():
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


def label_recovery(inferred: Tensor, truth: Tensor) -> float:
    """Return the share of labels `[V, B]` that were inferred correctly, each victim's as a multiset.

    >>> import torch
    >>> label_recovery(torch.tensor([[1, 1], [3, 2]]), torch.tensor([[1, 5], [2, 3]]))
    0.75
    """
    pairs = zip(inferred.tolist(), truth.tolist(), strict=True)
    return sum((Counter(a) & Counter(b)).total() for a, b in pairs) / truth.numel()

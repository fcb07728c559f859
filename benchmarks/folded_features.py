"""A malicious server that folds images: how few searched uploads give them away.

    python benchmarks/folded_features.py --data FOLDER --out FOLDER [--defenses refiner refiner:search=never]
        [--victims 64]

The features of the server's model are triangle waves of every whitened coordinate of an image, with segments
shorter than the radius within which Refiner searches. However strong the noise, on the segment of the noisy
coordinate lies a point with the feature of the real one, and the search goes there. The gradient of a last
layer of zeros is the sum of the features of each class; where the labels of a batch differ, that of each
image. Waves of several lengths, and x + noise from an upload of each image alone, leave one value for every
coordinate: the mean of its posterior, with a prior from public images.

Victims are CIFAR-100 training images from 40,000 on, in batches of 16 with different labels, known to the
server; public images are 0 to 2,999. One row for each defence and number of uploads in folds.jsonl, which
docs/results/adaptive.md shows.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from pixels import pixels
from refiner.core import Task
from refiner.data import load_data
from refiner.defenses import Refiner, make_defense
from refiner.metrics import blind_guess, identify, psnr
from refiner.shaped_noise import NaturalNoise
from rows import append_rows

BATCH, CLASSES, FIRST_VICTIM, POOL = 16, 100, 40_000, 3_000
# Length of a segment in units of the radius, and where one begins.
WAVES = [(0.9, 0.0), (0.72, 0.2), (0.55, 0.1), (0.9, 0.45), (0.8, 0.3)]
GRID = torch.arange(-6, 6.001, 0.02)
# Coordinates that share a prior; its width and the error of a reading, both in standard deviations.
BAND, WIDTH, ERROR = 96, 0.08, 0.03
Wave = tuple[float, float]


def fold(z: Tensor, wave: Wave | None) -> Tensor:
    """A triangle wave that rises and falls by as much as z changes; z itself for None.

    >>> fold(torch.tensor([0.0, 0.25, 0.75, 1.0]), (1.0, 0.0)).tolist()
    [0.0, 0.25, 0.25, 0.0]
    """
    if wave is None:
        return z
    length, begin = wave
    return length * (0.5 - (torch.remainder((z - begin + length / 2) / length, 2) - 1).abs())


class Folded(nn.Module):
    """A linear classifier, all zeros, of the folded coordinates of an image."""

    mean: Tensor
    whitening: Tensor

    def __init__(self, mean: Tensor, whitening: Tensor, wave: Wave | None) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("whitening", whitening)
        self.wave = wave
        self.classify = nn.Linear(len(whitening), CLASSES)
        nn.init.zeros_(self.classify.weight)
        nn.init.zeros_(self.classify.bias)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classify(fold((x - self.mean).flatten(1) @ self.whitening, self.wave))
        return logits


class Server:
    """Sends folded models, and estimates images from what comes back.

    Args:
        public: Public images `[n, C, H, W]`.
        alpha: The strength of the clients' noise.
    """

    def __init__(self, public: Tensor, alpha: float) -> None:
        self.statistics = NaturalNoise.bundled()
        impulses = torch.eye(self.statistics.mean.numel()).view(-1, *self.statistics.mean.shape)
        self._whitening = self.statistics.whiten(impulses).flatten(1)
        self._public, self._alpha = self._whitened(public), alpha

    def _whitened(self, images: Tensor) -> Tensor:
        return self.statistics.whiten(images - self.statistics.mean).flatten(1)

    def task(self, wave: Wave | None, example: Tensor) -> Task:
        """The model that folds with a wave."""
        return Task(Folded(self.statistics.mean, self._whitening, wave), example=example)

    def read(self, gradient: Tensor, labels: Tensor) -> Tensor:
        """The features `[V · B, D]` of every image, from the last layer's gradients `[V, CLASSES, D]`."""
        count, found = labels.shape[1], []
        for own, classes in zip(gradient, labels, strict=True):
            # A class that no image has shows the mean of all.
            absent = torch.ones(CLASSES, dtype=torch.bool)
            absent[classes] = False
            found.append(count * (own[absent].mean(0) - own[classes]))
        return torch.cat(found)

    def estimates(self, noisy: Tensor, readings: Sequence[tuple[Wave, Tensor]]) -> list[Tensor]:
        """Images after no, one, two… readings of folded features."""
        means = [torch.empty_like(noisy) for _ in range(len(readings) + 1)]
        for band in self._whitening.square().sum(0).argsort().split(BAND):
            log = self._prior(band) - ((noisy[:, band, None] - GRID) / self._alpha).square() / 2
            means[0][:, band] = (log.softmax(-1) * GRID).sum(-1)
            for number, (wave, read) in enumerate(readings, start=1):
                # What was not searched for is the noisy image's own, and tells nothing more.
                if (read - fold(noisy, wave)).abs().mean() > 1e-3:
                    log = log - torch.log1p(((read[:, band, None] - fold(GRID, wave)) / ERROR).square())
                means[number][:, band] = (log.softmax(-1) * GRID).sum(-1)
        shape = (-1, *self.statistics.mean.shape)
        return [(self.statistics(mean.view(shape)) + self.statistics.mean).clamp(0, 1) for mean in means]

    def _prior(self, band: Tensor) -> Tensor:
        """The logarithm of the smoothed histogram of public images."""
        limit = float(GRID[-1])
        counts = torch.histc(self._public[:, band].clamp(-limit, limit), len(GRID), -limit, limit)
        offsets = torch.arange(-25, 26) * float(GRID[1] - GRID[0])
        kernel = torch.exp(-((offsets / WIDTH) ** 2) / 2)
        smooth = nn.functional.conv1d(counts[None, None], (kernel / kernel.sum())[None, None], padding=25)
        return (smooth[0, 0] + 0.1).log()


def distinct_batches(labels: Tensor, first: int, count: int) -> Tensor:
    """The numbers `[count, BATCH]` of images from `first` on, with different labels in each batch."""
    batches: list[list[int]] = []
    number = first
    while len(batches) < count:
        own: dict[int, int] = {}
        while len(own) < BATCH:
            own.setdefault(int(labels[number]), number)
            number += 1
        batches.append(list(own.values()))
    return torch.tensor(batches)


def read_all(server: Server, defense: Refiner, x: Tensor, y: Tensor) -> list[Tensor]:
    """The server's images after every upload of batches `[V, B, *input]`."""
    state, ids = defense.init_state(), torch.arange(y.numel()).view_as(y)
    # Without a radius segments of any length can be reached.
    radius = 1.0 if defense.radius is None else defense.radius
    single = defense.protect(
        server.task(None, x[0]), x.flatten(0, 1)[:, None], y.view(-1, 1), ids=ids.view(-1, 1), state=state
    )
    noisy = server.read(single.tensors["classify.weight"], y.view(-1, 1))
    readings = []
    for length, begin in WAVES:
        wave = (radius * length, begin)
        update = defense.protect(server.task(wave, x[0]), x, y, ids=ids, state=state)
        readings.append((wave, server.read(update.tensors["classify.weight"], y)))
    return server.estimates(noisy, readings)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--defenses", nargs="+", default=["refiner", "refiner:search=never"])
    parser.add_argument("--victims", type=int, default=64, help="images, in batches of 16")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    cifar100 = load_data("cifar100", "train", root=options.data)
    numbers = distinct_batches(cifar100.labels, FIRST_VICTIM, options.victims // BATCH)
    images, y = pixels(cifar100.images[numbers.flatten()], "cpu"), cifar100.labels[numbers]
    x = images.unflatten(0, numbers.shape)
    public = pixels(cifar100.images[:POOL], "cpu")
    colour = float(blind_guess(images, public).scores["own colour"].mean())
    for text in options.defenses:
        began = time.perf_counter()
        defense = make_defense(text).with_seeded_key(options.seed)
        if not isinstance(defense, Refiner):
            parser.error(f"--defenses {text}: expected a form of refiner")
        server = Server(public, defense.alpha)
        for uploads, found in enumerate(read_all(server, defense, x, y)):
            row: dict[str, object] = {
                "defense": text,
                "searched uploads": uploads,
                "victims": len(images),
                "PSNR": float(psnr(found, images).mean()),
                "top-1": identify(found, images).top1,
                "own mean colour": colour,
                "seed": options.seed,
                "seconds": round(time.perf_counter() - began, 1),
            }
            print(json.dumps(row, ensure_ascii=False), flush=True)
            append_rows(options.out / "folds.jsonl", [row])


if __name__ == "__main__":
    main()

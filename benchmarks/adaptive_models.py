"""A malicious server: what made-up models read from single images, upload after upload.

    python benchmarks/adaptive_models.py --data FOLDER --out FOLDER [--defenses refiner refiner:search=never]
        [--orders 1 8 56 152]

Every order sends a model whose first layer isolates the samples of a batch (Fowl et al., Robbing the Fed,
ICLR 2022): all its rows are one direction u, their biases the quantiles of u·x, so that the difference of two
neighbouring rows' gradients is the image between them, exact. Small weights behind that layer make its
gradient quiet beside that of the next one, which holds u·x of every sample: a search that follows the loud
gradient moves x* until u·x* is u·x of a sample with the same label, however small its radius is in a single
frequency. Direction k is the k-th of an orthogonal set over the strongest frequencies of natural images, as
many as there are orders.

The server first asks for every image alone, which no default searches for: x + noise. From these and from the
images read in all orders it estimates every frequency, by a linear fit to simulated uploads of public images
(training images from 0 on) through the same models. Victims are training images from 40,000 on. Feeds
docs/results/adaptive.jsonl, which docs/results/adaptive.md shows.
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
from refiner.defenses import Defense, Refiner, make_defense
from refiner.metrics import blind_guess, identify, psnr
from refiner.shaped_noise import NaturalNoise
from rows import append_rows

BATCH, BINS, LOUD, QUIET = 16, 128, 3.0, 1e-3


class Trap(nn.Module):
    """Isolates samples by `direction`·x: the gradients of neighbouring rows differ by one sample."""

    def __init__(self, direction: Tensor, quantiles: Tensor) -> None:
        super().__init__()
        self.isolate = nn.Linear(direction.numel(), len(quantiles))
        self.classify = nn.Linear(len(quantiles), 10)
        with torch.no_grad():
            self.isolate.weight.copy_(LOUD * direction.flatten())
            self.isolate.bias.copy_(-LOUD * quantiles)
            self.classify.weight.copy_(QUIET * torch.linspace(1, 2, 10)[:, None])
            self.classify.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classify(torch.relu(self.isolate(x.flatten(1))))
        return logits


def read_images(gradients: dict[str, Tensor], noisy: Tensor) -> Tensor:
    """The images isolated in an upload: for each of `noisy [V, B, *input]` the one that is closest to it."""
    weight, bias = gradients["isolate.weight"], gradients["isolate.bias"]
    zero = torch.zeros_like(bias[:, :1])
    parts = torch.cat([weight[:, :-1] - weight[:, 1:], weight[:, -1:]], 1)
    share = torch.cat([bias[:, :-1] - bias[:, 1:], bias[:, -1:]], 1)
    empty = share.abs() < 1e-3 * share.abs().amax(1, keepdim=True)
    isolated = parts / torch.where(empty, torch.inf, share)[..., None]
    distance = torch.cdist(noisy.flatten(2), isolated) + torch.where(empty, torch.inf, zero)[:, None]
    nearest = distance.argmin(2)
    return isolated.gather(1, nearest[..., None].expand(-1, -1, isolated.shape[2])).view_as(noisy)


class Server:
    """Sends orders, and reads what comes back."""

    def __init__(self, statistics: NaturalNoise, orders: int, seed: int) -> None:
        self.statistics = statistics
        generator = torch.Generator().manual_seed(seed)
        mixing = torch.linalg.qr(torch.randn(orders, orders, generator=generator))[0]
        impulses = torch.eye(statistics.mean.numel()).view(-1, *statistics.mean.shape)
        strength = statistics(impulses).flatten(1).square().sum(1)
        self.strongest = strength.argsort(descending=True)[:orders]
        # Row k: what has to be multiplied with an image to get the mixture k of its strongest frequencies.
        self.directions = torch.stack([self._direction(row) for row in mixing])
        self.mixing = mixing

    def _direction(self, weights: Tensor) -> Tensor:
        image = torch.zeros_like(self.statistics.mean, requires_grad=True)
        with torch.enable_grad():
            white = self.statistics.whiten(image[None]).flatten(1)[0, self.strongest]
            return torch.autograd.grad((white * weights).sum(), image)[0]

    def observe(self, defense: Defense, x: Tensor, y: Tensor, spread: float) -> tuple[Tensor, Tensor]:
        """The noisy images, and the `[images, orders]` mixtures that are read from searched uploads."""
        ids, state = torch.arange(y.numel()).view_as(y), defense.init_state(y.numel())
        mean = self.statistics.mean
        alone, found = None, []
        for direction in self.directions:
            center = float((direction * mean).sum())
            quantiles = center + spread * torch.erfinv(torch.linspace(-0.998, 0.998, BINS)) * 2**0.5
            task = Task(Trap(direction, quantiles), example=x[0])
            if alone is None:
                single = defense.protect(task, x.flatten(0, 1)[:, None], y.flatten()[:, None], state=state)
                weight, bias = single.tensors["isolate.weight"], single.tensors["isolate.bias"]
                loudest = bias.abs().argmax(1)
                rows = torch.arange(len(loudest))
                alone = (weight[rows, loudest] / bias[rows, loudest, None]).view_as(x)
            update = defense.protect(task, x, y, ids=ids, state=state)
            images = read_images(dict(update.tensors), alone).flatten(0, 1)
            found.append(((images - mean) * direction).flatten(1).sum(1))
        assert alone is not None
        return alone.flatten(0, 1), torch.stack(found, 1)

    def features(self, noisy: Tensor, mixtures: Tensor) -> Tensor:
        """`[images, frequencies, 2]`: of the noisy images, and of the mixtures, 0 where there are none."""
        white = self.statistics.whiten(noisy - self.statistics.mean).flatten(1)
        read = torch.zeros_like(white)
        read[:, self.strongest] = mixtures @ self.mixing
        return torch.stack([white, read], -1)


def estimate(known: Tensor, wanted: Tensor, given: Tensor) -> Tensor:
    """Every frequency of the victims, by a ridge fit of `wanted` to the features of public images."""
    gram = torch.einsum("nfi,nfj->fij", known, known) + 1e-3 * len(known) * torch.eye(known.shape[2])
    weights = torch.linalg.solve(gram, torch.einsum("nfi,nf->fi", known, wanted))
    return torch.einsum("nfi,fi->nf", given, weights)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--defenses", nargs="+", default=["refiner", "refiner:search=never"])
    parser.add_argument("--orders", type=int, nargs="+", default=[1, 8, 56, 152])
    parser.add_argument("--victims", type=int, default=96)
    parser.add_argument("--public", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    cifar10 = load_data("cifar10", "train", root=options.data)

    def clients(first: int, count: int) -> tuple[Tensor, Tensor]:
        rows = slice(first, first + count)
        x = pixels(cifar10.images[rows], "cpu")
        return x.view(-1, BATCH, *x.shape[1:]), cifar10.labels[rows].view(-1, BATCH)

    victims, public = clients(40_000, options.victims), clients(0, options.public)
    truth = victims[0].flatten(0, 1)
    blind = blind_guess(truth, public[0].flatten(0, 1)).scores
    for name in options.defenses:
        defense = make_defense(name)
        assert isinstance(defense, Refiner)
        statistics = NaturalNoise.bundled().with_white(defense.white)
        wanted = statistics.whiten(public[0].flatten(0, 1) - statistics.mean).flatten(1)
        spread = (1 + defense.alpha**2) ** 0.5
        for orders in options.orders:
            began, server = time.perf_counter(), Server(statistics, orders, options.seed)
            known, given = (
                server.features(*server.observe(defense.with_seeded_key(seed), *images, spread))
                for seed, images in ((options.seed, public), (options.seed + 1, victims))
            )
            row = {"defense": name, "orders": orders, "batch": BATCH, "victims": len(truth)}
            for label, columns in (("noisy images", slice(0, 1)), ("all orders", slice(0, 2))):
                guess = estimate(known[..., columns], wanted, given[..., columns]).view_as(truth)
                images = (statistics(guess) + statistics.mean).clamp(0, 1)
                row |= {
                    label: float(psnr(images, truth).mean()),
                    f"{label}, top-1": identify(images, truth).top1,
                }
            row |= {
                "own mean colour": float(blind["own colour"].mean()),
                "seconds": round(time.perf_counter() - began, 1),
                "seed": options.seed,
            }
            print(json.dumps(row, ensure_ascii=False), flush=True)
            append_rows(options.out / "adaptive.jsonl", [row])


if __name__ == "__main__":
    main()

"""What raises the accuracy of `search="never"`, which trains on noisy images.

    python benchmarks/never_accuracy.py --data FOLDER --out FOLDER [--only "noise of 3" "noise of 2" …]

LeNet on CIFAR-10 training images 0 to 39,999, each under noise that is drawn once: SGD with batches of
1,280, which is what FedSGD with ten clients × 128 computes. Every variant changes one thing, and none breaks
the bound: each is a function of the noisy images, done by the server or in its model. The denoiser is a
network trained on images from 40,000 on, in front of LeNet. Accuracy on the test images, undisturbed, after
`--rounds` and at the best of all evaluations. Feeds docs/results/never.jsonl, which
docs/results/federation.md shows.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from pixels import pixels
from refiner.attacks.learning.network_training import TrainingSettings, TrainingState
from refiner.attacks.stages.restoration import train_restorer
from refiner.data import load_data
from refiner.defenses import Refiner
from refiner.models import make_model
from rows import append_rows

CLIENTS_IMAGES, HELD_OUT = 40_000, 1_000
MARGIN, TEST_CHUNK, TEST_DRAWS = 4, 2_000, 16
Transform = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Variant:
    """One training: the strength of the noise and its white part, and what the server or its model does."""

    alpha: float = 3.0
    white: float = 0.0
    batch: int = 1_280
    lr: float = 0.01
    augmented: bool = False
    standardized: bool = False
    denoised: bool = False
    noisy_test: bool = False


VARIANTS = {
    "no noise": Variant(alpha=0),
    "noise of 3": Variant(),
    "noise of 2": Variant(alpha=2),
    "noise of 1": Variant(alpha=1),
    "noise of 0.5": Variant(alpha=0.5),
    "a white part of 0.8": Variant(white=0.8),
    "noise of 1, a white part of 0.8": Variant(alpha=1, white=0.8),
    "batches four times as large": Variant(batch=5_120),
    "three times the learning rate": Variant(lr=0.03),
    "mirrored and shifted": Variant(augmented=True),
    "each image standardised": Variant(standardized=True),
    "standardised, mirrored and shifted": Variant(standardized=True, augmented=True),
    "noise of 1, mirrored and shifted": Variant(alpha=1, augmented=True),
    "tested under noise, 16 draws": Variant(noisy_test=True),
    "a denoiser in front": Variant(denoised=True),
    "noise of 1, a denoiser in front": Variant(alpha=1, denoised=True),
}


def noisy(x: Tensor, variant: Variant, seed: int) -> Tensor:
    """The images under noise of their own, drawn once."""
    if not variant.alpha:
        return x
    defense = Refiner(search="never", alpha=variant.alpha, white=variant.white).with_seeded_key(seed)
    return torch.cat([defense.noisy(part) for part in x.split(10_000)])


def mirrored_and_shifted(x: Tensor, generator: torch.Generator) -> Tensor:
    """A batch with one shift by up to `MARGIN` pixels, every second image mirrored."""
    down, right = torch.randint(0, 2 * MARGIN + 1, (2,), generator=generator).tolist()
    padded = pad(x, (MARGIN,) * 4, mode="reflect")
    moved = padded[..., down : down + x.shape[-2], right : right + x.shape[-1]].clone()
    moved[::2] = moved[::2].flip(-1)
    return moved


def standardized(x: Tensor) -> Tensor:
    """Every image with the mean and standard deviation that images have on average."""
    mean, deviation = x.mean((1, 2, 3), keepdim=True), x.std((1, 2, 3), keepdim=True)
    return 0.5 + 0.25 * (x - mean) / deviation.clamp_min(1e-6)


def denoiser(public: Tensor, variant: Variant, seed: int) -> Transform:
    """A network that estimates images from noisy ones, of public images."""
    labels = torch.zeros(len(public), dtype=torch.long, device=public.device)
    restorer = train_restorer(
        noisy(public, variant, seed + 1),
        public,
        labels,
        classes=1,
        held_out=HELD_OUT,
        width=32,
        settings=TrainingSettings(epochs=20, batch=128),
        seed=seed,
        state=TrainingState(None, {}),
    )
    if restorer is None:
        raise RuntimeError("the denoiser's training diverged")
    return lambda x: restorer(x, labels.new_zeros(len(x)))


class Evaluation:
    """Accuracy on test images, each seen through the same transform as in training."""

    def __init__(self, inputs: Sequence[Tensor], labels: Tensor) -> None:
        self.inputs, self.labels = inputs, labels

    @torch.no_grad()
    def accuracy(self, model: torch.nn.Module) -> float:
        """The share of images classified correctly by the mean probability over all inputs."""
        scores = sum(torch.cat([model(part).softmax(1) for part in x.split(TEST_CHUNK)]) for x in self.inputs)
        assert isinstance(scores, Tensor)
        return float((scores.argmax(1) == self.labels).float().mean())


def train(
    x: Tensor, y: Tensor, test: Evaluation, variant: Variant, rounds: int, every: int, seed: int
) -> tuple[torch.nn.Module, list[tuple[int, float]]]:
    """The trained model, and its accuracy every so many rounds."""
    torch.manual_seed(seed)
    model = make_model("lenet").to(x.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=variant.lr)
    generator = torch.Generator().manual_seed(seed)
    order, curve = torch.empty(0, dtype=torch.long), []
    for number in range(1, rounds + 1):
        if len(order) < variant.batch:
            order = torch.randperm(len(x), generator=generator)
        rows, order = order[: variant.batch].to(x.device), order[variant.batch :]
        batch = mirrored_and_shifted(x[rows], generator) if variant.augmented else x[rows]
        optimizer.zero_grad()
        cross_entropy(model(batch), y[rows]).backward()
        optimizer.step()
        if number % every == 0:
            curve.append((number, test.accuracy(model)))
    return model, curve


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--rounds", type=int, default=8000)
    parser.add_argument("--every", type=int, default=500, metavar="ROUNDS")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    data, held = (load_data("cifar10", split, root=options.data) for split in ("train", "test"))
    images, labels = pixels(data.images, device), data.labels.to(device)
    x, y, public = images[:CLIENTS_IMAGES], labels[:CLIENTS_IMAGES], images[CLIENTS_IMAGES:]
    test_x, test_y = pixels(held.images, device), held.labels.to(device)
    for name in options.only:
        variant = VARIANTS[name]
        draws = TEST_DRAWS if variant.noisy_test else 0
        tests = [noisy(test_x, variant, options.seed + 2 + d) for d in range(draws)] or [test_x]
        given = noisy(x, variant, options.seed)
        if variant.denoised:
            denoise = denoiser(public, variant, options.seed)
            given, tests = denoise(given), [denoise(t) for t in tests]
        if variant.standardized:
            given, tests = standardized(given), [standardized(t) for t in tests]
        evaluation = Evaluation(tests, test_y)
        model, curve = train(given, y, evaluation, variant, options.rounds, options.every, options.seed)
        best_round, best = max(curve, key=lambda point: point[1])
        row = {
            "variant": name,
            "alpha": variant.alpha,
            "white": variant.white,
            "rounds": options.rounds,
            "accuracy": curve[-1][1],
            "best accuracy": best,
            "best round": best_round,
            "curve": curve,
            "seed": options.seed,
        }
        if variant.denoised:
            row["denoiser left out of tests"] = Evaluation([test_x], test_y).accuracy(model)
        print(json.dumps({key: value for key, value in row.items() if key != "curve"}), flush=True)
        append_rows(options.out / "never.jsonl", [row])


if __name__ == "__main__":
    main()

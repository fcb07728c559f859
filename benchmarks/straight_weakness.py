"""Why the straight upload is not the default: its last layer reveals the features of the clean image.

    python benchmarks/straight_weakness.py --data FOLDER

At B = 1 the uploaded weight gradient of the last layer is b·hᵀ + r·dᵀ: b, the bias gradient, is uploaded
too, h are the clean features, and r = softmax(W·h + bias) − label depends on h alone. The rows span two
dimensions, so a search over two numbers finds h, and then an image with these features and little total
variation. Feeds docs/results/known-defense.jsonl, which docs/results/solver.md shows.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from pixels import pixels
from refiner.core import Task
from refiner.data import load_data
from refiner.defenses import Refiner
from refiner.metrics import psnr
from refiner.models import LeNet

TV = (0.003, 0.01, 0.03, 0.1)
TRIALS = 20


def recover_features(model: LeNet, weight: Tensor, bias: Tensor) -> Tensor:
    """Recover the clean features from the gradients of the last layer, `[classes, F]` and `[classes]`."""
    head, offset = model.head.weight.detach().double(), model.head.bias.detach().double()
    left_vectors, singular_values, right_vectors = torch.linalg.svd(weight.double(), full_matrices=False)
    rows, basis, bias_gradient = left_vectors[:, :2] * singular_values[:2], right_vectors[:2], bias.double()
    label = F.one_hot(bias_gradient.argmin(), len(bias_gradient))
    best, lowest_misfit = torch.zeros(2, dtype=torch.float64), torch.inf
    for _ in range(TRIALS):
        guess = (10 * torch.randn(2, dtype=torch.float64)).requires_grad_()
        optimizer = torch.optim.LBFGS(
            [guess], max_iter=100, line_search_fn="strong_wolfe", tolerance_change=1e-16
        )

        def misfit(guess: Tensor = guess, optimizer: torch.optim.LBFGS = optimizer) -> Tensor:
            optimizer.zero_grad()
            r = torch.softmax(head @ (basis.T @ guess) + offset, 0) - label
            residual = rows - bias_gradient[:, None] * guess
            loss = (
                residual - r[:, None] * (residual.T @ r) / r.square().sum()
            ).square().sum() / rows.square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(misfit)
        final_misfit = misfit().item()
        if final_misfit < lowest_misfit:
            best, lowest_misfit = guess.detach().clone(), final_misfit
    return (basis.T @ best).float()


def reconstruct_images(model: LeNet, target_features: Tensor, tv: float, steps: int = 800) -> Tensor:
    """Images `[N, 3, 32, 32]` with the features `target_features [N, F]`."""
    x = torch.full((len(target_features), *model.input_shape), 0.5).requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        features = model.body(x).flatten(1)
        variation = x.diff(dim=-1).abs().mean((1, 2, 3)) + x.diff(dim=-2).abs().mean((1, 2, 3))
        loss = (
            (features - target_features).square().sum(1) / target_features.square().sum(1) + tv * variation
        ).sum()
        (x.grad,) = torch.autograd.grad(loss, x)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            x.clamp_(0, 1)
    return x.detach()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--victims", type=int, default=100)
    parser.add_argument("--tune", type=int, default=16)
    options = parser.parse_args(argv)
    cifar10 = load_data("cifar10", "train", root=options.data)
    images, labels = cifar10.images, cifar10.labels
    indices = [*range(41_000, 41_000 + options.tune), *range(40_000, 40_000 + options.victims)]
    x, y = pixels(images[indices], "cpu"), labels[indices]
    for upload in ("straight", "curved"):
        torch.manual_seed(0)
        model = LeNet()
        task = Task(model, example=x[:2])
        # D is 1 at the start already, so β would only cost time.
        update = Refiner(upload=upload, beta=0.0).protect(task, x[:, None], y[:, None], seed=1)
        heads = zip(update.tensors["head.weight"], update.tensors["head.bias"], strict=True)
        recovered = torch.stack([recover_features(model, weight, bias) for weight, bias in heads])
        clean = model.body(x).flatten(1).detach()
        error = (recovered - clean).norm(dim=1) / clean.norm(dim=1)
        model.requires_grad_(False)
        tuning = [
            float(psnr(reconstruct_images(model, recovered[: options.tune], w), x[: options.tune]).mean())
            for w in TV
        ]
        weight = TV[max(range(len(TV)), key=tuning.__getitem__)]
        score = psnr(reconstruct_images(model, recovered[options.tune :], weight), x[options.tune :])
        print(
            f"{upload}: error of the clean features {error.median():.1e} (median), PSNR {score.mean():.2f} "
            f"± {1.96 * score.std() / len(score) ** 0.5:.2f}, TV {weight} of {tuning}",
            flush=True,
        )


if __name__ == "__main__":
    main()

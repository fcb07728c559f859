"""Why the straight upload is not the default: its last layer gives the clean image's features away.

    python benchmarks/straight_weakness.py --data FOLDER

At B = 1 the uploaded weight gradient of the last layer is b·hᵀ + r·dᵀ: b, its bias gradient, is uploaded, h
are the clean features, r = softmax(W·h + bias) − label depends on h alone. Its rows span two dimensions, so h
is found by a search over two numbers; an image with these features and little total variation follows.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from federated import pixels
from inverting import psnr
from refiner.core import Task
from refiner.data import load_dataset
from refiner.defenses import Refiner
from refiner.models import LeNet

TV = (0.003, 0.01, 0.03, 0.1)
TRIALS = 20


def features(model: LeNet, weight: Tensor, bias: Tensor) -> Tensor:
    """The clean features behind one upload of the last layer, `weight [classes, F]` and `bias [classes]`."""
    head, offset = model.head.weight.detach().double(), model.head.bias.detach().double()
    left, size, right = torch.linalg.svd(weight.double(), full_matrices=False)
    rows, basis, known = left[:, :2] * size[:2], right[:2], bias.double()
    label = F.one_hot(known.argmin(), len(known))
    best, least = torch.zeros(2, dtype=torch.float64), torch.inf
    for _ in range(TRIALS):
        guess = (10 * torch.randn(2, dtype=torch.float64)).requires_grad_()
        search = torch.optim.LBFGS(
            [guess], max_iter=100, line_search_fn="strong_wolfe", tolerance_change=1e-16
        )

        def misfit(guess: Tensor = guess, search: torch.optim.LBFGS = search) -> Tensor:
            search.zero_grad()
            r = torch.softmax(head @ (basis.T @ guess) + offset, 0) - label
            rest = rows - known[:, None] * guess
            loss = (rest - r[:, None] * (rest.T @ r) / r.square().sum()).square().sum() / rows.square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        search.step(misfit)
        left_over = misfit().item()
        if left_over < least:
            best, least = guess.detach().clone(), left_over
    return (basis.T @ best).float()


def image(model: LeNet, wanted: Tensor, tv: float, steps: int = 800) -> Tensor:
    """Images `[N, 3, 32, 32]` with the features `wanted [N, F]`."""
    x = torch.full((len(wanted), *model.input_shape), 0.5).requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        found = model.body(x).flatten(1)
        variation = x.diff(dim=-1).abs().mean((1, 2, 3)) + x.diff(dim=-2).abs().mean((1, 2, 3))
        loss = ((found - wanted).square().sum(1) / wanted.square().sum(1) + tv * variation).sum()
        (x.grad,) = torch.autograd.grad(loss, x)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            x.clamp_(0, 1)
    return x.detach()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--victims", type=int, default=100)
    parser.add_argument("--tune", type=int, default=16)
    options = parser.parse_args()
    images, labels = load_dataset("cifar10", "train", options.data)
    pick = [*range(41_000, 41_000 + options.tune), *range(40_000, 40_000 + options.victims)]
    x, y = pixels(images[pick], "cpu"), labels[pick]
    for upload in ("straight", "curved"):
        torch.manual_seed(0)
        model = LeNet()
        task = Task(model, example=x[:2])
        # D is 1 from the start, so that β changes nothing but the time.
        update = Refiner(upload=upload, beta=0.0).protect(task, x[:, None], y[:, None], seed=1)
        heads = zip(update.tensors["head.weight"], update.tensors["head.bias"], strict=True)
        found = torch.stack([features(model, weight, bias) for weight, bias in heads])
        clean = model.body(x).flatten(1).detach()
        error = (found - clean).norm(dim=1) / clean.norm(dim=1)
        model.requires_grad_(False)
        tuning = [float(psnr(image(model, found[: options.tune], w), x[: options.tune]).mean()) for w in TV]
        weight = TV[max(range(len(TV)), key=tuning.__getitem__)]
        score = psnr(image(model, found[options.tune :], weight), x[options.tune :])
        print(
            f"{upload}: error of the clean features {error.median():.1e} (median), PSNR {score.mean():.2f} "
            f"± {1.96 * score.std() / len(score) ** 0.5:.2f}, TV {weight} of {tuning}",
            flush=True,
        )


if __name__ == "__main__":
    main()

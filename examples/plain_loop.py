"""Protect a plain PyTorch loop: BatchNorm, Dropout, 64×64 images, normalisation, gradient accumulation.

    python examples/plain_loop.py                                       # bundled images, seconds on 2 cores
    REFINER_DATA=/data python examples/plain_loop.py --data cifar10 --images 2000    # CIFAR-10 from a folder

Expect a line per epoch, with a loss that falls. The client's secret is created in `plain_loop.secret`, with
mode 600: keep that file, it fixes the noise of each image. Three things differ from an unprotected loop:

1. Images stay in 0..1; mean and std are in the model (`Normalized`).
2. `protect_training` replaces model, optimizer and loader; `loss_scale` is the factor of the accumulation.
3. Private batches change no statistics of batch norm: `recalibrate` before evaluation. Dropout is off.

`torch.autocast` around `model(x)` or `loss.backward()`, and `GradScaler`, are refused (`--amp` shows it).
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import refiner
from refiner.data import load_train_and_test
from refiner.models import Normalized, recalibrate


def make_model(classes: int) -> nn.Module:
    network = nn.Sequential(
        *(nn.Conv2d(3, 8, 5, stride=4, padding=2, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(1024, classes)),
    )
    return Normalized(network, mean=[0.49, 0.48, 0.45], std=[0.25, 0.24, 0.26])


def main(options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    train, test = load_train_and_test(options.data)
    x_train, x_test = (  # images in 0..1, enlarged; load your own at the size of your model
        F.interpolate(data.images[: options.images].float() / 255, size=64, mode="nearest")
        for data in (train, test)
    )
    module = make_model(train.classes)
    sgd = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    batches = DataLoader(TensorDataset(x_train, train.labels[: options.images]), batch_size=16, shuffle=True)
    # 3 iterations in place of 24, so that this ends in seconds; docs/results/cost.md says what that changes.
    defense = refiner.Refiner(secret=refiner.load_secret(options.secret), iterations=3)
    model, optimizer, loader = refiner.protect_training(module, sgd, batches, defense, loss_scale=1 / 2)
    for epoch in range(options.epochs):
        model.train()
        losses = []
        for step, (x, y) in enumerate(loader):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.amp):
                loss = F.cross_entropy(model(x), y) / 2  # two batches before each step
            loss.backward()
            losses.append(2 * loss.item())
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
        recalibrate(module, x_train.split(100))
        model.eval()
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            known, new = (
                (model(x).argmax(1) == data.labels[: len(x)]).float().mean()
                for x, data in ((x_train, train), (x_test, test))
            )
        loss = sum(losses) / len(losses)
        print(f"epoch {epoch + 1}: loss {loss:.3f}, accuracy {known:.0%}, on new images {new:.0%}")
    print(f"the secret of this client is in {options.secret}: keep it")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="sample")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--secret", default="plain_loop.secret")
    parser.add_argument("--amp", action="store_true", help="train under autocast, to see that it is refused")
    main(parser.parse_args())

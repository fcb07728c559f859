"""Tabular data: audit an MLP on rows of features, then train it with protected gradients.

    python examples/tabular_mlp.py          # 569 patients, 30 measurements, seconds

Expect that the attack reads every measurement from an undefended upload, little behind noise of 0.1, and that
the loss of the protected training falls. Refiner's own noise is made for images: rows take DP noise here,
clipped for every patient, which also gives a guarantee (`guarantee`).
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import refiner
from refiner.audit import audit_table
from refiner.data import load_csv_table
from refiner.defenses import DPGaussian


def make_model(
    features: int, classes: int
) -> nn.Module:  # also for --model examples/tabular_mlp.py:make_model
    return nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, classes))


def main(epochs: int) -> None:
    torch.manual_seed(0)
    table = load_csv_table(Path(__file__).with_name("breast_cancer.csv"), "benign").shuffled(seed=0)
    x, y, names = table.x, table.y, table.features  # every feature in 0..1
    model = make_model(len(names), table.classes)

    task = refiner.Task(model, example=x[:2])
    for defense in ("none", "dp-gaussian:magnitude=0.1,clip=none"):
        result = audit_table(
            task, x[:50], y[:50], public=(x[50:], y[50:]), defense=defense, attack="linear", features=names
        )
        print(result.sentence)
        leaks = ", ".join(f"{feature.name} {feature.relative:.2f}" for feature in result.worst(3))
        print(f"  leaks most, error relative to a guess: {leaks}")

    defense = DPGaussian(magnitude=0.5, clip=1.0, per_sample=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    train, test = slice(0, 450), slice(450, None)
    for epoch in range(epochs):
        losses = []
        for rows_x, rows_y in zip(x[train].split(50), y[train].split(50), strict=True):
            optimizer.zero_grad()
            result = refiner.backward(model, F.cross_entropy, rows_x, rows_y, defense)
            losses.append(float(result.loss))  # before the step changes the model
            optimizer.step()
        if epoch % 5 == 4 or epoch + 1 == epochs:
            accuracy = (model(x[test]).argmax(1) == y[test]).float().mean()
            loss = sum(losses) / len(losses)
            print(f"epoch {epoch + 1}: loss {loss:.3f}, accuracy {accuracy:.1%} on other patients")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    main(parser.parse_args().epochs)

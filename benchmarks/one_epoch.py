"""Every model trains: one epoch on the 200 bundled images with SGD, batches of 20, learning rate 0.01.

    python benchmarks/one_epoch.py [--models lenet vit] [--out FILE]

Images come in random order; the first and the last loss are those of the first and the last batch. Feeds
docs/models.md.
"""

import argparse
import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from refiner.data import load_sample
from refiner.models import MODELS, make_model


def measure(name: str, device: str, batch: int, learning_rate: float, seed: int) -> dict[str, object]:
    """One row: one epoch of one model."""
    sample = load_sample()
    images, labels = sample.images.to(device), sample.labels.to(device)
    torch.manual_seed(seed)
    model = make_model(name).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    losses = []
    start = time.perf_counter()
    for indices in torch.randperm(len(images)).to(device).split(batch):
        loss = cross_entropy(model(images[indices]), labels[indices])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    seconds = time.perf_counter() - start
    values = [torch.tensor(losses), *model.state_dict().values()]
    return {
        "model": name,
        "parameters": sum(tensor.numel() for tensor in model.parameters()),
        "images": len(images),
        "batch": batch,
        "steps": len(losses),
        "first_loss": round(losses[0], 4),
        "last_loss": round(losses[-1], 4),
        "finite": all(bool(torch.isfinite(tensor).all()) for tensor in values),
        "seconds": round(seconds, 1),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for name in options.models:
        rows.append(measure(name, device, options.batch, options.learning_rate, options.seed))
        print(json.dumps(rows[-1]), flush=True)
    if options.out:
        device_name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
        record = {"device": device_name, "torch": torch.__version__, "seed": options.seed, "rows": rows}
        options.out.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()

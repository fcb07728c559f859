"""Accuracy of the evaluation network's noise-ratio predictions: the paper's Figure 4.

    python benchmarks/evaluation_network.py --data FOLDER… [--network FILE] [--sets svhn …] [--out FILE]

The first 1,000 test images of each dataset (Path has 718 here) are mixed with uniform noise at ratios 0.1 …
0.9. `error` is the mean of |predicted − true ratio|, `rising` the share of images whose prediction
increases with every step of the ratio, `clean` the mean prediction for images without noise. Feeds the
table of docs/evaluation-network.md.
"""

import argparse
import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from refiner.data import load_data
from refiner.errors import DataError
from refiner.evaluation import EvaluationNetwork, score_noise_ratios

SETS = ("svhn", "cifar10", "cifar100", "path", "ham10000")


def test_images(name: str, folders: list[Path], count: int) -> Tensor:
    """The first test images of a dataset, from the first folder that has it."""
    errors = []
    for folder in folders:
        try:
            return load_data(name, "test", root=folder, limit=count).images.float().div(255)
        except DataError as error:
            errors.append(str(error))
    raise SystemExit(f"{name}: not in any of the folders ({'; '.join(errors)})")


def measure(network: EvaluationNetwork, name: str, images: Tensor, seed: int) -> dict[str, object]:
    """One row: the scores on one dataset."""
    start = time.perf_counter()
    scores = score_noise_ratios(network, images, seed)
    return {
        "data": name,
        "images": len(images),
        "mean_prediction": [round(value, 4) for value in scores.mean_prediction],
        "error": round(scores.mean_absolute_error, 5),
        "rising": round(scores.rising_share, 5),
        "clean": round(float(network.score(images).mean()), 4),
        "seconds": round(time.perf_counter() - start, 1),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--network", type=Path, help="weights to use instead of the bundled ones")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.network:
        network = EvaluationNetwork.load(options.network).to(device)
    else:
        network = EvaluationNetwork.bundled(device)
    rows = []
    for name in options.sets:
        images = test_images(name, options.data, options.images).to(device)
        rows.append(measure(network, name, images, options.seed))
        print(json.dumps(rows[-1]), flush=True)
    if options.out:
        record = {
            "device": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
            "torch": torch.__version__,
            "network": str(options.network or "bundled"),
            "seed": options.seed,
            "rows": rows,
        }
        options.out.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()

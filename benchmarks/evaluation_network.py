"""How well the evaluation network reads the share of noise: the paper's Figure 4.

    python benchmarks/evaluation_network.py --data FOLDER… [--network FILE] [--sets svhn …] [--out FILE]

The first 1,000 test images of each set (Path has 718 here) are mixed with uniform noise at 0.1 … 0.9.
`error` is the mean of |predicted − true ratio|, `rising` the share of images whose prediction rises with
every step of the ratio, `clean` the mean prediction for the images as they are.
"""

import argparse
import json
import platform
import time
from pathlib import Path

import torch
from torch import Tensor

from refiner.data import load_dataset
from refiner.errors import DataError
from refiner.evaluation import EvaluationNetwork, score_ratios

SETS = ("svhn", "cifar10", "cifar100", "path", "ham10000")


def test_images(name: str, folders: list[Path], count: int) -> Tensor:
    """The first test images of a set, from the first folder that has them."""
    refused = []
    for folder in folders:
        try:
            return load_dataset(name, "test", folder, limit=count)[0].float().div(255)
        except DataError as error:
            refused.append(str(error))
    raise SystemExit(f"{name}: in none of the folders ({'; '.join(refused)})")


def measure(network: EvaluationNetwork, name: str, images: Tensor, seed: int) -> dict[str, object]:
    """One row: the scores of one data set."""
    began = time.perf_counter()
    found = score_ratios(network, images, seed)
    return {
        "data": name,
        "images": len(images),
        "mean_prediction": [round(value, 4) for value in found.mean_prediction],
        "error": round(found.mean_absolute_error, 5),
        "rising": round(found.rising_share, 5),
        "clean": round(float(network.score(images).mean()), 4),
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--network", type=Path, help="weights in place of the bundled ones")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
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
        about = {
            "device": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
            "torch": torch.__version__,
            "network": str(options.network or "bundled"),
            "seed": options.seed,
            "rows": rows,
        }
        options.out.write_text(json.dumps(about, indent=1))


if __name__ == "__main__":
    main()

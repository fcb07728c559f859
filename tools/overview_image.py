"""Draw the README's image: originals, and their reconstructions without a defence and with `Refiner()`.

    python tools/overview_image.py [--device cuda]      # writes docs/overview.png

The first images of the bundled sample, seed 0, LeNet at initialisation, InvertingGrad with total variation
and learning rate tuned for each defence on other images of the sample: nothing is selected.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

import refiner
from refiner.attacks import InvertingGradients

ROWS = (("none", "reconstruction, no defence"), ("refiner", "reconstruction, Refiner()"))
SCALE, GAP, LABEL = 3, 8, 250


def reconstruct(defense: str, count: int, iterations: int, device: str) -> refiner.AuditResult:
    """The audit of the first `count` images, the attacker tuned on the next eight."""
    sample = refiner.load_sample()
    images, labels = sample.images.to(device), sample.labels.to(device)
    torch.manual_seed(0)
    task = refiner.Task(refiner.LeNet().to(device), example=images[:1])
    other = slice(count, count + 8)
    tuning = refiner.Tuning(images[other, None], labels[other, None])
    attack = InvertingGradients(iterations=iterations)
    x, y = images[:count], labels[:count]
    return refiner.audit(task, x, y, defense=defense, attack=attack, tune=tuning, seed=0, control=False)


def main() -> None:
    """Run both audits and write the image."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/overview.png"))
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    results = [
        (label, reconstruct(name, options.count, options.iterations, options.device)) for name, label in ROWS
    ]
    strips = [("original", np.asarray(results[0][1].original), "")]
    for label, result in results:
        score = f"{result.means['psnr'].value:.1f} dB"
        print(label, score, result.tuned.chosen if result.tuned else "")
        strips.append((label, np.asarray(result.reconstruction), score))
    side = strips[0][1].shape[1] * SCALE
    width, height = LABEL + options.count * (side + GAP), len(strips) * (side + GAP) + GAP
    sheet = Image.new("RGB", (width, height), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(16)
    for row, (label, images, score) in enumerate(strips):
        top = GAP + row * (side + GAP)
        draw.text((GAP, top + side // 2 - 18), f"{label}\n{score}", fill="black", font=font)
        for column, pixels in enumerate(images):
            tile = Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST)
            sheet.paste(tile, (LABEL + column * (side + GAP), top))
    sheet.save(options.out, optimize=True)


if __name__ == "__main__":
    main()

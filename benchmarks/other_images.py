"""What the default leaves of images that are not like CIFAR-10: faces, house numbers, skin, tissue.

    python benchmarks/other_images.py --out FOLDER [--data lfw svhn …] [--defenses refiner refiner:alpha=5 …]
        [--attacks linear learned …] [--victims 200]

Single images of untrained LeNets with ten classes, attacked by attacks that learn from other images of the
same data and know the defence. Classes are the data's own, modulo ten: the model is not trained, and
the 5,749 people of LFW would make it another model. What `refiner noise predict` says is "predicted …".
FITTED in the settings of a defence stands for a file with statistics of the public images of these data.
Data are found as by `refiner audit`, in the folders of REFINER_DATA. One row for each of the data, attacks
and defences, in other-images.jsonl, which docs/results/other-images.md shows.
"""

import argparse
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch

from refiner.audit import AuditResult, audit, load_victims
from refiner.core import Task
from refiner.defenses import Refiner, make_defense
from refiner.models import make_model
from refiner.shaped_noise import NaturalNoise, predict_psnr
from rows import append_rows

DATA = ("cifar10", "cifar100", "svhn", "lfw", "ham10000", "pathmnist")
CLASSES = 10
MEANS = {"psnr": "PSNR", "blind_psnr": "blind PSNR", "ssim": "SSIM", "blind_ssim": "blind SSIM"}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", nargs="+", default=list(DATA))
    parser.add_argument(
        "--defenses",
        nargs="+",
        default=[
            "refiner",
            "refiner:white=0.3",
            "refiner:white=0",
            "refiner:white=0,alpha=4",
            "refiner:white=0,alpha=5",
            "refiner:white=0,statistics=FITTED",
        ],
    )
    parser.add_argument("--attacks", nargs="+", default=["linear"], metavar="NAME:SETTING=VALUE")
    parser.add_argument("--victims", type=int, default=200)
    parser.add_argument("--public-images", type=int, default=3000)
    parser.add_argument("--from-robust", action="store_true", help="also estimate images from robust data")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name in options.data:
        images = load_victims(
            name, victims=options.victims, public_images=options.public_images, seed=options.seed
        )
        assert images.pool is not None and images.public is not None
        x, y = images.x.to(device), images.y.to(device) % CLASSES
        pool = (images.pool[0].to(device), images.pool[1].to(device) % CLASSES)
        torch.manual_seed(options.seed)
        model = make_model("lenet", classes=CLASSES, input_shape=tuple(x.shape[2:])).to(device)
        task = Task(model, example=x[0])
        file = options.out / f"{name}-noise.safetensors"
        options.out.mkdir(parents=True, exist_ok=True)
        NaturalNoise.fit(pool[0].cpu()).save(file)
        controls: dict[str, AuditResult] = {}
        for attack, text in product(options.attacks, dict.fromkeys(["none", *options.defenses])):
            defense = make_defense(text.replace("FITTED", str(file)))
            result = audit(
                task,
                x,
                y,
                defense=defense,
                attack=attack,
                public=images.public.to(device),
                pool=pool,
                seed=options.seed,
                control=controls.get(attack, True),
                from_robust=options.from_robust and isinstance(defense, Refiner),
            )
            controls.setdefault(attack, result)
            row: dict[str, object] = {"data": name, "attack": attack, "defense": text}
            row |= {"victims": len(x), "pool": len(pool[1])}
            row |= {shown: round(result.means[kept].value, 4) for kept, shown in MEANS.items()}
            for share in ("visible", "identifiable"):
                found = getattr(result.verdict, share)
                row |= {share: found.value, f"{share} low": found.low, f"{share} high": found.high}
            if isinstance(defense, Refiner):
                noise = NaturalNoise.load(file) if "FITTED" in text else None
                left = predict_psnr(pool[0][:2000].cpu(), noise, strength=defense.alpha, white=defense.white)
                row |= {"predicted PSNR": left.wiener_psnr, "predicted visible": left.visible}
            if result.from_robust is not None:
                row |= {"PSNR from x*": result.from_robust.psnr, "top-1 from x*": result.from_robust.top1}
            row |= {"verdict": result.verdict.level, "seed": options.seed}
            print(json.dumps(row), flush=True)
            append_rows(options.out / "other-images.jsonl", [row])


if __name__ == "__main__":
    main()

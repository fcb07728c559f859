"""Every file format that the library reads, with bytes changed at random: a result or a one-line error.

REFINER_FUZZ=10000 tries that many mutations of each.
"""

import io
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from refiner import NoDefense, Task, Update
from refiner.attacks.matching.checkpoint import read_attack_state, write_attack_state
from refiner.audit import AuditResult, audit
from refiner.checkpoint import read_checkpoint, write_checkpoint
from refiner.data import load_data, read_images
from refiner.data.readers.matlab import read_mat
from refiner.errors import RefinerError
from refiner.federation.secure import Identity, RoundConfig, SecureClient
from refiner.models import MLP
from refiner.models.model_weights import load_model_weights
from refiner.shaped_noise import NaturalNoise

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    # Half of the size from which on an image is refused.
    pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning"),
]

COUNT = int(os.environ.get("REFINER_FUZZ", "0")) or 10
PIXELS = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3)).astype(np.uint8)


def small_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return MLP(input_shape=(3, 8, 8), hidden=4)


def update_file(path: Path) -> None:
    task = Task(small_model(), example=torch.rand(1, 3, 8, 8))
    NoDefense().protect(task, torch.rand(2, 1, 3, 8, 8), torch.tensor([[1], [2]])).save(path)


def audit_file(path: Path) -> None:
    x, y = torch.rand(1, 3, 12, 12), torch.tensor([1])
    task = Task(MLP(input_shape=(3, 12, 12), hidden=4), example=x)
    audit(task, x, y, defense="none", attack="inverting:iterations=1", metrics=[]).save(path)


def npz_file(path: Path) -> None:
    np.savez_compressed(path.open("wb"), images=PIXELS, labels=np.arange(4))


def image_file(path: Path) -> None:
    Image.fromarray(PIXELS[0]).save(path)


def mat_file(path: Path) -> None:
    from scipy.io import savemat

    savemat(path, {"X": PIXELS.transpose(1, 2, 3, 0), "y": np.arange(4)}, do_compression=True)


def parquet_file(path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    encoded = []
    for pixels in PIXELS:
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG")
        encoded.append({"bytes": stream.getvalue(), "path": None})
    parquet.write_table(pyarrow.table({"image": encoded, "label": list(range(4))}), path)


def statistics_file(path: Path) -> None:
    NaturalNoise.fit(torch.rand(100, 1, 4, 4)).save(path)


CONFIG_IDENTITIES = {client: Identity.generate() for client in range(2)}


def secure_state(path: Path) -> None:
    client = SecureClient(round_config(), 0, CONFIG_IDENTITIES[0])
    client.advertise_keys()
    path.write_bytes(client.state())


def round_config() -> RoundConfig:
    keys = {client: identity.public for client, identity in CONFIG_IDENTITIES.items()}
    return RoundConfig("s", 1, keys, size=4)


FORMATS: dict[str, tuple[str, Callable[[Path], object], Callable[[Path], object]]] = {
    "update": ("a.safetensors", update_file, Update.load),
    "audit": ("a.json", audit_file, AuditResult.load),
    "npz": ("a.npz", npz_file, lambda path: load_data(f"npz:{path}")),
    "image": ("a.png", image_file, read_images),
    "jpeg": ("a.jpg", image_file, read_images),
    "webp": ("a.webp", image_file, read_images),
    "mat": ("a.mat", mat_file, read_mat),
    "parquet": ("a.parquet", parquet_file, lambda path: load_data(f"parquet:{path}")),
    "noise statistics": ("a.safetensors", statistics_file, NaturalNoise.load),
    "weights": (
        "a.safetensors",
        lambda path: path.write_bytes(_safetensors(small_model())),
        lambda path: load_model_weights(small_model(), path),
    ),
    "torch weights": (
        "a.pt",
        lambda path: torch.save(small_model().state_dict(), path),
        lambda path: load_model_weights(small_model(), path),
    ),
    "checkpoint": (
        "a.safetensors",
        lambda path: write_checkpoint(path, {"parameters": torch.rand(3)}, {"lr": 1}, 5),
        lambda path: read_checkpoint(path, {"lr": 1}, lambda tensors: None),
    ),
    "attack state": (
        "a.safetensors",
        lambda path: write_attack_state(path, {"seed": "1"}, {"epochs": 2}, {"x": torch.rand(3)}),
        read_attack_state,
    ),
    "client of a secure round": (
        "a.json",
        secure_state,
        lambda path: SecureClient.restore(round_config(), 0, CONFIG_IDENTITIES[0], path.read_bytes()),
    ),
}


def _safetensors(model: torch.nn.Module) -> bytes:
    from safetensors.torch import save

    return save(model.state_dict())


def mutated(rng: random.Random, content: bytes) -> bytes:
    data = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        position, kind = rng.randrange(len(data) + 1), rng.randrange(5)
        if kind == 0:
            del data[position:]
        elif kind == 1:
            data[position : position + 1] = rng.randbytes(1)
        elif kind == 2:
            data[position : position + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, b"9" * 8, b'"]}{[,:'])
        elif kind == 3:
            data[position:position] = rng.randbytes(rng.choice([1, 4, 100]))
        else:
            end = rng.randrange(len(data) + 1)
            data[position:position] = data[min(position, end) : max(position, end)][:1000]
    return bytes(data)


@pytest.mark.parametrize("name", FORMATS)
def test_a_changed_file_is_read_or_is_a_one_line_error(name: str, tmp_path: Path) -> None:
    file_name, write, read = FORMATS[name]
    path = tmp_path / file_name
    write(path)
    content, refused = path.read_bytes(), 0
    read(path)
    for seed in range(COUNT):
        path.write_bytes(mutated(random.Random(seed), content))
        try:
            read(path)
        except RefinerError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 1000, seed
    assert refused

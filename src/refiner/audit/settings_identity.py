"""When two audits are the same: a checksum of their settings, and the first in which they differ."""

import hashlib
import inspect
import json
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from refiner._version import __version__
from refiner.core.task import Task
from refiner.models.normalized import model_name

_OWN_PACKAGES = ("torch", "refiner")


def settings_digest(settings: Mapping[str, object]) -> str:
    """Return a checksum of all settings except the versions of other libraries.

    >>> old, new = ({"seed": 0, "versions": {"torch": version}} for version in "23")
    >>> settings_digest(old) == settings_digest(new)
    True
    """
    versions = settings.get("versions")
    refiner_version = versions.get("refiner") if isinstance(versions, Mapping) else None
    text = json.dumps({**settings, "versions": refiner_version}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def model_identity(model: nn.Module) -> dict[str, str]:
    """Return checksums of what a model computes besides its weights, as settings.

    Two models of the same weights may compute different scores. `structure` is what PyTorch prints of the
    model, `code` the files in which modules of a user's own are defined: empty for those of PyTorch and of
    this library.

    >>> linear, tanh, relu = nn.Linear(1, 1), nn.Tanh(), nn.ReLU()
    >>> sorted(model_identity(linear))
    ['structure sha256']
    >>> model_identity(nn.Sequential(linear, tanh)) == model_identity(nn.Sequential(linear, relu))
    False
    """
    printed = re.sub(r" at 0x[0-9a-f]+", "", repr(model))  # addresses differ in every run
    identity = {"structure sha256": hashlib.sha256(printed.encode()).hexdigest()}
    files = set()
    for kind in {type(module) for module in model.modules()}:
        if kind.__module__.partition(".")[0] in _OWN_PACKAGES:
            continue
        try:
            files.add(Path(inspect.getfile(kind)).read_bytes())
        except (OSError, TypeError):  # defined in a session, without a file
            continue
    if files:
        digests = sorted(hashlib.sha256(content).hexdigest() for content in files)
        identity["code sha256"] = hashlib.sha256("".join(digests).encode()).hexdigest()
    return identity


def model_settings(task: Task) -> dict[str, object]:
    """Return what identifies a task: its model's shape, weights and code, and its loss."""
    return {
        "name": model_name(task.model),
        "parameters": task.size,
        "classes": task.classes,
        "input": list(task.input_shape),
        "sha256": tensors_sha256(task.model.state_dict().values()),
        **model_identity(task.model),
        "loss of three fixed scores": _loss_of_fixed_scores(task),
    }


def library_versions() -> dict[str, str]:
    """Return the versions of this library and of those it computes with."""
    return {
        "refiner": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def tensors_sha256(tensors: Iterable[Tensor]) -> str:
    """Return the SHA-256 of the bytes of all tensors, one after another.

    >>> tensors_sha256([torch.zeros(2)]) == tensors_sha256([torch.ones(2)])
    False
    """
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _loss_of_fixed_scores(task: Task) -> float:
    """Return a number that identifies the loss function: its value for three fixed scores."""
    like = next(iter(task.parameters().values()))
    scores = torch.linspace(-1, 1, 3 * task.classes, device=like.device, dtype=like.dtype)
    labels = torch.arange(3, device=like.device) % task.classes
    return float(task.loss_function(scores.view(3, task.classes), labels))


def first_difference(one: Mapping[str, object], other: Mapping[str, object]) -> str:
    """Return the first setting in which two audits differ, except the versions of other libraries.

    >>> first_difference({"seed": 0, "model": {"name": "LeNet"}}, {"seed": 0, "model": {"name": "ViT"}})
    'model, name'
    """
    for name in dict.fromkeys([*one, *other]):
        left, right = one.get(name), other.get(name)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            keys = ["refiner"] if name == "versions" else [*left, *right]
            left, right = ({key: side.get(key) for key in keys} for side in (left, right))
            if left != right:
                return f"{name}, {first_difference(left, right)}"
        elif left != right:
            return name
    return ""

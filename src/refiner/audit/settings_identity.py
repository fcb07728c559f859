"""When two audits are the same: a checksum of their settings, and the first in which they differ."""

import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path

from torch import nn

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

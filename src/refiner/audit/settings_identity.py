"""When two audits are the same: a checksum of their settings, and the first in which they differ."""

import hashlib
import json
from collections.abc import Mapping


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

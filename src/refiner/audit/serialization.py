"""A result as text and back without loss: exact floats, packed pixels, and a checksum over all of it."""

import base64
import binascii
import hashlib
import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refiner.errors import DataError

FORMAT = "refiner-audit-1"
Pixels = NDArray[np.uint8]


def plain(value: object) -> Any:
    """`value` as JSON holds it: mappings with text keys, lists; numbers it can't hold, and all else, as text.

    >>> plain({"range": (0.0, 1.0), "loss": float("nan")})
    {'range': [0.0, 1.0], 'loss': 'nan'}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    return str(value)


def number(value: object) -> float:
    """A float that `plain` wrote.

    >>> number(0.1), number("nan"), number("-inf")
    (0.1, nan, -inf)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"{type(value).__name__} where a number belongs")
    return float(value)


def pack(pixels: Pixels) -> dict[str, object]:
    """Pixels as text, compressed.

    >>> same = unpack(pack(np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3)))
    >>> same.shape, int(same.sum())
    ((1, 2, 2, 3), 66)
    """
    data = base64.b64encode(zlib.compress(np.ascontiguousarray(pixels).tobytes(), 9))
    return {"shape": list(pixels.shape), "zlib": data.decode("ascii")}


def unpack(packed: Mapping[str, Any]) -> Pixels:
    """The pixels that `pack` made text of; ValueError if they are not whole."""
    shape = tuple(int(side) for side in packed["shape"])
    count = math.prod(shape)
    # No more than the shape says: a few bytes can claim to be gigabytes.
    opener = zlib.decompressobj()
    try:
        data = opener.decompress(base64.b64decode(packed["zlib"], validate=True), max_length=count + 1)
    except (zlib.error, binascii.Error) as error:
        raise ValueError("images that can't be unpacked") from error
    if min(shape) < 1 or len(data) != count or not opener.eof:
        raise ValueError(f"images of {len(data)} bytes, expected {count}")
    return np.frombuffer(data, np.uint8).reshape(shape).copy()


def seal(body: Mapping[str, object]) -> str:
    """`body` as JSON with its format and checksum."""
    text = _canonical(body)
    return f'{{"format": "{FORMAT}", "sha256": "{_digest(text)}", "audit": {text}}}\n'


def unseal(text: str, name: str) -> dict[str, Any]:
    """The body that `seal` was given; anything else is refused, `name` first.

    >>> unseal(seal({"psnr": 0.1}), "a.json")
    {'psnr': 0.1}
    >>> unseal(seal({"psnr": 0.1}).replace("0.1", "0.2"), "a.json")
    Traceback (most recent call last):
    refiner.errors.DataError: a.json: not an audit's result (its checksum is wrong: it was cut or changed)
    """
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refused(name, "not JSON, or cut short") from error
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise refused(name, f"no format {FORMAT!r}")
    body = whole.get("audit")
    if not isinstance(body, dict) or whole.get("sha256") != _digest(_canonical(body)):
        raise refused(name, "its checksum is wrong: it was cut or changed")
    return body


def refused(name: str, reason: object) -> DataError:
    """The error for a file that holds no result."""
    return DataError(f"{name}: not an audit's result ({' '.join(str(reason).split())[:160]})")


def _canonical(body: Mapping[str, object]) -> str:
    return json.dumps(body, ensure_ascii=False, allow_nan=False, indent=1)


def _digest(text: str) -> str:
    # Lone surrogates, which a file's name may hold, are no UTF-8.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

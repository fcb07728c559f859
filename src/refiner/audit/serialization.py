"""Lossless JSON for audit results: exact floats, compressed pixels, and a checksum over everything."""

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

FORMAT = "refiner-audit-2"
"""Version 2 has the verdicts visible, identifiable and neither, and the control of every result."""
# Far more than an audit holds; the product of absurd sides has thousands of digits.
_MAX_PIXELS = 2**36
_OLD_FORMATS = ("refiner-audit-1",)
Pixels = NDArray[np.uint8]


def to_json_value(value: object) -> Any:
    """Return `value` with only JSON types; non-finite numbers and all other objects become text.

    >>> to_json_value({"range": (0.0, 1.0), "loss": float("nan")})
    {'range': [0.0, 1.0], 'loss': 'nan'}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): to_json_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json_value(inner) for inner in value]
    return str(value)


def from_json_number(value: object) -> float:
    """Return a float that `to_json_value` wrote.

    >>> from_json_number(0.1), from_json_number("nan"), from_json_number("-inf")
    (0.1, nan, -inf)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"{type(value).__name__}, expected a number")
    return float(value)


def encode_pixels(pixels: Pixels) -> dict[str, object]:
    """Return pixels as their shape and compressed text.

    >>> pixels = decode_pixels(encode_pixels(np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3)))
    >>> pixels.shape, int(pixels.sum())
    ((1, 2, 2, 3), 66)
    """
    data = base64.b64encode(zlib.compress(np.ascontiguousarray(pixels).tobytes(), 9))
    return {"shape": list(pixels.shape), "zlib": data.decode("ascii")}


def decode_pixels(encoded: Mapping[str, Any]) -> Pixels:
    """Return the pixels that `encode_pixels` encoded; raises ValueError if they do not fit their shape."""
    shape = tuple(int(side) for side in encoded["shape"])
    count = math.prod(shape)
    if min(shape, default=0) < 1 or count > _MAX_PIXELS:
        raise ValueError(f"images of shape {list(shape)}")
    # Decompress no more than the shape needs: a few bytes can expand to gigabytes.
    decompressor = zlib.decompressobj()
    try:
        data = decompressor.decompress(base64.b64decode(encoded["zlib"], validate=True), max_length=count + 1)
    except (zlib.error, binascii.Error) as error:
        raise ValueError("images that can't be decompressed") from error
    if len(data) != count or not decompressor.eof:
        raise ValueError(f"images of {len(data)} bytes, expected {count}")
    return np.frombuffer(data, np.uint8).reshape(shape).copy()


def dump_with_checksum(body: Mapping[str, object]) -> str:
    """Return `body` as JSON text with its format and checksum."""
    text = _canonical(body)
    return f'{{"format": "{FORMAT}", "sha256": "{_digest(text)}", "audit": {text}}}\n'


def load_with_checksum(text: str, name: str) -> dict[str, Any]:
    """Return the body that `dump_with_checksum` wrote; raises `DataError` with `name` for other text.

    >>> load_with_checksum(dump_with_checksum({"psnr": 0.1}), "a.json")
    {'psnr': 0.1}
    >>> load_with_checksum(dump_with_checksum({"psnr": 0.1}).replace("0.1", "0.2"), "a.json")
    Traceback (most recent call last):
    refiner.errors.DataError: a.json: not an audit result (wrong checksum: incomplete or changed)
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid_result(name, "not JSON, or incomplete") from error
    if isinstance(document, dict) and document.get("format") in _OLD_FORMATS:
        # Its verdicts lack the control, and can't be converted without running the audit again.
        raise invalid_result(name, f"{document['format']!r} of an older version; run the audit again")
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise invalid_result(name, f"its format is not {FORMAT!r}")
    body = document.get("audit")
    if not isinstance(body, dict) or document.get("sha256") != _digest(_canonical(body)):
        raise invalid_result(name, "wrong checksum: incomplete or changed")
    return body


def invalid_result(name: str, reason: object) -> DataError:
    """Return the error for a file that is not an audit result."""
    return DataError(
        f"{name}: not an audit result ({' '.join(str(reason).split())[:160]})", field="path", value=name
    )


def _canonical(body: Mapping[str, object]) -> str:
    return json.dumps(body, ensure_ascii=False, allow_nan=False, indent=1)


def _digest(text: str) -> str:
    # File names may contain lone surrogates, which plain UTF-8 cannot encode.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

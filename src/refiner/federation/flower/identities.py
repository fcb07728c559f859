"""`identities.json`: the public keys of all clients, which every side keeps in its own folder."""

import json
from collections.abc import Mapping
from pathlib import Path

from refiner import checks
from refiner.federation.flower.client_secrets import check_ownership
from refiner.files import file_error


def read_identities(folder: Path) -> dict[int, bytes]:
    """The public keys of all clients, by client id, from `identities.json` in a folder.

    Raises:
        DataError: If the file is missing, malformed or writable by others.
    """
    path = folder / "identities.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        public_keys = {int(client): bytes.fromhex(key) for client, key in content.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise file_error(
            path,
            'expected the clients\' public keys as JSON, {"0": "hex", ...}',
            "the clients' public keys as JSON",
        ) from error
    # Whoever can change the list can replace keys by their own.
    check_ownership(path)
    for client, key in public_keys.items():
        checks.integer("client", client, 0, 2**63 - 1)
        if len(key) != 32:
            raise file_error(
                path, f"client {client}: key of {len(key)} bytes, expected 32", "keys of 32 bytes"
            )
    return public_keys


def identities_json(public_keys: Mapping[int, bytes]) -> bytes:
    """Public keys in the format of `identities.json`.

    >>> identities_json({3: b"\\x01\\x02"})
    b'{"3": "0102"}'
    """
    return json.dumps({str(client): key.hex() for client, key in sorted(public_keys.items())}).encode()

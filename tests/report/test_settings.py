"""All settings are there to read, and to copy as JSON."""

import html
import json
import re
from pathlib import Path
from types import MappingProxyType

from refiner.report import Settings

VALUES = {
    "seed": 0,
    "lr": 1e-4,
    "tau": None,
    "path": Path("a/b"),
    "attack": MappingProxyType({"name": "DLG", "optimizer": {"betas": [0.9, 0.999], "none": {}}}),
}


def test_every_value_is_listed_by_its_name() -> None:
    page = Settings(VALUES).html("a")
    assert re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", html.unescape(page)) == [
        ("seed", "0"),
        ("lr", "0.0001"),
        ("tau", "null"),
        ("path", '"a/b"'),
        ("name", "DLG"),
        ("optimizer.betas", "[0.9, 0.999]"),
        ("optimizer.none", "{}"),
    ]
    assert re.findall("<h3>(.*?)</h3>", page) == ["attack"]
    assert "7 values</summary>" in page


def test_what_is_copied_is_json() -> None:
    (copied,) = re.findall('data-copy="(.*?)"', Settings(VALUES).html("a"), re.DOTALL)
    assert json.loads(html.unescape(copied)) == {
        **{name: VALUES[name] for name in ("seed", "lr", "tau")},
        "path": "a/b",
        "attack": {"name": "DLG", "optimizer": {"betas": [0.9, 0.999], "none": {}}},
    }

"""Tests of the settings table: every value is listed and can be copied."""

import html
import json
import re
from pathlib import Path
from types import MappingProxyType

from refiner.report import SettingsTable

VALUES = {
    "seed": 0,
    "lr": 1e-4,
    "tau": None,
    "path": Path("a/b"),
    "attack": MappingProxyType({"name": "DLG", "optimizer": {"betas": [0.9, 0.999], "none": {}}}),
}


def test_every_value_is_listed_by_name() -> None:
    page = SettingsTable(VALUES).html("a")
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
    assert "Show 7 settings</summary>" in page


def test_copied_text_is_json() -> None:
    (copied,) = re.findall('data-copy="(.*?)"', SettingsTable(VALUES).html("a"), re.DOTALL)
    assert json.loads(html.unescape(copied)) == {
        **{name: VALUES[name] for name in ("seed", "lr", "tau")},
        "path": "a/b",
        "attack": {"name": "DLG", "optimizer": {"betas": [0.9, 0.999], "none": {}}},
    }

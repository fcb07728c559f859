"""Tests of audit results as files: lossless, and rejected if damaged."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refiner.audit import AuditResult, FromRobust
from refiner.audit.bootstrap import mean_interval
from refiner.audit.report_table import columns, table_rows
from refiner.audit.serialization import (
    decode_pixels,
    dump_with_checksum,
    encode_pixels,
    load_with_checksum,
    to_json_value,
)
from refiner.audit.summary import summary
from refiner.errors import DataError
from refiner.report import Cell

Audited = Callable[[str], AuditResult]


@pytest.mark.parametrize("defense", ["none", "refiner"])
def test_save_and_load_are_lossless(audited: Audited, defense: str, tmp_path: Path) -> None:
    result = audited(defense)
    path = result.save(tmp_path / "new" / "a.json")
    again = AuditResult.load(path)
    assert again.findings == result.findings
    assert again.means == result.means
    assert (again.verdict, again.seconds, again.made) == (result.verdict, result.seconds, result.made)
    assert again.settings == result.settings
    assert again.control == result.control is not None
    assert (again.objective, again.diverged) == (result.objective, result.diverged)
    for name in ("original", "reconstruction", "robust"):
        np.testing.assert_array_equal(getattr(again, name), getattr(result, name))
    assert again.to_json() == result.to_json()


def test_estimate_from_robust_data_is_saved(audited: Audited) -> None:
    reached = FromRobust(13.8, 0.35, None, 1.0, 0.98)
    result = replace(audited("none"), from_robust=reached)
    assert AuditResult.from_json(result.to_json()).from_robust == reached
    text = summary([result])
    assert (
        "13.8 dB, top-1 35 %; picked out of images that the attacker has: 100 % from x* and 98 % from" in text
    )
    assert [cell for row in table_rows([result]) for cell in row if cell == Cell("13.8, 35 %", value=13.8)]
    assert "from x*" not in columns([audited("none")])


@settings(max_examples=30)
@given(
    value=st.floats(width=64),
    name=st.text(st.characters(), max_size=20),
    pixel=st.integers(0, 255),
)
def test_any_number_name_and_pixel_is_restored(audited: Audited, value: float, name: str, pixel: int) -> None:
    result = audited("none")
    first = replace(result.findings[0], name=name, psnr=value, lpips=None)
    pixels = result.reconstruction.copy()
    pixels[0, 0, 0, 0] = pixel
    changed = replace(
        result,
        findings=(first, *result.findings[1:]),
        objective=(value, *result.objective[1:]),
        reconstruction=pixels,
    )
    again = AuditResult.from_json(changed.to_json())
    assert again.findings[0].name == name and again.findings[0].lpips is None
    for restored in (again.findings[0].psnr, again.objective[0]):
        assert restored == value or (math.isnan(restored) and math.isnan(value))
        assert math.copysign(1, restored) == math.copysign(1, value) or math.isnan(value)
    np.testing.assert_array_equal(again.reconstruction, pixels)


def test_damaged_files_are_rejected(audited: Audited, tmp_path: Path) -> None:
    path = audited("none").save(tmp_path / "a.json")
    whole = path.read_bytes()
    middle = len(whole) // 2
    for damaged in (
        b"",
        whole[:middle],
        whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        b"\xff\xfe" + whole,
        b"[]",
        b'{"format": "refiner-audit-2"}',
        whole.replace(b"refiner-audit-2", b"refiner-audit-9"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"a\.json: not an audit result") as caught:
            AuditResult.load(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="not an audit result"):
        AuditResult.load(tmp_path)
    path.write_bytes(whole.replace(b"refiner-audit-2", b"refiner-audit-1"))
    with pytest.raises(DataError, match=r"'refiner-audit-1' of an older version; run the audit again\)$"):
        AuditResult.load(path)


def test_results_with_wrong_fields_are_rejected(audited: Audited) -> None:
    body = load_with_checksum(audited("none").to_json(), "a")
    for field, value in (
        ("findings", []),
        ("victims", 2),
        ("original", {"shape": [1, 1, 1, 1], "zlib": "eJwDAAAAAAE="}),
        ("made", "yesterday"),
        ("means", {"psnr": {"value": 1}}),
        ("robust", 3),
        ("verdict", {"level": "neither"}),
        ("control", {"level": "visible"}),
        ("from_robust", {"psnr": "much"}),
    ):
        with pytest.raises(DataError, match="not an audit result"):
            AuditResult.from_json(dump_with_checksum({**body, field: value}))
    with pytest.raises(DataError, match="not an audit result"):
        AuditResult.from_json(
            dump_with_checksum({key: value for key, value in body.items() if key != "means"})
        )


def test_pixels_of_another_shape_are_rejected() -> None:
    encoded = encode_pixels(np.zeros((1, 8, 8, 3), np.uint8))
    for shape in ([1, 8, 8, 2], [1, 8, 8, 4], [0, 8, 8, 3]):
        with pytest.raises(ValueError, match="images of"):
            decode_pixels({**encoded, "shape": shape})


@pytest.mark.hostile
@pytest.mark.parametrize("shape", [[1, 2**70, 2, 3], [-1, -2, 2, 3], [0, 1, 1, 3]])
def test_pixels_of_an_absurd_shape_are_rejected(shape: list[int]) -> None:
    encoded = encode_pixels(np.zeros((1, 2, 2, 3), np.uint8)) | {"shape": shape}
    with pytest.raises(ValueError, match=r"^images of "):
        decode_pixels(encoded)


def test_results_without_a_cost_are_read(audited: Callable[[str], AuditResult]) -> None:
    """Earlier versions did not measure it; all other parts must be there."""
    body = load_with_checksum(audited("refiner").to_json(), "a")
    assert AuditResult.from_json(audited("refiner").to_json()).cost == audited("refiner").cost
    del body["cost"]
    assert AuditResult.from_json(dump_with_checksum(body)).cost is None
    del body["control"]
    with pytest.raises(DataError, match="not an audit result"):
        AuditResult.from_json(dump_with_checksum(body))


def test_to_json_value_returns_json_types() -> None:
    assert to_json_value({1: (math.inf, True, None, "a")}) == {"1": ["inf", True, None, "a"]}


def test_intervals_resample_victims_not_images() -> None:
    draw = np.random.default_rng(1)
    values = draw.normal(0, 1, 100)
    for repeats in (1, 4):  # four equal images of a victim are no more evidence than one
        mean = mean_interval(np.repeat(values, repeats).tolist(), victims=100)
        assert mean.low is not None and mean.high is not None
        # ± 1.96 σ / √n of the normal interval.
        assert mean.high - mean.low == pytest.approx(2 * 1.96 * values.std() / 10, rel=0.1)

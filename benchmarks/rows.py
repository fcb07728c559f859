"""Measured rows for docs/results: one JSON object a line, each with its command, commit and device."""

import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]


def append_rows(path: Path, rows: Iterable[dict[str, object]], **shared: object) -> None:
    """Append rows to a .jsonl file, with what they share and where they come from.

    Args:
        path: The file; its folder is made if need be.
        rows: What was measured.
        **shared: Fields of all rows, such as the seed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    common = origin() | shared
    with path.open("a", encoding="utf-8") as file:
        for row in rows:
            print(json.dumps(common | row, ensure_ascii=False), file=file)


def origin() -> dict[str, object]:
    """The command, device, version of torch and, in a git checkout, the commit of this run."""
    script = Path(sys.argv[0]).resolve()
    shown = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script.name
    on_gpu = torch.cuda.is_available()
    fields: dict[str, object] = {
        "command": shlex.join(["python", str(shown), *sys.argv[1:]]),
        "device": torch.cuda.get_device_name() if on_gpu else f"CPU, {platform.machine()}",
        "torch": torch.__version__,
    }
    # "-dirty" where files differ from the commit.
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=7"]
    described = subprocess.run(git, capture_output=True, text=True, check=False)
    if described.returncode == 0:
        fields["commit"] = described.stdout.strip()
    return fields

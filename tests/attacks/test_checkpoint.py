"""The state of an attack on disk: one that was damaged is refused and kept, and any path will do."""

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from refiner.attacks import (
    GGL,
    InvertingGradients,
    Observation,
    ThreatModel,
    checkpoint,
    matching,
    parametrisation,
)
from refiner.core import Task
from refiner.data import load_sample
from refiner.defenses import NoDefense
from refiner.errors import DataError, SettingError
from refiner.generator import Generator
from refiner.models import LeNet

ATTACK = InvertingGradients(iterations=4)


@pytest.fixture(params=["under way", "finished"])
def state(
    request: pytest.FixtureRequest, light: Observation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The state of an attack that was killed on its way, and of one that came to its end."""
    monkeypatch.setattr(matching, "_BLOCK", 2)
    monkeypatch.setattr(checkpoint, "_SAVE", 0.0)
    path = tmp_path / "a.state.safetensors"

    def kill(done: int, of: int) -> None:
        raise KeyboardInterrupt

    if request.param == "finished":
        ATTACK.reconstruct(light, resume=path)
    else:
        with pytest.raises(KeyboardInterrupt):
            ATTACK.reconstruct(light, resume=path, on_progress=kill)
    return path


def damaged(content: bytes, damage: str) -> bytes:
    if damage == "middle":
        place = (8 + int.from_bytes(content[:8], "little") + len(content)) // 2
        return content[:place] + b"\xff" * 8 + content[place + 8 :]
    if damage == "end":
        return content[:-8] + b"\xff" * 8
    if damage == "type":
        return content.replace(b'"F32"', b'"I32"', 1)
    return re.sub(rb'(iteration\\": )\d', rb"\g<1>1", content)


@pytest.mark.parametrize("damage", ["middle", "end", "type", "position"])
def test_a_damaged_state_is_refused_and_kept(damage: str, state: Path, light: Observation) -> None:
    content = damaged(state.read_bytes(), damage)
    assert content != state.read_bytes() and len(content) == len(state.read_bytes())
    state.write_bytes(content)
    with pytest.raises(DataError) as caught:
        ATTACK.reconstruct(light, resume=state)
    assert str(caught.value) == (
        f"resume = {str(state)!r}: its checksum is wrong, it was damaged or changed; "
        "nothing was overwritten. Remove it to start anew"
    )
    assert state.read_bytes() == content


def test_a_state_without_a_checksum_is_refused(state: Path, light: Observation) -> None:
    with safe_open(state, framework="pt") as file:
        about = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del about["sum"]
    save_file(tensors, state, about)
    with pytest.raises(DataError, match="its checksum is wrong"):
        ATTACK.reconstruct(light, resume=state)
    save_file(tensors, state, about | {"format": "refiner-attack-2"})
    with pytest.raises(DataError, match="of another version of refiner; nothing was overwritten"):
        ATTACK.reconstruct(light, resume=state)


def test_a_sound_state_goes_on(state: Path, light: Observation) -> None:
    whole = ATTACK.reconstruct(light)
    assert torch.equal(ATTACK.reconstruct(light, resume=state).x, whole.x)


def test_the_state_is_named_by_a_str_or_a_path(light: Observation, tmp_path: Path) -> None:
    path = tmp_path / "x.st"
    one = ATTACK.reconstruct(light, resume=str(path))
    before = path.read_bytes()
    assert torch.equal(ATTACK.reconstruct(light, resume=path).x, one.x) and path.read_bytes() == before
    with pytest.raises(SettingError, match="resume = 5: expected the path of a file or None"):
        ATTACK.reconstruct(light, resume=5)


@pytest.mark.parametrize("damage", ["cut", "foreign", "empty"])
def test_a_broken_state_is_refused_and_kept(damage: str, light: Observation, tmp_path: Path) -> None:
    state = tmp_path / "state.safetensors"
    ATTACK.reconstruct(light, resume=state)
    content = {"cut": state.read_bytes()[:-40], "foreign": b"not ours at all", "empty": b""}[damage]
    state.write_bytes(content)
    with pytest.raises(DataError, match=r"state\.safetensors.*nothing was overwritten"):
        ATTACK.reconstruct(light, resume=state)
    assert state.read_bytes() == content


def test_a_state_says_in_what_it_differs(light: Observation, tmp_path: Path) -> None:
    state = tmp_path / "state.safetensors"
    ATTACK.reconstruct(light, chunk=2, resume=state)
    upload = replace(light, gradient=2 * light.gradient)
    for told, call in {
        "settings": lambda: replace(ATTACK, iterations=5).reconstruct(light, chunk=2, resume=state),
        "chunk, deterministic": lambda: ATTACK.reconstruct(light, deterministic=True, resume=state),
        "uploads": lambda: ATTACK.reconstruct(upload, chunk=2, resume=state),
    }.items():
        with pytest.raises(DataError, match=f"differs in {told}; nothing was overwritten"):
            call()


def test_a_state_of_another_generator_is_refused(tmp_path: Path) -> None:
    """The same file, other weights: only a checksum of them can tell."""
    file, state = tmp_path / "g.safetensors", tmp_path / "state.safetensors"
    sample = load_sample()
    task = Task(LeNet(), example=sample.images[:1])
    seen = Observation.of(task, NoDefense().protect(task, sample.images[:1], sample.labels[:1]))
    attack, threat = GGL(iterations=1, generator=str(file)), ThreatModel(generator=True)
    for told in ("", "differs in generator; nothing was overwritten"):
        Generator(latent=4, width=4).save(file)
        parametrisation._loaded.cache_clear()
        with pytest.raises(DataError, match=told) if told else nullcontext():
            attack.reconstruct(seen, threat=threat, resume=state)

"""The state of an attack on disk: damaged files and those of another attack raise and are kept."""

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from refiner.attacks import GGL, InvertingGradients, Observation, ThreatModel
from refiner.attacks.matching import checkpoint, gradient_matching, parametrisation
from refiner.core import Task
from refiner.data import load_sample
from refiner.defenses import NoDefense
from refiner.errors import DataError, SettingError
from refiner.generator import Generator
from refiner.models import LeNet

ATTACK = InvertingGradients(iterations=4)


@pytest.fixture(params=["interrupted", "finished"])
def state(
    request: pytest.FixtureRequest,
    small_observation: Observation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """The state of an interrupted and of a finished attack."""
    monkeypatch.setattr(gradient_matching, "_ITERATIONS_PER_BLOCK", 2)
    monkeypatch.setattr(checkpoint, "_SECONDS_BETWEEN_SAVES", 0.0)
    path = tmp_path / "a.state.safetensors"

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    if request.param == "finished":
        ATTACK.reconstruct(small_observation, resume=path)
    else:
        with pytest.raises(KeyboardInterrupt):
            ATTACK.reconstruct(small_observation, resume=path, on_progress=interrupt)
    return path


def damaged(content: bytes, damage: str) -> bytes:
    if damage == "middle":
        middle = (8 + int.from_bytes(content[:8], "little") + len(content)) // 2
        return content[:middle] + b"\xff" * 8 + content[middle + 8 :]
    if damage == "end":
        return content[:-8] + b"\xff" * 8
    if damage == "type":
        return content.replace(b'"F32"', b'"I32"', 1)
    return re.sub(rb'(iteration\\": )\d', rb"\g<1>1", content)


@pytest.mark.parametrize("damage", ["middle", "end", "type", "position"])
def test_a_damaged_state_raises_and_is_kept(damage: str, state: Path, small_observation: Observation) -> None:
    content = damaged(state.read_bytes(), damage)
    assert content != state.read_bytes() and len(content) == len(state.read_bytes())
    state.write_bytes(content)
    with pytest.raises(DataError) as caught:
        ATTACK.reconstruct(small_observation, resume=state)
    assert str(caught.value) == (
        f"resume = {str(state)!r}: its checksum is wrong, it was damaged or changed; "
        "nothing was overwritten. Remove it to start anew"
    )
    assert state.read_bytes() == content


def test_a_state_without_a_checksum_raises(state: Path, small_observation: Observation) -> None:
    with safe_open(state, framework="pt") as file:
        header = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del header["sum"]
    save_file(tensors, state, header)
    with pytest.raises(DataError, match="its checksum is wrong"):
        ATTACK.reconstruct(small_observation, resume=state)
    save_file(tensors, state, header | {"format": "refiner-attack-2"})
    with pytest.raises(DataError, match="of another version of refiner; nothing was overwritten"):
        ATTACK.reconstruct(small_observation, resume=state)


def test_an_undamaged_state_is_resumed(state: Path, small_observation: Observation) -> None:
    uninterrupted = ATTACK.reconstruct(small_observation)
    assert torch.equal(ATTACK.reconstruct(small_observation, resume=state).x, uninterrupted.x)


def test_resume_takes_a_string_or_a_path(small_observation: Observation, tmp_path: Path) -> None:
    path = tmp_path / "x.st"
    first = ATTACK.reconstruct(small_observation, resume=str(path))
    content = path.read_bytes()
    assert (
        torch.equal(ATTACK.reconstruct(small_observation, resume=path).x, first.x)
        and path.read_bytes() == content
    )
    with pytest.raises(SettingError, match="resume = 5: expected the path of a file or None"):
        ATTACK.reconstruct(small_observation, resume=5)


@pytest.mark.parametrize("damage", ["cut", "foreign", "empty"])
def test_a_broken_state_raises_and_is_kept(
    damage: str, small_observation: Observation, tmp_path: Path
) -> None:
    state = tmp_path / "state.safetensors"
    ATTACK.reconstruct(small_observation, resume=state)
    content = {"cut": state.read_bytes()[:-40], "foreign": b"another format", "empty": b""}[damage]
    state.write_bytes(content)
    with pytest.raises(DataError, match=r"state\.safetensors.*nothing was overwritten"):
        ATTACK.reconstruct(small_observation, resume=state)
    assert state.read_bytes() == content


def test_the_error_names_what_differs(small_observation: Observation, tmp_path: Path) -> None:
    state = tmp_path / "state.safetensors"
    ATTACK.reconstruct(small_observation, chunk=2, resume=state)
    upload = replace(small_observation, gradient=2 * small_observation.gradient)
    for names, call in {
        "settings": lambda: replace(ATTACK, iterations=5).reconstruct(
            small_observation, chunk=2, resume=state
        ),
        "chunk, deterministic": lambda: ATTACK.reconstruct(
            small_observation, deterministic=True, resume=state
        ),
        "uploads": lambda: ATTACK.reconstruct(upload, chunk=2, resume=state),
    }.items():
        with pytest.raises(DataError, match=f"differs in {names}; nothing was overwritten"):
            call()


def test_a_state_of_another_generator_raises(tmp_path: Path) -> None:
    """The same path with other weights is detected by their checksum."""
    file, state = tmp_path / "g.safetensors", tmp_path / "state.safetensors"
    sample = load_sample()
    task = Task(LeNet(), example=sample.images[:1])
    observation = Observation.of(task, NoDefense().protect(task, sample.images[:1], sample.labels[:1]))
    attack, threat = GGL(iterations=1, generator=str(file)), ThreatModel(generator=True)
    for error in ("", "differs in generator; nothing was overwritten"):
        Generator(latent=4, width=4).save(file)
        parametrisation._load_generator.cache_clear()
        with pytest.raises(DataError, match=error) if error else nullcontext():
            attack.reconstruct(observation, threat=threat, resume=state)

"""The requirements on every defence in `DEFENSES`, of further settings, and of chains."""

import copy
import os
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refiner import DataError, ProtectionError, SettingError, Task, Update
from refiner.data import load_sample
from refiner.defenses import DEFENSES, Chain, Defense, make_defense
from refiner.defenses.chain import gradient_transforms

# Attribute classifiers with random weights for the model below; relative, so that all workers name it alike.
CLASSIFIERS = os.path.relpath(Path(__file__).parent / "data" / "recup.safetensors")
# Faster settings where the default is slow, or does not exist.
QUICK = {
    "recup": f"recup:file={CLASSIFIERS}",
    "refiner-paper": "refiner-paper:iterations=1",
    "soteria": "soteria:sensitivity=estimated,probes=2",
}
# Settings that use other code than the default.
VARIANTS = (
    "refiner:search=always,iterations=4,error_feedback=false",
    "refiner-paper:iterations=1,privacy=mse,relative=true,tau=1",
    "dp-gaussian:per_sample=true",
    "dp-laplace:per_sample=true",
    "gq:stochastic=true",
    "pruning:scope=global",
    "soteria:variant=original,sensitivity=estimated,probes=2",
    "soteria:sensitivity=exact",
    f"recup:file={CLASSIFIERS},aim=boundary,iterations=2",
)
CHAINS = (
    "refiner+dp-gaussian",
    "pruning:rate=0.8+gq:bits=8",
    f"{QUICK['soteria']}+gq+dp-laplace",
)
# Their draws are public: without a seed the same for all clients.
PUBLIC_DRAWS = {QUICK["soteria"], VARIANTS[-3]}
TEXTS = [*(QUICK.get(name, name) for name in DEFENSES), *VARIANTS, *CHAINS]
every = pytest.mark.parametrize("text", TEXTS)
Batch = tuple[Tensor, Tensor]


def scaled(factor: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda scores, labels: factor * F.cross_entropy(scores, labels)


def small() -> nn.Module:
    """One convolution: the requirements do not depend on the model, and LeNet takes twice as long."""
    torch.manual_seed(0)
    body = nn.Conv2d(3, 4, 5, stride=2, padding=2)
    return nn.Sequential(body, nn.GELU(), nn.Flatten(), nn.Linear(4 * 16 * 16, 10))


@cache
def task_of(dtype: torch.dtype = torch.float32, factor: float = 1.0) -> Task:
    return Task(small().to(dtype), example=torch.rand(2, 3, 32, 32, dtype=dtype), loss=scaled(factor))


@cache
def broken() -> Task:
    """A model that returns NaN."""
    task = Task(small(), example=torch.rand(2, 3, 32, 32))
    with torch.no_grad():
        task.model.get_parameter("3.bias")[0] = torch.nan
    return task


@pytest.fixture(scope="module")
def task() -> Task:
    return task_of()


@pytest.fixture(scope="module")
def batch() -> Batch:
    sample = load_sample()
    return sample.images[:2, None], sample.labels[:2, None]


@pytest.fixture(scope="module")
def pairs() -> Batch:
    """Two victims with two samples each."""
    sample = load_sample()
    return sample.images[:4].view(2, 2, 3, 32, 32), sample.labels[:4].view(2, 2)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_updates_have_the_tasks_shapes_dtype_and_device(text: str, dtype: torch.dtype, pairs: Batch) -> None:
    task, x = task_of(dtype), pairs[0].to(dtype)
    update = make_defense(text).protect(task, x, pairs[1], seed=0)
    assert update.names == task.names and update.shapes == task.shapes
    assert (update.victims, update.samples) == (2, 2)
    for tensor in update.tensors.values():
        assert tensor.dtype == dtype and tensor.device == x.device
        assert not tensor.requires_grad and bool(tensor.isfinite().all())


@every
def test_a_victims_upload_does_not_depend_on_other_victims(text: str, task: Task, pairs: Batch) -> None:
    x, y = pairs
    defense = make_defense(text)
    other = torch.stack([1 - x[0], x[1]]), torch.stack([(y[0] + 1) % 10, y[1]])
    one, two = (defense.protect(task, *data, seed=1).flat() for data in (pairs, other))
    torch.testing.assert_close(one[1], two[1], rtol=1e-4, atol=1e-6)
    assert not torch.equal(one[0], two[0])
    alone = defense.protect(task, x[:1], y[:1], seed=1).flat()
    torch.testing.assert_close(one[0], alone[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("text", [text for text in TEXTS if hasattr(make_defense(text), "chunk")])
def test_chunks_change_results_only_by_rounding(text: str, task: Task, pairs: Batch) -> None:
    whole, parts = make_defense(text), make_defense(text, chunk=1)
    one, two = (defense.protect(task, *pairs, seed=1).flat() for defense in (whole, parts))
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


@every
def test_victims_can_have_their_own_models(text: str, task: Task, pairs: Batch) -> None:
    """Each uploads the same as if all had its model, or the defence raises."""
    defense, (x, y) = make_defense(text), (pairs[0][:2], pairs[1][:2])
    first = torch.cat([value.flatten() for value in task.parameters().values()])
    per_victim = task.with_models(torch.stack([first, 1.1 * first]))
    if not defense.supports_models_per_victim:
        with pytest.raises(DataError, match=r"task with 2 models: .* takes one for all victims"):
            defense.protect(per_victim, x, y, seed=0)
        return
    uploads = defense.protect(per_victim, x, y, seed=0).flat()
    other = copy.deepcopy(task.model)
    with torch.no_grad():
        for value in other.parameters():
            value.mul_(1.1)
    for victim, shared in enumerate((task, Task(other, example=x[0], loss=task.loss_function))):
        expected = defense.protect(shared, x, y, seed=0).flat()[victim]
        assert (uploads[victim] - expected).norm() < 1e-3 * expected.norm()  # GQ may round to another level


@every
def test_a_seed_determines_the_upload(text: str, task: Task, batch: Batch) -> None:
    one, again, other = (make_defense(text).protect(task, *batch, seed=seed).flat() for seed in (1, 1, 2))
    assert torch.equal(one, again)
    # A zero has no sign: it would be that of the value that a defence removed.
    assert not bool((one.signbit() & (one == 0)).any())
    drawn = not torch.equal(one, other)
    assert drawn or not {"refiner", "dp-gaussian", "dp-laplace"} & set(make_defense(text).name.split("+"))
    # Without a seed two clients draw different noise.
    first, second = (make_defense(text).protect(task, *batch).flat() for _ in range(2))
    if drawn and text not in PUBLIC_DRAWS:
        assert not torch.equal(first, second) and not torch.equal(first, one)


# The settings of each defence that protect least and most.
WEAKEST = {
    "none": "none",
    "refiner": "refiner:alpha=0",
    "refiner-light": "refiner-light:alpha=0",
    "refiner-paper": "refiner-paper:iterations=1,epsilon=1e-6",
    "dp-gaussian": "dp-gaussian:magnitude=1e-12,clip=none",
    "dp-laplace": "dp-laplace:magnitude=1e-12,clip=none",
    "gq": "gq:bits=28",
    "pruning": "pruning:rate=0",
    "soteria": "soteria:rate=0",
    "recup": f"recup:file={CLASSIFIERS},budget=0",
}
STRONGEST = {
    "dp-gaussian": "dp-gaussian:magnitude=100",
    "dp-laplace": "dp-laplace:magnitude=100",
    "pruning": "pruning:rate=0.9999",
    "soteria": "soteria:rate=0.9999,sensitivity=estimated",
}


@pytest.mark.parametrize("name", DEFENSES)
def test_the_weakest_setting_uploads_the_real_gradient(name: str, task: Task, batch: Batch) -> None:
    real, sent = (make_defense(text).protect(task, *batch, seed=0).flat() for text in ("none", WEAKEST[name]))
    assert float((sent - real).norm() / real.norm()) < 1e-5


@pytest.mark.parametrize("name", STRONGEST)
def test_the_strongest_setting_reveals_almost_nothing(name: str, task: Task, batch: Batch) -> None:
    real, sent = (make_defense(text).protect(task, *batch, seed=0) for text in ("none", STRONGEST[name]))
    if name == "soteria":
        # One of 1,024 features is kept.
        columns = (sent.tensors["3.weight"] != 0).any(1)
        assert columns.sum(1).tolist() == [1, 1]
    elif name == "pruning":
        # One of 10,000 entries is kept, and one per tensor.
        assert bool(((sent.flat() != 0).sum(1) <= task.size / 10_000 + len(task.names)).all())
    else:
        # Its direction is no closer to the real gradient's than a random one.
        alike = torch.cosine_similarity(sent.flat(), real.flat())
        assert bool((alike.abs() < 5 / task.size**0.5).all())


@every
def test_a_zero_gradient_is_protected_or_rejected(text: str, batch: Batch) -> None:
    defense = make_defense(text)
    assert _protected_or_rejected(defense, task_of(factor=0.0), batch)
    if not {"refiner", "dp-gaussian", "dp-laplace"} & set(defense.name.split("+")):
        assert not bool(defense.protect(task_of(factor=0.0), *batch).flat().any())


@every
def test_a_huge_gradient_is_protected_or_rejected(text: str, batch: Batch) -> None:
    """The square of the gradient overflows."""
    assert _protected_or_rejected(make_defense(text), task_of(factor=1e30), batch)


def _protected_or_rejected(defense: Defense, task: Task, batch: Batch) -> bool:
    """A defence that needs the data may reject it; a gradient transform accepts every gradient."""
    try:
        update = defense.protect(task, *batch, seed=0)
    except ProtectionError as error:
        return defense.needs == "data" and "\n" not in str(error)
    return bool(update.flat().isfinite().all())


@every
def test_data_that_is_not_finite_raises(text: str, task: Task, batch: Batch) -> None:
    x, y = batch
    one = x.clone()
    one[1, 0, 2, 31, 31] = torch.nan
    for invalid in (one, x * torch.inf):
        with pytest.raises(DataError, match="no update was made"):
            make_defense(text).protect(task, invalid, y)


@every
def test_inference_mode_and_autocast_raise(text: str, task: Task, batch: Batch) -> None:
    """Some versions of PyTorch return zero gradients in inference mode."""
    defense, (x, y) = make_defense(text), batch
    with torch.inference_mode():
        with pytest.raises(DataError, match="inference mode"):
            defense.protect(task, x, y)
        inference_tensor = x.clone()
    with pytest.raises(DataError, match="inference mode"):
        defense.protect(task, inference_tensor, y)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(DataError, match="autocast is on for cpu"):
        defense.protect(task, x, y)


@every
def test_a_model_that_returns_nan_raises(text: str, batch: Batch) -> None:
    with pytest.raises(ProtectionError) as raised:
        make_defense(text).protect(broken(), *batch)
    assert "\n" not in str(raised.value)


@every
def test_an_update_can_be_saved_and_loaded(text: str, task: Task, batch: Batch, tmp_path: Path) -> None:
    update = make_defense(text).protect(task, *batch)
    update.save(tmp_path / "update.safetensors")
    again = Update.load(tmp_path / "update.safetensors")
    assert torch.equal(again.flat(), update.flat())
    assert (again.defense, again.samples, again.names) == (update.defense, update.samples, update.names)
    assert again.settings == update.settings == make_defense(text).settings()


@every
def test_settings_contain_no_secret(text: str) -> None:
    defense = make_defense(text)
    settings = defense.settings()
    parts = defense.parts if isinstance(defense, Chain) else (defense,)
    private = {f.name for part in parts for f in fields(part) if f.metadata.get("private") or not f.init}  # type: ignore[arg-type]
    assert not {key.rpartition(".")[2] for key in settings} & {*private, "seed", "key", "secret"}
    assert not any(isinstance(value, bytes | Tensor) for value in settings.values())


@every
def test_needs_cost_guarantee_and_size_are_stated(text: str, task: Task) -> None:
    defense = make_defense(text)
    assert defense.needs in ("data", "gradient")
    for words in (defense.cost, defense.guarantee()):
        assert words.strip() and "\n" not in words
    assert 0 < defense.wire_bytes(task.shapes) <= 4 * task.size


@every
def test_every_defence_names_its_paper(text: str) -> None:
    defense = make_defense(text)
    assert isinstance(defense.reference, str) and "\n" not in defense.reference
    assert bool(defense.reference) == (text != "none")


@every
def test_networks_are_listed_and_robust_data_returned_by_those_that_use_them(
    text: str, task: Task, batch: Batch
) -> None:
    defense = make_defense(text)
    crafts = defense.name.startswith("refiner")
    networks = {"refiner-paper:iterations=1": ["evaluation"], VARIANTS[1]: []}
    assert list(defense.networks(task)) == networks.get(text, ["noise statistics"] if crafts else [])
    protection = defense.protection(task, *batch, seed=0)
    assert torch.equal(protection.update.flat(), defense.protect(task, *batch, seed=0).flat())
    assert (protection.robust is not None) == crafts
    if protection.robust is not None:
        assert protection.robust.shape == batch[0].shape


@every
def test_a_stateless_defence_has_an_empty_state(text: str, task: Task, batch: Batch) -> None:
    defense = make_defense(text)
    state = defense.init_state(samples=2)
    plain, with_state = (defense.protect(task, *batch, seed=0, state=s).flat() for s in (None, state))
    assert torch.equal(plain, with_state)
    assert state.state_dict() == {}
    state.load_state_dict({})
    with pytest.raises(SettingError, match=r"^state = 'memory': expected the result of init_state\(\)"):
        defense.protect(task, *batch, state="memory")  # type: ignore[arg-type]


@every
def test_gradient_transforms_are_listed_by_defences_that_need_only_a_gradient(text: str) -> None:
    defense = make_defense(text)
    assert bool(gradient_transforms(defense)) == (defense.needs == "gradient")

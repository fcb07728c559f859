"""The generator: size, range, purity and smoothness, weight files."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.func import functional_call, grad, vmap

from refiner.errors import DataError, SettingError
from refiner.generator import Generator, network
from refiner.generator.network import BUNDLED


@pytest.fixture
def tiny() -> Generator:
    """A small generator with other statistics and class norms than at initialisation."""
    generator = Generator(latent=6, width=4)
    generator(torch.randn(20, 6), torch.arange(20) % 10)
    with torch.no_grad():
        for weight in generator.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return generator.eval()


def test_the_file_is_at_most_four_megabytes(tmp_path: Path) -> None:
    generator, path = Generator(), tmp_path / "weights"
    assert sum(p.numel() for p in generator.parameters()) == 1_895_883
    generator.save(path)
    assert path.stat().st_size <= 4_000_000


@pytest.mark.parametrize("axes", [(), (1,), (5,), (2, 3), (2, 1, 3)])
def test_leading_axes_are_preserved(axes: tuple[int, ...], tiny: Generator) -> None:
    y = torch.arange(torch.Size(axes).numel()).view(axes)
    z = tiny.draw(y, 0)
    assert z.shape == (*axes, 6)
    images = tiny(z, y)
    assert images.shape == (*axes, 3, 32, 32)
    assert images.dtype == torch.float32
    one_by_one = [tiny(a[None], b[None])[0] for a, b in zip(z.view(-1, 6), y.view(-1), strict=True)]
    torch.testing.assert_close(images.reshape(-1, 3, 32, 32), torch.stack(one_by_one))


def test_images_are_in_range_for_every_latent(tiny: Generator) -> None:
    images = tiny(100 * torch.randn(20, 6), torch.arange(20) % 10)
    assert images.min() >= 0 and images.max() <= 1 and images.std() > 0.1


def test_images_depend_on_latent_and_label(tiny: Generator) -> None:
    z = torch.randn(10, 6)
    images = tiny(z[:1].expand(10, 6), torch.arange(10))
    assert len(images.flatten(1).unique(dim=0)) == 10
    other = tiny(z, torch.zeros(10, dtype=torch.long))
    assert len(other.flatten(1).unique(dim=0)) == 10


def test_evaluation_mode_is_pure(tiny: Generator) -> None:
    before = {name: t.clone() for name, t in tiny.state_dict().items()}
    z, y = torch.randn(4, 6), torch.arange(4)
    first = tiny(z, y)
    tiny(torch.randn(8, 6), torch.arange(8))
    assert torch.equal(tiny(z, y), first)
    assert all(torch.equal(t, before[name]) for name, t in tiny.state_dict().items())
    torch.testing.assert_close(functional_call(tiny, before, (z, y)), first)


def test_it_can_be_differentiated_twice(tiny: Generator) -> None:
    exact, y = tiny.double().requires_grad_(False), torch.tensor([8])
    z = torch.randn(1, 6, dtype=torch.double, requires_grad=True)

    def some(z: Tensor) -> Tensor:
        return exact(z, y).flatten(1)[:, ::701]  # type: ignore[no-any-return]

    assert torch.autograd.gradcheck(some, z)
    assert torch.autograd.gradgradcheck(some, z)


def test_victims_are_independent_under_vmap(tiny: Generator) -> None:
    tiny.double()
    z, y = torch.randn(3, 2, 6, dtype=torch.double), torch.arange(6).view(3, 2)
    torch.testing.assert_close(vmap(tiny)(z, y), tiny(z, y))

    def far(z: Tensor, y: Tensor) -> Tensor:
        return (tiny(z, y) - 0.3).square().sum()

    alone = torch.stack([grad(far)(z[i], y[i]) for i in range(3)])
    torch.testing.assert_close(vmap(grad(far))(z, y), alone)


def test_draws_are_seeded(tiny: Generator) -> None:
    y = torch.arange(4)
    assert torch.equal(tiny.draw(y, 1), tiny.draw(y, 1))
    assert not torch.equal(tiny.draw(y, 1), tiny.draw(y, 2))
    with pytest.raises(SettingError, match=r"^seed = -1: expected an integer in \[0, 2147483647\]$"):
        tiny.draw(y, -1)


@pytest.mark.parametrize(
    ("z", "y"), [((2, 5), (2,)), ((2, 6), (3,)), ((2, 6), (2, 1)), ((6,), (1,)), ((), ())]
)
def test_wrong_shapes_raise_one_line(z: tuple[int, ...], y: tuple[int, ...], tiny: Generator) -> None:
    with pytest.raises(DataError) as caught:
        tiny(torch.zeros(z), torch.zeros(y, dtype=torch.long))
    assert str(caught.value) == (
        f"z of shape {list(z)} with y of shape {list(y)}: expected [..., 6] with [...]"
    )


@pytest.mark.parametrize("field", ["latent", "classes", "width"])
@pytest.mark.parametrize("value", [0, 1.0, True, None])
def test_settings_out_of_range_raise(field: str, value: object) -> None:
    with pytest.raises(SettingError, match=rf"^{field} = {value}: expected an integer ≥ 1$"):
        Generator(**{field: value})  # type: ignore[arg-type]


def test_weights_are_saved_and_loaded(tiny: Generator, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    tiny.save(path)
    assert load_file(path)["start.weight"].dtype == torch.float16
    loaded = Generator.load(path)
    assert (loaded.latent, loaded.classes, loaded.width) == (6, 10, 4)
    assert not loaded.training and not any(p.requires_grad for p in loaded.parameters())
    assert all(p.dtype == torch.float32 for p in loaded.parameters())
    for name, value in tiny.named_parameters():
        assert torch.equal(loaded.get_parameter(name), value.half().float())
    for name, value in tiny.named_buffers():
        assert torch.equal(loaded.get_buffer(name), value)
    assert all(p.dtype == torch.float32 and p.requires_grad for p in tiny.parameters())


def test_weights_that_overflow_half_precision_are_not_written(tiny: Generator, tmp_path: Path) -> None:
    with torch.no_grad():
        tiny.colours.weight.fill_(1e6)
    with pytest.raises(DataError, match=r"^weights: colours.weight is not finite in half precision, nothing"):
        tiny.save(tmp_path / "weights")
    assert not list(tmp_path.iterdir())


def bad_files(tiny: Generator, path: Path) -> dict[str, bytes]:
    tiny.save(path)
    weights = load_file(path)
    contents = {"garbage": b"garbage" * 100, "empty": b"", "truncated": path.read_bytes()[:-10]}
    changed: dict[str, dict[str, Tensor]] = {
        "nothing": {},
        "a weight too few": {k: v for k, v in weights.items() if k != "colours.bias"},
        "a weight too many": weights | {"other": torch.zeros(1)},
        "another shape": weights | {"colours.bias": torch.zeros(2)},
        "no matrix": weights | {"start.weight": torch.zeros(3)},
        "no width": weights | {"start.weight": torch.zeros(3, 6)},
        "no classes": weights | {"blocks.0.norm1.gain": torch.zeros(())},
    }
    for name, tensors in changed.items():
        save_file(tensors, path)
        contents[name] = path.read_bytes()
    return contents


def test_a_bad_file_raises_one_line(tiny: Generator, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    for kind, content in bad_files(tiny, path).items():
        path.write_bytes(content)
        with pytest.raises(DataError) as caught:
            Generator.load(path)
        pattern = rf"weights = '{re.escape(str(path))}': not a generator \(.+\)"
        assert re.fullmatch(pattern, str(caught.value)), kind
    with pytest.raises(DataError, match="not a generator"):
        Generator.load(tmp_path / "absent")


def test_bundled_weights_are_shared_and_missing_ones_raise_with_a_hint(
    tiny: Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "generator.safetensors"
    monkeypatch.setattr(network, "BUNDLED", path)
    network._bundled.cache_clear()
    try:
        with pytest.raises(DataError) as caught:
            Generator.bundled()
        assert str(caught.value) == (
            f"weights = {str(path)!r}: not found; make it with refiner gan train --data DIR --out FILE"
        )
        tiny.save(path)
        assert Generator.bundled() is Generator.bundled("cpu")
    finally:
        network._bundled.cache_clear()


@pytest.mark.processes
@pytest.mark.skipif(not BUNDLED.exists(), reason="the generator's weights are not bundled")
def test_the_bundled_weights_are_small_frozen_and_diverse() -> None:
    assert BUNDLED.stat().st_size <= 4_000_000
    generator = Generator.bundled()
    assert not generator.training and not any(p.requires_grad for p in generator.parameters())
    assert all(t.isfinite().all() for t in generator.state_dict().values())
    y = torch.arange(10).repeat_interleave(4)
    images = generator(generator.draw(y, 0), y).reshape(10, 4, -1)
    # Not the same image for all latents, and not uniform ones.
    assert images.std(1).mean() > 0.1 and images.std(2).min() > 0.03

"""`Refiner.paper()` uploads what it uploaded at commit 796745a, bit for bit.

The file holds uploads of that commit for the first bundled images, made with one thread by the torch and on
the kind of CPU that its metadata name. Another CPU or torch may round otherwise: there only the last digits
may differ.
"""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from refiner import LeNet, Refiner, Task
from refiner.data import load_sample

FILE = Path(__file__).parent / "data" / "paper_uploads_796745a.safetensors"


@pytest.fixture(scope="module")
def stored() -> tuple[dict[str, Tensor], bool]:
    """The tensors by name, and whether this machine rounds as the one that made them."""
    with safe_open(FILE, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        here = {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}
        return tensors, {key: file.metadata()[key] for key in here} == here


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", ["default", "no epsilon"])
def test_uploads_are_those_of_the_commit(
    stored: tuple[dict[str, Tensor], bool], name: str, batch: int
) -> None:
    tensors, same_machine = stored
    sample, model = load_sample(), LeNet()
    parameters = list(model.parameters())
    values = torch.split(tensors["weights"], [parameter.numel() for parameter in parameters])
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value.view_as(parameter))
    # Two victims, as then: the sizes of a call decide how sums are ordered.
    x = sample.images[: 2 * batch].view(2, batch, 3, 32, 32)
    y = sample.labels[: 2 * batch].view(2, batch)
    defense = Refiner.paper(secret=bytes(range(32)), **({"epsilon": None} if name == "no epsilon" else {}))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        upload = defense.protect(Task(model, example=x[0]), x, y).flat()[:1]
    finally:
        torch.set_num_threads(threads)
    expected = tensors[f"{name}, B = {batch}"]
    torch.testing.assert_close(upload, expected, rtol=1e-3, atol=1e-6 * float(expected.abs().max()))
    if same_machine:
        assert torch.equal(upload, expected)

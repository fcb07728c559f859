"""Each model trains for one epoch on the bundled sample, with finite losses and parameters."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from refiner.models import make_model

# One core takes up to 0.4 s for a large image in the large models, so their epoch is two steps on small ones.
IMAGES = {"lenet": 40, "resnet10": 4, "resnet34": 4, "vit": 4}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("lenet", {}),
        ("resnet10", {}),
        ("resnet10", {"norm": "batch"}),
        ("resnet34", {}),
        ("vit", {}),
    ],
)
@pytest.mark.processes
def test_one_epoch_keeps_losses_and_parameters_finite(name: str, settings: dict[str, object]) -> None:
    from refiner.data import load_sample

    sample = load_sample()
    images, labels = sample.images[: IMAGES[name], :, ::2, ::2], sample.labels[: IMAGES[name]]
    torch.manual_seed(0)
    model = make_model(name, input_shape=(3, 16, 16), **settings).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    order = torch.randperm(len(images))
    for chosen in order.split(2 if len(images) == 4 else 4):
        loss = cross_entropy(model(images[chosen]), labels[chosen])
        assert torch.isfinite(loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())

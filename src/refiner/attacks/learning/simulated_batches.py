"""Batches of public images for simulated clients, and what their uploads look like to a network."""

import hashlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from refiner.attacks.simulation import SimulatedUploads, Simulator

# Bounds the memory of the uploads that are simulated at a time.
_SAMPLES_AT_ONCE, _VALUES_AT_ONCE = 1024, 2**28


def derive_seed(seed: int, *purpose: object) -> int:
    """Return the seed of one of the attacker's random streams, below 2⁴⁰.

    Args:
        seed: The seed of the attack.
        purpose: What the stream is for.

    >>> derive_seed(0, "noise", 1) == derive_seed(0, "noise", 1) != derive_seed(0, "noise", 2)
    True
    """
    text = " ".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:5], "big")


def canonical_rank(images: Tensor, labels: Tensor) -> Tensor:
    """Return the place `[N]` of each image if all are sorted by label, and by brightness within a label.

    A gradient does not depend on the order of its batch. Sorted batches make the batch a function of the
    gradient, which a network can learn.

    >>> canonical_rank(torch.tensor([[0.9], [0.1], [0.5]]), torch.tensor([0, 1, 0])).tolist()
    [1, 2, 0]
    """
    by_brightness = images.flatten(1).double().mean(1).argsort(stable=True)
    order = by_brightness[labels[by_brightness].argsort(stable=True)]
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))


def draw_batches(numbers: Tensor, size: int, draws: int, generator: torch.Generator) -> list[Tensor]:
    """Return passes over images, each a shuffle of them cut into batches.

    Args:
        numbers: The images' numbers `[N]`.
        size: Images in a batch, B.
        draws: How many batches there are for every image, about.
        generator: Draws the shuffles.

    Returns:
        B · draws passes `[N // B, B]`. No image occurs twice in a pass.

    >>> passes = draw_batches(torch.arange(7), 3, 2, torch.Generator().manual_seed(0))
    >>> len(passes), passes[0].shape
    (6, torch.Size([2, 3]))
    """
    count = len(numbers) // size
    return [
        numbers[torch.randperm(len(numbers), generator=generator)[: count * size]].view(count, size)
        for _ in range(size * draws)
    ]


def simulate(
    simulator: Simulator,
    passes: Sequence[Tensor],
    seed: int,
    values: int,
    on_clients: Callable[[int], None] = lambda done: None,
) -> Iterator[tuple[slice, SimulatedUploads]]:
    """Yield the uploads of simulated clients, a chunk at a time, each with a secret of its own.

    Args:
        simulator: Public images, and the defence.
        passes: Batches `[n, B]` of the images' numbers. A defence that recognises an image would give it the
            same noise again, so that clients of different passes never share a secret.
        seed: Seed of all noise.
        values: The number of values that a client uploads in all, which bounds the chunk.
        on_clients: Called with the number of clients done.

    Yields:
        Which clients, counted over all passes, and their uploads.
    """
    done = 0
    for position, batches in enumerate(passes):
        chunk = max(1, min(_SAMPLES_AT_ONCE // batches.shape[1], _VALUES_AT_ONCE // values))
        for number, rows in enumerate(torch.split(batches, chunk)):
            where = rows.to(simulator.images.device)
            x, y = simulator.images[where], simulator.labels[where.to(simulator.labels.device)]
            uploads = simulator.protect(x, y, derive_seed(seed, "client", position, number))
            yield slice(done, done + len(rows)), uploads
            done += len(rows)
            on_clients(done)

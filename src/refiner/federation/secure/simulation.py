"""A whole round in one process, and what a server sees of many clients."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from refiner import checks
from refiner.core.update import Update
from refiner.errors import DataError
from refiner.federation.secure.client import SecureClient
from refiner.federation.secure.fixedpoint import FixedPoint
from refiner.federation.secure.identity import Identity
from refiner.federation.secure.messages import STEPS
from refiner.federation.secure.round_config import Agreement
from refiner.federation.secure.server import Aggregate, SecureServer


def secure_mean(
    updates: Tensor,
    weights: Sequence[int] | None = None,
    *,
    threshold: int | None = None,
    encoding: FixedPoint | None = None,
    lost: Mapping[int, str] | None = None,
) -> Aggregate:
    """The mean of clients' updates `[n, N]`, by the whole protocol.

    `lost` has, of each client that drops out, the first step that it no longer answers.

    >>> updates = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]])
    >>> secure_mean(updates).mean.tolist()
    [3.0, 5.0]
    >>> secure_mean(updates, weights=[1, 3, 1], threshold=2, lost={2: "mask"}).mean.tolist()
    [2.5, 3.5]
    """
    if not isinstance(updates, Tensor) or updates.ndim != 2:
        raise DataError("updates: expected a tensor [n, N]")
    counts = [1] * len(updates) if weights is None else list(weights)
    if len(counts) != len(updates):
        raise checks.wrong("weights", weights, f"{len(updates)} integers, one for each client")
    for weight in counts:
        checks.integer("weight", weight, 1)
    for client, step in (lost or {}).items():
        checks.integer("lost", client, 0, len(updates) - 1)
        checks.choice(f"lost[{client}]", step, STEPS)
    identities = {client: Identity.generate() for client in range(len(updates))}
    known = {client: identity.public for client, identity in identities.items()}
    agreement = Agreement(
        "one process", 0, known, updates.shape[1], threshold, max(counts), encoding or FixedPoint()
    )
    clients = {client: SecureClient(agreement, client, identities[client]) for client in known}
    server = SecureServer(agreement)
    silent = {client: STEPS.index(step) for client, step in (lost or {}).items()}

    def asked(step: str, whom: Mapping[int, object]) -> list[int]:
        return [client for client in whom if silent.get(client, len(STEPS)) > STEPS.index(step)]

    adverts = {client: clients[client].advertise() for client in asked("advertise", clients)}
    keys = server.keys(adverts)
    shares = {client: clients[client].share(keys) for client in asked("share", adverts)}
    sealed = server.relay(shares)
    masked = {
        client: clients[client].mask(updates[client], sealed[client], counts[client])
        for client in asked("mask", sealed)
    }
    survivors = server.survivors(masked)
    confirmed = {client: clients[client].confirm(survivors) for client in asked("confirm", masked)}
    signatures = server.signatures(confirmed)
    revealed = {client: clients[client].unmask(signatures) for client in asked("unmask", confirmed)}
    return server.aggregate(revealed)


def server_view(update: Update, clients: int, encoding: FixedPoint | None = None) -> Tensor:
    """What a server sees if every `clients` victims of an update are one round: means `[V / clients, N]`.

    Summed in fixed point without the masks: bit for bit what the protocol opens. For an audit of what the
    mean still tells, attack `replace(seen, gradient=server_view(update, 10), samples=10 * update.samples)`
    where `seen` is the Observation of the same update.

    >>> from refiner.core import Task
    >>> from refiner.defenses import NoDefense
    >>> from refiner.models import LeNet
    >>> task = Task(LeNet(), example=torch.rand(1, 3, 32, 32))
    >>> update = NoDefense().protect(task, torch.rand(4, 1, 3, 32, 32), torch.zeros(4, 1, dtype=torch.long))
    >>> server_view(update, clients=2).shape
    torch.Size([2, 15826])
    """
    checks.integer("clients", clients, 2)
    if update.victims % clients:
        raise checks.wrong("clients", clients, f"a divisor of the update's {update.victims} victims")
    encoding = encoding or FixedPoint()
    encoding.check_room(clients)
    flat = update.flat()
    means = []
    for group in torch.split(flat, clients):
        whole = [encoding.encode(row) for row in group]
        total = whole[0]
        for row in whole[1:]:
            total = total + row
        means.append(encoding.decode(total, clients))
    return torch.stack(means).to(flat)

"""A whole round in one process, and the means that a server sees of many clients."""

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
from refiner.federation.secure.round_config import RoundConfig
from refiner.federation.secure.server import Aggregate, SecureServer


def secure_mean(
    updates: Tensor,
    weights: Sequence[int] | None = None,
    *,
    threshold: int | None = None,
    encoding: FixedPoint | None = None,
    dropouts: Mapping[int, str] | None = None,
) -> Aggregate:
    """Compute the weighted mean of clients' updates by running the whole protocol in this process.

    Args:
        updates: The updates `[n, N]`, one row per client.
        weights: A weight ≥ 1 for each client; all 1 if left out.
        threshold: How many clients must complete the round; ⌊2n/3⌋ + 1 if left out.
        encoding: The fixed-point encoding; `FixedPoint()` if left out.
        dropouts: By row, the first step (one of `STEPS`) to which this client does not respond.

    Returns:
        The mean over the clients whose masked updates arrived.

    Raises:
        AggregationError: Fewer clients than the threshold remain.
        DataError: `updates` is not a matrix.
        SettingError: Another argument is out of range.

    >>> updates = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]])
    >>> secure_mean(updates).mean.tolist()
    [3.0, 5.0]
    >>> secure_mean(updates, weights=[1, 3, 1], threshold=2, dropouts={2: "mask"}).mean.tolist()
    [2.5, 3.5]
    """
    if not isinstance(updates, Tensor) or updates.ndim != 2:
        shown = updates if isinstance(updates, Tensor) else type(updates).__name__
        raise DataError(
            "updates: expected a tensor [n, N]", field="updates", value=shown, expected="a tensor [n, N]"
        )
    counts = [1] * len(updates) if weights is None else list(weights)
    if len(counts) != len(updates):
        raise checks.wrong("weights", weights, f"{len(updates)} integers, one for each client")
    for weight in counts:
        checks.integer("weight", weight, 1)
    for client, step in (dropouts or {}).items():
        checks.integer("dropouts", client, 0, len(updates) - 1)
        checks.choice(f"dropouts[{client}]", step, STEPS)
    identities = {client: Identity.generate() for client in range(len(updates))}
    public_keys = {client: identity.public for client, identity in identities.items()}
    config = RoundConfig(
        "one process", 0, public_keys, updates.shape[1], threshold, max(counts), encoding or FixedPoint()
    )
    clients = {client: SecureClient(config, client, identities[client]) for client in public_keys}
    server = SecureServer(config)
    last_steps = {client: STEPS.index(step) for client, step in (dropouts or {}).items()}

    def responding(step: str, candidates: Mapping[int, object]) -> list[int]:
        return [client for client in candidates if last_steps.get(client, len(STEPS)) > STEPS.index(step)]

    advertised = {client: clients[client].advertise_keys() for client in responding("advertise", clients)}
    keys = server.collect_keys(advertised)
    shared = {client: clients[client].share_keys(keys) for client in responding("share", advertised)}
    shares = server.collect_shares(shared)
    masked = {
        client: clients[client].mask_update(updates[client], shares[client], counts[client])
        for client in responding("mask", shares)
    }
    survivors = server.collect_masked_updates(masked)
    confirmed = {
        client: clients[client].confirm_survivors(survivors) for client in responding("confirm", masked)
    }
    signatures = server.collect_signatures(confirmed)
    revealed = {client: clients[client].unmask(signatures) for client in responding("unmask", confirmed)}
    return server.aggregate(revealed)


def server_view(update: Update, clients: int, encoding: FixedPoint | None = None) -> Tensor:
    """Compute the means that a server sees if every `clients` victims of an update form one round.

    They are summed in fixed point without masks, which gives bit for bit the result of the protocol. To audit
    how much the mean still leaks, attack
    `replace(observation, gradient=server_view(update, 10), samples=10 * update.samples)`, where `observation`
    is the Observation of the same update.

    Args:
        update: The update of V victims.
        clients: Clients per round, at least 2; must divide V.
        encoding: The fixed-point encoding; `FixedPoint()` if left out.

    Returns:
        The means `[V / clients, N]`.

    Raises:
        SettingError: `clients` does not divide the number of victims.

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
    encoding.check_sum_fits(clients)
    gradients = update.flat()
    means = []
    for group in torch.split(gradients, clients):
        encoded = [encoding.encode(row) for row in group]
        total = encoded[0]
        for row in encoded[1:]:
            total = total + row
        means.append(encoding.decode(total, clients))
    return torch.stack(means).to(gradients)

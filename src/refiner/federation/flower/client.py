"""The client of a training as a Flower app: its own data and defence; only protected updates are sent.

The client's data and defence are set in `client.json` in its private folder. A server sends the round, the
training instructions and the model; no message of a server can choose a seed, a defence or the data.
"""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from torch import Tensor

from refiner.core.flat_parameters import set_parameters
from refiner.core.task import Task
from refiner.data.partition import make_partition
from refiner.defenses import make_defense
from refiner.federation.federated_settings import FederatedSettings
from refiner.federation.flower.aggregation import Secure, make_aggregation, session_name
from refiner.federation.flower.answered_rounds import begin_round, begin_round_unlocked
from refiner.federation.flower.client_data import load_client_data
from refiner.federation.flower.client_secrets import (
    NoFolder,
    client_folder,
    load_defense_state,
    save_defense_state,
)
from refiner.federation.flower.client_settings import ClientSettings
from refiner.federation.flower.messages import (
    RefusedRequest,
    Shapes,
    TrainInstructions,
    received_instructions,
    received_parameters,
    update_content,
)
from refiner.federation.flower.secure_client import SecureParticipant
from refiner.federation.local import LocalClients
from refiner.federation.schedule import Schedule, derive_seed
from refiner.federation.secure import AggregationError
from refiner.models import make_model
from refiner.secret_file import load_secret

CLIENT_ERROR = 100
"""The code of the error reply of a client that could not protect its data."""


def make_update(
    instructions: TrainInstructions, content: RecordDict, folder: Path, settings: ClientSettings, run: int
) -> tuple[Tensor, Shapes, int]:
    """A client's protected model update `[N]`, the shapes of its parameters, and its number of samples.

    Whether it is made depends on the client's settings and its files, on the request and the model, never on
    what the model makes of the data.

    Args:
        instructions: The training instructions; the caller has checked that the client accepts them.
        content: The message with the model's parameters.
        folder: The client's private folder.
        settings: The client's settings.
        run: Flower's id of the run.

    Raises:
        RefusedRequest: The client does not answer such a request.
        RefinerError: The client's own data, defence or folder are wrong.
    """
    shared_source = settings.clients > 1 or settings.seed is not None
    data = load_client_data(
        settings.data, hold_out_test=shared_source, size=settings.size, classes=settings.classes
    )
    if instructions.classes != data.classes:
        raise RefusedRequest(f"classes = {instructions.classes}: this client accepts {data.classes}")
    indices = make_partition(settings.partition, data.labels, settings.clients, settings.seed or 0)
    input_shape = tuple(data.images.shape[1:])
    model = make_model(instructions.model, classes=instructions.classes, input_shape=input_shape)
    device = torch.device(settings.device)
    task = Task(model.to(device), example=torch.zeros(2, *input_shape, device=device))
    set_parameters(task, received_parameters(content, task))
    if settings.seed is not None:
        key, batch_seed = derive_seed(settings.seed, "secret"), settings.seed
    else:
        secret = load_secret(folder / "secret")
        # The key uses 256 bits of the secret; a seed has only 63. Batches differ from run to run.
        key, batch_seed = _derive_number(secret, "defence"), _derive_number(secret, f"batches {run}") >> 193
    federated = FederatedSettings(
        rounds=instructions.round,
        clients=settings.clients,
        batch=settings.batch_size(instructions.batch, len(indices[settings.client])),
        local_steps=instructions.local_steps,
        lr=instructions.lr,
        seed=batch_seed,
    )
    schedule = Schedule(indices, federated)
    defense = make_defense(settings.defense).with_seeded_key(key)
    clients = LocalClients(task, data.images, data.labels, schedule, defense, settings.seed)
    # A new training starts as it would on one machine, except for limits that no server can reset.
    state = load_defense_state(folder)
    clients.restore(state) if instructions.round > 1 else clients.start_training(state)
    update: Tensor = clients.client_update(settings.client, instructions.round)
    save_defense_state(folder, clients.state())
    return update, task.shapes, schedule.batch_size(settings.client)


def reply_content(content: RecordDict, folder: Path, run: int, node: int) -> RecordDict:
    """The content of a client's reply; its own settings decide on the aggregation, not the request."""
    settings = ClientSettings.read(folder)
    aggregation = make_aggregation(settings.aggregation)
    if not isinstance(aggregation, Secure):
        instructions = received_instructions(content)
        settings.check(instructions)
        begin_round(folder, run, instructions)
        return update_content(*make_update(instructions, content, folder, settings, run))

    def update_of(round: int) -> tuple[Tensor, int]:
        instructions = received_instructions(content)
        if instructions.round != round:
            raise RefusedRequest(f"instructions: for round {instructions.round}, requested in round {round}")
        settings.check(instructions)
        begin_round_unlocked(folder, run, instructions)  # a participant answers one request at a time
        update, _, samples = make_update(instructions, content, folder, settings, run)
        return update, samples

    return SecureParticipant(folder, aggregation, session_name(run)).reply(content, node, update_of)


def client_app(mods: Sequence[Mod] = ()) -> ClientApp:
    """The ClientApp that a SuperNode runs, with additional Flower mods around it.

    Args:
        mods: Flower mods, the outermost first.

    Returns:
        The app. Whatever fails in it, its reply is an error without arrays.

    >>> type(client_app()).__name__
    'ClientApp'
    """
    client = ClientApp()

    @client.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        try:
            content = reply_content(message.content, client_folder(context), context.run_id, context.node_id)
        except Exception as error:  # whatever fails, the reply is an error without arrays
            # A refusal depends on the request and the client's settings. Any other text, or type of error,
            # may depend on the data: it stays in the client's log.
            print(f"refiner: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            refused = isinstance(error, RefusedRequest | AggregationError | NoFolder)
            reason = str(error) if refused else "the client sent nothing; see the client's log"
            return Message(Error(code=CLIENT_ERROR, reason=reason), reply_to=message)
        return Message(content, reply_to=message)

    return client


app = client_app()


def _derive_number(secret: bytes, purpose: str) -> int:
    """A number of 256 bits for one purpose, derived from the client's secret."""
    return int.from_bytes(hashlib.sha256(f"refiner {purpose} ".encode() + secret).digest(), "big")

"""Simulate a federated training on one machine with Flower's Ray engine and the library's clients.

    pip install -r requirements.lock -r examples/requirements.lock
    python examples/flower/simulation.py          # 2 clients, bundled images, under a minute on 2 cores

Expect the loss and the accuracy after each round; the loss falls. Each client has a private folder such as
`simulation/client-0`, with its settings (`client.json`) and its secret, created with mode 600 at its first
upload. On real nodes `--node-config` of a SuperNode names it; here there are none, so `SimulatedClient` does.
"""

import argparse
import json
import os
from functools import partial
from pathlib import Path

import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from refiner.data import load_train_and_test
from refiner.federation import FederatedSettings
from refiner.federation.flower.client import app as library_client
from refiner.federation.flower.strategy import MeanUpdate
from refiner.models import make_model

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
MODEL, CLIENTS = "mlp:hidden=32", 2
parser = argparse.ArgumentParser()
parser.add_argument("--data", default="sample", help="or cifar10, with REFINER_DATA")
parser.add_argument("--rounds", type=int, default=4)
parser.add_argument("--folder", type=Path, default=Path("simulation"))
parser.add_argument("--without-folder", action="store_true", help="clients without a place for a secret")


class SimulatedClient(ClientApp):
    """The library's client, with a private folder for each simulated node."""

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self.folder = folder

    def __call__(self, message: Message, context: Context) -> Message:
        if self.folder is not None:
            context.node_config["folder"] = str(self.folder / f"client-{context.node_config['partition-id']}")
        return library_client(message, context)


def evaluate(data: str, server_round: int, arrays: ArrayRecord) -> MetricRecord:
    train, _ = load_train_and_test(data)  # the clients' own images: a simulation may look at them
    model = make_model(MODEL).requires_grad_(False)
    model.load_state_dict(arrays.to_torch_state_dict())
    scores = model(train.images.float() / 255)
    loss = float(F.cross_entropy(scores, train.labels))
    accuracy = float((scores.argmax(1) == train.labels).float().mean())
    print(f"round {server_round}: loss {loss:.3f}, accuracy {accuracy:.1%}", flush=True)
    return MetricRecord({"loss": loss, "accuracy": accuracy})


def main(data: str, rounds: int, grid: Grid, context: Context) -> None:
    settings = FederatedSettings(clients=CLIENTS, batch=32, local_steps=2, lr=0.03)
    strategy = MeanUpdate(MODEL, classes=10, settings=settings, min_train_nodes=CLIENTS)
    initial = ArrayRecord(dict(make_model(MODEL).named_parameters()))
    strategy.start(grid, initial, num_rounds=rounds, timeout=300, evaluate_fn=partial(evaluate, data))


if __name__ == "__main__":
    options = parser.parse_args()
    for client in range(CLIENTS):
        folder = options.folder.resolve() / f"client-{client}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        share = {"clients": CLIENTS, "client": client}
        settings = {"data": options.data, "defense": "refiner:iterations=3", **share}
        (folder / "client.json").write_text(json.dumps(settings))
    (server := ServerApp()).main()(partial(main, options.data, options.rounds))
    client_app = SimulatedClient(None if options.without_folder else options.folder.resolve())
    one_core = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}  # for each client
    run_simulation(server, client_app, CLIENTS, backend_config=one_core)

"""A ServerApp as a Flower user would write it, with the library's strategy and the library's clients."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import save_file

from refiner.federation import FederatedSettings
from refiner.federation.flower.strategy import MeanUpdate
from refiner.federation.schedule import derive_seed
from refiner.models import make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(derive_seed(7, "model"))  # the initial model of the test's experiment
    initial = ArrayRecord(dict(make_model("lenet").named_parameters()))
    settings = FederatedSettings(clients=2, batch=8, lr=0.1)
    strategy = MeanUpdate("lenet", classes=10, settings=settings, min_train_nodes=2)
    rounds = context.run_config["rounds"]
    assert isinstance(rounds, int)
    result = strategy.start(grid, initial, num_rounds=rounds, timeout=90)
    save_file(dict(result.arrays.to_torch_state_dict()), str(context.run_config["out"]))

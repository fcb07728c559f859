"""A ServerApp as a user of Flower writes it, with the library's strategy and the library's clients."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import save_file

from refiner.federation import Training
from refiner.federation.flower.strategy import MeanMove
from refiner.federation.schedule import derived
from refiner.models import build

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(derived(7, "model"))  # the model with which the study of the test begins
    start = ArrayRecord(dict(build("lenet").named_parameters()))
    strategy = MeanMove("lenet", classes=10, training=Training(clients=2, batch=8, lr=0.1), minimum=2)
    rounds = context.run_config["rounds"]
    assert isinstance(rounds, int)
    result = strategy.start(grid, start, num_rounds=rounds, timeout=90)
    save_file(dict(result.arrays.to_torch_state_dict()), str(context.run_config["out"]))

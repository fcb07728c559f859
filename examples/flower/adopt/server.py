"""Flower's own FedAvg; it does not change when clients protect their data."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from model import Net
from safetensors.torch import save_file

from refiner.federation.flower import trained_arrays

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and write the weights to the file `out`."""
    torch.manual_seed(0)
    strategy = FedAvg(fraction_evaluate=0.0)
    initial = ArrayRecord(Net().state_dict())
    result = strategy.start(grid, initial, num_rounds=int(context.run_config["rounds"]), timeout=300)
    weights = trained_arrays(result)  # raises if every client failed; Flower's result is empty then
    save_file(dict(weights.to_torch_state_dict()), str(context.run_config["out"]))

"""Flower's own FedAvg: nothing of it changes when clients protect themselves."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from model import Net
from safetensors.torch import save_file

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and leave the weights in the file `out`."""
    torch.manual_seed(0)
    strategy = FedAvg(fraction_evaluate=0.0)
    start = ArrayRecord(Net().state_dict())
    result = strategy.start(grid, start, num_rounds=int(context.run_config["rounds"]), timeout=120)
    save_file(dict(result.arrays.to_torch_state_dict()), str(context.run_config["out"]))

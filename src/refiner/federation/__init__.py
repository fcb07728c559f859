"""Federated training: who takes part, what leaves them, and what a server makes of it."""

from refiner.federation.experiment import Experiment, Outcome, run_experiment
from refiner.federation.schedule import Schedule
from refiner.federation.server import SERVERS, FedAdam, FedAvg, FedAvgM, Server, make_server
from refiner.federation.settings import Training
from refiner.federation.training import Keeping, accuracy, train

__all__ = [
    "SERVERS",
    "Experiment",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "Keeping",
    "Outcome",
    "Schedule",
    "Server",
    "Training",
    "accuracy",
    "make_server",
    "run_experiment",
    "train",
]

"""Federated training: clients with defences, servers that combine their updates, the training loop."""

from refiner.federation.evaluation import accuracy
from refiner.federation.experiment import Experiment, Outcome, run_experiment
from refiner.federation.federated_settings import FederatedSettings
from refiner.federation.schedule import Schedule
from refiner.federation.server import SERVERS, FedAdam, FedAvg, FedAvgM, Server, make_server
from refiner.federation.training import CheckpointConfig, TrainingStopped, train

__all__ = [
    "SERVERS",
    "CheckpointConfig",
    "Experiment",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FederatedSettings",
    "Outcome",
    "Schedule",
    "Server",
    "TrainingStopped",
    "accuracy",
    "make_server",
    "run_experiment",
    "train",
]

"""Defences: each turns a client's batch into an `Update` that may leave the machine."""

from refiner.defenses.base import Defense
from refiner.defenses.none import NoDefense
from refiner.defenses.refiner import Refiner

__all__ = ["Defense", "NoDefense", "Refiner"]

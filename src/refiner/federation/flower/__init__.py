"""Federated training on Flower: clients on machines of their own, each with its own defence.

>>> from refiner.defenses import Pruning
>>> mod = defense_mod(Pruning(rate=0.8))  # for `@app.train(mods=[mod])` of an existing ClientApp
"""

from refiner.errors import RefinerError

try:
    import flwr  # noqa: F401
except ImportError:
    raise RefinerError("Flower is not installed: pip install 'refiner-fl[flower]'") from None

from refiner.federation.flower.client_secrets import defense_state, secret
from refiner.federation.flower.mod import defense_mod
from refiner.federation.flower.trained_arrays import trained_arrays

__all__ = ["defense_mod", "defense_state", "secret", "trained_arrays"]

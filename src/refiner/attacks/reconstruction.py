"""What an attack returns."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """The batches that an attack reconstructed, for V victims of B samples each."""

    x: Tensor
    """The reconstructed inputs, `[V, B, *input]`."""
    labels: Tensor
    """The labels `[V, B]`, granted or inferred."""
    objective: Tensor
    """The lowest value of the attack's objective for each victim, `[V]`; computed without the truth."""
    diverged: Tensor
    """bool `[V]`: the objective became NaN or infinite, and the result is the best point before that."""
    seconds: float
    """Wall-clock time of the attack."""

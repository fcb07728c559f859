"""The attacks of an audit of tabular data: those that reveal rows without a defence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from refiner.audit.table.result import REVEALED, TableAudit
from refiner.errors import RefinerError

# Attacks by optimisation are slower here, and weaker against every defence: only where the others fail.
QUICK, ON_GPU, LAST = ("analytic", "linear"), ("learned",), ("inverting",)


@dataclass(frozen=True)
class UndefendedAttacks:
    """What attacks reach without a defence, by name.

    Attributes:
        working: Those that reveal rows.
        failing: Those that don't.
        skipped: Why others do not apply to this model.
    """

    working: dict[str, TableAudit]
    failing: dict[str, TableAudit]
    skipped: dict[str, RefinerError]

    @property
    def strongest(self) -> TableAudit:
        """The one with the smallest error."""
        return min((self.working | self.failing).values(), key=lambda result: result.error.value)


def attack_undefended(
    run: Callable[[str], TableAudit], names: Sequence[str] | None = None, *, on_gpu: bool = False
) -> UndefendedAttacks:
    """Run attacks without a defence, and return which of them work.

    Args:
        run: Returns the result of an attack on undefended uploads; raises if the attack does not apply.
        names: The attacks. By default `analytic`, `linear` and on a GPU `learned`; if none of these works,
            `inverting`.
        on_gpu: Whether the attacks run on a GPU.

    Returns:
        The results.

    Raises:
        RefinerError: No attack applies: the reason of the first.
    """
    working: dict[str, TableAudit] = {}
    failing: dict[str, TableAudit] = {}
    skipped: dict[str, RefinerError] = {}
    stages = [tuple(names)] if names else [(*QUICK, *(ON_GPU if on_gpu else ())), LAST]
    for stage in stages:
        for name in stage if not working else ():
            try:
                result = run(name)
            except RefinerError as error:
                skipped[name] = error
            else:
                (working if result.error.value <= REVEALED else failing)[name] = result
    if not working and not failing:
        raise next(iter(skipped.values()))
    return UndefendedAttacks(working, failing, skipped)

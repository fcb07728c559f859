"""The attacks of an audit that names none, or all: those that apply and reveal undefended uploads."""

from collections.abc import Callable, Sequence

from refiner.attacks import ATTACKS, Attack, InvertingGradients, attack_with_iterations
from refiner.audit.control import as_control
from refiner.audit.plan import Plan
from refiner.audit.result import AuditResult
from refiner.errors import RefinerError

AUTO, ALL = "auto", "all"
"""The names that stand for the attacks chosen here: the most important ones, or every one."""


def attacks_to_try(*, on_gpu: bool, every: bool = False) -> tuple[str, ...]:
    """Return the attacks that stand for all others where none is named, the quickest first.

    Of those that match gradients `inverting` shows most images, and `idlg`, stopped early, singles out most
    of those that noise hides.

    Args:
        on_gpu: Whether they run on a GPU: training `learned` takes an hour on a CPU.
        every: Whether to return every attack there is, on whatever device.

    >>> "learned" in attacks_to_try(on_gpu=False), "dlg" in attacks_to_try(on_gpu=False, every=True)
    (False, True)
    """
    if every:
        return tuple(dict.fromkeys((*attacks_to_try(on_gpu=True), *ATTACKS, "linear+denoiser")))
    return (
        "analytic",
        "april",
        "activations",
        "spear",
        "linear",
        *(("learned",) if on_gpu else ()),
        "idlg:iterations=6",
        "inverting",
    )


def undefended_plans(
    make_plan: Callable[[Attack], Plan],
    *,
    on_gpu: bool,
    iterations: int | None = None,
    every: bool = False,
) -> tuple[list[Plan], dict[str, str]]:
    """Return an undefended audit for every attack that could work, the quickest first.

    Args:
        make_plan: Returns the undefended audit of an attack; raises if the attack does not apply.
        on_gpu: Whether the attacks run on a GPU.
        iterations: Iterations of every attack that iterates; None for its own.
        every: Whether to try every attack there is.

    Returns:
        The audits, and why the other attacks do not apply, by name.

    Raises:
        RefinerError: No attack applies, not even `inverting`, which depends on nothing but the audit's own
            arguments; its error says which of them is wrong.
    """
    plans: list[Plan] = []
    errors: dict[str, RefinerError] = {}
    names = attacks_to_try(on_gpu=on_gpu, every=every)
    for attack in dict.fromkeys(attack_with_iterations(name, iterations) for name in names):
        try:
            plans.append(make_plan(attack))
        except RefinerError as error:
            errors[attack.name] = error
    if not plans:
        raise errors[InvertingGradients.name]
    skipped = {name: str(error) for name, error in errors.items()}
    if not on_gpu and not every:
        skipped["learned"] = "takes an hour on a CPU; name it to run it"
    return plans, skipped


def working_attacks(plans: Sequence[Plan], results: Sequence[AuditResult]) -> list[Attack]:
    """Return the attacks that reveal undefended uploads; if none does, the one that comes closest.

    Args:
        plans: Undefended audits.
        results: Their results, in the same order.

    Returns:
        The attacks, in the order of the plans; at least one.
    """
    pairs = list(zip(plans, results, strict=True))
    working = [plan.attack for plan, result in pairs if as_control(result, plan.scorer.thresholds).works]
    best, _ = max(pairs, key=lambda pair: pair[1].means["psnr"].value)
    return working or [best.attack]

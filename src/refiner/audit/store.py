"""Many audits into a folder: what is finished is kept, what was stopped goes on."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from refiner.attacks.checkpoint import read_state
from refiner.audit.plan import Plan, difference, identity
from refiner.audit.result import AuditResult
from refiner.audit.run import Progress, carry_out, tuning_state
from refiner.errors import DataError


def audit_all(
    plans: Sequence[Plan],
    folder: Path,
    *,
    chunk: int | None = None,
    on_pair: Callable[[Plan, AuditResult | None], None] = lambda plan, result: None,
    on_progress: Progress = lambda stage, done, total: None,
) -> list[AuditResult]:
    """Carry out every plan, each into a file of `folder`; a plan whose file is there is read, not run again.

    A call that was stopped loses no finished plan, and the next one with the same plans goes on with the
    attack that was under way. `on_pair` is told of every plan before it is run, with None, and when its
    result is there.

    >>> import tempfile
    >>> import torch
    >>> from refiner.core import Task
    >>> x, y = torch.rand(1, 3, 16, 16), torch.tensor([3])
    >>> task = Task(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 10)), example=x)
    >>> plans = [Plan.of(task, x, y, defense=d, attack="inverting:iterations=1") for d in ("none", "pruning")]
    >>> tell = lambda plan, result: print(plan.label, "done" if result else "begins")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first, both = audit_all(plans[:1], Path(folder)), audit_all(plans, Path(folder), on_pair=tell)
    none done
    pruning begins
    pruning done
    """
    _writable(folder)
    # Files that can't be read are refused before hours are spent on the others.
    results = {plan.stem: _kept(plan, folder) for plan in plans}
    for plan in plans:
        for file in _states(plan, folder):
            if results[plan.stem] is None and file.exists():
                read_state(file)
    for plan in plans:
        result = results[plan.stem]
        if result is None:
            on_pair(plan, None)
            state, _ = _states(plan, folder)
            result = carry_out(plan, chunk=chunk, resume=state, on_progress=on_progress)
            result.save(_file(plan, folder))
            for file in _states(plan, folder):
                file.unlink(missing_ok=True)
            results[plan.stem] = result
        on_pair(plan, result)
    return [result for plan in plans if (result := results[plan.stem]) is not None]


def _writable(folder: Path) -> None:
    """Refuse a folder that can't be written, before an attack is run for nothing."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"out = {str(folder)!r}: expected a folder, but it is a file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"out = {str(folder)!r}: can't be made ({error.strerror or error})") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DataError(f"out = {str(folder)!r}: can't be written")


def _file(plan: Plan, folder: Path) -> Path:
    return folder / f"{plan.stem}.json"


def _states(plan: Plan, folder: Path) -> tuple[Path, Path]:
    """Where the attack's state is kept while it runs, and that of its tuning."""
    state = folder / f"{plan.stem}.state.safetensors"
    return state, tuning_state(state)


def _kept(plan: Plan, folder: Path) -> AuditResult | None:
    path = _file(plan, folder)
    if not path.exists():
        return None
    try:
        result = AuditResult.load(path)
    except DataError as error:
        raise DataError(f"{error}; remove it to run this pair again") from error
    if identity(result.settings) != identity(plan.settings):
        told = difference(plan.settings, result.settings)
        raise DataError(f"{path}: of other settings ({told}); rename it to run this pair again")
    return result

"""Several audits with their results in a folder: finished ones are reused, interrupted ones resumed."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from refiner import checks
from refiner.attacks.matching.checkpoint import read_attack_state
from refiner.audit.control import as_control, conclude
from refiner.audit.from_robust import robust_state_file
from refiner.audit.plan import Plan
from refiner.audit.result import AuditResult
from refiner.audit.result_records import Control
from refiner.audit.run_audit import Progress, run_plan
from refiner.audit.settings_identity import first_difference, settings_digest
from refiner.audit.tune_attack import tuning_state_files
from refiner.errors import DataError


def audit_all(
    plans: Sequence[Plan],
    folder: Path,
    *,
    chunk: int | None = None,
    control: bool = True,
    on_pair: Callable[[Plan, AuditResult | None], None] = lambda plan, result: None,
    on_progress: Progress = lambda stage, done, total: None,
) -> list[AuditResult]:
    """Run audits and save each result in `folder`; a plan whose result is there already is not run again.

    After an interruption the same call continues: finished plans are read, and the attack that was running
    resumes from its last saved state.

    Args:
        plans: The audits, from `Plan.of`.
        folder: Where results and states are saved; created if missing.
        chunk: Number of clients that are attacked at a time, to bound memory.
        control: Whether each attack is also run on undefended uploads, unless one of the plans or of the
            results in `folder` does that; without this control there are no verdicts.
        on_pair: Called with each plan, and with each control that is none of them: with None before it is
            run, and with its result.
        on_progress: Called with the stage ("tuning", "defence", "attack" or "metrics"), the steps done and
            their total.

    Returns:
        One result per plan, in the plans' order.

    Raises:
        DataError: if the folder can't be written, or contains a damaged file for one of the plans.

    >>> import tempfile
    >>> import torch
    >>> from refiner.core import Task
    >>> x, y = torch.rand(1, 3, 16, 16), torch.tensor([3])
    >>> task = Task(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 10)), example=x)
    >>> plans = [Plan.of(task, x, y, defense=d, attack="inverting:iterations=1") for d in ("none", "pruning")]
    >>> show = lambda plan, result: print(plan.defense_name, "is done" if result else "starts")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first, both = audit_all(plans[:1], Path(folder)), audit_all(plans, Path(folder), on_pair=show)
    none is done
    pruning starts
    pruning is done
    """
    _check_writable(folder)
    checks.flag("control", control)
    controls = [plan.control() if control else plan for plan in plans]
    # All files are read first, so that a damaged one is reported before hours are spent on other plans.
    results = {plan.stem: _saved_result(plan, folder) for plan in (*plans, *controls)}
    for plan in (*plans, *controls):
        for file in _state_files(plan, folder):
            if results[plan.stem] is None and file.exists():
                read_attack_state(file)

    def finished(plan: Plan, control: Control | None) -> AuditResult:
        """Return the result of a plan, which is run if need be, with the verdicts of its control."""
        result = results[plan.stem]
        if result is not None and (control is None or result.control == control):
            return result
        if result is None:
            on_pair(plan, None)
            state_file = _state_files(plan, folder)[0]
            result = run_plan(plan, chunk=chunk, resume=state_file, on_progress=on_progress)
        if control is not None:
            result = conclude(result, control, plan.scorer.thresholds)
        result.save(_result_file(plan, folder))
        for file in _state_files(plan, folder):
            file.unlink(missing_ok=True)
        results[plan.stem] = result
        return result

    stems, found = {plan.stem for plan in plans}, []
    for plan, reference in zip(plans, controls, strict=True):
        undefended = None
        if reference is not plan:
            is_new = results[reference.stem] is None
            result = finished(reference, None)
            undefended = as_control(result, plan.scorer.thresholds)
            if is_new and reference.stem not in stems:
                on_pair(reference, result)
        found.append(finished(plan, undefended))
        on_pair(plan, found[-1])
    return found


def is_finished(plan: Plan, folder: Path) -> bool:
    """Return whether the result of a plan is in `folder`."""
    return _result_file(plan, folder).exists()


def _check_writable(folder: Path) -> None:
    """Raise `DataError` if the folder can't be written, before an attack is run."""

    def unusable(problem: str) -> DataError:
        return DataError(field="out", value=str(folder), problem=problem)

    if folder.exists() and not folder.is_dir():
        raise unusable("expected a folder, but it is a file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(f"can't be created ({error.strerror or error})") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise unusable("can't be written")


def _result_file(plan: Plan, folder: Path) -> Path:
    return folder / f"{plan.stem}.json"


def _state_files(plan: Plan, folder: Path) -> list[Path]:
    """Return where the attack saves its state while it runs, and where its tuning and other trainings do."""
    state_file = folder / f"{plan.stem}.state.safetensors"
    return [state_file, *tuning_state_files(plan, state_file), robust_state_file(state_file)]


def _saved_result(plan: Plan, folder: Path) -> AuditResult | None:
    path = _result_file(plan, folder)
    if not path.exists():
        return None
    try:
        result = AuditResult.load(path)
    except DataError as error:
        raise DataError(
            f"{error}; remove it to run this audit again", field="out", value=str(folder)
        ) from error
    if settings_digest(result.settings) != settings_digest(plan.settings):
        setting = first_difference(plan.settings, result.settings)
        raise DataError(
            f"{path}: has other settings ({setting}); rename it to run this audit again",
            field="out",
            value=str(folder),
        )
    return result

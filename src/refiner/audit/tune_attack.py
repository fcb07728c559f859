"""The tuning of an attack for a defence: every trial, and the best."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from refiner.attacks import Sweep
from refiner.attacks.matching.matching_attack import MatchingAttack
from refiner.audit.plan import Plan
from refiner.audit.result_records import TuningResult
from refiner.audit.seeds import TUNING
from refiner.audit.tuning import Tuning
from refiner.audit.uploads import uploads
from refiner.metrics import assign, psnr


def tune_attack(
    plan: Plan,
    tuning: Tuning,
    *,
    chunk: int | None = None,
    resume: Path | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> TuningResult:
    """Return the settings that reconstruct the tuning images best.

    All combinations with the same number of iterations are tried in one run.

    Args:
        plan: The audit whose attack is tuned.
        tuning: Images and the values to try.
        chunk: Number of clients attacked at a time.
        resume: The state file of the attack; those of the tuning are beside it.
        on_progress: Called with the victim-iterations done and their total.
    """
    attack = plan.attack
    assert isinstance(attack, MatchingAttack)
    x, y = tuning.x, tuning.y
    truth = plan.protocol.observed(x.to(plan.scorer.original))
    _, observation = uploads(
        plan.task,
        plan.defense,
        x,
        y,
        labels=plan.threat.labels,
        seed=plan.seed + TUNING,
        chunk=chunk,
        protocol=plan.protocol,
        send_to=attack.send_to,
    )
    grid = tuning.grid(attack)
    counts = list(dict.fromkeys(point.get("iterations") for point in grid))
    runs = [[point for point in grid if point.get("iterations") == count] for count in counts]
    variants = [attack if n is None else replace(attack, iterations=n) for n in counts]  # type: ignore[call-arg]
    work = [
        len(points) * variant.matching().iterations for points, variant in zip(runs, variants, strict=True)
    ]
    trials: list[dict[str, float]] = []
    for number, (points, variant) in enumerate(zip(runs, variants, strict=True)):
        before, now = sum(work[:number]), work[number]

        def show(done: int, total: int, before: int = before, now: int = now) -> None:
            # Each run counts in its own total: in shares of the whole they add up.
            scale = total // now
            on_progress(before * scale + done, sum(work) * scale)

        varied = [{key: value for key, value in point.items() if key != "iterations"} for point in points]
        reconstruction = Sweep(variant, varied).reconstruct(
            observation,
            threat=plan.threat,
            seed=plan.seed,
            chunk=chunk,
            resume=None if resume is None else tuning_state_file(resume, number),
            on_progress=show,
            deterministic=plan.deterministic,
        )
        for settings, images in zip(points, torch.split(reconstruction.x.to(truth), len(truth)), strict=True):
            ordered = assign(images, truth) if truth.shape[1] > 1 else images
            score = float(psnr(ordered.flatten(0, 1), truth.flatten(0, 1)).mean())
            trials.append({**settings, "psnr": score})
    best = max(range(len(grid)), key=lambda i: trials[i]["psnr"])
    return TuningResult(grid[best], tuple(trials), y.numel())


def tuning_state_files(plan: Plan, state_file: Path) -> list[Path]:
    """Return where the tuning of a plan saves its states, beside the state of the attack."""
    if plan.tuning is None:
        return []
    counts = plan.tuning.values(plan.attack).get("iterations", [0])
    return [tuning_state_file(state_file, number) for number in range(len(counts))]


def tuning_state_file(state_file: Path, number: int) -> Path:
    """Return where the run of the tuning with that number saves its state.

    >>> tuning_state_file(Path("out/a.state.safetensors"), 0).name
    'a.state.tuning1.safetensors'
    """
    return state_file.with_suffix(f".tuning{number + 1}{state_file.suffix}")

"""The audit: a defence, an attack on what it lets out, and how much of the victims the attack rebuilt."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks import Attack, Observation, ThreatModel
from refiner.audit.plan import APART, Plan
from refiner.audit.result import AuditResult, Seconds
from refiner.audit.scoring import recovered
from refiner.core.determinism import repeatable
from refiner.core.task import Task
from refiner.defenses import Defense, Refiner
from refiner.metrics import Thresholds, assign, judge_group
from refiner.report.picture import to_pixels

Progress = Callable[[str, int, int], None]
"""Called now and then with the stage ("defence", "attack", "metrics"), what of it is done, and its total."""

# Samples that are defended at a time.
_SAMPLES = 256


def audit(
    task: Task,
    x: Tensor,
    y: Tensor,
    *,
    defense: Defense | str = "refiner",
    attack: Attack | str = "inverting",
    metrics: Collection[str] | None = None,
    threat: ThreatModel | None = None,
    public: Tensor | None = None,
    names: Sequence[str] | None = None,
    thresholds: Thresholds | None = None,
    seed: int = 0,
    chunk: int | None = None,
    resume: Path | None = None,
    on_progress: Progress = lambda stage, done, total: None,
    deterministic: bool = False,
) -> AuditResult:
    """Attack what `defense` uploads for victims `x`, and say how much of them the attack rebuilt.

    `x [V, B, C, H, W]` in 0..1 are V clients' batches, `[N, C, H, W]` N clients of one picture each, with
    labels `y`. `public` are pictures of the same kind that are no victims: the blind guess has their mean,
    and the attacker looks for the original among them; without them the bundled sample serves, where it fits.
    `metrics` is some of "lpips", "noise", "identification"; None takes all that fit the pictures. `chunk`
    and `resume` are the attack's. An audit is a study: its draws all come from `seed`, a client's never do.
    With `deterministic` a GPU, too, gives the same bits every time, at some cost in speed.

    >>> from refiner.attacks import InvertingGradients
    >>> from refiner.data import load_sample
    >>> from refiner.models import LeNet
    >>> sample = load_sample()
    >>> task = Task(LeNet(), example=sample.images[:1])
    >>> attack = InvertingGradients(iterations=2)
    >>> found = audit(task, sample.images[:2], sample.labels[:2], defense="none", attack=attack)
    >>> found.label_recovery, found.candidates, found.victims
    (1.0, 200, 2)
    """
    plan = Plan.of(
        task,
        x,
        y,
        defense=defense,
        attack=attack,
        metrics=metrics,
        threat=threat,
        public=public,
        names=names,
        thresholds=thresholds,
        seed=seed,
        deterministic=deterministic,
    )
    return carry_out(plan, chunk=chunk, resume=resume, on_progress=on_progress)


def carry_out(
    plan: Plan,
    *,
    chunk: int | None = None,
    resume: Path | None = None,
    on_progress: Progress = lambda stage, done, total: None,
) -> AuditResult:
    """What `audit` does once its arguments are checked."""
    with repeatable(plan.deterministic, plan.x.device):
        return _carry_out(plan, chunk, resume, on_progress)


def _carry_out(plan: Plan, chunk: int | None, resume: Path | None, on_progress: Progress) -> AuditResult:
    victims, batch = plan.y.shape
    began = time.perf_counter()
    robust, seen = _defend(plan, chunk, on_progress)
    defended = time.perf_counter()
    resumed = resume is not None and resume.exists()
    rebuilt = plan.attack.reconstruct(
        seen,
        threat=plan.threat,
        seed=plan.seed,
        chunk=chunk,
        resume=resume,
        on_progress=lambda done, total: on_progress("attack", done, total),
        deterministic=plan.deterministic,
    )
    attacked = time.perf_counter()
    on_progress("metrics", 0, 1)
    original = plan.scorer.original
    pictures = rebuilt.x.to(original)
    if batch > 1:
        pictures = assign(pictures, original.view_as(pictures))
    pictures = pictures.flatten(0, 1)
    findings, means, candidates = plan.scorer.score(pictures, plan.names, plan.y, batch)
    on_progress("metrics", 1, 1)
    return AuditResult(
        defense=plan.label,
        attack=plan.attack.name,
        victims=victims,
        batch=batch,
        findings=findings,
        means=means,
        verdict=judge_group([finding.verdict for finding in findings], plan.scorer.thresholds),
        candidates=candidates,
        label_recovery=None if plan.threat.labels else recovered(rebuilt.labels, plan.y),
        objective=tuple(rebuilt.objective.tolist()),
        diverged=tuple(rebuilt.diverged.tolist()),
        original=to_pixels(original.cpu()),
        reconstruction=to_pixels(pictures.cpu()),
        robust=None if robust is None else to_pixels(robust.flatten(0, 1).float().cpu()),
        seconds=Seconds(
            defended - began, attacked - defended, time.perf_counter() - attacked, resumed=resumed
        ),
        made=datetime.now(UTC).replace(microsecond=0),
        settings=plan.settings,
    )


def _defend(plan: Plan, chunk: int | None, on_progress: Progress) -> tuple[Tensor | None, Observation]:
    """What the server sees of all victims, and Refiner's robust data."""
    task, x, y = plan.task, plan.x, plan.y
    step = max(1, _SAMPLES // x.shape[1]) if chunk is None else checks.integer("chunk", chunk, 1)
    robust, parts = [], []
    for begin in range(0, len(x), step):
        on_progress("defence", begin, len(x))
        rows = slice(begin, begin + step)
        if isinstance(plan.defense, Refiner):
            pictures, update = plan.defense.refine(task, x[rows], y[rows], seed=plan.seed + APART)
            robust.append(pictures)
        else:
            update = plan.defense.protect(task, x[rows], y[rows], seed=plan.seed + APART)
        parts.append(Observation.of(task, update, labels=y[rows] if plan.threat.labels else None))
    on_progress("defence", len(x), len(x))
    gradient = torch.cat([part.gradient for part in parts])
    seen = replace(parts[0], gradient=gradient, labels=y if plan.threat.labels else None)
    return (torch.cat(robust) if robust else None), seen

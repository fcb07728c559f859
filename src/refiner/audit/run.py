"""The audit: a defence, an attack on what it lets out, and how much of the victims the attack rebuilt."""

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from refiner.attacks import Attack, Sweep, ThreatModel
from refiner.attacks.base import state_path
from refiner.attacks.preset import MatchingAttack
from refiner.audit.plan import APART, Plan
from refiner.audit.result import AuditResult, Seconds, Tuned
from refiner.audit.scoring import recovered
from refiner.audit.tuning import Tuning
from refiner.audit.uploads import uploads
from refiner.core.determinism import repeatable
from refiner.core.task import Task
from refiner.defenses import Defense
from refiner.metrics import Thresholds, assign, judge_group, psnr
from refiner.report.inline_image import to_pixels

Progress = Callable[[str, int, int], None]
"""Called now and then with the stage ("tuning", "defence", "attack", "metrics"), what is done, the total."""


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
    resume: str | os.PathLike[str] | None = None,
    on_progress: Progress = lambda stage, done, total: None,
    deterministic: bool = False,
    tune: Tuning | None = None,
) -> AuditResult:
    """Attack what `defense` uploads for victims `x`, and say how much of them the attack rebuilt.

    `x [V, B, C, H, W]` in 0..1 are V clients' batches, `[N, C, H, W]` N clients of one image each, with
    labels `y`. `public` are images of the same kind that are no victims: the blind guess has their mean,
    and the attacker looks for the original among them; without them the bundled sample serves, where it fits.
    `metrics` is some of "lpips", "noise", "identification"; None takes all that fit the images. `chunk`
    and `resume` are the attack's. An audit is a study: its draws all come from `seed`, a client's never do.
    With `deterministic` a GPU, too, gives the same bits every time, at some cost in speed. With `tune` the
    attacker's total variation and learning rate are chosen for this defence first, on the images in it.

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
    kept = state_path(resume)
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
        tune=tune,
    )
    return carry_out(plan, chunk=chunk, resume=kept, on_progress=on_progress)


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
    first = time.perf_counter()
    tuned = None if plan.tuning is None else _tuned(plan, plan.tuning, chunk, resume, on_progress)
    attack = plan.attack if tuned is None else replace(plan.attack, **tuned.chosen)
    began = time.perf_counter()
    robust, seen = uploads(
        plan.task,
        plan.defense,
        plan.x,
        plan.y,
        labels=plan.threat.labels,
        seed=plan.seed + APART,
        chunk=chunk,
        on_progress=lambda done, total: on_progress("defence", done, total),
    )
    defended = time.perf_counter()
    resumed = resume is not None and resume.exists()
    rebuilt = attack.reconstruct(
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
    images = rebuilt.x.to(original)
    if batch > 1:
        images = assign(images, original.view_as(images))
    images = images.flatten(0, 1)
    findings, means, candidates = plan.scorer.score(images, plan.names, plan.y, batch)
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
        reconstruction=to_pixels(images.cpu()),
        robust=None if robust is None else to_pixels(robust.flatten(0, 1).float().cpu()),
        seconds=Seconds(
            defended - began,
            attacked - defended,
            time.perf_counter() - attacked,
            resumed,
            0.0 if tuned is None else began - first,
        ),
        made=datetime.now(UTC).replace(microsecond=0),
        settings=plan.settings,
        tuned=tuned,
        upload_bytes=plan.defense.wire_bytes(plan.task.shapes),
    )


def tuning_state(state: Path) -> Path:
    """Where the state of tuning lies, beside that of the attack.

    >>> tuning_state(Path("out/a.state.safetensors")).name
    'a.state.tuning.safetensors'
    """
    return state.with_suffix(f".tuning{state.suffix}")


def _tuned(
    plan: Plan, tuning: Tuning, chunk: int | None, resume: Path | None, on_progress: Progress
) -> Tuned:
    """The point of the grid that rebuilds the tuning's images best, all of them in one run."""
    assert isinstance(plan.attack, MatchingAttack)
    points = tuning.grid(plan.attack)
    # Neither the victims' noise nor the attacker's own draws.
    seed = plan.seed + 2 * APART
    x, y = tuning.x, tuning.y
    _, seen = uploads(plan.task, plan.defense, x, y, labels=plan.threat.labels, seed=seed, chunk=chunk)
    rebuilt = Sweep(plan.attack, points).reconstruct(
        seen,
        threat=plan.threat,
        seed=plan.seed,
        chunk=chunk,
        resume=None if resume is None else tuning_state(resume),
        on_progress=lambda done, total: on_progress("tuning", done, total),
        deterministic=plan.deterministic,
    )
    truth = x.to(plan.scorer.original)
    trials = []
    for point, images in zip(points, torch.split(rebuilt.x.to(truth), len(x)), strict=True):
        ordered = assign(images, truth) if x.shape[1] > 1 else images
        score = float(psnr(ordered.flatten(0, 1), truth.flatten(0, 1)).mean())
        trials.append({**point, "psnr": score})
    best = max(range(len(points)), key=lambda place: trials[place]["psnr"])
    return Tuned(points[best], tuple(trials), y.numel())

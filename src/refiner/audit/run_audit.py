"""One audit: a defence protects the victims, an attack reconstructs them, and metrics compare."""

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks import Attack, ThreatModel
from refiner.attacks.run_options import resume_path
from refiner.audit.control import as_control, conclude
from refiner.audit.from_robust import RobustEstimation, estimate_from_robust, robust_state_file
from refiner.audit.plan import Plan
from refiner.audit.protocol import Protocol
from refiner.audit.result import AuditResult
from refiner.audit.result_records import Control, Seconds
from refiner.audit.scoring import label_recovery
from refiner.audit.seeds import VICTIMS
from refiner.audit.settings_identity import first_difference, settings_digest
from refiner.audit.tune_attack import tune_attack
from refiner.audit.tuning import Tuning
from refiner.audit.upload_cost import measure_upload_cost
from refiner.audit.uploads import simulator, uploads_in_rounds
from refiner.core.determinism import deterministic_algorithms
from refiner.core.task import Task
from refiner.defenses import Defense
from refiner.errors import DataError
from refiner.metrics import Thresholds, assign, judge_group
from refiner.report.inline_image import to_pixels

Progress = Callable[[str, int, int], None]
"""Called with the stage ("control", "tuning", "defence", "attack", "from robust" or "metrics"), the steps
done, and their total; "control" is the attack on undefended uploads."""


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
    pool: tuple[Tensor, Tensor] | None = None,
    names: Sequence[str] | None = None,
    thresholds: Thresholds | None = None,
    seed: int = 0,
    chunk: int | None = None,
    resume: str | os.PathLike[str] | None = None,
    on_progress: Progress = lambda stage, done, total: None,
    deterministic: bool = False,
    tune: Tuning | None = None,
    control: bool | AuditResult = True,
    from_robust: bool | RobustEstimation = False,
    protocol: Protocol | None = None,
) -> AuditResult:
    """Measure how well an attack reconstructs the victims' images from the uploads of a defence.

    Args:
        task: The model and its loss, as `refiner.Task(model, example=x)`.
        x: The victims' images in 0..1: `[V, B, C, H, W]` for V clients with batches of B images, or
            `[N, C, H, W]` for N clients with one image each.
        y: Their labels, `[V, B]` or `[N]`.
        defense: A `Defense`, or its name with settings, as "refiner:search=never" (see `refiner defenses`).
        attack: An `Attack`, or its name with settings, as "inverting:iterations=300" (see `refiner attacks`).
        metrics: Optional metrics to compute besides MSE, PSNR and SSIM: any of "lpips", "noise",
            "identification". None computes all that can be computed for these images.
        threat: What the attacker is given besides the upload and the model; nothing by default.
        public: Images `[N, C, H, W]` of the same kind that are not victims. The blind guess uses their
            mean, and the attacker seeks the original among them and the other victims. Without them the rest
            of the bundled sample is used, if the victims are from it, or else `pool`.
        pool: Labelled public images `[N, C, H, W]` in 0..1 and `[N]` that an attack may learn from, with the
            defence at hand; victims among them are removed. Without them the bundled public images are
            used where they fit.
        names: A name for every image; numbered by default.
        thresholds: When an image counts as visible or identifiable; those of the paper by default.
        seed: Seed of everything random in this audit, including the defence's noise. An audit is an
            experiment; a client in production never takes its noise from a seed.
        chunk: Number of clients that are attacked at a time, to bound memory; affects results only by
            rounding.
        resume: A file in which the attack saves its state; if the file exists the attack continues from it.
        on_progress: Called with the stage ("control", "tuning", "defence", "attack", "from robust" or
            "metrics"), the steps done and their total.
        deterministic: Whether a GPU, too, must give bit-identical results every time; slower.
        tune: Images on which the attack's settings are tuned for this defence first; None attacks with
            the settings as they are.
        control: Whether the attack is also run on undefended uploads of the same images, or its result if it
            was run already. Without it there is no verdict: an attack that fails anyway proves no defence.
        from_robust: Whether to measure, too, what a network reaches from the robust data themselves, for a
            defence that makes any: about the best that an attack can hope for on unsearched uploads. The
            network learns from `pool`. A `RobustEstimation` says how it is trained.
        protocol: How many local steps an upload has, and how many clients the server sees as a sum; one of
            each by default.

    Returns:
        Scores and verdicts of every image, their means with 95 % intervals, the reconstructions and all
        settings.

    Raises:
        SettingError: if a setting is of the wrong type or out of range.
        DataError: if images or labels do not fit the task, each other or the metrics.
        ThreatModelError: if the attack needs more than `threat` grants.

    >>> from refiner.attacks import InvertingGradients
    >>> from refiner.data import load_sample
    >>> from refiner.models import LeNet
    >>> sample = load_sample()
    >>> task = Task(LeNet(), example=sample.images[:1])
    >>> attack = InvertingGradients(iterations=2)
    >>> result = audit(task, sample.images[:2], sample.labels[:2], defense="none", attack=attack)
    >>> result.label_recovery, result.candidates, result.victims
    (1.0, 200, 2)
    """
    state_file = resume_path(resume)
    plan = Plan.of(
        task,
        x,
        y,
        defense=defense,
        attack=attack,
        metrics=metrics,
        threat=threat,
        public=public,
        pool=pool,
        names=names,
        thresholds=thresholds,
        seed=seed,
        deterministic=deterministic,
        tune=tune,
        from_robust=from_robust,
        protocol=protocol,
    )
    undefended = _control(plan, control, chunk, state_file, on_progress)
    result = run_plan(plan, chunk=chunk, resume=state_file, on_progress=on_progress)
    return result if undefended is None else conclude(result, undefended, plan.scorer.thresholds)


def _control(
    plan: Plan, control: bool | AuditResult, chunk: int | None, resume: Path | None, on_progress: Progress
) -> Control | None:
    """Return the control of a plan; None if there is to be none, or if the plan is its own control."""
    reference = plan.control()
    if not isinstance(control, AuditResult) and not checks.flag("control", control):
        return None
    if reference is plan:
        return None
    if isinstance(control, AuditResult):
        if settings_digest(control.settings) != settings_digest(reference.settings):
            difference = first_difference(reference.settings, control.settings)
            raise DataError(
                f"control = {control!r}: expected the same audit without a defence (other: {difference})",
                field="control",
            )
        undefended = control
    else:

        def show(stage: str, done: int, total: int) -> None:
            if stage == "attack":
                on_progress("control", done, total)

        undefended = run_plan(
            reference,
            chunk=chunk,
            resume=None if resume is None else control_state_file(resume),
            on_progress=show,
        )
    return as_control(undefended, plan.scorer.thresholds)


def run_plan(
    plan: Plan,
    *,
    chunk: int | None = None,
    resume: Path | None = None,
    on_progress: Progress = lambda stage, done, total: None,
) -> AuditResult:
    """Return the result of a plan, without its control: so only an undefended plan gets a verdict."""
    with deterministic_algorithms(plan.deterministic, plan.x.device):
        return _run_stages(plan, chunk, resume, on_progress)


def _run_stages(plan: Plan, chunk: int | None, resume: Path | None, on_progress: Progress) -> AuditResult:
    victims, batch = plan.y.shape
    start = time.perf_counter()
    tuned = None
    if plan.tuning is not None:
        tuned = tune_attack(
            plan,
            plan.tuning,
            chunk=chunk,
            resume=resume,
            on_progress=lambda done, total: on_progress("tuning", done, total),
        )
    attack = plan.attack if tuned is None else replace(plan.attack, **tuned.chosen)
    tuned_at = time.perf_counter()
    robust, observations = uploads_in_rounds(
        plan.task,
        plan.defense,
        plan.x,
        plan.y,
        attack,
        labels=plan.threat.labels,
        seed=plan.seed + VICTIMS,
        chunk=chunk,
        protocol=plan.protocol,
        on_progress=lambda done, total: on_progress("defence", done, total),
    )
    defended_at = time.perf_counter()
    cost = measure_upload_cost(
        plan.task,
        plan.defense,
        plan.x,
        plan.y,
        observations[0].gradient,
        seed=plan.seed + VICTIMS,
        chunk=chunk,
        protocol=plan.protocol,
        send_to=attack.send_to,
    )
    measured_at = time.perf_counter()
    resumed = resume is not None and resume.exists()
    simulate = simulator(plan.task, plan.defense, plan.attacker_images, protocol=plan.protocol, attack=attack)
    reconstruction = attack.reconstruct(
        observations,
        threat=plan.threat,
        seed=plan.seed,
        chunk=chunk,
        resume=resume,
        on_progress=lambda done, total: on_progress("attack", done, total),
        deterministic=plan.deterministic,
        simulator=simulate if attack.learns_from_public_images(plan.task) else None,
    )
    attacked_at = time.perf_counter()
    on_progress("metrics", 0, 1)
    observed_y = plan.protocol.observed(plan.y)
    original = plan.scorer.original
    images = reconstruction.x.to(original)
    # What is not finite can't be scored: it is shown as grey, and counts as diverged.
    finite = images.isfinite().flatten(1).all(1)
    diverged = reconstruction.diverged.to(finite.device) | ~finite
    images = torch.where(finite.view(-1, *[1] * (images.ndim - 1)), images, 0.5)
    if images.shape[1] > 1:
        images = assign(images, original.view_as(images))
    images = images.flatten(0, 1)
    findings, means, candidates = plan.scorer.score(
        images, plan.names, plan.y, batch, noise=plan.defense.noise_ratio_applies
    )
    reached = None
    if plan.robust_estimation is not None and robust is not None and simulate is not None:
        reached = estimate_from_robust(
            simulate,
            observations[0],
            *map(plan.protocol.observed, (robust, plan.x, plan.y)),
            others=plan.scorer.public.candidates,
            noise=plan.noise,
            settings=plan.robust_estimation,
            seed=plan.seed,
            resume=None if resume is None else robust_state_file(resume),
            on_progress=lambda done, total: on_progress("from robust", done, total),
        )
    on_progress("metrics", 1, 1)
    result = AuditResult(
        defense=plan.defense_name,
        attack=plan.attack.name,
        victims=victims,
        batch=batch,
        findings=findings,
        means=means,
        verdict=judge_group([finding.verdict for finding in findings], plan.scorer.thresholds, victims),
        candidates=candidates,
        label_recovery=None if plan.threat.labels else label_recovery(reconstruction.labels, observed_y),
        objective=tuple(reconstruction.objective.repeat_interleave(plan.protocol.summed_clients).tolist()),
        diverged=tuple(diverged.repeat_interleave(plan.protocol.summed_clients).tolist()),
        original=to_pixels(original.cpu()),
        reconstruction=to_pixels(images.cpu()),
        robust=None if robust is None else to_pixels(robust.flatten(0, 1).float().cpu()),
        seconds=Seconds(
            defended_at - tuned_at,
            attacked_at - measured_at,
            time.perf_counter() - attacked_at,
            resumed,
            0.0 if tuned is None else tuned_at - start,
        ),
        made=datetime.now(UTC).replace(microsecond=0),
        settings=plan.settings,
        tuned=tuned,
        upload_bytes=plan.defense.wire_bytes(plan.task.shapes),
        from_robust=reached,
        cost=cost,
    )
    return conclude(result, None, plan.scorer.thresholds)


def control_state_file(state_file: Path) -> Path:
    """Return where the control saves its state, beside the state of the attack.

    >>> control_state_file(Path("out/a.state.safetensors")).name
    'a.state.control.safetensors'
    """
    return state_file.with_suffix(f".control{state_file.suffix}")

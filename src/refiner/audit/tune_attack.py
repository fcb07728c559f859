"""The tuning of an attack for a defence: every trial, and the best."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from refiner.attacks import Sweep
from refiner.attacks.matching.matching_attack import MatchingAttack
from refiner.audit.plan import Plan
from refiner.audit.result_records import TuningCriterion, TuningResult
from refiner.audit.seeds import TUNING
from refiner.audit.tuning import Tuning
from refiner.audit.uploads import uploads
from refiner.metrics import assign, identify, psnr


def tune_attack(
    plan: Plan,
    tuning: Tuning,
    *,
    chunk: int | None = None,
    resume: Path | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> TuningResult:
    """Return the settings that reveal most of the tuning images: see `Tuning`.

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
    flat_truth = truth.flatten(0, 1)
    others = plan.scorer.public.candidates
    candidates = len(flat_truth) + (0 if others is None else len(others))
    can_identify = candidates * plan.scorer.thresholds.identified >= 1
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
            ordered = (assign(images, truth) if truth.shape[1] > 1 else images).flatten(0, 1)
            scores = {"psnr": float(psnr(ordered, flat_truth).mean())}
            if can_identify:
                ranks = identify(ordered, flat_truth, others=others).ranks
                scores["rank"] = float(ranks.log().mean().exp())
            trials.append({**settings, **scores})
    best, criterion = choose_trial(trials, float(plan.scorer.blind_psnr_of(flat_truth).mean()))
    return TuningResult(grid[best], tuple(trials), y.numel(), criterion)


def choose_trial(trials: Sequence[Mapping[str, float]], blind_psnr: float) -> tuple[int, TuningCriterion]:
    """Return the number of the trial that reveals most, and by what it was chosen.

    Args:
        trials: The mean `psnr` of every trial, and `rank` if candidates were ranked.
        blind_psnr: The mean PSNR of the tuning images' best blind guesses. Where no trial beats it PSNR
            favours attacks that return one colour, and the best rank counts.

    >>> choose_trial([{"psnr": 13.0, "rank": 80.0}, {"psnr": 9.0, "rank": 3.0}], blind_psnr=14.0)
    (1, 'rank')
    """
    by_psnr = max(range(len(trials)), key=lambda i: trials[i]["psnr"])
    if trials[by_psnr]["psnr"] > blind_psnr or "rank" not in trials[by_psnr]:
        return by_psnr, "psnr"
    return min(range(len(trials)), key=lambda i: trials[i]["rank"]), "rank"


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

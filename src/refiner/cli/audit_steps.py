"""The steps of `refiner audit`: attacks and threat model from its options, and the audits."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from refiner.attacks import Attack, ThreatModel, attack_with_iterations
from refiner.audit import AuditResult, Plan, Tuning, Victims, audit_all
from refiner.audit.auto_attacks import ALL, AUTO, undefended_plans, working_attacks
from refiner.audit.display_names import pair_names
from refiner.audit.duration import estimate_duration, may_take_long
from refiner.audit.result_folder import is_finished
from refiner.audit.serialization import to_json_value
from refiner.audit.summary import tuning_text
from refiner.checks import unknown_name
from refiner.cli.choices import CAPABILITIES
from refiner.cli.common import print_line
from refiner.cli.interrupt import stopped_audit
from refiner.cli.progress import Rate, progress_bar
from refiner.defenses import NoDefense, Refiner, make_defense, short_name
from refiner.errors import DataError
from refiner.shaped_noise import MIN_PREDICTED, NaturalNoise, predict_psnr

DEFENSES = ("none", "refiner")
"""The defences that are audited by default."""


def threat_model(grants: Sequence[str], denials: Sequence[str]) -> ThreatModel:
    """Return what the attacker has, by the options `--grant` and `--deny`."""
    for option, names in (("grant", grants), ("deny", denials)):
        for name in names:
            if name in ("secret", "key"):
                raise DataError(field=option, value=name, problem="no attack is ever given a client's secret")
            if name not in CAPABILITIES:
                raise unknown_name(name, CAPABILITIES, option)
    if both := sorted(set(grants) & set(denials)):
        raise DataError(field="deny", value=both[0], problem="is granted as well")
    return ThreatModel(**dict.fromkeys(grants, True), **dict.fromkeys(denials, False))


def checked_defenses(texts: Sequence[str] | None) -> list[str]:
    """Return the defences of `--defense`, each once; raises for one that can't be made."""
    defenses = list(dict.fromkeys(texts or DEFENSES))
    for text in defenses:
        make_defense(text)
    return defenses


def announce(plans: Sequence[Plan], out: Path, *, estimate: bool, quiet: bool) -> None:
    """Print what the noise of each Refiner leaves and, with `estimate`, the time of audits that take long.

    Args:
        plans: The audits that will be run.
        out: The folder of those that are finished.
        estimate: Whether to estimate the time.
        quiet: Whether to print only warnings.
    """
    predict_noise(plans, quiet=quiet)
    if estimate and not quiet and may_take_long(plans):
        print_duration(plans, out)


def predict_noise(plans: Sequence[Plan], *, quiet: bool) -> None:
    """Print for each Refiner what its noise leaves of images like the victims'; warn if that is much.

    Args:
        plans: The audits that will be run.
        quiet: Whether to print only warnings.
    """
    for name, plan in {plan.defense_name: plan for plan in plans}.items():
        defense = plan.defense
        if not isinstance(defense, Refiner) or defense.start != "natural":
            continue
        pools = [p.attacker_images.images for p in plans if p.attacker_images is not None]
        candidates = plan.scorer.public.candidates
        own = [plan.scorer.original] if candidates is None else [plan.scorer.original, candidates]
        images = max([torch.cat(own), *pools], key=len)
        if len(images) < MIN_PREDICTED:
            if not quiet:
                print_line(f"noise of {name}: {len(images)} images are too few to predict what it hides")
            continue
        statistics = None if defense.statistics is None else NaturalNoise.load(Path(defense.statistics))
        fit = predict_psnr(
            images[:2000].float().cpu(), statistics, strength=defense.alpha, white=defense.white
        )
        if not quiet:
            print_line(f"noise of {name}: {fit.summary}")
        if fit.warning:
            print_line(f"warning: {name}: {fit.warning}")


def tuning_images(images: Victims, device: torch.device) -> Tuning | None:
    """Return the images to tune attacks on, or None."""
    if images.tuning_x is None or images.tuning_y is None:
        return None
    return Tuning(images.tuning_x.to(device), images.tuning_y.to(device))


def report_pmm(
    results: Sequence[AuditResult], defenses: Sequence[str], trained: Mapping[str, float]
) -> dict[str, float]:
    """Return PMM by the names that the report has for defences.

    Args:
        results: The audits.
        defenses: The defence of each audit, as it was given.
        trained: PMM by the defence of a training, as it was given there; equal settings are the same defence.
    """
    known = {_identity(text): pmm for text, pmm in trained.items()}
    pairs = zip(pair_names(results), defenses, strict=True)
    found = {name: known.get(_identity(text)) for (name, _), text in pairs}
    return {name: pmm for name, pmm in found.items() if pmm is not None}


def _identity(defense: str) -> str:
    return json.dumps([short_name(defense), to_json_value(make_defense(defense).settings())])


@dataclass(frozen=True)
class ChosenAttacks:
    """The attacks of the options `--attack`.

    Attributes:
        named: Those that are named.
        automatic: Whether those that work on the model are added.
        every: Whether every attack is tried for that.
    """

    named: tuple[Attack, ...]
    automatic: bool
    every: bool

    @classmethod
    def of(cls, texts: Sequence[str], iterations: int | None) -> Self:
        """Return the attacks that those options choose; none choose those of `AUTO`."""
        named = dict.fromkeys(text for text in texts if text not in (AUTO, ALL))
        every = ALL in texts
        return cls(
            tuple(attack_with_iterations(text, iterations) for text in named),
            automatic=every or not named or AUTO in texts,
            every=every,
        )


def add_working(
    chosen: ChosenAttacks,
    make_plan: Callable[[str, Attack, bool], Plan],
    defenses: Sequence[str],
    iterations: int | None,
    out: Path,
    chunk: int | None,
    *,
    from_robust: bool,
    on_gpu: bool,
    quiet: bool,
) -> list[Attack]:
    """Return the attacks that reveal something of undefended uploads, which are run here, and the named."""
    if not chosen.automatic:
        return list(chosen.named)
    plans, skipped = undefended_plans(
        lambda attack: make_plan(NoDefense.name, attack, False),
        on_gpu=on_gpu,
        iterations=iterations,
        every=chosen.every,
    )
    # Whatever is wrong with a defence shows now, not after the first attacks.
    first, *others = dict.fromkeys((*(plan.attack for plan in plans), *chosen.named))
    defended = [make_plan(name, first, from_robust) for name in defenses]
    defended += [make_plan(name, attack, False) for name in defenses for attack in others]
    if not quiet:
        print_duration([*plans, *defended], out)
    attacks = working_attacks(plans, run_plans(plans, out, chunk, control=False, quiet=quiet))
    failing = [plan.attack.name for plan in plans if plan.attack not in attacks]
    if not quiet:
        print_line(
            f"attacks: {', '.join(attack.name for attack in attacks)}"
            + (f"; without effect on this model: {', '.join(failing)}" if failing else "")
            + (f"; not tried: {', '.join(sorted(skipped))}" if skipped else "")
        )
    return list(dict.fromkeys((*attacks, *chosen.named)))


def print_duration(plans: Sequence[Plan], out: Path) -> None:
    """Print about how long those of the plans will take that are not finished."""
    missing = [plan for plan in plans if not is_finished(plan, out)]
    if missing:
        if may_take_long(missing):
            print_line("estimating how long this takes")
        print_line(f"this takes {estimate_duration(missing).text}")


def run_plans(
    plans: Sequence[Plan], out: Path, chunk: int | None, *, control: bool, quiet: bool
) -> list[AuditResult]:
    """Run the audits, and show their progress; Ctrl-C ends the command with one line and exit code 130."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        Rate("it"),
        TimeRemainingColumn(),
    )
    stems = {plan.stem for plan in plans}
    with progress_bar(*columns, quiet=quiet) as bar:
        done, title, line = 0, "audit", bar.add_task("audit", total=None)

        def show_pair(plan: Plan, result: AuditResult | None) -> None:
            nonlocal done, title, line
            name = f"{plan.defense_name} against {plan.attack.name}"
            if result is None:
                bar.remove_task(line)
                title = f"{name} ({done + 1} of {len(plans)})" if plan.stem in stems else f"control: {name}"
                line = bar.add_task(title, total=None)
                return
            position = "control"
            if plan.stem in stems:
                done += 1
                position = f"{done} of {len(plans)}"
            stages = result.seconds
            seconds = stages.tuning + stages.defense + stages.attack + stages.metrics
            no_verdict = "no verdict: " if result.verdict.level == "no verdict" else ""
            reason = f"{no_verdict}{result.verdict.reason}"
            outcome = f"{result.means['psnr'].value:.1f} dB, {reason}, {seconds:.0f} s"
            outcome += f", attack tuned to {tuning_text(result)}" if result.tuned is not None else ""
            bar.console.print(f"{position}: {name}: {outcome}", highlight=False, soft_wrap=True)

        def advance(stage: str, steps: int, total: int) -> None:
            if stage in ("tuning", "attack", "from robust"):
                description = title if stage == "attack" else f"{title}, {stage}"
                bar.update(line, completed=steps, total=total, description=description)

        try:
            return audit_all(plans, out, chunk=chunk, control=control, on_pair=show_pair, on_progress=advance)
        except KeyboardInterrupt:
            bar.stop()
            raise stopped_audit(done, len(plans)) from None

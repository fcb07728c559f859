"""`refiner audit`: attack the uploads of defences, print scores and write the report."""

import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from refiner.attacks import ATTACKS, Attack, ThreatModel, make_attack, tunable
from refiner.audit import AuditResult, Plan, Tuning, audit_all, load_victims, write_report
from refiner.audit.summary import tuning_text
from refiner.checks import integer, unknown_name
from refiner.cli.audit_table import print_results
from refiner.cli.common import (
    DATA_HELP,
    Device,
    Rate,
    Size,
    console,
    one_line_errors,
    progress_bar,
    select_device,
)
from refiner.cli.model_options import Classes, Mean, Model, Std, Weights, parse_numbers
from refiner.core import Task
from refiner.core.determinism import deterministic_algorithms
from refiner.defenses import DEFENSES, make_defense
from refiner.errors import DataError
from refiner.models import build_model
from refiner.models.build import check_model_classes

_CAPABILITIES = tuple(field.name for field in fields(ThreatModel))


def audit(
    command: typer.Context,
    out: Annotated[
        Path,
        typer.Option(help="Folder for report.html and the results; an interrupted run in it is resumed."),
    ] = Path("out/audit"),
    data: Annotated[
        str | None,
        typer.Option(help=f"Images to audit: {DATA_HELP} An image alone is also accepted."),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder with a dataset's original files, instead of the cache.")
    ] = None,
    model: Model = "lenet",
    weights: Weights = None,
    classes: Classes = None,
    mean: Mean = None,
    std: Std = None,
    defense: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Defence: one of {', '.join(DEFENSES.builtin_names())}, or a plug-in (see `refiner "
            "defenses`), as NAME or NAME:setting=value,…; join several with + to apply them in sequence. "
            "Repeat the option to compare. Default: none and refiner."
        ),
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Attack: one of {', '.join(ATTACKS.builtin_names())}, or a plug-in (see `refiner "
            "attacks`), as NAME or NAME:setting=value,…. Repeat the option to compare. Default: inverting."
        ),
    ] = None,
    victims: Annotated[int, typer.Option(help="Number of clients.")] = 16,
    batch: Annotated[int, typer.Option(help="Images in each client's batch.")] = 1,
    iterations: Annotated[
        int | None, typer.Option(help="Iterations of every attack that iterates. Default: its own.")
    ] = None,
    grant: Annotated[
        list[str] | None,
        typer.Option(
            help=f"What the attacker is given besides upload and model: {', '.join(_CAPABILITIES)}. Repeat "
            "the option for more."
        ),
    ] = None,
    deny: Annotated[
        list[str] | None,
        typer.Option(
            help="What the attacker lacks, though careful ones have it: public (labelled images like the "
            "victims'), defense (the defence and its settings). Repeat the option for both."
        ),
    ] = None,
    public_images: Annotated[
        int, typer.Option(help="The most public images that an attack which learns from them is given.")
    ] = 3000,
    tune_attacker: Annotated[
        bool,
        typer.Option(
            "--tune-attacker",
            help="Tune the attacks' iterations, total variation and learning rate for each defence, on other "
            "images; attacks without these settings are run as they are.",
        ),
    ] = False,
    tuning_victims: Annotated[int, typer.Option(help="Number of clients to tune the attacks on.")] = 8,
    from_robust: Annotated[
        bool,
        typer.Option(
            "--from-robust",
            help="Also measure what a network reaches from the robust data of a defence themselves, once for "
            "each defence; it learns from public images.",
        ),
    ] = False,
    size: Size = None,
    seed: Annotated[int, typer.Option(help="Seed of the model, the defences and the attacks.")] = 0,
    chunk: Annotated[
        int | None, typer.Option(help="Clients attacked at a time; fewer need less memory.")
    ] = None,
    device: Device = "cpu",
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Bit-identical results on a GPU too; slower.")
    ] = False,
    no_control: Annotated[
        bool,
        typer.Option(
            "--no-control", help="Don't attack undefended uploads too; there is then no verdict on a defence."
        ),
    ] = False,
) -> None:
    """Measure how much of the images attacks can reconstruct, with and without defences, and write a report.

    Finished audits are kept in OUT; after an interruption the same command continues.
    """
    with one_line_errors(command):
        torch_device = select_device(device)
        # Before anything else runs on the GPU, since its first operations fix the available algorithms.
        with deterministic_algorithms(deterministic, torch_device):
            threat = _threat_model(grant or (), deny or ())
            attacks = [_make_attack(name, iterations) for name in dict.fromkeys(attack or ("inverting",))]
            learns = from_robust or any(
                not attacker.needs.isdisjoint({"public", "defense"}) for attacker in attacks
            )
            defenses = list(dict.fromkeys(defense or ("none", "refiner")))
            for name in defenses:
                make_defense(name)
            torch.manual_seed(integer("seed", seed, 0, 2**32 - 1))
            images = load_victims(
                data,
                root=root,
                victims=victims,
                batch=batch,
                size=size,
                classes=classes,
                seed=seed,
                tuning_victims=integer("tuning_victims", tuning_victims, 1) if tune_attacker else 0,
                public_images=integer("public_images", public_images, 1) if learns else 0,
            )
            x, y = images.x.to(torch_device), images.y.to(torch_device)
            network = build_model(
                model,
                images.classes,
                tuple(x.shape[2:]),
                weights=weights,
                mean=parse_numbers("mean", mean),
                std=parse_numbers("std", std),
            )
            task = Task(network.to(torch_device), example=x[0])
            check_model_classes(task, y, classes)
            tune = None
            if images.tuning_x is not None and images.tuning_y is not None:
                tune = Tuning(images.tuning_x.to(torch_device), images.tuning_y.to(torch_device))
            plans = [
                Plan.of(
                    task,
                    x,
                    y,
                    defense=name,
                    attack=attacker,
                    threat=threat,
                    public=None if images.public is None else images.public.to(torch_device),
                    pool=images.pool,
                    names=images.names,
                    seed=seed,
                    deterministic=deterministic,
                    tune=tune if tunable(attacker) or not any(map(tunable, attacks)) else None,
                    from_robust=from_robust and attacker is attacks[0],
                )
                for name in defenses
                for attacker in attacks
            ]
            results = _run(plans, out, chunk, control=not no_control)
        print_results(results)
        page = write_report(out / "report.html", results, images.source)
        console.print(f"Report: {page}", highlight=False, soft_wrap=True)


def _make_attack(text: str, iterations: int | None) -> Attack:
    attack = make_attack(text)
    # A chain has the settings of its parts, as "inverting.iterations".
    names = {name.rpartition(".")[2] for name in attack.settings()}
    if iterations is None or "iterations" not in names:
        return attack
    return make_attack(text, iterations=iterations)


def _threat_model(grants: Sequence[str], denials: Sequence[str]) -> ThreatModel:
    for option, names in (("grant", grants), ("deny", denials)):
        for name in names:
            if name not in _CAPABILITIES:
                raise unknown_name(name, _CAPABILITIES, option)
    if both := sorted(set(grants) & set(denials)):
        raise DataError(field="deny", value=both[0], problem="is granted as well")
    return ThreatModel(**dict.fromkeys(grants, True), **dict.fromkeys(denials, False))


def _run(plans: Sequence[Plan], out: Path, chunk: int | None, *, control: bool) -> list[AuditResult]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        Rate("it"),
        TimeRemainingColumn(),
    )
    stems = {plan.stem for plan in plans}
    with progress_bar(*columns) as bar:
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
            message = f"stopped after {done} of {len(plans)} audits; run the same command to continue"
            print(f"refiner: {message}", file=sys.stderr)
            raise typer.Exit(130) from None

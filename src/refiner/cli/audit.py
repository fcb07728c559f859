"""`refiner audit`: attack what defences let out, print what came back, write the report."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.box import SIMPLE
from rich.markup import escape
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import nn

from refiner.attacks import ATTACKS, Attack, ThreatModel, make_attack
from refiner.audit import AuditResult, Plan, Tuning, Victims, audit_all, load_victims, write_report
from refiner.audit.display_names import pair_names
from refiner.audit.report import blind_means, top1
from refiner.audit.result import Mean
from refiner.audit.summary import summary, tuned
from refiner.audit.weights import load_weights
from refiner.checks import integer, nearest
from refiner.cli.common import Device, Rate, Size, console, one_line_errors, progress_bar, to_device
from refiner.core import Task
from refiner.core.determinism import repeatable
from refiner.data import SOURCES
from refiner.defenses import DEFENSES, make_defense
from refiner.models import NAMES, build

_COLOURS = {"exposed": "red", "borderline": "yellow", "protected": "green"}
_WIDEST = 100
_GRANTS = tuple(field.name for field in fields(ThreatModel))


def audit(
    command: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder for report.html and the results.")] = Path("out/audit"),
    data: Annotated[
        str | None,
        typer.Option(
            help=f"Image, folder or .npz, or one of {', '.join(SOURCES)}, as refiner data get brings them; "
            "the bundled sample if left out. Two or more sub-folders of a folder are classes."
        ),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder with a data set's files, not from the cache.")
    ] = None,
    model: Annotated[str, typer.Option(help=f"One of {', '.join(NAMES)}.")] = "lenet",
    weights: Annotated[
        Path | None, typer.Option(help="Weights of the model, a .safetensors file; untrained if left out.")
    ] = None,
    defense: Annotated[
        list[str] | None,
        typer.Option(
            help=f"One of {', '.join(DEFENSES)}, as NAME or NAME:setting=value,…, or several with a plus "
            "between them; repeat for more. none and refiner if left out."
        ),
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help=f"One of {', '.join(ATTACKS)}, as NAME or NAME:setting=value,…; repeat for more. "
            "inverting if left out."
        ),
    ] = None,
    victims: Annotated[int, typer.Option(help="How many clients.")] = 16,
    batch: Annotated[int, typer.Option(help="Images in each client's batch.")] = 1,
    iterations: Annotated[
        int | None, typer.Option(help="Of every attack; each one's own if left out.")
    ] = None,
    grant: Annotated[
        list[str] | None,
        typer.Option(help=f"What the attacker has besides, one of {', '.join(_GRANTS)}; repeat for more."),
    ] = None,
    tune_attacker: Annotated[
        bool,
        typer.Option(
            "--tune-attacker",
            help="Choose total variation and learning rate of attacks for each defence, on other images.",
        ),
    ] = False,
    tuning_victims: Annotated[int, typer.Option(help="Clients that attackers are tuned on.")] = 8,
    size: Size = None,
    seed: Annotated[int, typer.Option(help="Of the model, the defences and the attacks.")] = 0,
    chunk: Annotated[int | None, typer.Option(help="Victims attacked at a time.")] = None,
    device: Device = "cpu",
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The same bits every time on a GPU too; slower.")
    ] = False,
) -> None:
    """Attack what defences let out, print what came back and what a blind guess has, and write a report.

    What is finished is kept in OUT; a run that was stopped goes on where it was.
    """
    with one_line_errors(command):
        where = to_device(device)
        # From here on: what a GPU does first settles what it can do later.
        with repeatable(deterministic, where):
            threat = _threat(grant or ())
            attacks = [_attack(name, iterations) for name in dict.fromkeys(attack or ("inverting",))]
            defenses = list(dict.fromkeys(defense or ("none", "refiner")))
            for name in defenses:
                make_defense(name)
            torch.manual_seed(integer("seed", seed, 0, 2**32 - 1))
            found = load_victims(
                data,
                root=root,
                victims=victims,
                batch=batch,
                size=size,
                seed=seed,
                tuning_victims=integer("tuning_victims", tuning_victims, 1) if tune_attacker else 0,
            )
            x, y = found.x.to(where), found.y.to(where)
            network = _network(model, found, weights).to(where)
            task = Task(network, example=x[0])
            tune = None
            if found.tuning_x is not None and found.tuning_y is not None:
                tune = Tuning(found.tuning_x.to(where), found.tuning_y.to(where))
            plans = [
                Plan.of(
                    task,
                    x,
                    y,
                    defense=name,
                    attack=each,
                    threat=threat,
                    public=None if found.public is None else found.public.to(where),
                    names=found.names,
                    seed=seed,
                    deterministic=deterministic,
                    tune=tune,
                )
                for name in defenses
                for each in attacks
            ]
            results = _run(plans, out, chunk)
        _show(results)
        page = write_report(out / "report.html", results, found.source)
        console.print(f"Report: {page}", highlight=False, soft_wrap=True)


def _network(name: str, victims: Victims, weights: Path | None) -> nn.Module:
    if name not in NAMES:
        raise nearest(name, NAMES, "model")
    network = build(name, classes=victims.classes, input_shape=tuple(victims.x.shape[2:]))
    if weights is not None:
        load_weights(network, weights)
    return network


def _attack(name: str, iterations: int | None) -> Attack:
    return make_attack(name, **({} if iterations is None else {"iterations": iterations}))


def _threat(grants: Sequence[str]) -> ThreatModel:
    for name in grants:
        if name not in _GRANTS:
            raise nearest(name, _GRANTS, "grant")
    return ThreatModel(**dict.fromkeys(grants, True))


def _run(plans: Sequence[Plan], out: Path, chunk: int | None) -> list[AuditResult]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        Rate("it"),
        TimeRemainingColumn(),
    )
    with progress_bar(*columns) as bar:
        done, title, line = 0, "audit", bar.add_task("audit", total=None)

        def tell(plan: Plan, result: AuditResult | None) -> None:
            nonlocal done, title, line
            name = f"{plan.label} against {plan.attack.name}"
            if result is None:
                bar.remove_task(line)
                title = f"{name} ({done + 1} of {len(plans)})"
                line = bar.add_task(title, total=None)
                return
            done += 1
            spent = result.seconds
            took = spent.tuning + spent.defense + spent.attack + spent.metrics
            told = f"{result.means['psnr'].value:.1f} dB, {result.verdict.reason}, {took:.0f} s"
            told += f", attacker tuned: {tuned(result)}" if result.tuned is not None else ""
            bar.console.print(f"{done} of {len(plans)}: {name}: {told}", highlight=False, soft_wrap=True)

        def advance(stage: str, now: int, total: int) -> None:
            if stage in ("tuning", "attack"):
                doing = f"{title}, tuning" if stage == "tuning" else title
                bar.update(line, completed=now, total=total, description=doing)

        try:
            return audit_all(plans, out, chunk=chunk, on_pair=tell, on_progress=advance)
        except KeyboardInterrupt:
            bar.stop()
            print(f"refiner: stopped after {done} of {len(plans)}; the same command goes on", file=sys.stderr)
            raise typer.Exit(130) from None


def _show(results: Sequence[AuditResult]) -> None:
    count = results[0].victims * results[0].batch
    title = f"{count} image{'' if count == 1 else 's'} in batches of {results[0].batch}"
    pairs = pair_names(results)
    single = len({attack for _, attack in pairs}) == 1
    if single:
        title += f", attacked by {escape(pairs[0][1])}"
    among = results[0].candidates
    told = "" if among is None else f"Top-1: the original is the nearest of {among}, by pixels / by LPIPS. "
    table = Table(
        caption=f"{told}LPIPS and noise have no vote.",
        caption_justify="left",
        box=SIMPLE,
        # In 80 columns the words are whole only without it.
        padding=(0, 1 if console.width >= 90 else 0, 0, 0),
        show_edge=False,
    )
    who = ("defence",) if single else ("defence", "attack")
    for name in (*who, "PSNR, dB", "SSIM", "LPIPS", "noise", "top-1", "labels", "verdict"):
        left = name in ("defence", "attack", "verdict")
        narrow = name in ("PSNR, dB", "top-1")
        table.add_column(name, justify="left" if left else "right", no_wrap=narrow, overflow="fold")
    for pair, result in zip(pairs, results, strict=True):
        level, labels = result.verdict.level, result.label_recovery
        read = "granted" if labels is None else f"{100 * labels:.0f} %"
        told = f"[{_COLOURS[level]}]{level}[/]"
        table.add_row(*map(escape, pair[: len(who)]), *_scores(result.means), read, told)
    # The victims are the same for all.
    table.add_row("blind guess", *[""] * (len(who) - 1), *_scores(blind_means(results) or {}), "", "")
    console.print(title, highlight=False)
    console.print(table, width=min(console.width, _WIDEST))
    console.print(summary(results), highlight=False)


def _scores(means: Mapping[str, Mean]) -> list[str]:
    """The cells from PSNR to top-1."""
    digits = {"psnr": 1, "ssim": 2, "lpips": 3, "noise": 2}
    return [*(_number(means, name, places) for name, places in digits.items()), top1(means).text]


def _number(means: Mapping[str, Mean], score: str, digits: int) -> str:
    """A mean, for PSNR with half the width of its interval."""
    mean = means.get(score)
    if mean is None:
        return "–"
    if score != "psnr" or mean.low is None or mean.high is None:
        return f"{mean.value:.{digits}f}"
    return f"{mean.value:.{digits}f} ± {(mean.high - mean.low) / 2:.{digits}f}"

"""`refiner audit`: attack the uploads of defences, print scores and write the report."""

from pathlib import Path
from typing import Annotated

import typer

from refiner.checks import integer
from refiner.cli.choices import ATTACKS, CAPABILITIES, DEFENSES, MEMBERSHIP
from refiner.cli.common import (
    DATA_HELP,
    Chunk,
    Device,
    Json,
    Quiet,
    Root,
    Size,
    console,
    one_line_errors,
    print_json,
    select_device,
)
from refiner.cli.model_options import Classes, Mean, Model, Std, Weights, parse_numbers
from refiner.cli.tabular import Target, check_no_target, is_given


def audit(
    command: typer.Context,
    out: Annotated[
        Path,
        typer.Option(help="Folder for report.html and the results; an interrupted run in it is resumed."),
    ] = Path("out/audit"),
    data: Annotated[
        str | None,
        typer.Option(
            help=f"Images to audit: {DATA_HELP} An image alone is also accepted. Or a table: csv:FILE."
        ),
    ] = None,
    target: Target = None,
    root: Root = None,
    model: Model = "lenet",
    weights: Weights = None,
    classes: Classes = None,
    mean: Mean = None,
    std: Std = None,
    defense: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Defence: one of {', '.join(DEFENSES)}, or a plug-in (see `refiner "
            "defenses`), as NAME or NAME:setting=value,…; join several with + to apply them in sequence. "
            "Repeat the option to compare. Default: none and refiner; for a table none and dp-gaussian."
        ),
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Attack: one of {', '.join(ATTACKS)}, or a plug-in (see `refiner "
            "attacks`), as NAME or NAME:setting=value,…. Repeat the option to compare. Default: auto, those "
            "that work on this model without a defence; all tries every one. Or membership, as "
            "membership:method=NAME,…, which "
            f"asks who was in the data instead: {', '.join(MEMBERSHIP)}. Or attribute, which infers a "
            "property, see --attribute."
        ),
    ] = None,
    victims: Annotated[int, typer.Option(help="Number of clients.")] = 16,
    batch: Annotated[int, typer.Option(help="Images in each client's batch.")] = 1,
    local_steps: Annotated[
        int,
        typer.Option(
            help="FedAvg: local steps of a client, each with its part of the batch. The attacker sees their "
            "sum."
        ),
    ] = 1,
    lr: Annotated[float, typer.Option(help="Learning rate of the local steps.")] = 0.01,
    summed_clients: Annotated[
        int,
        typer.Option(help="Secure aggregation: the attacker sees the mean of so many clients' uploads only."),
    ] = 1,
    rounds: Annotated[
        int, typer.Option(help="Membership: uploads of each client, between which the server takes a step.")
    ] = 1,
    epochs: Annotated[
        int,
        typer.Option(
            help="Membership: passes of a client over its data before an upload, each of --local-steps."
        ),
    ] = 1,
    iterations: Annotated[
        int | None, typer.Option(help="Iterations of every attack that iterates. Default: its own.")
    ] = None,
    grant: Annotated[
        list[str] | None,
        typer.Option(
            help=f"What the attacker is given besides upload and model: {', '.join(CAPABILITIES)}. Repeat "
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
    training: Annotated[
        list[Path] | None,
        typer.Option(
            help="Output folder of `refiner train`: the report shows the accuracy that defences keep (PMM). "
            "Repeat the option: one without a defence, and one for each defence."
        ),
    ] = None,
    attribute: Annotated[
        str | None,
        typer.Option(
            help="Property to infer from uploads that is not the task: gender of lfw (the task is identity), "
            "person (the task is gender), or an array of your own .npz with the values 0 and 1."
        ),
    ] = None,
    share: Annotated[
        bool,
        typer.Option("--share", help="With --attribute: batches are mixed, and their share is inferred."),
    ] = False,
    least_images: Annotated[
        int | None,
        typer.Option(
            help="With --attribute or a membership attack on lfw: only people with so many images. "
            "Default: 5, for the attribute person --batch."
        ),
    ] = None,
    size: Size = None,
    seed: Annotated[int, typer.Option(help="Seed of the model, the defences and the attacks.")] = 0,
    chunk: Chunk = None,
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
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure how much of the images attacks can reconstruct, with and without defences, and write a report.

    Finished audits are kept in OUT; after an interruption the same command continues.
    """
    with one_line_errors(command):
        import torch

        from refiner.attacks import Attack, tunable
        from refiner.audit import Plan, Protocol, load_victims, write_report
        from refiner.cli.audit_steps import (
            ChosenAttacks,
            add_working,
            announce,
            checked_defenses,
            report_pmm,
            run_plans,
            threat_model,
            tuning_images,
        )
        from refiner.cli.audit_table import print_results, results_record
        from refiner.cli.inference_audits import inference_of
        from refiner.core import Task
        from refiner.core.determinism import deterministic_algorithms
        from refiner.data.csv_table import table_path
        from refiner.federation.pmm import pmm_of_trainings
        from refiner.models.build import build_model, check_model_classes

        torch_device = select_device(device)
        if (file := table_path(data)) is not None:
            from refiner.cli.tabular_audit import audit_tabular

            audit_tabular(
                command,
                file,
                threat_model(grant or (), deny or ()),
                out=out,
                target=target,
                model=model if is_given(command, "model") else None,
                weights=weights,
                classes=classes,
                defenses=defense or (),
                attacks=attack or (),
                victims=victims,
                batch=batch,
                iterations=iterations,
                public_rows=public_images,
                seed=seed,
                device=torch_device,
                deterministic=deterministic,
                as_json=as_json,
                quiet=quiet,
            )
            return
        check_no_target(target)
        answers, reconstructing = inference_of(command, torch_device)
        if answers and not reconstructing:
            return
        # Before anything else runs on the GPU, since its first operations fix the available algorithms.
        with deterministic_algorithms(deterministic, torch_device):
            threat = threat_model(grant or (), deny or ())
            protocol = Protocol(local_steps, lr, summed_clients)
            chosen = ChosenAttacks.of(reconstructing, iterations)
            attacks, from_robust = list(chosen.named), from_robust or chosen.every
            learns = (from_robust or chosen.automatic) or any(
                not attacker.needs.isdisjoint({"public", "defense"}) for attacker in attacks
            )
            defenses = checked_defenses(defense)
            trained = pmm_of_trainings(training, "training") if training else {}
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
            task = Task(
                build_model(
                    model,
                    images.classes,
                    tuple(x.shape[2:]),
                    classes_given=classes is not None,
                    weights=weights,
                    mean=parse_numbers("mean", mean),
                    std=parse_numbers("std", std),
                ).to(torch_device),
                example=x[0],
            )
            check_model_classes(task, y, classes)
            tune = tuning_images(images, torch_device)

            def make_plan(name: str, attacker: Attack, from_robust: bool) -> Plan:
                return Plan.of(
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
                    tune=tune if tunable(attacker) or (not any(map(tunable, attacks)) and attacks) else None,
                    from_robust=from_robust,
                    protocol=protocol,
                )

            attacks = add_working(
                chosen,
                make_plan,
                defenses,
                iterations,
                out,
                chunk,
                from_robust=from_robust,
                on_gpu=x.is_cuda,
                quiet=quiet,
            )
            plans = [
                make_plan(name, attacker, from_robust and attacker is attacks[0])
                for name in defenses
                for attacker in attacks
            ]
            announce(plans, out, estimate=not chosen.automatic, quiet=quiet)
            results = run_plans(plans, out, chunk, control=not no_control, quiet=quiet)
        pmm = report_pmm(results, [name for name in defenses for _ in attacks], trained)
        page = write_report(
            out / "report.html",
            results,
            images.source,
            pmm=pmm,
            further=[section for answer in answers for section in answer.page.sections],
        )
        for answer in answers:
            answer.save(out)
        if as_json:
            records = {answer.question: answer.record for answer in answers}
            print_json({**results_record(results), "pmm": pmm, **records, "report": page})
            return
        print_results(results)
        for answer in answers:
            answer.show()
        console.print(f"Report: {page}", highlight=False, soft_wrap=True)

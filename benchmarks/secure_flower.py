"""Cost of secure aggregation over Flower: seconds of a round, a client and the server, secure and plain.

    python benchmarks/secure_flower.py [--models lenet resnet10] [--clients 3] [--rounds 2] [--out FILE]

A SuperLink and a SuperNode for each client run as processes on the loopback interface, on the bundled
sample. A client's time is that of its app from message to reply, summed over the steps of a round:
wall-clock time, and processor time, which depends less on other jobs. The start of processes and Flower
itself count only in the seconds of the whole round. A client trains in the step `mask`; with plain
aggregation it does nothing else. Feeds docs/results/secure-flower.jsonl, which docs/secure-aggregation.md
shows.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from refiner.federation import CheckpointConfig, Experiment, FederatedSettings
from refiner.federation.flower.app_files import (
    run_config_for,
    write_app,
    write_clients,
    write_identities,
    write_server_settings,
)
from refiner.federation.flower.deployment import Deployment
from refiner.federation.flower.engine import follow_run
from refiner.models import MODELS, make_model
from rows import append_rows

TIMED = """
import json, time
from refiner.federation.flower.client import client_app
from refiner.federation.flower.client_secrets import client_folder

def timed(message, context, call_next):
    began, used = time.perf_counter(), time.process_time()
    reply = call_next(message, context)
    spent = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - used}
    step = message.content["request"]["step"] if "request" in message.content else "plain"
    with (client_folder(context) / "times.jsonl").open("a") as file:
        file.write(json.dumps({"round": message.metadata.group_id, "step": step, **spent}) + "\\n")
    return reply

app = client_app(mods=[timed])
"""


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def measure(
    deployment: Deployment, client_folders: list[Path], experiment: Experiment, aggregation: str, folder: Path
) -> dict[str, Any]:
    """Run one training on the nodes; returns the medians over its rounds."""
    write_server_settings(experiment, folder)
    write_clients(experiment, client_folders, aggregation=aggregation)
    if aggregation != "plain":
        write_identities(client_folders, folder)
    for client_folder in client_folders:
        (client_folder / "times.jsonl").unlink(missing_ok=True)
    app = folder / "app"
    write_app(app, run_config_for(experiment, folder, aggregation=aggregation), client="timed:app")
    (app / "timed.py").write_text(TIMED)
    follow_run(deployment, deployment.submit(app), CheckpointConfig(folder))
    steps: defaultdict[str, list[float]] = defaultdict(list)
    rounds: defaultdict[str, float] = defaultdict(float)
    cpu_seconds: defaultdict[str, float] = defaultdict(float)
    for client_folder in client_folders:
        for line in read_lines(client_folder / "times.jsonl"):
            steps[line["step"]].append(line["cpu"])
            if line["step"] != "introduce":  # once per training
                rounds[line["round"]] += line["seconds"] / len(client_folders)
                cpu_seconds[line["round"]] += line["cpu"] / len(client_folders)
    round_lines = read_lines(folder / "rounds.jsonl")
    return {
        "round_s": statistics.median(line["seconds"] for line in round_lines),
        "client_s": statistics.median(rounds.values()),
        "client_cpu_s": statistics.median(cpu_seconds.values()),
        "client_steps_cpu_s": {step: statistics.median(seconds) for step, seconds in steps.items()},
        "server_s": statistics.median(line.get("aggregation_seconds", 0.0) for line in round_lines),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["lenet", "resnet10"], choices=MODELS)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--out", type=Path, help="a .jsonl file to append the rows to")
    options = parser.parse_args(argv)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(
        f"{machine}; {options.clients} clients, batch {options.batch}, median of {options.rounds} rounds",
        flush=True,
    )
    rows = []
    work_folder = Path(tempfile.mkdtemp(prefix="refiner-"))
    client_folders = [work_folder / f"client-{client}" for client in range(options.clients)]
    try:
        with Deployment(work_folder / "deployment", environment={"OMP_NUM_THREADS": "1"}) as deployment:
            for client_folder in client_folders:
                client_folder.mkdir(mode=0o700)
                deployment.add_node(client_folder)
            for model in options.models:
                settings = FederatedSettings(
                    rounds=options.rounds, clients=options.clients, batch=options.batch, lr=0.01
                )
                experiment = Experiment(data="sample", model=model, training=settings)
                size = sum(parameter.numel() for parameter in make_model(model).parameters())
                for aggregation in ("plain", "secure"):
                    folder = work_folder / f"{model}-{aggregation}"
                    row = measure(deployment, client_folders, experiment, aggregation, folder)
                    description = {"model": model, "parameters": size, "aggregation": aggregation}
                    rows.append(description | row | {"load_average": os.getloadavg()[0]})
                    print(
                        f"{model:9} {aggregation:6}: a round {row['round_s']:.1f} s; a client "
                        f"{row['client_s']:.2f} s ({row['client_cpu_s']:.2f} of a processor), the server "
                        f"{row['server_s']:.2f} s; "
                        f"load {os.getloadavg()[0]:.1f}",
                        flush=True,
                    )
    finally:
        shutil.rmtree(work_folder, ignore_errors=True)
    if options.out:
        shared = {"clients": options.clients, "batch": options.batch, "rounds": options.rounds}
        append_rows(options.out, rows, device=machine, **shared)


if __name__ == "__main__":
    main()

"""Secure aggregation over Flower: seconds of a round, of a client and of the server, beside plain ones.

    python benchmarks/secure_flower.py [--models lenet resnet10] [--clients 3] [--rounds 2] [--out FILE]

A SuperLink and a SuperNode for each client, as processes on this machine's loopback, on the bundled sample. A
client's time is that of its app from message to answer, summed over a round's steps: on the clock, and of
the processor, which other jobs change less. What Flower and the start of a process take is in the seconds of
the whole round alone. A client trains in step `mask`, and one of plain aggregation does nothing else.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from refiner.federation import Experiment, Keeping, Training
from refiner.federation.flower.deployment import Deployment
from refiner.federation.flower.study import (
    follow,
    rules_of,
    write_app,
    write_clients,
    write_identities,
    write_study,
)
from refiner.models import NAMES, build

TIMED = """
import json, time
from refiner.federation.flower.client import client_app
from refiner.federation.flower.client_secrets import folder_of

def timed(message, context, call_next):
    began, used = time.perf_counter(), time.process_time()
    reply = call_next(message, context)
    spent = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - used}
    step = message.content["ask"]["step"] if "ask" in message.content else "plain"
    with (folder_of(context) / "times.jsonl").open("a") as file:
        file.write(json.dumps({"round": message.metadata.group_id, "step": step, **spent}) + "\\n")
    return reply

app = client_app(mods=[timed])
"""


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def measure(
    deployment: Deployment, homes: list[Path], experiment: Experiment, aggregation: str, folder: Path
) -> dict[str, Any]:
    """A training on the nodes: medians over its rounds."""
    write_study(experiment, folder)
    write_clients(experiment, homes, aggregation=aggregation)
    if aggregation != "plain":
        write_identities(homes, folder)
    for home in homes:
        (home / "times.jsonl").unlink(missing_ok=True)
    app = folder / "app"
    write_app(app, rules_of(experiment, folder, aggregation=aggregation), client="timed:app")
    (app / "timed.py").write_text(TIMED)
    follow(deployment, deployment.submit(app), folder, Keeping(folder))
    steps: defaultdict[str, list[float]] = defaultdict(list)
    rounds: defaultdict[str, float] = defaultdict(float)
    processor: defaultdict[str, float] = defaultdict(float)
    for home in homes:
        for line in lines(home / "times.jsonl"):
            steps[line["step"]].append(line["cpu"])
            if line["step"] != "introduce":  # once a training
                rounds[line["round"]] += line["seconds"] / len(homes)
                processor[line["round"]] += line["cpu"] / len(homes)
    told = lines(folder / "rounds.jsonl")
    return {
        "round_s": statistics.median(line["seconds"] for line in told),
        "client_s": statistics.median(rounds.values()),
        "client_cpu_s": statistics.median(processor.values()),
        "client_steps_cpu_s": {step: statistics.median(each) for step, each in steps.items()},
        "server_s": statistics.median(line.get("aggregation_seconds", 0.0) for line in told),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["lenet", "resnet10"], choices=NAMES)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--out", type=Path, help="a JSON file for all of it")
    given = parser.parse_args()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(
        f"{machine}; {given.clients} clients, batch {given.batch}, median of {given.rounds} rounds",
        flush=True,
    )
    rows = []
    work = Path(tempfile.mkdtemp(prefix="refiner-"))
    homes = [work / f"client-{client}" for client in range(given.clients)]
    try:
        with Deployment(work / "deployment", environment={"OMP_NUM_THREADS": "1"}) as deployment:
            for home in homes:
                home.mkdir(mode=0o700)
                deployment.add_node(home)
            for model in given.models:
                training = Training(rounds=given.rounds, clients=given.clients, batch=given.batch, lr=0.01)
                experiment = Experiment(data="sample", model=model, training=training)
                size = sum(parameter.numel() for parameter in build(model).parameters())
                for aggregation in ("plain", "secure"):
                    folder = work / f"{model}-{aggregation}"
                    row = measure(deployment, homes, experiment, aggregation, folder)
                    about = {"model": model, "parameters": size, "aggregation": aggregation}
                    rows.append(about | row | {"load_average": os.getloadavg()[0]})
                    print(
                        f"{model:9} {aggregation:6}: a round {row['round_s']:.1f} s; a client "
                        f"{row['client_s']:.2f} s ({row['client_cpu_s']:.2f} of a processor), the server "
                        f"{row['server_s']:.2f} s; "
                        f"load {os.getloadavg()[0]:.1f}",
                        flush=True,
                    )
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        about = {"machine": machine, "clients": given.clients, "batch": given.batch, "rounds": given.rounds}
        given.out.write_text(json.dumps(about | {"trainings": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

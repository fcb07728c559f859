"""Cost of secure aggregation: seconds that a client and the server compute in a round, with the paper's
figures.

    python benchmarks/secure_aggregation.py [--models lenet resnet10] [--clients 10]
        [--dropouts 1] [--out FILE]

All clients run in this process, one after the other. A client's time is the mean over clients of the sum of
its steps, the server's time the sum of its steps. There is no network; traffic is counted in bytes. Clients
drop out after they shared their keys (column `lost`), which costs the server most, as it must recover their
masking secrets. Feeds docs/results/secure-aggregation.jsonl, which docs/secure-aggregation.md shows.
"""

import argparse
import os
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from refiner.federation.secure import FixedPoint, Identity, RoundConfig, SecureClient, SecureServer
from refiner.models import MODELS, make_model
from rows import append_rows

# Seconds per round in the paper: client, server.
PAPER = {"lenet": (2.1, 2.3), "resnet10": (643.0, 720.0)}
T = TypeVar("T")


class Clock:
    """Seconds by party and step."""

    def __init__(self) -> None:
        self.seconds: defaultdict[tuple[str, str], float] = defaultdict(float)

    def time(self, party: str, step: str, call: Callable[[], T]) -> T:
        """Return the result of `call` and add its duration."""
        start = time.perf_counter()
        result = call()
        self.seconds[party, step] += time.perf_counter() - start
        return result

    def total(self, party: str) -> float:
        """Seconds of all steps of one party."""
        return sum(seconds for (name, _), seconds in self.seconds.items() if name == party)


def run_round(
    updates: torch.Tensor, dropouts: int, threshold: int | None, encoding: FixedPoint
) -> dict[str, float]:
    """Run one round; returns seconds, bytes and the largest error of the mean."""
    count = len(updates)
    identities = {client: Identity.generate() for client in range(count)}
    public_keys = {client: identity.public for client, identity in identities.items()}
    config = RoundConfig("benchmark", 1, public_keys, updates.shape[1], threshold, encoding=encoding)
    clock = Clock()
    clients = {c: SecureClient(config, c, identities[c]) for c in public_keys}
    server = SecureServer(config)
    survivors = list(range(count - dropouts))

    advertised = {c: clock.time(f"{c}", "advertise", clients[c].advertise_keys) for c in public_keys}
    keys = clock.time("server", "advertise", lambda: server.collect_keys(advertised))
    shared = {c: clock.time(f"{c}", "share", lambda c=c: clients[c].share_keys(keys)) for c in public_keys}
    shares = clock.time("server", "share", lambda: server.collect_shares(shared))
    masked = {
        c: clock.time(f"{c}", "mask", lambda c=c: clients[c].mask_update(updates[c], shares[c]))
        for c in survivors
    }
    survivors_message = clock.time("server", "mask", lambda: server.collect_masked_updates(masked))
    confirmed = {
        c: clock.time(f"{c}", "confirm", lambda c=c: clients[c].confirm_survivors(survivors_message))
        for c in survivors
    }
    signatures = clock.time("server", "confirm", lambda: server.collect_signatures(confirmed))
    revealed = {c: clock.time(f"{c}", "unmask", lambda c=c: clients[c].unmask(signatures)) for c in survivors}
    result = clock.time("server", "unmask", lambda: server.aggregate(revealed))

    error = (result.mean - updates[survivors].double().mean(0)).abs().max().item()
    if error > 2.0**-encoding.fraction_bits:
        raise SystemExit(f"the mean is off by {error}")
    sent = (advertised[0], shared[0], masked[0], confirmed[0], revealed[0])
    received = (keys, shares[0], survivors_message, signatures)
    return {
        "client_s": statistics.mean(clock.total(f"{c}") for c in survivors),
        "server_s": clock.total("server"),
        "client_mask_s": statistics.mean(clock.seconds[f"{c}", "mask"] for c in survivors),
        "server_unmask_s": clock.seconds["server", "unmask"],
        "client_sends_bytes": sum(len(value) for message in sent for value in message.values()),
        "client_gets_bytes": sum(len(value) for message in received for value in message.values()),
        "largest_error": error,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["lenet", "resnet10"], choices=MODELS)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--threshold", type=int, help="⌊2n/3⌋ + 1 if left out")
    parser.add_argument(
        "--dropouts", type=int, nargs="+", default=[0, 1], help="numbers of clients that drop out"
    )
    parser.add_argument("--repeats", type=int, default=5, help="rounds, of which the median is reported")
    parser.add_argument("--modulus-bits", type=int, default=64, choices=(32, 64))
    parser.add_argument("--out", type=Path, help="a .jsonl file to append the rows to")
    options = parser.parse_args(argv)
    encoding = FixedPoint() if options.modulus_bits == 64 else FixedPoint(8, 24, 32)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    rows = []
    print(
        f"{machine}; {options.clients} clients, modulus 2^{options.modulus_bits}, median of {options.repeats}"
    )
    for model in options.models:
        size = sum(parameter.numel() for parameter in make_model(model).parameters())
        torch.manual_seed(0)
        updates = 0.01 * torch.randn(options.clients, size)
        for dropouts in options.dropouts:
            # The first round is not counted, as it includes imports.
            rounds = [
                run_round(updates, dropouts, options.threshold, encoding) for _ in range(options.repeats + 1)
            ][1:]
            row = {name: statistics.median(round_[name] for round_ in rounds) for name in rounds[0]}
            paper = PAPER.get(model, (None, None))
            rows.append(
                {"model": model, "parameters": size, "clients": options.clients, "lost": dropouts}
                | {"paper_client_s": paper[0], "paper_server_s": paper[1]}
                | row
                | {"load_average": os.getloadavg()[0]}
            )
            print(
                f"{model:9} {size:>9} parameters, {dropouts} dropouts: client {row['client_s']:.3f} s, "
                f"server {row['server_s']:.3f} s (paper {paper[0]} s, {paper[1]} s); a client sends "
                f"{row['client_sends_bytes'] / 1e6:.2f} MB; error {row['largest_error']:.1e}",
                flush=True,
            )
    if options.out:
        append_rows(options.out, rows, device=machine, seed=0)


if __name__ == "__main__":
    main()

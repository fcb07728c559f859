"""Secure aggregation: seconds that a client and the server spend in a round, beside the paper's.

    python benchmarks/secure_aggregation.py [--models lenet resnet10] [--clients 10] [--lost 1] [--out FILE]

All clients run in this process, one after the other; a client's time is the mean over clients of all its
steps, the server's of all of its. No network is between them: what travels is counted in bytes. `--lost`
clients drop out after their shares are out, the dearest place: the server then recovers their mask keys.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from refiner.federation.secure import Agreement, FixedPoint, Identity, SecureClient, SecureServer
from refiner.models import NAMES, build

# Seconds a round in the paper: client, server.
PAPER = {"lenet": (2.1, 2.3), "resnet10": (643.0, 720.0)}
T = TypeVar("T")


class Clock:
    """Seconds by who and step."""

    def __init__(self) -> None:
        self.seconds: defaultdict[tuple[str, str], float] = defaultdict(float)

    def time(self, who: str, step: str, call: Callable[[], T]) -> T:
        """What `call` gives; its time is added."""
        began = time.perf_counter()
        result = call()
        self.seconds[who, step] += time.perf_counter() - began
        return result

    def total(self, who: str) -> float:
        """All steps of one."""
        return sum(spent for (name, _), spent in self.seconds.items() if name == who)


def play(updates: torch.Tensor, lost: int, threshold: int | None, encoding: FixedPoint) -> dict[str, float]:
    """One round; seconds and bytes."""
    count = len(updates)
    identities = {client: Identity.generate() for client in range(count)}
    known = {client: identity.public for client, identity in identities.items()}
    agreement = Agreement("benchmark", 1, known, updates.shape[1], threshold, encoding=encoding)
    clock = Clock()
    clients = {c: SecureClient(agreement, c, identities[c]) for c in known}
    server = SecureServer(agreement)
    stay = list(range(count - lost))

    adverts = {c: clock.time(f"{c}", "advertise", clients[c].advertise) for c in known}
    keys = clock.time("server", "advertise", lambda: server.keys(adverts))
    shares = {c: clock.time(f"{c}", "share", lambda c=c: clients[c].share(keys)) for c in known}
    sealed = clock.time("server", "share", lambda: server.relay(shares))
    masked = {c: clock.time(f"{c}", "mask", lambda c=c: clients[c].mask(updates[c], sealed[c])) for c in stay}
    survivors = clock.time("server", "mask", lambda: server.survivors(masked))
    confirmed = {c: clock.time(f"{c}", "confirm", lambda c=c: clients[c].confirm(survivors)) for c in stay}
    signatures = clock.time("server", "confirm", lambda: server.signatures(confirmed))
    revealed = {c: clock.time(f"{c}", "unmask", lambda c=c: clients[c].unmask(signatures)) for c in stay}
    got = clock.time("server", "unmask", lambda: server.aggregate(revealed))

    error = (got.mean - updates[stay].double().mean(0)).abs().max().item()
    if error > 2.0**-encoding.fraction_bits:
        raise SystemExit(f"the mean is off by {error}")
    sent = (adverts[0], shares[0], masked[0], confirmed[0], revealed[0])
    got_back = (keys, sealed[0], survivors, signatures)
    return {
        "client_s": statistics.mean(clock.total(f"{c}") for c in stay),
        "server_s": clock.total("server"),
        "client_mask_s": statistics.mean(clock.seconds[f"{c}", "mask"] for c in stay),
        "server_unmask_s": clock.seconds["server", "unmask"],
        "client_sends_bytes": sum(len(value) for message in sent for value in message.values()),
        "client_gets_bytes": sum(len(value) for message in got_back for value in message.values()),
        "largest_error": error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["lenet", "resnet10"], choices=NAMES)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--threshold", type=int, help="⌊2n/3⌋ + 1 if left out")
    parser.add_argument("--lost", type=int, nargs="+", default=[0, 1], help="how many clients drop out")
    parser.add_argument("--repeats", type=int, default=5, help="rounds; the median of them is told")
    parser.add_argument("--modulus-bits", type=int, default=64, choices=(32, 64))
    parser.add_argument("--out", type=Path, help="a JSON file for all of it")
    given = parser.parse_args()
    encoding = FixedPoint() if given.modulus_bits == 64 else FixedPoint(8, 24, 32)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    rows = []
    print(f"{machine}; {given.clients} clients, modulus 2^{given.modulus_bits}, median of {given.repeats}")
    for model in given.models:
        size = sum(parameter.numel() for parameter in build(model).parameters())
        torch.manual_seed(0)
        updates = 0.01 * torch.randn(given.clients, size)
        for lost in given.lost:
            # The first round imports what it needs; its time is not the protocol's.
            rounds = [play(updates, lost, given.threshold, encoding) for _ in range(given.repeats + 1)][1:]
            row = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
            paper = PAPER.get(model, (None, None))
            rows.append(
                {"model": model, "parameters": size, "clients": given.clients, "lost": lost}
                | {"paper_client_s": paper[0], "paper_server_s": paper[1]}
                | row
                | {"load_average": os.getloadavg()[0]}
            )
            print(
                f"{model:9} {size:>9} parameters, {lost} lost: client {row['client_s']:.3f} s, server "
                f"{row['server_s']:.3f} s (paper {paper[0]} s, {paper[1]} s); a client sends "
                f"{row['client_sends_bytes'] / 1e6:.2f} MB; error {row['largest_error']:.1e}",
                flush=True,
            )
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(
            json.dumps({"machine": machine, "rounds": rows}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()

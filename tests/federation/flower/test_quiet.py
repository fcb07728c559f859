"""That a program of Flower calls nobody, and that what watches over it in other tests would see it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from refiner.federation.flower import deployment
from refiner.federation.flower.deployment import Deployment, free_port

LOUD = {"FLWR_TELEMETRY_ENABLED": "1", "FLWR_DISABLE_UPDATE_CHECK": "0"}
BOUND = "import socket, sys; held = socket.create_server((sys.argv[1], 0)); print(flush=True); input()"


@pytest.mark.flower
@pytest.mark.parametrize("loud", [False, True], ids=["quiet", "loud"])
def test_the_trap(loud: bool, trap: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SuperNode without a SuperLink gives up at once; on its way there and back it would tell of it."""
    if loud:
        monkeypatch.setattr(deployment, "QUIET", {**deployment.QUIET, **LOUD})
    alone, nobody = Deployment(tmp_path, environment=trap.environment), f"127.0.0.1:{free_port()}"
    node = alone.add_node(tmp_path / "client", ["--insecure", "--max-retries", "0"], superlink=nobody)
    try:
        assert node.guard.wait(60) != 0
    finally:
        node.guard.terminate()
        node.guard.wait()
    called = {call.split()[1] for call in trap.calls}
    assert called == ({"telemetry.flower.ai:443", "api.flower.ai:443"} if loud else set()), node.log(50)


@pytest.mark.parametrize(("host", "seen"), [("127.0.0.1", 0), ("0.0.0.0", 1)])
def test_sockets_beyond_the_loopback(
    host: str,
    seen: int,
    beyond: Callable[[Path], set[str]],
    tmp_path: Path,
    missing: Callable[[str], NoReturn],
) -> None:
    if not Path("/proc/net/tcp").exists():
        missing("/proc")
    program, home = [sys.executable, "-c", BOUND, host], {**os.environ, "FLWR_HOME": str(tmp_path)}
    with subprocess.Popen(program, env=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = beyond(tmp_path)
        process.communicate(b"\n")
    assert len(found) == seen

"""Runs a program and ends it when the process that started it ends.

    python supervisor.py PIDFILE PROGRAM ARGUMENT...

It is run as a script, by its path, and imports nothing of the library, so it needs little memory.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_GRACE_SECONDS = 8.0


def main() -> int:
    """Start the program, end it on SIGTERM or when the parent has ended, and return its exit code."""
    parent = os.getppid()
    stop = False

    def request_stop(*_: object) -> None:
        nonlocal stop
        stop = True

    signal.signal(signal.SIGTERM, request_stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent ends its processes in order
    child = subprocess.Popen(sys.argv[2:], start_new_session=True)
    Path(sys.argv[1]).write_text(str(child.pid))
    while child.poll() is None and not stop and os.getppid() == parent:
        time.sleep(0.1)
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_SECONDS)
    # Processes of its group that it started and did not end.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


if __name__ == "__main__":
    sys.exit(main())

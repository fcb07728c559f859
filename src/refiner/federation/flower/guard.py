"""Runs a program for as long as the one who started it lives: `python guard.py PIDFILE PROGRAM ARGUMENT…`.

It is run as a script, by its path, and imports nothing of the library: it costs a few megabytes, not torch.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_GRACE = 8.0


def main() -> int:
    """Start the program, end it when told to or when the parent is gone, and pass its exit code on."""
    parent = os.getppid()
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, who then ends us in order
    child = subprocess.Popen(sys.argv[2:], start_new_session=True)
    Path(sys.argv[1]).write_text(str(child.pid))
    while child.poll() is None and not ended and os.getppid() == parent:
        time.sleep(0.1)
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE)
    # Whatever it started in its group and did not end itself.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


if __name__ == "__main__":
    sys.exit(main())

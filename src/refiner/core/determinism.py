"""The same bits from the same call: on a GPU no algorithm by timing, nor one that adds in any order."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from refiner.errors import UnsupportedModelError


@contextmanager
def repeatable(wanted: bool, device: torch.device) -> Iterator[None]:
    """Inside the block a GPU gives the same bits for the same call, if that is wanted.

    What has no such algorithm is refused in one line. Nothing happens on a CPU, where the same call gives the
    same bits on as many threads.

    >>> with repeatable(True, torch.device("cuda")):
    ...     torch.backends.cudnn.benchmark, torch.are_deterministic_algorithms_enabled()
    (False, True)
    >>> torch.are_deterministic_algorithms_enabled()
    False
    """
    if not wanted or device.type != "cuda":
        yield
        return
    # cuBLAS reads it when it is first used, and has no other switch.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    timing = torch.backends.cudnn.benchmark
    enabled = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        told = str(error)
        if "CUBLAS_WORKSPACE_CONFIG" in told:
            reason = "set CUBLAS_WORKSPACE_CONFIG=:4096:8 before the first use of the GPU"
        elif "does not have a deterministic implementation" in told:
            reason = f"{told.split(maxsplit=1)[0]} has no algorithm that gives the same bits every time"
        else:
            raise
        raise UnsupportedModelError(f"deterministic = True: {reason}") from error
    finally:
        torch.backends.cudnn.benchmark = timing
        torch.use_deterministic_algorithms(enabled, warn_only=warned)

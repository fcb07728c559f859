"""Bit-identical results of identical calls on a GPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from refiner.errors import UnsupportedModelError


@contextmanager
def deterministic_algorithms(enabled: bool, device: torch.device) -> Iterator[None]:
    """Let a GPU use only algorithms that give the same bits for the same call, inside the block.

    Nothing changes on a CPU, where the same call on the same number of threads gives the same bits anyway.

    Args:
        enabled: Whether to do so at all.
        device: Where the computation runs.

    Raises:
        UnsupportedModelError: An operation inside the block has no deterministic algorithm.

    >>> with deterministic_algorithms(True, torch.device("cuda")):
    ...     torch.backends.cudnn.benchmark, torch.are_deterministic_algorithms_enabled()
    (False, True)
    >>> torch.are_deterministic_algorithms_enabled()
    False
    """
    if not enabled or device.type != "cuda":
        yield
        return
    # cuBLAS reads it when it is first used, and has no other switch.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    benchmark_before = torch.backends.cudnn.benchmark
    enabled_before = torch.are_deterministic_algorithms_enabled()
    warn_only_before = torch.is_deterministic_algorithms_warn_only_enabled()
    # cudnn.benchmark chooses algorithms by timing them.
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        message = str(error)
        if "CUBLAS_WORKSPACE_CONFIG" in message:
            reason = "set CUBLAS_WORKSPACE_CONFIG=:4096:8 before the first use of the GPU"
        elif "does not have a deterministic implementation" in message:
            reason = f"{message.split(maxsplit=1)[0]} has no deterministic algorithm"
        else:
            raise
        raise UnsupportedModelError(
            field="deterministic",
            value=True,
            problem=reason,
            expected="operations that have deterministic algorithms",
        ) from error
    finally:
        torch.backends.cudnn.benchmark = benchmark_before
        torch.use_deterministic_algorithms(enabled_before, warn_only=warn_only_before)

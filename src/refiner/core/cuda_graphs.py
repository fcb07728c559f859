"""CUDA graphs: a call whose shapes come back is recorded once and replayed, without Python in between."""

import functools
import gc
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
Function = Callable[..., tuple[Tensor, ...]]


class Captured:
    """Replays functions of tensors on the GPU: eager the first time, recorded the second, then replayed.

    A function must depend on its tensors alone, and on nothing on the host that changes. The last `capacity`
    recordings are kept; each holds the memory of its call.
    """

    def __init__(self, capacity: int = 4) -> None:
        self.capacity = capacity
        # Two threads that fill one recording's inputs would upload each other's data.
        self._lock = threading.Lock()
        self._seen: OrderedDict[Hashable, _Recording | Function] = OrderedDict()

    def __call__(self, key: Hashable, function: Function, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """`function(*inputs)`; `key` names the function, shapes and types are added to it here."""
        if not all(t.is_cuda for t in inputs):
            return function(*inputs)
        with self._lock:
            return self._call(key, function, inputs)

    def _call(self, key: Hashable, function: Function, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        full = (key, _mode(), tuple((t.shape, t.dtype, t.device) for t in inputs))
        held = self._seen.get(full)
        if held is None:
            # Kept, so that nothing that the key names by its address can be freed and come back as another.
            self._seen[full] = function
            if len(self._seen) > self.capacity:
                self._seen.popitem(last=False)
            return function(*inputs)
        self._seen.move_to_end(full)
        if not isinstance(held, _Recording):
            held = self._seen[full] = _Recording(held, inputs)
        return held.replay(inputs)


def _mode() -> tuple[bool, ...]:
    """What a recording holds fast of the ways in which PyTorch may compute."""
    return (
        torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_inference_mode_enabled(),
    )


def beside(work: Callable[[], T]) -> Callable[[], T]:
    """Start `work` on a branch of its own while a CUDA graph is recorded, and give back how to join it.

    Elsewhere the work is simply done at once. It may be joined again, for the same result.
    """
    if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        done = work()
        return lambda: done
    main, branch = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    branch.wait_stream(main)
    with torch.cuda.stream(branch):
        result = work()

    @functools.cache
    def join() -> T:
        main.wait_stream(branch)
        return result

    return join


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector out: an old graph that it frees would spoil the one being recorded."""
    before = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


class _Recording:
    def __init__(self, function: Function, inputs: Sequence[Tensor]) -> None:
        self.function = function
        self.inputs = [t.detach().clone() for t in inputs]
        # Tensors of one type are copied by one kernel, a mixture one by one.
        self.kinds: dict[torch.dtype, list[int]] = {}
        for place, t in enumerate(inputs):
            self.kinds.setdefault(t.dtype, []).append(place)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # Libraries choose their kernels and workspaces now: inside a recording they can't.
            for _ in range(2):
                function(*self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with _no_collection(), torch.cuda.graph(self.graph):
            self.outputs = function(*self.inputs)

    def replay(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        for places in self.kinds.values():
            torch._foreach_copy_([self.inputs[i] for i in places], [inputs[i] for i in places])
        self.graph.replay()
        return tuple(t.clone() for t in self.outputs)

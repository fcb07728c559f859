"""CUDA graphs: calls with recurring shapes are recorded once and replayed without the cost of Python."""

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


class CudaGraphCache:
    """Calls functions of tensors: on a GPU eagerly the first time, recorded the second, then replayed.

    A function must depend on its tensors alone, and on nothing on the host that changes. On a CPU every call
    is a plain one.

    Args:
        capacity: How many recordings are kept, the latest ones; each holds the memory of its call.

    >>> CudaGraphCache()("double", lambda x: (2 * x,), [torch.ones(2)])
    (tensor([2., 2.]),)
    """

    def __init__(self, capacity: int = 4) -> None:
        self.capacity = capacity
        # Two threads that filled the inputs of one recording would upload each other's data.
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Recording | Function] = OrderedDict()

    def __call__(self, key: Hashable, function: Function, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The result of `function(*inputs)`.

        Args:
            key: Names the function; shapes, dtypes and PyTorch's modes are added to it here.
            function: Returns a tuple of tensors.
            inputs: The tensors it is called with.

        Returns:
            The function's outputs; from a replay they are copies.
        """
        if not all(t.is_cuda for t in inputs):
            return function(*inputs)
        with self._lock:
            return self._call(key, function, inputs)

    def _call(self, key: Hashable, function: Function, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        full_key = (key, _torch_modes(), tuple((t.shape, t.dtype, t.device) for t in inputs))
        entry = self._entries.get(full_key)
        if entry is None:
            # The function is kept, so that no object that the key names by its address is freed and reused.
            self._entries[full_key] = function
            if len(self._entries) > self.capacity:
                self._entries.popitem(last=False)
            return function(*inputs)
        self._entries.move_to_end(full_key)
        if not isinstance(entry, _Recording):
            entry = self._entries[full_key] = _Recording(entry, inputs)
        return entry.replay(inputs)


def _torch_modes() -> tuple[bool, ...]:
    """PyTorch's global modes on which a recording depends."""
    return (
        torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_inference_mode_enabled(),
    )


def start_on_side_stream(work: Callable[[], T]) -> Callable[[], T]:
    """Start `work` on a parallel stream while a CUDA graph is recorded; otherwise do it at once.

    Returns:
        A function that waits for the work and returns its result; it may be called more than once.
    """
    if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        done = work()
        return lambda: done
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(main)
    with torch.cuda.stream(side):
        result = work()

    @functools.cache
    def join() -> T:
        main.wait_stream(side)
        return result

    return join


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Turn the garbage collector off: freeing an old graph would break the one being recorded."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Recording:
    """A CUDA graph of one call, with its input and output tensors."""

    def __init__(self, function: Function, inputs: Sequence[Tensor]) -> None:
        self.function = function
        self.inputs = [t.detach().clone() for t in inputs]
        # Tensors of one dtype are copied by one kernel, a mixture one by one.
        self.by_dtype: dict[torch.dtype, list[int]] = {}
        for index, t in enumerate(inputs):
            self.by_dtype.setdefault(t.dtype, []).append(index)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # Warm-up: libraries choose their kernels and workspaces here; inside a recording they can't.
            for _ in range(2):
                function(*self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with _no_garbage_collection(), torch.cuda.graph(self.graph):
            self.outputs = function(*self.inputs)

    def replay(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        for indices in self.by_dtype.values():
            torch._foreach_copy_([self.inputs[i] for i in indices], [inputs[i] for i in indices])
        self.graph.replay()
        return tuple(t.clone() for t in self.outputs)

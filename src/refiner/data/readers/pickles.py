"""CIFAR's batches without `pickle`: their opcodes are read here, and what is no batch is refused by name.

Nothing that a file names is looked up or called: a name is compared with the few that an array needs. Nor is
a container ever printed, hashed or walked: a few bytes can make one of 2⁶⁰ values, each a pair of the last.
"""

import pickletools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refiner.errors import DataError

# A batch is one dict of a few lists and arrays. More containers could only be nested.
_CONTAINERS = 64
_VALUES = 200_000  # on the stack, or remembered: CIFAR-100 has 50,000 file names
_STEPS = 2_000_000
_DTYPES = ("u1", "i1", "i2", "i4", "i8")
_LATIN = ("latin1", "latin-1")

_RECONSTRUCT, _NDARRAY, _DTYPE, _ENCODE = "reconstruct", "ndarray", "dtype", "encode"
_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _DTYPE,
    ("_codecs", "encode"): _ENCODE,
}
_LITERALS = (
    "BININT",
    "BININT1",
    "BININT2",
    "INT",
    "LONG1",
    "BINSTRING",
    "SHORT_BINSTRING",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BINUNICODE8",
    "BINBYTES",
    "SHORT_BINBYTES",
    "BINBYTES8",
)


class _Name(str):
    """One of the few things that a batch may name."""


class _Dtype:
    def __init__(self, code: str) -> None:
        self.code, self.order = code, "|"


class _Array:
    value: NDArray[Any] | None = None


class _Mark:
    pass


def read_batch(content: bytes, name: str) -> Mapping[str, Any]:
    """The dict of a batch: arrays of integers, lists, strings; `name` stands in the errors.

    >>> import os, pickle
    >>> read_batch(pickle.dumps({"labels": [6, 9]}), "data_batch_1")
    {'labels': [6, 9]}
    >>> class Hostile:
    ...     def __reduce__(self):
    ...         return os.system, ("echo hello",)
    >>> read_batch(pickle.dumps(Hostile()), "data_batch_1")
    Traceback (most recent call last):
    refiner.errors.DataError: data_batch_1: names posix.system, which is no part of a batch; nothing was run
    """
    machine = _Machine(name)
    try:
        for step, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if step >= _STEPS:
                raise machine.wrong(f"more than {_STEPS:,} steps")
            machine.step(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{name}: not a whole batch ({' '.join(str(error).split()) or 'empty'})") from error
    if not isinstance(machine.result, dict):
        raise machine.wrong(f"a {type(machine.result).__name__} outside a dict")
    return {_text(key): _plain(value, machine) for key, value in machine.result.items()}


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _plain(value: object, machine: "_Machine") -> object:
    if isinstance(value, _Array):
        if value.value is None:
            raise machine.wrong("an array without content")
        return value.value
    if isinstance(value, _Name | _Dtype):
        raise machine.wrong("a name in place of a value")
    return value


class _Machine:
    """A stack, what is remembered, and nothing else."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stack: list[Any] = []
        self.memory: dict[int, Any] = {}
        self.containers = 0
        self.result: object = None
        pop, since_mark = self.stack.pop, self.since_mark
        self.steps: dict[str, Callable[[Any], None]] = {
            "PROTO": lambda _: None,
            "FRAME": lambda _: None,
            "NONE": lambda _: self.push(None),
            "NEWTRUE": lambda _: self.push(True),
            "NEWFALSE": lambda _: self.push(False),
            **dict.fromkeys(_LITERALS, self.push),
            "MARK": lambda _: self.push(_Mark()),
            "EMPTY_DICT": lambda _: self.contain({}),
            "EMPTY_LIST": lambda _: self.contain([]),
            "EMPTY_TUPLE": lambda _: self.contain(()),
            "TUPLE": lambda _: self.contain(tuple(since_mark())),
            "TUPLE1": lambda _: self.contain((pop(),)),
            "TUPLE2": lambda _: self.contain((pop(), pop())[::-1]),
            "TUPLE3": lambda _: self.contain((pop(), pop(), pop())[::-1]),
            "BINPUT": self.remember,
            "LONG_BINPUT": self.remember,
            "MEMOIZE": lambda _: self.remember(len(self.memory)),
            "BINGET": lambda place: self.push(self.memory[place]),
            "LONG_BINGET": lambda place: self.push(self.memory[place]),
            "APPEND": lambda _: self.append([pop()]),
            "APPENDS": lambda _: self.append(since_mark()),
            "SETITEM": lambda _: self.set_items([pop(), pop()][::-1]),
            "SETITEMS": lambda _: self.set_items(since_mark()),
            "GLOBAL": lambda named: self.name_it(*named.split(" ", 1)),
            "STACK_GLOBAL": lambda _: self.name_it(*[pop(), pop()][::-1]),
            "REDUCE": lambda _: self.make(*(pop(), pop())[::-1]),
            "BUILD": lambda _: self.build(pop(), self.stack[-1]),
            "STOP": lambda _: self.end(pop()),
        }

    def wrong(self, what: str) -> DataError:
        return DataError(f"{self.name}: holds {what}, expected a batch: a dict of arrays and lists")

    def step(self, code: str, argument: Any) -> None:
        if code not in self.steps:
            raise self.wrong(f"the pickle opcode {code}")
        self.steps[code](argument)

    def end(self, value: object) -> None:
        self.result = value

    def push(self, value: object) -> None:
        if len(self.stack) >= _VALUES:
            raise self.wrong(f"more than {_VALUES:,} values at once")
        self.stack.append(value)

    def contain(self, value: object) -> None:
        self.containers += 1
        if self.containers > _CONTAINERS:
            raise self.wrong(f"more than {_CONTAINERS} lists, tuples and dicts, nested ones perhaps")
        self.push(value)

    def remember(self, place: int) -> None:
        if not 0 <= place < _VALUES * 2 or len(self.memory) >= _VALUES * 2:
            raise self.wrong(f"a memo of more than {_VALUES * 2:,} values")
        self.memory[place] = self.stack[-1]

    def since_mark(self) -> list[Any]:
        found: list[Any] = []
        while not isinstance(value := self.stack.pop(), _Mark):
            found.append(value)
        return found[::-1]

    def append(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list) or any(isinstance(value, list | dict | tuple) for value in values):
            raise self.wrong("a list within a list")
        target.extend(values)

    def set_items(self, pairs: list[Any]) -> None:
        target = self.stack[-1]
        keys, values = pairs[::2], pairs[1::2]
        if not isinstance(target, dict) or any(isinstance(value, dict | tuple) for value in values):
            raise self.wrong("a dict within a dict")
        for key in keys:
            if type(key) not in (str, bytes):
                raise self.wrong(f"a {type(key).__name__} as a key")
        target.update(zip(keys, values, strict=True))

    def name_it(self, module: object, attribute: object) -> None:
        if not isinstance(module, str) or not isinstance(attribute, str):
            other = attribute if isinstance(module, str) else module
            raise self.wrong(f"a {type(other).__name__} in place of a name")
        known = _NAMES.get((module, attribute))
        if known is None:
            shown = f"{module}.{attribute}"[:80]
            raise DataError(f"{self.name}: names {shown}, which is no part of a batch; nothing was run")
        self.push(_Name(known))

    def make(self, called: object, arguments: object) -> None:
        if not isinstance(called, _Name) or not isinstance(arguments, tuple):
            raise self.wrong("a call of something that is no name")
        first, second = (*arguments[:2], None, None)[:2]
        if called == _RECONSTRUCT and isinstance(first, _Name) and first == _NDARRAY:
            return self.push(_Array())
        if called == _DTYPE and type(first) is str and first in _DTYPES:
            return self.push(_Dtype(first))
        if called == _ENCODE and type(first) is str and type(second) is str and second in _LATIN:
            return self.push(first.encode("latin-1"))
        kinds = ", ".join(type(value).__name__ for value in arguments[:3])
        raise self.wrong(f"an array of another kind ({called} of {kinds})")

    def build(self, state: object, target: object) -> None:
        if isinstance(target, _Dtype) and isinstance(state, tuple) and state[1] in ("|", "<", ">"):
            target.order = state[1]
        elif isinstance(target, _Array) and isinstance(state, tuple) and len(state) == 5:
            _, shape, dtype, by_column, raw = state
            content = raw.encode("latin-1") if isinstance(raw, str) else raw
            if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
                raise self.wrong("an array of another kind than integers")
            if not isinstance(shape, tuple) or any(type(side) is not int for side in shape):
                raise self.wrong("an array whose shape is no integers")
            # A single byte has no order.
            values = np.frombuffer(content, dtype.order.replace("|", "=") + dtype.code)
            target.value = values.reshape(shape, order="F" if by_column else "C")
        else:
            raise self.wrong("a state of something that is no array")

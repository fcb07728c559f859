"""CIFAR's pickled batches, read without `pickle`: an interpreter of the few opcodes that a batch needs.

Nothing that a file refers to is imported or called: a reference is compared with the few that an array needs.
No container is printed, hashed or iterated over: a few bytes can make one of 2⁶⁰ values, by nested pairs.
"""

import pickletools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refiner.errors import DataError
from refiner.files import file_error

# A batch is one dict of a few lists and arrays. More containers could only be nested.
_MAX_CONTAINERS = 64
_MAX_VALUES = 200_000  # on the stack; twice as many in the memo: CIFAR-100 has 50,000 file names
_MAX_STEPS = 2_000_000
_DTYPES = ("u1", "i1", "i2", "i4", "i8")
_LATIN_NAMES = ("latin1", "latin-1")

_RECONSTRUCT, _NDARRAY, _DTYPE, _ENCODE = "reconstruct", "ndarray", "dtype", "encode"
_REFERENCES = {
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


class _Reference(str):
    """One of the few functions and classes that a batch may refer to."""


class _Dtype:
    def __init__(self, code: str) -> None:
        self.code, self.order = code, "|"


class _Array:
    value: NDArray[Any] | None = None


class _Mark:
    pass


def read_pickled_batch(content: bytes, name: str) -> Mapping[str, Any]:
    """The dict of a pickled batch: arrays of integers, lists and strings; `name` is used in errors.

    >>> import os, pickle
    >>> read_pickled_batch(pickle.dumps({"labels": [6, 9]}), "data_batch_1")
    {'labels': [6, 9]}
    >>> class Hostile:
    ...     def __reduce__(self):
    ...         return os.system, ("echo hello",)
    >>> read_pickled_batch(pickle.dumps(Hostile()), "data_batch_1")
    Traceback (most recent call last):
    refiner.errors.DataError: data_batch_1: refers to posix.system, which is not part of a batch; nothing was
    executed
    """
    interpreter = _Interpreter(name)
    try:
        with warnings.catch_warnings():
            # A text with a doubtful escape sequence is no more than a wrong text.
            warnings.simplefilter("ignore", DeprecationWarning)
            for step, (opcode, argument, _) in enumerate(pickletools.genops(content)):
                if step >= _MAX_STEPS:
                    raise interpreter.error(f"more than {_MAX_STEPS:,} steps")
                interpreter.execute(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeError) as error:
        if isinstance(error, DataError):
            raise
        raise file_error(
            name,
            f"not a complete batch ({' '.join(str(error).split()) or 'empty'})",
            "a batch: a dict of arrays and lists",
        ) from error
    if not isinstance(interpreter.result, dict):
        raise interpreter.error(f"a {type(interpreter.result).__name__} outside a dict")
    return {_text(key): _plain(value, interpreter) for key, value in interpreter.result.items()}


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _plain(value: object, interpreter: "_Interpreter") -> object:
    if isinstance(value, _Array):
        if value.value is None:
            raise interpreter.error("an array without content")
        return value.value
    if isinstance(value, _Reference | _Dtype):
        raise interpreter.error("a reference in place of a value")
    return value


class _Interpreter:
    """The stack and the memo of a pickle, and a function for each opcode."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.containers = 0
        self.result: object = None
        pop, pop_to_mark = self.stack.pop, self.pop_to_mark
        self.operations: dict[str, Callable[[Any], None]] = {
            "PROTO": lambda _: None,
            "FRAME": lambda _: None,
            "NONE": lambda _: self.push(None),
            "NEWTRUE": lambda _: self.push(True),
            "NEWFALSE": lambda _: self.push(False),
            **dict.fromkeys(_LITERALS, self.push),
            "MARK": lambda _: self.push(_Mark()),
            "EMPTY_DICT": lambda _: self.push_container({}),
            "EMPTY_LIST": lambda _: self.push_container([]),
            "EMPTY_TUPLE": lambda _: self.push_container(()),
            "TUPLE": lambda _: self.push_container(tuple(pop_to_mark())),
            "TUPLE1": lambda _: self.push_container((pop(),)),
            "TUPLE2": lambda _: self.push_container((pop(), pop())[::-1]),
            "TUPLE3": lambda _: self.push_container((pop(), pop(), pop())[::-1]),
            "BINPUT": self.memoize,
            "LONG_BINPUT": self.memoize,
            "MEMOIZE": lambda _: self.memoize(len(self.memo)),
            "BINGET": lambda place: self.push(self.memo[place]),
            "LONG_BINGET": lambda place: self.push(self.memo[place]),
            "APPEND": lambda _: self.append([pop()]),
            "APPENDS": lambda _: self.append(pop_to_mark()),
            "SETITEM": lambda _: self.set_items([pop(), pop()][::-1]),
            "SETITEMS": lambda _: self.set_items(pop_to_mark()),
            "GLOBAL": lambda reference: self.push_reference(*reference.split(" ", 1)),
            "STACK_GLOBAL": lambda _: self.push_reference(*[pop(), pop()][::-1]),
            "REDUCE": lambda _: self.call(*(pop(), pop())[::-1]),
            "BUILD": lambda _: self.build(pop(), self.stack[-1]),
            "STOP": lambda _: self.finish(pop()),
        }

    def error(self, content: str) -> DataError:
        return file_error(
            self.name,
            f"contains {content}, expected a batch: a dict of arrays and lists",
            "a batch: a dict of arrays and lists",
        )

    def execute(self, code: str, argument: Any) -> None:
        if code not in self.operations:
            raise self.error(f"the pickle opcode {code}")
        self.operations[code](argument)

    def finish(self, value: object) -> None:
        self.result = value

    def push(self, value: object) -> None:
        if len(self.stack) >= _MAX_VALUES:
            raise self.error(f"more than {_MAX_VALUES:,} values at once")
        self.stack.append(value)

    def push_container(self, value: object) -> None:
        self.containers += 1
        if self.containers > _MAX_CONTAINERS:
            raise self.error(f"more than {_MAX_CONTAINERS} lists, tuples and dicts")
        self.push(value)

    def memoize(self, place: int) -> None:
        if not 0 <= place < _MAX_VALUES * 2 or len(self.memo) >= _MAX_VALUES * 2:
            raise self.error(f"a memo of more than {_MAX_VALUES * 2:,} values")
        self.memo[place] = self.stack[-1]

    def pop_to_mark(self) -> list[Any]:
        values: list[Any] = []
        while not isinstance(value := self.stack.pop(), _Mark):
            values.append(value)
        return values[::-1]

    def append(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list) or any(isinstance(value, list | dict | tuple) for value in values):
            raise self.error("a list within a list")
        target.extend(values)

    def set_items(self, pairs: list[Any]) -> None:
        target = self.stack[-1]
        keys, values = pairs[::2], pairs[1::2]
        if not isinstance(target, dict) or any(isinstance(value, dict | tuple) for value in values):
            raise self.error("a dict within a dict")
        for key in keys:
            if type(key) not in (str, bytes):
                raise self.error(f"a {type(key).__name__} as a key")
        target.update(zip(keys, values, strict=True))

    def push_reference(self, module: object, attribute: object) -> None:
        if not isinstance(module, str) or not isinstance(attribute, str):
            value = attribute if isinstance(module, str) else module
            raise self.error(f"a {type(value).__name__} in place of a name")
        reference = _REFERENCES.get((module, attribute))
        if reference is None:
            name = f"{module}.{attribute}"[:80]
            raise file_error(
                self.name,
                f"refers to {name}, which is not part of a batch; nothing was executed",
                "a batch: a dict of arrays and lists",
            )
        self.push(_Reference(reference))

    def call(self, function: object, arguments: object) -> None:
        if not isinstance(function, _Reference) or not isinstance(arguments, tuple):
            raise self.error("a call of something that is not a known function")
        first, second = (*arguments[:2], None, None)[:2]
        if function == _RECONSTRUCT and isinstance(first, _Reference) and first == _NDARRAY:
            return self.push(_Array())
        if function == _DTYPE and type(first) is str and first in _DTYPES:
            return self.push(_Dtype(first))
        if function == _ENCODE and type(first) is str and type(second) is str and second in _LATIN_NAMES:
            return self.push(first.encode("latin-1"))
        kinds = ", ".join(type(value).__name__ for value in arguments[:3])
        raise self.error(f"an array of another kind ({function} of {kinds})")

    def build(self, state: object, target: object) -> None:
        if isinstance(target, _Dtype) and isinstance(state, tuple) and state[1] in ("|", "<", ">"):
            target.order = state[1]
        elif isinstance(target, _Array) and isinstance(state, tuple) and len(state) == 5:
            _, shape, dtype, by_column, data = state
            content = data.encode("latin-1") if isinstance(data, str) else data
            if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
                raise self.error("an array of another kind than integers")
            if not isinstance(shape, tuple) or any(type(side) is not int for side in shape):
                raise self.error("an array whose shape is not of integers")
            # A single byte has no byte order.
            values = np.frombuffer(content, dtype.order.replace("|", "=") + dtype.code)
            target.value = values.reshape(shape, order="F" if by_column else "C")
        else:
            raise self.error("a state for something that is not an array")

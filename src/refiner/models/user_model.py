"""A model of the user's own code: `package.module:factory` or `path/to/file.py:factory`."""

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from torch import nn

from refiner.errors import DataError, RefinerError
from refiner.registry import one_line

_CLASSES = ("classes", "num_classes")
_FEATURES = ("features", "in_features")
_SIZE = ("size", "image_size", "img_size")


def is_factory(text: str) -> bool:
    """Whether `text` has the form `package.module:factory` or `path/to/file.py:factory`.

    >>> [is_factory(text) for text in ("nets.small:make", "nets/small.py:Net", "resnet18:norm=batch")]
    [True, True, False]
    """
    return ":" in text and "=" not in text.rpartition(":")[2]


def make_user_model(
    text: str, classes: int, input_shape: Sequence[int], *, classes_given: bool = False
) -> nn.Module:
    """Import the user's code and call its factory.

    The factory is called with those of these arguments that its signature names: `classes` or `num_classes`;
    `input_shape`; `size`, `image_size` or `img_size`, the height of an image, or `features` or `in_features`,
    the length of a row. While it runs, modules beside the file, or in the current folder, can be imported.

    Args:
        text: `package.module:factory` or `path/to/file.py:factory`. **It is run as code**: it must come from
            the user, never from another machine.
        classes: Number of classes.
        input_shape: Shape `(channels, height, width)` of one image, or `(features,)` of a row.
        classes_given: Whether the user chose `classes`. A factory that names neither of them but takes any
            keyword, as torchvision's do, then gets `num_classes`.

    Returns:
        The model.

    Raises:
        DataError: There is no such file, module or attribute, or the factory fails or returns no module.

    >>> make_user_model("torch.nn:Identity", 10, (3, 32, 32))
    Identity()
    >>> make_user_model("absent.py:make", 10, (3, 32, 32))
    Traceback (most recent call last):
    refiner.errors.DataError: model = 'absent.py:make': no such file: absent.py
    """
    source, _, name = text.rpartition(":")
    if not source or not name:
        raise _error(text, "expected package.module:factory or path/to/file.py:factory")
    path = Path(source).expanduser() if source.endswith(".py") else None
    if path is not None and not path.is_file():
        raise _error(text, f"no such file: {source}")
    with _import_folder(Path.cwd() if path is None else path.parent.resolve()):
        module = _import_module(text, source) if path is None else _import_file(text, path)
        factory = _find_factory(text, module, name, source)
        try:
            model: object = factory(**_arguments(factory, classes, input_shape, classes_given))
        except RefinerError:
            raise
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise _error(text, f"{name} fails ({one_line(error)})") from error
    if not isinstance(model, nn.Module):
        raise _error(text, f"{name} returned {_kind(model)}, expected a torch.nn.Module")
    return model


@contextmanager
def _import_folder(folder: Path) -> Iterator[None]:
    """Inside the block the modules in `folder` can be imported, as in a script that lies there."""
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _import_module(text: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only if it is this module, or a package around it: a module that it imports may be missing as well.
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            hint = f"; is it the file {name}.py:…?" if Path(f"{name}.py").is_file() else ""
            raise _error(text, f"no such module: {error.name}{hint}") from error
        raise _error(text, f"{name} can't be imported ({one_line(error)})") from error
    except (Exception, SystemExit) as error:
        raise _error(text, f"{name} can't be imported ({one_line(error)})") from error


def _import_file(text: str, path: Path) -> ModuleType:
    resolved = os.fspath(path.resolve())
    # Its own name, so that `json.py` does not replace the module json.
    name = f"refiner_user_model_{sha256(resolved.encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, resolved)
    if spec is None or spec.loader is None:
        raise _error(text, f"{path} can't be imported")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickling look a module up here.
    sys.modules[name] = module
    try:
        # Not by the loader: it would take compiled code from before a change within the same second.
        exec(compile(path.read_bytes(), resolved, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _error(text, f"{path} can't be imported ({one_line(error)})") from error
    return module


def _find_factory(text: str, module: ModuleType, name: str, source: str) -> Callable[..., object]:
    try:
        factory: object = reduce(getattr, name.split("."), module)
    except AttributeError:
        raise _error(text, f"{source} has no attribute {name}") from None
    if isinstance(factory, nn.Module) or not callable(factory):
        raise _error(text, f"{name} is {_kind(factory)}, expected a function or class that makes a model")
    return factory


def _arguments(
    factory: Callable[..., object], classes: int, input_shape: Sequence[int], classes_given: bool
) -> dict[str, object]:
    try:
        known = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return {}
    values: dict[str, object] = dict.fromkeys(_CLASSES, classes)
    values |= {"input_shape": tuple(input_shape)}
    is_row = len(input_shape) == 1
    values |= dict.fromkeys(_FEATURES, input_shape[0]) if is_row else dict.fromkeys(_SIZE, input_shape[1])
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = {key: value for key, value in values.items() if key in known and known[key].kind in by_name}
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values())
    if classes_given and takes_any and found.keys().isdisjoint(_CLASSES):
        found["num_classes"] = classes
    return found


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _error(text: str, problem: str) -> DataError:
    expected = "package.module:factory or path/to/file.py:factory"
    return DataError(field="model", value=text, problem=problem, expected=expected)

"""Registries: defences, attacks and models by name, with third-party ones from entry points.

`make_by_name` builds from text: `NAME` or `NAME:setting=value,setting=value`.
"""

import inspect
import re
import traceback
import warnings
from ast import literal_eval
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from refiner.checks import unknown_name
from refiner.errors import DataError, PluginWarning

T = TypeVar("T")
_LITERALS = {"true": True, "false": False, "none": None}


class Registry(Mapping[str, Callable[..., T]], Generic[T]):
    """Factories by name: the built-in ones, then those that installed packages declare as entry points.

    Entry points are loaded the first time that a name is not built in or all names are asked for. One that
    can't be loaded or used is skipped with a `PluginWarning` that names it.

    Args:
        group: The entry-point group, such as `refiner.defenses`.
        builtin: The project's own factories by name.
        check: Raises if a third-party factory can't be used; its message becomes part of the warning.

    >>> registry = Registry("refiner.examples", {"list": list}, check=lambda factory: None)
    >>> registry["list"]()
    []
    >>> "tuple" in registry
    False
    """

    def __init__(
        self, group: str, builtin: Mapping[str, Callable[..., T]], check: Callable[[Callable[..., T]], None]
    ) -> None:
        self.group = group
        self._builtin = dict(builtin)
        self._check = check
        self._plugins: dict[str, Callable[..., T]] | None = None

    def __getitem__(self, name: str) -> Callable[..., T]:
        if name in self._builtin:
            return self._builtin[name]
        return self.plugins()[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._builtin
        yield from self.plugins()

    def __len__(self) -> int:
        return len(self._builtin) + len(self.plugins())

    def builtin_names(self) -> list[str]:
        """Return the names of the project's own factories; no plug-in is loaded for that."""
        return list(self._builtin)

    def plugins(self) -> dict[str, Callable[..., T]]:
        """Return the third-party factories by name, loaded once in a process."""
        if self._plugins is None:
            self._plugins = {}
            for entry in sorted(entry_points(group=self.group), key=lambda entry: entry.name):
                factory = self._load(entry)
                if factory is not None:
                    self._plugins[entry.name] = factory
        return self._plugins

    def find_plugin(self, error: BaseException) -> str | None:
        """Return the name of the loaded plug-in in whose code `error` was raised, or None.

        Args:
            error: A caught error.

        Returns:
            The name of the innermost plug-in in the traceback: by its class or function, otherwise by its
            package.
        """
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]
        places = [(str(f.f_globals.get("__name__")), f.f_code.co_qualname.partition(".")[0]) for f in frames]
        factories = {
            name: (factory.__module__, getattr(factory, "__qualname__", "").partition(".")[0])
            for name, factory in (self._plugins or {}).items()
        }
        for place in places:
            for name, definition in factories.items():
                if place == definition:
                    return name
        packages = [module.partition(".")[0] for module, _ in places]
        return next((n for n, (module, _) in factories.items() if module.partition(".")[0] in packages), None)

    def _load(self, entry: EntryPoint) -> Callable[..., T] | None:
        try:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", entry.name):
                raise ValueError("its name is not made of letters, digits, '_', '.' and '-'")
            if entry.name in self:
                raise ValueError("its name is taken")
            factory: Callable[..., T] = entry.load()
            self._check(factory)
        except Exception as error:  # third-party code may raise anything, and must not stop the others
            reason = one_line(error)
            origin = entry.dist.name if entry.dist is not None else entry.value
            warnings.warn(
                f"{self.group}: plug-in {entry.name!r} of {origin} is skipped ({reason})",
                PluginWarning,
                stacklevel=4,
            )
            return None
        return factory


def one_line(error: BaseException) -> str:
    """Return the type and the text of an error on one line of at most 200 characters.

    Args:
        error: Any error.

    Returns:
        The line.

    >>> one_line(ValueError("two\\nlines"))
    'ValueError: two lines'
    """
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def check_settings_class(base: type) -> Callable[[Callable[..., object]], None]:
    """Return a `Registry` check: the factory is a dataclass derived from `base`, or a class method of one.

    Args:
        base: The base class, `Defense` or `Attack`.

    Returns:
        A function that raises `TypeError` for another factory, and whatever the factory raises if it can't
        be called without arguments.

    >>> from refiner.defenses import Defense, Pruning
    >>> check_settings_class(Defense)(Pruning)
    >>> check_settings_class(Defense)(dict)
    Traceback (most recent call last):
    TypeError: expected a dataclass derived from Defense, got dict
    """

    def check(factory: Callable[..., object]) -> None:
        kind = dataclass_of(factory)
        if not (isinstance(kind, type) and issubclass(kind, base) and is_dataclass(kind)):
            raise TypeError(
                f"expected a dataclass derived from {base.__name__}, got {getattr(kind, '__name__', kind)}"
            )
        example = factory()
        if not isinstance(example, base):
            raise TypeError(f"expected a {base.__name__}")
        if not isinstance(getattr(example, "name", None), str):
            raise TypeError("expected a class attribute name")

    return check


def make_by_name(registry: Mapping[str, Callable[..., T]], field: str, text: str, **settings: object) -> T:
    """Build what `text` names, `NAME` or `NAME:setting=value,…`, from a registry of dataclasses.

    Args:
        registry: Factories by name.
        field: What the name is called in an error, such as "defense".
        text: The name, with settings that take precedence over `settings`.
        settings: Further settings.

    Returns:
        What the factory of that name returns.

    Raises:
        DataError: If the name or a setting is unknown, or the text is malformed.

    >>> from refiner.core.optim import Adam
    >>> make_by_name({"adam": Adam}, "optimizer", "adam:lr=0.5,eps=1e-3")
    Adam(lr=0.5, betas=(0.9, 0.999), eps=0.001)
    >>> make_by_name({"adam": Adam}, "optimizer", "adam:rate=1")
    Traceback (most recent call last):
    refiner.errors.DataError: setting of adam = 'rate': unknown... Known: lr, betas, eps
    """
    name, written = parse_settings(field, text)
    if name not in registry:
        raise unknown_name(name, registry, field)
    known = _setting_names(registry[name])
    for key in (*settings, *written):
        if key not in known:
            raise unknown_name(key, known, f"setting of {name}")
    return registry[name](**{**settings, **written})


def parse_settings(field: str, text: str) -> tuple[str, dict[str, object]]:
    """Return the name and the settings in `NAME` or `NAME:setting=value,…`.

    Args:
        field: What the name is called in an error, such as "defense".
        text: The name with its settings.

    Returns:
        The name, and the values by setting.

    Raises:
        DataError: If the text is malformed.

    >>> parse_settings("model", "resnet18:norm=batch,groups=4")
    ('resnet18', {'norm': 'batch', 'groups': 4})
    """
    name, _, rest = text.partition(":")
    settings: dict[str, object] = {}
    for assignment in _split_at_commas(rest):
        key, value = _parse_assignment(assignment, field, text)
        if key in settings:
            raise DataError(field=field, value=text, problem=f"{key} is set twice")
        settings[key] = value
    return name, settings


def parse_chain(names: Collection[str], text: str) -> list[str]:
    """Return the links of a chain `NAME:setting=value+NAME…`; a plus separates if one of `names` follows it.

    Args:
        names: The known names.
        text: The chain.

    Returns:
        The text of each link.

    >>> parse_chain(["pruning", "gq"], "pruning:rate=8e-1,floor=1e+2+gq:bits=8")
    ['pruning:rate=8e-1,floor=1e+2', 'gq:bits=8']
    >>> parse_chain(["pruning", "gq"], "pruning+qg:bits=8")
    ['pruning', 'qg:bits=8']
    """
    if "+" not in text:
        return [text]
    known = "|".join(re.escape(name) for name in names)
    links = []
    for link in re.split(rf"\+(?=(?:{known})(?:[:+]|$))", text):
        # Before the first setting there is no value that a plus could belong to, so it separates names.
        head, colon, rest = link.partition(":")
        *before, last = head.split("+")
        links += [*before, last + colon + rest]
    return links


def dataclass_of(factory: Callable[..., object]) -> type:
    """Return the dataclass that `factory` is, or whose class method it is.

    Args:
        factory: A factory of a registry.

    Returns:
        The class.

    >>> from refiner.defenses import Refiner
    >>> dataclass_of(Refiner.paper).__name__
    'Refiner'
    """
    kind: type = factory if inspect.isclass(factory) else getattr(factory, "__self__", type(factory))
    return kind


def _split_at_commas(text: str) -> list[str]:
    """The pieces of `text` between commas that are not inside brackets."""
    pieces, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            pieces.append("")
        else:
            pieces[-1] += letter
    return [piece for piece in pieces if piece]


def _parse_assignment(assignment: str, field: str, text: str) -> tuple[str, object]:
    key, equals, value = assignment.partition("=")
    if not equals or not key or not value:
        raise DataError(field=field, value=text, expected="NAME:setting=value,setting=value")
    if value.lower() in _LITERALS:
        return key.strip(), _LITERALS[value.lower()]
    try:
        return key.strip(), literal_eval(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return key.strip(), value


def _setting_names(factory: Callable[..., object]) -> list[str]:
    return [f.name for f in fields(dataclass_of(factory)) if f.init]

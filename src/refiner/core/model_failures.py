"""Why a model can't be differentiated twice for a batch of victims, in the words of its author."""

import linecache
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch

_MAX_LENGTH = 200
_VALUES = "its forward pass depends on the values of a tensor, by an if, .item(), float() or the like"
_SHAPES = "its forward pass selects by the values of a tensor, so that a shape depends on them"
_CHECKPOINT = "its forward pass uses activation checkpointing (torch.utils.checkpoint)"
_RANDOM = "its forward pass draws random numbers in evaluation mode"
# Parts of PyTorch's messages (2.6 to 2.13), what the model does, and what to do instead.
_CAUSES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("saved tensor hooks",), _CHECKPOINT, "turn checkpointing off"),
    (
        ("data-dependent control flow", "calling .item()", "Cannot access data pointer"),
        _VALUES,
        "compute all cases and choose with torch.where, and keep numbers in tensors",
    ),
    (("dynamic shape",), _SHAPES, "use torch.where, or multiply by the mask"),
    (("randomness error mode",), _RANDOM, "draw them only if self.training"),
)
_IN_PLACE = ("in-place operation", "inplace operation")
_PACKAGES = (Path(torch.__file__).parent, Path(__file__).parents[1])


@dataclass(frozen=True)
class Failure:
    """Why a module fails."""

    reason: str
    cause: str = ""
    """What in the code is the cause, to compare failures by; empty if it is not known."""
    remedy: str | None = None


def explain_failure(error: Exception) -> Failure:
    """The cause of an error in a forward pass, with the line of the user's code if there is one.

    >>> failure = explain_failure(RuntimeError("vmap: It looks like you're calling .item() on a Tensor."))
    >>> failure.remedy
    'compute all cases and choose with torch.where, and keep numbers in tensors'
    """
    message = str(error)
    frames = traceback.extract_tb(error.__traceback__)
    if any(Path(frame.filename).parts[-3:] == ("torch", "utils", "checkpoint.py") for frame in frames):
        return Failure(f"{_CHECKPOINT}{_user_line(error)}", _CHECKPOINT, "turn checkpointing off")
    if isinstance(error, RuntimeError):
        for parts, cause, remedy in _CAUSES:
            if any(part in message for part in parts):
                return Failure(f"{cause}{_user_line(error)}", cause, remedy)
        if any(part in message for part in _IN_PLACE):
            return Failure(summarise_error(error), "in-place")
    return Failure(summarise_error(error))


def _user_line(error: Exception) -> str:
    """The innermost line outside of PyTorch and this library, in parentheses."""
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = Path(frame.f_code.co_filename)
        if any(package in file.parents for package in _PACKAGES):
            continue
        line = " ".join(linecache.getline(str(file), number, frame.f_globals).split())
        return f" ({file.name}, line {number}{f': {line[:80]}' if line else ''})"
    return ""


def summarise_error(error: Exception) -> str:
    """The first sentence of an error's message, shortened; with its type unless it is a RuntimeError.

    >>> summarise_error(KeyError("pixels")), summarise_error(RuntimeError("too large. Try less."))
    ("KeyError: 'pixels'", 'too large')
    """
    lines = str(error).strip().splitlines()
    sentence = lines[0].split(". ")[0].rstrip(".") if lines else ""
    if len(sentence) > _MAX_LENGTH:
        sentence = sentence[: _MAX_LENGTH - 3] + "..."
    if not sentence or isinstance(error, RuntimeError):
        return sentence or type(error).__name__
    return f"{type(error).__name__}: {sentence}"

"""Arguments of audits that are a pair of tensors, such as samples and their labels."""

from torch import Tensor

from refiner.errors import DataError


def checked_pair(
    field: str, value: object, expected: str, *, integers: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the two tensors of an argument.

    Args:
        field: The argument, for the error.
        value: What the user gave.
        expected: What the two tensors should be, for the error.
        integers: Whether both must have an integer type.

    Raises:
        DataError: It is something else than a pair of such tensors.

    >>> checked_pair("non_members", None, "a pair of tensors")
    Traceback (most recent call last):
    refiner.errors.DataError: non_members = None: expected a pair of tensors
    """
    match value:
        case (Tensor() as first, Tensor() as second):
            if not integers or not (first.is_floating_point() or second.is_floating_point()):
                return first, second
            shown = f"{first.dtype} and {second.dtype}".replace("torch.", "")
        case tuple() | list():
            shown = " and ".join(type(part).__name__ for part in value)
        case None:
            raise DataError(field=field, value=None, expected=expected)
        case _:
            shown = type(value).__name__
    raise DataError(field=field, value=shown, expected=expected)

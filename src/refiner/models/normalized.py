"""A model that normalises its inputs itself, so that everything outside of it sees images in 0..1."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from refiner import checks
from refiner.core.input_range import InputRange, check_input_range
from refiner.errors import DataError, SettingError


class Normalized(nn.Module):
    """`model((x − mean) / std)`: for a model that was trained on normalised images.

    Defences and attacks work on images in 0..1. With the normalisation inside of the model they can, and the
    gradient with respect to the model's parameters is the one on normalised images.

    Args:
        model: The model.
        mean: The mean of each channel, or one number for all channels.
        std: The standard deviation of each channel, or one number for all channels.

    Raises:
        SettingError: A mean is not finite, a standard deviation is not above 0, or their numbers differ.

    >>> model = Normalized(nn.Flatten(), mean=[0.5], std=[0.25])
    >>> model(torch.ones(1, 1, 1, 2))
    tensor([[2., 2.]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise checks.wrong("model", type(model).__name__, "a torch.nn.Module")
        means = _numbers("mean", mean, low=-1e6, above=False)
        stds = _numbers("std", std, low=0, above=True)
        if len(means) != len(stds) and 1 not in (len(means), len(stds)):
            raise SettingError(
                field="std",
                value=tuple(stds),
                expected=f"{len(means)} numbers, as many as in mean",
            )
        self.model = model
        like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
        for name, values in (("mean", means), ("std", stds)):
            tensor = torch.tensor(values, dtype=like.dtype, device=like.device).view(-1, 1, 1)
            self.register_buffer(name, tensor)

    @classmethod
    def from_range(cls, model: nn.Module, input_range: InputRange) -> "Normalized":
        """Return a model for images in 0..1 that maps them to the range which `model` expects.

        Args:
            model: The model.
            input_range: `(low, high)`, or `((l1, l2, l3), (h1, h2, h3))` for three channels.

        Returns:
            The model; `refiner.core.input_range.to_unit_range` maps inputs of `model` to its inputs.

        Raises:
            SettingError: `input_range` is no range.

        >>> model = Normalized.from_range(nn.Flatten(), ((-1.0, 0.0), (1.0, 4.0)))
        >>> model(torch.tensor([[[[0.5]], [[0.25]]]]))
        tensor([[0., 1.]])
        """
        lows, highs = (
            part if isinstance(part, tuple) else (part,) for part in check_input_range(input_range)
        )
        widths = [high - low for low, high in zip(lows, highs, strict=True)]
        means = [-low / width for low, width in zip(lows, widths, strict=True)]
        return cls(model, means, [1 / width for width in widths])

    def forward(self, x: Tensor) -> object:
        """What the model returns for the normalised images.

        Args:
            x: Images `[B, C, H, W]` in 0..1.

        Returns:
            The model's output.

        Raises:
            DataError: `x` has another number of channels than `mean` and `std`.
        """
        channels = max(len(self.mean), len(self.std))
        if x.ndim < 3 or channels not in (1, x.shape[-3]):
            raise DataError(
                field="mean",
                value=tuple(self.mean.flatten().tolist()),
                problem=f"has {channels} numbers, but the inputs have the shape {list(x.shape[1:])}",
                expected="a number for each channel",
            )
        return self.model((x - self.mean) / self.std)


def normalized_range(mean: Sequence[float], std: Sequence[float]) -> InputRange:
    """The range of every channel of images in 0..1 after their normalisation, as `Refiner(input_range=…)`.

    Args:
        mean: The mean of each channel.
        std: The standard deviation of each channel.

    Returns:
        The lows and the highs of the channels.

    Raises:
        SettingError: A mean is not finite, a standard deviation is not above 0, or their numbers differ.

    >>> normalized_range([0.5, 0.5], [0.25, 0.5])
    ((-2.0, -1.0), (2.0, 1.0))
    """
    means, stds = _numbers("mean", mean, low=-1e6, above=False), _numbers("std", std, low=0, above=True)
    if len(means) != len(stds):
        raise checks.wrong("std", tuple(stds), f"{len(means)} numbers, as many as in mean")
    pairs = list(zip(means, stds, strict=True))
    return tuple(-m / s for m, s in pairs), tuple((1 - m) / s for m, s in pairs)


def model_name(model: nn.Module) -> str:
    """The name of a model's class, for a report.

    >>> model_name(nn.ReLU()), model_name(Normalized(nn.ReLU(), [0.5], [0.5]))
    ('ReLU', 'ReLU on normalised inputs')
    """
    if isinstance(model, Normalized):
        return f"{model_name(model.model)} on normalised inputs"
    name = getattr(model, "display_name", None)
    return name if isinstance(name, str) else type(model).__name__


def _numbers(field: str, values: object, low: float, above: bool) -> list[float]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise checks.wrong(field, values, "a list of numbers, one for each channel")
    return [checks.number(field, value, low, 1e6, above=above) for value in values]

"""What Refiner checks of a batch beside its values: its state, and that copies of an image share noise."""

import warnings

from refiner.defenses.batch import Batch
from refiner.defenses.refine.refiner_settings import RefinerSettings
from refiner.defenses.state import DefenseState
from refiner.errors import DataError, SettingError

# Natural noise of strength 1 has a standard deviation of a quarter; crops may be padded.
_LEAST_NOISE = 0.03


def check_state(settings: RefinerSettings, batch: Batch, *, expected: type[DefenseState]) -> None:
    """Raise if settings that remember something have no state of the `expected` type to do it in."""
    searches = settings.searches(batch.x.shape[1])
    remembering = {
        "warm_start": settings.warm_start,
        "search_budget": settings.search_budget is not None and searches,
        "error_feedback": settings.error_feedback and searches,
    }
    setting = next((name for name, remembers in remembering.items() if remembers), None)
    if setting and not batch.noise.seeded and not isinstance(batch.state, expected):
        raise SettingError(
            f"state = {type(batch.state).__name__}: {setting} = {getattr(settings, setting)} needs a state; "
            "make it once with state = defense.init_state() and pass state=state to every call",
            field="state",
            expected="the result of init_state()",
        )


def check_copies(settings: RefinerSettings, batch: Batch, contents: dict[int, int]) -> None:
    """Raise if given inputs carry almost no noise; warn if copies of an image get noise of their own.

    `contents` holds the content of every sample that came with an id, and is updated.
    """
    low, high = settings.limits()
    if batch.noisy is not None:
        change = ((batch.noisy - batch.x) / (high - low)).flatten(2).square().mean(2).sqrt()
        if bool((change < _LEAST_NOISE * settings.alpha).any()):
            raise DataError("noisy: too little noise; expected x and its noise", field="noisy")
    elif batch.ids is not None and batch.clients is None and not batch.noise.seeded:
        current = batch.noise.identify(batch.x, 2, low, high).flatten().tolist()
        for sample, content in zip(batch.ids.flatten().tolist(), current, strict=True):
            if contents.setdefault(sample, content) != content:
                warnings.warn(
                    "ids: a sample came with another content; augmented copies get noise of their own, "
                    "which averages out: use refiner.NoisyDataset and pass noisy=",
                    stacklevel=2,
                )

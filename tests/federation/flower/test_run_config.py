"""The configuration of a run: unknown keys and values out of range raise."""

import pytest

from refiner.errors import DataError, RefinerError
from refiner.federation.flower.run_config import RunConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("out", "here"),
        ("deadline", 0.0),
        ("min_train_nodes", 0),
        ("initial_nodes", 3),
        ("node_timeout", -1.0),
        ("sampled", 9),
    ],
)
def test_a_value_out_of_range_raises(field: str, value: object) -> None:
    with pytest.raises(RefinerError, match=f"^{field} = ") as caught:
        RunConfig(**{"out": "/srv", field: value})  # type: ignore[arg-type]
    assert (caught.value.field, caught.value.value) == (field, value)


def test_a_seed_in_the_configuration_raises() -> None:
    with pytest.raises(DataError, match="run-config = 'seed': unknown"):
        RunConfig.read({"out": "/srv", "seed": 1})

"""The weights of the model under audit, read from a file."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import nn

from refiner.errors import DataError


def load_model_weights(model: nn.Module, path: Path) -> None:
    """Load the weights of a safetensors file into `model`; names and shapes must match exactly.

    >>> load_model_weights(nn.Linear(1, 1), Path("absent.safetensors"))
    Traceback (most recent call last):
    refiner.errors.DataError: weights = 'absent.safetensors': no such file
    """

    def mismatch(problem: str) -> DataError:
        return DataError(field="weights", value=str(path), problem=problem)

    if not path.is_file():
        raise mismatch("no such file")
    try:
        with safe_open(path, framework="pt") as file:
            weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:160]
        raise mismatch(f"not a safetensors file ({reason})") from error
    architecture, parameters = type(model).__name__, model.state_dict()
    for key, parameter in parameters.items():
        if key not in weights:
            raise mismatch(f"has no tensor {key}, which {architecture} needs")
        tensor = weights[key]
        same_kind = tensor.is_floating_point() == parameter.is_floating_point()
        if tensor.shape != parameter.shape or not same_kind:
            raise mismatch(
                f"{key} is {tensor.dtype} {list(tensor.shape)}, "
                f"expected {parameter.dtype} {list(parameter.shape)} for {architecture}"
            )
    extra = next((key for key in weights if key not in parameters), None)
    if extra is not None:
        raise mismatch(f"has a tensor {extra}, which {architecture} does not have")
    model.load_state_dict(weights)

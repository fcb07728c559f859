"""How many victims fit into memory at a time."""

import torch

from refiner.attacks.observation import Observation

# The peak memory of a second-order step for one victim, in copies of the model's activations and parameters;
# measured for LeNet and ResNet18 on a GPU, and rounded up.
_ACTIVATION_COPIES, _PARAMETER_COPIES = 40, 12
_CPU_BYTES = 2**31
_MAX_VICTIMS = 4096


def victims_per_chunk(observation: Observation, guesses: int, history: int) -> int:
    """Return how many victims fit into half of a GPU's free memory, or into 2 GiB on a CPU.

    `guesses` is the number of restarts × uploads of each victim, `history` the number of images that the
    optimizer stores for each guess.
    """
    task = observation.task
    sizes: list[int] = []
    # Activation sizes are measured with hooks in one forward pass on zeros.
    parameter = next(iter(observation.parameters.values()))
    x = parameter.new_zeros(2, *task.input_shape)
    handles = [
        module.register_forward_hook(
            lambda _module, _inputs, out: sizes.append(out.numel() if torch.is_tensor(out) else 0)
        )
        for module in task.modules()
    ]
    try:
        with torch.no_grad():
            task.scores(observation.parameters, x)
    finally:
        for handle in handles:
            handle.remove()
    activations = max(sum(sizes) / 2, x[0].numel()) * observation.samples
    images = history * x[0].numel() * observation.samples
    values = guesses * (_ACTIVATION_COPIES * activations + _PARAMETER_COPIES * task.size + images)
    bytes_per_victim = parameter.element_size() * values
    free = torch.cuda.mem_get_info(parameter.device)[0] / 2 if parameter.is_cuda else _CPU_BYTES
    return max(1, min(int(free / bytes_per_victim), _MAX_VICTIMS))

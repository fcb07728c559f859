"""How many victims fit into memory at a time."""

import torch

from refiner.attacks.observation import Observation

# What a second-order step of one victim holds at its peak, in copies of the model's activations and of its
# parameters; measured for LeNet and ResNet18 on a GPU, and rounded up.
_ACTIVATIONS, _PARAMETERS = 40, 12
_CPU_BYTES = 2**31


def fitting(seen: Observation, guesses: int, history: int) -> int:
    """Victims a chunk: half of a GPU's free memory, or 2 GiB on a CPU.

    Each victim has so many `guesses`, a restart or an upload each, and images of an optimizer's `history`.
    """
    task = seen.task
    sizes: list[int] = []
    # The model itself has the tensors, its structure the hooks: run the structure once on zeros.
    like = next(iter(seen.parameters.values()))
    x = like.new_zeros(2, *task.input_shape)
    handles = [
        module.register_forward_hook(
            lambda _m, _a, out: sizes.append(out.numel() if torch.is_tensor(out) else 0)
        )
        for module in task.modules()
    ]
    try:
        with torch.no_grad():
            task.scores(seen.parameters, x)
    finally:
        for handle in handles:
            handle.remove()
    activations = max(sum(sizes) / 2, x[0].numel()) * seen.samples
    images = history * x[0].numel() * seen.samples
    each = guesses * (_ACTIVATIONS * activations + _PARAMETERS * task.size + images)
    bytes_each = like.element_size() * each
    free = torch.cuda.mem_get_info(like.device)[0] / 2 if like.is_cuda else _CPU_BYTES
    return max(1, min(int(free / bytes_each), 4096))

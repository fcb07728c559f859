"""Values that are not finite: an error in a study, replaced in a training.

A server chooses the model, and so whether a gradient overflows for the data of a client. If the client then
sent nothing, its silence would answer a question about its data: a pixel is read with eight such models.
"""

import torch
from torch import Tensor

LIMIT = 1e9
"""What infinity is replaced by: far beyond any gradient, and a sum of thousands of them is still finite."""


def make_finite_(tensor: Tensor) -> Tensor:
    """Replace NaN by 0 and infinity by `LIMIT`, in place.

    >>> make_finite_(torch.tensor([1.0, float("nan"), float("-inf")])).tolist()
    [1.0, 0.0, -1000000000.0]
    """
    limit = min(LIMIT, torch.finfo(tensor.dtype).max)
    return torch.nan_to_num_(tensor, nan=0.0, posinf=limit, neginf=-limit)

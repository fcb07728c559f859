"""How often each sample has been searched, so that a budget can end it."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class SearchCounts:
    """The number of searched uploads of every sample.

    A server that makes up models learns a little more about a sample from each of its searched uploads; what
    it learns from unsearched uploads is the noisy sample only, however many there are.

    A sample may have several keys, such as its id and its content, and has spent what any of them has.

    >>> counts = SearchCounts()
    >>> counts.take([torch.tensor([[7, 8], [7, 9]])], budget=1)
    tensor([[ True,  True],
            [False,  True]])
    >>> counts.take([torch.tensor([[7, 20]]), torch.tensor([[30, 31]])], budget=1)
    tensor([[False,  True]])
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_sample: Counter[int] = Counter()

    def take(self, keys: Sequence[Tensor], budget: int) -> Tensor:
        """Which samples with these `keys`, `[V, B]` each, may be searched once more; counted at once."""
        permitted = []
        with self._lock:
            for sample in zip(*(key.flatten().tolist() for key in keys), strict=True):
                permitted.append(all(self._by_sample[key] < budget for key in sample))
                for key in sample:
                    self._by_sample[key] += permitted[-1]
        return torch.tensor(permitted, device=keys[0].device).view_as(keys[0])

    def state_dict(self) -> dict[str, Tensor]:
        """The samples' keys and counts; empty if there are none."""
        with self._lock:
            if not self._by_sample:
                return {}
            samples, searches = zip(*self._by_sample.items(), strict=True)
            return {"samples": torch.tensor(samples), "searches": torch.tensor(searches)}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the content by that of an earlier `state_dict()`."""
        counts = (
            zip(tensors["samples"].tolist(), tensors["searches"].tolist(), strict=True) if tensors else ()
        )
        with self._lock:
            self._by_sample = Counter(dict(counts))

"""How often each sample has been searched for, so that a budget can end it."""

import threading
from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor


class SearchCounts:
    """The number of searched uploads of every sample.

    A server that makes up models learns a little more about a sample from each of its searched uploads; what
    it learns from uploads that are not searched for is the noisy sample only, however many there are.

    >>> counts = SearchCounts()
    >>> counts.take(torch.tensor([[7, 8], [7, 9]]), budget=1)
    tensor([[ True,  True],
            [False,  True]])
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_sample: Counter[int] = Counter()

    def take(self, samples: Tensor, budget: int) -> Tensor:
        """Which of `samples [V, B]` may be searched for once more; it is counted for those at once."""
        permitted = []
        with self._lock:
            for sample in samples.flatten().tolist():
                permitted.append(self._by_sample[sample] < budget)
                self._by_sample[sample] += permitted[-1]
        return torch.tensor(permitted, device=samples.device).view_as(samples)

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

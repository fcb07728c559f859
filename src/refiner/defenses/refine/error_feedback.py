"""Error feedback: what each client's last match left over, to be added to its next target."""

import threading
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class ErrorFeedback:
    """The residual of every client: the target of its last upload minus the upload itself.

    With it, errors of single uploads do not add up over a training (Karimireddy et al., Error Feedback Fixes
    SignSGD and other Gradient Compression Schemes, ICML 2019). It stays on the client.

    >>> state = ErrorFeedback()
    >>> state.store([3, 5], torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> state.residuals([5, 6], like=torch.zeros(2, 2))
    tensor([[3., 4.],
            [0., 0.]])
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_client: dict[int, Tensor] = {}

    def residuals(self, clients: Sequence[int], like: Tensor) -> Tensor:
        """The residuals of these clients, `[V, N]` like `like`; zero for a new client or another model."""
        with self._lock:
            rows = [self._by_client.get(client) for client in clients]
        return torch.stack(
            [
                zero if row is None or row.shape != zero.shape else row.to(zero)
                for row, zero in zip(rows, torch.zeros_like(like), strict=True)
            ]
        )

    def store(self, clients: Sequence[int], residuals: Tensor) -> None:
        """Replace the residuals of these clients by `residuals [V, N]`; those of other models are dropped."""
        with self._lock:
            kept = {client: row for client, row in self._by_client.items() if len(row) == residuals.shape[1]}
            self._by_client = kept | dict(zip(clients, residuals.unbind(), strict=True))

    def state_dict(self) -> dict[str, Tensor]:
        """The clients' numbers and their residuals; empty if there are none."""
        with self._lock:
            if not self._by_client:
                return {}
            clients = torch.tensor(list(self._by_client))
            return {"clients": clients, "residuals": torch.stack(list(self._by_client.values()))}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the content by that of an earlier `state_dict()`."""
        rows = zip(tensors["clients"].tolist(), tensors["residuals"].unbind(), strict=True) if tensors else ()
        with self._lock:
            self._by_client = dict(rows)

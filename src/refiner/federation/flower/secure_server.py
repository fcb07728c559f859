"""The server's side of secure aggregation over Flower: it relays between nodes and opens the sum alone."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from flwr.app import RecordDict

from refiner.errors import RefinerError
from refiner.federation.flower.aggregation import INTRODUCE, Ask, Secure, from_records
from refiner.federation.flower.messages import order_digest
from refiner.federation.secure import Aggregate, AggregationError, SecureServer
from refiner.federation.secure.messages import ids_from_bytes
from refiner.federation.secure.primitives import signed_by

T = TypeVar("T")
Message = Mapping[str, bytes]
Exchange = Callable[[int, Mapping[int, RecordDict]], tuple[dict[int, RecordDict], dict[int, str]]]
"""Asks nodes for a round, and waits: by node, what came in time, and why the others have nothing in it."""


@dataclass
class SecureRounds:
    """The rounds of one training, for nodes that prove which client they are."""

    settings: Secure
    known: Mapping[int, bytes]
    """The clients' public keys, by number."""
    session: str
    exchange: Exchange
    numbers: dict[int, int] = field(default_factory=dict)
    """By node, which client it is: as it signed, not as it said."""
    seconds: float = 0.0
    """That the last round took the server itself, without waiting."""

    def mean(
        self, round: int, nodes: Sequence[int], order: RecordDict, size: int, rejected: dict[int, str]
    ) -> Aggregate:
        """The weighted mean of the nodes' moves `[N]`; `rejected` gets those who dropped out, and why.

        `order` goes with the step in which the clients train, its digest with the first, so that all of them
        agree to the same. Fewer than t at any step: an error.
        """
        self.seconds = 0.0
        told = self._timed(lambda: order_digest(order))
        self._introduce(round, [node for node in nodes if node not in self.numbers], rejected)
        node_of = {self.numbers[node]: node for node in nodes if node in self.numbers}
        agreement = self.settings.agreement(self.session, round, sorted(node_of), self.known, size, told)
        server = SecureServer(agreement)
        most = (size + 1) * agreement.encoding.dtype.itemsize

        def asked(step: str, messages: Mapping[int, RecordDict]) -> dict[int, dict[str, bytes]]:
            """The messages of the clients that answered this step."""
            contents = {node_of[client]: content for client, content in messages.items()}
            found = self._read(round, contents, most if step == "mask" else 0, rejected)
            return {self.numbers[node]: message for node, message in found.items()}

        def to_all(step: str, message: Message, clients: Mapping[int, object]) -> dict[int, RecordDict]:
            """The same message to those whose last answer was sound."""
            content = Ask(step, round).content(message)
            return {client: content for client in clients if client not in server.refused}

        try:
            first = Ask("advertise", round, tuple(sorted(node_of)), size, told).content()
            adverts = asked("advertise", dict.fromkeys(node_of, first))
            keys = self._timed(lambda: server.keys(adverts))
            shares = asked("share", to_all("share", keys, adverts))
            sealed = self._timed(lambda: server.relay(shares))
            masking = {client: Ask("mask", round).content(message) for client, message in sealed.items()}
            masked = asked("mask", {c: RecordDict({**each, **order}) for c, each in masking.items()})
            survivors = self._timed(lambda: server.survivors(masked))
            confirmed = asked("confirm", to_all("confirm", survivors, masked))
            signatures = self._timed(lambda: server.signatures(confirmed))
            revealed = asked("unmask", to_all("unmask", signatures, confirmed))
            return self._timed(lambda: server.aggregate(revealed))
        finally:
            rejected |= {node_of[client]: reason for client, reason in server.refused.items()}

    def _introduce(self, round: int, nodes: Sequence[int], rejected: dict[int, str]) -> None:
        """Learn which clients these nodes are."""
        if not nodes:
            return
        content = Ask(INTRODUCE).content()
        for node, message in self._read(round, dict.fromkeys(nodes, content), 0, rejected).items():
            try:
                client = self._introduced(node, message)
            except AggregationError as error:
                rejected[node] = str(error)
                continue
            # A client whose node was started anew is the new node.
            self.numbers = {old: number for old, number in self.numbers.items() if number != client}
            self.numbers[node] = client

    def _introduced(self, node: int, message: Message) -> int:
        if set(message) != {"client", "signature"}:
            raise AggregationError("introduction: expected client and signature")
        ids = ids_from_bytes(message["client"])
        if len(ids) != 1 or ids[0] not in self.known:
            raise AggregationError("introduction: of no client in identities.json")
        told = ("introduction", self.session, node, ids[0])
        if not signed_by(self.known[ids[0]], message["signature"], *told):
            raise AggregationError(f"introduction as client {ids[0]}: not signed by it")
        return ids[0]

    def _read(
        self, round: int, contents: Mapping[int, RecordDict], most: int, rejected: dict[int, str]
    ) -> dict[int, dict[str, bytes]]:
        answers, missing = self.exchange(round, contents)
        rejected |= missing
        found = {}
        for node, answer in answers.items():
            try:
                found[node] = from_records(answer, most)
            except RefinerError as error:
                rejected[node] = str(error)
        return found

    def _timed(self, call: Callable[[], T]) -> T:
        began = time.perf_counter()
        try:
            return call()
        finally:
            self.seconds += time.perf_counter() - began

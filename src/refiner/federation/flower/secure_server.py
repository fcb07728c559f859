"""The server's side of secure aggregation over Flower: it relays messages and learns only the sum."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from flwr.app import RecordDict

from refiner.errors import RefinerError
from refiner.federation.flower.aggregation import Secure
from refiner.federation.flower.messages import instructions_digest
from refiner.federation.flower.secure_messages import INTRODUCE, StepRequest, from_records
from refiner.federation.secure import Aggregate, AggregationError, SecureServer, SpoiledSum, SpoilerSearch
from refiner.federation.secure.messages import ids_from_bytes
from refiner.federation.secure.primitives import verify_signature

T = TypeVar("T")
Message = Mapping[str, bytes]
Exchange = Callable[[int, Mapping[int, RecordDict]], tuple[dict[int, RecordDict], dict[int, str]]]
"""Sends a message to each node in a round and waits: replies by node, and reasons by node without one."""


@dataclass
class SecureRounds:
    """The rounds of one training with secure aggregation.

    Args:
        settings: The server's settings of secure aggregation.
        public_keys: The clients' public keys, by client id.
        session: Name of the training run.
        exchange: Sends messages to nodes and waits for their replies.
        min_clients: The smallest number of clients of a round, if the settings allow fewer.
    """

    settings: Secure
    public_keys: Mapping[int, bytes]
    session: str
    exchange: Exchange
    min_clients: int = 1
    client_of_node: dict[int, int] = field(default_factory=dict)
    """The client id of each node that has proved it with a signature."""
    seconds: float = 0.0
    """Computing time of the server in the last round, without waiting."""
    spoilers: SpoilerSearch = field(init=False)
    """Who is left out, because sums were spoiled."""

    def __post_init__(self) -> None:
        self.spoilers = SpoilerSearch(max(self.settings.min_clients, self.min_clients), self.session)

    def mean(
        self, round: int, nodes: Sequence[int], instructions: RecordDict, size: int, rejected: dict[int, str]
    ) -> Aggregate:
        """The weighted mean of the nodes' model updates `[N]`.

        If a client spoils the sum, the following rounds leave out whoever may have done so.

        Args:
            round: Number of the round.
            nodes: The nodes to ask.
            instructions: Training instructions and parameters. They are sent with the step in which clients
                train; their digest is sent with the first step, so that all clients agree to the same.
            size: Number of values of an update.
            rejected: Filled with the nodes that dropped out, and why.

        Raises:
            AggregationError: If fewer clients than the threshold complete a step.
            SpoiledSum: If a client did not follow the protocol, and there is no sum.
        """
        self.seconds = 0.0
        digest = self._timed(lambda: instructions_digest(instructions))
        self._introduce(round, [node for node in nodes if node not in self.client_of_node], rejected)
        node_of = {self.client_of_node[node]: node for node in nodes if node in self.client_of_node}
        clients = self.spoilers.choose(node_of, round)
        config = self.settings.round_config(self.session, round, clients, self.public_keys, size, digest)
        server = SecureServer(config)
        max_bytes = (size + 1) * config.encoding.dtype.itemsize

        def replies(step: str, messages: Mapping[int, RecordDict]) -> dict[int, dict[str, bytes]]:
            """The replies to a step, by client."""
            contents = {node_of[client]: content for client, content in messages.items()}
            by_node = self._exchange_messages(round, contents, max_bytes if step == "mask" else 0, rejected)
            return {self.client_of_node[node]: message for node, message in by_node.items()}

        def same_for(step: str, message: Message, clients: Mapping[int, object]) -> dict[int, RecordDict]:
            """The same message for each client whose last reply was valid."""
            content = StepRequest(step, round).content(message)
            return {client: content for client in clients if client not in server.rejected}

        try:
            first = StepRequest("advertise", round, clients, size, digest).content()
            advertisements = replies("advertise", dict.fromkeys(clients, first))
            keys = self._timed(lambda: server.collect_keys(advertisements))
            shares = replies("share", same_for("share", keys, advertisements))
            encrypted = self._timed(lambda: server.collect_shares(shares))
            mask = {
                client: RecordDict({**StepRequest("mask", round).content(message), **instructions})
                for client, message in encrypted.items()
            }
            masked = replies("mask", mask)
            survivors = self._timed(lambda: server.collect_masked_updates(masked))
            confirmed = replies("confirm", same_for("confirm", survivors, masked))
            signatures = self._timed(lambda: server.collect_signatures(confirmed))
            revealed = replies("unmask", same_for("unmask", signatures, confirmed))
            aggregate = self._timed(lambda: server.aggregate(revealed))
            self.spoilers.succeeded()
            return aggregate
        except SpoiledSum as error:
            if error.client is None:
                self.spoilers.spoiled(server.survivors)
            else:
                self.spoilers.ban(error.client)
            raise
        finally:
            rejected |= {node_of[client]: reason for client, reason in server.rejected.items()}

    def _introduce(self, round: int, nodes: Sequence[int], rejected: dict[int, str]) -> None:
        """Find out which clients these nodes are."""
        if not nodes:
            return
        content = StepRequest(INTRODUCE).content()
        messages = self._exchange_messages(round, dict.fromkeys(nodes, content), 0, rejected)
        for node, message in messages.items():
            try:
                client = self._verified_client(node, message)
            except AggregationError as error:
                rejected[node] = str(error)
                continue
            # A client that was restarted has a new node id.
            self.client_of_node = {
                old: known for old, known in self.client_of_node.items() if known != client
            }
            self.client_of_node[node] = client

    def _verified_client(self, node: int, message: Message) -> int:
        """The client id in an introduction, after its signature is verified."""
        if set(message) != {"client", "signature"}:
            raise AggregationError("introduction: expected client and signature")
        ids = ids_from_bytes(message["client"])
        if len(ids) != 1 or ids[0] not in self.public_keys:
            raise AggregationError("introduction: not a client in identities.json")
        signed = ("introduction", self.session, node, ids[0])
        if not verify_signature(self.public_keys[ids[0]], message["signature"], *signed):
            raise AggregationError(f"introduction as client {ids[0]}: not signed by it")
        return ids[0]

    def _exchange_messages(
        self, round: int, contents: Mapping[int, RecordDict], max_bytes: int, rejected: dict[int, str]
    ) -> dict[int, dict[str, bytes]]:
        """The protocol's messages in the nodes' replies; `rejected` is filled with the others."""
        replies, missing = self.exchange(round, contents)
        rejected |= missing
        messages = {}
        for node, reply in replies.items():
            try:
                messages[node] = from_records(reply, max_bytes)
            except RefinerError as error:
                rejected[node] = str(error)
        return messages

    def _timed(self, call: Callable[[], T]) -> T:
        start = time.perf_counter()
        try:
            return call()
        finally:
            self.seconds += time.perf_counter() - start

"""A Flower strategy for the library's clients, which reply with model updates."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from logging import INFO

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log
from torch import Tensor

from refiner import checks
from refiner.errors import DataError, ProtectionError, RefinerError
from refiner.federation.combine import make_rule, shorten
from refiner.federation.federated_settings import FederatedSettings
from refiner.federation.flower.messages import (
    Shapes,
    TrainInstructions,
    error_text,
    from_arrays,
    read_update,
    to_arrays,
)
from refiner.federation.flower.node_tracker import NodeTracker
from refiner.federation.flower.round_result import RoundResult, too_few_replies
from refiner.federation.schedule import sample_clients


@dataclass
class MeanUpdate(Strategy):
    """FedSGD and FedAvg with the clients of `refiner.federation.flower.client`, for any ServerApp.

    These clients reply with a model update, old − new parameters, which Flower's own strategies would mistake
    for weights. The strategy validates every reply and subtracts the mean update, weighted by samples, or
    what another rule combines the updates to. The result of `start` contains the new weights. The argument
    `num_rounds` of `start` counts; `settings.rounds` is not used.

    Args:
        model: Name of the model; each client builds it itself.
        classes: Number of classes of the model.
        settings: Clients per round, and batch size, local steps and learning rate of a client.
        min_train_nodes: Nodes that a round needs, and valid replies. Fewer raise an error.
        initial_nodes: Nodes that the first round waits for; 0 for the number of clients per round.
        message_ttl: Seconds after which an unanswered message expires, as its node was restarted.
        combine: How the updates are combined: `mean`, or a rule against hostile clients, `median`,
            `trimmed-mean` or `krum`, with settings.
        max_norm: The largest norm of an update. A longer one is scaled down to it.
        nodes: Tracks which nodes are free.

    Raises:
        SettingError: If a value lies outside its range.

    >>> settings = FederatedSettings(clients=4, batch=16, lr=0.1)
    >>> MeanUpdate("lenet", classes=10, settings=settings, min_train_nodes=3).min_train_nodes
    3
    >>> MeanUpdate("lenet", classes=10, settings=settings, min_train_nodes=5)
    Traceback (most recent call last):
    refiner.errors.SettingError: min_train_nodes = 5: expected an integer in [1, 4]
    """

    model: str
    classes: int
    settings: FederatedSettings
    min_train_nodes: int = 1
    initial_nodes: int = 0
    message_ttl: float = 14400.0
    combine: str = "mean"
    max_norm: float = 100.0
    nodes: NodeTracker = field(default_factory=NodeTracker)
    _started: bool = field(init=False, repr=False, default=False)
    _requests: list[Message] = field(init=False, repr=False, default_factory=list)
    _sent: tuple[Tensor, Shapes] = field(init=False, repr=False, default=(torch.empty(0), {}))

    def __post_init__(self) -> None:
        checks.integer("min_train_nodes", self.min_train_nodes, 1, self.settings.clients)
        checks.integer("initial_nodes", self.initial_nodes, 0, self.settings.clients)
        checks.number("message_ttl", self.message_ttl, 0, above=True)
        checks.number("max_norm", self.max_norm, 0, above=True)
        make_rule(self.combine)
        self.instructions(1)  # raises if one of the values is out of range

    def instructions(self, round: int) -> TrainInstructions:
        """The training instructions of a round."""
        settings = self.settings
        return TrainInstructions(
            round, self.model, self.classes, settings.batch, settings.local_steps, settings.lr
        )

    def choose_nodes(self, round: int, grid: Grid) -> list[int]:
        """The nodes of a round, out of the free ones; the first round waits until enough are connected."""
        initial = 0 if self._started else self.initial_nodes or self.settings.clients_per_round
        free = self.nodes.wait_for_free(grid, max(self.min_train_nodes, initial))
        self._started = True
        return [free[position] for position in sample_clients(self.settings, round, len(free))]

    def make_messages(self, round: int, contents: Mapping[int, RecordDict]) -> list[Message]:
        """A message with its content to each node."""
        group, ttl = str(round), self.message_ttl
        return [
            Message(content, node, "train", group_id=group, ttl=ttl) for node, content in contents.items()
        ]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """The requests of a round, one for each node that takes part.

        Args:
            server_round: Number of the round, from 1.
            arrays: The model's parameters by name, without buffers.
            config: Must be empty; the instructions come from `settings`.
            grid: The grid of nodes.

        Raises:
            SettingError: If `config` is not empty.
            DataError: If the parameters can't be sent, or too few nodes are free.
        """
        if config:
            raise checks.wrong("train_config", dict(config), "none: the instructions come from `settings`")
        shapes = {name: torch.Size(array.shape) for name, array in arrays.items()}
        if not shapes:
            raise DataError(
                "initial_arrays: empty, expected the model's parameters by name",
                field="initial_arrays",
                value={},
                expected="the model's parameters by name",
            )
        like = torch.from_numpy(next(iter(arrays.values())).numpy())
        try:
            parameters = from_arrays(RecordDict({"arrays": arrays}), shapes, like)
        except DataError as error:
            raise DataError(
                f"round {server_round}: the model can't be sent: {error}",
                field=error.field,
                value=error.value,
                expected=error.expected,
            ) from error
        content = self.instructions(server_round).content_with(arrays)
        contents = dict.fromkeys(self.choose_nodes(server_round, grid), content)
        self._requests, self._sent = self.make_messages(server_round, contents), (parameters, shapes)
        return list(self._requests)

    def collect(self, replies: Iterable[Message], deadline: float | None = None) -> RoundResult:
        """The result of a round from the replies to its requests.

        Args:
            replies: The replies that have arrived.
            deadline: The seconds that were waited for them, for the reasons of the other nodes.
        """
        parameters, shapes = self._sent
        waiting = {request.metadata.message_id: request.metadata.dst_node_id for request in self._requests}
        updates: dict[int, tuple[Tensor, int]] = {}
        rejected: dict[int, str] = {}
        clipped: list[int] = []
        for reply in replies:
            # The node is the one that was asked, not the one that the reply names; its first reply counts.
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            try:
                if reply.has_error():
                    raise DataError(
                        error_text(reply.error), field="reply", value="an error", expected="an update"
                    )
                update, samples = read_update(reply.content, shapes, parameters, self.settings.batch)
            except RefinerError as error:
                rejected[node] = str(error)
                continue
            shortened, was_longer = shorten(update, self.max_norm)
            updates[node] = shortened, samples
            clipped += [node] * was_longer
        self.nodes.unanswered |= waiting
        late = "no reply in time" if deadline is None else f"no reply within {deadline:g} s"
        rejected |= dict.fromkeys(waiting.values(), late)
        valid, requested = len(updates), len(self._requests)
        if valid < self.min_train_nodes:
            failure = too_few_replies(valid, requested, self.min_train_nodes)
            return RoundResult(requested, rejected, valid, failure=failure)
        # Sorted by node, so that the sum does not depend on the order of arrival.
        tensors, counts = zip(*(updates[node] for node in sorted(updates)), strict=True)
        combined = make_rule(self.combine).combine(torch.stack(tensors), counts)
        return RoundResult(requested, rejected, valid, combined, clipped=sorted(clipped))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """The new weights, and how many nodes were asked and how many replies were used.

        Args:
            server_round: Number of the round, from 1.
            replies: The replies to the requests of `configure_train`.

        Raises:
            ProtectionError: If too few replies are valid, or the model is no longer finite.
        """
        result = self.collect(replies)
        result.write_log(server_round)
        parameters, shapes = self._sent
        updated = parameters - result.update_or_raise(server_round)
        if not bool(updated.isfinite().all()):
            raise ProtectionError(f"round {server_round}: the model is no longer finite; use a lower lr")
        return to_arrays(updated, shapes), MetricRecord({"asked": result.requested, "used": result.used})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """No requests: clients do not evaluate. Evaluate on the server with `evaluate_fn` of `start`."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """Nothing, as clients do not evaluate."""

    def summary(self) -> None:
        """Write the settings to Flower's log."""
        settings = self.settings
        log(
            INFO,
            "\t├──> Instructions: model %s, classes %d, batch %d, local steps %d, lr %g",
            self.model,
            self.classes,
            settings.batch,
            settings.local_steps,
            settings.lr,
        )
        log(INFO, "\t├──> Nodes: %d of %d take part in a round", settings.clients_per_round, settings.clients)
        log(INFO, "\t├──> Valid replies: %d or more", self.min_train_nodes)
        log(INFO, "\t└──> Combined by %s of updates of norm %g or less", self.combine, self.max_norm)

"""A strategy of Flower for the library's clients, who answer with moves: checks each, and takes the mean."""

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
from refiner.federation.flower.messages import Order, Shapes, from_arrays, read_answer, refusal, to_arrays
from refiner.federation.flower.nodes import Nodes
from refiner.federation.flower.round_result import Gathered, too_few
from refiner.federation.local import weighted_mean
from refiner.federation.schedule import participants
from refiner.federation.settings import Training


@dataclass
class MeanMove(Strategy):
    """FedSGD and FedAvg for the nodes of `refiner.federation.flower.client`, in any ServerApp.

    They answer with a move, old − new parameters, which Flower's own strategies would take for weights. What
    `start` gives back holds the new weights; its `num_rounds` counts, and not the rounds of `training`.

    >>> MeanMove("lenet", classes=10, training=Training(clients=4, batch=16, lr=0.1), minimum=3).minimum
    3
    >>> MeanMove("lenet", classes=10, training=Training(clients=4), minimum=5)
    Traceback (most recent call last):
    refiner.errors.SettingError: minimum = 5: expected an integer in [1, 4]
    """

    model: str
    """Its name: each node builds it for itself."""
    classes: int
    training: Training
    """Batch, local steps and learning rate of a client, and how many of them take part."""
    minimum: int = 1
    """How many nodes a round needs, and how many good answers; fewer are an error."""
    start_with: int = 0
    """How many nodes the first round waits for; 0 for those who take part."""
    life: float = 14400.0
    """Seconds after which an order no longer counts that was never answered, as its node was started anew."""
    nodes: Nodes = field(default_factory=Nodes)
    _asked: bool = field(init=False, repr=False, default=False)
    _orders: list[Message] = field(init=False, repr=False, default_factory=list)
    _sent: tuple[Tensor, Shapes] = field(init=False, repr=False, default=(torch.empty(0), {}))

    def __post_init__(self) -> None:
        checks.integer("minimum", self.minimum, 1, self.training.clients)
        checks.integer("start_with", self.start_with, 0, self.training.clients)
        checks.number("life", self.life, 0, above=True)
        self.order(1)

    def order(self, round: int) -> Order:
        """What every node is asked in a round."""
        own = self.training
        return Order(round, self.model, self.classes, own.batch, own.local_steps, own.lr)

    def choose(self, round: int, grid: Grid) -> list[int]:
        """The nodes of a round, of those who are there and free; the first one waits until enough are."""
        first = 0 if self._asked else self.start_with or self.training.taking_part
        free = self.nodes.free(grid, max(self.minimum, first))
        self._asked = True
        return [free[place] for place in participants(self.training, round, len(free))]

    def messages(self, round: int, contents: Mapping[int, RecordDict]) -> list[Message]:
        """A message to each node, of what is for it."""
        group, life = str(round), self.life
        return [Message(each, node, "train", group_id=group, ttl=life) for node, each in contents.items()]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """The orders of a round, one for each node that takes part."""
        if config:
            raise checks.wrong("train_config", dict(config), "none: an order has what `training` says")
        shapes = {name: torch.Size(array.shape) for name, array in arrays.items()}
        if not shapes:
            raise DataError("initial_arrays: empty, expected the model's parameters by name")
        like = torch.from_numpy(next(iter(arrays.values())).numpy())
        try:
            values = from_arrays(RecordDict({"arrays": arrays}), shapes, like)
        except DataError as error:
            raise DataError(f"round {server_round}: the model can't be sent: {error}") from error
        contents = dict.fromkeys(self.choose(server_round, grid), self.order(server_round).around(arrays))
        self._orders, self._sent = self.messages(server_round, contents), (values, shapes)
        return list(self._orders)

    def gather(self, replies: Iterable[Message], within: float | None = None) -> Gathered:
        """The mean move of the sound replies to the last orders; `within` is the wait that others missed."""
        values, shapes = self._sent
        waiting = {order.metadata.message_id: order.metadata.dst_node_id for order in self._orders}
        found: dict[int, tuple[Tensor, int]] = {}
        rejected: dict[int, str] = {}
        for reply in replies:
            # By what was asked, not by what the answer says of its sender; and only once.
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            try:
                if reply.has_error():
                    raise DataError(refusal(reply.error))
                found[node] = read_answer(reply.content, shapes, values, self.training.batch)
            except RefinerError as error:
                rejected[node] = str(error)
        self.nodes.owing |= waiting
        late = "no answer in time" if within is None else f"no answer within {within:g} s"
        rejected |= dict.fromkeys(waiting.values(), late)
        good, asked = len(found), len(self._orders)
        if good < self.minimum:
            return Gathered(asked, rejected, good, failure=too_few(good, asked, self.minimum))
        # In an order that does not depend on who was faster.
        moves, sizes = zip(*(found[node] for node in sorted(found)), strict=True)
        return Gathered(asked, rejected, good, weighted_mean(torch.stack(moves), sizes))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """The new weights, after the mean move; and how many nodes were asked and how many answers used."""
        gathered = self.gather(replies)
        gathered.tell(server_round)
        values, shapes = self._sent
        moved = values - gathered.mean(server_round)
        if not bool(moved.isfinite().all()):
            raise ProtectionError(f"round {server_round}: the model is no longer finite; use a lower lr")
        return to_arrays(moved, shapes), MetricRecord({"asked": gathered.asked, "used": gathered.used})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """None: nodes do not test. A server does, with `evaluate_fn` of `start`."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """Nothing."""

    def summary(self) -> None:
        """Say the settings in Flower's log."""
        own = self.training
        order = "model %s, classes %d, batch %d, local steps %d, lr %g"
        log(INFO, f"\t├──> Order: {order}", self.model, self.classes, own.batch, own.local_steps, own.lr)
        log(INFO, "\t├──> Nodes: %d of %d take part in a round", own.taking_part, own.clients)
        log(INFO, "\t└──> Good answers: %d or more, weighted by their samples", self.minimum)

"""The server of a training, as a Flower app: asks the nodes, checks every answer, goes on with the good."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from refiner.core.task import Task
from refiner.errors import DataError, RefinerError, SettingError
from refiner.federation.experiment import Experiment, run_experiment
from refiner.federation.flower.aggregation import Secure, make_aggregation, read_identities, session_of
from refiner.federation.flower.messages import refusal, to_arrays
from refiner.federation.flower.nodes import Nodes
from refiner.federation.flower.round_result import Gathered, too_few
from refiner.federation.flower.run_config import Rules, study_in
from refiner.federation.flower.secure_server import Exchange, SecureRounds
from refiner.federation.flower.strategy import MeanMove
from refiner.federation.local import get_parameters
from refiner.federation.secure import AggregationError
from refiner.federation.training import Clients
from refiner.files import write_whole

_POLL = 0.25
# Deadlines after which an order that was never answered, as its node was started anew, no longer counts.
_LIFE = 4

Note = Callable[[dict[str, Any]], None]


class RemoteClients:
    """The clients of a training on nodes of a grid. Each round asks those who are there then."""

    def __init__(
        self,
        grid: Grid,
        task: Task,
        rules: Rules,
        experiment: Experiment,
        note: Note = lambda line: None,
        secure_over: Callable[[Exchange], SecureRounds] | None = None,
    ) -> None:
        """`secure_over` has the moves added up under masks; without it, every move is seen."""
        self.grid, self.task, self.rules = grid, task, rules
        self.note = note
        self.secure = None if secure_over is None else secure_over(self._exchange)
        least = 1 if self.secure is None else self.secure.settings.least
        self.strategy = MeanMove(
            rules.model,
            task.classes,
            experiment.training,
            minimum=max(rules.minimum, least),
            start_with=rules.start_with,
            life=rules.deadline * _LIFE,
            nodes=Nodes(rules.patience),
        )

    def moves(self, round: int) -> Tensor:
        """The mean move `[N]` of the nodes whose answers came in time and are sound."""
        began = time.monotonic()
        gathered = self._in_sight(round) if self.secure is None else self._under_masks(round, self.secure)
        gathered.tell(round)
        line: dict[str, Any] = {"round": round, "asked": gathered.asked, "used": gathered.used}
        line |= {"rejected": gathered.reasons, "busy": self.strategy.nodes.busy}
        if self.secure is not None:
            line |= {"aggregation": self.rules.aggregation, "aggregation_seconds": self.secure.seconds}
        self.note(line | {"seconds": time.monotonic() - began})
        return gathered.mean(round).to(get_parameters(self.task))

    def _in_sight(self, round: int) -> Gathered:
        """Every move is seen, and checked."""
        arrays = to_arrays(get_parameters(self.task), self.task.shapes)
        orders = self.strategy.configure_train(round, arrays, ConfigRecord(), self.grid)
        replies, _ = self._ask(round, orders)
        return self.strategy.gather(replies.values(), self.rules.deadline)

    def _under_masks(self, round: int, secure: SecureRounds) -> Gathered:
        """Only the sum is seen."""
        values = get_parameters(self.task)
        nodes, rejected = self.strategy.choose(round, self.grid), dict[int, str]()
        order = self.strategy.order(round).content(values, self.task.shapes)
        try:
            opened = secure.mean(round, nodes, order, values.numel(), rejected)
        except (AggregationError, SettingError) as error:
            return Gathered(len(nodes), rejected, failure=str(error))
        used, minimum = len(opened.clients), self.rules.minimum
        if used < minimum:
            return Gathered(len(nodes), rejected, used, failure=too_few(used, len(nodes), minimum))
        return Gathered(len(nodes), rejected, used, opened.mean)

    def state(self) -> dict[str, Tensor]:
        """Nothing: what a client remembers stays with it."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Nothing."""

    def _exchange(
        self, round: int, contents: Mapping[int, RecordDict]
    ) -> tuple[dict[int, RecordDict], dict[int, str]]:
        """Ask every node what is for it: by node, what came in time, and why others have nothing in it."""
        replies, late = self._ask(round, self.strategy.messages(round, contents))
        self.strategy.nodes.owing |= late
        missing = dict.fromkeys(late.values(), f"no answer within {self.rules.deadline:g} s")
        missing |= {node: refusal(reply.error) for node, reply in replies.items() if reply.has_error()}
        return {node: replies[node].content for node in replies if node not in missing}, missing

    def _ask(self, round: int, messages: Sequence[Message]) -> tuple[dict[int, Message], dict[str, int]]:
        """By node the reply that came in time; by the id of its order, who missed the deadline."""
        ids = list(self.grid.push_messages(messages))
        if len(ids) < len(messages) or not all(ids):
            raise DataError(f"round {round}: the SuperLink did not take the order to every node")
        waiting = {each: message.metadata.dst_node_id for each, message in zip(ids, messages, strict=True)}
        replies: dict[int, Message] = {}
        end = time.monotonic() + self.rules.deadline
        while waiting and time.monotonic() < end:
            time.sleep(_POLL)
            for reply in self.grid.pull_messages(list(waiting)):
                # By what was asked, not by what the answer says of its sender.
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    replies[node] = reply
        return replies, waiting


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train by the rules of the run; how it ended is left in the folder, beside what a training leaves."""
    rules = Rules.read(context.run_config)
    out = Path(rules.out)
    error = None
    try:
        _train(grid, rules, out, context.run_id)
    except Exception as failure:
        error = str(failure) if isinstance(failure, RefinerError) else f"{type(failure).__name__}: {failure}"
        raise
    finally:
        write_whole(out / "flower.json", json.dumps({"run": str(context.run_id), "error": error}).encode())


def _train(grid: Grid, rules: Rules, out: Path, run: int) -> None:
    experiment = rules.experiment(**study_in(out))
    way, secure_over = make_aggregation(rules.aggregation), None
    if isinstance(way, Secure):
        secure_over = partial(SecureRounds, way, read_identities(out), session_of(run))

    def clients_of(task: Task, data: object) -> Clients:
        return RemoteClients(grid, task, rules, experiment, lambda line: _note(out, run, line), secure_over)

    run_experiment(
        experiment,
        out,
        clients_of=clients_of,
        resume=rules.resume,
        checkpoint_every=rules.checkpoint_every,
        device=torch.device(rules.device),
    )


def _note(out: Path, run: int, line: dict[str, Any]) -> None:
    """A line of JSON for every round, to read along."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "rounds.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"run": str(run), **line}) + "\n")
        file.flush()
        os.fsync(file.fileno())

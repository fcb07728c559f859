"""The server of a training, as a Flower app: asks the nodes, checks every answer, goes on with the good."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log
from torch import Tensor

from refiner.core.task import Task
from refiner.errors import DataError, ProtectionError, RefinerError, SettingError
from refiner.federation.experiment import Experiment, run_experiment
from refiner.federation.flower.aggregation import Secure, make_aggregation, read_identities, session_of
from refiner.federation.flower.rules import Rules, study_in
from refiner.federation.flower.secure_server import Exchange, SecureRounds
from refiner.federation.flower.wire import Order, read_answer
from refiner.federation.local import get_parameters, weighted_mean
from refiner.federation.schedule import participants
from refiner.federation.secure import AggregationError
from refiner.federation.training import Clients
from refiner.files import write_whole

_POLL = 0.25
# Deadlines after which an order that was never answered, as its node was started anew, no longer counts.
_LIFE = 4

Note = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Gathered:
    """What came of a round: the mean move `[N]` of so many nodes, or None and why there is none."""

    move: Tensor | None
    used: int = 0
    failure: str = ""


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
        self.training = experiment.training
        self.note = note
        self.secure = None if secure_over is None else secure_over(self._exchange)
        self._asked = False
        self._owing: dict[str, int] = {}

    def moves(self, round: int) -> Tensor:
        """The mean move `[N]` of the nodes whose answers came in time and are sound."""
        began = time.monotonic()
        least = max(self.rules.minimum, 1 if self.secure is None else self.secure.settings.least)
        nodes, busy = self._nodes(least if self._asked else max(least, self.rules.first))
        self._asked = True
        chosen = [nodes[place] for place in participants(self.training, round, len(nodes))]
        rejected: dict[int, str] = {}
        order = self._order(round).content(get_parameters(self.task), self.task.shapes)
        gather = self._in_sight if self.secure is None else self._under_masks
        gathered = gather(round, chosen, order, rejected)
        told = {str(node): reason for node, reason in sorted(rejected.items())}
        line = {"round": round, "asked": len(chosen), "used": gathered.used, "rejected": told, "busy": busy}
        if self.secure is not None:
            line |= {"aggregation": self.rules.aggregation, "aggregation_seconds": self.secure.seconds}
        self.note(line | {"seconds": time.monotonic() - began})
        if gathered.move is None:
            why = "; ".join(f"node {node}: {reason}" for node, reason in told.items())
            raise ProtectionError(f"round {round}: {gathered.failure} ({why})")
        return gathered.move

    def _in_sight(
        self, round: int, nodes: list[int], order: RecordDict, rejected: dict[int, str]
    ) -> Gathered:
        """Every move is seen, and checked."""
        like = get_parameters(self.task)
        found: dict[int, tuple[Tensor, int]] = {}
        answers, missing = self._exchange(round, dict.fromkeys(nodes, order))
        rejected |= missing
        for node, content in answers.items():
            try:
                found[node] = read_answer(content, self.task.shapes, like, self.training.batch)
            except RefinerError as error:
                rejected[node] = str(error)
        if len(found) < self.rules.minimum:
            return self._too_few(len(found), len(nodes))
        # In an order that does not hang on who was faster.
        moves, sizes = zip(*(found[node] for node in sorted(found)), strict=True)
        return Gathered(weighted_mean(torch.stack(moves), sizes), len(found))

    def _under_masks(
        self, round: int, nodes: list[int], order: RecordDict, rejected: dict[int, str]
    ) -> Gathered:
        """Only the sum is seen."""
        assert self.secure is not None
        like = get_parameters(self.task)
        try:
            opened = self.secure.mean(round, nodes, order, like.numel(), rejected)
        except (AggregationError, SettingError) as error:
            return Gathered(None, failure=str(error))
        if len(opened.clients) < self.rules.minimum:
            return self._too_few(len(opened.clients), len(nodes))
        return Gathered(opened.mean.to(like), len(opened.clients))

    def _too_few(self, good: int, asked: int) -> Gathered:
        told = f"{good} of {asked} nodes gave a good answer, at least {self.rules.minimum} must"
        return Gathered(None, good, told)

    def state(self) -> dict[str, Tensor]:
        """Nothing: what a client remembers stays with it."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Nothing."""

    def _order(self, round: int) -> Order:
        training = self.training
        return Order(
            round, self.rules.model, self.task.classes, training.batch, training.local_steps, training.lr
        )

    def _nodes(self, wanted: int) -> tuple[list[int], int]:
        """The nodes that are there and free, once there are `wanted`; and how many are still busy.

        A node does one order after the other. One that is late would be late again: it is asked anew once its
        old answer is there, which is thrown away.
        """
        end = time.monotonic() + self.rules.patience
        while True:
            if self._owing:
                for late in self.grid.pull_messages(list(self._owing)):
                    self._owing.pop(late.metadata.reply_to_message_id, None)
            there = set(self.grid.get_node_ids())
            free = sorted(there - set(self._owing.values()))
            if len(free) >= wanted:
                return free, len(there) - len(free)
            if time.monotonic() >= end:
                waited = f"waited {self.rules.patience:g} s for {wanted} nodes"
                raise DataError(f"{waited}, {len(free)} are there and free")
            time.sleep(_POLL)

    def _exchange(
        self, round: int, contents: Mapping[int, RecordDict]
    ) -> tuple[dict[int, RecordDict], dict[int, str]]:
        """Ask every node what is for it: by node, what came in time, and why others have nothing in it."""
        found: dict[int, RecordDict] = {}
        missing: dict[int, str] = {}
        for node, reply in self._ask(round, contents):
            if reply is None:
                missing[node] = f"no answer within {self.rules.deadline:g} s"
            elif reply.has_error():
                told = " ".join(f"{reply.error.reason}".split())
                missing[node] = f"error {reply.error.code}: {told[:200]}"
            else:
                found[node] = reply.content
        return found, missing

    def _ask(self, round: int, contents: Mapping[int, RecordDict]) -> Iterator[tuple[int, Message | None]]:
        """Every node with its reply, as they come; None for those who missed the deadline."""
        group, life = str(round), self.rules.deadline * _LIFE
        messages = [Message(each, node, "train", group_id=group, ttl=life) for node, each in contents.items()]
        ids = list(self.grid.push_messages(messages))
        if len(ids) < len(contents) or not all(ids):
            raise DataError(f"round {round}: the SuperLink did not take the order to every node")
        waiting = dict(zip(ids, contents, strict=True))
        end = time.monotonic() + self.rules.deadline
        while waiting and time.monotonic() < end:
            time.sleep(_POLL)
            for reply in self.grid.pull_messages(list(waiting)):
                # By what was asked, not by what the answer says of its sender.
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    yield node, reply
        self._owing |= waiting
        for node in waiting.values():
            yield node, None


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
    """A line of JSON for every round, to read along; Flower's log, which `--stream` shows, tells it too."""
    log(INFO, "round %d: %d of %d answers used", line["round"], line["used"], line["asked"])
    for node, reason in line["rejected"].items():
        log(WARNING, "round %d: node %s left out: %s", line["round"], node, reason)
    out.mkdir(parents=True, exist_ok=True)
    with (out / "rounds.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"run": str(run), **line}) + "\n")
        file.flush()
        os.fsync(file.fileno())

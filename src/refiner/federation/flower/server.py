"""The server of a training as a Flower app: asks the nodes, validates every reply, uses the valid ones."""

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

from refiner.core.flat_parameters import get_parameters
from refiner.core.task import Task
from refiner.errors import DataError, RefinerError, SettingError
from refiner.federation.experiment import Experiment, run_experiment
from refiner.federation.flower.aggregation import Secure, make_aggregation, session_name
from refiner.federation.flower.identities import read_identities
from refiner.federation.flower.messages import error_text, to_arrays
from refiner.federation.flower.node_tracker import NodeTracker
from refiner.federation.flower.round_result import RoundResult, too_few_replies
from refiner.federation.flower.run_config import RunConfig, read_server_settings
from refiner.federation.flower.secure_server import Exchange, SecureRounds
from refiner.federation.flower.strategy import MeanUpdate
from refiner.federation.secure import AggregationError, SpoiledSum
from refiner.federation.training import Clients
from refiner.files import write_atomically

_POLL_SECONDS = 0.25
# An unanswered message expires after this many deadlines, as its node was restarted.
_TTL_DEADLINES = 4

LogRound = Callable[[dict[str, Any]], None]


class RemoteClients:
    """The clients of a training on the nodes of a Flower grid; each round asks the nodes connected then.

    Args:
        grid: The grid of nodes.
        task: The server's model.
        config: The configuration of the run.
        experiment: The experiment that the server runs.
        log_round: Called after every round with a summary of it.
        make_secure_rounds: Makes the rounds of secure aggregation; without it the server sees every update.
    """

    def __init__(
        self,
        grid: Grid,
        task: Task,
        config: RunConfig,
        experiment: Experiment,
        log_round: LogRound = lambda summary: None,
        make_secure_rounds: Callable[[Exchange], SecureRounds] | None = None,
    ) -> None:
        self.grid, self.task, self.config = grid, task, config
        self.log_round = log_round
        self.secure = None if make_secure_rounds is None else make_secure_rounds(self._exchange)
        min_clients = 1 if self.secure is None else self.secure.settings.min_clients
        self.strategy = MeanUpdate(
            config.model,
            task.classes,
            experiment.training,
            min_train_nodes=max(config.min_train_nodes, min_clients),
            initial_nodes=config.initial_nodes,
            message_ttl=config.deadline * _TTL_DEADLINES,
            nodes=NodeTracker(config.node_timeout),
            combine=config.combine,
            max_norm=config.max_norm,
        )

    def mean_update(self, round: int) -> Tensor | None:
        """The mean model update `[N]` of the nodes whose replies are valid and arrived in time, if any."""
        start = time.monotonic()
        result = self._plain_round(round) if self.secure is None else self._secure_round(round, self.secure)
        result.write_log(round)
        summary: dict[str, Any] = {"round": round, "asked": result.requested, "used": result.used}
        summary |= {"rejected": result.reasons, "clipped": [str(node) for node in result.clipped]}
        summary |= {"busy": self.strategy.nodes.busy}
        if self.secure is not None:
            summary |= {"aggregation": self.config.aggregation, "aggregation_seconds": self.secure.seconds}
            summary |= {"spoiled": result.failure if result.spoiled else None}
            summary |= {"banned": sorted(self.secure.spoilers.banned)}
        self.log_round(summary | {"seconds": time.monotonic() - start})
        return None if result.spoiled else result.update_or_raise(round).to(get_parameters(self.task))

    def _plain_round(self, round: int) -> RoundResult:
        """A round in which the server sees and validates every update."""
        arrays = to_arrays(get_parameters(self.task), self.task.shapes)
        requests = self.strategy.configure_train(round, arrays, ConfigRecord(), self.grid)
        replies, _ = self._send_and_wait(round, requests)
        return self.strategy.collect(replies.values(), self.config.deadline)

    def _secure_round(self, round: int, secure: SecureRounds) -> RoundResult:
        """A round in which the server sees only the sum of the updates."""
        parameters = get_parameters(self.task)
        nodes, rejected = self.strategy.choose_nodes(round, self.grid), dict[int, str]()
        instructions = self.strategy.instructions(round).content(parameters, self.task.shapes)
        try:
            aggregate = secure.mean(round, nodes, instructions, parameters.numel(), rejected)
        except SpoiledSum as error:
            spoiled = not secure.spoilers.hopeless
            return RoundResult(len(nodes), rejected, failure=str(error), spoiled=spoiled)
        except (AggregationError, SettingError) as error:
            return RoundResult(len(nodes), rejected, failure=str(error))
        used, minimum = len(aggregate.clients), self.config.min_train_nodes
        if used < minimum:
            failure = too_few_replies(used, len(nodes), minimum)
            return RoundResult(len(nodes), rejected, used, failure=failure)
        return RoundResult(len(nodes), rejected, used, aggregate.mean)

    def state(self) -> dict[str, Tensor]:
        """Empty: the state of a client's defence stays with the client."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Does nothing."""

    def _exchange(
        self, round: int, contents: Mapping[int, RecordDict]
    ) -> tuple[dict[int, RecordDict], dict[int, str]]:
        """Send each node its content: the replies by node, and the reasons by node without a valid one."""
        replies, late = self._send_and_wait(round, self.strategy.make_messages(round, contents))
        self.strategy.nodes.unanswered |= late
        missing = dict.fromkeys(late.values(), f"no reply within {self.config.deadline:g} s")
        missing |= {node: error_text(reply.error) for node, reply in replies.items() if reply.has_error()}
        return {node: replies[node].content for node in replies if node not in missing}, missing

    def _send_and_wait(
        self, round: int, messages: Sequence[Message]
    ) -> tuple[dict[int, Message], dict[str, int]]:
        """The replies that arrived before the deadline by node, and the nodes of the others by message id."""
        ids = list(self.grid.push_messages(messages))
        if len(ids) < len(messages) or not all(ids):
            raise DataError(
                f"round {round}: the SuperLink did not accept the message to every node",
                field="messages",
                value=f"{sum(map(bool, ids))} of {len(messages)} accepted",
                expected="every message accepted",
            )
        waiting = {
            message_id: message.metadata.dst_node_id
            for message_id, message in zip(ids, messages, strict=True)
        }
        replies: dict[int, Message] = {}
        end = time.monotonic() + self.config.deadline
        while waiting and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
            for reply in self.grid.pull_messages(list(waiting)):
                # The node is the one that was asked, not the one that the reply names.
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    replies[node] = reply
        return replies, waiting


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train with the configuration of the run; `flower.json` in the output folder says how it ended."""
    config = RunConfig.read(context.run_config)
    out = Path(config.out)
    error = None
    try:
        _train(grid, config, out, context.run_id)
    except Exception as failure:
        error = str(failure) if isinstance(failure, RefinerError) else f"{type(failure).__name__}: {failure}"
        raise
    finally:
        status = json.dumps({"run": str(context.run_id), "error": error})
        write_atomically(out / "flower.json", status.encode())


def _train(grid: Grid, config: RunConfig, out: Path, run: int) -> None:
    experiment = config.experiment(**read_server_settings(out))
    aggregation, make_secure_rounds = make_aggregation(config.aggregation), None
    if isinstance(aggregation, Secure):
        make_secure_rounds = partial(
            SecureRounds,
            aggregation,
            read_identities(out),
            session_name(run),
            min_clients=config.min_train_nodes,
        )

    def make_clients(task: Task, data: object) -> Clients:
        def log_round(summary: dict[str, Any]) -> None:
            _append_to_rounds(out, run, summary)

        return RemoteClients(grid, task, config, experiment, log_round, make_secure_rounds)

    run_experiment(
        experiment,
        out,
        make_clients=make_clients,
        resume=config.resume,
        checkpoint_every=config.checkpoint_every,
        device=torch.device(config.device),
    )


def _append_to_rounds(out: Path, run: int, summary: dict[str, Any]) -> None:
    """Append a line of JSON about a round to `rounds.jsonl`."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "rounds.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"run": str(run), **summary}) + "\n")
        file.flush()
        os.fsync(file.fileno())

"""A client's side of secure aggregation over Flower; its keys and state lie in its private folder.

Flower starts a new process for every message. Between messages the client's secrets of the round are in a
file that only its owner can read. Each step removes them from the file before it starts, so that no step can
be repeated from the same state, whatever happens during the step.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from flwr.app import RecordDict
from torch import Tensor

from refiner.errors import DataError
from refiner.federation.flower.aggregation import Secure
from refiner.federation.flower.answered_rounds import one_at_a_time
from refiner.federation.flower.client_secrets import load_identity
from refiner.federation.flower.identities import read_identities
from refiner.federation.flower.messages import instructions_digest
from refiner.federation.flower.secure_messages import (
    INTRODUCE,
    StepRequest,
    from_records,
    received_request,
    to_records,
)
from refiner.federation.secure import AggregationError, RoundConfig, SecureClient
from refiner.federation.secure.messages import ids_to_bytes
from refiner.files import file_error, write_atomically
from refiner.secret_file import others_have_permission

MakeUpdate = Callable[[int], tuple[Tensor, int]]
"""Returns the client's protected model update `[N]` of a round, and its number of samples."""


@dataclass
class PersistedRound:
    """The state that a client keeps from one message to the next, `aggregation.json` in its folder."""

    last_rounds: dict[str, int] = field(default_factory=dict)
    """By session, the last round begun. No round is begun twice; entries are never removed."""
    session: str = ""
    round: int = 0
    clients: list[int] = field(default_factory=list)
    size: int = 0
    instructions_digest: str = ""
    """Digest of the round's training instructions, in hex."""
    state: str | None = None
    """The round's secrets; None while a step is running, and when the client is out of the round."""

    @classmethod
    def read(cls, folder: Path) -> "PersistedRound":
        """The state in a folder; an empty one if no round was ever begun."""
        path = folder / "aggregation.json"
        if not path.exists():
            return cls()
        try:
            persisted = cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            # Without this file a round could be begun twice, so only its owner may decide to delete it.
            raise file_error(
                path,
                "unreadable; delete it when no training of it is running",
                "a state that this client wrote",
            ) from error
        if others_have_permission(path, 0o077):
            raise file_error(path, "others can read it; use chmod 600", "a file that only its owner can read")
        return persisted

    def write(self, folder: Path) -> None:
        """Replace the state in a folder, readable by its owner only."""
        write_atomically(folder / "aggregation.json", json.dumps(asdict(self)).encode(), private=True)


class SecureParticipant:
    """A client that takes part in secure aggregation, identified by its key in `identities.json`.

    Args:
        folder: The client's private folder.
        settings: The client's settings of secure aggregation.
        session: Name of the training run.

    Raises:
        DataError: If the client's key or the list of keys is missing or wrong.
    """

    def __init__(self, folder: Path, settings: Secure, session: str) -> None:
        self.folder, self.settings, self.session = folder, settings, session
        self.identity = load_identity(folder)
        self.public_keys = read_identities(folder)
        ids = [client for client, key in self.public_keys.items() if key == self.identity.public]
        if len(ids) != 1:
            raise DataError(
                f"identities.json: contains this client's own key {len(ids)} times, expected once",
                field="identities.json",
                value=len(ids),
                expected="this client's own key, once",
            )
        self.client_id = ids[0]

    def reply(self, content: RecordDict, node: int, make_update: MakeUpdate) -> RecordDict:
        """The reply to one step; the new state is on the disk before it is returned."""
        request = received_request(content)
        if request.step == INTRODUCE:
            return to_records(self._introduction(node))
        with one_at_a_time(self.folder):
            persisted = PersistedRound.read(self.folder)
            begin = self._begin if request.step == "advertise" else self._resume
            client = begin(request, persisted)
            persisted.state = None
            persisted.write(self.folder)
            message = self._run_step(client, request, content, make_update)
            persisted.state = client.state().decode()
            persisted.write(self.folder)
        return to_records(message)

    def _introduction(self, node: int) -> dict[str, bytes]:
        """Which client this node is, signed for this node so that no other node can claim the same."""
        signature = self.identity.sign("introduction", self.session, node, self.client_id)
        return {"client": ids_to_bytes([self.client_id]), "signature": signature}

    def _round_config(self, request: StepRequest) -> RoundConfig:
        return self.settings.round_config(
            self.session,
            request.round,
            request.clients,
            self.public_keys,
            request.size,
            request.instructions_digest,
        )

    def _begin(self, request: StepRequest, persisted: PersistedRound) -> SecureClient:
        config = self._round_config(request)
        last_round = persisted.last_rounds.get(self.session)
        client = SecureClient(config, self.client_id, self.identity, last_round=last_round)
        persisted.last_rounds[self.session] = request.round
        persisted.session, persisted.round = self.session, request.round
        persisted.clients, persisted.size = list(request.clients), request.size
        persisted.instructions_digest = request.instructions_digest.hex()
        return client

    def _resume(self, request: StepRequest, persisted: PersistedRound) -> SecureClient:
        is_current = (persisted.session, persisted.round) == (self.session, request.round)
        if not is_current or persisted.state is None:
            raise AggregationError(
                f"round {request.round}: asked for {request.step}, but this client is not in the round"
            )
        # Participants and instructions were agreed on in the first step, whatever a later message says.
        first_request = StepRequest(
            "advertise",
            persisted.round,
            tuple(persisted.clients),
            persisted.size,
            bytes.fromhex(persisted.instructions_digest),
        )
        config = self._round_config(first_request)
        client = SecureClient.restore(config, self.client_id, self.identity, persisted.state.encode())
        if client.step != request.step:
            raise AggregationError(
                f"round {request.round}: asked for {request.step}, but the next step is {client.step}"
            )
        return client

    def _run_step(
        self, client: SecureClient, request: StepRequest, content: RecordDict, make_update: MakeUpdate
    ) -> dict[str, bytes]:
        message = from_records(content)
        if request.step == "advertise":
            return client.advertise_keys()
        if request.step == "share":
            return client.share_keys(message)
        if request.step == "confirm":
            return client.confirm_survivors(message)
        if request.step == "unmask":
            return client.unmask(message)
        # All clients of the sum have signed the same digest, so it is checked before an update is computed.
        received, agreed = instructions_digest(content), client.config.instructions_digest
        if received != agreed:
            raise AggregationError(
                f"instructions: digest {received.hex()[:16]}..., but this client signed "
                f"{agreed.hex()[:16]}...; nothing is sent"
            )
        update, samples = make_update(request.round)
        return client.mask_update(update, message, samples)

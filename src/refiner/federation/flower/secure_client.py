"""A client's side of secure aggregation over Flower: what it trusts and what it holds lies in its own folder.

Flower starts a new process for every message. Between them the client's secrets of the round are in a file
that only its owner may read, and each step takes them out of it before it begins: whatever becomes of the
step, there is no way back to before it.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from flwr.app import RecordDict
from torch import Tensor

from refiner.errors import DataError, SettingError
from refiner.federation.flower.aggregation import (
    INTRODUCE,
    Ask,
    Secure,
    from_records,
    read_identities,
    to_records,
)
from refiner.federation.flower.client_secrets import identity_in, others_may, write_private
from refiner.federation.flower.messages import order_digest
from refiner.federation.secure import AggregationError, Agreement, SecureClient
from refiner.federation.secure.messages import ids_to_bytes

MakeMove = Callable[[int], tuple[Tensor, int]]
"""Of a round: the client's protected move `[N]`, and of how many samples it is."""


@dataclass
class Held:
    """What a client keeps from one message to the next, `aggregation.json` in its folder."""

    begun: dict[str, int] = field(default_factory=dict)
    """By session, the last round begun: none is begun again. It is never shortened."""
    session: str = ""
    round: int = 0
    clients: list[int] = field(default_factory=list)
    size: int = 0
    order: str = ""
    """The digest, in hex, of the order that the round is for."""
    state: str | None = None
    """The round's secrets; None once the client is out of it, and while a step is under way."""

    @classmethod
    def read(cls, folder: Path) -> "Held":
        """What is kept in a folder; nothing if no round was ever begun."""
        path = folder / "aggregation.json"
        if not path.exists():
            return cls()
        try:
            made = cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            # Without it, rounds that were begun could be asked for again: that is for the owner to say.
            raise DataError(f"{path}: unreadable; delete it once no training that began goes on") from error
        if others_may(path, 0o077):
            raise DataError(f"{path}: others may read it; use chmod 600")
        return made

    def write(self, folder: Path) -> None:
        """Keep it in the place of what was there, for its owner alone."""
        write_private(folder / "aggregation.json", json.dumps(asdict(self)).encode())


class Member:
    """One client, known to the others by its key."""

    def __init__(self, folder: Path, settings: Secure, session: str) -> None:
        self.folder, self.settings, self.session = folder, settings, session
        self.identity = identity_in(folder)
        self.known = read_identities(folder)
        numbers = [client for client, key in self.known.items() if key == self.identity.public]
        if len(numbers) != 1:
            raise DataError(
                f"identities.json: holds this client's own key {len(numbers)} times, expected once"
            )
        self.number = numbers[0]

    def answer(self, content: RecordDict, node: int, make_move: MakeMove) -> RecordDict:
        """The answer to one step. What is kept is on the disk before it is returned."""
        ask = Ask.read(content)
        if ask.step == INTRODUCE:
            return to_records(self._introduction(node))
        with _alone(self.folder):
            held = Held.read(self.folder)
            client = self._begun(ask, held) if ask.step == "advertise" else self._resumed(ask, held)
            held.state = None
            held.write(self.folder)
            message = self._step(client, ask, content, make_move)
            held.state = client.state().decode()
            held.write(self.folder)
        return to_records(message)

    def _introduction(self, node: int) -> dict[str, bytes]:
        """Which client this node is; signed for this node, so that no other can say the same."""
        signature = self.identity.sign("introduction", self.session, node, self.number)
        return {"client": ids_to_bytes([self.number]), "signature": signature}

    def _agreement(self, ask: Ask) -> Agreement:
        return self.settings.agreement(self.session, ask.round, ask.clients, self.known, ask.size, ask.order)

    def _begun(self, ask: Ask, held: Held) -> SecureClient:
        agreement = self._agreement(ask)
        after = held.begun.get(self.session)
        client = SecureClient(agreement, self.number, self.identity, after=after)
        held.begun[self.session] = ask.round
        held.session, held.round = self.session, ask.round
        held.clients, held.size, held.order = list(ask.clients), ask.size, ask.order.hex()
        return client

    def _resumed(self, ask: Ask, held: Held) -> SecureClient:
        if (held.session, held.round) != (self.session, ask.round) or held.state is None:
            raise AggregationError(f"round {ask.round}: asked for {ask.step}, but this client is not in it")
        # Who takes part, and in what, was agreed to at the beginning, whatever a later message says.
        begun = Ask("advertise", held.round, tuple(held.clients), held.size, bytes.fromhex(held.order))
        agreement = self._agreement(begun)
        client = SecureClient.restore(agreement, self.number, self.identity, held.state.encode())
        if client.step != ask.step:
            raise AggregationError(f"round {ask.round}: asked for {ask.step}, its next step is {client.step}")
        return client

    def _step(
        self, client: SecureClient, ask: Ask, content: RecordDict, make_move: MakeMove
    ) -> dict[str, bytes]:
        message = from_records(content)
        if ask.step == "advertise":
            return client.advertise()
        if ask.step == "share":
            return client.share(message)
        if ask.step == "confirm":
            return client.confirm(message)
        if ask.step == "unmask":
            return client.unmask(message)
        # Those in the sum have all signed for one order: before a move is made, that this is the one.
        got, agreed = order_digest(content), client.agreement.order
        if got != agreed:
            raise AggregationError(
                f"order: its digest is {got.hex()[:16]}…, expected {agreed.hex()[:16]}…, which this client "
                "signed for; nothing leaves"
            )
        move, samples = make_move(ask.round)
        return client.mask(move, message, samples)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One step at a time: two at once could begin at the same state and tell two stories."""
    try:
        import fcntl
    except ImportError:
        raise SettingError("aggregation = secure: needs a system with file locks as POSIX has them") from None
    with (folder / "aggregation.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # gone with this process, however it ends
        except OSError:
            raise AggregationError("another step of this client is under way; nothing leaves") from None
        yield

"""The fourth stage of a step: answers round requests of the server from a window of noisy rows."""

from __future__ import annotations

from typing import Any, NamedTuple

from client_nodes.privacy import PrivateBatch
from client_nodes.publisher import EncodedUpdate, Publisher
from client_nodes.snapshots import Snapshots
from client_nodes.window import Window
from shoal.algorithms.registry import is_in_rounds, rounds_algorithm
from shoal.config.contract import Contract, Model
from shoal.config.privacy import privacy_mode
from shoal.config.sections import ClientSettings
from shoal.errors import InvalidData, InvalidState, MessageRejected
from shoal.protocol.messages import RoundRequest, Snapshot, Update, round_request_of


class RejectedRequest(NamedTuple):
    """A round request that this client cannot answer, and why."""

    model: str
    round: int
    detail: str


class Answers(NamedTuple):
    """What became of the round requests that were open."""

    updates: list[EncodedUpdate]
    rejected: list[RejectedRequest]


class RoundAnswers:
    """Answers the newest round request of each model in rounds, all from one window of rows.

    An answer depends on the request and the window alone. The version of the answered request is stored together
    with the answer, so no request is answered twice, whenever the client is killed.
    """

    def __init__(
        self, contract: Contract, client: str, publisher: Publisher, snapshots: Snapshots, settings: ClientSettings
    ) -> None:
        self._contract = contract
        # Computing the digest encodes every feature, so it is not done for each answer.
        self._digest = contract.digest
        self._statement = privacy_mode(contract).statement()
        self._client = client
        self._publisher = publisher
        self._snapshots = snapshots
        self._models = [model for model in contract.models if is_in_rounds(model.algorithm)]
        self.window = Window(contract.width, settings.window_rows, settings.window_s)
        self._answered = {model.name: 0 for model in self._models}
        """version of the newest request answered"""
        self._sequence = {model.name: 0 for model in self._models}

    @property
    def expects_requests(self) -> bool:
        """Whether a round of any model is open, so that the next request may arrive at any moment."""
        newest = (self._snapshots.newest(model.name) for model in self._models)
        return any(snapshot is not None and snapshot.round_request is not None for snapshot in newest)

    def keep(self, batch: PrivateBatch, now: float) -> None:
        """Add the rows of the batch to the window, if any model needs them."""
        if self._models:
            self.window.add(batch.rows, batch.times, now)

    def is_due(self, now: float) -> bool:
        """Whether there is a request to answer. Raises as the log does."""
        if self._models:
            self._snapshots.follow()
        return any(self._open_request(model, now) is not None for model in self._models)

    def make_answers(self, now: float) -> Answers:
        """Answer every open request that asks this client. Raises as the log does."""
        answers = Answers([], [])
        if self._models:
            self._snapshots.follow()
        for model in self._models:
            if (request := self._open_request(model, now)) is None:
                continue
            # A request that cannot be answered is not tried again: its parameters do not change.
            self._answered[model.name] = request.version
            try:
                answers.updates.append(self._answer(model, request, now))
            except (InvalidData, MessageRejected) as wrong:
                answers.rejected.append(RejectedRequest(model.name, request.round, str(wrong)))
        return answers

    def reset_published(self) -> None:
        """The requests answered so far were another server's; the versions of new ones begin at 1 again."""
        self._answered = dict.fromkeys(self._answered, 0)

    def state(self) -> dict[str, Any]:
        models = {name: {"answered": self._answered[name], "sequence": self._sequence[name]} for name in self._answered}
        return {"models": models, "window": self.window.state() if models else None}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        if not self._models:
            return
        try:
            self.window.restore(state["window"])
            for name in self._answered:
                saved = state["models"][name]
                self._answered[name], self._sequence[name] = saved["answered"], saved["sequence"]
        except (KeyError, TypeError, ValueError) as broken:
            raise InvalidState(f"the checkpoint of the answered round requests is damaged: {broken}") from None

    def _open_request(self, model: Model, now: float) -> RoundRequest | None:
        snapshot = self._snapshots.newest(model.name)
        request = None if snapshot is None else round_request_of(snapshot)
        if request is None or request.version <= self._answered[model.name]:
            return None
        rows_min = max(request.rows_min, model.rounds.rows_min)
        if now >= request.deadline or len(self.window) < rows_min or not request.selects(self._contract, self._client):
            return None
        return request

    def _answer(self, model: Model, request: RoundRequest, now: float) -> EncodedUpdate:
        snapshot = self._snapshots.newest(model.name)
        assert isinstance(snapshot, Snapshot)
        rows = self.window.rows[-model.readings_max :]
        update = Update(
            federation=self._contract.federation,
            contract=self._digest,
            model=model.name,
            algorithm=model.algorithm,
            client=self._client,
            sequence=self._sequence[model.name] + 1,
            readings=len(rows),
            privacy=self._statement,
            arrays=rounds_algorithm(model.algorithm).answer(snapshot.arrays, rows),
            made_at=now,
            newest_reading_at=self.window.newest_reading_at,
            round=request.round,
        )
        records = self._publisher.make_records(update, snapshot.arrays)
        self._sequence[model.name] += 1
        return records

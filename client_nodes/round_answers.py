"""Answering calls: what a client says of its window, once for each call."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from client_nodes.publisher import Publisher, Said
from client_nodes.snapshots import Snapshots
from client_nodes.window import Window
from shoal.algorithms.registry import is_in_rounds, rounds_algorithm
from shoal.algorithms.streaming import Rows
from shoal.config.contract import Contract, Model
from shoal.config.settings import ClientSettings
from shoal.errors import InvalidData, InvalidState, MessageRejected
from shoal.protocol.messages import Snapshot, Update
from shoal.protocol.round_request import RoundRequest, round_request_of
from shoal.telemetry.events import log_event


class RoundAnswers:
    """Answers the newest call of each model in rounds, all from one window of rows.

    What a call is answered with depends on the call and the window alone. That it has been answered is remembered
    together with the answer, so no call is answered twice, whenever the client is killed.
    """

    def __init__(
        self, contract: Contract, client: str, voice: Publisher, snapshots: Snapshots, settings: ClientSettings
    ) -> None:
        self._contract = contract
        # Not asked of the contract for each answer: it is made of every feature.
        self._digest = contract.digest
        self._client = client
        self._voice = voice
        self._snapshots = snapshots
        self._models = [model for model in contract.models if is_in_rounds(model.algorithm)]
        self.window = Window(contract.width, settings.window_rows, settings.window_s)
        self._answered = {model.name: 0 for model in self._models}
        """version of the newest call answered"""
        self._sequence = {model.name: 0 for model in self._models}

    def __bool__(self) -> bool:
        """Whether there is any model in rounds, so that rows must be kept."""
        return bool(self._models)

    @property
    def expects_calls(self) -> bool:
        """Whether a model is in the midst of its rounds, so that the next call may come at any moment."""
        newest = (self._snapshots.newest(model.name) for model in self._models)
        return any(snapshot is not None and snapshot.round_request is not None for snapshot in newest)

    def keep(self, rows: Rows, times: Sequence[float | None], now: float) -> None:
        """Private rows (n, d) to answer from, with their event times."""
        if self._models:
            self.window.add(rows, times, now)

    def due(self, now: float) -> bool:
        """Whether `make_answers` would say anything. Raises as the log does."""
        if self._models:
            self._snapshots.follow()
        return any(self._open_call(model, now) is not None for model in self._models)

    def make_answers(self, statement: dict[str, Any], now: float) -> list[Said]:
        """The answers to all open calls that ask this client, as words to be remembered. Raises as the log does."""
        answers: list[Said] = []
        if not self.due(now):
            return answers
        for model in self._models:
            if (asked := self._open_call(model, now)) is None:
                continue
            # A call that cannot be answered is not tried again: its parameters stay what they are.
            self._answered[model.name] = asked.version
            try:
                answers.append(self._answer(model, asked, statement, now))
            except (InvalidData, MessageRejected) as wrong:
                log_event("call_rejected", logging.WARNING, model=model.name, round=asked.round, detail=str(wrong))
        return answers

    def reset_published(self) -> None:
        """The calls answered so far were somebody else's; those to come count from 1 again."""
        self._answered = dict.fromkeys(self._answered, 0)

    def state(self) -> dict[str, Any]:
        calls = {name: [self._answered[name], self._sequence[name]] for name in self._answered}
        return {"calls": calls, "window": self.window.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        try:
            self.window.restore(state["window"])
            for name in self._answered:
                self._answered[name], self._sequence[name] = state["calls"][name]
        except (KeyError, TypeError, ValueError) as broken:
            raise InvalidState(f"what the checkpoint says of calls answered is damaged: {broken}") from None

    def _open_call(self, model: Model, now: float) -> RoundRequest | None:
        snapshot = self._snapshots.newest(model.name)
        call = None if snapshot is None else round_request_of(snapshot)
        if call is None or call.version <= self._answered[model.name]:
            return None
        rows_min = max(call.rows_min, model.rounds.rows_min)
        if now >= call.deadline or len(self.window) < rows_min or not call.selects(self._contract, self._client):
            return None
        return call

    def _answer(self, model: Model, call: RoundRequest, statement: dict[str, Any], now: float) -> Said:
        snapshot = self._snapshots.newest(model.name)
        assert isinstance(snapshot, Snapshot)
        update = Update(
            federation=self._contract.federation,
            contract=self._digest,
            model=model.name,
            algorithm=model.algorithm,
            client=self._client,
            sequence=self._sequence[model.name] + 1,
            readings=len(self.window),
            privacy=statement,
            arrays=rounds_algorithm(model.algorithm).answer(snapshot.arrays, self.window.rows),
            made_at=now,
            newest_reading_at=self.window.newest_reading_at,
            round=call.round,
        )
        words = self._voice.say(update)
        self._sequence[model.name] += 1
        return words

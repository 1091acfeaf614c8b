"""Who has answered a call, and for whom a model in rounds waits."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import chain, count, islice
from typing import Any

from shoal.algorithms.rounds.policies import Answer
from shoal.config.contract import Contract, Rounds
from shoal.protocol.messages import Update
from shoal.protocol.round_request import RoundRequest, new_round_request

DRAWS_MAX = 10_000
"""versions tried for a call that asks at least one of the clients known"""
MISSED_MAX = 3
"""calls that a client leaves unanswered before nobody waits for it any more; it is welcome whenever it answers"""


class Participation:
    """The newest answer of each client that no round has counted yet, and the calls each client has missed."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._answers: dict[str, Answer] = {}
        self._rows: dict[str, int] = {}
        self._missed: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def take(self, update: Update) -> None:
        """An answer, newer than any of this client before."""
        assert update.round is not None
        self._answers[update.client] = Answer(update.client, update.round, update.arrays)
        self._rows[update.client] = update.readings

    def newest_of(self, client: str) -> int | None:
        """The round of this client's waiting answer."""
        return self._answers[client].round if client in self._answers else None

    def answers(self) -> list[Answer]:
        """All that wait, late ones to earlier rounds too."""
        return list(self._answers.values())

    def to(self, number: int) -> list[str]:
        """Clients whose answers to this round are here."""
        return [client for client, answer in self._answers.items() if answer.round == number]

    @property
    def rows(self) -> int:
        """Rows behind the answers that wait."""
        return sum(self._rows[client] for client in self._answers)

    def forget(self) -> None:
        """The answers have been counted, or are of no use any more."""
        self._answers.clear()
        self._rows.clear()

    def close(self, expected: Sequence[str], answered: Collection[str]) -> None:
        """Keep who has missed the call that closes now."""
        for client in expected:
            self._missed[client] = self._missed.get(client, 0) + 1
        for client in answered:
            self._missed.pop(client, None)

    def waited_for(self, known: Sequence[str]) -> list[str]:
        """Those of the clients known that have not missed too many calls."""
        return [client for client in known if self._missed.get(client, 0) < MISSED_MAX]

    def expected(self, call: RoundRequest, known: Sequence[str]) -> list[str]:
        """Those of them that a call asks."""
        return [client for client in self.waited_for(known) if call.selects(self._contract, client)]

    def enough(self, call: RoundRequest, known: Sequence[str], share: float) -> bool:
        """Whether so large a share of those expected, and one at least, has answered."""
        # The rounding of a product must not ask for one more than the share does.
        wanted = math.ceil(share * len(self.expected(call, known)) - 1e-9)
        return len(self.to(call.round)) >= max(1, wanted)

    def call(
        self, agreed: Rounds, model: str, number: int, version: int, now: float, known: Sequence[str]
    ) -> RoundRequest:
        """The call of round `number`, in a version after `version`, that asks at least one of those waited for."""
        calls = (new_round_request(agreed, model, number, later, now) for later in count(version + 1))
        first = next(calls)
        # In a small federation the lot may fall on nobody: it is drawn again, by leaving a version out.
        if not self.waited_for(known):
            return first
        return next((call for call in chain([first], islice(calls, DRAWS_MAX)) if self.expected(call, known)), first)

    def state(self) -> dict[str, Any]:
        answers = [
            [answer.client, answer.round, dict(answer.stats), self._rows[answer.client]] for answer in self.answers()
        ]
        return {"answers": answers, "missed": self._missed}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `KeyError`, `TypeError` or `ValueError` for a damaged state."""
        for client, number, arrays, rows in state["answers"]:
            self._answers[client] = Answer(client, number, arrays)
            self._rows[client] = rows
        self._missed = dict(state["missed"])

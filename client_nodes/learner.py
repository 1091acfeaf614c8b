"""One model on a client: its algorithm's client half and the updates it has made."""

from __future__ import annotations

from typing import Any

from client_nodes.publisher import Publisher, Said
from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.streaming import Rows
from shoal.config.contract import Contract, Model
from shoal.errors import InvalidState
from shoal.protocol.messages import Update


class Learner:
    """Learns rows for one model and says what changed."""

    def __init__(self, contract: Contract, model: Model, client: str, voice: Publisher) -> None:
        self._contract = contract
        self._model = model
        self._client = client
        self._voice = voice
        self._half = streaming_algorithm(model.algorithm).client(model.options, contract.width)
        self._sequence = 0
        self._readings = 0

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def nodes(self) -> int:
        """Nodes it has now."""
        return self._half.size

    def learn(self, rows: Rows) -> None:
        """Learn private rows (n, d), each once, in order."""
        self._half.learn(rows)
        self._readings += len(rows)

    def make_updates(self, statement: dict[str, Any], now: float, newest_reading_at: float | None) -> Said:
        """The next update as words to be remembered, none when there is nothing to say yet."""
        arrays = self._half.contribute()
        if not any(len(array) for array in arrays.values()):
            return []
        self._sequence += 1
        update = Update(
            federation=self._contract.federation,
            contract=self._contract.digest,
            model=self._model.name,
            algorithm=self._model.algorithm,
            client=self._client,
            sequence=self._sequence,
            readings=self._readings,
            privacy=statement,
            arrays=arrays,
            made_at=now,
            newest_reading_at=newest_reading_at,
        )
        self._readings = 0
        return self._voice.say(update)

    def reset_published(self) -> None:
        """Nobody remembers what was said before: the next update says everything."""
        self._half.reset_published()

    def state(self) -> dict[str, Any]:
        return {"half": self._half.state(), "sequence": self._sequence, "readings": self._readings}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        try:
            self._half.restore(state["half"])
            self._sequence = state["sequence"]
            self._readings = state["readings"]
        except (KeyError, TypeError) as broken:
            raise InvalidState(f"the checkpoint of model {self._model.name} is damaged: {broken}") from None

"""Messages of masked counts on the server: each goes to the round of its model, and what is due
comes from there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, cast

from shoal.config.resolved import ResolvedContract
from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.masked import (
    CloseRound,
    HelperSum,
    MaskedCounts,
    RoundPlan,
    check_envelope,
    log_name,
)
from shoal.protocol.messages import ModelMessage, Update
from shoal.protocol.signatures import ServerKeys
from shoal.runtime.checkpoint import OutboxRecord
from shoal.saved_state import SavedState, state_type
from shoal.server_node.ingest.model_round import ModelRound, ModelRoundState
from shoal.server_node.ingest.outcome import IngestOutcome
from shoal.server_node.ingest.suspects import is_check
from shoal.server_node.models.base import ServedModel
from shoal.server_node.models.streaming import StreamingBase
from shoal.server_node.regions.hierarchy import UpstreamState
from shoal.transports.base import Log, Record, partition_of

MESSAGES: Final[Mapping[bytes, type[ModelMessage]]] = {
    kind.TYPE.encode(): kind for kind in (MaskedCounts, CloseRound, HelperSum, RoundPlan)
}


@state_type
class MaskedRoundsState(SavedState):
    """Saved state of `MaskedRounds`."""

    version: ClassVar[int] = 3

    rounds: dict[str, ModelRoundState]
    """name of the model -> its part"""


class MaskedRounds:
    """The rounds of all models of a federation with masked counts; any other one has none."""

    def __init__(
        self,
        contract: ResolvedContract,
        models: Mapping[str, ServedModel],
        log: Log,
        contribute: Callable[[Update, float, int], None] = lambda *_: None,
        upstream: UpstreamState | None = None,
    ) -> None:
        """`log`: that of the federation, whose topic of updates is there.

        `upstream`: the upstream federation, for whose models `contribute` takes what a batch is
        passed on as.
        """
        self._contract = contract
        self._rounds: dict[str, ModelRound] = {}
        self._partitions: dict[str, int] = {}
        """model -> the partition of its messages"""
        # Where all clients are in regions, no round of its own is ever open.
        if not contract.mode.helpers:
            return
        followed = () if upstream is None else upstream.federation.models
        topic = contract.contract.updates_topic
        name = log_name(log.identity(topic))
        partitions = len(log.bounds(topic))
        for model in contract.counted:
            key = contract.contract.update_key(model.name)
            self._partitions[model.name] = partition_of(key, partitions)
            self._rounds[model.name] = ModelRound(
                contract,
                model,
                cast("StreamingBase", models[model.name]),
                name,
                contribute,
                upstream if model.name in followed else None,
            )

    def takes(self, record: Record) -> bool:
        """Whether the record is a message of masked counts."""
        return dict(record.headers).get("type", b"") in MESSAGES

    def take(self, record: Record, outcome: IngestOutcome, keys: ServerKeys) -> IngestOutcome:
        """Take one message of masked counts in. Raises `MessageRejected`."""
        message = MESSAGES[dict(record.headers)["type"]].decode(record.value, record.headers)
        check_envelope(message, self._contract.federation, self._contract.digest)
        current = self._rounds.get(message.model)
        if current is None:
            raise MessageRejected(
                "model", "no model of the contract learns from masked counts under this name"
            )
        # The offsets of a batch are of one partition. The first message must not decide which one:
        # it may be a copy that somebody has written elsewhere.
        if record.partition != self._partitions[message.model]:
            raise MessageRejected("malformed", "it is not in the partition of its model's key")
        signed = (record.topic, record.value or b"", record.headers, message.TYPE)
        if isinstance(message, MaskedCounts):
            # Invented clients have no keys. A forged message under such a name changes a check,
            # which has no reading in it.
            if not is_check([message.client]):
                keys.check_client(message.client, *signed)
            applied = current.take_counts(message, record)
            current.note_first(outcome.at)
        elif isinstance(message, CloseRound):
            keys.check_request(*signed)
            applied = current.take_close(message)
        elif isinstance(message, RoundPlan):
            keys.check_request(*signed)
            applied = current.take_plan(message)
        else:
            # Its helper's signature is in it. By the log's time, so that a rebuild makes the same
            # update.
            helper_sum = cast("HelperSum", message)
            applied = current.take_sum(helper_sum, outcome.at, record.timestamp_ms / 1000)
        return outcome._replace(result="request", model=message.model, request=applied)

    def records(self, now: float) -> Iterator[OutboxRecord]:
        """The ends and plans of rounds that are due, and the rounds that are not announced yet."""
        contract = self._contract.contract
        topic = contract.updates_topic
        for name, current in self._rounds.items():
            key = contract.update_key(name)
            due = [*current.due_check(now), current.due_close(now), current.due_plan(now)]
            for message in due:
                if message is not None:
                    yield OutboxRecord(topic, message.encode(), key, message.headers())
            opened = current.announcement()
            if opened is not None:
                yield OutboxRecord(
                    contract.snapshots_topic, opened.encode(), opened.record_key, opened.headers()
                )

    def waits_for(self) -> dict[str, list[str]]:
        """model -> the helpers that its closed round waits for."""
        return {
            name: current.waits_for for name, current in self._rounds.items() if current.waits_for
        }

    @property
    def wrong_helpers(self) -> int:
        """Helpers that are wrong, of all models."""
        return sum(len(current.wrong_helpers) for current in self._rounds.values())

    def state(self) -> dict[str, Any]:
        """Plain values and parts for `restore`."""
        if not self._rounds:
            return {}
        rounds = {name: current.state() for name, current in self._rounds.items()}
        return MaskedRoundsState(rounds=rounds).saved()

    def restore(self, state: Any) -> None:
        """Become the saved ones; the models have been restored before. Raises `InvalidState`."""
        if not self._rounds:
            return
        rounds = MaskedRoundsState.read(state).rounds
        try:
            for name, current in self._rounds.items():
                current.restore(rounds[name])
        except (KeyError, MessageRejected) as damaged:
            raise InvalidState(
                f"the checkpoint's rounds of masked counts are damaged: {damaged}"
            ) from None

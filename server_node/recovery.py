"""Where the server goes on: from its checkpoint, from the start of the log, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server_node.models.rounds import RoundsModel
from server_node.models.streaming import StreamingModel
from server_node.reassembly import Reassembly
from shoal.config.contract import Contract
from shoal.errors import InvalidState, LogError, MessageRejected
from shoal.protocol.lease import LEASE_KEY
from shoal.protocol.messages import Snapshot
from shoal.protocol.validation import Validator
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, Positions, Record, beginning, latest

STATE_VERSION = 1

Models = Mapping[str, StreamingModel | RoundsModel]


def remembered(
    contract: Contract, log: Log, positions: Positions, models: Models, joining: Reassembly
) -> dict[str, Any]:
    """Everything a restart needs."""
    return {
        "version": STATE_VERSION,
        "contract": contract.digest,
        "log": log.identity(contract.updates_topic),
        "positions": [[partition, offset] for partition, offset in sorted(positions.items())],
        "models": {name: model.state() for name, model in models.items()},
        "joining": joining.state(),
    }


def gone_on(contract: Contract, log: Log, state: Mapping[str, Any], models: Models, joining: Reassembly) -> Positions:
    """Put the models back as they were; the updates from there on are new to them. Raises `InvalidState`."""
    if state.get("version") != STATE_VERSION:
        raise InvalidState("the server's checkpoint is of another version of shoal; run that one")
    if state["contract"] != contract.digest:
        raise InvalidState(
            "the server's checkpoint was made under another contract; put the old federation file back, "
            "or begin the new federation under a new name or in a new folder"
        )
    if state["log"] != log.identity(contract.updates_topic):
        raise InvalidState(
            "the log was made anew since the checkpoint was saved; restore the log, or begin again in a new folder"
        )
    for name, model in models.items():
        model.restore(state["models"][name])
    # Before there were parts nothing was kept of them.
    if "joining" in state:
        joining.restore(state["joining"])
    log_event("checkpoint_restored", models=len(models))
    return dict(state["positions"])


def begun(contract: Contract, border: Validator, log: Log, models: Models, rebuild: bool) -> Positions:
    """The start of the log. Raises `InvalidState` when snapshots tell of a memory that is gone, unless it is to be
    rebuilt, and `LogError` when the log no longer holds what it would be rebuilt from."""
    published = latest(log, contract.snapshots_topic)
    published.pop(LEASE_KEY, None)
    at = beginning(log, contract.updates_topic)
    if published and not rebuild:
        raise InvalidState(
            f"snapshots of {contract.federation} were published but the server's checkpoint is gone; "
            "restore it, or let --rebuild learn everything again from the log"
        )
    from_the_log = [name for name, model in models.items() if isinstance(model, StreamingModel)]
    if any(name.encode() in published for name in from_the_log) and any(at.values()):
        raise LogError("the log no longer begins at its first update, so the model cannot be rebuilt from it")
    for name, model in models.items():
        if record := published.get(name.encode()):
            model.rebuild(_believed(border, name, record))
    return at


def _believed(border: Validator, name: str, record: Record) -> Snapshot:
    """The newest snapshot of a model, which alone says how the model began. Raises `InvalidState`."""
    try:
        snapshot = Snapshot.decode(record.value, record.headers)
        border.check_snapshot(snapshot)
        if snapshot.model != name:
            raise MessageRejected("model", f"it is of {snapshot.model}")
    except MessageRejected as rejected:
        raise InvalidState(
            f"the newest snapshot of model {name} cannot be used to begin again as the server began ({rejected}); "
            "restore the server's checkpoint, or begin under a new federation name"
        ) from None
    return snapshot

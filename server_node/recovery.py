"""Recovery of the server: from its checkpoint, or from the start of the log, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server_node.models.base import ServedModel
from server_node.quarantine.register import QuarantineRegister
from server_node.reassembly import Reassembly
from shoal.config.contract import Contract
from shoal.errors import InvalidState, LogError, MessageRejected
from shoal.protocol.lease import is_for_servers
from shoal.protocol.messages import Snapshot
from shoal.protocol.validation import Validator
from shoal.transports.base import Log, Positions, Record, beginning, first_positions, latest

STATE_VERSION = 10

Models = Mapping[str, ServedModel]


def saved_state(
    contract: Contract,
    log: Log,
    positions: Positions,
    models: Models,
    reassembly: Reassembly,
    quarantine: QuarantineRegister,
) -> dict[str, Any]:
    """Plain values, arrays and parts: everything a restart needs."""
    return {
        "version": STATE_VERSION,
        "contract": contract.digest,
        "log": log.identity(contract.updates_topic),
        "positions": [[partition, offset] for partition, offset in sorted(positions.items())],
        "models": {name: model.state() for name, model in models.items()},
        "reassembly": reassembly.state(),
        "quarantine": quarantine.state(),
    }


def restore_state(
    contract: Contract,
    log: Log,
    state: Mapping[str, Any],
    models: Models,
    reassembly: Reassembly,
    quarantine: QuarantineRegister,
) -> Positions:
    """Restore the models and return the positions to read on from. Raises `InvalidState`, and as the log does."""
    if state.get("version") != STATE_VERSION:
        raise InvalidState("the server's checkpoint is of another version of shoal; run that one")
    if state["contract"] != contract.digest:
        raise InvalidState(
            "the server's checkpoint was made under another contract; put the old federation file back, "
            "or start the new federation under a new name or in a new folder"
        )
    if state["log"] != log.identity(contract.updates_topic):
        raise InvalidState(
            "the log was made anew since the checkpoint was saved; restore the log, or start again in a new folder"
        )
    for name, model in models.items():
        model.restore(state["models"][name])
    reassembly.restore(state["reassembly"])
    quarantine.restore(state["quarantine"])
    return dict(state["positions"])


def start_fresh(contract: Contract, validator: Validator, log: Log, models: Models, rebuild: bool) -> Positions:
    """The positions of the start of the log, for a server without a checkpoint.

    Raises `InvalidState` when published snapshots show that a checkpoint has been lost, unless the models are to be
    rebuilt from the log; `LogError` when the log no longer holds what they would be rebuilt from.
    """
    newest = latest(log, contract.snapshots_topic)
    published = {key: record for key, record in newest.items() if not is_for_servers(record)}
    oldest = beginning(log, contract.updates_topic)
    if published and not rebuild:
        raise InvalidState(
            f"snapshots of {contract.federation} were published but the server's checkpoint is gone; "
            "restore it, or let --rebuild learn everything again from the log"
        )
    whole_log = [name for name, model in models.items() if model.needs_whole_log]
    if any(name.encode() in published for name in whole_log) and any(oldest.values()):
        raise LogError("the log no longer begins at its first update, so the model cannot be rebuilt from it")
    for name, model in models.items():
        if record := published.get(name.encode()):
            model.rebuild(_validated(validator, name, record))
    # A server that never published reads from the first update ever, so that a log that has lost some is noticed.
    return oldest if published else first_positions(log, contract.updates_topic)


def _validated(validator: Validator, name: str, record: Record) -> Snapshot:
    """The newest snapshot of a model, which alone shows how the model began. Raises `InvalidState`."""
    try:
        snapshot = Snapshot.decode(record.value, record.headers)
        validator.check_snapshot(snapshot)
        if snapshot.model != name:
            raise MessageRejected("model", f"it is of {snapshot.model}")
    except MessageRejected as rejected:
        raise InvalidState(
            f"the newest snapshot of model {name} cannot be used to rebuild the model ({rejected}); "
            "restore the server's checkpoint, or start under a new federation name"
        ) from None
    return snapshot

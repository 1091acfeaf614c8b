"""The newest snapshot of a model, read from the log by a command."""

from __future__ import annotations

from shoal.config.resolved import ResolvedContract
from shoal.errors import LogError, MessageRejected, SettingsError
from shoal.protocol.messages import Snapshot
from shoal.protocol.published_contract import CONTRACT_KEY, with_earlier
from shoal.protocol.validation import Validator
from shoal.transports.base import Log, latest


def newest_snapshot(contract: ResolvedContract, log: Log, model: str) -> Snapshot:
    """The newest snapshot of a model in the log.

    Raises `SettingsError` if there is none, `LogError` for a bad one.
    """
    newest = latest(log, contract.contract.snapshots_topic)
    record = newest.get(model.encode())
    if record is None:
        raise SettingsError(
            f"model {model} has published no snapshot yet; run `shoal server` and clients first"
        )
    try:
        snapshot = Snapshot.decode(record.value, record.headers)
        # Any writer of the topic may write a snapshot: it is checked as a client checks
        # it. After a change of the contract the newest one may still be of the one before.
        Validator(with_earlier(contract, newest.get(CONTRACT_KEY))).check_snapshot(snapshot)
    except MessageRejected as rejected:
        raise LogError(
            f"the newest snapshot of {model} in the log is not valid: {rejected}"
        ) from None
    return snapshot

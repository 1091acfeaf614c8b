"""What `shoal check` reads in the log of a federation: its contract, and states of its models."""

from __future__ import annotations

from contextlib import closing

from shoal.config.changes import ContractChange, changed_text
from shoal.config.extension_settings import parse_address, transport_part
from shoal.config.resolved import ResolvedModel
from shoal.config.settings import Config
from shoal.errors import MessageRejected, SettingsError, TopicMissing
from shoal.protocol.messages import Snapshot
from shoal.protocol.model_state import model_state
from shoal.protocol.published_contract import CONTRACT_KEY, published_contracts
from shoal.protocol.topics import ensure_topics
from shoal.runtime.logs import open_federation_log
from shoal.transports import open_log
from shoal.transports.base import Record, latest
from shoal.transports.kafka.settings import KafkaSettings


def changes_in_log(config: Config) -> str:
    """What the file changes of the federation's contract. Raises `SettingsError` where it cannot,
    and as the log."""
    agreed = config.contract
    with closing(open_federation_log(config, read_only=True)) as log:
        ensure_topics(log, agreed, config.log)
        record = latest(log, agreed.snapshots_topic).get(CONTRACT_KEY)
        chain = published_contracts(record, agreed.federation)
    if not chain:
        return "no server has published a contract yet"
    if chain[-1].digest == agreed.digest:
        return "nothing has changed"
    change = ContractChange(chain[-1], agreed)
    refused = change.refused(chain[:-1])
    if refused:
        raise SettingsError(changed_text(change, refused))
    return changed_text(change, ())


def states_in_log(config: Config) -> dict[str, str]:
    """name -> the state of the model by its newest snapshot in the log. Raises as the log does."""
    contract = config.resolved
    with closing(open_federation_log(config, read_only=True)) as log:
        ensure_topics(log, config.contract, config.log)
        newest = latest(log, contract.contract.snapshots_topic)
    states = {}
    for name, model in contract.models.items():
        states[name] = _state(model, newest.get(name.encode()))
    return states


def partitions_of_site(config: Config) -> int | None:
    """Partitions of the topic that the hosts of a group share; None where it is not there.

    Raises `SettingsError` for brokers that are too old for a group, and as the log does.
    """
    from shoal.transports.kafka.exactly_once import (  # noqa: PLC0415 - Kafka is an extra
        check_transactions,
    )

    transport, place = parse_address(config.host.address)
    settings = transport_part(config.host, transport)
    assert isinstance(settings, KafkaSettings), "HostSettings refuses other transports"
    with closing(open_log(config.host)) as log:
        check_transactions(place, settings)
        try:
            return len(log.bounds(config.host.topic))
        except TopicMissing:
            return None


def _state(model: ResolvedModel, record: Record | None) -> str:
    if record is None or record.value is None:
        return model_state(model, None)
    try:
        snapshot = Snapshot.decode(record.value, record.headers)
    except MessageRejected as wrong:
        return f"The newest snapshot cannot be read: {wrong.detail}"
    return model_state(model, snapshot)

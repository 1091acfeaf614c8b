"""The topics of a federation, declared once."""

from __future__ import annotations

from dataclasses import replace

from shoal.config.contract import Contract
from shoal.config.settings import ClientSettings, LogSettings
from shoal.transports.base import Log, TopicSettings

MIB = 1024 * 1024

READINGS = "readings"
"""on a client's own premises: raw readings, as its producer writes them"""
REJECTED = "rejected"
"""on a client's own premises: readings that could not be learnt, newest word per place"""
LABELS = "labels"
"""on a client's own premises: the cluster of each reading, newest word per place"""

READINGS_SETTINGS = TopicSettings(retain_bytes=ClientSettings().readings_bytes_max)
# Whoever sets a record aside adds a few headers, so there must be room for more than the largest record itself.
LOCAL_SETTINGS = TopicSettings(
    compact=True, retain_bytes=256 * MIB, record_bytes_max=READINGS_SETTINGS.record_bytes_max + MIB
)


def readings_settings(client: ClientSettings) -> TopicSettings:
    """How this client's readings are kept."""
    return replace(READINGS_SETTINGS, retain_bytes=client.readings_bytes_max)


def declared_topics(contract: Contract, kept: LogSettings) -> dict[str, TopicSettings]:
    """The federation's topics by name, each as [log] says it is to be kept."""
    return {
        contract.updates_topic: TopicSettings(
            partitions=kept.partitions,
            retain_s=kept.updates_keep_s or None,
            retain_bytes=kept.updates_keep_bytes or None,
            record_bytes_max=kept.update_bytes_max,
        ),
        contract.snapshots_topic: TopicSettings(compact=True, record_bytes_max=kept.snapshot_bytes_max),
        contract.rejected_topic: TopicSettings(
            compact=True, retain_bytes=kept.rejected_keep_bytes, record_bytes_max=kept.update_bytes_max + MIB
        ),
    }


def ensure_topics(log: Log, contract: Contract, kept: LogSettings | None = None) -> None:
    """Create the federation's topics where they are missing. Raises `LogError` when one is kept differently."""
    for name, settings in declared_topics(contract, kept or LogSettings()).items():
        log.ensure(name, settings)

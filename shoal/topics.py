"""The topics of a federation, declared once."""

from __future__ import annotations

from shoal.contract import Contract
from shoal.messages import RECORD_BYTES_MAX
from shoal.transports.contract import Log, TopicSettings

MIB = 1024 * 1024
DAY_S = 86400.0

READINGS = "readings"
"""on a client's own premises: raw readings, as its producer writes them"""
REFUSED = "refused"
"""on a client's own premises: readings that could not be learnt, newest word per place"""
LABELS = "labels"
"""on a client's own premises: the cluster of each reading, newest word per place"""

READINGS_SETTINGS = TopicSettings(retain_bytes=1024 * MIB)
# Whoever sets a record aside adds a few headers, so there must be room for more than the largest record itself.
LOCAL_SETTINGS = TopicSettings(
    compact=True, retain_bytes=256 * MIB, record_bytes_max=READINGS_SETTINGS.record_bytes_max + MIB
)
UPDATES_SETTINGS = TopicSettings(retain_s=7 * DAY_S, record_bytes_max=RECORD_BYTES_MAX)
SNAPSHOTS_SETTINGS = TopicSettings(compact=True, record_bytes_max=RECORD_BYTES_MAX)
REJECTED_SETTINGS = TopicSettings(compact=True, retain_bytes=256 * MIB, record_bytes_max=RECORD_BYTES_MAX + MIB)


def declared_topics(contract: Contract) -> dict[str, TopicSettings]:
    """The federation's topics by name."""
    return {
        contract.updates_topic: UPDATES_SETTINGS,
        contract.snapshots_topic: SNAPSHOTS_SETTINGS,
        contract.rejected_topic: REJECTED_SETTINGS,
    }


def ensure_topics(log: Log, contract: Contract) -> None:
    """Create the federation's topics where they are missing. Raises `LogRefused` when one is kept differently."""
    for name, settings in declared_topics(contract).items():
        log.ensure(name, settings)

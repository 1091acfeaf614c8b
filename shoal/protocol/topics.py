"""The topics of a federation and of a client's own site: their names, and how each is kept."""

from __future__ import annotations

from dataclasses import replace

from shoal.config.contract import Contract
from shoal.config.limits import (
    COPY_BYTES,
    DEFAULT_RECORD_BYTES_MAX,
    EVENT_BYTES_MAX,
    HISTORY_BYTES_MAX,
    LABEL_BYTES_MAX,
    MIB,
)
from shoal.config.sections import ClientSettings
from shoal.config.settings import LogSettings
from shoal.transports.base import Log, TopicSettings

READINGS = "readings"
"""raw readings, on the client's site, as its producer writes them"""
RELEASES = "readings.releases"
"""beside the readings: what each client has released of them, in a mode with a guarantee; the
newest of a key counts"""
REJECTED = "refused"
"""readings, on the client's site, that could not be learnt; keyed by place, the newest record
counts"""
LABELS = "labels"
"""the cluster of each reading, on the client's site; keyed by place, the newest record counts"""
SITE_EVENTS = "events"
"""streaks of novel readings, on the client's site; keyed by id, the newest record counts"""

READINGS_SETTINGS = TopicSettings(
    retain_bytes=ClientSettings().readings_bytes_max, record_bytes_max=DEFAULT_RECORD_BYTES_MAX
)
RELEASES_SETTINGS = TopicSettings(compact=True)
# A rejected reading is kept with a few headers more, so its record is larger than the original.
LOCAL_SETTINGS = TopicSettings(
    compact=True, retain_bytes=256 * MIB, record_bytes_max=DEFAULT_RECORD_BYTES_MAX + COPY_BYTES
)


def readings_settings(client: ClientSettings) -> TopicSettings:
    """How the topic of this client's readings is kept."""
    return replace(READINGS_SETTINGS, retain_bytes=client.readings_bytes_max)


def ensure_local_topics(log: Log, client: ClientSettings) -> None:
    """Create the topics on a client's own site where they are missing. Raises as the log does."""
    log.ensure(READINGS, readings_settings(client))
    log.ensure(REJECTED, LOCAL_SETTINGS)
    if client.label:
        ensure_label_topics(log)


def ensure_label_topics(log: Log) -> None:
    """Create the topics of labels, and of what is found in them, in a client's own log.

    Raises as the log does.
    """
    log.ensure(LABELS, LOCAL_SETTINGS)
    log.ensure(SITE_EVENTS, LOCAL_SETTINGS)


def declared_topics(
    contract: Contract, log: LogSettings, labels: bool = False, upstream: bool = False
) -> dict[str, TopicSettings]:
    """The federation's topics by name, each with how it is kept by the settings of [log].

    `labels`: with the topic of published labels, which exists only where a client has
    `publish_labels`; `upstream`: with the topic of contributions, which exists only where the
    server has an upstream federation.
    """
    published = TopicSettings(
        compact=True, retain_bytes=log.labels_retention_bytes, record_bytes_max=LABEL_BYTES_MAX
    )
    updates = TopicSettings(
        partitions=log.partitions,
        retain_s=log.updates_retention_s or None,
        retain_bytes=log.updates_retention_bytes or None,
        record_bytes_max=log.update_bytes_max,
    )
    topics = {
        contract.updates_topic: updates,
        contract.snapshots_topic: TopicSettings(
            compact=True, record_bytes_max=log.snapshot_bytes_max
        ),
        contract.events_topic: TopicSettings(
            retain_bytes=log.events_retention_bytes, record_bytes_max=EVENT_BYTES_MAX
        ),
        contract.history_topic: TopicSettings(compact=True, record_bytes_max=HISTORY_BYTES_MAX),
        contract.rejected_topic: TopicSettings(
            compact=True,
            retain_bytes=log.rejected_retention_bytes,
            record_bytes_max=log.update_bytes_max + COPY_BYTES,
        ),
    }
    if labels:
        topics[contract.labels_topic] = published
    if upstream:
        # One partition: they are passed on in the order in which they were made.
        topics[contract.contributions_topic] = replace(updates, partitions=1)
    return topics


def ensure_topics(
    log: Log,
    contract: Contract,
    settings: LogSettings | None = None,
    labels: bool = False,
    upstream: bool = False,
) -> None:
    """Create the federation's topics where they are missing.

    `labels`: that of published labels too; `upstream`: that of contributions too. Raises `LogError`
    when one has other settings.
    """
    topics = declared_topics(contract, settings or LogSettings(), labels, upstream)
    for name, topic in topics.items():
        log.ensure(name, topic)

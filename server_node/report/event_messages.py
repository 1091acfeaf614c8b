"""Events of clusters as messages, with centres in units, names, and a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from shoal.config.contract import Contract, category_text
from shoal.protocol.events import ClusterEventMessage
from shoal.protocol.messages import Snapshot
from shoal.server_node.history.unlike import MEAN_DAYS
from shoal.server_node.report.description import Description
from shoal.server_node.report.lineage.clusters import Cluster, Lineage, dwell_text
from shoal.server_node.report.lineage.events import ClusterEvent, EventKind
from shoal.server_node.report.status import RecentEvent

CLIENT_KINDS: Final = frozenset({EventKind.UNLIKE_OTHERS, EventKind.LIKE_OTHERS_AGAIN})
"""kinds of events that are of a client, and name a cluster only"""
EVENTS_MAX: Final = 100
"""newest cluster events of a model that are kept for people to read"""


def _centre_by_name(centre: tuple[float, ...], contract: Contract) -> dict[str, float | str]:
    by_name: dict[str, float | str] = {}
    for feature, value in zip(contract.features, centre, strict=True):
        is_category = feature.kind == "category"
        by_name[feature.name] = category_text(value, feature) if is_category else value
    return by_name


def event_messages(
    contract: Contract,
    snapshot: Snapshot,
    before: Lineage,
    after: Lineage,
    events: Sequence[ClusterEvent],
    described: Mapping[int, Description],
    client_names: Mapping[str, str],
) -> list[ClusterEventMessage]:
    """The messages of the events that came with `snapshot`, in their order.

    `before` is the lineage of the snapshot before, for clusters that have ended since; `described`
    is by the numbers of the snapshot; `client_names` are those that sentences have in the place of
    clients.
    """
    numbers = {identity: number for number, identity in after.of_number.items()}
    clusters = {**before.clusters, **after.clusters}
    units = {feature.name: feature.unit for feature in contract.features}
    messages: list[ClusterEventMessage] = []
    for place, event in enumerate(events):
        cluster = clusters[event.identity]
        other = None if event.other is None else clusters.get(event.other)
        # A cluster that has ended is not in the snapshot, so nothing is known of where it lies.
        label = ""
        centre = None
        description = described.get(numbers.get(event.identity, -1))
        if description is not None:
            label = description.label
            centre = _centre_by_name(description.centre, contract)
        share_before = event.share_before
        if share_before is not None:
            # Sums of shares may be above 1 by rounding.
            share_before = min(1.0, share_before)
        client = client_names.get(event.client, event.client)
        words = sentence(
            replace(event, client=client), title(cluster, label), title(other), snapshot.reading_s
        )
        messages.append(
            ClusterEventMessage(
                # Made of what the log decides: an event that is published again after a kill has
                # the same id, by which a receiver drops it.
                id=f"{snapshot.model}/{snapshot.version}/{place}",
                kind=event.kind,
                federation=contract.federation,
                model=snapshot.model,
                version=snapshot.version,
                readings=snapshot.readings,
                at=snapshot.made_at,
                reading_at=snapshot.reading_time,
                cluster=event.identity,
                name=cluster.name,
                label=label,
                text=words,
                other=event.other,
                other_name="" if other is None else other.name,
                muted=cluster.muted(snapshot.made_at),
                share=min(1.0, event.share),
                share_before=share_before,
                dwell=event.dwell,
                dwell_before=event.dwell_before,
                centre=centre,
                units=None if centre is None else units,
                client=event.client,
                first_reading_at=event.first,
                last_reading_at=event.last,
                known=len(after.known),
                active=len(after.active),
            )
        )
    return messages


def recent_event(event: ClusterEventMessage) -> RecentEvent:
    """An event as it is kept for people to read."""
    found_later_at = None
    if event.happened_at != event.found_at:
        found_later_at = event.found_at
    return RecentEvent(
        event.happened_at,
        event.kind,
        event.cluster,
        event.other,
        event.text,
        event.last_reading_at,
        found_later_at,
    )


def title(cluster: Cluster | None, label: str = "") -> str:
    """The title of a cluster in a sentence: its identity with its name, else with what sets it
    apart."""
    if cluster is None:
        return "another cluster"
    if cluster.name:
        return f'cluster {cluster.identity} "{cluster.name}"'
    if label:
        return f"cluster {cluster.identity} ({label})"
    return f"cluster {cluster.identity}"


def sentence(
    event: ClusterEvent, cluster: str, other: str | None, reading_s: float | None = None
) -> str:
    """The event in words; `cluster` and `other` are titles, `reading_s` seconds between readings,
    if known."""
    if event.kind in CLIENT_KINDS:
        return _client_sentence(event, cluster)
    share = f"{ratio(event.share)} of the recent readings"
    if event.client:
        share += f", nearly all of them of {event.client}"
    other = other or "another cluster"
    before = ratio(event.share_before or 0.0)
    dwell = dwell_text(event.dwell, reading_s)
    dwell_before = dwell_text(event.dwell_before, reading_s)
    ends = {
        EventKind.BIRTH: f"is new: {share}",
        EventKind.PARTED: f"has parted from {other}: {share}",
        EventKind.MERGED: f"has merged into {other}",
        EventKind.QUIET: "is quiet: no readings fall to it at present",
        EventKind.RETURNED: f"is back: {share}",
        EventKind.GONE: "is gone: none of its nodes form a cluster any more",
        EventKind.NAMED: "has got its name",
        EventKind.CONFIRMED: "is confirmed as normal: it raises no alerts",
        EventKind.MUTED: "is muted: it raises no alerts for a time",
        EventKind.UNMUTED: "raises alerts again",
        EventKind.UNUSUAL: (
            f"is unusual for this time of day: {ratio(event.share)} of the readings, "
            f"{before} is usual"
        ),
        EventKind.USUAL_AGAIN: (
            f"is usual again for this time of day: {ratio(event.share)} of the readings"
        ),
        EventKind.SHARE_MOVED: (
            f"has {ratio(event.share)} of the readings of a day, {before} is usual at these times"
        ),
        EventKind.DWELL_MOVED: f"lasts {dwell} at a stretch, before {dwell_before}",
    }
    return f"{cluster} {ends[event.kind]}"


def _client_sentence(event: ClusterEvent, cluster: str) -> str:
    if event.kind is EventKind.LIKE_OTHERS_AGAIN:
        return f"client {event.client} differs from the other clients no more than usual again"
    return (
        f"client {event.client} is unlike all others: in {MEAN_DAYS} days {ratio(event.share)} of "
        f"its readings fell to {cluster}, and {ratio(event.share_before or 0.0)} of those of the"
        " most similar client"
    )


def ratio(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.0f} %"

"""What the top of the page says of a model: what changed last, whether it is usual, and which client feeds what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from server_node.history.summary import Lately
from server_node.history.usual import Usual
from server_node.status import ModelStatus

EVENTS_MAX = 40
"""newest cluster events that are sent"""
CLIENTS_MAX = 200
"""clients whose clusters are sent: those with the most readings"""
CLUSTERS_PER_CLIENT_MAX = 8


def overview_json(model: ModelStatus, recently: Lately | None, usual: Usual | None) -> dict[str, Any]:
    """Shares are in thousandths. `recently` and `usual` are None where there is no history."""
    return {
        "events": [event._asdict() for event in model.events[-EVENTS_MAX:]],
        "usual": None if usual is None else _usual_json(usual),
        "feeds": {} if recently is None else feeds_json(recently.by_client),
    }


def _usual_json(usual: Usual) -> dict[str, Any]:
    return {
        "oldest": usual.oldest,
        "newest": usual.newest,
        "like_days": usual.like_days,
        "weekend": usual.weekend,
        "likeness": _thousandths(usual.likeness),
        "likeness_range": [_thousandths(each) for each in usual.likeness_range or ()],
        "clusters": [
            {"identity": identity, "range": [_thousandths(each) for each in ends]}
            for identity, ends in sorted(usual.ranges.items())
        ],
        "new": _thousandths(usual.new),
        "new_usual": _thousandths(usual.new_usual),
    }


def feeds_json(by_client: Mapping[str, Sequence[tuple[int, float]]]) -> dict[str, list[list[int]]]:
    """For each client the clusters that its readings fell to, the largest first, with the percentage of each.

    `by_client` has shares, and the clients with the most readings first. Whole percents change less often than
    thousandths, and the page shows no more.
    """
    return {
        client: [[identity, round(100 * share)] for identity, share in by_client[client][:CLUSTERS_PER_CLIENT_MAX]]
        for client in sorted(islice(by_client, CLIENTS_MAX))
    }


def _thousandths(share: float | None) -> int | None:
    return None if share is None else round(1000 * share)

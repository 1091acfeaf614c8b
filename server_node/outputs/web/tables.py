"""The page's tables as JSON: clusters, what changed in them last, which client feeds which,
clients, and privacy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import count, islice
from typing import Any

import numpy as np

from shoal.algorithms.view import ClusteringView
from shoal.config.privacy_report import DaySpending, models_report, spent_in_a_day
from shoal.config.resolved import ResolvedContract
from shoal.privacy.formal import EPSILON_WEAK
from shoal.privacy.masked import Masked
from shoal.server_node.history.summary import RecentHistory, Usual
from shoal.server_node.outputs.web.json_values import digits
from shoal.server_node.report.description import Description, Interval, describe, heaviest_numbers
from shoal.server_node.report.lineage import Cluster, Lineage
from shoal.server_node.report.types import ClientStatus, ModelStatus

EPSILONS_MAX = 64
"""features whose epsilon is listed one by one"""
CLUSTERS_MAX = 200
COMPARED_MAX = 12
"""clusters that the page compares by feature: those with the most mass"""
# The page is sent whole at each change; those that sent last are what a person looks for.
CLIENTS_MAX = 1000
INACTIVE_INTERVALS = 3
INACTIVE_AFTER_S_MIN = 30
"""a client is inactive that has sent nothing for this many of its usual intervals, and for this
many seconds"""
CLIENTS_FEEDING_MAX = 10
"""clients listed by name for each cluster"""


def clusters_table(
    view: ClusteringView,
    model: ModelStatus,
    contract: ResolvedContract,
    features: list[int],
    recent: RecentHistory | None = None,
) -> dict[str, Any]:
    """A row for each known cluster, by its identity; of very many the heaviest.

    `features` are the positions of those whose values are shown, `recent` is the model's recent
    history.
    """
    total = len(view.centres)
    lineage = model.lineage
    known_mass = sum(cluster.mass for cluster in lineage.known)
    described = describe(view, contract.contract, lineage.times)
    members = np.bincount(view.cluster[view.cluster >= 0], minlength=total)
    number_of = heaviest_numbers(lineage, view, described)
    rows = {
        str(cluster.identity): _cluster_row(
            cluster,
            described.get(number_of.get(cluster.identity, -1)),
            contract,
            features,
            place < COMPARED_MAX,
        )
        | share_texts(cluster.identity, recent)
        | {
            "share": round(cluster.mass / known_mass, 4) if known_mass else 0.0,
            "nodes": sum(
                int(members[one]) for one, of in lineage.of_number.items() if of == cluster.identity
            ),
        }
        for place, cluster in enumerate(
            sorted(lineage.known, key=lambda cluster: -cluster.mass)[:CLUSTERS_MAX]
        )
    }
    shown = set(lineage.of_number)
    return {
        "clusters": rows,
        "single_nodes": sum(int(members[one] == 1) for one in range(total) if one not in shown)
        if view.joins_nodes
        else 0,
    }


def history_fields(identity: int, recent: RecentHistory | None) -> dict[str, Any]:
    """Movement of a cluster's share, in thousandths, and the clients that feed it; both also in
    words."""
    feeding = () if recent is None else recent.feeding.get(identity, ())[:CLIENTS_FEEDING_MAX]
    shares = () if recent is None else recent.shares.get(identity, ())
    return {
        "trend": [None if share is None else round(1000 * share) for share in shares],
        "fed_by": [{"client": client, "share": round(share, 3)} for client, share in feeding],
        **share_texts(identity, recent),
    }


def share_texts(identity: int, recent: RecentHistory | None) -> dict[str, str]:
    """Movement of a cluster's share, and the clients that feed it, in words; empty where it is not
    known."""
    if recent is None:
        return {"trend_text": "", "fed_by_text": ""}
    return {"trend_text": recent.trend_text(identity), "fed_by_text": recent.feeding_text(identity)}


def _cluster_row(
    cluster: Cluster,
    description: Description | None,
    contract: ResolvedContract,
    features: list[int],
    compared: bool,
) -> dict[str, Any]:
    centre = spread = None
    if description is not None:
        centre = [round(description.centre[j], digits(contract.features[j])) for j in features]
        if compared:
            spread = [
                _middle_80(description.intervals[j], digits(contract.features[j])) for j in features
            ]
    return {
        "identity": cluster.identity,
        "name": cluster.name,
        "label": "" if description is None else description.label,
        "text": "" if description is None else description.text(contract.contract),
        "active": cluster.active,
        "confirmed": cluster.confirmed,
        "muted_until": cluster.muted_until,
        "recent_share": round(cluster.recent_share, 4),
        "parent": cluster.parent,
        "since": cluster.since,
        "slot": cluster.slot,
        "centre": centre,
        "spread": spread,
    }


def _middle_80(interval: Interval, places: int) -> list[float]:
    """The ends of the middle 80 % of a cluster's mass."""
    return [round(value, places) for value in (interval.low, interval.high)]


def colour_slots(clusters: int, lineage: Lineage) -> list[int]:
    """The colour slot of each cluster by its number; those without an identity take slots that are
    free."""
    taken = {cluster.slot for cluster in lineage.known}
    free = (slot for slot in count() if slot not in taken)
    identities = (lineage.of_number.get(number) for number in range(clusters))
    slots = [
        None if identity is None else lineage.clusters[identity].slot for identity in identities
    ]
    return [next(free) if slot is None else slot for slot in slots]


MASKED_NOTE = (
    "Counts are masked, so that {who}. What a single client sends, its share of clusters and its quarantine are not "
    "here, because clients cannot be told apart; nor can one be unlearned."
)


def clients_note(contract: ResolvedContract) -> str:
    """Remark about the table of clients; "" for none."""
    if not contract.mode.masked:
        return ""
    in_regions = isinstance(contract.mode, Masked) and contract.mode.regions
    who = (
        "each region counts as one client"
        if in_regions
        else "batches of clients count as one, cohort"
    )
    return MASKED_NOTE.format(who=who)


def clients_table(clients: Sequence[ClientStatus]) -> Mapping[str, list[Any]]:
    """The clients, one list per column."""
    return {
        "name": [client.client for client in clients],
        "last_seen": [round(client.last_seen, 1) for client in clients],
        "readings": [client.readings for client in clients],
        "rejected": [client.rejected for client in clients],
        "readings_per_s": [round(client.readings_per_s, 2) for client in clients],
        "inactive_after_s": [
            max(INACTIVE_AFTER_S_MIN, round(INACTIVE_INTERVALS * client.interval_s))
            for client in clients
        ],
    }


EVENTS_MAX = 40
"""newest cluster events that are sent"""
FEEDS_CLIENTS_MAX = 200
"""clients whose clusters are sent: those with the most readings"""
CLUSTERS_PER_CLIENT_MAX = 8


def overview_json(
    model: ModelStatus, recent: RecentHistory | None, usual: Usual | None
) -> dict[str, Any]:
    """Shares are in thousandths. `recent` and `usual` are None where there is no history."""
    return {
        "events": [event._asdict() for event in model.events[-EVENTS_MAX:]],
        "usual": None if usual is None else _usual_json(usual),
        "alarm": model.unusual,
        "most_from": None
        if recent is None or recent.most_from is None
        else _most_from_json(*recent.most_from),
        "feeds": {} if recent is None else feeds_json(recent.by_client),
    }


def _most_from_json(client: str, share: float) -> dict[str, Any]:
    return {"client": client, "percent": round(100 * share)}


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
        "now": [[identity, round(share, 4)] for identity, share in sorted(usual.now.items())],
        "new": _thousandths(usual.new),
        "new_usual": _thousandths(usual.new_usual),
    }


def feeds_json(by_client: Mapping[str, Sequence[tuple[int, float]]]) -> dict[str, list[list[int]]]:
    """Clusters that the readings of each client fell to, the largest first, with the percentage of
    each.

    `by_client` has shares, and the clients with the most readings first. Whole percents change less
    often than thousandths, and the page shows no more.
    """
    return {
        client: whole_percents(by_client[client])[:CLUSTERS_PER_CLIENT_MAX]
        for client in sorted(islice(by_client, FEEDS_CLIENTS_MAX))
    }


def whole_percents(shares: Sequence[tuple[int, float]]) -> list[list[int]]:
    """Shares by identity in whole percents that add up to that of their sum: the largest remainders
    are rounded up."""
    exact = np.array([100.0 * share for _, share in shares])
    whole = np.floor(exact).astype(int)
    missing = round(float(exact.sum())) - int(whole.sum())
    # Stable: of equal remainders the first, so that the page does not flicker between two.
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
    return [
        [identity, percent] for (identity, _), percent in zip(shares, whole.tolist(), strict=True)
    ]


def _thousandths(share: float | None) -> int | None:
    return None if share is None else round(1000 * share)


def spent_by_one(contract: ResolvedContract, clients: Iterable[ClientStatus]) -> DaySpending | None:
    """Spending in a day of a device with all readings of one client, for the client where that is
    most.

    None without a guarantee, and until the rate of a client is known.
    """
    spent = [
        spent_in_a_day(
            contract,
            daily.readings,
            daily.updates,
            f"At its newest rate, a device of {client.client}",
        )
        for client in clients
        if (daily := client.daily) is not None
    ]
    return max(
        (each for each in spent if each is not None), key=lambda each: each.epsilon, default=None
    )


def privacy_text(contract: ResolvedContract, day: DaySpending | None = None) -> dict[str, Any]:
    """The privacy panel as plain values: title and tone (good, warn, bad), sentences, what is not
    covered, epsilons.

    `day` is what a device spends in a day; the tone warns of much.

    `epsilon` is the sum over all models, `per` what it is of in words; None when the mode has no
    epsilons. With `nominal` they guarantee nothing. `noise` is how far a feature is moved on
    average, in its own unit, or None if that is not known.
    """
    mode = contract.mode
    statement = contract.statement
    description = mode.describe()
    weak = day is not None and day.epsilon > EPSILON_WEAK
    epsilons = mode.epsilon_per_feature()
    noises = mode.noise_per_feature()
    return {
        "mode": mode.name,
        "formal": mode.formal,
        "adds_noise": mode.adds_noise,
        "title": description.title,
        "tone": "warn" if weak and description.tone == "good" else description.tone,
        "sentences": [*description.sentences, *([] if day is None else [day.text])],
        "day": None if day is None else float(f"{day.epsilon:.3g}"),
        "not_covered": list(description.not_covered),
        "epsilon": math.fsum(epsilons) if statement["nominal"] else contract.total_epsilon,
        "per": mode.unit.phrase,
        "nominal": statement["nominal"],
        "models": [
            {
                name: model[name]
                for name in ("name", "learns_from", "unit", "epsilon", "window_readings")
            }
            for model in models_report(contract)
        ],
        "features_total": contract.width,
        "epsilon_per_feature": [
            {
                "name": feature.name,
                "epsilon": epsilon,
                "low": feature.low,
                "high": feature.high,
                "unit": feature.unit,
                "noise": None if noises is None else (feature.high - feature.low) * noises[j],
            }
            for j, (feature, epsilon) in enumerate(
                zip(contract.features[:EPSILONS_MAX], epsilons, strict=False)
            )
        ],
    }

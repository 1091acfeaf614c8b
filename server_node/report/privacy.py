"""What a report says of privacy: the panel, and a remark where counts are masked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from shoal.config.privacy_report import DaySpending, models_report, spent_in_a_day
from shoal.config.resolved import ResolvedContract
from shoal.privacy.formal import EPSILON_WEAK
from shoal.privacy.masked import Masked
from shoal.server_node.report.status import ClientStatus

EPSILONS_MAX = 64
"""features whose epsilon is listed one by one"""


MASKED_NOTE = (
    "Counts are masked, so that {who}. What a single client sends, its share of clusters and its "
    "quarantine are not here, because clients cannot be told apart; nor can one be unlearned."
)


def clients_note(contract: ResolvedContract) -> str:
    """Remark about the table of clients; "" for none."""
    if not contract.mode.masked:
        return ""
    who = "batches of clients count as one, cohort"
    if isinstance(contract.mode, Masked) and contract.mode.regions:
        who = "each region counts as one client"
    return MASKED_NOTE.format(who=who)


def spent_by_one(
    contract: ResolvedContract, clients: Iterable[ClientStatus], client_names: Mapping[str, str]
) -> DaySpending | None:
    """Spending in a day of a device with all readings of one client, for the client where that is
    most.

    None without a guarantee, and until the rate of a client is known. `client_names` are those that
    sentences have in the place of clients.
    """
    most: DaySpending | None = None
    for client in clients:
        if client.daily is None:
            continue
        name = client_names.get(client.client, client.client)
        device = f"At its newest rate, a device of {name}"
        spent = spent_in_a_day(contract, client.daily.readings, client.daily.updates, device)
        if spent is not None and (most is None or spent.epsilon > most.epsilon):
            most = spent
    return most


def privacy_text(contract: ResolvedContract, day: DaySpending | None = None) -> dict[str, Any]:
    """The privacy panel as plain values: title and tone (good, warn, bad), sentences, what is not
    covered, epsilons.

    `day` is what a device spends in a day; the tone warns of much.

    `epsilon` is the sum over all models, `per` what it is of in words; None when the mode has no
    epsilons. With `nominal` they guarantee nothing.
    """
    mode = contract.mode
    nominal = contract.statement["nominal"]
    description = mode.describe()
    tone = description.tone
    sentences = list(description.sentences)
    if day is not None:
        sentences.append(day.text)
        if day.epsilon > EPSILON_WEAK and tone == "good":
            tone = "warn"
    return {
        "mode": mode.name,
        "formal": mode.formal,
        "adds_noise": mode.adds_noise,
        "title": description.title,
        "tone": tone,
        "guarantee": description.rows(),
        "sentences": sentences,
        "day": None if day is None else float(f"{day.epsilon:.3g}"),
        "not_covered": list(description.not_covered),
        "epsilon": math.fsum(mode.epsilon_per_feature()) if nominal else contract.total_epsilon,
        "per": mode.unit.phrase,
        "nominal": nominal,
        "models": [_model_privacy(model) for model in models_report(contract)],
        "features_total": contract.width,
        "epsilon_per_feature": _epsilon_per_feature(contract),
    }


def _model_privacy(report: Mapping[str, Any]) -> dict[str, Any]:
    names = ("name", "learns_from", "unit", "epsilon", "window_readings", "counted")
    return {name: report[name] for name in names}


def _epsilon_per_feature(contract: ResolvedContract) -> list[dict[str, Any]]:
    """The epsilon of each of the first features. `noise` is how far it is moved on average, in its
    own unit, or None if that is not known."""
    noises = contract.mode.noise_per_feature()
    listed = []
    epsilons = contract.mode.epsilon_per_feature()
    # A mode without epsilons lists no features.
    for j, (feature, epsilon) in enumerate(zip(contract.features, epsilons, strict=False)):
        if j == EPSILONS_MAX:
            break
        noise = None if noises is None else (feature.high - feature.low) * noises[j]
        listed.append(
            {
                "name": feature.name,
                "epsilon": epsilon,
                "low": feature.low,
                "high": feature.high,
                "unit": feature.unit,
                "noise": noise,
            }
        )
    return listed

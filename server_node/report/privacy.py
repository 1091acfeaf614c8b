"""What a report says of privacy: the panel, and a remark where counts are masked."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from shoal.config.privacy_report import DaySpending, models_report, spent_in_a_day
from shoal.config.resolved import ResolvedContract
from shoal.privacy.formal import EPSILON_WEAK
from shoal.privacy.masked import Masked
from shoal.server_node.report.status import ClientStatus

EPSILONS_MAX = 64
"""features whose epsilon is listed one by one"""


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

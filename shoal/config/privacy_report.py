"""The guarantees of a contract as plain values, and advice where a model would learn little of what
privacy leaves."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.density_tree import DENSITY_TREE
from shoal.algorithms.from_counts.cells import FEATURES_MAX
from shoal.config.base import DAY_S
from shoal.config.contract import Privacy
from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.privacy.formal import protection
from shoal.privacy.masked import CLIENTS_ADVISED, Masked


def privacy_report(contract: ResolvedContract) -> dict[str, Any]:
    """The guarantee of the federation, of each of its models, and what it does not cover.

    `epsilon`, of a `unit`, is the sum over all models, where noisy rows count once and each stream
    of counts once; None without a guarantee. `epsilon_spent` is what the noise tables really cost,
    which is at most that.
    """
    mode = contract.mode
    spent, _ = contract.epsilon_spent
    description = mode.describe()
    return {
        "mode": mode.name,
        "formal": mode.formal,
        "title": description.title,
        "sentences": list(description.sentences),
        **mode.unit.statement(),
        "epsilon": contract.total_epsilon,
        "epsilon_spent": spent if math.isfinite(spent) else None,
        "bounds": [
            {"name": feature.name, "low": feature.low, "high": feature.high, "unit": feature.unit}
            for feature in contract.features
        ],
        "models": [
            {**_model_report(contract, model), "epsilon_spent": model.epsilon_spent}
            for model in contract.models.values()
        ],
        "not_covered": list(description.not_covered),
    }


def models_report(contract: ResolvedContract) -> list[dict[str, Any]]:
    """Lines about each model: the statement of its messages, what it learns from, and how its
    windows close."""
    return [_model_report(contract, model) for model in contract.models.values()]


def _model_report(contract: ResolvedContract, model: ResolvedModel) -> dict[str, Any]:
    privacy = contract.contract.privacy
    counted = model.counts is not None
    return {
        "name": model.name,
        "algorithm": model.algorithm.name,
        "learns_from": "counts" if counted else "rows",
        **model.statement,
        "window_readings": privacy.window_readings if counted else None,
        "window_s": privacy.window_s if counted else None,
    }


class DaySpending(NamedTuple):
    """Spending of a device in a day in all that is published."""

    epsilon: float
    text: str
    """the same as a sentence, and how well that protects"""


def spent_in_a_day(
    contract: ResolvedContract,
    readings: float,
    windows: float | None = None,
    device: str = "A device",
) -> DaySpending | None:
    """Spending of a device with this many readings a day; None without a guarantee, and for masked
    counts, whose mode says what a client spends.

    `windows`: the windows that its client closes in a day, where a user is the privacy unit; None:
    as many as its own readings and the clock close.
    """
    if contract.total_epsilon is None or contract.mode.masked:
        return None
    units = readings
    where = ""
    if contract.mode.unit.is_user:
        privacy = contract.contract.privacy
        closed = DAY_S / privacy.window_s
        if not contract.mode.unit.hides_presence:
            closed = max(closed, readings / privacy.window_readings) if windows is None else windows
        units = min(readings, closed)
        where = f" in {_number(units)} windows"
    epsilon = contract.total_epsilon * units
    noun = "reading" if readings == 1 else "readings"
    return DaySpending(
        epsilon,
        f"{device} with {_number(readings)} {noun} a day{where} spends epsilon {_number(epsilon)} "
        f"a day. {protection(epsilon)}",
    )


def _number(value: float) -> str:
    """Three significant digits, so that a rate that hardly changes is the same text."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"


def hidden_presence_cost(contract: ResolvedContract, readings: float) -> str | None:
    """Cost of windows that close by the clock, at this many readings a day; None where they do
    not."""
    privacy = contract.contract.privacy
    unit = contract.mode.unit
    if not unit.hides_presence:
        return None
    windows = DAY_S / privacy.window_s
    places = privacy.window_readings
    charged = (contract.total_epsilon or 0.0) * windows * (1 if unit.is_user else places)
    # Readings at random times fall into places as balls do into urns.
    expected = readings / windows
    lost = (
        1.0 - places * -math.expm1(expected * math.log1p(-1.0 / places)) / expected
        if places > 1
        else 1.0
    )
    return (
        f"Windows close by the clock, {_number(windows)} a day, empty ones too, and the ledger "
        f"charges each as full: epsilon {_number(charged)} a day. Of {_number(readings)} readings "
        f"a day at random times {_number(100 * max(0.0, lost))} % share a place with another and "
        "are not counted; a shorter window_s makes that fewer"
    )


CLIENTS_SHOWN: Final = (50, 100, 200, 500, 1000)
MANY_FEATURES: Final = 8
"""number of features from which on masked counts take twice as many clients"""


class Need(NamedTuple):
    """Effort until clusters are found in masked counts."""

    clients: int
    windows: int
    """windows of each client"""
    days: float
    advised: bool
    text: str


def needs_of(
    contract: ResolvedContract, readings_per_day: float, clients: int | None = None
) -> list[Need]:
    """Effort to find clusters that lie apart, with this many clients or with some numbers of them.

    Only for masked counts and density_tree, on which the figures rest.
    """
    mode = contract.mode
    if not isinstance(mode, Masked) or all(
        model.algorithm.name != DENSITY_TREE.name for model in contract.counted
    ):
        return []
    privacy = contract.contract.privacy
    window_s = min(privacy.window_s, privacy.window_readings / readings_per_day * DAY_S)
    least = CLIENTS_ADVISED * (1 + (contract.width >= MANY_FEATURES))
    found = []
    for number in CLIENTS_SHOWN if clients is None else (clients,):
        windows = mode.windows_needed(number, contract.width, window_s * readings_per_day / DAY_S)
        days = windows * window_s / DAY_S
        text = f"{number} clients: {_number(windows)} windows of each, {_number(days)} days at [client] readings_per_day"
        if window_s == privacy.window_s:
            text += f"; window_s closes them with about {_number(window_s * readings_per_day / DAY_S)} readings"
        if (
            mode.span_nano is not None
            and windows * len(contract.counted) * mode.window_nano > mode.span_nano
        ):
            text += ", more than its budget allows in one span"
        if number < least:
            text += f". Advised against: take {least} clients or more"
        found.append(Need(number, windows, days, number >= least, text))
    return found


ROWS_EPSILON_MIN: Final = 100.0
"""per reading: with less, noise on rows hides clusters of several features"""
REGIMES_EPSILON_MIN: Final = 13.0
"""per feature: with less, two levels of three features, .15 of the range and three deviations
apart, were one regime"""
NEEDED_MANY: Final = 2e6
"""readings of all clients: of a hundred that send one a minute, two weeks"""
WEAK_EPSILON: Final = 10.0
"""per reading: beyond, there is hardly any protection"""
WINDOW_READINGS_MIN: Final = 100
"""least places of a window for each reading that a user may have in it: smaller ones have more
noise than readings"""


class Advice(NamedTuple):
    """Weaknesses of one model, and what to do."""

    model: str
    text: str


def advice_on(contract: ResolvedContract) -> list[Advice]:
    """Advice on each model, in their order; without a guarantee, on regimes alone, as their
    clusters are no place."""
    return [
        Advice(model.name, text)
        for model in contract.models.values()
        for text in _on_model(contract, model)
    ]


def _on_model(contract: ResolvedContract, model: ResolvedModel) -> list[str]:
    if model.counts is None and model.family.client_learns and model.streaming.labels_sequences:
        return _on_regimes(contract)
    if not contract.mode.formal:
        return []
    assert model.epsilon is not None, "a formal mode has an epsilon for every model"
    if model.counts is None:
        return _on_rows(contract, model.epsilon)
    return _on_counts(contract.contract.privacy, model.counts.algorithm, model.epsilon) + _on_need(
        contract, model
    )


def _on_need(contract: ResolvedContract, model: ResolvedModel) -> list[str]:
    assert model.counts is not None
    algorithm = model.counts.algorithm
    needed = (
        0.0
        if algorithm.readings_needed is None
        else algorithm.readings_needed(model.options, contract.width)
    )
    if needed <= NEEDED_MANY:
        return []
    less = "" if contract.width == 1 else ", or fewer features"
    terms = (
        "a larger epsilon or a smaller clip"
        if contract.mode.masked
        else "a larger epsilon, larger window_readings"
    )
    return [
        f"{algorithm.name} takes about {_number(needed)} readings of all clients until it shows "
        f"anything: take {terms}{less}"
    ]


def _on_regimes(contract: ResolvedContract) -> list[str]:
    epsilon = min(contract.mode.epsilon_per_feature(), default=math.inf)
    if epsilon >= REGIMES_EPSILON_MIN:
        return []
    return [
        f"noise at epsilon {epsilon:.3g} for each feature hides regimes: levels that differ by "
        f".15 of the range were one regime below {REGIMES_EPSILON_MIN:g}, or below 7 with stays "
        "of 500 readings"
    ]


def _on_rows(contract: ResolvedContract, epsilon: float) -> list[str]:
    found = []
    if epsilon < ROWS_EPSILON_MIN:
        grid = (
            ", or cluster_tree_from_counts for clusters of any shape"
            if contract.width <= FEATURES_MAX
            else ""
        )
        found.append(
            f"noisy rows at epsilon {epsilon:g} per reading show hardly any clusters: take "
            f"density_tree{grid}, which find them in private counts at an epsilon of 1 to 4, or "
            f"an epsilon of {ROWS_EPSILON_MIN:g} and more"
        )
    counted = [other.name for other in contract.counted]
    if counted and epsilon > WEAK_EPSILON:
        found.append(
            f"noisy rows at epsilon {epsilon:g} give away what the counts of {', '.join(counted)} "
            "protect: without models that learn from rows, a reading would cost only what counts "
            "cost"
        )
    return found


def _on_counts(privacy: Privacy, algorithm: CountingAlgorithm, epsilon: float) -> list[str]:
    found = []
    window = privacy.window_readings
    unit = privacy.privacy_unit
    least = algorithm.epsilon_advised * unit.readings_max
    if epsilon < least:
        found.append(
            f"{algorithm.name} at epsilon {epsilon:g} needs very many readings until it finds "
            f"clusters: take density_tree, or an epsilon of {least:g} and more"
        )
    if WINDOW_READINGS_MIN <= window < WINDOW_READINGS_MIN * unit.readings_max:
        found.append(
            f"noise for {unit.readings_max} readings of a user is more than the readings of a "
            f"window of {window}: take a smaller readings_per_window_max, or window_readings of "
            f"{WINDOW_READINGS_MIN * unit.readings_max} and more"
        )
    if window < WINDOW_READINGS_MIN:
        found.append(
            f"windows of {window} readings have more noise than readings: take window_readings of "
            f"{WINDOW_READINGS_MIN} and more, 400 if readings come fast enough"
        )
    return found

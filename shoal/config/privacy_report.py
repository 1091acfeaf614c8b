"""The guarantees of a contract as plain values, and advice where a model would learn little of what
privacy leaves."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.from_counts.grid_sizes import FEATURES_MAX
from shoal.config.base import DAY_S
from shoal.config.contract import Privacy
from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.privacy.formal import EPSILON_WEAK, beliefs
from shoal.privacy.masked import CLIENTS_ADVISED, Masked
from shoal.text import counted

DENSITY_TREE: Final = "density_tree"
"""the name alone: with the algorithm itself, `shoal check` would load a tenth more modules"""


def privacy_report(contract: ResolvedContract) -> dict[str, Any]:
    """The guarantee of the federation, of each of its models, and what it does not cover.

    `epsilon`, of a `unit`, is the sum over all models, where noisy rows count once and each stream
    of counts once; None without a guarantee. `epsilon_spent` is what the noise tables really cost,
    which is at most that.
    """
    mode = contract.mode
    spent, _ = contract.epsilon_spent
    description = mode.describe()
    bounds = []
    for feature in contract.features:
        bounds.append(feature.model_dump(include={"name", "low", "high", "unit"}))
    models = []
    for model in contract.models.values():
        models.append({**_model_report(contract, model), "epsilon_spent": model.epsilon_spent})
    return {
        "mode": mode.name,
        "formal": mode.formal,
        "title": description.title,
        "guarantee": description.rows(),
        "sentences": list(description.sentences),
        **mode.unit.statement(),
        "epsilon": contract.total_epsilon,
        "epsilon_spent": spent if math.isfinite(spent) else None,
        "bounds": bounds,
        "models": models,
        "not_covered": list(description.not_covered),
    }


def counted_once(contract: ResolvedContract) -> str:
    """What several models share, and the sum over all models counts once; empty for nothing."""
    if contract.mode.masked:
        # Each model has sums of its own, and their rhos add up.
        return ""
    shared = []
    if contract.takes_rows:
        shared.append("noisy rows count once")
    if contract.counted:
        shared.append("each stream of counts counts once")
    return "; " + " and ".join(shared) if shared else ""


def models_report(contract: ResolvedContract) -> list[dict[str, Any]]:
    """Lines about each model: the statement of its messages, what it learns from, and how its
    windows close."""
    return [_model_report(contract, model) for model in contract.models.values()]


def _model_report(contract: ResolvedContract, model: ResolvedModel) -> dict[str, Any]:
    report = {
        "name": model.name,
        "algorithm": model.algorithm.name,
        "learns_from": "rows",
        "counted": None,
        **model.statement,
        "window_readings": None,
        "window_s": None,
    }
    if model.counts is not None:
        report["learns_from"] = "counts"
        report["counted"] = model.counts.algorithm.counted
        report["window_readings"] = contract.contract.privacy.window_readings
        report["window_s"] = contract.contract.privacy.window_s
    return report


class DaySpending(NamedTuple):
    """Spending of a device in a day in all that is published."""

    epsilon: float
    text: str
    """the same as a sentence, and what an attacker learns from it at most"""


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
        by_the_clock = DAY_S / privacy.window_s
        if contract.mode.unit.hides_presence:
            closed = by_the_clock
        elif windows is None:
            # A window closes once it is full, or old, whichever is first.
            closed = max(by_the_clock, readings / privacy.window_readings)
        else:
            closed = windows
        # A user spends in those windows alone in which it has a reading.
        units = min(readings, closed)
        where = f" in {_number(units)} window" + "s" * (units != 1)
    epsilon = contract.total_epsilon * units
    noun = "reading" if readings == 1 else "readings"
    return DaySpending(
        epsilon,
        f"{device} with {_number(readings)} {noun} a day{where} spends epsilon {_number(epsilon)} "
        f"a day. {beliefs(epsilon)}",
    )


def _number(value: float) -> str:
    """Three significant digits, so that a rate that hardly changes is the same text."""
    rounded = float(f"{value:.3g}")
    if rounded >= 100:
        return f"{rounded:,.0f}"
    return f"{rounded:g}"


class UserSpending(NamedTuple):
    """Spending of a user in all windows together."""

    epsilon: float | None
    """None: it has no limit"""
    windows: int | None
    """windows of a user within the limit; None without one"""
    advised: bool
    """whether all of it is within the epsilon of a guarantee that is not marked as weak"""
    text: str
    """the same in sentences, with the cure where it is not advised"""


def spent_by_user(
    contract: ResolvedContract, epsilon_max: float, person_readings: int = 0
) -> UserSpending | None:
    """Spending of a user in all windows, under the `epsilon_max` of `[client]`; 0: no limit.

    `person_readings`: readings of a user for which the limit is; 0: for all of them. None where a
    user is not the privacy unit.
    """
    window_epsilon = contract.total_epsilon
    if not contract.mode.unit.is_user or window_epsilon is None:
        return None
    windows_advised = math.floor(EPSILON_WEAK / window_epsilon)
    if windows_advised:
        cure = (
            f"where users are people take [client] epsilon_max = "
            f"{windows_advised * window_epsilon:g}, which is for "
            f"{counted(windows_advised, 'window')}, or "
            'mode = "masked"'
        )
    else:
        cure = 'where users are people take a smaller counts_epsilon, or mode = "masked"'
    if not epsilon_max:
        window_days = contract.contract.privacy.window_s / DAY_S
        text = (
            f"What a user spends has no limit: epsilon {_number(window_epsilon)} in each window, "
            f"{_number(window_epsilon * DAYS_OF_YEAR / window_days)} in a year of windows that "
            f"the clock closes. Advised against: {cure}"
        )
        return UserSpending(None, None, False, text)
    windows = math.floor(epsilon_max / window_epsilon)
    whose = "A user of one client"
    if person_readings:
        whose += f" with {person_readings:,} readings at most"
    spent = windows * window_epsilon
    text = (
        f"{whose} spends epsilon {_number(spent)} at most, in {counted(windows, 'window')}: then "
        f"its client counts nothing more ([client] epsilon_max). {beliefs(spent)}"
    )
    advised = spent <= EPSILON_WEAK
    if not advised:
        text += f" Advised against: {cure}"
    return UserSpending(spent, windows, advised, text)


DAYS_OF_YEAR: Final = 365.0


def hidden_presence_cost(contract: ResolvedContract, readings: float) -> str | None:
    """Cost of windows that close by the clock, at this many readings a day; None where they do
    not."""
    privacy = contract.contract.privacy
    unit = contract.mode.unit
    if not unit.hides_presence:
        return None
    windows = DAY_S / privacy.window_s
    places = privacy.window_readings
    units_per_window = 1 if unit.is_user else places
    charged = (contract.total_epsilon or 0.0) * windows * units_per_window
    # Readings at random times fall into places as n balls do into k urns, of which k (1 - (1 -
    # 1/k)^n) are then not empty.
    expected = readings / windows
    lost = 1.0
    if places > 1:
        # By `expm1` and `log1p`: with many places 1 - 1/k and its power lose their digits.
        lost = 1.0 - places * -math.expm1(expected * math.log1p(-1.0 / places)) / expected
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
    within_budget: bool
    """whether the budget allows these windows in one span"""
    text: str


def needs_of(
    contract: ResolvedContract, readings_per_day: float, clients: int | None = None
) -> list[Need]:
    """Effort to find clusters that lie apart, with this many clients or with some numbers of them.

    Only for masked counts and density_tree, on which the figures rest.
    """
    mode = contract.mode
    names = {model.algorithm.name for model in contract.counted}
    if not isinstance(mode, Masked) or DENSITY_TREE not in names:
        return []
    privacy = contract.contract.privacy
    window_s = min(privacy.window_s, privacy.window_readings / readings_per_day * DAY_S)
    readings_per_window = window_s * readings_per_day / DAY_S
    least = CLIENTS_ADVISED
    if contract.width >= MANY_FEATURES:
        least *= 2
    needs = []
    for number in CLIENTS_SHOWN if clients is None else (clients,):
        windows = mode.windows_needed(number, contract.width, readings_per_window)
        days = windows * window_s / DAY_S
        text = (
            f"{number} clients: {_number(windows)} windows of each, {_number(days)} days at "
            "[client] readings_per_day"
        )
        if window_s == privacy.window_s:
            text += f"; window_s closes them with about {_number(readings_per_window)} readings"
        cost_nano = windows * len(contract.counted) * mode.window_nano
        within_budget = mode.span_nano is None or cost_nano <= mode.span_nano
        if not within_budget:
            text += ", more than its budget allows in one span"
        if number < least:
            text += f". Advised against: take {least} clients or more"
        needs.append(Need(number, windows, days, number >= least, within_budget, text))
    return needs


ROWS_EPSILON_MIN: Final = 100.0
"""per reading: with less, noise on rows hides clusters of several features"""
STATES_EPSILON_MIN: Final = 10.0
"""per feature: with less, two levels of three features, .15 of the range and three deviations
apart, were one state in some streams (`benchmarks/results/states.md`); more clients do not help, as
each finds states in its own rows"""
NEEDED_MANY: Final = 2e6
"""readings of all clients: of a hundred that send one a minute, two weeks"""
WINDOW_READINGS_MIN: Final = 100
"""least places of a window for each reading that a user may have in it: smaller ones have more
noise than readings"""


class Advice(NamedTuple):
    """Weaknesses of one model, and what to do."""

    model: str
    text: str


def advice_on(contract: ResolvedContract) -> list[Advice]:
    """Advice on each model, in their order; without a guarantee, on states alone, as their
    clusters are no place."""
    advice = []
    for model in contract.models.values():
        advice += [Advice(model.name, text) for text in _on_model(contract, model)]
    return advice


def _on_model(contract: ResolvedContract, model: ResolvedModel) -> list[str]:
    if model.counts is None and model.family.client_learns and model.streaming.labels_sequences:
        return _on_states(contract)
    if not contract.mode.formal:
        return []
    assert model.epsilon is not None, "a formal mode has an epsilon for every model"
    if model.counts is None:
        return _on_rows(contract, model.epsilon)
    on_counts = _on_counts(contract.contract.privacy, model.counts.algorithm, model.epsilon)
    return on_counts + _on_need(contract, model)


def _on_need(contract: ResolvedContract, model: ResolvedModel) -> list[str]:
    assert model.counts is not None
    algorithm = model.counts.algorithm
    if algorithm.readings_needed is None:
        return []
    needed = algorithm.readings_needed(model.options, contract.width)
    if needed <= NEEDED_MANY:
        return []
    cure = "a larger epsilon, larger window_readings"
    if contract.mode.masked:
        cure = "a larger epsilon or a smaller clip"
    if contract.width > 1:
        cure += ", or fewer features"
    return [
        f"{algorithm.name} takes about {_number(needed)} readings of all clients until it shows "
        f"anything: take {cure}"
    ]


def _on_states(contract: ResolvedContract) -> list[str]:
    epsilon = min(contract.mode.epsilon_per_feature(), default=math.inf)
    if epsilon >= STATES_EPSILON_MIN:
        return []
    return [
        f"noise at epsilon {epsilon:.3g} for each feature hides states: levels that differ by "
        f".15 of the range were one state in some streams below {STATES_EPSILON_MIN:g}, or below "
        "7 with dwells of 500 readings, and more clients do not help"
    ]


def _on_rows(contract: ResolvedContract, epsilon: float) -> list[str]:
    advice = []
    if epsilon < ROWS_EPSILON_MIN:
        grid = ""
        if contract.width <= FEATURES_MAX:
            grid = ", or cluster_tree_from_counts for clusters of any shape"
        advice.append(
            f"noisy rows at epsilon {epsilon:g} per reading show few clusters or none: take "
            f"density_tree{grid}, which find them in private counts at an epsilon of 1 to 4, or "
            f"an epsilon of {ROWS_EPSILON_MIN:g} and more"
        )
    counted = [other.name for other in contract.counted]
    if counted and epsilon > EPSILON_WEAK:
        advice.append(
            f"noisy rows at epsilon {epsilon:g} give away what the counts of {', '.join(counted)} "
            "protect: without models that learn from rows, a reading would cost only what counts "
            "cost"
        )
    return advice


def _on_counts(privacy: Privacy, algorithm: CountingAlgorithm, epsilon: float) -> list[str]:
    advice = []
    window = privacy.window_readings
    unit = privacy.privacy_unit
    least = algorithm.epsilon_advised * unit.readings_max
    if epsilon < least:
        advice.append(
            f"{algorithm.name} at epsilon {epsilon:g} needs very many readings until it finds "
            f"clusters: take density_tree, or an epsilon of {least:g} and more"
        )
    if WINDOW_READINGS_MIN <= window < WINDOW_READINGS_MIN * unit.readings_max:
        advice.append(
            f"noise for {unit.readings_max} readings of a user is more than the readings of a "
            f"window of {window}: take a smaller readings_per_window_max, or window_readings of "
            f"{WINDOW_READINGS_MIN * unit.readings_max} and more"
        )
    if window < WINDOW_READINGS_MIN:
        advice.append(
            f"windows of {window} readings have more noise than readings: take window_readings of "
            f"{WINDOW_READINGS_MIN} and more, 400 if readings come fast enough"
        )
    return advice

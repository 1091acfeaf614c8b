"""The usual day and week of each feature: how much of its variance the time of the day, or the day
of the week, is.

A feature without clusters often follows the clock. The means of all readings in bins of six hours,
as the history holds them, are divided into a trend (the centred moving average over one period), a
mean for each phase of the period, and the rest: the classical decomposition. The share of variance
is corrected for what as many phases explain by chance.

The chance of a profile as large where there is none is that of shuffled periods: each day (week) of
the series would begin at a phase of its own. It has a closed form, so nothing is drawn. Successive
periods of a sensor are alike, which makes a mean of them vary more: with a correlation r of
neighbours, n of them are worth n (1 - r) / (1 + r) (Zwiers and von Storch, J. Climate 8, 1995).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from shoal.config.contract import Contract, Feature
from shoal.kernels.arrays import Floats
from shoal.kernels.chances import careful_correlation, gamma_tail, inflation_of
from shoal.protocol.history import COARSE_S, DAY_S, PLACE_UNITS, PLACE_UNKNOWN, PLACES_S, HistoryBin
from shoal.server_node.history.series import ROUNDING
from shoal.server_node.history.sources import HistorySource

HOUR_S: Final = 3600
WEEK_S: Final = 7 * DAY_S
MONDAY_S: Final = 4 * DAY_S
"""the first Monday since 1970 begins this many seconds after its start"""
PERIODS: Final = {"day": (PLACES_S, DAY_S, 0), "week": (DAY_S, WEEK_S, MONDAY_S)}
"""name of a period -> seconds of a phase, seconds of the period, and the start of one"""
NOTHING_HIDDEN: Final[Mapping[str, int]] = MappingProxyType({})
PERIODS_MIN: Final = 8
"""whole periods from which on one is looked for"""
CHANCE: Final = 0.01
"""chance below which a cycle counts as one"""
WEEKDAYS: Final = (
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
)


@dataclass(frozen=True)
class Cycle:
    """A feature over one period, in its unit."""

    feature: str
    unit: str
    period: str
    """`day`, in phases of six hours from midnight UTC on, or `week`, in days from Monday on"""
    profile: list[float]
    """mean of the feature in each phase, where the trend has its mean"""
    spread: list[float]
    """standard deviation of single periods from it, in each phase"""
    share: float
    """part of the variance of all phases that the profile explains, 0 to 1"""
    periods: int
    """whole periods that were looked at"""
    chance: float
    """probability of so large a profile in any feature and period that was looked at, where there
    is none"""

    def text(self) -> str:
        """The cycle in a sentence."""
        lowest = self._phase_text(int(np.argmin(self.profile)))
        highest = self._phase_text(int(np.argmax(self.profile)))
        what = {"day": "time of the day", "week": "day of the week"}[self.period]
        chance = "below 0.1 %"
        if self.chance >= 1e-3:
            chance = f"{100 * self.chance:.1g} %"
        share = "less than 1 %"
        if self.share >= 0.01:
            share = f"{100 * self.share:.0f} %"
        return (
            f"{self.feature}: {share} of its variance is the {what}: lowest {lowest}, highest "
            f"{highest}; chance {chance}"
        )

    def _phase_text(self, phase: int) -> str:
        value = f"{self.profile[phase]:.4g} {self.unit}".rstrip()
        return f"{phase_text(self.period, phase)} ({value})"


def phase_text(period: str, phase: int) -> str:
    """The name of a phase."""
    if period == "week":
        return WEEKDAYS[phase]
    return f"{6 * phase:02d}:00 to {6 * (phase + 1):02d}:00"


def find_cycles(source: HistorySource, contract: Contract, model: str) -> list[Cycle]:
    """The cycles of every feature that is a number, certain or not, the largest share first.

    Empty while the history is short.
    """
    extent = source.extent(model, COARSE_S)
    if extent is None:
        return []
    # The extent is that of half hours; the bin of six hours that holds its start begins earlier.
    bins = list(source.each_bin(model, PLACES_S, extent[0] - PLACES_S, extent[1]))
    cycles = []
    hidden = hidden_periods(source, model)
    for period, (phase_s, period_s, origin) in PERIODS.items():
        means = _means(bins, phase_s)
        if not means or period in hidden:
            continue
        # From the start of a whole period on, so that phases have their places.
        first = (min(means) - origin) // period_s * period_s + origin
        number = (max(means) - first) // phase_s + 1
        series = np.full((number, len(next(iter(means.values())))), np.nan)
        for start, mean in means.items():
            series[(start - first) // phase_s] = mean
        cycles += _described(series, period, period_s // phase_s, contract)
    # Bonferroni: of many features and periods some show a cycle by chance alone.
    corrected = [replace(cycle, chance=min(1.0, cycle.chance * len(cycles))) for cycle in cycles]
    return sorted(corrected, key=lambda cycle: (-cycle.share, cycle.chance, cycle.feature))


def hidden_periods(source: HistorySource, model: str) -> dict[str, int]:
    """The periods of which nothing can be known as updates span more than a phase: period ->
    seconds that they span.

    The readings of such an update count whole at the time of the newest, which may be of another
    phase than most of them.
    """
    names = source.names(model)
    if names is None:
        return {}
    return {period: names.update_s for period, (s, *_) in PERIODS.items() if names.update_s > s}


def lines_of(
    model: str,
    cycles: Sequence[Cycle],
    chance: float = CHANCE,
    hidden: Mapping[str, int] = NOTHING_HIDDEN,
) -> list[str]:
    """The cycles with a chance below `chance` as text, a line for each; `hidden` as in
    `hidden_periods`."""
    return [*_cycle_lines(model, cycles, chance), *_hidden_lines(hidden)]


def _hidden_lines(hidden: Mapping[str, int]) -> list[str]:
    lines = []
    for period, span_s in hidden.items():
        lines.append(
            f"The {period} is not looked at: the readings of an update span {span_s / HOUR_S:g}"
            f" hours, more than a phase of it ({PERIODS[period][0] / HOUR_S:g})."
        )
    return lines


def _cycle_lines(model: str, cycles: Sequence[Cycle], chance: float) -> list[str]:
    if not cycles:
        return [
            f"{model}: nothing is known of cycles. It takes {PERIODS_MIN} whole days with an update"
            " in every six hours; an update counts at the time of its newest reading, so make"
            " publish_readings smaller, or [privacy] window_readings where the model learns from"
            " counts: a window of them is one update."
        ]
    lines = [cycle.text() for cycle in cycles if cycle.chance < chance]
    periods = {cycle.period: cycle.periods for cycle in cycles}
    looked = ", ".join(f"{number} {period}s" for period, number in periods.items())
    other = "other " if lines else ""
    return [
        f"{model}: times are UTC; {looked} were looked at",
        *lines,
        f"No {other}cycle has a chance below {100 * chance:.2g} %.",
    ]


def _means(bins: Iterable[HistoryBin], phase_s: int) -> dict[int, Floats]:
    """Start of each phase that has readings -> (f,) means of all its readings whose place is known,
    in unit coordinates; NaN of none."""
    sums: dict[int, Floats] = {}
    for counted in bins:
        table = counted.place_table()
        if len(table):
            means = table[:, 1:-1].astype(np.float64)
            readings = np.where(means == PLACE_UNKNOWN, 0.0, table[:, -1:])
            start = counted.start // phase_s * phase_s
            places = (means * readings).sum(axis=0) / PLACE_UNITS
            added = np.stack([places, readings.sum(axis=0)])
            sums[start] = sums[start] + added if start in sums else added
    means_of = {}
    for start, (places, readings) in sums.items():
        unknown = np.full(len(places), np.nan)
        means_of[start] = np.divide(places, readings, out=unknown, where=readings > 0)
    return means_of


class Profiles(NamedTuple):
    """One period in each of f features."""

    means: Floats
    """(phases, f), each feature's with mean 0"""
    spreads: Floats
    """(phases, f) standard deviations of single periods from them"""
    shares: Floats
    """(f,) part of the variance that the means explain"""
    chances: Floats
    """(f,) each for itself"""
    periods: int
    """whole periods that they are from"""


def cycles_of(series: Floats, phases: int) -> Profiles | None:
    """Cycles of a series (n, f) of successive phases that begins with a period; NaN where a phase
    has no readings.

    None with fewer than `PERIODS_MIN` whole periods.
    """
    rest = _less_trend(series, phases)
    periods = rest[: len(rest) // phases * phases].reshape(-1, phases, rest.shape[1])
    # Whole periods only: one with a gap would move the mean of the phases that it has.
    whole = periods[np.isfinite(periods).all(axis=(1, 2))]
    if len(whole) < PERIODS_MIN:
        return None
    # What is left of the trend within a period is no part of its profile.
    whole -= whole.mean(axis=1, keepdims=True)
    # What is as small as the rounding of sums is no cycle.
    whole[np.abs(whole) <= ROUNDING * np.nanmax(np.abs(series), axis=0)] = 0.0
    means = whole.mean(axis=0)
    return Profiles(
        means,
        whole.std(axis=0, ddof=1),
        _shares(series, whole, means),
        _chances(whole, means),
        len(whole),
    )


def _described(series: Floats, period: str, phases: int, contract: Contract) -> list[Cycle]:
    gaps = np.isnan(series)
    cycles = []
    # Features with the same gaps together: those of one are no gaps of the others.
    for pattern in np.unique(gaps, axis=1).T:
        columns = np.flatnonzero((gaps == pattern[:, None]).all(axis=0))
        features = {
            place: contract.features[column] for place, column in enumerate(columns.tolist())
        }
        cycles += _described_features(series[:, columns], period, phases, features)
    return cycles


def _described_features(
    series: Floats, period: str, phases: int, features: Mapping[int, Feature]
) -> list[Cycle]:
    """The cycles of some features, by their columns in a series."""
    profiles = cycles_of(series, phases)
    if profiles is None:
        return []
    level = np.nanmean(series, axis=0)
    cycles = []
    for j, feature in features.items():
        # The mean of a category, or across the cut of a circle, is no value of it.
        if feature.kind != "number":
            continue
        span = feature.high - feature.low
        cycles.append(
            Cycle(
                feature.name,
                feature.unit,
                period,
                profile=(feature.low + span * (level[j] + profiles.means[:, j])).tolist(),
                spread=(span * profiles.spreads[:, j]).tolist(),
                share=float(profiles.shares[j]),
                periods=profiles.periods,
                chance=float(profiles.chances[j]),
            )
        )
    return cycles


def _less_trend(series: Floats, phases: int) -> Floats:
    """The series without its centred moving average over one period; NaN where a value of that is
    missing."""
    weights = np.full(phases, 1 / phases)
    if phases % 2 == 0:
        # One phase more than the period, so that the average has a middle: both ends are half.
        weights = np.concatenate([[0.5], np.ones(phases - 1), [0.5]]) / phases
    half = len(weights) // 2
    rest = np.full(series.shape, np.nan)
    if len(series) >= len(weights):
        windows = np.lib.stride_tricks.sliding_window_view(series, len(weights), axis=0)
        rest[half : len(series) - half] = series[half : len(series) - half] - windows @ weights
    return rest


def _shares(series: Floats, whole: Floats, profiles: Floats) -> Floats:
    """(f,) part of the variance of the series that the profiles explain, less what they would by
    chance."""
    number, phases, _ = whole.shape
    # One degree of freedom is lost for each mean that was taken off: that of each phase, and that
    # of each period.
    rest = ((whole - profiles) ** 2).sum(axis=(0, 1)) / max(1, (number - 1) * (phases - 1))
    # A mean of n periods of noise has 1/n of the variance of one: so much would be explained where
    # there is no cycle.
    explained = (profiles**2).sum(axis=0) / phases - rest * (phases - 1) / (phases * number)
    variance = np.nanvar(series, axis=0)
    shares = np.divide(explained, variance, out=np.zeros_like(variance), where=variance > 0)
    # What chance explains is taken off, which can leave less than nothing.
    clipped: Floats = np.clip(shares, 0.0, 1.0)
    return clipped


def _chances(whole: Floats, means: Floats) -> Floats:
    """(f,) chance that the mean of shuffled periods (n, phases, f) is as large as the one that was
    found.

    Shuffling gives each Fourier coefficient of each period a phase of its own, so that the mean of
    n is a complex normal number, and its square exponential, with a mean of 1 / n of that of one
    period. The coefficient at half the phases is real; the tail of its square is that of an
    exponential of twice its mean. A gamma distribution with the sum's mean and the scale of its
    largest term is at least as heavy in the tail as the sum.
    """
    number, phases, _ = whole.shape
    squares = (np.abs(np.fft.rfft(whole, axis=1)[:, 1:]) ** 2).sum(axis=0) / number**2
    both = np.full(len(squares), 2.0 / phases)  # a coefficient and its conjugate
    scales = both.copy()
    if phases % 2 == 0:
        both[-1] = 1.0 / phases
        scales[-1] = 2.0 / phases
    mean = both @ squares
    scale = (scales[:, None] * squares).max(axis=0)
    size = (means**2).sum(axis=0) / _inflation(whole - means)
    judged = (size > 0) & (scale > 0)
    chances = np.ones(len(size))
    chances[judged] = gamma_tail(mean[judged] / scale[judged], size[judged] / scale[judged])
    return chances


def _inflation(rest: Floats) -> Floats:
    """(f,) factor by which the variance of a mean of periods exceeds that of independent ones; at
    least 1."""
    squares = (rest**2).sum(axis=(0, 1))
    products = (rest[1:] * rest[:-1]).sum(axis=(0, 1))
    raw = np.divide(products, squares, out=np.zeros_like(squares), where=squares > 0)
    return inflation_of(careful_correlation(raw, len(rest) - 1))

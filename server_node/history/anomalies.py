"""What was unusual in a span of time: clients, features, states and hours, the least likely first.

Everything is found in the history of clusters, so it is made of updates alone. A figure of the span
(the share of a state, the readings of a client, the mean of a feature within a state) is compared
with the same figure of earlier spans of the same length at the same time of the day: of days of the
same kinds (Monday to Friday, or weekend) for a span of up to three days, of earlier weeks for a
longer one. Its chance is that of Student's t for one more value beside those (a prediction
interval, Hahn and Meeker, Statistical Intervals, 1991), of shares and counts after a transformation
in which their variance does not depend on their size (Anscombe, Biometrika 35, 1948), and never
with a smaller variance than so many readings have by chance. The noise of private counts varies by
as much where the share is 0, so it is part of that transformation (that of Anscombe with a normal
noise beside it; Murtagh, Starck, Bijaoui, Astronomy and Astrophysics Supplement 112, 1995). A state
is compared with spans of the time since it is told apart from others alone (`HistoryNames`). All
chances are multiplied by the
number of figures that were compared (Bonferroni). What is too small for that is not listed; how
small that is follows from the same variances (`unseen_changes`), which have the noise of private
counts in them, as the earlier spans have it.

Shares of states, readings of clients, and hours are of bins of half an hour. The states of a client
and the means of features are kept in bins of six hours, so these are of all bins that the span
touches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple, Self, TypeVar

import numpy as np

from shoal.config.contract import Contract
from shoal.config.resolved import ResolvedModel
from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats
from shoal.kernels.chances import two_sided
from shoal.protocol.history import (
    COARSE_S,
    DAY_S,
    EMPTY,
    NO_CLUSTER,
    OTHER_CLIENTS,
    PLACE_UNITS,
    PLACES_S,
    HistoryBin,
    HistoryNames,
    cells_table,
    known_means,
    pairs,
)
from shoal.server_node.history.changes import Span, Titles, in_unit, utc_text
from shoal.server_node.history.shares import client_name
from shoal.server_node.history.sources import HistorySource
from shoal.server_node.history.usual import is_weekend

CHANCE: Final = 0.01
"""chance below which an anomaly is listed, by default"""
EARLIER_MAX: Final = 28
"""earlier spans that are compared"""
T_MAX: Final = 1e9
"""beyond any value of Student's t that a chance is computed of"""
EARLIER_MIN: Final = 5
"""earlier spans without which nothing is said about chance"""
LONG_DAYS: Final = 3
"""spans of up to as many days are compared with those of days of the same kinds, others with
weeks"""
WEEK_DAYS: Final = 7
HOURS_MAX: Final = 400
"""half hours of a span that are looked at one by one; of a longer one days are"""
LISTED_MAX: Final = 24
"""anomalies of a kind that are listed"""
DEFAULT_S: Final = DAY_S
"""seconds of the span before the newest reading, where none is asked for"""


class Earlier(NamedTuple):
    """One figure in a span and in those it is compared with."""

    observed: float
    expected: float
    """mean of the earlier spans"""
    spans: int
    """earlier spans that have the figure"""
    chance: float
    """chance of a figure as far from those, on either side; 1 where it is not known"""


@dataclass(frozen=True)
class ClientAnomaly:
    """The number of readings of a client, or its share in one state."""

    client: str
    cluster: int | None
    """None: its number of readings"""
    title: str
    observed: float
    """readings, or the part of the client's readings that fell to the state, 0 to 1"""
    expected: float
    earlier: int
    chance: float


@dataclass(frozen=True)
class FeatureAnomaly:
    """The mean of a feature within a state, in its unit."""

    feature: str
    unit: str
    cluster: int
    title: str
    observed: float
    expected: float
    earlier: int
    chance: float


@dataclass(frozen=True)
class StateAnomaly:
    """The share of a state in all readings."""

    cluster: int | None
    """None: no known cluster"""
    title: str
    observed: float
    expected: float
    earlier: int
    chance: float


@dataclass(frozen=True)
class HourAnomaly:
    """The half hour, or day, of a span, and the state that was least likely in it."""

    start: int
    seconds: int
    cluster: int | None
    title: str
    observed: float
    expected: float
    earlier: int
    chance: float


NOISY_CELLS: Final = 32
"""cells of one cluster in which a window has noise, about: an axis of a leaf has 16 to 32"""


@dataclass(frozen=True)
class ShareScale:
    """The transformation in which the variance of a share hardly depends on its size."""

    noise: float = 0.0
    """variance of the noise in the readings of a state, for each reading of all states"""

    @classmethod
    def of(cls, model: ResolvedModel) -> Self:
        """The scale of the shares of a model: with the noise of its private counts, if it has
        any."""
        if model.counts is None:
            return cls()
        variance = float(model.options["noise_variance"]) * NOISY_CELLS
        return cls(variance / int(model.options["window_readings"]))

    def angle(self, share: float) -> float:
        """A share after the transformation, 0 to pi; without noise n readings give it the variance
        1/n."""
        inside = (min(max(share, 0.0), 1.0) + self.noise) / (1.0 + 2.0 * self.noise)
        return 2.0 * math.asin(math.sqrt(inside))

    def share(self, angle: float) -> float:
        """The share that has this angle."""
        return math.sin(angle / 2.0) ** 2 * (1.0 + 2.0 * self.noise) - self.noise

    def variance(self, share: float, readings: int) -> float:
        """The variance of the angle of a share of so many readings, by chance without any noise."""
        # As though one of two readings more had been of the state: not even a share of 0 is sure.
        share = (share * readings + 1.0) / (readings + 2.0)
        slope = (share + self.noise) * (1.0 - share + self.noise)
        return share * (1.0 - share) / slope / readings


WITHOUT_NOISE: Final = ShareScale()


class ClientFigure(NamedTuple):
    """The variation of the share of a client in one state."""

    client: str
    readings: int
    """readings of the client in the span"""
    angle: float
    """mean of its earlier shares, as angles of a `ShareScale`"""
    spread: float
    """standard deviation of one more value beside that mean"""
    spans: int
    """earlier spans that have the figure"""


@dataclass(frozen=True)
class ApartState:
    """A state whose readings are told apart from those of others since some time alone."""

    cluster: int
    title: str
    since: int
    """seconds since 1970"""
    earlier: int
    """earlier spans since then, with which it is compared; none where the span is before that"""


@dataclass(frozen=True)
class UnseenChange:
    """The largest change of the state of a client in a span that may not be listed."""

    client: str
    readings: int
    """readings of the client in the span, as bins of six hours have it"""
    least: int
    """readings of these that must be counted in another state than usual to be listed, whatever the
    states; above `readings` where no change of them would be"""


Counted = TypeVar("Counted")
"""anything counted in a span"""
Anomaly = TypeVar("Anomaly", ClientAnomaly, FeatureAnomaly, StateAnomaly, HourAnomaly)


@dataclass(frozen=True)
class Anomalies:
    """What was unusual in a span, each list with the least likely first."""

    model: str
    span: Span
    wide: Span
    """the bins of six hours that the span touches"""
    earlier: list[Span]
    """the spans that it is compared with, the newest first"""
    readings: int
    clients: list[ClientAnomaly]
    features: list[FeatureAnomaly]
    states: list[StateAnomaly]
    hours: list[HourAnomaly]
    compared: int
    """figures that were compared, for which chances are corrected"""
    has_clients: bool
    """whether the history has what each client did; not where its pairs were too many"""
    apart: list[ApartState]
    """the states that are not compared with all of the earlier spans"""
    scale: ShareScale
    figures: list[ClientFigure]
    """what the shares of clients in states vary by"""


def whole_span(source: HistorySource, model: str, first: float | None, end: float | None) -> Span:
    """The span from `first` to `end` in whole half hours; None: up to the newest bin that is over,
    and the day before the end. Raises `SettingsError` for an empty one, or without any history."""
    extent = source.extent(model, COARSE_S)
    if extent is None:
        raise SettingsError(f"model {model} has no history yet")
    oldest, newest = extent
    until = newest + COARSE_S
    if end is not None:
        until = min(until, int(-(-end // COARSE_S) * COARSE_S))
    since = until - DEFAULT_S
    if first is not None:
        since = int(first // COARSE_S * COARSE_S)
    since = max(since, oldest)
    if since >= until:
        raise SettingsError(
            f"the span is empty; {model} has a history from {utc_text(oldest)} to"
            f" {utc_text(newest + COARSE_S)} (UTC)"
        )
    return Span(since, until)


def earlier_spans(span: Span, oldest: int) -> list[Span]:
    """The spans that `span` is compared with, the newest first, none before `oldest`.

    By the calendar of the server, so that the change to summer time moves no time of the day.
    """
    days = -(-(span.end - span.first) // DAY_S)
    if days > LONG_DAYS:
        return _spans_before(span, oldest, -(-days // WEEK_DAYS) * WEEK_DAYS, None)
    alike = _spans_before(span, oldest, 1, _kinds_of_days(span))
    # Beside days of any kind less stands out, and a first weekend would, wrongly.
    if alike and len(alike) < EARLIER_MIN:
        return _spans_before(span, oldest, 1, None)
    return alike


def _spans_before(
    span: Span, oldest: int, step_days: int, kinds: Sequence[bool] | None
) -> list[Span]:
    """The earlier spans of the same length, whole steps before; `kinds` of their days, None for
    any."""
    here = datetime.fromtimestamp(span.first)
    found: list[Span] = []
    nearest = span
    back = step_days
    while len(found) < EARLIER_MAX:
        # In local time, and then to whole half hours: bins begin there, while the clock of some
        # zones is a quarter of an hour off.
        first = int((here - timedelta(days=back)).timestamp()) // COARSE_S * COARSE_S
        if first < oldest:
            break
        there = Span(first, first + span.end - span.first)
        # Spans that overlap would have readings in common, and vary less than others.
        is_apart = there.end <= nearest.first
        if is_apart and (kinds is None or _kinds_of_days(there) == kinds):
            found.append(there)
            nearest = there
        back += step_days
    return found


def _kinds_of_days(span: Span) -> list[bool]:
    """Whether each day that a span touches is of a weekend."""
    first = datetime.fromtimestamp(span.first).date()
    last = datetime.fromtimestamp(span.end - 1).date()
    kinds = []
    for number in range((last - first).days + 1):
        kinds.append(is_weekend(first + timedelta(days=number)))
    return kinds


def predicted(observed: float, earlier: Sequence[float], variance_min: float) -> float:
    """The chance of one more value as far from the mean of `earlier` (n,); 1 of too few.

    The variance is at least `variance_min`: equal values do not show that there never is another.
    """
    n = len(earlier)
    if n < EARLIER_MIN:
        return 1.0
    mean, spread = _mean_and_spread(earlier, variance_min)
    # Without any variance t has no value: an equal figure is no surprise, another one is.
    if spread == 0.0:
        return 1.0 if observed == earlier[0] else 0.0
    t = abs(observed - mean) / spread
    return float(two_sided(np.array([t]), np.array([n - 1.0]))[0])


def _mean_and_spread(earlier: Sequence[float], variance_min: float) -> tuple[float, float]:
    """The mean of `earlier` (n,), n > 1, and the standard deviation of one more value beside it."""
    values = np.array(earlier)
    # n - 1: the mean is one of the same n values.
    variance = max(float(values.var(ddof=1)), variance_min)
    # 1 + 1/n: the value varies around the true mean, and so does the mean of n.
    return float(values.mean()), math.sqrt(variance * (1.0 + 1.0 / len(values)))


def find_anomalies(
    source: HistorySource,
    contract: Contract,
    model: str,
    span: Span,
    scale: ShareScale = WITHOUT_NOISE,
) -> Anomalies:
    """Compare every figure of a span with those of earlier spans; `scale` is that of the shares of
    the model."""
    coarse = source.extent(model, COARSE_S)
    oldest = span.first if coarse is None else coarse[0]
    earlier = earlier_spans(span, oldest)
    names = source.names(model)
    titles = Titles(names)
    numbers = [] if names is None else names.clients
    wide = _wide(span)
    seen = []
    bins = []
    for compared_span in (span, *earlier):
        seen.append(_Seen(source, model, compared_span))
        of_wide = _moved(wide, span, compared_span)
        bins.append(list(source.each_bin(model, PLACES_S, of_wide.first, of_wide.end - 1)))
    spans = _ComparedSpans(span, earlier, _apart_since(names))
    shares = _ComparedShares(spans, scale)
    states = _states(seen, titles, shares)
    hours = _hours(seen, titles, shares)
    clients = _client_readings(seen, numbers)
    in_states = _client_states(bins, numbers, titles, shares)
    features = _features(bins, contract, titles, spans)
    figures: list[ClientFigure] = []
    of_clients = [*clients]
    if in_states is not None:
        of_states, figures = in_states
        of_clients += of_states
    chances = [state.chance for state in states]
    chances += [hour.chance for hour in hours]
    chances += [client.chance for client in of_clients]
    chances += [feature.chance for feature in features]
    # What could not be judged was no comparison, and corrects none.
    compared = sum(chance < 1.0 for chance in chances)
    return Anomalies(
        model=model,
        span=span,
        wide=wide,
        earlier=earlier,
        readings=seen[0].clusters.total(),
        clients=_corrected(of_clients, compared),
        features=_corrected(features, compared),
        states=_corrected(states, compared),
        hours=_corrected(hours, compared),
        compared=compared,
        has_clients=in_states is not None,
        apart=_apart_states(spans, {state.cluster for state in states}, titles),
        scale=scale,
        figures=figures,
    )


def unseen_changes(anomalies: Anomalies, chance: float) -> list[UnseenChange]:
    """The smallest changes of the state of each client that are seen where what has a chance
    below `chance` is listed: the largest first."""
    if not anomalies.compared or chance <= 0.0:
        return []
    limits: dict[int, float] = {}
    for spans in {figure.spans for figure in anomalies.figures}:
        limits[spans] = _limit(chance / anomalies.compared, spans - 1)
    least: dict[str, tuple[int, int]] = {}
    for figure in anomalies.figures:
        share = _least_share(figure, limits[figure.spans], anomalies.scale)
        needed = math.ceil(share * figure.readings)
        of_client = max(needed, least.get(figure.client, (0, 0))[0])
        least[figure.client] = (of_client, figure.readings)
    found = [UnseenChange(client, readings, n) for client, (n, readings) in least.items()]
    return sorted(found, key=lambda change: (-change.least, change.client))


def _limit(chance: float, degrees: float) -> float:
    """The value of Student's t that is exceeded with this chance, on either side."""
    low = 0.0
    high = 1.0
    freedom = np.array([degrees])
    while two_sided(np.array([high]), freedom)[0] > chance and high < T_MAX:
        high *= 2.0
    for _ in range(40):
        middle = (low + high) / 2.0
        if two_sided(np.array([middle]), freedom)[0] > chance:
            low = middle
        else:
            high = middle
    return high


def _least_share(figure: ClientFigure, limit: float, scale: ShareScale) -> float:
    """The smallest change of a share that is beyond the limit, up or down; above 1 for none."""
    turn = limit * figure.spread
    share = scale.share(figure.angle)
    changes = [1.0 + 1e-9]
    if figure.angle + turn <= scale.angle(1.0):
        changes.append(scale.share(figure.angle + turn) - share)
    if figure.angle - turn >= scale.angle(0.0):
        changes.append(share - scale.share(figure.angle - turn))
    return min(changes)


def _apart_since(names: HistoryNames | None) -> dict[int, int]:
    since: dict[int, int] = {}
    if names is not None:
        for identity, moment in names.apart_since:
            since[identity] = moment
    return since


class _ComparedSpans:
    """The earlier spans with which the figures of each state are compared."""

    def __init__(self, span: Span, earlier: Sequence[Span], since: Mapping[int, int]) -> None:
        """The span and the earlier ones; `since`: identity -> time from which on its readings are
        told apart from others'."""
        self._spans = (span, *earlier)
        self.since = since

    def of_state(self, number: int, of_spans: Sequence[Counted]) -> Sequence[Counted]:
        """What was counted in the span, and of what was counted in the earlier ones that with which
        a state is compared: nothing, where the span is before that."""
        since = self.since.get(number)
        if since is None:
            return of_spans
        kept = [of_spans[0]]
        if not self._is_since(self._spans[0], since):
            return kept
        for counted, there in zip(of_spans[1:], self._spans[1:], strict=True):
            if self._is_since(there, since):
                kept.append(counted)
        return kept

    def number_of(self, number: int) -> int:
        """How many earlier spans a state is compared with."""
        return len(self.of_state(number, self._spans)) - 1

    @property
    def earlier(self) -> int:
        """All earlier spans."""
        return len(self._spans) - 1

    @staticmethod
    def _is_since(span: Span, since: int) -> bool:
        # The states of clients are of whole bins of six hours.
        return span.first // PLACES_S * PLACES_S >= since


def _apart_states(
    spans: _ComparedSpans, states: Collection[int | None], titles: Titles
) -> list[ApartState]:
    """The states that are not compared with all of the earlier spans."""
    found = []
    for number, since in sorted(spans.since.items()):
        earlier = spans.number_of(number)
        if number in states and earlier < spans.earlier:
            found.append(ApartState(number, titles(number), since, earlier))
    return found


class _Seen:
    """The readings of one span, by cluster and client, and by cluster in each of its parts."""

    def __init__(self, source: HistorySource, model: str, span: Span) -> None:
        halves = (span.end - span.first) // COARSE_S
        self.part_s = COARSE_S if halves <= HOURS_MAX else DAY_S
        self.span = span
        self.clusters: Counter[int] = Counter()
        self.clients: Counter[int] = Counter()
        self.parts: dict[int, Counter[int]] = {}
        """number of a part -> identity -> readings"""
        for counted in source.each_bin(model, COARSE_S, span.first, span.end - 1):
            of_bin = dict(pairs(counted.clusters))
            part = (counted.start - span.first) // self.part_s
            self.parts.setdefault(part, Counter()).update(of_bin)
            self.clusters.update(of_bin)
            self.clients.update(dict(pairs(counted.clients)))


def _identity(number: int) -> int | None:
    return None if number == NO_CLUSTER else number


def _title(number: int, titles: Titles) -> str:
    return "no known cluster" if number == NO_CLUSTER else titles(number)


class _ComparedShares:
    """The shares of states in the span beside those in the earlier spans."""

    def __init__(self, spans: _ComparedSpans, scale: ShareScale) -> None:
        self._spans = spans
        self._scale = scale

    def share(self, counts: Sequence[Counter[int]], key: int) -> Earlier | None:
        """The share of a state in the first of these counts beside that in the others, of which
        those without readings are left out; None where the first has none."""
        total = counts[0].total()
        if not total:
            return None
        share = counts[0][key] / total
        shares, _ = self._earlier(counts, key)
        if not shares:
            return Earlier(share, math.nan, 0, 1.0)
        angles, variance_min = self.angles(counts, key)
        chance = predicted(self._scale.angle(share), angles, variance_min)
        return Earlier(share, math.fsum(shares) / len(shares), len(shares), chance)

    def angles(self, counts: Sequence[Counter[int]], key: int) -> tuple[list[float], float]:
        """The angles of the earlier shares, and the least variance that they have by chance."""
        shares, least = self._earlier(counts, key)
        mean = math.fsum(shares) / max(1, len(shares))
        # By the span with the fewest readings, whose share varies most by chance alone.
        return [self._scale.angle(share) for share in shares], self._scale.variance(mean, least)

    def _earlier(self, counts: Sequence[Counter[int]], key: int) -> tuple[list[float], int]:
        """The shares of a state in the spans it is compared with, and the readings of the one with
        the fewest."""
        observed, *others = self._spans.of_state(key, counts)
        least = observed.total()
        shares = []
        for other in others:
            of_span = other.total()
            if of_span:
                shares.append(other[key] / of_span)
                least = min(least, of_span)
        return shares, least


def _keys(counts: Iterable[Counter[int]]) -> list[int]:
    return sorted(set().union(*counts))


def _states(seen: Sequence[_Seen], titles: Titles, shares: _ComparedShares) -> list[StateAnomaly]:
    counts = [of_span.clusters for of_span in seen]
    found = []
    for number in _keys(counts):
        share = shares.share(counts, number)
        if share is not None:
            title = _title(number, titles)
            found.append(StateAnomaly(_identity(number), title, *share))
    return found


def _hours(seen: Sequence[_Seen], titles: Titles, shares: _ComparedShares) -> list[HourAnomaly]:
    """The least likely state of each part of the span; its chance is that of any of the states."""
    now = seen[0]
    found = []
    for part in sorted(now.parts):
        counts = [of_span.parts.get(part, Counter()) for of_span in seen]
        of_states = {}
        for number in _keys(counts):
            share = shares.share(counts, number)
            if share is not None:
                of_states[number] = share
        if not of_states:
            continue
        number = min(of_states, key=lambda key: (of_states[key].chance, key))
        least = of_states[number]
        # Bonferroni within the part: the least of k chances is k times as likely to be small.
        least = least._replace(chance=min(1.0, least.chance * len(of_states)))
        start = now.span.first + part * now.part_s
        title = _title(number, titles)
        found.append(HourAnomaly(start, now.part_s, _identity(number), title, *least))
    return found


def _client_readings(seen: Sequence[_Seen], names: Sequence[str]) -> list[ClientAnomaly]:
    """The number of readings of each client; earlier spans before its first one do not count."""
    counts = [of_span.clients for of_span in seen]
    found = []
    for number in _keys(counts):
        # A sum over clients that change: of none of them would it say anything.
        if number == OTHER_CLIENTS:
            continue
        earlier = [other[number] for other in counts[1:]]
        # The newest come first, so the last ones are of the time before the client's first reading:
        # that it sent nothing then is not its usual number.
        while earlier and not earlier[-1]:
            earlier.pop()
        if not earlier:
            continue
        observed = float(counts[0][number])
        # Twice the root of a count of independent readings has the variance 1.
        roots = [2.0 * math.sqrt(readings) for readings in earlier]
        chance = predicted(2.0 * math.sqrt(observed), roots, 1.0)
        mean = sum(earlier) / len(earlier)
        client = client_name(number, names)
        found.append(ClientAnomaly(client, None, "", observed, mean, len(earlier), chance))
    return found


def _wide(span: Span) -> Span:
    """The bins of six hours that a span touches."""
    first = span.first // PLACES_S * PLACES_S
    return Span(first, -(-span.end // PLACES_S) * PLACES_S)


def _moved(wide: Span, span: Span, earlier: Span) -> Span:
    """The bins of six hours at the place that `wide` has beside its span."""
    back = round((span.first - earlier.first) / PLACES_S) * PLACES_S
    return Span(wide.first - back, wide.end - back)


def _client_states(
    bins: Sequence[Sequence[HistoryBin]],
    names: Sequence[str],
    titles: Titles,
    compared: _ComparedShares,
) -> tuple[list[ClientAnomaly], list[ClientFigure]] | None:
    """The share of each client in each state, and what the shares vary by where enough earlier
    spans have them; None where its bins have no pairs."""
    by_client: list[dict[int, Counter[int]]] = []
    for of_span in bins:
        counts: dict[int, Counter[int]] = {}
        for counted in of_span:
            # A bin of six hours has all pairs or, where these were too many, none.
            if counted.cells == EMPTY[3] and pairs(counted.clusters):
                return None
            for client, identity, readings in cells_table(counted.cells).tolist():
                counts.setdefault(client, Counter())[identity] += readings
        by_client.append(counts)
    found: list[ClientAnomaly] = []
    figures: list[ClientFigure] = []
    for client in sorted(by_client[0]):
        counts_of = [of_span.get(client, Counter()) for of_span in by_client]
        for number in _keys(counts_of):
            share = compared.share(counts_of, number)
            if share is not None and client != OTHER_CLIENTS:
                name = client_name(client, names)
                title = _title(number, titles)
                found.append(ClientAnomaly(name, _identity(number), title, *share))
                angles, variance_min = compared.angles(counts_of, number)
                if len(angles) >= EARLIER_MIN:
                    varies = _mean_and_spread(angles, variance_min)
                    readings = by_client[0][client].total()
                    figures.append(ClientFigure(name, readings, *varies, len(angles)))
    return found, figures


FEATURE_READINGS_MIN: Final = 10
FEATURE_READINGS_SHARE: Final = 0.2
"""readings of a mean, and their part of what is usual, without which it is not compared: the mean
of few varies more than those of many"""


def _features(
    bins: Sequence[Sequence[HistoryBin]],
    contract: Contract,
    titles: Titles,
    spans: _ComparedSpans,
) -> list[FeatureAnomaly]:
    """The mean of each feature within each state."""
    means = [_means(of_span) for of_span in bins]
    found = []
    for identity in sorted(means[0]):
        readings, observed = means[0][identity]
        compared = spans.of_state(identity, means)
        earlier = [of_span[identity] for of_span in compared[1:] if identity in of_span]
        usual = 0.0
        if earlier:
            usual = float(np.median([number for number, _ in earlier]))
        if readings < max(FEATURE_READINGS_MIN, FEATURE_READINGS_SHARE * usual):
            continue
        least = max(FEATURE_READINGS_MIN, FEATURE_READINGS_SHARE * readings)
        table = np.array([mean for number, mean in earlier if number >= least])
        for j, feature in enumerate(contract.features[: len(observed)]):
            # The mean of numbers that stand for names is none.
            if feature.kind == "category" or not len(table) or math.isnan(observed[j]):
                continue
            values = table[np.isfinite(table[:, j]), j]
            if not len(values):
                continue
            if feature.kind == "circular":
                # Whole turns off, so that each value is within half a turn of the one observed: 359
                # and 1 degrees are two apart.
                values = values - np.rint(values - observed[j])
            # Means travel in whole units of 1/10 000, so none is known better than one unit.
            chance = predicted(float(observed[j]), values.tolist(), 1.0 / PLACE_UNITS**2)
            found.append(
                FeatureAnomaly(
                    feature.name,
                    feature.unit,
                    identity,
                    titles(identity),
                    in_unit(float(observed[j]), feature),
                    in_unit(float(values.mean()), feature),
                    len(values),
                    chance,
                )
            )
    return found


def _means(bins: Iterable[HistoryBin]) -> Mapping[int, tuple[float, Floats]]:
    """identity -> readings and mean place (f,) in unit coordinates, of several bins; NaN where a
    mean is not known in any of them.

    Of a circular feature they are right where the bins lie on one side of its cut.
    """
    sums: dict[int, Floats] = {}
    for counted in bins:
        table = counted.place_table()
        for row, means in zip(table, known_means(table), strict=True):
            readings = float(row[-1])
            is_known = np.isfinite(means)
            # Of each feature the sum, and the readings whose place on it is known.
            placed = np.where(is_known, means * readings, 0.0), np.where(is_known, readings, 0.0)
            added = np.concatenate([*placed, [readings]])
            identity = int(row[0])
            sums[identity] = added + sums.get(identity, 0.0)
    found = {}
    for identity, total in sums.items():
        places, known = total[:-1].reshape(2, -1)
        unknown = np.full(len(places), np.nan)
        means = np.divide(places, known, out=unknown, where=known > 0)
        found[identity] = (float(total[-1]), means)
    return found


def _corrected(found: Iterable[Anomaly], compared: int) -> list[Anomaly]:
    """Chances of any of all that were compared, the least likely first."""
    raised = []
    for anomaly in found:
        raised.append(replace(anomaly, chance=min(1.0, anomaly.chance * max(1, compared))))
    return sorted(raised, key=_rank)


def _rank(
    anomaly: ClientAnomaly | FeatureAnomaly | StateAnomaly | HourAnomaly,
) -> tuple[float, float]:
    """The least likely first; of equal ones, but for rounding, what there was more of."""
    # Six digits: where sums are rounded otherwise, as by another version of NumPy, equal chances
    # would change places.
    return float(f"{anomaly.chance:.6g}"), anomaly.expected - anomaly.observed


def listed(found: Sequence[Anomaly], chance: float) -> list[Anomaly]:
    """Those whose chance is below `chance`, the least likely first, and not more than a reader goes
    through."""
    return [anomaly for anomaly in found if anomaly.chance < chance][:LISTED_MAX]

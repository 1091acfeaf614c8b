"""The common part of all estimators: scikit-learn's base classes, checks of tables, progress of a
fit, drawing."""

from __future__ import annotations

import inspect
import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.streaming import check_rows
from shoal.algorithms.view import NO_CLUSTER, ClusteringView
from shoal.errors import InvalidData, MissingExtra, SettingsError
from shoal.kernels.arrays import Floats, Ints, Objects
from shoal.protocol.no_value import is_no_value
from shoal.protocol.reading_faults import CLIPPED_SHARE, CLIPPING_ADVICE
from shoal.user_warnings import warn_user

if TYPE_CHECKING:  # an extra
    from matplotlib.axes import Axes

__all__ = [
    "NO_WEIGHTS_OF_TIME",
    "BaseEstimator",
    "ClusterMixin",
    "Features",
    "NotFittedError",
    "Progress",
    "RegressorMixin",
    "RiverClusterer",
    "StoppedEarly",
    "TransformerMixin",
    "as_table",
    "check_n_features",
    "column_names",
    "columns_in_order",
    "is_name_list",
    "is_number",
    "learnt_table",
    "names_of_row",
    "not_fitted",
    "refuse_weights",
    "row_values",
    "shortened",
    "warn_of_clipping",
    "warn_of_scales",
    "weights_of",
]


try:
    from sklearn.base import BaseEstimator, ClusterMixin, RegressorMixin, TransformerMixin
    from sklearn.exceptions import ConvergenceWarning as _Warning
    from sklearn.exceptions import NotFittedError as _NotFitted
except ImportError:
    _Warning = UserWarning

    class _NotFitted(ValueError, AttributeError):  # type: ignore[no-redef]  # without scikit-learn
        """The bases that scikit-learn's NotFittedError has."""

    class BaseEstimator:  # type: ignore[no-redef]  # used when scikit-learn is not installed
        """The part of scikit-learn's class that is needed without it: parameters that are read and
        set by name."""

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            # From the constructor, as scikit-learn does it, so that no estimator lists its
            # parameters twice.
            names = sorted(inspect.signature(type(self)).parameters)
            return {name: getattr(self, name) for name in names}

        def set_params(self, **params: Any) -> Self:
            for name, value in params.items():
                if name not in self.get_params():
                    raise ValueError(f"{type(self).__name__} has no parameter {name!r}")
                setattr(self, name, value)
            return self

    class ClusterMixin:  # type: ignore[no-redef]  # used when scikit-learn is not installed
        """The part of scikit-learn's class that is needed without it: labels in one call."""

        def fit_predict(self, X: ArrayLike, y: None = None, **kwargs: Any) -> Ints:
            labels: Ints = self.fit(X, **kwargs).labels_  # type: ignore[attr-defined]  # a mixin
            return labels

    class TransformerMixin:  # type: ignore[no-redef]  # used when scikit-learn is not installed
        """The part of scikit-learn's class that is needed without it: `transform` of the rows that
        were learnt, in one call."""

        def fit_transform(self, X: ArrayLike, y: None = None, **kwargs: Any) -> Floats:
            fitted = self.fit(X, **kwargs)  # type: ignore[attr-defined]  # a mixin
            distances: Floats = fitted.transform(X)
            return distances

    class RegressorMixin:  # type: ignore[no-redef]  # used when scikit-learn is not installed
        """The part of scikit-learn's class that is needed without it: the coefficient of
        determination."""

        def score(self, X: ArrayLike, y: ArrayLike) -> float:
            """1 less the squared errors of `predict(X)` relative to the squared deviations of y
            from its mean."""
            values = np.asarray(y, dtype=np.float64)
            errors = values - self.predict(X)  # type: ignore[attr-defined]  # a mixin
            return float(1.0 - (errors @ errors) / np.square(values - values.mean()).sum())


try:
    from river.base import Clusterer as RiverClusterer
except ImportError:
    RiverClusterer = None  # type: ignore[assignment,misc]  # river is not installed

Features = Sequence[int | str]
"""two features to draw, by position or name: across and up"""

NAMES_SHOWN_MAX = 8
# Squares add up: at this ratio the narrower feature makes a ten-thousandth of a squared distance.
SCALES_RATIO = 100.0
"""ratio of the spreads of two features from which on the narrower one hardly counts in distances"""


class NotFittedError(SettingsError, _NotFitted):  # type: ignore[misc]  # scikit-learn has no types
    """An estimator was used before `fit`: a ValueError and an AttributeError, and a NotFittedError
    of scikit-learn where that is installed.

    Examples
    --------
    >>> import shoal
    >>> try:
    ...     shoal.FCAC().predict([[0.1, 0.2]])
    ... except shoal.NotFittedError as error:
    ...     print(error)
    this FCAC has learnt nothing yet; call fit, partial_fit or learn_one before predict
    """


def not_fitted(estimator: object, wanted: str, methods: str) -> NotFittedError:
    """The error of a method or an attribute that was wanted before one of `methods` was called."""
    name = type(estimator).__name__
    return NotFittedError(f"this {name} has learnt nothing yet; call {methods} before {wanted}")


NO_WEIGHTS_OF_TIME: Final = (
    "rows are a sequence in time, in which a row that counts more would be one that lasts longer; "
    "give it as often as it was measured"
)


def refuse_weights(method: str, given: Mapping[str, Any], why: str) -> None:
    """Raise `SettingsError` for a `sample_weight` that an estimator cannot take, with the reason,
    and TypeError for other arguments that `method` does not have.

    It is no parameter of these methods, so that scikit-learn knows that it is not taken.
    """
    for name, value in given.items():
        if name != "sample_weight":
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")
        if value is not None:
            raise SettingsError(f"sample_weight is not taken: {why}")


def weights_of(sample_weight: ArrayLike, n: int) -> Floats:
    """How often each of n rows counts, (n,). Raises `InvalidData`, without a value."""
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (n,):
        raise InvalidData(
            f"sample_weight has the shape {weights.shape}, must be ({n},): a number for each row"
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise InvalidData("sample_weight must be numbers from 0, none of them NaN or infinite")
    if not (weights > 0).any():
        raise InvalidData("sample_weight is zero for all rows: there is nothing to learn from")
    return weights


def as_table(X: ArrayLike, gaps: bool = False) -> Floats:
    """X (n, d) -> finite float64; with `gaps`, NaN is a missing value.

    So are None, NA and NaT of pandas, what a masked array masks, and the words of
    `shoal.protocol.no_value`. Raises `InvalidData`, with the wording that scikit-learn's checks
    expect and without any value.
    """
    array = _array_of(X)
    if array.dtype.kind == "c":
        raise InvalidData("Complex data not supported: give real numbers")
    if array.ndim == 1:
        raise InvalidData(
            "X has 1 dimension, must be a table (n, d). Reshape your data: X[:, None] is one "
            "feature, X[None] is one row"
        )
    if array.ndim == 2 and len(array) and array.shape[1] == 0:
        raise InvalidData(f"0 feature(s) (shape={array.shape}) while a minimum of 1 is required.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        if not gaps:
            raise InvalidData(
                f"X has {int((~np.isfinite(array)).sum())} cells that are NaN or inf; fill or "
                "drop them"
            )
        if np.isinf(array).any():
            raise InvalidData(
                f"X has {int(np.isinf(array).sum())} cells that are inf; only NaN is a missing "
                "value"
            )
        # Its other checks hold for the values that are there, and it refuses NaN: 0 stands for a
        # gap.
        check_rows(np.where(np.isnan(array), 0.0, array), None)
        return np.ascontiguousarray(array, dtype=np.float64)
    return check_rows(array, None)


def _array_of(X: ArrayLike) -> Any:
    """X as an array of numbers, NaN where it has no value. Raises `InvalidData`."""
    # By its method: SciPy need not be installed.
    if hasattr(X, "toarray"):
        raise InvalidData("sparse rows are not supported; give X.toarray()")
    _refuse_times(X)
    _refuse_mappings(X)
    try:
        array = np.asarray(_unmasked(X))
        if array.dtype.kind in "US" and not hasattr(X, "dtype"):
            # NumPy has made texts of the numbers beside a text.
            array = np.asarray(X, dtype=object)
    except ValueError:
        raise InvalidData(NO_TABLE) from None
    if array.dtype.kind in "OUS":
        return _numbers_among(array)
    return array


NO_TABLE: Final = "X must be a table (n, d) of numbers; it has text, or rows of unequal lengths"
_TIME_TYPES: Final = ("datetime", "date", "time", "duration", "period")
"""beginnings of the names of types whose values are times, in lower case: of NumPy, pandas, polars
and Python"""
_MISSING_TYPES: Final = frozenset({"NoneType", "NAType", "NaTType", "MaskedConstant"})
"""names of the types of values that mean "no value": pandas, which has some, need not be there"""


# scikit-learn's checks of estimators expect this type, and the wording of its message.
class NotNumbers(InvalidData, TypeError):
    """A cell of a table is of a type that no number can be made of."""


def _unmasked(X: Any) -> Any:
    """X with NaN where a masked array has a masked value."""
    if not np.ma.isMaskedArray(X):
        return X
    if X.dtype.kind in "biuf":
        # As doubles: whole numbers have no NaN.
        return np.where(np.ma.getmaskarray(X), np.nan, X.data.astype(np.float64))
    filled = X.data.astype(object)
    filled[np.ma.getmaskarray(X)] = None
    return filled


def _refuse_times(X: Any) -> None:
    """Raise `InvalidData` where a column of a DataFrame, or an array, holds times."""
    if str(getattr(X, "dtype", "")).startswith(_TIME_TYPES):
        raise _holds_times("X")
    names = column_names(X)
    for place, kind in enumerate(getattr(X, "dtypes", ())):
        if str(kind).lower().startswith(_TIME_TYPES):
            raise _holds_times(_name(place, names))


def _refuse_mappings(X: Any) -> None:
    """Raise `InvalidData` where rows, or a whole table, are given by the names of features."""
    rows = X if isinstance(X, list | tuple) else [X]
    if rows and isinstance(rows[0], Mapping):
        raise InvalidData(
            "X must be a table (n, d) of numbers, not names with values: give pandas.DataFrame(X),"
            " or each row of its own to learn_one where the estimator has it"
        )


def _holds_times(where: str) -> InvalidData:
    return InvalidData(
        f"{where} holds times, which are no features: leave it out, or give what matters of it as "
        "a number, such as the hour of the day"
    )


def _numbers_among(cells: Objects) -> Floats:
    """An array of objects or texts -> float64 of the same shape, NaN for what means "no value".

    Raises `InvalidData`.
    """
    # Python and NumPy make numbers of some times.
    if cells.dtype.kind == "O" and not any(map(_is_time_type, set(map(type, cells.flat)))):
        with suppress(TypeError, ValueError, OverflowError):
            numbers: Floats = cells.astype(np.float64)
            return numbers
    converted = [_number_of(cell) for cell in cells.flat]
    return np.array(converted, dtype=np.float64).reshape(cells.shape)


def _is_time_type(kind: type) -> bool:
    return kind.__name__.lower().startswith(("timestamp", "timedelta", *_TIME_TYPES))


def _number_of(cell: Any) -> float:
    """The number of one cell, NaN for none. Raises `InvalidData` without the cell."""
    kind = type(cell).__name__
    if kind in _MISSING_TYPES:
        return math.nan
    if isinstance(cell, np.datetime64 | np.timedelta64) and np.isnat(cell):
        return math.nan
    if _is_time_type(type(cell)):
        raise _holds_times("a column of X")
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8", "replace")
    if isinstance(cell, str):
        if is_no_value(cell):
            return math.nan
        raise InvalidData(NO_TABLE)
    try:
        return float(cell)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf
    except (TypeError, ValueError):
        raise NotNumbers(
            f"a cell of X: the argument must be a string or a real number, not {kind!r}; leave its "
            "column out"
        ) from None


def check_n_features(rows: Floats, n_features: int, estimator: object) -> None:
    """Raises `InvalidData` unless the rows, if there are any, have as many features as the
    estimator has learnt."""
    if len(rows) and rows.shape[1] != n_features:
        name = type(estimator).__name__
        raise InvalidData(
            f"X has {rows.shape[1]} features, but {name} is expecting {n_features} features as "
            "input"
        )


def learnt_table(
    X: ArrayLike, names: list[str] | None, n_features: int, estimator: object, gaps: bool = False
) -> Floats:
    """X (n, d) -> (n, d) with its columns in the order in which they were learnt.

    names: those that were learnt, None if the first rows had none; columns without names are taken
    to be in order. Raises `InvalidData` for rows, and for other names or another number of columns.
    """
    rows = as_table(X, gaps)
    given = column_names(X)
    if given is None or names is None:
        check_n_features(rows, n_features, estimator)
        return rows
    return columns_in_order(rows, given, names)


def columns_in_order(rows: Floats, names: list[str], learnt: list[str]) -> Floats:
    """rows (n, d) whose columns have `names` -> (n, d) with the columns in the order of `learnt`.

    Raises `InvalidData` where a name is missing, was not learnt or stands twice.
    """
    if names == learnt:
        return rows
    if sorted(names) != sorted(learnt):
        faults = []
        lacking = [name for name in learnt if name not in names]
        unknown = [name for name in names if name not in learnt]
        if lacking:
            faults.append(f"{shortened(lacking)} missing")
        if unknown:
            faults.append(f"{shortened(unknown)} not learnt")
        raise InvalidData(
            f"features {shortened(names)} were given, {shortened(learnt)} were learnt: "
            f"{', '.join(faults) or 'a name stands twice'}"
        )
    return np.ascontiguousarray(rows[:, [names.index(name) for name in learnt]])


def warn_of_clipping(rows: Floats, low: Floats, high: Floats, names: Sequence[str] | None) -> bool:
    """Warn of features with more than `CLIPPED_SHARE` of their values beyond low and high (d,), by
    name and share.

    rows (n, d). Returns whether a warning was given.
    """
    if not len(rows):
        return False
    share = ((rows < low) | (rows > high)).mean(axis=0)
    places = np.flatnonzero(share > CLIPPED_SHARE).tolist()
    if places:
        clipped = [f"{_name(place, names)} ({share[place]:.0%})" for place in places]
        warn_user(
            CLIPPING_ADVICE.format(features=shortened(clipped)),
        )
    return bool(places)


def warn_of_scales(rows: Floats, names: Sequence[str] | None) -> bool:
    """Warn where the spread (standard deviation) of a feature is `SCALES_RATIO` times that of
    another one.

    rows (n, d). Constant features do not count. Returns whether a warning was given.
    """
    if np.isnan(rows).any():
        # Rows that lack a value are left out of the spread of every feature.
        rows = rows[~np.isnan(rows).any(axis=1)]
    if len(rows) < 2:
        return False
    spread = rows.std(axis=0)
    varying = np.flatnonzero(spread > 0)
    if not len(varying):
        return False
    widest = varying[spread[varying].argmax()]
    narrowest = varying[spread[varying].argmin()]
    ratio = spread[widest] / spread[narrowest]
    if ratio < SCALES_RATIO:
        return False
    warn_user(
        f"{_name(int(widest), names)} spreads {ratio:.0f} times as wide as "
        f"{_name(int(narrowest), names)}: distances decide, so the narrow one hardly counts. "
        "Bring features to one scale first, for instance by scale='robust' or scale='bounds'",
    )
    return True


def _name(place: int, names: Sequence[str] | None) -> str:
    if names is None:
        return f"feature {place}"
    return names[place]


def column_names(X: Any) -> list[str] | None:
    """The names of the columns of a DataFrame if all are strings, else None."""
    columns = getattr(X, "columns", None)
    if columns is None:
        return None
    names = list(columns)
    if names and is_name_list(names):
        return names
    return None


def is_name_list(names: object) -> bool:
    """Whether `names` is a list of strings."""
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def row_values(x: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """A row given by feature name -> its values in the order of `names`. Raises `InvalidData` for
    other names."""
    given = set(names_of_row(x))
    if given != set(names):
        message = f"features {shortened(sorted(given))} were given, {shortened(names)} were learnt"
        lacking = [name for name in names if name not in given]
        if lacking:
            message += f"; give None for {shortened(lacking)} where there is no value"
        raise InvalidData(message)
    by_name = {str(name): value for name, value in x.items()}
    return [by_name[name] for name in names]


def names_of_row(x: Mapping[str, Any]) -> list[str]:
    """The names of the features of a row, in alphabetical order; a Series of pandas has names too.

    Raises `InvalidData` for a row without names: its values would be taken for them.
    """
    if not hasattr(x, "keys") or not hasattr(x, "items"):
        raise InvalidData(
            f"a row is given by the names of its features, as {{'temp': 21.5, 'hum': 40}}, not as"
            f" {type(x).__name__}; learn_many and partial_fit take tables without names"
        )
    return sorted(map(str, x.keys()))


def shortened(names: Sequence[str]) -> str:
    """The first names of a list, for an error message."""
    shown = ", ".join(names[:NAMES_SHOWN_MAX])
    if len(names) > NAMES_SHOWN_MAX:
        shown += f" and {len(names) - NAMES_SHOWN_MAX} more"
    return shown


NO_CLUSTER_COLOUR = "0.65"
SIZE_MIN = 12.0
SIZE_MAX = 90.0
"""area of the mark of the lightest and of the heaviest node, in square points"""
NAMED_MAX = 10
"""most clusters in the legend, the heaviest ones"""


def draw_view(
    view: ClusteringView,
    nodes: Floats,
    names: Sequence[str],
    features: Features | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The nodes of a view, coloured by cluster, and its edges; returns the matplotlib Axes.

    `nodes` (n, d) are those of the view in the units in which they are drawn, `names` (d,) the
    axes' names, `features` two positions or names. Raises `MissingExtra` without matplotlib, and
    `SettingsError` for other features.
    """
    across, up = _positions(view, names, features)
    if ax is None:
        try:
            import matplotlib.pyplot as plt  # noqa: PLC0415 - an extra
        except ModuleNotFoundError:
            raise MissingExtra("Drawing a clustering", "plot") from None
        ax = plt.subplots()[1]
    points = np.zeros((len(nodes), 2))
    points[:, 0] = nodes[:, across]
    if up is not None:
        points[:, 1] = nodes[:, up]
    # At least 1e-12: without any mass all marks have the smallest size.
    size = SIZE_MIN + (SIZE_MAX - SIZE_MIN) * np.sqrt(
        view.mass / max(float(view.mass.max(initial=0.0)), 1e-12)
    )
    if len(view.edges):
        ax.plot(*points[view.edges].transpose(2, 1, 0), color="0.75", linewidth=0.8, zorder=1)
    alone = view.cluster == NO_CLUSTER
    ax.scatter(points[alone, 0], points[alone, 1], s=size[alone], color=NO_CLUSTER_COLOUR, zorder=2)
    # Stable: clusters of equal mass keep their numbers' order, and so their colours.
    heaviest = np.argsort(-view.centre_mass, kind="stable").tolist()
    for place, number in enumerate(heaviest):
        own = view.cluster == number
        label = None
        if place < NAMED_MAX:
            label = str(number if view.identity is None else int(view.identity[number]))
        ax.scatter(
            points[own, 0],
            points[own, 1],
            s=size[own],
            color=f"C{place % 10}",
            label=label,
            alpha=0.75,
            zorder=3,
        )
    ax.set(xlabel=names[across], ylabel="" if up is None else names[up])
    if heaviest:
        ax.legend(title="cluster", fontsize="small", markerscale=0.8)
    return ax


def _positions(
    view: ClusteringView, names: Sequence[str], features: Features | None
) -> tuple[int, int | None]:
    """The positions of the two features to draw; None where there is only one."""
    if len(names) == 1:
        return 0, None
    if features is None:
        return separating_features(view)
    try:
        first, second = features
        across = _position(names, first)
        up = _position(names, second)
    except (IndexError, TypeError, ValueError):
        known = ", ".join(names)
        raise SettingsError(
            f"features = {features!r} are not two positions or names of: {known}"
        ) from None
    return across, up


def _position(names: Sequence[str], feature: int | str) -> int:
    """The position of a feature given by name, or by position from either end. Raises `ValueError`,
    `IndexError` and `TypeError`."""
    if isinstance(feature, str):
        return names.index(feature)
    return range(len(names))[feature]


def separating_features(view: ClusteringView) -> tuple[int, int]:
    """The two features over which clusters differ most, compared with the spread within them; d >=
    2.

    Of a single cluster, those of the largest spread.
    """
    member = view.cluster >= 0
    nodes = view.nodes[member]
    mass = view.mass[member]
    cluster = view.cluster[member]
    if not mass.sum() > 0:
        return 0, 1
    gaps = view.centres[cluster] - np.average(nodes, axis=0, weights=mass)
    between = _mean_square(gaps, mass)
    within = _mean_square(nodes - view.centres[cluster], mass)
    # Centres that differ only by rounding are one cluster, and then the spread within it decides.
    score = between / np.maximum(within, 1e-12) if (between > 1e-12).any() else within
    across, up = np.argsort(-score, kind="stable")[:2].tolist()
    return across, up


def _mean_square(gaps: Floats, mass: Floats) -> Floats:
    """(n, d) differences, (n,) masses -> (d,)."""
    # The floor: without mass the spread is 0.
    means: Floats = mass @ gaps**2 / max(float(mass.sum()), 1e-12)
    return means


# A line for every round of a fast fit would cost more than the round.
SHOWN_EVERY_S: Final = 1.0


class StoppedEarly(_Warning):  # type: ignore[misc]  # scikit-learn has no types
    """`fit` has stopped at `max_seconds`; also a ConvergenceWarning of scikit-learn where that is
    installed.

    Examples
    --------
    >>> import warnings
    >>> import shoal
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     model = shoal.FCAC(max_seconds=1e-9).fit([[0.1, 0.2]] * 600)
    >>> [warning.category is shoal.StoppedEarly for warning in caught]
    [True]
    """


def is_number(value: object) -> bool:
    """Whether a parameter is a number; true and false are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


class Progress:
    """Shows on standard error each second how far a fit is, if `verbose`, and tells when
    `max_seconds` are over.

    `total` of what is counted, `unit`, a plural; `at_most`: it may end before. Where a terminal or
    a notebook shows it, one line is renewed; a file gets a line each time. Raises `SettingsError`
    for a limit that is not above 0.
    """

    def __init__(
        self,
        total: int,
        verbose: object = False,
        max_seconds: float | None = None,
        unit: str = "rows",
        at_most: bool = False,
    ) -> None:
        if max_seconds is not None and not (is_number(max_seconds) and max_seconds > 0):
            raise SettingsError(
                f"max_seconds = {max_seconds!r}, must be above 0, or None for no limit"
            )
        self._total = total
        self._verbose = bool(verbose)
        self._unit = unit
        self._at_most = at_most
        self._max_seconds = max_seconds
        # Of a steady clock: that of the day may be set while a long fit runs.
        self._start = self._shown = time.monotonic()
        self._done = 0
        self._line = ""
        """what stands in the line that is renewed"""
        self.is_over = False
        """whether the time was over when last looked at"""

    def advance(self, n: int, detail: str = "") -> bool:
        """Count n more; whether the time is over, and the work is to stop here."""
        self._done += n
        now = time.monotonic()
        if self._verbose and now - self._shown >= SHOWN_EVERY_S:
            self._shown = now
            self._show(self._text(now - self._start) + detail)
        if self._max_seconds is not None and now - self._start >= self._max_seconds:
            self.is_over = True
        return self.is_over

    def _text(self, took: float) -> str:
        left = took * max(0, self._total - self._done) / max(1, self._done)
        # Rounds end once the model stands still, and the limit ends either.
        bound = "at most" if self._at_most else "about"
        if self._max_seconds is not None and self._max_seconds - took < left:
            left = max(0.0, self._max_seconds - took)
            bound = "at most"
        of = "of at most" if self._at_most else "of"
        return (
            f"{self._done} {of} {self._total} {self._unit} in {took:.0f} s, {bound} {left:.0f} s "
            "left"
        )

    def _show(self, text: str) -> None:
        if not _renews_lines():
            sys.stderr.write(text + "\n")
            return
        # Spaces over the end of a longer line before.
        sys.stderr.write("\r" + text.ljust(len(self._line)))
        sys.stderr.flush()
        self._line = text

    def finish(self, wanted: int, estimator: object) -> None:
        """Show the sum, and warn with `StoppedEarly` if less was done than wanted because the time
        was over."""
        if self._verbose:
            took = time.monotonic() - self._start
            text = f"{type(estimator).__name__}: {self._done} {self._unit} in {took:.1f} s"
            start = "\r" if self._line else ""
            sys.stderr.write(f"{start}{text.ljust(len(self._line))}\n")
            self._line = ""
        if self.is_over and self._done < wanted:
            warn_user(
                f"fit stopped at max_seconds = {self._max_seconds:g} after {self._done} of at "
                f"most {wanted} {self._unit}: the model is what was learnt by then. Give it more "
                "time, or fewer rows",
                StoppedEarly,
            )


def _renews_lines() -> bool:
    """Whether what shows standard error goes back to the start of a line: a terminal, or a
    notebook, which is none."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules

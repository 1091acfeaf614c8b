"""What all estimators share: scikit-learn's base classes, or substitutes for them, and checks of input tables."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.algorithms.streaming import check_rows
from shoal.errors import InvalidData, SettingsError

try:
    from sklearn.base import BaseEstimator, ClusterMixin, RegressorMixin
    from sklearn.exceptions import NotFittedError as _NotFitted
except ImportError:
    _NotFitted = AttributeError

    class BaseEstimator:  # type: ignore[no-redef]  # used when scikit-learn is not installed
        """The part of scikit-learn's class that is needed without it: parameters that are read and set by name."""

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            return {name: getattr(self, name) for name in sorted(inspect.signature(type(self)).parameters)}

        def set_params(self, **params: Any) -> Self:
            for name, value in params.items():
                if name not in self.get_params():
                    raise ValueError(f"{type(self).__name__} has no parameter {name!r}")
                setattr(self, name, value)
            return self

    class ClusterMixin:  # type: ignore[no-redef]  # used when scikit-learn is not installed
        """The part of scikit-learn's class that is needed without it: labels in one call."""

        def fit_predict(self, X: ArrayLike, y: None = None, **kwargs: Any) -> NDArray[np.int64]:
            labels: NDArray[np.int64] = self.fit(X, **kwargs).labels_  # type: ignore[attr-defined]  # a mixin
            return labels

    class RegressorMixin:  # type: ignore[no-redef]  # used when scikit-learn is not installed
        """The part of scikit-learn's class that is needed without it: the coefficient of determination."""

        def score(self, X: ArrayLike, y: ArrayLike) -> float:
            """1 less the squared errors of `predict(X)` relative to the squared deviations of y from its mean."""
            values = np.asarray(y, dtype=np.float64)
            errors = values - self.predict(X)  # type: ignore[attr-defined]  # a mixin
            return float(1.0 - (errors @ errors) / np.square(values - values.mean()).sum())


__all__ = [
    "BaseEstimator",
    "ClusterMixin",
    "NotFittedError",
    "RegressorMixin",
    "Table",
    "as_table",
    "check_n_features",
    "column_names",
    "is_name_list",
    "row_values",
    "shortened",
]

Table = NDArray[np.float64]
"""(n, d) finite rows"""
NAMES_SHOWN_MAX = 8


class NotFittedError(SettingsError, _NotFitted):  # type: ignore[misc]  # scikit-learn has no types
    """An estimator was used before `fit`; also a NotFittedError of scikit-learn where that is installed."""


def as_table(X: ArrayLike) -> Table:
    """X (n, d) -> finite float64.

    Raises `InvalidData`, with the wording that scikit-learn's checks expect and without any value.
    """
    if hasattr(X, "toarray"):
        raise InvalidData("sparse rows are not supported; give X.toarray()")
    try:
        array = np.asarray(X)
        if array.dtype.kind == "O":
            array = array.astype(np.float64)
    except ValueError:
        raise InvalidData("X must be a table (n, d) of numbers; it has text, or rows of unequal lengths") from None
    if array.dtype.kind == "c":
        raise InvalidData("Complex data not supported: give real numbers")
    if array.ndim == 1:
        raise InvalidData("X has 1 dimension, must be a table (n, d). Reshape your data: X[None] is one row")
    if array.ndim == 2 and len(array) and array.shape[1] == 0:
        raise InvalidData(f"0 feature(s) (shape={array.shape}) while a minimum of 1 is required.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InvalidData(f"X has {int((~np.isfinite(array)).sum())} cells that are NaN or inf; fill or drop them")
    return check_rows(array, None)


def check_n_features(rows: Table, n_features: int, estimator: object) -> None:
    """Raises `InvalidData` unless the rows, if there are any, have as many features as the estimator has learnt."""
    if len(rows) and rows.shape[1] != n_features:
        name = type(estimator).__name__
        raise InvalidData(f"X has {rows.shape[1]} features, but {name} is expecting {n_features} features as input")


def column_names(X: Any) -> list[str] | None:
    """The names of the columns of a DataFrame if all are strings, else None."""
    columns = getattr(X, "columns", None)
    names = None if columns is None else list(columns)
    return names if names and is_name_list(names) else None


def is_name_list(names: object) -> bool:
    """Whether it is a list of strings."""
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def row_values(x: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """A row given by feature name -> its values in the order of `names`. Raises `InvalidData` for other names."""
    if set(map(str, x)) != set(names):
        raise InvalidData(f"features {shortened(sorted(map(str, x)))} were given, {shortened(names)} were learnt")
    by_name = {str(name): value for name, value in x.items()}
    return [by_name[name] for name in names]


def shortened(names: Sequence[str]) -> str:
    """The first names of a list, for an error message."""
    shown = ", ".join(names[:NAMES_SHOWN_MAX])
    return shown + (f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else "")

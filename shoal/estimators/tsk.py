"""Takagi-Sugeno rules as a scikit-learn regressor: rows and targets of clients in, rules and
predictions out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.regression import Regression, RuleBase, rules_of
from shoal.algorithms.rounds.policies import Policy
from shoal.errors import InvalidData
from shoal.estimators.base import (
    RegressorMixin,
    refuse_weights,
)
from shoal.estimators.rounds import RoundsEstimatorBase, named_tables, split_by_client
from shoal.kernels.arrays import Floats
from shoal.user_warnings import warn_user

__all__ = ["FederatedTSK"]


class FederatedTSK(
    RegressorMixin,  # type: ignore[misc]  # scikit-learn has no types
    RoundsEstimatorBase,
):
    """Federated Takagi-Sugeno rules: a regression that is linear in each rule, and rules that can
    be read.

    Parameters
    ----------
    n_clusters : int, default=6
        Number of rules, one for each fuzzy cluster of the inputs.
    consequents : {"least_squares", "gradient"}, default="least_squares"
        "least_squares" is exactly the ridge regression on all rows together; "gradient" takes one
        gradient step in each round, as F2LS does.
    ridge : float, default=1.0
        Least squares: what is added to the diagonal of the normal equations of standardised
        features.
    step : float, default=0.01
        Gradient: length of a step.
    fuzzifier : float, default=2.0
        How fuzzy the clusters are from which conditions are made.
    condition_rounds : int, default=30
        Most rounds of fuzzy c-means for the conditions; 0: those of `init` stay.
    outdated : float, default=1.0
        Conditions are found again when the rows of a rule have moved by this many standard
        deviations between rounds.
    init : {"kfed", "box"} or array-like of shape (h, d + 1), default="kfed"
        First centres, of the inputs and the target: from one round of k-FED, random in the box of
        all rows, or given.
    bounds : pair of numbers or of array-likes of shape (d + 1,), optional
        Lower and upper bounds that hold every row with its target; by default the smallest box of
        all rows.
    max_rounds : int, default=5000
    tol : float, default=1e-4
        Rounds end when one changes no coefficient of standardised features by as much.
    fraction : float, default=1.0
        Share of the clients that answer in each round.
    policy : Policy, optional
        How answers of earlier rounds count; by default not at all.
    random_state : int, default=0
    verbose : bool, default=False
        Whether `fit` shows on standard error how far it is.
    max_seconds : float or None, default=None
        Seconds after which `fit` ends with the round that is under way, and warns with
        `StoppedEarly`.

    Attributes
    ----------
    rules_ : list of str
        The rules in words, the one with most rows first.
    rule_base_ : RuleBase
        The same in numbers.
    n_rounds_ : int
    shifts_ : list of float
        How far each round moved the model.
    params_ : mapping of str to ndarray
        The parameters that the service would publish for rows whose last feature is the target.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Only where X was a DataFrame.

    Examples
    --------
    >>> import numpy as np
    >>> import shoal
    >>> x = np.linspace(0.0, 1.0, 200)[:, None]
    >>> y = 2.0 * x[:, 0] + 1.0
    >>> clients, targets = [x[::2], x[1::2]], [y[::2], y[1::2]]
    >>> model = shoal.FederatedTSK(n_clusters=2, ridge=1e-6).fit(clients, targets)
    >>> model.predict([[0.0], [1.0]]).round(2)
    array([1., 3.])
    >>> sorted(model.rules_)[0]
    'if x0 is very high then y = 1.00 + 2.00 × x0'
    """

    ALGORITHM: ClassVar[str] = "tsk"

    def __init__(  # noqa: PLR0913 - scikit-learn's convention: every parameter by its name
        self,
        n_clusters: int = 6,
        *,
        consequents: str = "least_squares",
        ridge: float = 1.0,
        step: float = 0.01,
        fuzzifier: float = 2.0,
        condition_rounds: int = 30,
        outdated: float = 1.0,
        init: Any = "kfed",
        bounds: Any = None,
        max_rounds: int = 5000,
        tol: float = 1e-4,
        fraction: float = 1.0,
        policy: Policy | None = None,
        random_state: int = 0,
        verbose: bool = False,
        max_seconds: float | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.consequents = consequents
        self.ridge = ridge
        self.step = step
        self.fuzzifier = fuzzifier
        self.condition_rounds = condition_rounds
        self.outdated = outdated
        self.init = init
        self.bounds = bounds
        self.max_rounds = max_rounds
        self.tol = tol
        self.fraction = fraction
        self.policy = policy
        self.random_state = random_state
        self.verbose = verbose
        self.max_seconds = max_seconds

    def fit(
        self,
        X: ArrayLike | Sequence[ArrayLike],
        y: ArrayLike | Sequence[ArrayLike] | None = None,
        clients: ArrayLike | None = None,
        **refused: Any,
    ) -> Self:
        """Find the rules and fit their consequents.

        Parameters
        ----------
        X : list of array-like of shape (n_i, d), or array-like of shape (n, d)
            One table for each client, some perhaps empty; or a single table.
        y : list of array-like of shape (n_i,), or array-like of shape (n,)
            The target of each row.
        clients : array-like of shape (n,), optional
            For a single table, the name of the client that has each row; by default one client has
            all.

        Raises `InvalidData` (a ValueError) for rows and targets, and `SettingsError` for
        parameters.
        """
        refuse_weights(
            "fit",
            refused,
            "the equations by which rules are fitted to a target have no weighted form here; give "
            "a row as often as it counts",
        )
        tables, position = split_by_client(X, clients)
        tables, names = named_tables(X, tables)
        # A list of rows is one table; a list of tables has one for each client.
        by_client = isinstance(X, list | tuple) and np.ndim(X[0]) != 1
        targets = self._targets(y, tables, position, by_client)
        self._run_rounds(
            [np.column_stack([rows, target]) for rows, target in zip(tables, targets, strict=True)]
        )
        self.n_features_in_ = tables[0].shape[1]
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        inputs = names or [f"x{number}" for number in range(self.n_features_in_)]
        self.rule_base_: RuleBase = self._regression().rules(self.params_)
        target_name = str(getattr(y, "name", None) or "y")
        rules = rules_of(self.rule_base_, [*inputs, target_name])
        self.rules_ = [rule.text for rule in rules]
        return self

    def predict(self, X: ArrayLike) -> Floats:
        """X (n, d) -> (n,) the predicted targets. Raises `InvalidData` for rows and
        `NotFittedError` before `fit`."""
        self._require_fit("predict")
        rows = self._as_learnt(X)
        # No prediction depends on it, and a row of the algorithm needs a finite number there.
        target = np.full(len(rows), self.params_["origin"][-1])
        return self._regression().predict(self.params_, np.column_stack([rows, target]))

    def _options(self) -> dict[str, Any]:
        names = ("consequents", "ridge", "step", "fuzzifier", "condition_rounds", "outdated")
        return {**super()._options(), **{name: getattr(self, name) for name in names}}

    def _regression(self) -> Regression:
        regression = self._algorithm().regression
        assert regression is not None, "tsk predicts a target"
        return regression

    def _targets(
        self, y: Any, tables: list[Floats], position: Any, by_client: bool
    ) -> list[Floats]:
        """One target for each row of each table, in the order of the tables; `by_client`: y is a
        list as well."""
        if y is None:
            raise InvalidData(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        sizes = [len(rows) for rows in tables]
        if by_client:
            targets = [_one_column(own) for own in y]
            given_sizes = [len(own) for own in targets]
            if given_sizes != sizes:
                raise InvalidData(f"y has {given_sizes} targets by client, X has {sizes} rows")
            return targets
        column = _one_column(y)
        if len(column) != sum(sizes):
            raise InvalidData(f"y has {len(column)} targets, X has {sum(sizes)} rows")
        if position is not None:
            ordered = np.empty_like(column)
            ordered[position] = column
            column = ordered
        return np.split(column, np.cumsum(sizes)[:-1])


def _one_column(y: ArrayLike) -> Floats:
    """y (n,) or (n, 1) -> (n,) finite float64. Raises `InvalidData`."""
    given = np.asarray(y)
    if given.ndim == 2 and given.shape[1] == 1:
        _warn_of_column()
        given = given[:, 0]
    if given.ndim != 1:
        raise InvalidData(
            f"y must be one target for each row, of shape (n,); it has shape {given.shape}"
        )
    if given.dtype.kind == "c":
        raise InvalidData("Complex data not supported: give real targets")
    try:
        column = given.astype(np.float64)
    except (TypeError, ValueError):
        raise InvalidData("y must be numbers") from None
    if not np.isfinite(column).all():
        raise InvalidData("y contains NaN or infinity; drop those rows")
    return column


def _warn_of_column() -> None:
    """The warning of scikit-learn, where that is installed."""
    try:
        from sklearn.exceptions import (  # noqa: PLC0415 - an extra that edge clients do without
            DataConversionWarning,
        )
    except ImportError:
        return
    warn_user(
        "A column-vector y was passed when a 1d array was expected",
        DataConversionWarning,
    )

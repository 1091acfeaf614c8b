"""What a receiver checks of a message beyond its form: is it ours, and can it be true?

The sender runs the same checks before it speaks, so a message that is refused here was damaged, made by
another version, or made up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.policies import Policy
from shoal.algorithms.registry import ALGORITHMS, ROUNDS, STREAMING
from shoal.algorithms.streaming import Arrays, ArraySpec
from shoal.calls import call_of
from shoal.codec import pack
from shoal.contract import Contract, Model
from shoal.errors import DataRefused, MessageRefused, SettingsError
from shoal.messages import Snapshot, Update, Wake
from shoal.privacy import Bounds, PrivacyTerms, expected_statement, reach_for

ROWS_MAX = 1_000_000
"""the most nodes or edges one message may carry"""
REACH_SLACK = 1e-9
"""in unit coordinates: a mean of points on the edge may leave it by rounding"""


def terms_of(contract: Contract) -> PrivacyTerms:
    """The contract's privacy as the privacy room takes it. Raises `SettingsError`."""
    features = contract.features
    return PrivacyTerms(
        mode=contract.privacy.mode,
        bounds=bounds_of(contract),
        epsilon_per_reading=contract.privacy.epsilon_per_reading,
        epsilon_nominal_per_feature=contract.privacy.epsilon_nominal_per_feature,
        shares=[feature.share for feature in features],
    )


def bounds_of(contract: Contract) -> Bounds:
    """The declared bounds of all features."""
    return Bounds([feature.low for feature in contract.features], [feature.high for feature in contract.features])


def check_models(contract: Contract) -> None:
    """Raises `SettingsError` when a model names an unknown algorithm or gives it options it does not take."""
    for model in contract.models:
        if model.algorithm not in ALGORITHMS:
            known = ", ".join(sorted(ALGORITHMS))
            raise SettingsError(f"models.{model.name}: unknown algorithm {model.algorithm!r}; there are: {known}")
        try:
            if model.algorithm in ROUNDS:
                _check_rounds(model, contract)
            else:
                _check_streaming(model, contract)
        except SettingsError as wrong:
            raise SettingsError(f"models.{model.name}: {wrong}") from None


def policy_of(model: Model) -> Policy:
    """What a model in rounds does between rounds. Raises `SettingsError`."""
    agreed, algorithm = model.rounds, ROUNDS[model.algorithm]
    kind = agreed.between or ("decay" if algorithm.additive else "cache")
    policy = Policy(kind, agreed.decay, agreed.cache_rounds, agreed.late_rounds)
    policy.check(algorithm)
    return policy


def clusters_wanted(model: Model) -> Any:
    """How many clusters a model in rounds looks for, if it says: a number, or "auto"."""
    option = ROUNDS[model.algorithm].options.get("clusters")
    return model.options.get("clusters", None if option is None else option.default)


def _check_rounds(model: Model, contract: Contract) -> None:
    ROUNDS[model.algorithm].check(model.options)
    policy_of(model)
    if clusters_wanted(model) == "auto" and not any(other.algorithm in STREAMING for other in contract.models):
        finders = " or ".join(sorted(STREAMING))
        raise SettingsError(
            f'clusters = "auto" takes over what another model finds: add one of {finders}, or give a number'
        )


def _check_streaming(model: Model, contract: Contract) -> None:
    if "rounds" in model.model_fields_set:
        raise SettingsError(f"{model.algorithm} has no rounds; leave out [models.rounds]")
    STREAMING[model.algorithm].server(model.options, contract.width)
    STREAMING[model.algorithm].client(model.options, contract.width)


class Border:
    """The checks of one federation, from its contract alone."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        # Not asked of the contract for each message: it is made of every feature.
        self._digest = contract.digest
        terms = terms_of(contract)
        self._statement = _sealed(expected_statement(terms))
        self._lowest, self._highest = reach_for(terms)

    def admit_update(self, update: Update) -> None:
        """Raises `MessageRefused` unless the update belongs here and can be true."""
        model = self._admit(update)
        if model.algorithm in ROUNDS:
            if update.round is None:
                raise MessageRefused("malformed", "an answer says which round it is for")
            if update.readings < model.rounds.rows_min:
                raise MessageRefused("bounds", f"fewer than {model.rounds.rows_min} rows behind an answer")
            self._check_arrays(update.arrays, ROUNDS[model.algorithm].stats)
        else:
            self._check_arrays(update.arrays, STREAMING[model.algorithm].update)

    def admit_snapshot(self, snapshot: Snapshot) -> None:
        """Raises `MessageRefused` unless the snapshot belongs here and can be true."""
        model = self._admit(snapshot)
        if model.algorithm in ROUNDS:
            call_of(snapshot)
            self.admit_params(model, snapshot.arrays)
        else:
            self._check_arrays(snapshot.arrays, STREAMING[model.algorithm].snapshot)
        sizes = ALGORITHMS[model.algorithm].summary(snapshot.arrays)
        if (snapshot.clusters, snapshot.nodes) != (sizes.clusters, sizes.nodes):
            raise MessageRefused("arrays", "it names other numbers of clusters and nodes than it holds")

    def admit_wake(self, wake: Wake) -> None:
        """Raises `MessageRefused` unless it wakes a model in rounds of this federation."""
        if self._addressed(wake).algorithm not in ROUNDS:
            raise MessageRefused("model", "it has no rounds to wake for")

    def admit_params(self, model: Model, params: Arrays) -> None:
        """Raises `MessageRefused` unless these can be the parameters of a model in rounds."""
        self._check_arrays(params, ROUNDS[model.algorithm].params)

    def admit_answer(self, model: Model, params: Arrays, update: Update) -> None:
        """Raises `MessageRefused` for an answer that cannot be combined: it must not stop the others'."""
        try:
            alone = ROUNDS[model.algorithm].combine(params, [update.arrays])
        except DataRefused as wrong:
            raise MessageRefused("arrays", str(wrong)) from None
        self.admit_params(model, alone)

    def _admit(self, message: Update | Snapshot) -> Model:
        model = self._addressed(message)
        if model.algorithm != message.algorithm:
            raise MessageRefused("model", "no such model with this algorithm in the contract")
        if _sealed(message.privacy) != self._statement:
            raise MessageRefused("privacy", "its privacy statement is not the contract's")
        return model

    def _addressed(self, message: Update | Snapshot | Wake) -> Model:
        contract = self._contract
        if message.federation != contract.federation:
            raise MessageRefused("federation", f"of another federation than {contract.federation}")
        if message.contract != self._digest:
            raise MessageRefused("contract", f"made under another contract than {self._digest}")
        model = contract.model(message.model)
        if model is None:
            raise MessageRefused("model", "no such model in the contract")
        return model

    def _check_arrays(self, arrays: Arrays, table: Mapping[str, ArraySpec]) -> None:
        if set(arrays) != set(table):
            raise MessageRefused("arrays", f"the arrays must be {', '.join(sorted(table))}")
        sizes = {"d": self._contract.width}
        for name, spec in table.items():
            _check_form(name, arrays[name], spec, sizes)
        for name, spec in table.items():
            _check_values(name, arrays[name], spec, sizes)
            if spec.rowlike and not self._within_reach(arrays[name]):
                raise MessageRefused("bounds", f"{name} lies where no reading under this contract can put it")

    def _within_reach(self, rows: NDArray[Any]) -> bool:
        return bool(np.all(rows >= self._lowest - REACH_SLACK) and np.all(rows <= self._highest + REACH_SLACK))


def _check_form(name: str, array: NDArray[Any], spec: ArraySpec, sizes: dict[str, int]) -> None:
    if array.dtype != np.dtype(spec.dtype) or array.ndim != len(spec.shape):
        raise MessageRefused("arrays", f"{name} must be {spec.dtype} of shape {spec.shape}")
    for size, wanted in zip(array.shape, spec.shape, strict=True):
        if size > ROWS_MAX:
            raise MessageRefused("oversized", f"{name} has {size} entries, at most {ROWS_MAX} are accepted")
        if size != (wanted if isinstance(wanted, int) else sizes.setdefault(wanted, size)):
            raise MessageRefused("arrays", f"{name} has shape {array.shape}, declared {spec.shape}")


def _check_values(name: str, array: NDArray[Any], spec: ArraySpec, sizes: Mapping[str, int]) -> None:
    if not np.isfinite(array).all():
        raise MessageRefused("not_finite", f"{name} holds a value that is not finite")
    if spec.positive and bool((array < 1).any()):
        raise MessageRefused("bounds", f"{name} holds a value below 1")
    if spec.above_zero and bool((array <= 0).any()):
        raise MessageRefused("bounds", f"{name} holds a value that is not above 0")
    if spec.points_into and bool(((array < 0) | (array >= sizes[spec.points_into])).any()):
        raise MessageRefused("bounds", f"{name} points to what is not there")


def _sealed(statement: Mapping[str, Any]) -> bytes:
    """A privacy statement as bytes, whatever the order of its names: 1 is neither 1.0 nor true."""
    return pack(dict(sorted(statement.items())))

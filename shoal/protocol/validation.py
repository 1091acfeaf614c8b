"""What a receiver checks of a message beyond its form: is it ours, and can it be true?

The sender runs the same checks before it speaks, so a message that is refused here was damaged, made by
another version, or made up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.registry import is_in_rounds, load_algorithm, rounds_algorithm, streaming_algorithm
from shoal.algorithms.streaming import Arrays, ArraySpec
from shoal.config.contract import Contract, Model
from shoal.config.privacy_terms import privacy_terms_of
from shoal.errors import InvalidData, MessageRejected
from shoal.privacy import expected_statement, reach_for
from shoal.protocol.codec import pack
from shoal.protocol.messages import Snapshot, Update, Wake
from shoal.protocol.round_request import round_request_of

ROWS_MAX = 1_000_000
"""the most nodes or edges one message may carry"""
REACH_SLACK = 1e-9
"""in unit coordinates: a mean of points on the edge may leave it by rounding"""


class Validator:
    """The checks of one federation, from its contract alone."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        # Not asked of the contract for each message: it is made of every feature.
        self._digest = contract.digest
        terms = privacy_terms_of(contract)
        self._statement = _sealed(expected_statement(terms))
        self._lowest, self._highest = reach_for(terms)

    def check_update(self, update: Update) -> None:
        """Raises `MessageRejected` unless the update belongs here and can be true."""
        model = self._admit(update)
        if is_in_rounds(model.algorithm):
            if update.round is None:
                raise MessageRejected("malformed", "an answer says which round it is for")
            if update.readings < model.rounds.rows_min:
                raise MessageRejected("bounds", f"fewer than {model.rounds.rows_min} rows behind an answer")
            self._check_arrays(update.arrays, rounds_algorithm(model.algorithm).update)
        else:
            self._check_arrays(update.arrays, streaming_algorithm(model.algorithm).update)

    def check_snapshot(self, snapshot: Snapshot) -> None:
        """Raises `MessageRejected` unless the snapshot belongs here and can be true."""
        model = self._admit(snapshot)
        if is_in_rounds(model.algorithm):
            round_request_of(snapshot)
            self.check_params(model, snapshot.arrays)
        else:
            self._check_arrays(snapshot.arrays, streaming_algorithm(model.algorithm).snapshot)
        sizes = load_algorithm(model.algorithm).summary(snapshot.arrays)
        if (snapshot.clusters, snapshot.nodes) != (sizes.clusters, sizes.nodes):
            raise MessageRejected("arrays", "it names other numbers of clusters and nodes than it holds")

    def check_wake(self, wake: Wake) -> None:
        """Raises `MessageRejected` unless it wakes a model in rounds of this federation."""
        if not is_in_rounds(self._addressed(wake).algorithm):
            raise MessageRejected("model", "it has no rounds to wake for")

    def check_params(self, model: Model, params: Arrays) -> None:
        """Raises `MessageRejected` unless these can be the parameters of a model in rounds."""
        self._check_arrays(params, rounds_algorithm(model.algorithm).snapshot)

    def check_answer_combines(self, model: Model, params: Arrays, update: Update) -> None:
        """Raises `MessageRejected` for an answer that cannot be combined: it must not stop the others'."""
        try:
            alone = rounds_algorithm(model.algorithm).combine(params, [update.arrays])
        except InvalidData as wrong:
            raise MessageRejected("arrays", str(wrong)) from None
        self.check_params(model, alone)

    def _admit(self, message: Update | Snapshot) -> Model:
        model = self._addressed(message)
        if model.algorithm != message.algorithm:
            raise MessageRejected("model", "no such model with this algorithm in the contract")
        if _sealed(message.privacy) != self._statement:
            raise MessageRejected("privacy", "its privacy statement is not the contract's")
        return model

    def _addressed(self, message: Update | Snapshot | Wake) -> Model:
        contract = self._contract
        if message.federation != contract.federation:
            raise MessageRejected("federation", f"of another federation than {contract.federation}")
        if message.contract != self._digest:
            raise MessageRejected("contract", f"made under another contract than {self._digest}")
        model = contract.model(message.model)
        if model is None:
            raise MessageRejected("model", "no such model in the contract")
        return model

    def _check_arrays(self, arrays: Arrays, table: Mapping[str, ArraySpec]) -> None:
        if set(arrays) != set(table):
            raise MessageRejected("arrays", f"the arrays must be {', '.join(sorted(table))}")
        sizes = {"d": self._contract.width}
        for name, spec in table.items():
            _check_form(name, arrays[name], spec, sizes)
        for name, spec in table.items():
            _check_values(name, arrays[name], spec, sizes)
            if spec.rowlike and not self._within_reach(arrays[name]):
                raise MessageRejected("bounds", f"{name} lies where no reading under this contract can put it")

    def _within_reach(self, rows: NDArray[Any]) -> bool:
        return bool(np.all(rows >= self._lowest - REACH_SLACK) and np.all(rows <= self._highest + REACH_SLACK))


def _check_form(name: str, array: NDArray[Any], spec: ArraySpec, sizes: dict[str, int]) -> None:
    if array.dtype != np.dtype(spec.dtype) or array.ndim != len(spec.shape):
        raise MessageRejected("arrays", f"{name} must be {spec.dtype} of shape {spec.shape}")
    for size, wanted in zip(array.shape, spec.shape, strict=True):
        if size > ROWS_MAX:
            raise MessageRejected("oversized", f"{name} has {size} entries, at most {ROWS_MAX} are accepted")
        if size != (wanted if isinstance(wanted, int) else sizes.setdefault(wanted, size)):
            raise MessageRejected("arrays", f"{name} has shape {array.shape}, declared {spec.shape}")


def _check_values(name: str, array: NDArray[Any], spec: ArraySpec, sizes: Mapping[str, int]) -> None:
    if not np.isfinite(array).all():
        raise MessageRejected("not_finite", f"{name} holds a value that is not finite")
    if spec.positive and bool((array < 1).any()):
        raise MessageRejected("bounds", f"{name} holds a value below 1")
    if spec.above_zero and bool((array <= 0).any()):
        raise MessageRejected("bounds", f"{name} holds a value that is not above 0")
    if spec.points_into and bool(((array < 0) | (array >= sizes[spec.points_into])).any()):
        raise MessageRejected("bounds", f"{name} points to what is not there")


def _sealed(statement: Mapping[str, Any]) -> bytes:
    """A privacy statement as bytes, whatever the order of its names: 1 is neither 1.0 nor true."""
    return pack(dict(sorted(statement.items())))

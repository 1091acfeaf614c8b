"""Validation of messages: whether one belongs to this federation, and whether it is possible.

The sender runs the same checks before it publishes, so a message that fails them at the receiver
was damaged, made by another version, or forged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shoal.algorithms.claims import Box, Claims
from shoal.algorithms.streaming import DIVISOR_MIN, MAGNITUDE_MAX, Arrays, ArraySpec
from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.errors import InvalidData, MessageRejected
from shoal.kernels.arrays import AnyArray, all_finite
from shoal.protocol.codec import pack
from shoal.protocol.messages import ModelMessage, Snapshot, Update, round_request_of
from shoal.protocol.regions import RegionUpdate, update_arrays

ROWS_MAX = 1_000_000
"""most nodes or edges in one message"""
SUMS_ALONE = (
    "models learn from sums of masked counts, in which no client can be told from the others: "
    "none can be put into quarantine, forgotten or unlearned, and what a client has sent stays in "
    "the sums for good"
)
REACH_SLACK = 1e-9
"""tolerance in unit coordinates: the mean of points on a bound may lie beyond it by rounding"""


class Validator:
    """Checks messages against one contract.

    It keeps no state: the result depends on the message and the contract alone. A message of an
    earlier contract of the federation is checked against that one, if its model is still there.

    Each check raises `MessageRejected` with one of `shoal.protocol.rejected.REASONS`.
    """

    def __init__(self, contract: ResolvedContract) -> None:
        self._contract = contract
        self._statements: dict[str, bytes] = {}
        for name, model in contract.models.items():
            self._statements[name] = _canonical(model.statement)
        lowest, highest = contract.mode.row_range()
        self._box = Box(lowest, highest)
        # Once for a contract: each update compares thousands of rows with them.
        self._reach = (
            np.maximum(lowest - REACH_SLACK, -MAGNITUDE_MAX),
            np.minimum(highest + REACH_SLACK, MAGNITUDE_MAX),
        )
        self._earlier: dict[str, Validator] = {}
        for digest, earlier in contract.earlier.items():
            self._earlier[digest] = Validator(earlier.contract)

    @property
    def contract(self) -> ResolvedContract:
        """The contract that messages are checked against."""
        return self._contract

    def _of(self, message: ModelMessage) -> Validator:
        """The validator of the contract that the message was made under."""
        standing = self._contract.standing(message.contract, message.model)
        # Of a model that is gone, or of a contract that nobody has agreed on: this contract's own
        # validator finds and names the fault.
        if standing not in {"same", "anew"}:
            return self
        return self._earlier.get(message.contract, self)

    def is_superseded(self, message: ModelMessage) -> bool:
        """Whether it is of an earlier contract, and of a model that is gone since."""
        standing = self._contract.standing(message.contract, message.model)
        return message.federation == self._contract.federation and standing == "gone"

    def is_learnt(self, message: ModelMessage) -> bool:
        """Whether its model may go on from it: not where that began anew after its contract."""
        return self._contract.standing(message.contract, message.model) == "same"

    def check_update(self, update: Update) -> None:
        """An update, whose arrays readings under this contract must be able to produce."""
        self._of(update)._check_update(update)

    def _check_update(self, update: Update) -> None:
        model = self._check_origin(update)
        if isinstance(update, RegionUpdate):
            self._check_region(update, model)
        elif model.mode.masked:
            # Counts without a mask would be read by everybody, whatever the contract promises.
            raise MessageRejected("privacy", "its model learns from sums of masked counts alone")
        hides_rejected = model.mode.formal or model.family.client_counts
        if update.rejected is not None and hides_rejected:
            raise MessageRejected(
                "malformed", "it tells how many readings were rejected, which privacy hides"
            )
        if not update.is_report:
            self._check_learnt(update, model)

    def _check_learnt(self, update: Update, model: ResolvedModel) -> None:
        """What an update has learnt from readings: their number, its round and its arrays."""
        readings_max = model.declared.readings_max
        # A sum of masked counts is of a whole batch, whose windows have their own limit.
        if update.readings > readings_max and not model.mode.masked:
            raise MessageRejected(
                "bounds", f"it is from more than the {readings_max} readings of readings_max"
            )
        if model.rounds is not None:
            rows_min = model.declared.rounds.rows_min
            if update.round is None:
                raise MessageRejected("malformed", "an answer needs the number of its round")
            if update.readings < rows_min:
                raise MessageRejected("bounds", f"an answer from fewer than {rows_min} rows")
            self._check_arrays(update.arrays, model.algorithm.update)
        else:
            self._check_arrays(update.arrays, update_arrays(update))
            # A chunk claims a part only: the whole is checked once it has been joined.
            if model.algorithm.check_claims is not None and update.chunks == 1:
                self._agree(model.algorithm.check_claims, model.options, update)

    def check_snapshot(self, snapshot: Snapshot) -> None:
        """A snapshot, as `check_update`.

        It has as many clusters and nodes as it says, and can label a row.
        """
        self._of(snapshot)._check_snapshot(snapshot)

    def _check_snapshot(self, snapshot: Snapshot) -> None:
        model = self._check_origin(snapshot)
        if model.family.in_rounds:
            round_request_of(snapshot)
        self._check_arrays(snapshot.arrays, model.algorithm.snapshot)
        try:
            sizes = model.algorithm.summary(snapshot.arrays)
            if model.rounds is None or not model.rounds.algorithm.labels_by_centres:
                # An overflow here would be one at every client that labels by this snapshot.
                with np.errstate(over="raise"):
                    model.algorithm.predict(
                        snapshot.arrays, np.full((1, self._contract.width), 0.5)
                    )
            if model.counts is not None:
                # Whether clients can count under its plan.
                model.counts.algorithm.counter(model.options, self._contract.width).adopt(
                    snapshot.arrays
                )
        except InvalidData as wrong:
            raise MessageRejected("arrays", str(wrong)) from None
        except FloatingPointError:
            raise MessageRejected("arrays", "distances to its centres overflow") from None
        if (snapshot.clusters, snapshot.nodes) != (sizes.clusters, sizes.nodes):
            raise MessageRejected(
                "arrays", "its numbers of clusters and nodes are not those of its arrays"
            )

    def check_request(self, request: ModelMessage) -> None:
        """A request of any kind: it must be for a model of this federation."""
        self._of(request)._check_addressed(request)

    def check_client_request(self, request: ModelMessage) -> None:
        """A request about one client, whose counts must not be masked.

        Masked ones cannot be told from those of others.
        """
        mode = self._of(request)._check_addressed(request).mode
        if mode.masked and not mode.regions:
            raise MessageRejected("privacy", SUMS_ALONE)

    def check_wake(self, wake: ModelMessage) -> None:
        """A wake: it must name a model in rounds of this federation."""
        if not self._of(wake)._check_addressed(wake).family.in_rounds:
            raise MessageRejected("model", "the model has no rounds to start")

    def check_params(self, model: str, params: Arrays) -> None:
        """The parameters of a model in rounds: their names, shapes and values."""
        self._check_arrays(params, self._contract.models[model].algorithm.snapshot)

    def check_answer_claims(self, update: Update, params: Arrays) -> None:
        """A whole answer that has passed `check_update`: what it claims of its rows agrees."""
        check = self._contract.models[update.model].algorithm.check_claims
        if check is not None:
            self._agree(check, params, update)

    def check_answer_combines(self, update: Update, params: Arrays) -> Arrays:
        """An answer: combined alone it must give valid parameters, which are returned.

        So it cannot stop the combination of all.
        """
        rounds = self._contract.models[update.model].rounds
        assert rounds is not None, "answers are to models in rounds"
        try:
            alone = rounds.algorithm.combine(params, [update.arrays])
        except InvalidData as wrong:
            raise MessageRejected("arrays", str(wrong)) from None
        self.check_params(update.model, alone)
        return alone

    def _check_origin(self, message: Update | Snapshot) -> ResolvedModel:
        model = self._check_addressed(message)
        if model.algorithm.name != message.algorithm:
            raise MessageRejected("model", "no such model with this algorithm in the contract")
        # The statement of an own message is the contract's itself.
        is_own = message.privacy is model.statement
        if not is_own and _canonical(message.privacy) != self._statements[model.name]:
            raise MessageRejected("privacy", "its privacy statement is not the contract's")
        return model

    def _check_addressed(self, message: ModelMessage) -> ResolvedModel:
        contract = self._contract
        if message.federation != contract.federation:
            raise MessageRejected("federation", f"its federation is not {contract.federation}")
        if message.contract != contract.digest:
            raise MessageRejected("contract", f"its contract is not {contract.digest}")
        model = contract.models.get(message.model)
        if model is None:
            raise MessageRejected("model", "no such model in the contract")
        return model

    def _check_region(self, update: RegionUpdate, model: ResolvedModel) -> None:
        update.check_passes_once(self._contract.federation)
        if not model.algorithm.aggregates:
            raise MessageRejected("model", f"a region cannot contribute to {update.algorithm}")
        if model.mode.masked and update.client not in model.mode.regions:
            raise MessageRejected(
                "privacy", f"the contract names no helpers of region {update.client}"
            )

    def _agree(
        self, check: Callable[[Any, Arrays, Claims], None], terms: Any, update: Update
    ) -> None:
        """`terms`: the options, or the parameters of the round, that the update was made with."""
        try:
            check(terms, update.arrays, Claims(update.readings, self._box))
        except InvalidData as wrong:
            raise MessageRejected("claims", str(wrong)) from None

    def _check_arrays(self, arrays: Arrays, table: Mapping[str, ArraySpec]) -> None:
        if arrays.keys() != table.keys():
            raise MessageRejected("arrays", f"its arrays must be {', '.join(sorted(table))}")
        sizes = {"d": self._contract.width}
        for name, spec in table.items():
            _check_form(name, arrays[name], spec, sizes)
        for name, spec in table.items():
            # What is within bounds is finite: nearly every array passes by these comparisons alone.
            if spec.rowlike:
                within = self._within_reach(arrays[name])
            else:
                within = _is_moderate(arrays[name])
            if not within and not all_finite(arrays[name]):
                raise MessageRejected("not_finite", f"{name} holds a value that is not finite")
            _check_values(name, arrays[name], spec, sizes, moderate=within or spec.rowlike)
            if spec.rowlike and not within:
                raise MessageRejected(
                    "bounds", f"{name} holds a row outside the bounds of the contract"
                )

    def _within_reach(self, rows: AnyArray) -> bool:
        lowest, highest = self._reach
        return bool((rows >= lowest).all() and (rows <= highest).all())


def _check_form(name: str, array: AnyArray, spec: ArraySpec, sizes: dict[str, int]) -> None:
    if array.dtype != np.dtype(spec.dtype) or array.ndim != len(spec.shape):
        raise MessageRejected("arrays", f"{name} must be {spec.dtype} of shape {spec.shape}")
    if spec.not_empty and not len(array):
        raise MessageRejected("arrays", f"{name} is empty")
    for size, declared in zip(array.shape, spec.shape, strict=True):
        if size > ROWS_MAX:
            raise MessageRejected(
                "oversized", f"{name} has {size} entries, the limit is {ROWS_MAX}"
            )
        # The first array with a named size decides it for all that follow.
        expected = declared if isinstance(declared, int) else sizes.setdefault(declared, size)
        if size != expected:
            raise MessageRejected(
                "arrays", f"{name} has shape {array.shape}, the declared one is {spec.shape}"
            )


def _check_values(
    name: str, array: AnyArray, spec: ArraySpec, sizes: Mapping[str, int], *, moderate: bool
) -> None:
    if not moderate:
        raise MessageRejected(
            "bounds", f"{name} holds a value beyond {MAGNITUDE_MAX:g}, whose square overflows"
        )
    if spec.at_least_one and bool((array < 1).any()):
        raise MessageRejected("bounds", f"{name} holds a value below 1")
    if spec.positive and bool((array <= 0).any()):
        raise MessageRejected("bounds", f"{name} holds a value that is not above 0")
    if spec.squared_divisor and bool((array < DIVISOR_MIN).any()):
        raise MessageRejected(
            "bounds", f"{name} holds a value below {DIVISOR_MIN:g}, whose square is 0"
        )
    if spec.points_into and bool(((array < 0) | (array >= sizes[spec.points_into])).any()):
        raise MessageRejected("bounds", f"{name} holds an index out of range")


def _is_moderate(array: AnyArray) -> bool:
    """Whether all values are finite, and their squares."""
    if array.dtype.kind != "f" or not array.size:
        return True
    # As a number of Python: the limit is beyond the range of 32 bits.
    return float(array.max()) <= MAGNITUDE_MAX and float(array.min()) >= -MAGNITUDE_MAX


def _canonical(statement: Mapping[str, Any]) -> bytes:
    """A privacy statement as bytes, in the order of its names.

    Equal bytes mean equal types: 1 is not 1.0 or true.
    """
    return pack(dict(sorted(statement.items())))

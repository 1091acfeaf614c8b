"""Changes of the contract of a running federation: what each model keeps, and what is refused.

A contract follows another one where the federation's server has accepted it (`shoal server
--accept-changes`). Each model then *stays*, to the bit, where neither its own entry nor the
features have changed; or it begins *anew*: it learns again from nothing, and its clusters get the
identities and names of those that lay at the same place, over the features that both contracts
have; or it is *gone*. A message says by the digest in it under which contract it was made, so that
the log determines every model still.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from shoal.config.contract import Contract, Feature
from shoal.kernels.arrays import Floats, Ints

CHANGES_MAX: Final = 32
"""contracts that a federation can have had: all are published together, and every start reads them
"""
Standing = Literal["same", "anew", "gone"]


class CommonPlaces(NamedTuple):
    """The features that two contracts have in common, k of them, and how places move from one to
    the other."""

    before: Ints
    """(k,) positions in the earlier contract"""
    after: Ints
    """(k,) positions in the later one"""
    factor: Floats
    """(k,) of unit coordinates"""
    shift: Floats
    """(k,) added after that"""

    def moved(self, points: Floats) -> Floats:
        """points (n, d) in unit coordinates of the earlier contract -> (n, k) in those of the later
        one."""
        return points[:, self.before] * self.factor + self.shift


def common_places(before: Contract, after: Contract) -> CommonPlaces:
    """The features of the same name, unit and kind in both contracts."""
    # By name: a feature may have another position after a change.
    at = {feature.name: place for place, feature in enumerate(before.features)}
    pairs: list[tuple[int, int]] = []
    for place, feature in enumerate(after.features):
        earlier = at.get(feature.name)
        if earlier is None:
            continue
        if _measure(feature) == _measure(before.features[earlier]):
            pairs.append((earlier, place))
    # Without a common feature the array of pairs would have one dimension, and no two columns.
    old, new = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    low = before.bounds.low[old]
    high = before.bounds.high[old]
    start = after.bounds.low[new]
    width = after.bounds.high[new] - after.bounds.low[new]
    return CommonPlaces(old, new, (high - low) / width, (low - start) / width)


def same_features(before: Contract, after: Contract) -> bool:
    """Whether readings and rows of one contract are those of the other."""
    return bool(_terms(before)["features"] == _terms(after)["features"])


def _measure(feature: Feature) -> tuple[str, str, tuple[str, ...]]:
    return feature.unit, feature.kind, (*feature.values, str(feature.period))


@dataclass(frozen=True)
class ContractChange:
    """One contract of a federation, and the next one."""

    before: Contract
    after: Contract

    @cached_property
    def standing(self) -> Mapping[str, Standing]:
        """Model of the earlier contract -> what becomes of it."""
        old = _terms(self.before)
        new = _terms(self.after)
        kept = same_features(self.before, self.after)
        later = {model["name"]: model for model in new["models"]}
        standing: dict[str, Standing] = {}
        for model in old["models"]:
            name = model["name"]
            if name not in later:
                standing[name] = "gone"
            elif kept and later[name] == model:
                standing[name] = "same"
            else:
                standing[name] = "anew"
        return standing

    @property
    def added(self) -> list[str]:
        """The models that only the later contract has."""
        return [model.name for model in self.after.models if self.before.model(model.name) is None]

    def models(self, standing: Standing) -> list[str]:
        """The models of the earlier contract that stand so."""
        return [name for name in self.standing if self.standing[name] == standing]

    def refused(self, earlier: Sequence[Contract] = ()) -> list[str]:
        """Why the later contract cannot follow; `earlier`: those before both. Empty: it can."""
        before = self.before
        after = self.after
        old = _terms(before)
        new = _terms(after)
        start = "start a federation of another name"
        reasons: list[str] = []
        if before.federation != after.federation:
            reasons.append(
                f"[federation] name: the log is that of {before.federation}; {start} in another "
                "folder"
            )
        if old["privacy"] != new["privacy"]:
            reasons.append(
                "[privacy]: what has been published was promised under the terms of before; "
                f"{start}"
            )
        elif before.privacy.helpers:
            reasons.append(
                f"masked counts: their helpers have agreed to this contract alone; {start}"
            )
        for model in after.models:
            own = before.model(model.name)
            if own is not None and own.algorithm != model.algorithm:
                reasons.append(
                    f"models.{model.name}: give a model with another algorithm another name"
                )
        if not len(common_places(before, after).before):
            reasons.append(
                f"[[features]]: no feature of before is left, so no place means the same; {start}"
            )
        if after.digest in [contract.digest for contract in earlier]:
            # Messages made under either could not be told apart: they have the same digest.
            reasons.append(
                "the federation has had this contract before: count up `revision` in "
                "[federation], which tells what was published then from what comes now"
            )
        if len(earlier) + 1 >= CHANGES_MAX:
            reasons.append(
                f"a federation can have {CHANGES_MAX} contracts, one after the other; {start}"
            )
        return reasons

    def lines(self) -> Iterator[str]:
        """What becomes of each model and feature, one line each, for people."""
        earlier = {feature.name: feature for feature in self.before.features}
        for feature in self.after.features:
            own = earlier.get(feature.name)
            if own is None:
                yield f"feature {feature.name}: new"
            elif (own.low, own.high) != (feature.low, feature.high):
                yield (
                    f"feature {feature.name}: {feature.low:g} to {feature.high:g}, "
                    f"{own.low:g} to {own.high:g} before"
                )
        places = common_places(self.before, self.after).after.tolist()
        common = {self.after.features[place].name for place in places}
        for feature in self.before.features:
            if feature.name not in common:
                yield f"feature {feature.name}: places on it are no longer known"
        for name, standing in self.standing.items():
            yield f"model {name}: {MEANINGS[standing]}"
        for name in self.added:
            yield f"model {name}: new; it learns the readings from now on"


MEANINGS: Final[Mapping[Standing, str]] = {
    "same": "as before, with all that it has learnt",
    "anew": "begins anew and learns the readings from now on; its clusters keep identity, name and "
    "history by where they lie",
    "gone": "removed, with its snapshots and history",
}


def changed_text(change: ContractChange, refused: Sequence[str]) -> str:
    """The change for an operator who has not accepted it; `refused`: reasons for which it cannot
    be."""
    name = change.after.federation
    if refused:
        reasons = _indented(refused)
        return f"the contract of {name} was changed in a way that cannot be kept:\n{reasons}"
    return (
        f"the contract of {name} has changed:\n{_indented(change.lines())}\n  To go on so, start "
        "the server once with --accept-changes, then give every client the new federation file; "
        "else put the old one back"
    )


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)


def standing_of(contracts: Sequence[Contract]) -> list[Mapping[str, Standing]]:
    """What of the models of each contract, oldest first, is left under the last one.

    A model that was removed and came back is another one.
    """
    newest: Mapping[str, Standing] = {model.name: "same" for model in contracts[-1].models}
    standings: list[Mapping[str, Standing]] = []
    # From the newest back: what a model has become by then is what earlier contracts have of it.
    for change in reversed([ContractChange(*pair) for pair in pairwise(contracts)]):
        own: dict[str, Standing] = {}
        for name, standing in change.standing.items():
            own[name] = _worse(standing, newest.get(name, "gone"))
        standings.append(own)
        newest = own
    return standings[::-1]


def _worse(first: Standing, second: Standing) -> Standing:
    order: Sequence[Standing] = ("same", "anew", "gone")
    return order[max(order.index(first), order.index(second))]


def _terms(contract: Contract) -> dict[str, Any]:
    # By what the digest is of: a default that is written out is no change.
    terms: dict[str, Any] = json.loads(contract.agreed_json())
    return terms

"""What a run has got right and wrong of a stream whose truth is known."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np
from sklearn.metrics import adjusted_rand_score

from benchmarks.absence.federation import Look, Run
from benchmarks.absence.streams import NO_STATE, Stream
from shoal.protocol.history import NO_CLUSTER
from shoal.server_node.report.lineage.events import EventKind

SETTLED: Final = 6000
"""readings after which a state that has come must be shown rightly; labels count from there on"""
SPECK_SHARE: Final = 0.03
"""a cluster that never had this share and has ended was a speck"""
NUMBERED: Final = (EventKind.BIRTH, EventKind.PARTED, EventKind.MERGED, EventKind.GONE)
"""events of numbers; without errors there is one for each state and true merge"""


class Judged(NamedTuple):
    """Counts of one run."""

    readings: int
    away: int
    """states that went and came back, and were known before"""
    lost: int
    """... and had another number afterwards"""
    false_merges: int
    specks: int
    false_events: int
    new: int
    found_after: list[int]
    """readings after which each new state that was found was"""
    merges: int
    merges_found: int
    ari: float
    taken: float
    """share of the counts that the leaves took"""
    result: frozenset[frozenset[int]]
    """the states by the cluster that they are shown as, where delays are compared"""


def judge(stream: Stream, run: Run) -> Judged:
    """Compare a run with the truth."""
    away, lost = _lost(stream, run.looks)
    found_after = []
    for state, begins in stream.new.items():
        found = [look.readings for look in run.looks if _shows(look, state)]
        found_after += [reading - begins for reading in found if reading >= begins][:1]
    merges, merges_found = _true_merges(stream, run.looks)
    true_events = len(stream.probes) + merges_found
    numbered = sum(event.kind in NUMBERED for event in run.events)
    place = np.arange(len(stream.truth))
    counts = (stream.truth != NO_STATE) & (place > SETTLED)
    for state, begins in stream.new.items():
        counts &= (stream.truth != state) | (place > begins + SETTLED)
    return Judged(
        readings=len(stream.rows),
        away=away,
        lost=lost,
        false_merges=sum(_merged_falsely(stream, run.looks, pair) for pair in _pairs(stream)),
        specks=_specks(run.looks),
        false_events=max(0, numbered - true_events),
        new=len(stream.new),
        found_after=found_after,
        merges=merges,
        merges_found=merges_found,
        ari=float(adjusted_rand_score(stream.truth[counts], run.label[counts])),
        taken=run.taken,
        result=_result(stream, run.looks),
    )


def _pairs(stream: Stream) -> list[tuple[int, int]]:
    return list(combinations(stream.probes, 2))


def _shows(look: Look, state: int) -> bool:
    """Whether a state has a cluster, and no other state the same."""
    own = look.state[state]
    others = [identity for other, identity in look.state.items() if other != state]
    return own != NO_CLUSTER and own not in others


def _lost(stream: Stream, looks: Sequence[Look]) -> tuple[int, int]:
    """States that were known when they went, and those of them that came back as others."""
    away = 0
    lost = 0
    for state, (goes, comes) in stream.back.items():
        before = [look for look in looks if look.readings <= goes]
        if not before or not _shows(before[-1], state):
            continue
        away += 1
        after = [look.state[state] for look in looks if look.readings >= comes + SETTLED]
        lost += not after or after[-1] != before[-1].state[state]
    return away, lost


def _merged_falsely(stream: Stream, looks: Sequence[Look], pair: tuple[int, int]) -> int:
    """How often two states became one that are two."""
    first, second = pair
    settled = max(stream.new.get(state, -SETTLED) for state in pair) + SETTLED
    true_from = [begins for merged, begins in stream.merges.items() if set(merged) == set(pair)]
    merged = 0
    were_apart = False
    for look in looks:
        one = look.state[first]
        other = look.state[second]
        if NO_CLUSTER in (one, other):
            continue
        is_true = look.readings < settled or any(look.readings >= begins for begins in true_from)
        merged += were_apart and one == other and not is_true
        were_apart = one != other
    return merged


def _true_merges(stream: Stream, looks: Sequence[Look]) -> tuple[int, int]:
    """Merges of states that were apart before, and those of them that were found."""
    merges = 0
    found = 0
    for (first, second), begins in stream.merges.items():
        before = [look for look in looks if look.readings <= begins]
        if not before or before[-1].state[first] == before[-1].state[second]:
            continue
        merges += 1
        after = [look for look in looks if look.readings > begins]
        found += any(look.state[first] == look.state[second] != NO_CLUSTER for look in after)
    return merges, found


def _specks(looks: Sequence[Look]) -> int:
    """Clusters that never had much, and have ended."""
    most: dict[int, float] = {}
    for look in looks:
        for identity, share in look.share.items():
            most[identity] = max(most.get(identity, 0.0), share)
    remaining = looks[-1].share if looks else {}
    small = [identity for identity, share in most.items() if share < SPECK_SHARE]
    return len(set(small) - set(remaining) - {NO_CLUSTER})


def _result(stream: Stream, looks: Sequence[Look]) -> frozenset[frozenset[int]]:
    """The states in groups that are shown as one cluster, where delays are compared."""
    before = [look for look in looks if look.readings <= stream.compared_at]
    if not before:
        return frozenset()
    shown: dict[int, set[int]] = {}
    for state, identity in before[-1].state.items():
        if state not in stream.new:
            shown.setdefault(identity, set()).add(state)
    # How many clusters there are is part of the result: one may be of no state.
    groups = {frozenset(states) for states in shown.values()}
    extra = len(before[-1].share) - len(shown)
    return frozenset(groups | {frozenset({NO_STATE - 1 - extra})})

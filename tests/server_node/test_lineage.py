"""Cluster identities: they survive every renumbering, are confirmed before they are shown, and end
only for good."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.algorithms.view import ClusteringView, StatesView
from shoal.errors import InvalidState
from shoal.protocol.codec import pack, unpack
from shoal.server_node.report.lineage.clusters import Lineage, restore_lineage
from shoal.server_node.report.lineage.events import ClusterChange, ClusterEvent, EventKind
from shoal.server_node.report.lineage.policy import LineagePolicy
from shoal.server_node.report.lineage.step import advance

Clustering = dict[int, tuple[int, float]]
"""node id -> (number of its cluster, mass)"""
ABOUT_SHARES = {EventKind.SHARE_MOVED, EventKind.QUIET}
POLICY = LineagePolicy(known_share=0.2, share_min=0.01, confirm_readings=1000)


def view_of(clustering: Clustering, **options: object) -> ClusteringView:
    ids = list(clustering)
    return ClusteringView.from_nodes(
        np.array([[node, 0.0] for node in ids]).reshape(-1, 2),
        [clustering[node][1] for node in ids],
        [clustering[node][0] for node in ids],
        node_id=ids,
        **({"joins_nodes": True} | options),
    )


def group(number: int, *nodes: int, mass: float = 10.0) -> Clustering:
    return dict.fromkeys(nodes, (number, mass))


def follow(
    *steps: Clustering, every: int = 500, activity: bool = False, **options: object
) -> tuple[Lineage, list[list[ClusterEvent]]]:
    """The lineage after these snapshots, one each `every` readings, and the events of each."""
    lineage = Lineage()
    events = []
    for place, clustering in enumerate(steps, start=1):
        lineage, happened = advance(
            lineage, view_of(clustering, **options), place * every, float(place), POLICY
        )
        events.append(happened if activity else structural(happened))
    return lineage, events


def structural(events: list[ClusterEvent]) -> list[ClusterEvent]:
    """Without those about how many readings fall to a cluster."""
    about_readings = {*ABOUT_SHARES, EventKind.RETURNED}
    return [event for event in events if event.kind not in about_readings]


def kinds(events: list[ClusterEvent]) -> list[tuple[EventKind, int, int | None]]:
    return [(event.kind, event.identity, event.other) for event in events]


# Confirmation.


def test_no_nodes_make_no_clusters() -> None:
    lineage, events = follow({}, {})
    assert lineage.known == []
    assert events == [[], []]


def test_a_cluster_with_the_stated_share_is_known_at_once_the_oldest_node_first() -> None:
    lineage, events = follow(group(0, 9, 10) | group(1, 4, 5) | group(2, 7, 8))
    assert kinds(events[0]) == [
        (EventKind.BIRTH, 0, None),
        (EventKind.BIRTH, 1, None),
        (EventKind.BIRTH, 2, None),
    ]
    assert lineage.of_number == {0: 2, 1: 0, 2: 1}
    assert [cluster.slot for cluster in lineage.known] == [0, 1, 2]


def test_a_single_node_of_an_algorithm_that_joins_nodes_is_not_a_cluster() -> None:
    lineage, events = follow(*[group(0, 1, 2) | group(1, 3, mass=100.0)] * 5)
    assert [cluster.identity for cluster in lineage.known] == [0]
    assert events[1:] == [[]] * 4


def test_a_single_centre_of_an_algorithm_without_edges_is_a_cluster() -> None:
    lineage, _ = follow(group(0, 1) | group(1, 3), joins_nodes=False)
    assert len(lineage.known) == 2


def test_a_small_group_is_known_only_after_it_has_lasted() -> None:
    small = group(0, 1, 2, mass=100.0) | group(1, 3, 4, mass=2.0)
    lineage, events = follow(small, small, small)
    assert [kinds(happened) for happened in events[1:]] == [[], [(EventKind.BIRTH, 1, None)]]
    assert lineage.clusters[1].since_reading == 500


def test_small_groups_that_come_and_go_change_nothing() -> None:
    flicker = [
        group(0, 1, 2, mass=100.0) | (group(1, 10 + k, 30 + k, mass=2.0) if k % 2 else {})
        for k in range(20)
    ]
    lineage, events = follow(*flicker)
    assert [cluster.identity for cluster in lineage.known] == [0]
    assert sum(map(len, events)) == 1
    assert lineage.next_identity == 1, "candidates use up no identities"


def test_a_group_below_the_least_share_is_never_known() -> None:
    tiny = group(0, 1, 2, mass=1000.0) | group(1, 3, 4, mass=1.0)
    lineage, _ = follow(*[tiny] * 10)
    assert len(lineage.known) == 1


# What becomes of known clusters.


def test_a_new_numbering_and_order_of_nodes_changes_nothing() -> None:
    lineage, events = follow(group(0, 1, 2) | group(1, 3, 4), group(0, 4, 3, 8) | group(1, 2, 1))
    assert lineage.of_number == {0: 1, 1: 0}
    assert events[1] == []


def test_a_part_is_shown_as_its_parent_until_it_is_confirmed() -> None:
    whole = group(0, *range(10)) | group(1, 20, 21, mass=200.0)
    parted = group(0, *range(8)) | group(1, 20, 21, mass=200.0) | group(2, 8, 9)
    lineage, events = follow(whole, parted)
    assert lineage.of_number == {0: 0, 1: 1, 2: 0}
    assert events[1] == []
    lineage, events = follow(whole, parted, parted, parted)
    assert kinds(events[3]) == [(EventKind.PARTED, 2, 0)]
    assert lineage.of_number[2] == 2
    assert lineage.clusters[2].parent == 0


def test_a_part_that_joins_its_parent_again_was_nothing() -> None:
    whole = group(0, *range(10)) | group(1, 20, 21, mass=200.0)
    parted = group(0, *range(8)) | group(1, 20, 21, mass=200.0) | group(2, 8, 9)
    lineage, events = follow(whole, parted, whole, parted, whole)
    assert events[1:] == [[]] * 4
    assert len(lineage.clusters) == 2


def test_of_two_that_join_the_heavier_goes_on_and_the_other_merges_once_it_has_lasted() -> None:
    apart = group(0, 1, 2, mass=20.0) | group(1, 3, 4)
    joined = group(0, 1, 2, 3, 4, mass=20.0)
    lineage, events = follow(apart, joined)
    assert len(lineage.known) == 2
    assert events[1] == []
    lineage, events = follow(apart, joined, joined, joined)
    assert kinds(events[2]) == [(EventKind.MERGED, 1, 0)]
    assert [cluster.identity for cluster in lineage.known] == [0]
    assert set(lineage.of_node.values()) == {0}


def test_clusters_that_touch_for_a_moment_stay_two_and_keep_their_identities() -> None:
    apart = group(0, 1, 2, mass=20.0) | group(1, 3, 4)
    joined = group(0, 1, 2, 3, 4, mass=20.0)
    lineage, events = follow(apart, joined, group(1, 1, 2, mass=20.0) | group(0, 3, 4))
    assert lineage.of_number == {1: 0, 0: 1}
    assert events[1:] == [[], []]


def test_a_cluster_without_nodes_is_gone_once_it_has_been_away() -> None:
    both = group(0, 1, 2) | group(1, 3, 4)
    one = group(0, 1, 2)
    lineage, events = follow(both, one)
    assert len(lineage.known) == 2
    lineage, events = follow(both, one, one, one)
    assert (EventKind.GONE, 1, None) in kinds(events[2])
    assert [cluster.identity for cluster in lineage.known] == [0]


def test_no_identity_is_given_twice_and_the_free_slot_is_used_again() -> None:
    one = group(0, 1, 2) | group(1, 3, 4)
    other = group(0, 1, 2)
    lineage, _ = follow(one, other, other, other, other | group(1, 8, 9))
    assert [(cluster.identity, cluster.slot) for cluster in lineage.known] == [(0, 0), (2, 1)]


def test_what_forms_again_at_the_place_of_a_former_cluster_is_that_one_with_its_name() -> None:
    apart = group(0, 1, 2, mass=20.0) | group(1, 30, 31)
    joined = group(0, 1, 2, 30, 31, mass=20.0)
    lineage, _ = follow(apart)
    named = lineage.changed(ClusterChange(1, EventKind.NAMED, {"name": "Light high"}))
    assert named is not None
    steps = (joined, joined, joined, apart | group(2, 90, 91, mass=8.0), apart)
    told = []
    lineage = named
    for place, clustering in enumerate(steps, start=2):
        lineage, events = advance(lineage, view_of(clustering), place * 500, 0.0, POLICY)
        told.append(kinds(structural(events)))
        told[-1] += [
            (event.kind, event.identity, None) for event in events if event.kind == "returned"
        ]
        lineage = restore_lineage(unpack(pack(lineage.state())))
    assert told == [
        [],
        [(EventKind.MERGED, 1, 0)],
        [],
        [(EventKind.BIRTH, 2, None), (EventKind.RETURNED, 1, None)],
        [],
    ]
    assert lineage.clusters[1].name == "Light high"
    assert lineage.clusters[1].since_reading == 500
    assert lineage.former == {}


def test_a_model_in_rounds_that_begins_anew_keeps_the_names_of_its_clusters() -> None:
    """Start values have no readings, and the order and the number of centres are others than
    before."""

    def centres(*places: float, mass: float = 100.0) -> ClusteringView:
        points = np.array([[place, place] for place in places])
        return ClusteringView.from_nodes(
            points, [mass] * len(places), range(len(places)), accumulates=False
        )

    steps = [
        centres(0.3, 0.7),
        centres(0.5, 0.6, mass=0.0),
        centres(0.7, 0.3),
        centres(0.5, mass=0.0),
        centres(0.52),
        centres(0.2, 0.9, mass=0.0),
        centres(0.3, 0.7),
    ]
    lineage = Lineage()
    told = []
    for number, view in enumerate(steps, start=1):
        lineage, events = advance(lineage, view, number * 1000, 0.0, POLICY)
        told += kinds([event for event in events if event.kind != EventKind.SHARE_MOVED])
        lineage = restore_lineage(unpack(pack(lineage.state())))
        if number == 3:
            assert lineage.of_number == {0: 1, 1: 0}
    assert told == [
        (EventKind.BIRTH, 0, None),
        (EventKind.BIRTH, 1, None),
        (EventKind.GONE, 0, None),
        (EventKind.RETURNED, 0, None),
    ]
    assert lineage.of_number == {0: 0, 1: 1}


# Activity and shares.


def grown(first: float, second: float) -> Clustering:
    return group(0, 1, 2, mass=first) | group(1, 3, 4, mass=second)


def test_a_cluster_to_which_no_readings_fall_is_quiet_and_returns() -> None:
    steps = [
        grown(100.0, 100.0),
        *[grown(100.0 + 100 * k, 100.0) for k in range(1, 8)],
        grown(800.0, 300.0),
    ]
    lineage, events = follow(*steps, activity=True)
    told = [
        pair for happened in events for pair in kinds(happened) if pair[0] != EventKind.SHARE_MOVED
    ]
    assert told[2:] == [(EventKind.QUIET, 1, None), (EventKind.RETURNED, 1, None)]
    assert [cluster.active for cluster in lineage.known] == [True, True]


def test_a_share_that_has_moved_is_reported_once() -> None:
    steps = [grown(100.0 * k, 100.0 * k) for k in range(1, 4)] + [
        grown(300.0 + 180 * k, 300.0 + 20 * k) for k in range(1, 9)
    ]
    _, events = follow(*steps, activity=True)
    moved = [
        event for happened in events for event in happened if event.kind == EventKind.SHARE_MOVED
    ]
    assert {event.identity for event in moved} == {0, 1}
    assert len(moved) <= 4
    assert moved[0].share_before == pytest.approx(0.5)


# Algorithms with identities of their own, and centres of rounds.


def test_identities_of_the_algorithm_are_taken_as_they_are() -> None:
    both = view_of(group(0, 1, 2) | group(1, 3, 4), identity=np.array([7, 3]))
    lineage, events = advance(Lineage(), both, 500, 0.0, POLICY)
    assert lineage.of_number == {0: 7, 1: 3}
    one = view_of(group(0, 1, 2, 3, 4), identity=np.array([3]))
    lineage, events = advance(lineage, one, 1000, 1.0, POLICY)
    assert kinds(structural(events)) == [(EventKind.MERGED, 7, 3)]
    apart = view_of(group(0, 1, 2) | group(1, 3, 4), identity=np.array([3, 8]))
    lineage, events = advance(lineage, apart, 1500, 2.0, POLICY)
    assert kinds(structural(events)) == [(EventKind.PARTED, 8, 3)]


def test_the_origin_that_the_algorithm_gives_decides_between_a_birth_and_a_parting() -> None:
    one = view_of(group(0, 1, 2, 3, 4, 5, 6), identity=[3], parent=[-1])
    lineage, _ = advance(Lineage(), one, 500, 0.0, POLICY)
    # The nodes of both new clusters were counted to cluster 3 before.
    three = view_of(
        group(0, 1, 2) | group(1, 3, 4) | group(2, 5, 6), identity=[3, 8, 9], parent=[-1, 3, -1]
    )
    _, events = advance(lineage, three, 1000, 1.0, POLICY)
    assert kinds(structural(events)) == [(EventKind.PARTED, 8, 3), (EventKind.BIRTH, 9, None)]


def test_recent_readings_that_the_algorithm_counts_are_the_shares_of_its_clusters() -> None:
    both = group(0, 1, 2, mass=90.0) | group(1, 3, 4, mass=10.0)
    lineage = Lineage()
    for place in range(1, 12):
        view = view_of(both, identity=[0, 1], recent=[100.0, 300.0], accumulates=False)
        lineage, _ = advance(lineage, view, 500 * place, float(place), POLICY)
    assert [cluster.recent_share for cluster in lineage.known] == pytest.approx([0.25, 0.75])
    assert [cluster.mass_share for cluster in lineage.known] == pytest.approx([0.9, 0.1])


def followed_shares(*steps: tuple[int, tuple[float, float]]) -> list[float]:
    """The recent shares of two clusters after steps of so many readings, of which such shares fell
    to each."""
    both = group(0, 1, 2) | group(1, 3, 4)
    lineage = Lineage()
    learnt = 0
    for readings, recent in steps:
        learnt += readings
        view = view_of(both, identity=[0, 1], recent=recent, accumulates=False)
        lineage, _ = advance(lineage, view, learnt, 0.0, POLICY)
    return [cluster.recent_share for cluster in lineage.known]


@given(
    st.lists(st.integers(1, 100_000), min_size=1, max_size=5),
    st.lists(st.integers(1, 2_000), min_size=1),
)
def test_recent_shares_are_the_same_however_many_readings_lie_between_two_snapshots(
    before: list[int], since: list[int]
) -> None:
    """A backlog that is learnt at once, or a federation that a region joins, weighs no more than
    recent readings."""
    earlier = (0.25, 0.75)
    later = (0.9, 0.1)
    at_once = followed_shares((sum(before), earlier), (sum(since), later))
    step_by_step = followed_shares(
        *[(cluster, earlier) for cluster in before], *[(cluster, later) for cluster in since]
    )
    assert at_once == pytest.approx(step_by_step)


def test_a_cluster_that_gets_all_readings_after_a_backlog_soon_has_most_of_the_recent_ones() -> (
    None
):
    backlog = (1_000_000, (0.5, 0.5))
    later = (int(2 * POLICY.share_readings), (1.0, 0.0))
    assert followed_shares(backlog, later)[0] == pytest.approx(1 - 0.5 * np.exp(-2))


def test_a_centre_that_no_row_is_nearest_to_any_more_is_gone_at_once() -> None:
    lineage, _ = advance(
        Lineage(), ClusteringView.from_centres(np.zeros((2, 1)), [5.0, 5.0]), 10, 0.0, POLICY
    )
    assert len(lineage.active) == 2
    lineage, events = advance(
        lineage, ClusteringView.from_centres(np.zeros((2, 1)), [10.0, 0.0]), 10, 0.0, POLICY
    )
    assert (EventKind.GONE, 1, None) in kinds(events)


def test_a_centre_without_rows_is_gone_at_once_though_fewer_rows_were_answered_for() -> None:
    lineage, _ = advance(
        Lineage(), ClusteringView.from_centres(np.zeros((2, 1)), [5.0, 5.0]), 10, 0.0, POLICY
    )
    _, events = advance(
        lineage, ClusteringView.from_centres(np.zeros((2, 1)), [9.0, 0.0]), 9, 0.0, POLICY
    )
    assert (EventKind.GONE, 1, None) in kinds(events)


# Laws.

clusterings = st.dictionaries(
    st.integers(0, 30), st.tuples(st.integers(-1, 6), st.floats(0.5, 50.0)), max_size=25
)
histories = st.lists(clusterings, min_size=1, max_size=6)


@given(histories)
def test_known_clusters_are_births_partings_and_returns_less_merges_and_ends(
    history: list[Clustering],
) -> None:
    lineage, events = follow(*history, activity=True)
    known: set[int] = set()
    ended: set[int] = set()
    for event in (event for happened in events for event in happened):
        if event.kind in (EventKind.BIRTH, EventKind.PARTED):
            assert event.identity not in known | ended
            known.add(event.identity)
        elif event.kind in (EventKind.MERGED, EventKind.GONE):
            known.remove(event.identity)
            ended.add(event.identity)
        elif event.kind == EventKind.RETURNED:
            # From those that had ended, or that were quiet.
            known.add(event.identity)
            ended.discard(event.identity)
        assert event.identity in known | ended
    assert {cluster.identity for cluster in lineage.known} == known
    assert set(lineage.former) == ended
    slots = [cluster.slot for cluster in lineage.known]
    assert len(set(slots)) == len(slots)
    assert set(lineage.of_number.values()) <= {cluster.identity for cluster in lineage.known}


@given(histories, st.randoms(use_true_random=False))
def test_neither_numbers_nor_order_matter(history: list[Clustering], random: object) -> None:
    renumber = {number: number for number in range(7)} | {0: 5, 5: 0, 1: 3, 3: 1}

    def shuffled(clustering: Clustering) -> Clustering:
        nodes = list(clustering)
        random.shuffle(nodes)  # type: ignore[attr-defined]  # of Hypothesis
        return {
            node: (renumber.get(clustering[node][0], -1), clustering[node][1]) for node in nodes
        }

    plain = follow(*history)
    changed = follow(*map(shuffled, history))
    assert plain[0].of_node == changed[0].of_node
    assert plain[1] == changed[1]


@given(histories)
def test_a_saved_lineage_goes_on_as_the_one_that_was_not_saved(history: list[Clustering]) -> None:
    lineage, _ = follow(*history[:-1])
    saved = restore_lineage(unpack(pack(lineage.state()), 2**24))
    last = view_of(history[-1])
    assert saved == lineage
    assert advance(saved, last, 9000, 9.0, POLICY) == advance(lineage, last, 9000, 9.0, POLICY)


def test_memory_does_not_grow_with_what_has_come_and_gone() -> None:
    lineage, _ = follow(*[group(0, 2 * k, 2 * k + 1) for k in range(200)])
    assert len(lineage.clusters) <= 4
    assert len(lineage.of_node) <= 2


@pytest.mark.parametrize("name", ["clusters", "of_node", "next_identity", "node_mass"])
def test_a_damaged_state_is_rejected(name: str) -> None:
    lineage, _ = follow(group(0, 1, 2))
    for broken in (None, "x", [1]):
        with pytest.raises(InvalidState):
            restore_lineage(lineage.state() | {name: broken})


def test_a_name_stays_with_the_identity() -> None:
    lineage, _ = follow(group(0, 1, 2) | group(1, 3, 4))
    clusters = {**lineage.clusters, 1: replace(lineage.clusters[1], name="night")}
    after, _ = advance(
        replace(lineage, clusters=clusters),
        view_of(group(1, 1, 2) | group(0, 3, 4)),
        900,
        2.0,
        POLICY,
    )
    assert after.clusters[1].name == "night"


def test_a_new_cluster_has_its_share_from_the_first_event_and_one_that_parts_its_part() -> None:
    whole = group(0, 1, 2, 3, 4)
    parted = group(0, 1, 2) | group(1, 3, 4)
    lineage, events = follow(whole, whole, parted, activity=True)
    (birth,) = events[0]
    assert (birth.kind, birth.share) == (EventKind.BIRTH, 1.0)
    (part,) = [event for event in events[2] if event.kind is EventKind.PARTED]
    assert part.share == pytest.approx(0.5)
    assert [cluster.recent_share for cluster in lineage.known] == pytest.approx([0.5, 0.5])


# States.


def dwells(
    *steps: tuple[dict[int, float], float], evaluated: bool = True, before: Lineage | None = None
) -> tuple[Lineage, list[ClusterEvent]]:
    """The lineage after snapshots of states with these mean dwells by identity, of which this many
    were seen."""
    lineage = before or Lineage()
    happened = []
    for place, (dwell, seen) in enumerate(steps, start=1):
        k = len(dwell)
        changes = np.full((k, k), seen / max(1, k - 1)) * (1 - np.eye(k))
        none = np.zeros((k, 2))
        states = StatesView(
            8, none, none, np.array(list(dwell.values())), changes, 50, evaluated, False
        )
        identity = np.array(list(dwell))
        view = ClusteringView.from_nodes(
            none,
            np.full(k, 100.0),
            np.arange(k),
            node_id=identity,
            identity=identity,
            parent=np.full(k, -1),
            recent=np.ones(k),
            states=states,
        )
        lineage, events = advance(lineage, view, place * 500, float(place), POLICY)
        happened += events
    return lineage, happened


def moved(events: list[ClusterEvent]) -> list[tuple[int, float | None, float | None]]:
    return [
        (event.identity, event.dwell_before, event.dwell)
        for event in events
        if event.kind is EventKind.DWELL_MOVED
    ]


def test_a_stay_that_has_become_longer_by_more_than_chance_is_reported_once() -> None:
    long = ({0: 100.0, 1: 400.0}, 60)
    _, events = dwells(({0: 100.0, 1: 100.0}, 60), ({0: 110.0, 1: 95.0}, 80), long, long)
    assert moved(events) == [(1, 100.0, 400.0)]
    _, few = dwells(({0: 100.0, 1: 100.0}, 12), ({0: 100.0, 1: 400.0}, 12))
    assert moved(few) == [], "a dozen dwells are as long as that by chance"
    _, nearly = dwells(({0: 100.0, 1: 100.0}, 5_000), ({0: 100.0, 1: 140.0}, 5_000))
    assert moved(nearly) == [], "however sure, a change of two fifths is none to report"


def test_a_state_that_takes_in_another_one_lasts_longer_without_an_event() -> None:
    _, events = dwells(({0: 100.0, 1: 100.0, 2: 100.0}, 60), ({0: 100.0, 1: 300.0}, 60))
    assert moved(events) == []


def test_known_states_wait_for_the_first_look_of_a_model_that_begins_again() -> None:
    known, _ = dwells(({0: 100.0, 1: 100.0}, 60))
    waiting, events = dwells(({0: 0.0}, 0), evaluated=False, before=known)
    assert (events, [cluster.identity for cluster in waiting.known]) == ([], [0, 1])
    _, events = dwells(({0: 0.0}, 0), before=known)
    assert kinds(structural(events)) == [(EventKind.GONE, 1, None)]

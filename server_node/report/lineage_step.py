"""One step of a lineage: from the clusters known before and the view of a new snapshot to the
clusters known now.

Clusters are matched by the mass of the nodes that they share. The identities travel in snapshots,
from which a lineage is made after a lost checkpoint.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeVar

from shoal.algorithms.view import ClusteringView
from shoal.protocol.messages import ClusterIdentity, Snapshot
from shoal.server_node.report.lineage import (
    NO_CLUSTER,
    Cluster,
    ClusterEvent,
    EventKind,
    Lineage,
    LineagePolicy,
)

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Groups:
    """The clusters of one snapshot that can be followed: those of two nodes or more where nodes are
    joined by edges (a single node of such an algorithm is not a cluster), else every centre with
    mass."""

    mass: Mapping[int, float]
    """number in the snapshot -> mass of its nodes"""
    first_node: Mapping[int, int]
    """number -> its oldest node id: decides between equals"""
    of_node: Mapping[int, int]
    """node id -> number, for nodes of these groups"""
    node_mass: Mapping[int, float]
    """node id -> mass, for all nodes of the snapshot"""
    nodes: Mapping[int, list[int]]
    """number -> ids of its nodes"""


def groups_of(view: ClusteringView) -> Groups:
    """The followable clusters of a view. O(nodes)."""
    ids = view.node_id.tolist()
    numbers = view.cluster.tolist()
    masses = view.mass.tolist()
    node_mass = dict(zip(ids, masses, strict=True))
    nodes: defaultdict[int, list[int]] = defaultdict(list)
    for node, number in zip(ids, numbers, strict=True):
        if number != NO_CLUSTER:
            nodes[number].append(node)
    mass = {
        number: math.fsum(node_mass[node] for node in nodes[number]) for number in sorted(nodes)
    }
    kept = {
        number: nodes[number]
        for number in mass
        if len(nodes[number]) >= view.nodes_min and mass[number] > 0
    }
    return Groups(
        {number: mass[number] for number in kept},
        {number: min(members) for number, members in kept.items()},
        {node: number for number, members in kept.items() for node in members},
        node_mass,
        kept,
    )


@dataclass(frozen=True)
class Match:
    """Matching of the clusters before and the groups now."""

    group_of: Mapping[int, int]
    """identity -> the group it goes on as"""
    origin_of: Mapping[int, int]
    """group that no identity goes on as -> the identity that most of its known mass had; absent:
    its nodes are new"""
    now_in: Mapping[int, int]
    """identity that goes on as no group -> the group that most of its nodes are part of; absent:
    none of them are"""


def _sums(masses: Mapping[K, Sequence[float]]) -> dict[K, float]:
    """The sum of each list, rounded once: the order of nodes changes no bit."""
    return {key: math.fsum(each) for key, each in masses.items()}


def match_groups(groups: Groups, before: Mapping[int, int]) -> Match:
    """Match groups with identities; `before`: node id -> identity. Each identity goes on as one
    group at most, the one with which it shares most mass. Ties go to the older identity, then to
    the older node, so the order of nodes and numbers changes nothing."""
    masses: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    for node, number in groups.of_node.items():
        if node in before:
            masses[number, before[node]].append(groups.node_mass[node])
    shared = _sums(masses)
    # The largest share claims first; of equal ones the older cluster, then the group with the older
    # node.
    pairs = sorted(
        shared.items(), key=lambda pair: (-pair[1], _age(pair[0][1]), groups.first_node[pair[0][0]])
    )
    group_of: dict[int, int] = {}
    claimed: set[int] = set()
    for (number, identity), _ in pairs:
        if identity not in group_of and number not in claimed:
            group_of[identity] = number
            claimed.add(number)
    origin_of: dict[int, int] = {}
    now_in: dict[int, int] = {}
    for (number, identity), _ in pairs:
        if number not in claimed:
            origin_of.setdefault(number, identity)
        if identity not in group_of:
            now_in.setdefault(identity, number)
    return Match(group_of, origin_of, now_in)


def match_identities(view: ClusteringView, groups: Groups, by_mass: Match) -> Match:
    """The match of an algorithm that keeps identities itself: a group goes on as the one that the
    view gives it."""
    given = [] if view.identity is None else view.identity.tolist()
    group_of = {given[number]: number for number in groups.mass}
    if view.parent is None:
        origin = {number: identity for identity, number in by_mass.group_of.items()} | dict(
            by_mass.origin_of
        )
    else:
        parents = view.parent.tolist()
        origin = {number: parents[number] for number in groups.mass if parents[number] >= 0}
    lost = [*by_mass.group_of.items(), *by_mass.now_in.items()]
    return Match(
        group_of,
        {number: identity for number, identity in origin.items() if identity != given[number]},
        {identity: number for identity, number in lost if identity not in group_of},
    )


def _age(identity: int) -> tuple[bool, int]:
    """Known clusters before candidates, older ones first (candidates count downwards)."""
    return identity < 0, abs(identity)


DEFAULT_POLICY = LineagePolicy()


def advance(
    before: Lineage,
    view: ClusteringView,
    readings: int,
    at: float,
    policy: LineagePolicy = DEFAULT_POLICY,
) -> tuple[Lineage, list[ClusterEvent]]:
    """The lineage after a snapshot, and what became of known clusters, in the order of their
    identities.

    `readings` is how many readings the model has learnt, `at` when the snapshot was made (seconds
    since 1970, kept for display). A pure function of its arguments; the order of nodes and the
    numbers of clusters change nothing.
    """
    step = _Step(before, view, readings, at, policy)
    step.carry_on()
    step.add_candidates()
    step.measure()
    step.end_absent()
    step.confirm_candidates()
    step.report_activity()
    step.report_dwell()
    return step.lineage(), sorted(step.events, key=lambda event: (event.identity, event.kind))


class _Step:
    """The working state of one step; its methods are called once each, in the order of
    `advance`."""

    def __init__(
        self, before: Lineage, view: ClusteringView, readings: int, at: float, policy: LineagePolicy
    ) -> None:
        self._before = before
        self._view = view
        self._policy = policy
        self._readings = readings
        self._at = at
        self._groups = groups_of(view)
        self._confirms_here = view.identity is None and view.accumulates
        """whether clusters are confirmed here. An algorithm with identities of its own has
        confirmed them itself, and centres that are computed anew in every round are as many as were
        asked for"""
        match = match_groups(self._groups, before.of_node)
        self._match = (
            match if view.identity is None else match_identities(view, self._groups, match)
        )
        self._clusters: dict[int, Cluster] = {}
        self._group_of: dict[int, int] = {}
        """identity -> number, for the clusters that have a group"""
        self._next_candidate = before.next_candidate
        self._next_identity = before.next_identity
        self._replaced_by: dict[int, int] = {}
        """identity that has ended -> the one that has its nodes now"""
        self.events: list[ClusterEvent] = []

    @property
    def _waits(self) -> bool:
        """Whether regimes were known that a model has not looked for yet which was begun again, as
        to unlearn."""
        regimes = self._view.regimes
        return regimes is not None and not regimes.evaluated and len(self._before.clusters) > 1

    def carry_on(self) -> None:
        """Clusters that have a group go on; known ones without a group are kept until they are
        confirmed to be gone."""
        owner = {number: identity for identity, number in self._match.group_of.items()}
        for identity, cluster in self._before.clusters.items():
            number = self._match.group_of.get(identity)
            if number is not None:
                self._group_of[identity] = number
                self._clusters[identity] = cluster.having(
                    present_reading=self._readings, merging_into=None
                )
            elif cluster.known:
                into = owner.get(self._match.now_in.get(identity, -1))
                self._clusters[identity] = cluster.having(merging_into=into)

    def add_candidates(self) -> None:
        """A group that no cluster goes on as becomes a candidate."""
        taken = {number: identity for identity, number in self._group_of.items()}
        given = {number: identity for identity, number in self._match.group_of.items()}
        # By the oldest node, not by the number of the group: groups are numbered anew in each
        # snapshot.
        for number in sorted(
            self._groups.mass.keys() - taken.keys(), key=self._groups.first_node.__getitem__
        ):
            identity = given.get(number, self._next_candidate)
            self._next_candidate -= identity == self._next_candidate
            parent = self._match.origin_of.get(number)
            self._group_of[identity] = number
            self._clusters[identity] = Cluster(
                identity,
                parent=parent if parent in self._before.clusters else None,
                since_reading=self._readings,
                since=self._at,
                present_reading=self._readings,
            )

    def measure(self) -> None:
        """Mass, share and recent readings of each cluster: readings that were learnt fell where
        mass has grown.

        They fade from the first to the last, in the same shares throughout: so it does not matter
        how many lie between two snapshots, and those of a backlog are no more recent than those of
        a busy hour.
        """
        # fsum rounds once, so the order of groups changes no bit; 1 where nothing has mass.
        total = math.fsum(self._groups.mass.values()) or 1.0
        learnt = max(0, self._readings - self._before.readings)
        counted = self._view.recent
        recent_total = 1.0 if counted is None else float(counted.sum()) or 1.0
        spans = self._policy.recent_readings, self._policy.share_readings
        fades = [math.exp(-learnt / span) for span in spans]
        # expm1: for few readings 1 - exp would round away what is left.
        left = [-span * math.expm1(-learnt / span) for span in spans]
        mass = {identity: self._groups.mass[number] for identity, number in self._group_of.items()}
        grown = {
            identity: max(0.0, mass[identity] - self._mass_before(identity)) for identity in mass
        }
        # Where nothing has grown, shares are 0 and not 0 / 0; so below.
        growth = math.fsum(grown.values()) or 1.0
        self._hand_over_recent()
        for identity, cluster in self._clusters.items():
            own = mass.get(identity, 0.0)
            part = grown.get(identity, 0.0) / growth
            if counted is not None and identity in self._group_of:
                part = float(counted[self._group_of[identity]]) / recent_total
            recent = cluster.recent * fades[0] + part * left[0]
            slow = cluster.recent_slow * fades[1] + part * left[1]
            if not self._view.accumulates and counted is None:
                recent = slow = own
            self._clusters[identity] = cluster.having(
                mass=own, share=own / total, recent=recent, recent_slow=slow
            )

    def _hand_over_recent(self) -> None:
        """A cluster that appears takes its part of the recent readings of the clusters that had its
        nodes before."""
        of_node = self._before.of_node
        node_mass = self._before.node_mass
        masses: defaultdict[int, list[float]] = defaultdict(list)
        for node, owner in of_node.items():
            masses[owner].append(node_mass.get(node, 0.0))
        whole = _sums(masses)
        for identity in [one for one in self._clusters if one not in self._before.clusters]:
            moved: defaultdict[int, list[float]] = defaultdict(list)
            for node in self._groups.nodes[self._group_of[identity]]:
                if node in of_node:
                    moved[of_node[node]].append(node_mass.get(node, 0.0))
            # Sorted: what one move takes is missing for the next, so the order is part of the
            # result.
            for owner, mass in sorted(_sums(moved).items()):
                if owner in self._clusters and whole[owner] > 0:
                    self._move_recent(owner, identity, mass / whole[owner])

    def _move_recent(self, owner: int, to: int, part: float) -> None:
        source = self._clusters[owner]
        target = self._clusters[to]
        before = self._before.clusters[owner]
        recent = part * before.recent
        slow = part * before.recent_slow
        self._clusters[owner] = source.having(
            recent=source.recent - recent, recent_slow=source.recent_slow - slow
        )
        self._clusters[to] = target.having(
            recent=target.recent + recent, recent_slow=target.recent_slow + slow
        )

    def _mass_before(self, identity: int) -> float:
        """Mass that the nodes of its group had before: nodes that merely changed sides have not
        grown."""
        number = self._group_of[identity]
        known = self._before.node_mass
        return math.fsum(known.get(node, 0.0) for node in self._groups.nodes[number])

    def end_absent(self) -> None:
        """A known cluster that has been away for long enough has merged, or is gone; at once if
        none is confirmed here.

        Without a look at the readings then: a model in rounds may have had fewer answers than
        before.
        """
        if self._waits:
            return
        # A copy of the list, as clusters that have ended are taken out on the way.
        for identity, cluster in list(self._clusters.items()):
            away = self._readings - cluster.present_reading
            kept = self._readings < cluster.kept_until or (
                self._confirms_here and away < self._policy.confirm_readings
            )
            if identity in self._group_of or kept:
                continue
            into = self._known_or_parent(cluster.merging_into)
            kind = EventKind.GONE if into is None or into == identity else EventKind.MERGED
            del self._clusters[identity]
            if kind is EventKind.MERGED and into is not None:
                self._replaced_by[identity] = into
            self.events.append(
                ClusterEvent(kind, identity, into if kind is EventKind.MERGED else None)
            )

    def confirm_candidates(self) -> None:
        """Candidates that hold the stated share, or have lasted the stated number of readings,
        become known."""
        for candidate in [one for one in self._clusters if self._is_confirmed(one)]:
            cluster = self._clusters.pop(candidate)
            parent = self._known_or_parent(cluster.parent)
            identity = candidate if cluster.known else self._next_identity
            self._next_identity = max(self._next_identity, identity + 1)
            self._group_of[identity] = self._group_of.pop(candidate)
            if candidate != identity:
                self._replaced_by[candidate] = identity
            self._clusters[identity] = cluster.having(
                identity=identity, parent=parent, slot=self._free_slot()
            )
            self.events.append(
                ClusterEvent(
                    EventKind.BIRTH if parent is None else EventKind.PARTED, identity, parent
                )
            )

    def _is_confirmed(self, identity: int) -> bool:
        cluster = self._clusters[identity]
        policy = self._policy
        if cluster.slot is not None:
            return False
        if not self._confirms_here or cluster.share >= policy.known_share:
            return True
        return (
            cluster.share >= policy.share_min
            and self._readings - cluster.since_reading >= policy.confirm_readings
        )

    def _free_slot(self) -> int:
        taken = {cluster.slot for cluster in self._clusters.values()}
        # The lowest free one, so that colours do not run out while clusters come and go.
        return next(slot for slot in count() if slot not in taken)

    def _known_or_parent(self, identity: int | None) -> int | None:
        """The known cluster that this is, or that this candidate is parting from."""
        while identity is not None:
            identity = self._replaced_by.get(identity, identity)
            cluster = self._clusters.get(identity)
            if cluster is None or cluster.slot is not None:
                return None if cluster is None else identity
            identity = cluster.parent
        return None

    def report_activity(self) -> None:
        """Active or quiet, with hysteresis, and shares of the recent readings that have moved."""
        if self._waits:
            return
        policy = self._policy
        total = math.fsum(cluster.recent_slow for cluster in self._clusters.values()) or 1.0
        new = {
            event.identity
            for event in self.events
            if event.kind in (EventKind.BIRTH, EventKind.PARTED)
        }
        for identity, cluster in self._clusters.items():
            if cluster.slot is None:
                continue
            share = min(1.0, max(0.0, cluster.recent_slow / total))
            active = cluster.recent >= (
                policy.quiet_below if cluster.active else policy.active_above
            )
            if self._view.identity is not None and identity in self._group_of:
                active = bool(self._view.active[self._group_of[identity]])
            reported = cluster.reported_share
            if identity in new:
                reported = share
                self._set_share(identity, share)
            elif active != cluster.active:
                kind = EventKind.RETURNED if active else EventKind.QUIET
                self.events.append(ClusterEvent(kind, identity, share=share))
                reported = share
            elif abs(share - reported) >= policy.share_moved:
                self.events.append(
                    ClusterEvent(
                        EventKind.SHARE_MOVED, identity, share=share, share_before=reported
                    )
                )
                reported = share
            self._clusters[identity] = cluster.having(
                active=active, recent_share=share, reported_share=reported
            )

    def report_dwell(self) -> None:
        """Mean dwells in regimes that have moved by more than chance, which the number of dwells
        seen bounds."""
        regimes = self._view.regimes
        policy = self._policy
        if regimes is None or regimes.provisional or not regimes.block:
            return
        # A regime that has taken in another one, or parted from it, lasts longer or shorter for
        # that reason.
        as_before = set(self._group_of) == set(self._before.of_number.values())
        for identity, number in self._group_of.items():
            cluster = self._clusters[identity]
            dwell = float(regimes.dwell[number])
            dwells = float(regimes.changes[number].sum())
            if cluster.slot is None or dwells < policy.dwells_min or dwell <= 0:
                continue
            before = cluster.reported_dwell
            seen = cluster.reported_dwells
            moved = abs(math.log(dwell / before)) if before and as_before else 0.0
            # The logarithm of a mean of n exponential dwells has a standard error of about 1 /
            # sqrt(n).
            error = math.sqrt(1 / dwells + 1 / seen) if seen else 0.0
            if moved > max(math.log(policy.dwell_moved), policy.dwell_errors * error):
                share = cluster.recent_share
                self.events.append(
                    ClusterEvent(
                        EventKind.DWELL_MOVED,
                        identity,
                        share=share,
                        dwell=dwell,
                        dwell_before=before,
                    )
                )
            elif as_before and seen >= min(dwells, DWELL_KNOWN):
                continue
            self._clusters[identity] = cluster.having(reported_dwell=dwell, reported_dwells=dwells)

    def _set_share(self, identity: int, share: float) -> None:
        """Shares are known only once every cluster has been measured and confirmed."""
        self.events = [
            replace(one, share=share) if one.identity == identity else one for one in self.events
        ]

    def lineage(self) -> Lineage:
        """The lineage that the next step begins from."""
        # Known clusters before candidates, whose numbers are below 0; each the oldest first.
        clusters = dict(
            sorted(self._clusters.items(), key=lambda entry: (entry[0] < 0, abs(entry[0])))
        )
        shown = {
            number: self._known_or_parent(identity) for identity, number in self._group_of.items()
        }
        return Lineage(
            self._next_identity,
            self._next_candidate,
            self._readings,
            clusters,
            self._identity_of_nodes(),
            dict(self._groups.node_mass),
            {
                number: identity
                for number, identity in sorted(shown.items())
                if identity is not None
            },
        )

    def _identity_of_nodes(self) -> dict[int, int]:
        """Each node is its group's, but a node of a cluster that is away stays that cluster's until
        it has ended."""
        owner = {number: identity for identity, number in self._group_of.items()}
        of_node: dict[int, int] = {}
        for node in self._groups.node_mass:
            former = self._before.of_node.get(node)
            former = None if former is None else self._replaced_by.get(former, former)
            number = self._groups.of_node.get(node)
            if former is not None and former in self._clusters and former not in self._group_of:
                of_node[node] = former
            elif number is not None:
                of_node[node] = owner[number]
            elif former is not None and former in self._clusters:
                of_node[node] = former
        return of_node


DWELL_KNOWN = 50
"""dwells from which on the mean dwell that is compared with is no longer made more exact"""
# A snapshot carries them all; without a limit a server of noise alone would outgrow its record.
IDENTITIES_MAX = 1000


def published_identities(lineage: Lineage) -> list[ClusterIdentity]:
    """The known clusters that have a number in the newest snapshot, in the order of these numbers.

    Of too many the heaviest. Two numbers may have the same identity: a part that is not confirmed
    yet is shown as the cluster it parts from.
    """
    shown = []
    heaviest = sorted(
        lineage.of_number.items(), key=lambda pair: (-lineage.clusters[pair[1]].mass, pair)
    )
    for number, identity in sorted(heaviest[:IDENTITIES_MAX]):
        cluster = lineage.clusters[identity]
        slot = 0 if cluster.slot is None else cluster.slot
        since = (cluster.since_reading, cluster.since)
        shown.append(
            ClusterIdentity(
                number,
                identity,
                cluster.name,
                cluster.active,
                slot,
                *since,
                cluster.recent_share,
                cluster.confirmed,
                cluster.muted_until,
                cluster.time,
            )
        )
    return shown


def lineage_of(snapshot: Snapshot, view: ClusteringView) -> Lineage:
    """A lineage to go on from when all that is left of the one before is its newest snapshot."""
    groups = groups_of(view)
    identity_of = {
        one.number: one.identity for one in snapshot.cluster_identities if one.number in groups.mass
    }
    clusters: dict[int, Cluster] = {}
    for one in snapshot.cluster_identities:
        if one.number in groups.mass and one.identity not in clusters:
            clusters[one.identity] = Cluster(
                one.identity,
                slot=one.slot,
                name=one.name,
                since_reading=one.since_reading,
                since=one.since,
                present_reading=snapshot.readings,
                mass=groups.mass[one.number],
                # The share is taken to have been the same for long; a quiet cluster has had no
                # recent readings.
                recent=one.recent_share * DEFAULT_POLICY.recent_readings if one.active else 0.0,
                recent_slow=one.recent_share * DEFAULT_POLICY.share_readings,
                recent_share=one.recent_share,
                active=one.active,
                reported_share=one.recent_share,
                confirmed=one.confirmed,
                muted_until=one.muted_until,
                time=one.time,
            )
    return Lineage(
        next_identity=max(snapshot.next_identity, *(identity + 1 for identity in clusters), 0),
        readings=snapshot.readings,
        clusters=dict(sorted(clusters.items())),
        of_node={
            node: identity_of[number]
            for node, number in groups.of_node.items()
            if number in identity_of
        },
        node_mass=groups.node_mass,
        of_number=identity_of,
    )

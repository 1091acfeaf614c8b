"""One step of a lineage: from the clusters known before and the view of a new snapshot to the
clusters known now."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from itertools import count

from shoal.algorithms.former_clusters import FORMER_MAX, Place
from shoal.algorithms.view import ClusteringView
from shoal.server_node.report.lineage.clusters import Cluster, Lineage
from shoal.server_node.report.lineage.events import ClusterEvent, EventKind
from shoal.server_node.report.lineage.matching import (
    groups_of,
    match_groups,
    match_identities,
    summed_masses,
)
from shoal.server_node.report.lineage.memory import (
    former_at,
    nearest_identities,
    places_of_groups,
)
from shoal.server_node.report.lineage.policy import DEFAULT_POLICY, LineagePolicy

DWELL_KNOWN = 50
"""dwells from which on the mean dwell that is compared with is no longer made more exact"""


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
    if _is_start(view):
        # Where a model in rounds begins is no place of its clusters yet.
        return replace(before, begun_anew=True), []
    # The order matters. Shares are measured once candidates are there, as these take their part of
    # the recent readings of others. Clusters end before candidates are confirmed, so that a colour
    # and a former place that become free can be taken in the same step. Activity and dwells come
    # last: the total of the shares is known when every cluster of this snapshot is settled, and an
    # event of a dwell has the share.
    step = _Step(before, view, readings, at, policy)
    step.carry_on()
    step.add_candidates()
    step.measure()
    step.end_absent()
    step.confirm_candidates()
    step.report_activity()
    step.report_dwell()
    return step.lineage(), sorted(step.events, key=lambda event: (event.identity, event.kind))


def _is_start(view: ClusteringView) -> bool:
    """Whether these are start values of a model in rounds: centres that have no readings."""
    is_in_rounds = view.identity is None and not view.accumulates
    return is_in_rounds and len(view.nodes) > 0 and float(view.mass.sum()) <= 0.0


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
        self._of_node = self._nodes_by_place() if before.begun_anew else before.of_node
        """node id -> the identity that it had"""
        self._places = dict(before.places)
        self._former = dict(before.former)
        self._former_places = dict(before.former_places)
        self._place_of_group: dict[int, Place] = {}
        """number -> where its nodes lie, for algorithms that do not keep identities themselves"""
        if view.identity is None:
            self._place_of_group = places_of_groups(view, self._groups)
        self._back: set[int] = set()
        """identities of former clusters that are there again"""
        match = match_groups(self._groups, self._of_node)
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
        """Whether states were known that a model has not looked for yet which was begun again, as
        to unlearn."""
        states = self._view.states
        return states is not None and not states.evaluated and len(self._before.clusters) > 1

    def _nodes_by_place(self) -> dict[int, int]:
        """Node id -> the identity whose place is nearest, of clusters known now and before."""
        known = {**self._before.former_places, **self._before.places}
        identities = nearest_identities(self._view.nodes, known)
        # None where no place is known.
        return dict(zip(self._view.node_id.tolist(), identities, strict=False))

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
            # Only a candidate's number is used up: an identity that the algorithm has given is its
            # own.
            self._next_candidate -= identity == self._next_candidate
            parent = self._match.origin_of.get(number)
            self._group_of[identity] = number
            if identity in self._former:
                self._clusters[identity] = self._returned(identity, self._former[identity])
                continue
            self._clusters[identity] = Cluster(
                identity,
                parent=parent if parent in self._before.clusters else None,
                since_reading=self._readings,
                since=self._at,
                present_reading=self._readings,
            )

    def _returned(self, identity: int, now: Cluster) -> Cluster:
        """A former cluster that is there again, with its name and history, and what is measured of
        it `now`."""
        former = self._former.pop(identity)
        self._former_places.pop(identity, None)
        self._back.add(identity)
        return former.having(
            # Its colour may be another cluster's by now: it gets a free one when it is confirmed,
            # and without one `_is_confirmed` takes it for new.
            slot=None,
            present_reading=self._readings,
            kept_until=0,
            merging_into=None,
            mass=now.mass,
            mass_share=now.mass_share,
            recent=now.recent,
            recent_slow=now.recent_slow,
            active=True,
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
        # Before the step's own readings are added, as the parts are those of the masses before it.
        self._hand_over_recent()
        for identity, cluster in self._clusters.items():
            own = mass.get(identity, 0.0)
            part = grown.get(identity, 0.0) / growth
            # An algorithm that counts recent readings itself is right where growth is not: mass
            # that is capped or fades does not grow with the readings.
            if counted is not None and identity in self._group_of:
                part = float(counted[self._group_of[identity]]) / recent_total
            recent = cluster.recent * fades[0] + part * left[0]
            slow = cluster.recent_slow * fades[1] + part * left[1]
            # Centres of a round are computed anew from all rows: their mass is no growth but what
            # there is now.
            if not self._view.accumulates and counted is None:
                recent = slow = own
            self._clusters[identity] = cluster.having(
                mass=own, mass_share=own / total, recent=recent, recent_slow=slow
            )

    def _hand_over_recent(self) -> None:
        """A cluster that appears takes its part of the recent readings of the clusters that had its
        nodes before."""
        # Of a model that has begun anew no node is one of before.
        if self._before.begun_anew:
            return
        of_node = self._of_node
        node_mass = self._before.node_mass
        masses: defaultdict[int, list[float]] = defaultdict(list)
        for node, owner in of_node.items():
            masses[owner].append(node_mass.get(node, 0.0))
        whole = summed_masses(masses)
        appeared = [key for key in self._clusters if key not in self._before.clusters]
        for identity in appeared:
            moved: defaultdict[int, list[float]] = defaultdict(list)
            for node in self._groups.nodes[self._group_of[identity]]:
                if node in of_node:
                    moved[of_node[node]].append(node_mass.get(node, 0.0))
            # Sorted: what one move takes is missing for the next, so the order is part of the
            # result.
            for owner, mass in sorted(summed_masses(moved).items()):
                if owner in self._clusters and whole[owner] > 0:
                    self._move_recent(owner, identity, mass / whole[owner])

    def _move_recent(self, owner: int, to: int, part: float) -> None:
        source = self._clusters[owner]
        target = self._clusters[to]
        # From the values before the step: what one candidate takes must not lessen what the next
        # one is due.
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
        # States are found only after thousands of readings: until then the one cluster of such a
        # model would end all that are known.
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
            kind = EventKind.MERGED
            if into is None or into == identity:
                kind = EventKind.GONE
            del self._clusters[identity]
            self._remember(cluster)
            if kind is EventKind.MERGED and into is not None:
                self._replaced_by[identity] = into
            self.events.append(
                ClusterEvent(kind, identity, into if kind is EventKind.MERGED else None)
            )

    def _remember(self, cluster: Cluster) -> None:
        """Keep a cluster that ends among the former ones."""
        self._former[cluster.identity] = cluster
        place = self._places.pop(cluster.identity, None)
        if place is not None:
            self._former_places[cluster.identity] = place.alone()
        # A dictionary keeps the order in which keys came, so the first one has ended first.
        while len(self._former) > FORMER_MAX:
            oldest = next(iter(self._former))
            del self._former[oldest]
            self._former_places.pop(oldest, None)

    def confirm_candidates(self) -> None:
        """Candidates that hold the stated share, or have lasted the stated number of readings,
        become known."""
        confirmed = [identity for identity in self._clusters if self._is_confirmed(identity)]
        for candidate in confirmed:
            cluster = self._clusters.pop(candidate)
            parent = self._known_or_parent(cluster.parent)
            identity = candidate if cluster.known else self._next_identity
            back = self._former_of(candidate)
            # What comes back keeps its old number, so that its name and what people have said of it
            # hold; it has parted from nothing.
            if back is not None:
                identity = back
                cluster = self._returned(back, cluster)
                parent = None
            self._next_identity = max(self._next_identity, identity + 1)
            self._group_of[identity] = self._group_of.pop(candidate)
            if candidate != identity:
                self._replaced_by[candidate] = identity
            self._clusters[identity] = cluster.having(
                identity=identity, parent=parent, slot=self._free_slot()
            )
            if identity in self._back:
                event = ClusterEvent(EventKind.RETURNED, identity)
            elif parent is None:
                event = ClusterEvent(EventKind.BIRTH, identity)
            else:
                event = ClusterEvent(EventKind.PARTED, identity, parent)
            self.events.append(event)

    def _former_of(self, candidate: int) -> int | None:
        """The former cluster at whose place a candidate is that becomes known; None for none."""
        place = self._place_of_group.get(self._group_of[candidate])
        if place is None or candidate >= 0:
            return None
        return former_at(place, self._former_places)

    def _is_confirmed(self, identity: int) -> bool:
        cluster = self._clusters[identity]
        policy = self._policy
        if cluster.slot is not None:
            return False
        if not self._confirms_here or cluster.mass_share >= policy.known_share:
            return True
        return (
            cluster.mass_share >= policy.share_min
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
        kinds_of_new = (EventKind.BIRTH, EventKind.PARTED, EventKind.RETURNED)
        new = {event.identity for event in self.events if event.kind in kinds_of_new}
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
        """Mean dwells in states that have moved by more than chance, which the number of dwells
        seen bounds."""
        states = self._view.states
        policy = self._policy
        if states is None or states.provisional or not states.block:
            return
        # A state that has taken in another one, or parted from it, lasts longer or shorter for
        # that reason.
        as_before = set(self._group_of) == set(self._before.of_number.values())
        for identity, number in self._group_of.items():
            cluster = self._clusters[identity]
            dwell = float(states.dwell[number])
            dwells = float(states.changes[number].sum())
            if cluster.slot is None or dwells < policy.dwells_min or dwell <= 0:
                continue
            before = cluster.reported_dwell
            seen = cluster.reported_dwells
            moved = 0.0
            if before and as_before:
                moved = abs(math.log(dwell / before))
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
            replace(event, share=share) if event.identity == identity else event
            for event in self.events
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
            self._places_now(),
            self._former,
            self._former_places,
        )

    def _places_now(self) -> dict[int, Place]:
        """The place of each known cluster, now or when it was last found."""
        # Those of clusters that are away stay for long; the others are replaced in the next step.
        places = {
            identity: place.alone()
            for identity, place in self._places.items()
            if identity in self._clusters
            and self._group_of.get(identity) not in self._place_of_group
        }
        for identity, number in self._group_of.items():
            if identity >= 0 and number in self._place_of_group:
                places[identity] = self._place_of_group[number]
        return dict(sorted(places.items()))

    def _identity_of_nodes(self) -> dict[int, int]:
        """Each node is its group's, but a node of a cluster that is away stays that cluster's until
        it has ended."""
        owner = {number: identity for identity, number in self._group_of.items()}
        of_node: dict[int, int] = {}
        for node in self._groups.node_mass:
            former = self._of_node.get(node)
            if former is not None:
                former = self._replaced_by.get(former, former)
            number = self._groups.of_node.get(node)
            if former is not None and former in self._clusters and former not in self._group_of:
                of_node[node] = former
            elif number is not None:
                of_node[node] = owner[number]
            elif former is not None and former in self._clusters:
                of_node[node] = former
        return of_node

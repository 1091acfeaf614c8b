"""The server half in a federation: pools the states of clients, and gives those that recur at
several of them one number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.half import Half, HalfState
from shoal.algorithms.states.matching import Profile, matched_states
from shoal.algorithms.states.messages import SNAPSHOT, UPDATE, Header, check_update
from shoal.algorithms.states.options import StatesOptions
from shoal.algorithms.states.pooling import means_of_states
from shoal.algorithms.streaming import Arrays, Contribution, Rows, check_rows, checked_headers
from shoal.algorithms.view import ClusteringView, StatesView
from shoal.errors import InvalidData, InvalidState
from shoal.kernels.arrays import AnyArray, Floats, Ints
from shoal.kernels.distance import nearest
from shoal.saved_state import FloatArray, IntArray, SavedState, Table, require, state_type

NO_PARENT: Final = -1
RECENT_READINGS: Final = 500.0
"""readings of all states in which those of each fade to 1/e"""
COMPARED_MAX: Final = 16
"""clients with which the states of one are compared, those with the most states and readings"""
GONE_MAX: Final = 64
"""numbers that no client has any more which are remembered, the latest"""
CHANGES_MIN: Final = 10
"""changes below which what is known of dwells and changes is provisional"""
SPREAD_TENTH: Final = 1.2816
"""standard deviations of a Gaussian beyond which a tenth of it lies"""
MASS_MIN: Final = 1e-9
"""readings of a client whose update has none, as its first one to a new server"""


@dataclass
class _Client:
    """The newest update of a client, and the numbers of its states."""

    arrays: Arrays
    readings: int
    """those of all its updates"""
    number: list[int]
    """numbers of its states, in their order"""
    profile: Profile

    def number_of(self) -> dict[int, int]:
        """State at the client -> number."""
        return dict(zip(self.arrays["state"].tolist(), self.number, strict=True))

    def shares(self) -> Floats:
        """(k,) of the readings, in each state."""
        # As floats, since a sum of whole numbers could overflow.
        count = self.arrays["count"].astype(np.float64)
        return np.asarray(count / count.sum())

    def mass(self) -> Floats:
        """(k,) readings of each state: their shares at the last evaluation, of all readings."""
        return self.shares() * max(self.readings, MASS_MIN)


class PooledStates(NamedTuple):
    """What the clients of a server have of c states. d columns."""

    number: Ints
    """(c,) ascending"""
    mass: Floats
    """(c,) readings"""
    mean: Floats
    """(c, d) at a client of usual level"""
    variance: Floats
    """(c, d) within clients"""
    step: Floats
    """(c, d) mean squared difference of successive readings"""
    dwells: Floats
    """(c, 2) ended dwells, and their readings"""
    changes: Floats
    """(c, c) from each to each other one"""
    clients: Ints
    """(c,) that have it"""


@state_type
class ClientRecordState(SavedState):
    """What the server keeps of one client."""

    arrays: Annotated[Arrays, Table(UPDATE)]
    readings: int
    number: Annotated[Ints, IntArray("states")]

    def check(self) -> None:
        try:
            header = check_update(self.arrays)
        except InvalidData as problem:
            raise InvalidState(f"saved state contradicts itself: {problem}") from None
        require(header is not None, "a client without an update is known")
        fits = len(np.unique(self.number)) == len(self.number) == len(self.arrays["state"])
        require(fits, "a client has other states than numbers of them")


@state_type
class StatesServerState(HalfState):
    """Everything that the server knows."""

    version: ClassVar[int] = 1

    names: list[str]
    clients: list[ClientRecordState]
    next_number: int
    parents: Annotated[Ints, IntArray("numbers", 2, least=NO_PARENT)]
    recents: Annotated[Floats, FloatArray("recent", 2)]
    gone: Annotated[Ints, IntArray("gone", 2, least=0)]

    def check(self) -> None:
        require(len(self.names) == len(self.clients), "there are more clients than names of them")
        numbers = [n for client in self.clients for n in client.number.tolist()]
        require(max(numbers, default=-1) < self.next_number, "a state has a number of the future")
        known = set(numbers)
        require(known <= set(self.parents[:, 0].tolist()), "a state has no origin")
        widths = {int(client.arrays["header"][1]) for client in self.clients}
        require(widths <= {self.width}, "clients have rows of several widths")


class StatesServer(Half[StatesOptions, StatesServerState]):
    """Keeps the newest update of each client and pools them.

    States of several clients have one number where they differ alike from the other states of
    their client (`matching`). A client in which nothing changes is in the state with the most
    readings. A number remains with a client's state unless another assignment goes with more states
    of some other client. All follows from the updates in their order. Options: `StatesOptions`.
    """

    half = "states server"
    options_type = StatesOptions
    state_type = StatesServerState

    def _reset(self, width: int | None) -> None:
        super()._reset(width)
        self._clients: dict[str, _Client] = {}
        self._next_number = 0
        self._parents: dict[int, int] = {}
        self._recent: dict[int, float] = {}
        self._gone: dict[int, int] = {}
        """number that no client has any more -> that into which its state went"""

    def absorb(self, contributions: Sequence[Contribution], key: bytes) -> None:
        """Take in updates, one after the other; any grouping into calls gives the same.

        Raises `InvalidData`; then nothing has changed.
        """
        headers = checked_headers(contributions, check_update, self._width)
        for contribution, header in zip(contributions, headers, strict=True):
            if header is not None:
                self._take(contribution, header)

    def numbers_of(self, client: str) -> dict[int, int]:
        """State at this client -> its number here; empty for a client without an update."""
        known = self._clients.get(client)
        return {} if known is None else known.number_of()

    def _take(self, contribution: Contribution, header: Header) -> None:
        self._width = header.width
        name = contribution.client
        before = self._clients.get(name)
        arrays = {key: np.array(contribution.arrays[key]) for key in UPDATE}
        readings = header.new + (0 if before is None else before.readings)
        client = _Client(arrays, readings, [], Profile.of(arrays))
        client.number = self._numbers(name, client, before)
        self._clients[name] = client
        self._fade(client, header.new)
        known = {number for other in self._clients.values() for number in other.number}
        if before is not None:
            self._end(before, client, known)
        self._gone = {n: into for n, into in self._gone.items() if n not in known}
        self._parents = {n: parent for n, parent in self._parents.items() if n in known}
        self._recent = {n: recent for n, recent in self._recent.items() if n in known}

    def _end(self, before: _Client, client: _Client, known: set[int]) -> None:
        """Note into which states those of a client went whose numbers are no longer known."""
        most = client.number[int(client.arrays["count"].argmax())]
        now = client.number_of()
        for state, number in before.number_of().items():
            if number not in known:
                self._gone[number] = now.get(state, most)
        for number in list(self._gone)[: max(0, len(self._gone) - GONE_MAX)]:
            del self._gone[number]

    def _fade(self, client: _Client, new: int) -> None:
        """Count recent readings, as the shares of the client's states have them."""
        fade = math.exp(-new / RECENT_READINGS)
        self._recent = {n: recent * fade for n, recent in self._recent.items()}
        for number, share in zip(client.number, client.shares().tolist(), strict=True):
            more = share * RECENT_READINGS * (1.0 - fade)
            self._recent[number] = self._recent.get(number, 0.0) + more

    def _numbers(self, name: str, client: _Client, before: _Client | None) -> list[int]:
        """The number of each state of a client."""
        others = {other: known for other, known in self._clients.items() if other != name}
        state = client.arrays["state"].tolist()
        current = {} if before is None else before.number_of()
        if len(state) == 1:
            return [self._single(state[0], current, others)]
        taken = self._matched(client, current, others)
        shared = {
            number for other in others.values() if len(other.number) > 1 for number in other.number
        }
        numbers = []
        for place, own in enumerate(state):
            number = taken.get(place)
            kept = current.get(own)
            # A state that goes with none of another client's has a number of its own.
            is_free = kept is not None and kept not in taken.values() and kept not in shared
            if number is None and is_free and kept not in numbers:
                number = kept
            numbers.append(-1 if number is None else number)
        origin = self._origin(client, current)
        for place, number in enumerate(numbers):
            if number == -1:
                numbers[place] = self._new_number(origin)
        return numbers

    def _single(self, state: int, current: dict[int, int], others: dict[str, _Client]) -> int:
        """The number of a client's only state: its own, or that with the most readings."""
        kept = current.get(state)
        if kept is None:
            kept = next(iter(current.values()), None)
        mass: dict[int, float] = {}
        for other in others.values():
            for number, readings in zip(other.number, other.mass().tolist(), strict=True):
                mass[number] = mass.get(number, 0.0) + readings
        if kept is not None and (kept in mass or not mass):
            return kept
        if not mass:
            return self._new_number(NO_PARENT)
        return max(mass, key=lambda number: (mass[number], -number))

    def _matched(
        self, client: _Client, current: dict[int, int], others: dict[str, _Client]
    ) -> dict[int, int]:
        """Position of a state -> number, of the other client with which most states are one.

        Of equal ones that whose numbers most clients have, so that clients that share states in
        two groups come together in the larger one; then that which changes fewest numbers.
        """
        state = client.arrays["state"].tolist()
        several = [name for name, other in others.items() if len(other.number) > 1]
        several.sort(key=lambda name: (-len(others[name].number), -others[name].readings, name))
        if not several and others:
            # All others are in one state so far: what this client does most of the time.
            most = int(client.arrays["count"].argmax())
            return {most: self._single(state[most], current, others)}
        holders = Counter(number for name in several for number in others[name].number)
        best: list[tuple[int, int]] = []
        partner: _Client | None = None
        best_rank = (0, 0, 0)
        for name in several[:COMPARED_MAX]:
            other = others[name]
            has_shared = len(set(current.values()) & set(other.number)) > 1
            pairs = matched_states(client.profile, other.profile, has_shared)
            numbers = [other.number[at] for _, at in pairs]
            same = sum(current.get(state[place]) == other.number[at] for place, at in pairs)
            rank = (len(pairs), sum(holders[number] for number in numbers), same)
            if rank > best_rank:
                best = pairs
                partner = other
                best_rank = rank
        taken = {}
        for place, at in best:
            assert partner is not None, "there are pairs with it"
            kept = current.get(state[place])
            if kept is not None:
                self._keep_older(kept, partner, at, others)
            taken[place] = partner.number[at]
        return taken

    def _keep_older(self, kept: int, partner: _Client, at: int, others: dict[str, _Client]) -> None:
        """Give a state of the partner the number that the client's state has, if that is older and
        no other client has either.

        Otherwise the client takes the partner's: what one client publishes renames no state that
        several others share.
        """
        number = partner.number[at]
        has_either = [other for other in others.values() if {kept, number} & set(other.number)]
        if kept < number and has_either == [partner] and kept not in partner.number:
            partner.number[at] = kept
            self._recent[kept] = self._recent.get(kept, 0.0) + self._recent.pop(number, 0.0)
            self._gone[number] = kept

    def _origin(self, client: _Client, current: dict[int, int]) -> int:
        """The number that the client's most frequent state had before."""
        known = [
            (readings, current[own])
            for own, readings in zip(
                client.arrays["state"].tolist(), client.arrays["count"].tolist(), strict=True
            )
            if own in current
        ]
        return max(known)[1] if known else NO_PARENT

    def _new_number(self, parent: int) -> int:
        number = self._next_number
        self._next_number += 1
        self._parents[number] = parent
        return number

    def predict(self, rows: ArrayLike) -> Ints:
        """rows (n, d) -> (n,) the state whose mean reading is nearest, by its number in the
        snapshot; -1 before any.

        A state is one of a sequence, which one row alone does not show. Raises `InvalidData`.
        """
        return predict(self.snapshot(), check_rows(rows, self._width))

    def snapshot(self) -> Arrays:
        """The `SNAPSHOT` arrays, as copies."""
        pooled = self.pooled()
        numbers = pooled.number.tolist()
        place = {number: at for at, number in enumerate(numbers)}
        n_changes = round(float(pooled.changes.sum()))
        provisional = len(numbers) > 1 and n_changes < CHANGES_MIN
        header = [self.window, n_changes, self.evaluated, provisional]
        ended = np.where(pooled.dwells[:, 0] > 0, pooled.dwells[:, 0], 1.0)
        arrays = {
            "header": np.array(header, dtype=np.int64),
            "identity": pooled.number,
            "centre": pooled.mean,
            "centre_mass": pooled.mass,
            "spread": np.sqrt(pooled.variance),
            "rough": _log_roughness(pooled),
            "dwell": pooled.dwells[:, 1] / ended,
            "changes": pooled.changes,
            "clients": pooled.clients,
            "recent": np.array([self._recent.get(number, 0.0) for number in numbers]),
            "parent": np.array([self._parents[number] for number in numbers], dtype=np.int64),
            **self._owners(place),
            **self._ended(place),
        }
        return {name: arrays[name] for name in SNAPSHOT}

    @property
    def evaluated(self) -> bool:
        """Whether any client has looked for states."""
        return any(Header.of(client.arrays).evaluated for client in self._clients.values())

    @property
    def window(self) -> int:
        """Readings by which states are told apart, the median over clients; 0 while there is
        one."""
        headers = [Header.of(client.arrays) for client in self._clients.values()]
        windows = [header.window for header in headers if header.window]
        numbers = {number for client in self._clients.values() for number in client.number}
        return int(np.median(windows)) if windows and len(numbers) > 1 else 0

    def pooled(self) -> PooledStates:
        """What all clients have of each state."""
        numbers = sorted({number for client in self._clients.values() for number in client.number})
        place = {number: at for at, number in enumerate(numbers)}
        c = len(place)
        d = self._width or self._given_width or 0
        dwells = np.zeros((c, 2))
        changes = np.zeros((c, c))
        # By name: sums of floats depend on their order, and clients join in any.
        clients = [client for _, client in sorted(self._clients.items())]
        owner = np.repeat(np.arange(len(clients)), [len(client.number) for client in clients])
        at = np.array([place[n] for client in clients for n in client.number], dtype=np.int64)
        for client in clients:
            own = np.array([place[number] for number in client.number], dtype=np.int64)
            # A client has no more dwells and changes than readings, whatever it claims.
            count = client.arrays["count"].sum(dtype=np.float64)
            part_read = min(1.0, client.readings / float(count))
            dwells[own] += client.arrays["dwells"] * part_read
            changes[np.ix_(own, own)] += client.arrays["change"] * part_read
        none = np.empty((0, d))
        weight = np.concatenate([np.empty(0), *(client.mass() for client in clients)])
        mean = np.concatenate([none, *(client.profile.mean for client in clients)])
        variance = np.concatenate([none, *(client.profile.variance for client in clients)])
        step = np.concatenate([none, *(client.profile.step for client in clients)])
        mass = np.zeros(c)
        np.add.at(mass, at, weight)
        # Within clients: what differs between them is their level, and no state.
        within = np.zeros((2, c, d))
        np.add.at(within[0], at, variance * weight[:, None])
        np.add.at(within[1], at, step * weight[:, None])
        return PooledStates(
            number=np.array(numbers, dtype=np.int64),
            mass=mass,
            mean=means_of_states(owner, at, weight, mean),
            variance=within[0] / mass[:, None],
            step=within[1] / mass[:, None],
            dwells=dwells,
            changes=changes,
            clients=np.bincount(at, minlength=c).astype(np.int64),
        )

    def _owners(self, place: Mapping[int, int]) -> dict[str, AnyArray]:
        """Which state of which client each is."""
        owners: list[list[int]] = []
        for _, client in sorted(self._clients.items()):
            token = Header.of(client.arrays).token
            if token:
                owners += [[token, own, place[n]] for own, n in client.number_of().items()]
        owned = np.array(owners, dtype=np.int64).reshape(-1, 3)
        columns = zip(("owner", "owned", "owned_by"), owned.T, strict=True)
        return {name: column.copy() for name, column in columns}

    def _ended(self, place: Mapping[int, int]) -> dict[str, AnyArray]:
        """The numbers that no client has any more, and the place of the state that each went
        into."""
        into = {}
        for number in sorted(self._gone):
            at = number
            # What it went into may have ended as well.
            for _ in range(len(self._gone)):
                at = self._gone.get(at, at)
            if at in place:
                into[number] = place[at]
        return {
            "gone": np.array(list(into), dtype=np.int64),
            "gone_into": np.array(list(into.values()), dtype=np.int64),
        }

    def _state(self) -> StatesServerState:
        clients = [
            ClientRecordState(
                arrays=client.arrays,
                readings=client.readings,
                number=np.array(client.number, dtype=np.int64),
            )
            for client in self._clients.values()
        ]
        return StatesServerState(
            width=self._width,
            names=list(self._clients),
            clients=clients,
            next_number=self._next_number,
            parents=np.array(list(self._parents.items()), dtype=np.int64).reshape(-1, 2),
            recents=np.array(list(self._recent.items()), dtype=np.float64).reshape(-1, 2),
            gone=np.array(list(self._gone.items()), dtype=np.int64).reshape(-1, 2),
        )

    def _restore_from(self, saved: StatesServerState) -> None:
        for name, client in zip(saved.names, saved.clients, strict=True):
            self._clients[name] = _Client(
                client.arrays, client.readings, client.number.tolist(), Profile.of(client.arrays)
            )
        self._next_number = saved.next_number
        self._parents = dict(saved.parents.tolist())
        self._recent = {int(number): recent for number, recent in saved.recents.tolist()}
        self._gone = dict(saved.gone.tolist())


def _log_roughness(pooled: PooledStates) -> Floats:
    """(c, d) half the logarithm of step over variance; 0 where either is 0."""
    rough = np.zeros_like(pooled.variance)
    known = (pooled.variance > 0) & (pooled.step > 0)
    rough[known] = 0.5 * np.log(pooled.step[known] / pooled.variance[known])
    return rough


def predict(arrays: Arrays, rows: Rows) -> Ints:
    """rows (n, d) -> (n,) the state whose mean reading is nearest, by its number; -1 where there is
    none."""
    if not len(arrays["centre"]):
        return np.full(len(rows), -1, dtype=np.int64)
    return nearest(rows, np.ascontiguousarray(arrays["centre"]))[0]


def view(arrays: Arrays) -> ClusteringView:
    """The states of a snapshot, each as one node, and those that no client has any more as nodes
    without mass, which show into which state they went. Raises `InvalidData`."""
    numbers = np.concatenate([arrays["identity"], arrays["gone"]])
    if len(np.unique(numbers)) < len(numbers):
        raise InvalidData("identity has an identity twice")
    centre = arrays["centre"]
    into = arrays["gone_into"]
    mass = np.maximum(arrays["centre_mass"], MASS_MIN)
    window, n_changes, evaluated, provisional = arrays["header"].tolist()
    spread = arrays["spread"]
    nodes = np.concatenate([centre, centre[into]])
    reach = SPREAD_TENTH * np.concatenate([spread, spread[into]])
    return ClusteringView.from_nodes(
        nodes,
        np.concatenate([mass, np.zeros(len(into))]),
        np.concatenate([np.arange(len(centre)), into]),
        node_id=numbers,
        centres=centre,
        centre_mass=mass,
        identity=arrays["identity"],
        parent=arrays["parent"],
        recent=arrays["recent"],
        node_low=nodes - reach,
        node_high=nodes + reach,
        states=StatesView(
            block=int(window),
            spread=spread,
            rough=arrays["rough"],
            dwell=arrays["dwell"],
            changes=arrays["changes"],
            n_changes=int(n_changes),
            evaluated=bool(evaluated),
            provisional=bool(provisional),
        ),
    )


def counted_points(update: Arrays, snapshot: Arrays) -> tuple[Rows, Floats]:
    """Mean readings (n, d) of the states in an update, and the readings (n,) of each."""
    count = update["count"].astype(np.float64)
    if not len(count):
        return snapshot["centre"][:0].astype(np.float64), count
    return update["total"] / count[:, None], count

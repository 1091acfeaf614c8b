"""The server half in a federation: asks clients phase by phase, and shows the regimes that their
answers give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.claims import ROUNDING_SHARE, Claims, require_possible
from shoal.algorithms.regimes.blocks import BLOCKS_MAX, READING_MAX, SCALES, n_block_features
from shoal.algorithms.regimes.client_half import (
    STATE_VERSION,
    RegimesHalf,
    codebook_digest,
    first_query,
    query_digest,
)
from shoal.algorithms.regimes.exchange import SAMPLE, Columns, Phase, Sums, add_answer
from shoal.algorithms.regimes.messages import (
    Header,
    Packing,
    Unpacking,
    check_update,
    clients_of,
    count_bits,
    read_snapshot,
    unpack_answer,
)
from shoal.algorithms.regimes.plan import FEATURE_MAX
from shoal.algorithms.regimes.region import Senders
from shoal.algorithms.regimes.server import NO_PARENT, RegimeSearch
from shoal.algorithms.regimes.sets import CellSets
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import (
    Arrays,
    Contribution,
    Rows,
    State,
    check_rows,
    checked_headers,
)
from shoal.algorithms.view import ClusteringView, RegimeView
from shoal.errors import InvalidData
from shoal.kernels.arrays import AnyArray, Floats, Ints
from shoal.kernels.constants import COUNT_MAX
from shoal.kernels.distance import nearest

GROWTH: Final = 1.25
"""growth of the readings after which the next evaluation begins, at least"""
EVALUATION_MEMORIES: Final = 3
"""memories of single readings of each client after which it begins at the latest"""
RECENT_READINGS: Final = 500.0
"""readings of all regimes in which those of each fade to 1/e"""
SPREAD_TENTH: Final = 1.2816
"""standard deviations of a Gaussian beyond which a tenth of it lies"""
SPARE_READINGS: Final = SCALES[-1]
"""readings that an update may count besides its own: those of a block that began before it"""
ALL_KEYS: Final = tuple((w, centred) for centred in (True, False) for w in SCALES)
"""scales of snapshots with any options, which they do not name"""
MASS_MIN: Final = 1e-9
"""readings of a regime to which none were counted yet"""


@dataclass
class _Column:
    """What clients have said of their columns before the first evaluation, the newest of each."""

    of_client: dict[str, Floats]

    def columns(self, d: int) -> Columns:
        """Means over clients, by their readings."""
        # By name: sums of floats depend on their order, and clients join in any.
        table = np.array([self.of_client[name] for name in sorted(self.of_client)])
        weight = table[:, 0] / table[:, 0].sum()
        level = weight @ table[:, 1 : 1 + d]
        spread = weight @ table[:, 1 + d : 1 + 2 * d]
        return Columns(level, np.where(spread > 0, spread, 1.0))

    def ends(self, d: int) -> tuple[Floats, Floats]:
        """(d,) least and greatest values of means: those of unit coordinates, or where readings lie
        beyond them.

        What clients have seen before the first evaluation is no bound: a regime may begin after it.
        """
        table = np.array(list(self.of_client.values()))
        low = table[:, 1 + 2 * d : 1 + 3 * d].min(axis=0)
        high = table[:, 1 + 3 * d :].max(axis=0)
        return np.minimum(low, 0.0), np.maximum(high, 1.0)


class RegimesServer(RegimesHalf):
    """Absorbs what clients contribute, and begins an evaluation for regimes whenever enough
    readings have come.

    A phase of an evaluation ends once each client that is present has answered. All follows from
    the contributions alone. Options: `RegimesOptions`.
    """

    half = "regimes server"

    def _reset(self, width: int | None) -> None:
        self._width = width
        self._server = RegimeSearch(centred=not self.options.pool)
        self._readings = 0
        self._next_evaluation = self.options.rebuild_readings
        self._senders = Senders()
        self._answered: set[str] = set()
        self._totals: Sums = {}
        self._column = _Column({})
        self._low = self._high = np.empty(0)
        self._mass: dict[int, float] = {}
        """identity -> readings"""
        self._recent: dict[int, float] = {}
        self._has_new_query = False
        """whether clients are asked for something else than was last taken note of"""
        self._renew_digests()

    def take_new_query(self) -> bool:
        """Whether clients are asked for something else than at the previous call."""
        is_new = self._has_new_query
        self._has_new_query = False
        return is_new

    def _renew_digests(self) -> None:
        self._query = (
            self._server.query() if self._server.evaluation else first_query(self.options.keys)
        )
        self._digest = query_digest(self._query)
        self._codebook_digest = codebook_digest(self._server.codebook, self._server.single)

    def absorb(self, contributions: Sequence[Contribution], key: bytes) -> None:
        """Merge contributions, one after the other; any grouping into calls gives the same.

        Raises `InvalidData`; then nothing has changed.
        """
        check = partial(check_update, readings=COUNT_MAX, spare=0)
        headers = checked_headers(contributions, check, self._width)
        for contribution, header in zip(contributions, headers, strict=True):
            if header is not None:
                self._take(contribution, header)

    def _take(self, contribution: Contribution, header: Header) -> None:
        self._width = header.width
        self._senders.take(contribution.client, clients_of(contribution.arrays))
        self._count(contribution.arrays)
        # Changes are between regimes of a codebook; of an older one they would be counted for the
        # wrong ones.
        if header.codebook == self._codebook_digest:
            self._count_changes(contribution.arrays["change"])
        if header.query == self._digest:
            self._take_answer(contribution, header)
        self._advance()

    def _count(self, arrays: Arrays) -> None:
        """Count the readings of an update by their regimes."""
        n = int(arrays["count"].sum())
        self._readings += n
        fade = math.exp(-n / RECENT_READINGS)
        self._recent = {identity: recent * fade for identity, recent in self._recent.items()}
        for identity, count in zip(
            arrays["regime"].tolist(), arrays["count"].tolist(), strict=True
        ):
            self._mass[identity] = self._mass.get(identity, 0.0) + count
            self._recent[identity] = self._recent.get(
                identity, 0.0
            ) + count / n * RECENT_READINGS * (1.0 - fade)

    def _count_changes(self, change: AnyArray) -> None:
        codebook = self._server.codebook
        if codebook is None or len(change) != 2 * len(codebook.identity) ** 2:
            return
        more = change.astype(np.float64).reshape(2, *codebook.sets.changes.shape)
        sets = CellSets(
            codebook.sets.of_cell,
            codebook.sets.changes + more[0],
            codebook.sets.changes_2 + more[1],
        )
        self._server.add_changes(sets)

    def _take_answer(self, contribution: Contribution, header: Header) -> None:
        if self._query.phase is Phase.COLUMNS:
            if contribution.arrays["sums"][0] >= 1:
                self._column.of_client[contribution.client] = contribution.arrays["sums"].astype(
                    np.float64
                )
            return
        # A region tells without more sums that the last of its clients is no longer waited for.
        is_end = header.complete and not any(
            len(contribution.arrays[name]) for name in ("sums", "products", "part")
        )
        answer = Sums() if is_end else unpack_answer(self._query, contribution.arrays, header.width)
        # Pieces of an answer come in several updates; once the last is there, a further one is a
        # repetition.
        if answer is None or contribution.client in self._answered:
            return
        add_answer(self._totals, answer)
        if header.complete:
            self._answered.add(contribution.client)

    def _advance(self) -> None:
        """End phases, and begin an evaluation, where it is time to."""
        server = self._server
        if self._query.phase is Phase.COLUMNS:
            if self._readings >= self._next_evaluation and self._column.of_client:
                server.columns = self._column.columns(self._width or 1)
                self._low, self._high = self._column.ends(self._width or 1)
                self._begin()
            return
        if (
            self._query.phase is not Phase.REST
            and self._answered
            and self._senders.present() <= self._answered
        ):
            self._conclude()
        if self._query.phase is Phase.REST and self._readings >= self._next_evaluation:
            self._begin()

    def _begin(self) -> None:
        self._server.begin(self._readings, len(self._senders.present()))
        most = EVALUATION_MEMORIES * self.options.blocks_max * max(1, self._senders.n_clients)
        # An evaluation sees only what clients remember, so readings of long ago must not put the
        # next one off.
        growth = min(self._readings * (GROWTH - 1.0), float(most))
        self._next_evaluation = self._readings + max(self.options.rebuild_readings, int(growth))
        self._next_phase()

    def _conclude(self) -> None:
        totals = self._totals
        # A sum that clients were not asked for in time is one over no blocks.
        for name, shape in self._query.forms(self._width or 1).items():
            totals.setdefault(name, np.zeros(shape))
        names = self._server.phase is Phase.NAMES
        self._server.conclude(totals)
        if names:
            self._share_mass()
            self._column = _Column({})
        self._next_phase()

    def _next_phase(self) -> None:
        self._answered = set()
        self._totals = {}
        self._has_new_query = True
        self._renew_digests()

    def _share_mass(self) -> None:
        """Give the regimes of an evaluation their shares of all readings, by the blocks that were
        looked at."""
        server = self._server
        profiles = self._server.profiles
        assert profiles is not None, "an evaluation has ended"
        shares = profiles.count / max(profiles.count.sum(), 1.0)
        shown = self._identity()
        if server.codebook is None:
            self._mass = {server.single: float(self._readings)}
            self._recent = {server.single: RECENT_READINGS}
            return
        self._mass = {
            identity: float(share) * self._readings
            for identity, share in zip(shown, shares, strict=True)
        }
        total = sum(self._recent.values())
        known = {identity: self._recent.get(identity, 0.0) for identity in shown}
        left = total - sum(known.values())
        self._recent = {
            identity: known[identity] + left * float(share)
            for identity, share in zip(shown, shares, strict=True)
        }

    def _identity(self) -> list[int]:
        """Identities in the order of the sets."""
        codebook = self._server.codebook
        return [self._server.single] if codebook is None else codebook.identity.tolist()

    def predict(self, rows: ArrayLike) -> Ints:
        """rows (n, d) -> (n,) the regime whose mean reading is nearest, by its number in the
        snapshot; -1 before any.

        A regime is a state of a sequence, which one row alone does not show. Raises `InvalidData`.
        """
        return predict(self.snapshot(), check_rows(rows, self._width))

    def snapshot(self) -> Arrays:
        """The `SNAPSHOT` arrays, as copies."""
        server = self._server
        width = self._width or self._given_width or 0
        query = Packing()
        codebook_packing = Packing()
        query.put_query(self._query)
        codebook_packing.put_codebook(server.codebook)
        shown = self._described(width)
        codebook = server.codebook
        k = len(shown["identity"])
        changes = 0 if codebook is None else codebook.n_changes()
        w = 0 if codebook is None else codebook.w
        header = [
            server.evaluation,
            server.n_readings,
            w,
            changes,
            int(server.provisional),
            server.single,
        ]
        dwells = np.zeros(k) if codebook is None else codebook.dwell()
        moved = np.zeros((k, k)) if codebook is None else codebook.moved()
        return {
            "header": np.array(header, np.int64),
            "query_layout": query.layout,
            "query_number": query.number,
            "codebook_layout": codebook_packing.layout,
            "codebook_number": codebook_packing.number,
            **shown,
            "dwell": dwells,
            "changes": moved,
            "recent": np.array(
                [self._recent.get(identity, 0.0) for identity in shown["identity"].tolist()]
            ),
            "parent": np.array(
                [
                    server.parents.get(identity, NO_PARENT)
                    for identity in shown["identity"].tolist()
                ],
                np.int64,
            ),
            **self._gone(shown["identity"], shown["centre"]),
        }

    def _described(self, d: int) -> dict[str, AnyArray]:
        """Identity, mass, centre, spread, roughness and slope of each regime, in unit
        coordinates."""
        server = self._server
        profiles = self._server.profiles
        identity = np.array(
            self._identity() if self._column.of_client or server.evaluation else [], np.int64
        )
        k = len(identity)
        mass = np.array([self._mass.get(number, 0.0) for number in identity.tolist()])
        if not k or profiles is None or server.columns is None:
            first = self._column.columns(d) if k else Columns(np.empty(d), np.empty(d))
            centre = np.tile(first.level, (k, 1))
            spread = np.tile(first.spread, (k, 1))
            rough = slope = np.zeros((k, d))
        else:
            columns = server.columns
            centre, spread, rough, slope = (
                np.nan_to_num(table)
                for table in (profiles.mean, profiles.spread, profiles.rough, profiles.slope)
            )
            centre = np.clip(centre * columns.spread + columns.level, self._low, self._high)
            spread = spread * columns.spread
            slope = slope * columns.spread
        forms = {
            "identity": identity,
            "centre": centre,
            "centre_mass": mass,
            "spread": spread,
            "rough": rough,
        }
        return forms | {"slope": slope.copy()}

    def _gone(self, identity: Ints, centre: Floats) -> dict[str, AnyArray]:
        place = {former: number for number, former in enumerate(identity.tolist())}
        merged = {
            former: place[into]
            for former, into in self._server.merged.items()
            if into in place and former not in place
        }
        into = np.array(list(merged.values()), np.int64)
        return {
            "gone": np.array(list(merged), np.int64),
            "gone_into": into,
            "gone_centre": centre[into].copy(),
        }

    def state(self) -> State:
        """Everything that further learning depends on, as copies."""
        packing = Packing()
        self._server.pack(packing)
        columns = self._column.of_client
        return {
            "version": STATE_VERSION,
            "half": self.half,
            "options": self.options.model_dump(),
            "width": self._width,
            "readings": self._readings,
            "next_evaluation": self._next_evaluation,
            **self._senders.state(),
            "answered": sorted(self._answered),
            "totals": {name: total.copy() for name, total in self._totals.items()},
            "column_clients": list(columns),
            "columns": np.array(list(columns.values())).reshape(
                len(columns), 1 + 4 * (self._width or 0)
            ),
            "low": self._low.copy(),
            "high": self._high.copy(),
            "masses": np.array([[*entry] for entry in self._mass.items()], np.float64).reshape(
                -1, 2
            ),
            "recents": np.array([[*entry] for entry in self._recent.items()], np.float64).reshape(
                -1, 2
            ),
            "layout": packing.layout,
            "number": packing.number,
        }

    def _restore_from(self, saved: StateReader, width: int | None) -> None:
        self._readings = saved.read_int("readings")
        self._next_evaluation = saved.read_int("next_evaluation")
        self._senders = Senders.restored(saved)
        self._answered = set(saved.read_names("answered"))
        clients = saved.read_names("column_clients")
        columns = saved.read_floats("columns", (len(clients), 1 + 4 * (width or 0)))
        self._column = _Column(dict(zip(clients, columns, strict=True)))
        self._low = saved.read_floats("low", (None,))
        self._high = saved.read_floats("high", (None,))
        self._mass, self._recent = (
            {
                int(identity): value
                for identity, value in saved.read_floats(name, (None, 2)).tolist()
            }
            for name in ("masses", "recents")
        )
        unpacking = Unpacking(
            saved.read_ints("layout", (None,), least=NO_PARENT),
            saved.read_floats("number", (None,)),
            self.options.keys,
            "layout",
        )
        self._server.unpack(unpacking)
        unpacking.end()
        self._renew_digests()
        self._totals = saved.read_named_floats("totals")
        forms = self._query.forms(width or 1)
        fits = [
            name.endswith(SAMPLE) or total.shape == forms.get(name)
            for name, total in self._totals.items()
        ]
        saved.check(all(fits), "sums are not those that were asked for")


SUM_MAX: Final = 4 * BLOCKS_MAX * READING_MAX**2
"""largest entry of an answer about names: a sum of squares over all blocks that a client remembers
"""


def check_answer(header: Header, arrays: Arrays, claims: Claims) -> None:
    """Raises `InvalidData` for an answer that no client gives, whatever it remembers."""
    sums = arrays["sums"]
    d = header.width
    clients = clients_of(arrays)
    bits = count_bits(arrays)
    blocks = BLOCKS_MAX * clients
    require_possible(
        d == len(claims.low), "its rows have another number of features than the contract"
    )
    if header.phase == Phase.COLUMNS:
        level, spread, low, high = sums[1:].reshape(4, d)
        # A level is a median of rows in the box: what lies outside by more than rounding is made
        # up.
        slack = ROUNDING_SHARE * claims.scale
        inside = (
            (low >= claims.low - slack)
            & (high <= claims.high + slack)
            & (level >= low)
            & (level <= high)
        )
        require_possible(bool(inside.all()), "sums has a level that no rows have")
        require_possible(
            bool(((spread >= 0) & (spread <= claims.span)).all()),
            "sums has a spread that no rows have",
        )
        require_possible(0 <= sums[0] <= blocks, "sums has more rows than a client remembers")
    elif header.phase == Phase.SCALING and len(sums):
        sizes = [1 + 2 * n_block_features(d, w) for w in SCALES]
        require_possible(len(sums) == sum(sizes), "sums is not of all scales")
        n = sums[np.cumsum([0, *sizes[:-1]])]
        require_possible(
            bool(((n >= 0) & (n <= blocks)).all()), "sums has more blocks than a client remembers"
        )
    elif header.phase == Phase.NAMES:
        require_possible(
            bool((np.abs(sums) <= SUM_MAX * clients).all()), "sums has more than a client remembers"
        )
    most = 4 * blocks * FEATURE_MAX**2
    require_possible(
        bool((np.abs(arrays["products"]) <= most).all()),
        "products are of more than a client remembers",
    )
    if header.phase == Phase.PAIRS:
        numbers = arrays["pair"].astype(np.int64) & ((1 << bits) - 1)
        ends = np.cumsum(arrays["part"][:, 2])
        upto = np.concatenate([[0], np.cumsum(numbers)])
        each = np.diff(upto[ends], prepend=0) if len(ends) else ends
        require_possible(
            bool((each <= blocks).all()), "pair has more pairs than a client remembers blocks"
        )


def predict(arrays: Arrays, rows: Rows) -> Ints:
    """rows (n, d) -> (n,) the regime whose mean reading is nearest, by its number; -1 where there
    is none."""
    if not len(arrays["centre"]):
        return np.full(len(rows), -1, np.int64)
    return nearest(rows, np.ascontiguousarray(arrays["centre"]))[0]


def view(arrays: Arrays) -> ClusteringView:
    """The regimes of a snapshot, each as one node, and those that are shown no more as nodes
    without mass.

    These lie in the cluster of the regime that has most of their readings, which shows that they
    merged into it.
    """
    read_snapshot(arrays, ALL_KEYS)
    k = len(arrays["centre"])
    if len(np.unique(np.concatenate([arrays["identity"], arrays["gone"]]))) < k + len(
        arrays["gone"]
    ):
        raise InvalidData("identity has an identity twice")
    # Regimes that are gone stay as nodes without mass, so that lineage sees into which one they
    # went.
    centre = arrays["centre"]
    spread = np.concatenate([arrays["spread"], np.zeros_like(arrays["gone_centre"])])
    nodes = np.concatenate([centre, arrays["gone_centre"]])
    return ClusteringView.from_nodes(
        nodes,
        np.concatenate(
            [np.maximum(arrays["centre_mass"], MASS_MIN), np.zeros(len(arrays["gone"]))]
        ),
        np.concatenate([np.arange(k), arrays["gone_into"]]),
        node_id=np.concatenate([arrays["identity"], arrays["gone"]]),
        centres=centre,
        centre_mass=np.maximum(arrays["centre_mass"], MASS_MIN),
        identity=arrays["identity"],
        parent=arrays["parent"],
        recent=arrays["recent"],
        node_low=nodes - SPREAD_TENTH * spread,
        node_high=nodes + SPREAD_TENTH * spread,
        regimes=RegimeView(
            int(arrays["header"][2]),
            arrays["spread"],
            arrays["rough"],
            arrays["slope"],
            arrays["dwell"],
            arrays["changes"],
            int(arrays["header"][3]),
            bool(arrays["header"][1]),
            bool(arrays["header"][4]),
        ),
    )


def counted_points(update: Arrays, snapshot: Arrays) -> tuple[Rows, Floats]:
    """Mean readings (n, d) of the regimes in an update, and the readings (n,) that it counts in
    each."""
    place = {identity: number for number, identity in enumerate(snapshot["identity"].tolist())}
    counted = [
        (place[identity], n)
        for identity, n in zip(update["regime"].tolist(), update["count"].tolist(), strict=True)
        if identity in place
    ]
    places, counts = np.array(counted, np.int64).reshape(-1, 2).T
    return snapshot["centre"][places].astype(np.float64), counts.astype(np.float64)

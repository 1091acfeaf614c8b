"""Both halves of regimes in a federation: clients answer what the server asks phase by phase."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from shoal.algorithms.claims import Box, Claims
from shoal.algorithms.regimes import REGIMES, RegimesClient, RegimesServer, check_claims
from shoal.algorithms.regimes.blocks import BLOCKS_MAX
from shoal.algorithms.regimes.exchange import Phase
from shoal.algorithms.regimes.messages import REGION_UPDATE
from shoal.algorithms.regimes.region import RegimesAggregator
from shoal.algorithms.streaming import Arrays, Contribution
from shoal.errors import InvalidData
from shoal.kernels.arrays import Floats
from shoal.protocol.codec import pack, unpack
from tests.estimators.test_regimes import FOUND, levels, stream

STEP = 500


class Federation(NamedTuple):
    """Halves that have learnt, and what the clients have contributed."""

    server: RegimesServer
    clients: list[RegimesClient]
    log: list[Contribution]


def contribution(
    client: RegimesClient, name: str, log: Sequence[Contribution]
) -> Contribution | None:
    arrays = client.contribute()
    if not any(map(len, arrays.values())):
        return None
    return Contribution(name, 1 + sum(record.client == name for record in log), arrays)


def answer_all(federation: Federation, silent: Sequence[str] = ()) -> None:
    """Clients follow snapshots and answer until nothing is asked."""
    worked = True
    while worked:
        worked = False
        snapshot = federation.server.snapshot()
        for number, client in enumerate(federation.clients):
            name = f"c{number}"
            client.adopt(snapshot)
            one = None if name in silent else contribution(client, name, federation.log)
            if one is not None:
                worked = True
                federation.log.append(one)
                federation.server.absorb([one], b"key")


def federate(
    parts: Sequence[Floats], silent_from: int | None = None, step: int = STEP, **options: Any
) -> Federation:
    """Clients that learn `step` rows at a time; the last of them sends nothing from row
    `silent_from` on."""
    d = parts[0].shape[1]
    found = Federation(
        RegimesServer(d, **options), [RegimesClient(d, **options) for _ in parts], []
    )
    for first in range(0, max(map(len, parts)), step):
        for client, rows in zip(found.clients, parts, strict=True):
            client.learn(rows[first : first + step])
        is_silent = silent_from is not None and first >= silent_from
        answer_all(found, [f"c{len(parts) - 1}"] if is_silent else [])
    return found


def parts_of(name: str, seed: int = 1) -> list[Floats]:
    """The rows of four clients within unit bounds, by regimes of a kind of `FOUND`."""
    make, k, dwell, _ = FOUND[name]
    rows, _, clients = stream(seed, make, k, dwell)
    return [0.5 + 0.02 * rows[clients == number] for number in range(4)]


class Tree:
    """Regions whose sums go to one server, the last of them through another region."""

    def __init__(self, members: Sequence[Sequence[int]], d: int, **options: Any) -> None:
        self.server = RegimesServer(d, **options)
        self.members = members
        self.clients = [RegimesClient(d, **options) for part in members for _ in part]
        self.regions = [RegimesAggregator(options, d) for _ in members]
        self.middle = RegimesAggregator(options, d)
        self.log: list[Contribution] = []

    def learn(self, rows: Sequence[Floats]) -> None:
        """Let clients learn and answer until nothing is asked; then all regions contribute what
        they have."""
        for client, part in zip(self.clients, rows, strict=True):
            client.learn(part)
        readings = dict.fromkeys(range(len(rows)), len(rows[0]))
        answered = True
        while answered:
            answered = False
            snapshot = self.server.snapshot()
            for region, part in enumerate(self.members):
                for number in part:
                    self.clients[number].adopt(snapshot)
                    arrays = self.clients[number].contribute()
                    if any(map(len, arrays.values())):
                        answered = True
                        self.pass_on(
                            self.regions[region],
                            region,
                            arrays,
                            readings.pop(number, 0),
                            f"c{number}",
                        )
            for region, aggregator in enumerate(self.regions):
                self.go_up(region, aggregator.contribute())
            self.absorb("middle", self.middle.contribute())

    def pass_on(
        self, to: RegimesAggregator, region: int, arrays: Arrays, readings: int, sender: str
    ) -> None:
        if not to.has_room(arrays, readings):
            self.go_up(region, to.contribute())
        to.add(arrays, readings, sender)
        if to.is_due:
            self.go_up(region, to.contribute())

    def go_up(self, region: int, arrays: Arrays) -> None:
        if region < len(self.members) - 1:
            self.absorb(f"r{region}", arrays)
        elif len(arrays["header"]):
            if not self.middle.has_room(arrays, 10_000):
                self.absorb("middle", self.middle.contribute())
            self.middle.add(arrays, 10_000, f"r{region}")
            if self.middle.is_due:
                self.absorb("middle", self.middle.contribute())

    def absorb(self, sender: str, arrays: Arrays) -> None:
        if len(arrays["header"]):
            assert arrays.keys() == REGION_UPDATE.keys()
            check_claims({}, arrays, Claims(10_000, Box(np.zeros(3), np.ones(3))))
            self.log.append(Contribution(sender, len(self.log), arrays))
            self.server.absorb([self.log[-1]], b"")


def test_a_tree_of_regions_finds_the_regimes_of_one_flat_federation() -> None:
    """To the last bit in what is counted, up to rounding else, where looks begin at the same
    readings."""
    parts = parts_of("three levels at 3 sd, dwell 100")
    at = 4 * STEP
    flat = federate(parts, rebuild_readings=at)
    tree = Tree([(0, 1), (2, 3)], 3, rebuild_readings=at)
    for first in range(0, len(parts[0]), STEP):
        tree.learn([rows[first : first + STEP] for rows in parts])
    (ours, k) = shown(flat)
    (theirs, of_tree) = shown(Federation(tree.server, tree.clients, []))
    assert k == of_tree > 1
    for counted in ("query_layout", "codebook_layout", "identity", "changes", "parent"):
        np.testing.assert_array_equal(ours[counted], theirs[counted])
    for real in ("codebook_number", "centre", "centre_mass", "spread", "rough", "slope", "dwell"):
        np.testing.assert_allclose(ours[real], theirs[real], rtol=1e-9, atol=1e-12)
    assert len(tree.log) <= len(flat.log) / 2


def test_a_region_tells_that_all_have_answered_once_a_silent_client_is_no_longer_waited_for() -> (
    None
):
    rows = parts_of("spread")
    server = RegimesServer(3, rebuild_readings=100)
    aggregator = RegimesAggregator({}, 3)
    clients = [RegimesClient(3) for _ in range(2)]
    for number, client in enumerate(clients):
        client.learn(rows[number][:STEP])
        aggregator.add(client.contribute(), STEP, f"c{number}")
    assert not aggregator.is_due, "columns are asked of each anew"
    server.absorb([Contribution("north", 1, aggregator.contribute())], b"")
    client = clients[0]
    snapshot = server.snapshot()
    assert snapshot["query_layout"][0] == Phase.SCALING
    client.adopt(snapshot)
    aggregator.add(client.contribute(), 1, "c0")
    updates = 1
    while not aggregator.is_due:
        server.absorb([Contribution("north", 1 + updates, aggregator.contribute())], b"")
        assert server.snapshot()["query_layout"][0] == Phase.SCALING
        client.learn(rows[0][STEP + updates : STEP + updates + 1])
        aggregator.add(client.contribute(), 1, "c0")
        updates += 1
    assert updates > 16
    server.absorb([Contribution("north", 1 + updates, aggregator.contribute())], b"")
    assert server.snapshot()["query_layout"][0] == Phase.PRODUCTS


def shown(federation: Federation) -> tuple[Arrays, int]:
    snapshot = federation.server.snapshot()
    return snapshot, len(snapshot["identity"])


@pytest.mark.parametrize("name", FOUND)
def test_a_federation_finds_what_the_library_finds(name: str) -> None:
    federation = federate(parts_of(name))
    snapshot, k = shown(federation)
    _, wanted, dwell, _ = FOUND[name]
    assert k == wanted
    assert ((snapshot["dwell"] > dwell / 3) & (snapshot["dwell"] < 2 * dwell)).all()
    assert snapshot["centre_mass"].sum() == pytest.approx(10_000, rel=0.01)
    assert max(len(pack(dict(record.arrays))) for record in federation.log) <= 20_000
    regimes = REGIMES.view(snapshot).regimes
    assert regimes is not None
    assert regimes.n_changes >= 15
    apart = {"spread": regimes.spread, "oscillation": regimes.rough, "slope": regimes.slope}.get(
        name
    )
    if apart is not None:  # the means of these are the same, or nearly
        assert np.ptp(apart, axis=0).min() > 0.25 * np.abs(apart).max()


def test_streams_in_which_nothing_stays_are_one_regime() -> None:
    rng = np.random.default_rng(3)
    walk = np.cumsum(rng.normal(size=(4, 3_000, 2)), axis=1)
    noise = rng.normal(size=(4, 3_000, 2))
    for rows in (noise, walk, np.ones_like(noise)):
        snapshot, k = shown(federate(list(0.5 + 0.001 * rows)))
        assert k == 1
        assert snapshot["identity"].tolist() == [0]
        assert snapshot["header"][0] >= 2  # looks


def test_updates_memory_and_looks_of_eight_features_keep_their_bounds() -> None:
    rng = np.random.default_rng(0)
    truth = np.arange(9_000) // 150 % 2
    parts = [0.5 + 0.05 * rng.normal(size=(9_000, 8)) + 0.1 * truth[:, None] for _ in range(2)]
    federation = federate(parts)
    assert shown(federation)[1] == 2
    assert max(len(pack(dict(record.arrays))) for record in federation.log) <= 80_000
    memory = federation.clients[0]._client.memory
    assert sum(array.nbytes for array in memory.state().values()) < 4 * 2**20
    # single readings, eight scales, those of no block yet
    full = BLOCKS_MAX * (8 * 8 + 8 * 4 * 8 * 4) + 256 * 8 * 8
    assert full < 4 * 2**20
    seconds = []
    for _ in range(3):
        server = RegimesServer(8)
        seconds.append([absorbing_s(server, contribution) for contribution in federation.log])
        assert pack(server.state()) == pack(federation.server.state())
    # The shortest of three: what a busy machine adds to one look, it does not add each time.
    assert np.min(seconds, axis=0).max() < 0.2


def absorbing_s(server: RegimesServer, contribution: Contribution) -> float:
    """Processor time that a server takes for a contribution."""
    began = time.process_time()
    server.absorb([contribution], b"")
    return time.process_time() - began


def test_the_log_alone_decides_in_any_grouping_and_with_restarts_in_every_phase() -> None:
    federation = federate(parts_of("three levels at 3 sd, dwell 100"))
    wanted = pack(federation.server.state())
    phases = set()
    together = RegimesServer(3)
    together.absorb(federation.log, b"other key")
    assert pack(together.state()) == wanted
    restarted = RegimesServer(3)
    for record in federation.log:
        restarted.absorb([record], b"")
        twin = RegimesServer(3)
        twin.restore(unpack(pack(restarted.state())))
        restarted = twin
        phases.add(int(restarted.snapshot()["query_layout"][0]))
    assert pack(restarted.state()) == wanted
    assert phases == set(map(int, Phase))


def test_clients_restored_in_every_phase_answer_the_same() -> None:
    parts = parts_of("spread")
    plain = federate(parts)
    restored = Federation(RegimesServer(3), [RegimesClient(3) for _ in parts], [])
    for first in range(0, 2_500, STEP):
        for client, rows in zip(restored.clients, parts, strict=True):
            for row in np.split(rows[first : first + STEP], [7, 8, 300]):
                client.learn(row)
        while True:
            for number, client in enumerate(restored.clients):
                restored.clients[number] = RegimesClient(3)
                restored.clients[number].restore(unpack(pack(client.state())))
            before = len(restored.log)
            snapshot = restored.server.snapshot()
            for number, client in enumerate(restored.clients):
                client.adopt(snapshot)
                one = contribution(client, f"c{number}", restored.log)
                if one is not None:
                    restored.log.append(one)
                    restored.server.absorb([one], b"")
            if len(restored.log) == before:
                break
    assert pack(restored.server.state()) == pack(plain.server.state())
    assert [pack(client.state()) for client in restored.clients] == [
        pack(client.state()) for client in plain.clients
    ]


def test_a_regime_that_begins_after_the_first_look_has_its_own_mean() -> None:
    parts = [
        0.3 + 0.01 * np.random.default_rng(number).normal(size=(3_000, 2)) for number in range(2)
    ]
    for rows in parts:
        rows[1_000:][np.arange(2_000) // 100 % 2 == 1] += 0.4
    snapshot, k = shown(federate(parts))
    assert k == 2
    np.testing.assert_allclose(sorted(snapshot["centre"][:, 0]), [0.3, 0.7], atol=0.02)


def test_a_client_that_falls_silent_does_not_stop_the_looks_of_the_others() -> None:
    federation = federate(parts_of("three levels at 3 sd, dwell 100"), silent_from=1_000, step=50)
    snapshot, k = shown(federation)
    assert k == 3
    assert snapshot["header"][1] > 4_000  # readings when the newest evaluation that has ended began
    assert set(federation.server._senders.newest) == {"c0", "c1", "c2"}


def test_places_are_compared_only_if_they_are_pooled() -> None:
    rows, truth, clients = stream(2, levels([0, 0], [2, 2]), clients=8)
    # half of the clients stay in one regime for good
    truth = np.where(clients < 4, truth, clients % 2)
    rows = levels([0, 0], [2, 2])(np.random.default_rng(1), truth)
    parts = [0.5 + 0.02 * rows[clients == number] for number in range(8)]
    for pool in (True, False):
        federation = federate(parts, pool=pool)
        snapshot, k = shown(federation)
        assert k == 2 or not pool
        order = np.argsort(snapshot["centre"][:, 0])
        low, *_, high = [*snapshot["identity"][order].tolist(), -1][:2]
        dwells = []
        for name in ("c6", "c7"):  # those that stay in the low and in the high one
            counted = [
                record.arrays["regime"].tolist()
                for record in federation.log
                if record.client == name
            ]
            dwells.append([dwell for dwell in counted if dwell][-1])
        assert (dwells == [[low], [high]]) is pool


def test_answers_to_an_earlier_ask_are_counted_as_readings_only() -> None:
    federation = federate(parts_of("spread"))
    late = next(record for record in federation.log if record.arrays["header"][2] == Phase.PAIRS)
    server = federation.server
    before = server.snapshot()
    readings = server._readings
    server.absorb([late], b"")
    after = server.snapshot()
    assert server._readings == readings + late.arrays["count"].sum()
    for name in ("query_layout", "codebook_number", "identity", "centre", "changes"):
        np.testing.assert_array_equal(after[name], before[name])


def test_a_client_of_a_server_that_knows_nothing_answers_again_from_memory() -> None:
    parts = parts_of("spread")
    federation = federate(parts)
    for client in federation.clients:
        client.reset_published()
    anew = Federation(RegimesServer(3), federation.clients, [])
    for client, rows in zip(anew.clients, parts, strict=True):
        client.learn(rows[:STEP])
    answer_all(anew)
    assert shown(anew)[1] == 2
    assert len(anew.log) < len(federation.log) / 2


def test_updates_that_no_client_can_make_are_refused() -> None:
    federation = federate(parts_of("spread")[:2])
    claims = Claims(STEP, Box(np.zeros(3), np.ones(3)))
    forged = {
        int(Phase.COLUMNS): [
            ("sums", 0, 1e9),
            ("sums", 1, 7.0),
            ("sums", 4, -1.0),
            ("count", 0, 2_000),
        ],
        int(Phase.SCALING): [("sums", 0, 1e9)],
        int(Phase.PRODUCTS): [("products", 0, 1e30), ("part", 0, -1)],
        int(Phase.PAIRS): [("pair", 0, (1 << 12) - 1), ("part", 2, 4_000)],
        int(Phase.NAMES): [("sums", 0, 1e30)],
    }
    seen = set()
    for record in federation.log:
        check_claims({}, record.arrays, claims)
        phase = int(record.arrays["header"][2])
        if phase in seen or phase not in forged:
            continue
        seen.add(phase)
        for name, place, value in forged[phase]:
            lie = {entry: array.copy() for entry, array in record.arrays.items()}
            lie[name].reshape(-1)[place] = value
            with pytest.raises(InvalidData):
                check_claims({}, lie, claims)
    assert seen == set(forged)


def test_what_the_sets_of_a_block_say_is_what_the_truth_is() -> None:
    rows, truth, clients = stream(4, levels([0, 0], [3, 3]))
    parts = [0.5 + 0.02 * rows[clients == number] for number in range(4)]
    federation = federate(parts)
    counting = federation.clients[0]._counting
    assert counting.codebook is not None
    own = counting.codebook.plan.cells(
        federation.clients[0]._client.blocks(counting.codebook.w, True)
    )
    found = np.repeat(counting.codebook.sets.of_cell[own], counting.codebook.w)
    assert adjusted_rand_score(truth[clients == 0][: len(found)], found) > 0.85

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


def contribution(client: RegimesClient, name: str, log: Sequence[Contribution]) -> Contribution | None:
    arrays = client.contribute()
    if not any(map(len, arrays.values())):
        return None
    return Contribution(name, 1 + sum(one.client == name for one in log), arrays)


def answer_all(federation: Federation, silent: Sequence[str] = ()) -> None:
    """Clients follow snapshots and answer until nothing is asked."""
    worked = True
    while worked:
        worked, snapshot = False, federation.server.snapshot()
        for number, client in enumerate(federation.clients):
            name = f"c{number}"
            client.adopt(snapshot)
            one = None if name in silent else contribution(client, name, federation.log)
            if one is not None:
                worked = True
                federation.log.append(one)
                federation.server.absorb([one], b"key")


def federate(parts: Sequence[Floats], silent_from: int | None = None, step: int = STEP, **options: Any) -> Federation:
    """Clients that learn `step` rows at a time; the last of them sends nothing from row `silent_from` on."""
    d = parts[0].shape[1]
    found = Federation(RegimesServer(d, **options), [RegimesClient(d, **options) for _ in parts], [])
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
    assert max(len(pack(dict(one.arrays))) for one in federation.log) <= 20_000
    regimes = REGIMES.view(snapshot).regimes
    assert regimes is not None
    assert regimes.n_changes >= 15
    apart = {"spread": regimes.spread, "oscillation": regimes.rough, "slope": regimes.slope}.get(name)
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
        assert snapshot["head"][0] >= 2  # looks


def test_updates_memory_and_looks_of_eight_features_keep_their_bounds() -> None:
    rng = np.random.default_rng(0)
    truth = np.arange(9_000) // 150 % 2
    parts = [0.5 + 0.05 * rng.normal(size=(9_000, 8)) + 0.1 * truth[:, None] for _ in range(2)]
    federation = federate(parts)
    assert shown(federation)[1] == 2
    assert max(len(pack(dict(one.arrays))) for one in federation.log) <= 80_000
    memory = federation.clients[0]._client.memory
    assert sum(array.nbytes for array in memory.state().values()) < 4 * 2**20
    full = BLOCKS_MAX * (8 * 8 + 8 * 4 * 8 * 4) + 256 * 8 * 8  # single readings, eight scales, those of no block yet
    assert full < 4 * 2**20
    server, longest = RegimesServer(8), 0.0
    for one in federation.log:
        began = time.process_time()
        server.absorb([one], b"")
        longest = max(longest, time.process_time() - began)
    assert longest < 0.2
    assert pack(server.state()) == pack(federation.server.state())


def test_the_log_alone_decides_in_any_grouping_and_with_restarts_in_every_phase() -> None:
    federation = federate(parts_of("three levels at 3 sd, dwell 100"))
    wanted, phases = pack(federation.server.state()), set()
    together = RegimesServer(3)
    together.absorb(federation.log, b"other key")
    assert pack(together.state()) == wanted
    restarted = RegimesServer(3)
    for one in federation.log:
        restarted.absorb([one], b"")
        twin = RegimesServer(3)
        twin.restore(unpack(pack(restarted.state())))
        restarted = twin
        phases.add(int(restarted.snapshot()["ask_layout"][0]))
    assert pack(restarted.state()) == wanted
    assert phases == set(map(int, Phase))


def test_clients_restored_in_every_phase_answer_the_same() -> None:
    parts = parts_of("spread")
    plain, restored = federate(parts), Federation(RegimesServer(3), [RegimesClient(3) for _ in parts], [])
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
    assert [pack(one.state()) for one in restored.clients] == [pack(one.state()) for one in plain.clients]


def test_a_regime_that_begins_after_the_first_look_has_its_own_mean() -> None:
    parts = [0.3 + 0.01 * np.random.default_rng(number).normal(size=(3_000, 2)) for number in range(2)]
    for rows in parts:
        rows[1_000:][np.arange(2_000) // 100 % 2 == 1] += 0.4
    snapshot, k = shown(federate(parts))
    assert k == 2
    np.testing.assert_allclose(sorted(snapshot["centre"][:, 0]), [0.3, 0.7], atol=0.02)


def test_a_client_that_falls_silent_does_not_stop_the_looks_of_the_others() -> None:
    federation = federate(parts_of("three levels at 3 sd, dwell 100"), silent_from=1_000, step=50)
    snapshot, k = shown(federation)
    assert k == 3
    assert snapshot["head"][1] > 4_000  # readings when the newest look that has ended began
    assert set(federation.server._newest) == {"c0", "c1", "c2"}


def test_places_are_compared_only_if_they_are_pooled() -> None:
    rows, truth, clients = stream(2, levels([0, 0], [2, 2]), clients=8)
    truth = np.where(clients < 4, truth, clients % 2)  # half of the clients stay in one regime for good
    rows = levels([0, 0], [2, 2])(np.random.default_rng(1), truth)
    parts = [0.5 + 0.02 * rows[clients == number] for number in range(8)]
    for pool in (True, False):
        federation = federate(parts, pool=pool)
        snapshot, k = shown(federation)
        assert k == 2 or not pool
        order = np.argsort(snapshot["centre"][:, 0])
        low, *_, high = [*snapshot["identity"][order].tolist(), -1][:2]
        stays = []
        for name in ("c6", "c7"):  # those that stay in the low and in the high one
            counted = [one.arrays["regime"].tolist() for one in federation.log if one.client == name]
            stays.append([one for one in counted if one][-1])
        assert (stays == [[low], [high]]) is pool


def test_answers_to_an_earlier_ask_are_counted_as_readings_only() -> None:
    federation = federate(parts_of("spread"))
    late = next(one for one in federation.log if one.arrays["head"][2] == Phase.PAIRS)
    server = federation.server
    before, readings = server.snapshot(), server._readings
    server.absorb([late], b"")
    after = server.snapshot()
    assert server._readings == readings + late.arrays["count"].sum()
    for name in ("ask_layout", "book_number", "identity", "centre", "changes"):
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
        int(Phase.COLUMNS): [("sums", 0, 1e9), ("sums", 1, 7.0), ("sums", 4, -1.0), ("count", 0, 2_000)],
        int(Phase.SCALING): [("sums", 0, 1e9)],
        int(Phase.PRODUCTS): [("products", 0, 1e30), ("part", 0, -1)],
        int(Phase.PAIRS): [("pair", 0, (1 << 12) - 1), ("part", 2, 4_000)],
        int(Phase.NAMES): [("sums", 0, 1e30)],
    }
    seen = set()
    for one in federation.log:
        check_claims({}, one.arrays, claims)
        phase = int(one.arrays["head"][2])
        if phase in seen or phase not in forged:
            continue
        seen.add(phase)
        for name, place, value in forged[phase]:
            lie = {each: array.copy() for each, array in one.arrays.items()}
            lie[name].reshape(-1)[place] = value
            with pytest.raises(InvalidData):
                check_claims({}, lie, claims)
    assert seen == set(forged)


def test_what_the_sets_of_a_block_say_is_what_the_truth_is() -> None:
    rows, truth, clients = stream(4, levels([0, 0], [3, 3]))
    parts = [0.5 + 0.02 * rows[clients == number] for number in range(4)]
    federation = federate(parts)
    counting = federation.clients[0]._counting
    assert counting.book is not None
    own = counting.book.plan.cells(federation.clients[0]._client.blocks(counting.book.w, True))
    found = np.repeat(counting.book.sets.of_cell[own], counting.book.w)
    assert adjusted_rand_score(truth[clients == 0][: len(found)], found) > 0.85

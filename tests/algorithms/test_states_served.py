"""The algorithm `states` of a federation: states that recur at several clients have one number, a
client alone is the estimator, and its labels are by windows of its own learner."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import shoal
from benchmarks.states_streams import autoregressive, dwells
from shoal.algorithms.claims import Box, Claims
from shoal.algorithms.states.client_half import StatesClient
from shoal.algorithms.states.matching import Profile, matched_states
from shoal.algorithms.states.messages import Header
from shoal.algorithms.states.pooling import groups_of, means_of_states
from shoal.algorithms.states.region import StatesAggregator
from shoal.algorithms.states.served import STATES
from shoal.algorithms.streaming import Arrays, Contribution
from shoal.config.contract import parse_contract
from shoal.errors import InvalidData
from shoal.kernels.arrays import Floats, Ints
from shoal.protocol.codec import pack, unpack
from shoal.server_node.report.description import describe
from shoal.simulation.streaming import StreamingFederation

N = 5_000
OPTIONS = {"evaluate_every": 2_500}


def planted(client: int, n_states: int) -> tuple[Floats, Ints]:
    """Rows (n, 2) between 0 and 1 of a client at a level and in a unit of its own, and the planted
    state of each: normal, four deviations higher, or with three times the spread; 250 readings at a
    stretch on average, and an autocorrelation of .4 within states."""
    rng = np.random.default_rng([200, client, n_states])
    truth = dwells(rng, N, n_states, 250)
    rows = autoregressive(rng, N, 2, 0.4)
    rows[truth == 1] += 4.0 / np.sqrt(2)
    rows[truth == 2] *= 3.0
    unit = 0.01 + 0.005 * client
    return np.clip(0.2 + 0.1 * client + unit * rows, 0.0, 1.0), truth


def federation_of(streams: list[Floats], every: int = 1_000) -> StreamingFederation:
    federation = StreamingFederation("states", OPTIONS, 2, len(streams), 0, every)
    # In turn, row by row, as the rows of several clients come.
    table = np.stack(streams, axis=1).reshape(-1, streams[0].shape[1])
    names = np.tile([str(client) for client in range(len(streams))], len(streams[0]))
    federation.learn(table, names)
    return federation


def labels_of(federation: StreamingFederation, client: str, rows: Floats) -> Ints:
    """(n,) the state of each row of a client, of the window around it, by its number."""
    half = federation.client(client).half
    assert isinstance(half, StatesClient)
    labels = half.sequence_labels(federation.server.snapshot())
    window = labels.window
    numbers = labels.numbers(rows)
    at = np.clip(np.arange(len(rows)) - window // 2, 0, len(numbers) - 1)
    return numbers[at]


def test_planted_states_of_several_clients_have_one_number_each() -> None:
    """Of 21 fleets of this strength 20 had three numbers at all four clients; a client of the other
    one saw a single state. At three deviations and twice the spread 61 of 80 clients found all
    three states, and 19 of 20 fleets had three numbers in all."""
    n_states = 3
    clients = [planted(client, n_states) for client in range(4)]
    federation = federation_of([rows for rows, _ in clients])
    snapshot = federation.server.snapshot()
    view = STATES.view(snapshot)
    assert len(view.centres) == n_states
    assert snapshot["clients"].tolist() == [4] * n_states
    assert view.states is not None
    assert view.states.n_changes > 40
    assert ((view.states.dwell > 150) & (view.states.dwell < 400)).all()
    np.testing.assert_allclose(view.centre_mass.sum(), 4 * N)
    labels = [labels_of(federation, str(client), rows) for client, (rows, _) in enumerate(clients)]
    truth = np.concatenate([state for _, state in clients])
    assert adjusted_rand_score(truth, np.concatenate(labels)) > 0.9


def test_clients_without_states_are_in_one_whatever_their_level_and_noise() -> None:
    streams = []
    for client in range(3):
        rng = np.random.default_rng(client)
        noise = 0.01 * (1 + client) * rng.normal(size=(3_000, 2))
        streams.append(np.clip(0.2 + 0.2 * client + noise, 0, 1))
    federation = federation_of(streams)
    snapshot = federation.server.snapshot()
    assert snapshot["identity"].tolist() == [0]
    assert snapshot["clients"].tolist() == [3]
    np.testing.assert_allclose(snapshot["centre"], 0.4, atol=0.01)
    assert labels_of(federation, "1", streams[1]).tolist() == [0] * 3_000


def test_one_client_learns_as_the_estimator_does_bit_for_bit() -> None:
    rows, _ = planted(0, 3)
    half = StatesClient(2, **OPTIONS)
    server = STATES.server(OPTIONS, 2)
    for first in range(0, N, 700):
        half.learn(rows[first : first + 700])
        server.absorb([Contribution("one", first, half.contribute())], b"")
    model = shoal.States(evaluate_every=2_500).partial_fit(rows)
    assert half.learner is not None
    stream = model.state()["streams"][""]
    learnt = half.learner.state()
    assert pack(learnt) == pack({name: stream[name] for name in learnt})
    assert half.size == model.n_states_ == 3
    snapshot = server.snapshot()
    np.testing.assert_allclose(snapshot["changes"], model.transitions_)
    np.testing.assert_allclose(snapshot["centre"], model.means_, atol=0.01)
    labels = half.sequence_labels(snapshot).numbers(rows)
    window = half.sequence_labels(snapshot).window
    own = model.predict(rows)[window // 2 :][: len(labels)]
    assert adjusted_rand_score(own, labels) > 0.85


def profile(*states: tuple[float, float, float]) -> Profile:
    """Level, log spread and log roughness of the states of a client with one column, in units far
    above what is taken for none."""
    level, spread, rough = np.array(states).T[:, :, None]
    count = np.full(len(states), 100)
    return Profile(count, level, np.exp(2 * spread), np.exp(2 * rough))


def test_states_are_matched_by_how_they_differ_and_not_where_that_is_not_told() -> None:
    low_high = profile((3, 0, 0), (8, 0, 0))
    high_low = profile((-4, 0, 2), (-9.2, 0.1, 2.1))
    assert sorted(matched_states(low_high, high_low)) == [(0, 1), (1, 0)]
    far = profile((0, 0, 0), (15, 0, 0))
    assert matched_states(low_high, far) == []
    rough = profile((0, 0, 0), (0, 0, 1.5))
    assert matched_states(low_high, rough) == []
    three = profile((0, 0, 0), (5.1, 0, 0), (0, 0, 1.4))
    assert sorted(matched_states(three, low_high)) == [(0, 0), (1, 1)]
    assert len(matched_states(three, three)) == 3
    # Two states that these features do not tell from each other could be either.
    alike = profile((0, 0, 0), (0.4, 0.1, 0))
    assert matched_states(alike, alike) == []
    one = profile((0, 0, 0))
    assert matched_states(one, three) == []
    # States that have shared numbers may have drifted somewhat further apart.
    drifted = profile((0, 0, 0), (7.4, 0, 0))
    assert matched_states(low_high, drifted) == []
    assert len(matched_states(low_high, drifted, kept=True)) == 2


def test_a_column_that_never_varies_within_states_tells_them_apart_by_a_part_of_its_range() -> None:
    still = Profile(np.array([5, 5]), np.array([[0.0], [1.0]]), np.zeros((2, 1)), np.zeros((2, 1)))
    moved = still._replace(mean=np.array([[0.2], [0.7]]))
    assert len(matched_states(still, still)) == 2
    assert matched_states(still, moved) == []


def update_of(token: int, means: list[float], counts: list[int]) -> Arrays:
    """An update of a client whose states differ by the level of one column, with deviation 0.01."""
    k = len(means)
    count = np.array(counts, dtype=np.int64)
    weight = count[:, None].astype(np.float64)
    mean = np.array(means)[:, None]
    header = Header(token, 1, int(count.sum()), 8, k > 1)
    return {
        "header": header.packed(),
        "state": np.arange(k, dtype=np.int64),
        "count": count,
        "total": mean * weight,
        "square": (mean**2 + 1e-4) * weight,
        "step": 2e-4 * weight,
        "change": np.zeros((k, k), dtype=np.int64),
        "dwells": np.zeros((k, 2), dtype=np.int64),
    }


def numbers_at(snapshot: Arrays, token: int) -> list[int]:
    """Identities of the states of a client, in their order there."""
    own = snapshot["owner"] == token
    return snapshot["identity"][snapshot["owned_by"][own]].tolist()


def test_clients_that_come_to_know_their_states_one_after_the_other_share_them() -> None:
    server = STATES.server({}, 1)

    def absorb(token: int, means: list[float], counts: list[int]) -> Arrays:
        update = Contribution(f"client {token}", 1, update_of(token, means, counts))
        server.absorb([update], b"")
        return server.snapshot()

    absorb(1, [0.2], [100])
    snapshot = absorb(2, [0.5], [100])
    assert (numbers_at(snapshot, 1), numbers_at(snapshot, 2)) == ([0], [0])
    # Its second state parts from the one that all are in.
    snapshot = absorb(1, [0.2, 0.3], [150, 50])
    assert numbers_at(snapshot, 1) == [0, 1]
    assert snapshot["parent"].tolist() == [-1, 0]
    assert snapshot["clients"].tolist() == [2, 1]
    # The other client was in the higher one most of the time.
    snapshot = absorb(2, [0.5, 0.4], [150, 50])
    assert (numbers_at(snapshot, 1), numbers_at(snapshot, 2)) == ([0, 1], [1, 0])
    # As within clients, whatever their levels.
    np.testing.assert_allclose(np.diff(snapshot["centre"][:, 0]), 0.1)
    # What differs otherwise has numbers of its own, and a state that is new to all a further one.
    snapshot = absorb(3, [0.5, 0.9], [100, 100])
    assert numbers_at(snapshot, 3) == [2, 3]
    snapshot = absorb(1, [0.2, 0.3, 0.7], [150, 50, 50])
    assert numbers_at(snapshot, 1) == [0, 1, 4]
    assert snapshot["identity"].tolist() == [0, 1, 2, 3, 4]
    # A client that only knows one state keeps its number.
    snapshot = absorb(4, [0.6], [10])
    assert numbers_at(snapshot, 4) == [0]
    # What ends shows into which state it went.
    assert snapshot["gone"].tolist() == []
    snapshot = absorb(3, [0.5], [300])
    assert 3 not in snapshot["identity"]
    into = snapshot["gone_into"][snapshot["gone"].tolist().index(3)]
    assert snapshot["identity"][into] == numbers_at(snapshot, 3)[0]
    view = STATES.view(snapshot)
    assert view.cluster[view.node_id == 3].tolist() == [into]


def test_what_one_client_publishes_renames_no_state_that_others_share() -> None:
    server = STATES.server({}, 1)

    def absorb(token: int, means: list[float], counts: list[int]) -> Arrays:
        update = Contribution(f"client {token}", 1, update_of(token, means, counts))
        server.absorb([update], b"")
        return server.snapshot()

    # It has the oldest numbers, of states that nobody else has.
    absorb(9, [0.1, 0.9], [10**9, 10**9])
    absorb(1, [0.2, 0.3], [100, 100])
    snapshot = absorb(2, [0.2, 0.3], [100, 100])
    shared = numbers_at(snapshot, 1)
    assert shared == numbers_at(snapshot, 2)
    # Then it claims to have theirs.
    snapshot = absorb(9, [0.2, 0.3], [10**9, 10**9])
    assert numbers_at(snapshot, 1) == numbers_at(snapshot, 2) == numbers_at(snapshot, 9) == shared
    # A single client's states do take older numbers of another one's.
    server = STATES.server({}, 1)
    absorb(1, [0.2, 0.3], [100, 100])
    absorb(2, [0.1, 0.9], [100, 100])
    snapshot = absorb(1, [0.1, 0.9], [100, 100])
    assert numbers_at(snapshot, 1) == numbers_at(snapshot, 2) == [0, 1]


def test_clients_that_share_states_in_two_groups_come_together_in_the_larger_one() -> None:
    server = STATES.server({}, 1)
    names = ("a", "b", "c", "d", "e")

    def absorb(name: str, means: list[float]) -> None:
        token = 1 + names.index(name)
        server.absorb([Contribution(name, 1, update_of(token, means, [100, 100]))], b"")

    for name in names:
        absorb(name, [0.2, 0.3] if name in "ab" else [0.2, 0.345])
    apart = [numbers_at(server.snapshot(), 1 + place) for place in range(len(names))]
    assert apart == [[0, 1], [0, 1], [2, 3], [2, 3], [2, 3]]
    # These are like the states of both groups.
    for name in "ab":
        absorb(name, [0.2, 0.325])
    together = [numbers_at(server.snapshot(), 1 + place) for place in range(len(names))]
    assert together == [[2, 3]] * len(names)


def test_states_are_described_as_within_clients_whatever_their_levels() -> None:
    """A client at .2 is mostly in the higher state, and one at .8 mostly in the lower: over all
    readings the lower state would have the higher mean."""
    server = STATES.server({}, 1)
    updates = ([0.2, 0.25], [100, 900]), ([0.8, 0.85], [900, 100])
    for token, (means, counts) in enumerate(updates, 1):
        update = update_of(token, means, counts)
        server.absorb([Contribution(f"client {token}", 1, update)], b"")
    snapshot = server.snapshot()
    pressures = snapshot["centre"][:, 0]
    low = pressures[0]
    high = pressures[1]
    assert len(pressures) == 2
    np.testing.assert_allclose(low, 0.5, atol=0.03)
    np.testing.assert_allclose(high - low, 0.05, atol=1e-6)
    np.testing.assert_allclose(snapshot["spread"], 0.01, atol=1e-6)
    feature = {"name": "pressure", "unit": "bar", "low": 0, "high": 10}
    tables = {"federation": {"name": "plant"}, "features": [feature]}
    models = [{"name": "clusters", "algorithm": "states"}]
    contract = parse_contract({**tables, "models": models, "privacy": {"mode": "off"}})
    described = describe(STATES.view(snapshot), contract)
    assert [described[0].label, described[1].label] == ["pressure low", "pressure high"]
    # A third client shares no state with them: its level is its own.
    update = update_of(3, [0.1, 0.9], [100, 100])
    server.absorb([Contribution("client 3", 1, update)], b"")
    np.testing.assert_allclose(server.snapshot()["centre"][2:, 0], [0.1, 0.9], atol=1e-6)


def test_levels_and_states_are_separated_over_clients_in_a_chain() -> None:
    rng = np.random.default_rng(4)
    level = rng.normal(size=(30, 2))
    effect = rng.normal(size=(5, 2))
    effect -= effect.mean(axis=0)
    # Each client shares one state with the client before it and one with the client after it.
    client = np.repeat(np.arange(30), 2)
    state = (client + np.tile([0, 1], 30)) % 5
    weight = rng.uniform(1, 1_000, len(client))
    found = means_of_states(client, state, weight, level[client] + effect[state])
    np.testing.assert_allclose(found - found.mean(axis=0), effect, atol=1e-3)
    assert groups_of(client, state).tolist() == [0] * len(client)
    assert groups_of(np.array([0, 1, 1, 2]), np.array([0, 1, 2, 0])).tolist() == [0, 1, 1, 0]


def test_clients_whose_first_readings_are_equal_are_not_taken_for_each_other() -> None:
    still = np.full((1_000, 1), 0.5)
    half = StatesClient(1)
    half.learn(still)
    snapshot = STATES.server({}, 1).snapshot()
    token = int(dict(half.contribute())["header"][0])
    columns = {"owner": [token, token], "owned": [0, 0], "owned_by": [0, 1]}
    pair = {name: np.array(column) for name, column in columns.items()}
    labels = half.sequence_labels(snapshot | pair)
    assert labels.numbers(still[:3]).tolist() == [-1] * 3
    pair["owned_by"] = np.array([1, 1])
    assert half.sequence_labels(snapshot | pair).numbers(still[:3]).tolist() == [1] * 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("header", [1, 2, 100, 0, 1]),
        ("count", [2**60]),
        ("total", [[1e6, 0.0]]),
        ("square", [[1e6, 0.0]]),
        ("step", [[1e6, 0.0]]),
        ("change", [[10**9]]),
        ("dwells", [[5, 4]]),
    ],
)
def test_sums_that_no_readings_have_are_refused(name: str, value: list[object]) -> None:
    half = StatesClient(2)
    half.learn(np.full((50, 2), 0.5))
    arrays = dict(half.contribute())
    claims = Claims(50, Box(np.zeros(2), np.ones(2)))
    assert STATES.check_claims is not None
    STATES.check_claims({}, arrays, claims)
    changed = arrays | {name: np.array(value, dtype=arrays[name].dtype)}
    with pytest.raises(InvalidData):
        STATES.check_claims({}, changed, claims)


def test_a_client_that_claims_too_much_has_no_more_than_its_readings() -> None:
    honest = StatesClient(2)
    honest.learn(np.full((50, 2), 0.5))
    liar = StatesClient(2)
    liar.learn(np.full((50, 2), 0.7))
    arrays = dict(liar.contribute())
    many = {
        "count": arrays["count"] * 10**12,
        "total": arrays["total"] * 1e12,
        "square": arrays["square"] * 1e12,
        "dwells": np.array([[10**12, 10**12]]),
    }
    server = STATES.server({}, 2)
    server.absorb([Contribution("honest", 1, honest.contribute())], b"")
    server.absorb([Contribution("liar", 1, arrays | many)], b"")
    snapshot = server.snapshot()
    np.testing.assert_allclose(snapshot["centre_mass"], 100)
    np.testing.assert_allclose(snapshot["centre"], 0.6)


def region_of(streams: dict[str, Floats], every: int = 1_000) -> list[Arrays]:
    """The updates of a region with these clients, one after every so many of their rows."""
    halves = {name: StatesClient(2, **OPTIONS) for name in streams}
    region = StatesAggregator(OPTIONS, 2)
    contributed = []
    for first in range(0, N, every):
        for name, rows in streams.items():
            halves[name].learn(rows[first : first + every])
            region.add(halves[name].contribute(), every, name)
        contributed.append(region.contribute())
        # A kill between two updates changes nothing.
        restored = StatesAggregator(OPTIONS, 2)
        restored.restore(unpack(pack(region.state())))
        region = restored
    assert not any(map(len, region.contribute().values())), "nothing is new"
    return contributed


def test_regions_pass_on_the_sums_of_states_which_have_one_number_over_all_of_them() -> None:
    rows = [planted(client, 3)[0] for client in range(4)]
    regions = {
        "north": region_of({"0": rows[0], "1": rows[1]}),
        "south": region_of({"2": rows[2], "3": rows[3]}),
    }
    claims = Claims(2_000, Box(np.zeros(2), np.ones(2)))
    world = STATES.server(OPTIONS, 2)
    for turn in range(N // 1_000):
        for name, updates in regions.items():
            assert STATES.check_claims is not None
            STATES.check_claims({}, updates[turn], claims)
            world.absorb([Contribution(name, turn, updates[turn])], b"")
    snapshot = world.snapshot()
    flat = federation_of(rows).server.snapshot()
    assert snapshot["clients"].tolist() == [2] * 3, "a region is one client"
    assert flat["clients"].tolist() == [4] * 3
    # In the order of their spreads and levels, as numbers depend on which came first.
    by_kind = [
        np.lexsort((own["centre"][:, 0], own["spread"][:, 0].round(2))) for own in (snapshot, flat)
    ]
    for name in ("centre", "spread", "rough"):
        np.testing.assert_allclose(
            snapshot[name][by_kind[0]], flat[name][by_kind[1]], rtol=0.02, atol=0.01
        )
    np.testing.assert_allclose(snapshot["centre_mass"].sum(), 4 * N, rtol=1e-3)
    assert abs(int(snapshot["header"][1]) - int(flat["header"][1])) <= 6

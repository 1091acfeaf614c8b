"""Laws that hold for every installed streaming algorithm; the last test checks that all of them
ran."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.algorithms.registry import counting_names, streaming_algorithm, streaming_names
from shoal.algorithms.streaming import (
    Arrays,
    ArraySpec,
    ClientHalf,
    Contribution,
    ServerHalf,
    StreamingAlgorithm,
)
from shoal.errors import InvalidData, InvalidState, SettingsError
from shoal.kernels.arrays import Floats
from shoal.protocol.codec import pack, unpack
from tests.examples import examples
from tests.laws.streams import KINDS, cut, stream, streams
from tests.laws.views import assert_view_is_sound
from tests.saved_states import changed, entry, ways, without

LEARN_ROWS = [name for name in streaming_names() if name not in counting_names()]
BOUNDED: dict[str, dict[str, Any]] = {
    "cluster_tree": {"cells_max": 64, "growth_max": 1.0},
    "fcac": {"nodes_max": 24},
    "states": {"memory": 64},
}
"""options with which each algorithm promises bounded memory"""
RAN: set[tuple[str, str]] = set()
laws = settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(params=LEARN_ROWS)
def algorithm(request: pytest.FixtureRequest) -> Iterator[StreamingAlgorithm]:
    yield streaming_algorithm(request.param)
    RAN.add((request.function.__name__, request.param))


def client_of(algorithm: StreamingAlgorithm, *batches: NDArray[Any], **options: Any) -> ClientHalf:
    half = algorithm.client(options, None)
    for rows in batches:
        half.learn(rows)
    return half


def contributions_of(
    algorithm: StreamingAlgorithm, rows: Floats, n_clients: int = 3
) -> list[Contribution]:
    return [
        Contribution(f"client{i}", 1, client_of(algorithm, part).contribute())
        for i, part in enumerate(np.array_split(rows, n_clients))
    ]


def server_of(algorithm: StreamingAlgorithm, rows: Floats, **options: Any) -> ServerHalf:
    half = algorithm.server(options, None)
    half.absorb(contributions_of(algorithm, rows), b"key")
    return half


def packed(half: ClientHalf | ServerHalf) -> bytes:
    return pack(half.state())


def assert_fits(arrays: Arrays, table: Mapping[str, ArraySpec], d: int) -> None:
    """The arrays are those of the table, and equal names are equal sizes."""
    assert list(arrays) == list(table)
    sizes: dict[str, int] = {"d": d}
    for name, spec in table.items():
        array = arrays[name]
        assert array.dtype == np.dtype(spec.dtype), name
        assert array.ndim == len(spec.shape), name
        for size, wanted in zip(array.shape, spec.shape, strict=True):
            assert size == (
                wanted if isinstance(wanted, int) else sizes.setdefault(wanted, size)
            ), name
        assert np.isfinite(array).all(), name
        assert not spec.at_least_one or (array >= 1).all(), name


@pytest.mark.parametrize("name", streaming_names())
def test_a_number_of_features_below_one_is_refused(name: str) -> None:
    for make in (streaming_algorithm(name).client, streaming_algorithm(name).server):
        with pytest.raises(SettingsError):
            make({}, 0)


# Without rows.


def test_a_client_without_rows_contributes_nothing(algorithm: StreamingAlgorithm) -> None:
    for rows in ([], [np.empty((0, 3))], [np.ones((1, 3))]):
        half = algorithm.client({}, 3)
        for batch in rows:
            half.learn(batch)
        update = half.contribute()
        assert_fits(update, algorithm.update, 3)
        assert all(len(array) == 0 for array in update.values())


def test_clients_without_rows_change_nothing(algorithm: StreamingAlgorithm) -> None:
    rows = stream("blobs", 1, 120, 2)
    silent = Contribution("silent", 1, algorithm.client({}, 2).contribute())
    stranger = Contribution("stranger", 1, algorithm.client({}, None).contribute())
    half = algorithm.server({}, None)
    expected = algorithm.server({}, None)
    for contributions in ([], [silent], [stranger, silent]):
        half.absorb(contributions, b"any")
    assert packed(half) == packed(expected)
    contributions = contributions_of(algorithm, rows)
    half.absorb([silent, contributions[0], stranger, *contributions[1:], silent], b"key")
    expected.absorb(contributions, b"key")
    assert packed(half) == packed(expected)


def test_a_server_without_nodes_predicts_minus_one_and_has_an_empty_snapshot(
    algorithm: StreamingAlgorithm,
) -> None:
    half = algorithm.server({}, 3)
    assert half.predict(np.ones((4, 3))).tolist() == [-1] * 4
    assert half.predict(np.empty((0, 3))).tolist() == []
    assert_fits(half.snapshot(), algorithm.snapshot, 3)


# Learning.


@laws
@given(rows=streams(), places=st.lists(st.integers(0, 10**4), max_size=8))
def test_any_batching_gives_the_same_state(
    algorithm: StreamingAlgorithm, rows: Floats, places: list[int]
) -> None:
    one_by_one = client_of(algorithm, *(rows[i : i + 1] for i in range(len(rows))))
    assert packed(client_of(algorithm, *cut(rows, places))) == packed(one_by_one)
    assert packed(client_of(algorithm, rows)) == packed(one_by_one)


@laws
@given(rows=streams(), place=st.integers(0, 10**4), contributes=st.booleans())
def test_a_client_restored_at_any_point_continues_bit_for_bit(
    algorithm: StreamingAlgorithm, rows: Floats, place: int, contributes: bool
) -> None:
    before, after = cut(rows, [place])
    half = client_of(algorithm, before)
    if contributes:
        half.contribute()
    twin = algorithm.client({}, None)
    twin.restore(unpack(packed(half)))
    assert packed(twin) == packed(half)
    half.learn(after)
    twin.learn(after)
    assert pack(dict(twin.contribute())) == pack(dict(half.contribute()))
    assert packed(twin) == packed(half)


@laws
@given(rows=streams(n_min=60), more=streams(n_min=60), key=st.binary(max_size=8))
def test_a_restored_server_continues_bit_for_bit(
    algorithm: StreamingAlgorithm, rows: Floats, more: Floats, key: bytes
) -> None:
    more = np.resize(more, (len(more), rows.shape[1]))
    half = server_of(algorithm, rows)
    twin = algorithm.server({}, None)
    twin.restore(unpack(packed(half)))
    assert pack(dict(twin.snapshot())) == pack(dict(half.snapshot()))
    for server in (half, twin):
        server.absorb(contributions_of(algorithm, more), key)
    assert packed(twin) == packed(half)
    np.testing.assert_array_equal(twin.predict(rows), half.predict(rows))


@laws
@given(rows=streams(), key=st.binary(max_size=8))
def test_the_same_input_gives_the_same_result(
    algorithm: StreamingAlgorithm, rows: Floats, key: bytes
) -> None:
    servers = [algorithm.server({}, None) for _ in range(2)]
    for server in servers:
        server.absorb(contributions_of(algorithm, rows), key)
    assert packed(servers[0]) == packed(servers[1])


@laws
@given(rows=streams())
def test_arguments_are_not_changed_and_not_kept_by_reference(
    algorithm: StreamingAlgorithm, rows: Floats
) -> None:
    given_rows = rows.copy()
    untouched = client_of(algorithm, rows)
    client = client_of(algorithm, given_rows)
    np.testing.assert_array_equal(given_rows, rows)
    given_rows[...] = np.pi
    state = client.state()
    assert pack(state) == packed(untouched)
    restored = algorithm.client({}, None)
    restored.restore(state)
    update = client.contribute()
    before = pack(dict(update))
    server = algorithm.server({}, None)
    server.absorb([Contribution("one", 1, update)], b"key")
    assert pack(dict(update)) == before
    kept = packed(server)
    snapshot = server.snapshot()
    for array in [*update.values(), *snapshot.values(), *state.values()]:
        if isinstance(array, np.ndarray) and array.size:
            array[...] = 77
    assert packed(server) == kept
    assert packed(restored) == packed(untouched)
    if len(rows):
        untouched.learn(rows[:1])
        client.learn(rows[:1])
    untouched.contribute()
    client.contribute()
    assert packed(client) == packed(untouched)


@laws
@given(rows=streams())
def test_rows_of_another_numeric_type_give_the_same_result(
    algorithm: StreamingAlgorithm, rows: Floats
) -> None:
    with np.errstate(over="ignore"):
        single = np.nan_to_num(rows.astype(np.float32), posinf=1, neginf=-1)
    assert packed(client_of(algorithm, single)) == packed(
        client_of(algorithm, single.astype(float))
    )
    small = (rows % 100).astype(np.int16)
    assert packed(client_of(algorithm, small)) == packed(client_of(algorithm, small.astype(float)))
    assert packed(client_of(algorithm, np.asfortranarray(rows))) == packed(
        client_of(algorithm, rows)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_one_feature_and_equal_rows_are_learnt(algorithm: StreamingAlgorithm, kind: str) -> None:
    rows = stream(kind, 3, 150, 1)
    server = server_of(algorithm, rows)
    labels = server.predict(rows)
    snapshot = server.snapshot()
    assert_fits(snapshot, algorithm.snapshot, 1)
    assert labels.dtype == np.int64
    assert labels.min() >= 0
    assert labels.max() < len(snapshot["centre"])


@laws
@given(rows=streams(n_min=40))
def test_updates_and_snapshots_have_the_declared_arrays(
    algorithm: StreamingAlgorithm, rows: Floats
) -> None:
    d = rows.shape[1]
    client = client_of(algorithm, rows)
    update = client.contribute()
    assert_fits(update, algorithm.update, d)
    rowlike = [update[name] for name, spec in algorithm.update.items() if spec.rowlike]
    server = server_of(algorithm, rows)
    snapshot = server.snapshot()
    assert_fits(snapshot, algorithm.snapshot, d)
    rowlike += [snapshot[name] for name, spec in algorithm.snapshot.items() if spec.rowlike]
    # Points stay inside the bounds of the rows but for rounding, so that a receiver may check them.
    slack = 1e-12 * np.abs(rows).max(axis=0)
    for points in rowlike:
        assert (points >= rows.min(axis=0) - slack).all()
        assert (points <= rows.max(axis=0) + slack).all()


@laws
@given(rows=streams(n_min=60))
def test_the_label_of_a_row_does_not_depend_on_other_rows(
    algorithm: StreamingAlgorithm, rows: Floats
) -> None:
    server = server_of(algorithm, rows)
    before = packed(server)
    together = server.predict(rows)
    np.testing.assert_array_equal(
        np.concatenate([server.predict(row[None]) for row in rows]), together
    )
    assert packed(server) == before


@laws
@given(rows=streams())
def test_a_snapshot_predicts_what_the_server_does(
    algorithm: StreamingAlgorithm, rows: Floats
) -> None:
    server = server_of(algorithm, rows)
    snapshot = server.snapshot()
    np.testing.assert_array_equal(algorithm.predict(snapshot, rows), server.predict(rows))
    view = algorithm.view(snapshot)
    # A model whose nodes are all deleted again knows the number of features; one that has learnt
    # nothing does not.
    width = rows.shape[1] if len(view.nodes) else view.nodes.shape[1]
    assert width in (0, rows.shape[1])
    assert_view_is_sound(view, width)
    assert set(algorithm.predict(snapshot, rows).tolist()) <= {-1, *range(len(view.centres))}
    assert algorithm.summary(snapshot) == view.summary()
    assert_view_is_sound(algorithm.view(algorithm.server({}, 3).snapshot()), 3)


@pytest.mark.parametrize("kind", ["blobs", "heavy tails", "drift", "lattice"])
def test_memory_of_an_endless_stream_is_bounded(algorithm: StreamingAlgorithm, kind: str) -> None:
    client = algorithm.client(BOUNDED[algorithm.name], 3)
    server = algorithm.server(BOUNDED[algorithm.name], 3)
    sizes = []
    for n_round in range(40):
        client.learn(stream(kind, n_round, 250, 3) + n_round)
        server.absorb(
            [Contribution("one", n_round, client.contribute())], n_round.to_bytes(4, "little")
        )
        sizes.append(len(packed(client)) + len(packed(server)))
    # The size is bounded early in the stream; later only numbers get longer.
    assert max(sizes) <= 1.5 * max(sizes[:8])


# Refused arguments.


@pytest.mark.parametrize("n_before", [0, 4, 100])
@pytest.mark.parametrize(
    "bad",
    [
        np.array([[1.0, 2.0], [3.0, np.nan]]),
        np.array([[1.0, 2.0], [-np.inf, 0.0]]),
        np.array([[1.0, 2.0], [98765.4321e200, 0.0]]),
        np.ones(2),
        np.ones((1, 2, 1)),
        np.array([["98765.4321", "b"]]),
        np.array([[98765.4321 + 1j, 2]]),
        [[98765.4321], [98765.4321, 2]],
        np.array([[None, 98765.4321]]),
    ],
    ids=["nan", "infinite", "too large", "flat", "deep", "text", "complex", "ragged", "objects"],
)
def test_rows_that_are_refused_change_nothing_and_are_not_in_the_error(
    algorithm: StreamingAlgorithm, bad: Any, n_before: int
) -> None:
    client = client_of(algorithm, stream("blobs", 5, n_before, 2))
    server = server_of(algorithm, stream("blobs", 5, n_before, 2))
    before = packed(client), packed(server)
    for refuses in (client.learn, server.predict):
        with pytest.raises(InvalidData) as rejected:
            refuses(bad)
        assert "98765" not in str(rejected.value)
    assert (packed(client), packed(server)) == before


def test_rows_of_another_width_are_refused_from_the_first_row_on(
    algorithm: StreamingAlgorithm,
) -> None:
    fixed = algorithm.client({}, 3)
    with pytest.raises(InvalidData):
        fixed.learn(np.ones((2, 2)))
    free = client_of(algorithm, np.ones((1, 2)))
    for wrong in (np.ones((2, 3)), np.ones((1, 0))):
        with pytest.raises(InvalidData):
            free.learn(wrong)


def test_an_impossible_contribution_changes_nothing(algorithm: StreamingAlgorithm) -> None:
    rows = stream("blobs", 6, 120, 2)
    server = server_of(algorithm, rows)
    before = packed(server)
    good = contributions_of(algorithm, rows)
    for name, spec in algorithm.update.items():
        lies = [{key: value for key, value in good[0].arrays.items() if key != name}]
        if len(good[0].arrays[name]):
            lies.append({**good[0].arrays, name: good[0].arrays[name][:-1]})
        if spec.at_least_one:
            lies.append({**good[0].arrays, name: np.zeros_like(good[0].arrays[name])})
        if spec.rowlike:
            lies.append({**good[0].arrays, name: good[0].arrays[name] * np.nan})
            lies.append({**good[0].arrays, name: good[0].arrays[name][:, :1]})
        for lie in lies:
            with pytest.raises(InvalidData):
                server.absorb([*good, Contribution("liar", 1, lie)], b"key")
            assert packed(server) == before


def test_a_damaged_or_foreign_state_is_refused_and_changes_nothing(
    algorithm: StreamingAlgorithm,
) -> None:
    rows = stream("blobs", 7, 150, 2)
    halves: list[tuple[Any, Any]] = [(client_of(algorithm, rows), algorithm.client)]
    halves.append((server_of(algorithm, rows), algorithm.server))
    for half, make in halves:
        twin = make({}, None)
        fresh = packed(twin)
        for way in ways(half.state()):
            damaged = [without(half.state(), way)]
            value = entry(half.state(), way)
            if isinstance(value, np.ndarray):
                damaged.append(changed(half.state(), {way: value[:, None]}))
                damaged.append(changed(half.state(), {way: value.astype(np.complex128)}))
                if value.dtype.kind == "f" and value.size:
                    damaged.append(changed(half.state(), {way: value * np.nan}))
            else:
                damaged.append(changed(half.state(), {way: "something else"}))
            for state in damaged:
                with pytest.raises(InvalidState):
                    twin.restore(state)
                assert packed(twin) == fresh
        with pytest.raises(InvalidState):
            make({}, 3).restore(half.state())
        with pytest.raises(InvalidState):
            make(BOUNDED[algorithm.name], None).restore(half.state())
    with pytest.raises(InvalidState):
        halves[0][1]({}, None).restore(halves[1][0].state())


def test_an_unknown_option_is_refused(algorithm: StreamingAlgorithm) -> None:
    for make in (algorithm.client, algorithm.server):
        with pytest.raises(SettingsError):
            make({"no such option": 1}, 2)


# All laws ran.


def test_every_law_ran_over_every_registered_algorithm(request: pytest.FixtureRequest) -> None:
    assert sorted(BOUNDED) == LEARN_ROWS
    module = sys.modules[__name__]
    written = {
        name
        for name, law in inspect.getmembers(module, inspect.isfunction)
        if name.startswith("test_") and "algorithm" in inspect.signature(law).parameters
    }
    collected = {
        item.originalname
        for item in request.session.items
        if getattr(item, "module", None) is module
    }  # type: ignore[attr-defined]  # of functions
    config = request.config
    narrowed = (
        config.option.keyword
        or config.option.markexpr
        or any("::" in place for place in config.args)
    )
    assert narrowed or written <= collected
    assert {(law, name) for law in written & collected for name in LEARN_ROWS} <= RAN

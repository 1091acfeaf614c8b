"""Synthetic streams: seeded, endless, and as they say they are."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.config.contract import parse_contract
from shoal.config.resolved import resolve
from shoal.errors import SettingsError
from shoal.producers.synthetic import (
    BEGINNING_S,
    CYCLE_S,
    FAULTS,
    FLOW,
    LEVEL,
    NAMES,
    PRESSURE,
    SEASON,
    VIBRATION,
    Gaussians,
    Plant,
    Synthetic,
    break_down,
    federation_file,
    stream_of,
)
from tests.examples import examples
from tests.producers.running_producer import comparable


@pytest.mark.parametrize("name", NAMES)
def test_nothing_asked_is_nothing_given(name: str) -> None:
    source = Synthetic(name)
    assert source.read(0) == []
    assert source.position == 0
    assert source.total is None


@pytest.mark.parametrize("name", NAMES)
def test_the_clients_take_turns_and_each_has_its_own_readings_at_the_same_moments(
    name: str,
) -> None:
    rows = Synthetic(name, clients=3).read(30)
    assert [row.client for row in rows[:4]] == ["client-1", "client-2", "client-3", "client-1"]
    assert [row.time for row in rows[::3]] == [BEGINNING_S + tick for tick in range(10)]
    assert len({str(row.values) for row in rows}) == 30


@settings(deadline=None, max_examples=examples(20))
@given(
    name=st.sampled_from(NAMES),
    clients=st.integers(1, 3),
    seed=st.integers(0, 2**40),
    start=st.integers(0, 10**12),
    cut=st.integers(0, 20),
)
def test_skipping_is_the_same_as_reading_and_a_seed_is_a_stream(
    name: str, clients: int, seed: int, start: int, cut: int
) -> None:
    one = Synthetic(name, clients, seed)
    two = Synthetic(name, clients, seed)
    one.skip(start)
    whole = one.read(20)
    two.skip(start)
    two.read(cut // 2)
    two.skip(cut - cut // 2)
    assert two.position == start + cut
    assert comparable(two.read(20 - cut)) == comparable(whole[cut:])
    other = Synthetic(name, clients, seed + 1)
    other.skip(start)
    assert comparable(other.read(20)) != comparable(whole)
    assert len({one.identity, other.identity, Synthetic(name, clients + 1, seed).identity}) == 3
    assert one.identity == two.identity


@pytest.mark.parametrize("name", NAMES)
def test_readings_are_finite_and_within_the_bounds_that_the_stream_declares(name: str) -> None:
    features = stream_of(name, 0).features
    rows = np.array([row.values for row in Synthetic(name, seed=3).read(30_000)])
    low = np.array([feature.low for feature in features])
    high = np.array([feature.high for feature in features])
    assert rows.shape == (30_000, len(features))
    assert ((rows >= low) & (rows <= high)).mean() > 0.9999


@pytest.mark.parametrize("name", NAMES)
def test_features_are_picked_by_name_and_one_that_is_not_there_is_refused(name: str) -> None:
    names = [feature.name for feature in stream_of(name, 0).features]
    whole = np.array([row.values for row in Synthetic(name).read(20)])
    turned = np.array([row.values for row in Synthetic(name, wanted=names[::-1]).read(20)])
    assert (turned == whole[:, ::-1]).all()
    with pytest.raises(SettingsError, match=f"no feature 'depth'; it has {', '.join(names)}"):
        Synthetic(name, wanted=["depth"])


@pytest.mark.parametrize("name", NAMES)
def test_the_printed_federation_is_one_and_fits_its_stream(name: str) -> None:
    contract = parse_contract(tomllib.loads(federation_file(name)))
    assert contract.federation == name
    assert contract.features == stream_of(name, 0).features
    assert [model.algorithm for model in contract.models] == ["density_tree"]
    assert (resolve(contract).total_epsilon, contract.privacy.window_readings) == (4.0, 400)
    resolve(contract)
    assert Synthetic(name, wanted=[feature.name for feature in contract.features]).read(1)


def test_a_stream_or_a_number_of_clients_that_cannot_be_is_refused() -> None:
    with pytest.raises(SettingsError, match="there are gaussians and plant"):
        stream_of("weather", 0)
    with pytest.raises(SettingsError, match="1 to 256"):
        Synthetic("plant", clients=0)


def test_gaussians_arrive_and_vanish_as_planned() -> None:
    stream = Gaussians(seed=1)
    assert stream.present(0) == [0, 1, 2][: len(stream.present(0))]
    everyone = {
        component for tick in range(0, 2 * SEASON, 50) for component in stream.present(tick)
    }
    assert everyone == {0, 1, 2, 3, 4}
    there = [4 in stream.present(tick) for tick in range(3 * SEASON)]
    changes = [tick for tick in range(1, len(there)) if there[tick] != there[tick - 1]]
    assert changes == [3000, 6000, 9000, 12000, 15000]


def test_gaussians_drift_without_a_jump_as_long_as_they_are_there() -> None:
    stream = Gaussians(seed=2)
    for component, ticks in ((0, range(3 * SEASON)), (3, range(2000, 2000 + 3600))):
        centres = np.array([stream.state(component, tick)[0] for tick in ticks])
        steps = np.linalg.norm(np.diff(centres, axis=0), axis=1)
        assert steps.max() < 0.05
        assert np.linalg.norm(centres[-1] - centres[0]) > 1


def test_rows_lie_around_the_centre_that_their_label_names() -> None:
    stream = Gaussians(seed=3, width=4)
    assert [feature.name for feature in stream.features] == ["x1", "x2", "x3", "x4"]
    scaled = []
    for number in range(40):
        rows, labels = stream.block(0, number)
        for place, (row, label) in enumerate(zip(rows, labels, strict=True)):
            tick = number * stream.block_readings + place
            centre, spread, name = stream.state(int(label.split(".")[0]), tick)
            assert name == label
            scaled.append((row - centre) / spread)
    assert np.mean(scaled) == pytest.approx(0, abs=0.02)
    assert np.std(scaled) == pytest.approx(1, abs=0.02)


def test_all_clients_see_the_same_gaussians_at_the_same_time() -> None:
    stream = Gaussians(seed=4)
    assert set(stream.block(0, 8)[1]) == set(stream.block(1, 8)[1])


def cycles(count: int, client: int = 0, seed: int = 0) -> tuple[Any, list[str]]:
    plant = Plant(seed)
    blocks = [plant.block(client, number) for number in range(count)]
    return np.concatenate([rows for rows, _ in blocks]), [
        label for _, labels in blocks for label in labels
    ]


def test_the_sensors_of_a_sound_plant_hang_together() -> None:
    rows, labels = cycles(20)
    phases = np.array(labels)
    flow = rows[:, FLOW]
    level = rows[:, LEVEL]
    vibration = rows[:, VIBRATION]
    sound = ~np.isin(phases, FAULTS)
    assert np.corrcoef(flow[sound], vibration[sound])[0, 1] > 0.8
    filling = (phases == "fill") & np.append(phases[1:] == "fill", False)
    assert np.mean(np.diff(level, append=level[-1])[filling]) == pytest.approx(0.1, abs=0.02)
    assert level[phases == "heat"].mean() > level[phases == "draw"].mean()


def test_one_working_cycle_follows_another_without_a_jump() -> None:
    rows, labels = cycles(12)
    steps = np.abs(np.diff(rows, axis=0))
    joints = [
        place
        for place in range(CYCLE_S - 1, len(steps), CYCLE_S)
        if {labels[place], labels[place + 1]} == {"draw", "fill"}
    ]
    assert len(joints) > 5
    within = steps[np.array(labels)[1:] == "heat"]
    assert (steps[joints] < 2.5 * within.max(axis=0) + 0.5).all()


def test_every_kind_of_fault_comes_and_touches_only_the_rows_it_labels() -> None:
    _, labels = cycles(150)
    assert set(labels) == {"fill", "heat", "draw", *FAULTS}
    assert not set(labels[:CYCLE_S]) & set(FAULTS)
    faulty = sum(label in FAULTS for label in labels)
    assert 0.005 < faulty / len(labels) < 0.1


@pytest.mark.parametrize("fault", FAULTS)
@given(seed=st.integers(0, 1000))
def test_a_fault_changes_the_rows_it_returns_and_no_other(fault: str, seed: int) -> None:
    sound, _ = cycles(1)
    rows = sound.copy()
    touched = break_down(rows, fault, 400, 200, np.random.default_rng(seed))
    changed = np.flatnonzero((rows != sound).any(axis=1))
    assert set(changed) <= set(touched) <= set(range(400, 600))
    assert len(changed) >= len(touched) - 2
    if fault == "cavitation":
        assert rows[touched, VIBRATION].mean() > sound[touched, VIBRATION].mean() + 3
        assert rows[touched, PRESSURE].mean() < sound[touched, PRESSURE].mean()
    if fault == "stuck":
        assert (np.ptp(rows[400:600], axis=0) == 0).sum() == 1


def test_two_plants_are_alike_and_not_the_same() -> None:
    one = cycles(4, client=0)[0].mean(axis=0)
    two = cycles(4, client=1)[0].mean(axis=0)
    assert (one != two).all()
    assert np.abs(one - two).max() < 12


def test_a_printed_federation_names_units() -> None:
    assert re.search(r'name = "temperature"\nunit = "°C"', federation_file("plant"))

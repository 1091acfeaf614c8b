"""Changes between two spans: what is found, with the chance of it, and what is said where nothing
can be known."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from shoal.cli.main import shoal
from shoal.config.settings import load_config
from shoal.errors import SettingsError
from shoal.kernels.chances import two_sided
from shoal.protocol.events import ClusterEventMessage
from shoal.protocol.history import (
    COARSE_S,
    DAY_S,
    FINE_S,
    PLACE_UNKNOWN,
    PLACES_S,
    HistoryBin,
    HistoryNames,
    pack_table,
)
from shoal.protocol.topics import ensure_topics
from shoal.server_node.history.changes import PastEvent, find_changes, spans_of
from shoal.server_node.history.series import Series, difference, unrolled
from shoal.server_node.history.store import (
    HISTORY_FILE,
    HistoryReader,
    HistoryRecord,
    HistoryStore,
)
from shoal.server_node.outputs.changes_command import lines_of
from shoal.transports import open_log
from tests.house.small_federation import write_federation

START = 1_800_000_000 // DAY_S * DAY_S
DAYS = 20


# Statistics.


def test_chances_of_students_t_agree_with_the_table() -> None:
    found = two_sided(
        np.array([12.706, 2.228, 4.587, 0.0, np.inf]), np.array([1.0, 10.0, 10.0, 3.0, 5.0])
    )
    assert found.tolist() == pytest.approx([0.05, 0.05, 0.001, 1.0, 0.0], rel=2e-3)


def test_a_circular_feature_is_compared_the_shorter_way_round() -> None:
    rng = np.random.default_rng(3)
    bins = 40
    starts = np.arange(bins) * FINE_S
    before, after = (
        Series(starts + at * FINE_S, (mean + rng.normal(0, 0.01, (bins, 1))) % 1.0, np.ones(bins))
        for at, mean in ((0, 0.98), (bins, 1.03))
    )
    found = difference(*unrolled(before, after, [0]), FINE_S)
    assert found.moved[0] == pytest.approx(0.05, abs=0.01)
    assert found.chance[0] < 1e-3


def test_a_circular_feature_is_unrolled_by_the_bins_in_which_it_is_known() -> None:
    starts = np.arange(3) * FINE_S
    one = Series(starts, np.array([[0.98], [np.nan], [0.02]]), np.ones(3))
    both = unrolled(one, one, [0])
    assert both[0].means[[0, 2], 0] % 1.0 == pytest.approx([0.98, 0.02])
    assert abs(both[0].means[0, 0] - both[0].means[2, 0]) == pytest.approx(0.04)
    assert np.isnan(both[0].means[1, 0])


def autocorrelated(rng: Any, bins: int, series: int, r: float) -> Any:
    """(bins, series) of an AR(1) of deviation 1."""
    values = rng.normal(size=(bins, series))
    for at in range(1, bins):
        values[at] = r * values[at - 1] + np.sqrt(1 - r * r) * values[at]
    return values


@pytest.mark.parametrize("r", [0.0, 0.5, 0.8, 0.95])
def test_a_chance_is_what_it_says_however_alike_successive_bins_are(r: float) -> None:
    """Of 4 000 differences where nothing has changed; a t-test without correction finds up to 60 %
    below 5 %."""
    values = autocorrelated(np.random.default_rng(11), 56, 4000, r)
    at = FINE_S * np.arange(56)
    halves = [Series(at[some], values[some], np.ones(28)) for some in (slice(0, 28), slice(28, 56))]
    chance = difference(*halves, FINE_S).chance
    assert 0.015 < np.mean(chance < 0.05) < 0.06
    assert np.mean(chance < 0.01) < 0.015
    assert np.mean(chance < 0.001) < 0.005


def test_a_day_that_is_covered_unevenly_is_no_change() -> None:
    """The later span has half a day more; day and night differ by six deviations."""
    rng = np.random.default_rng(12)
    at = PLACES_S * np.arange(30)
    values = rng.normal(size=(30, 500)) + 6 * (at % DAY_S < DAY_S / 2)[:, None]
    spans = [
        Series(at[some], values[some], np.ones(len(at[some])))
        for some in (slice(0, 14), slice(14, 30))
    ]
    found = difference(*spans, PLACES_S)
    assert np.mean(found.chance < 0.01) < 0.02
    shifted = spans[1]._replace(means=spans[1].means + 3)
    moved = difference(spans[0], shifted, PLACES_S)
    assert np.mean(moved.chance < 0.001) > 0.9
    assert moved.moved.mean() == pytest.approx(3, abs=0.1)


def test_few_bins_constant_bins_and_bins_without_spread_have_no_false_chance() -> None:
    few = Series(np.arange(3), np.ones((3, 2)), np.ones(3))
    assert difference(few, few, 1).chance.tolist() == [1.0, 1.0]
    at = np.arange(20)
    flat, higher = (Series(at, np.full((20, 1), level), np.ones(20)) for level in (1.0, 2.0))
    assert difference(flat, flat, 1).chance.tolist() == [1.0]
    assert difference(flat, higher, 1).chance.tolist() == [0.0]
    none = Series(at[:0], np.empty((0, 1)), np.empty(0))
    assert difference(none, flat, 1).chance.tolist() == [1.0]


# A history in which cluster 1 moves, cluster 2 grows, 3 is new and 4 is gone, from the middle on.


def a_history(contract: Any, seed: int = 5, changed: bool = True, first: int = START) -> list[Any]:
    """The bins of `DAYS` days."""
    rng = np.random.default_rng(seed)
    origin = (contract.federation, contract.digest, contract.models[0].name)
    messages: list[Any] = [
        HistoryNames(
            *origin,
            ["attic", "cellar"],
            [[1, "day", ""], [2, "", "warm low"], [3, "", ""], [4, "", ""]],
        )
    ]
    level = autocorrelated(rng, DAYS * 4, 2, 0.5) * 100
    for place in range(DAYS * DAY_S // PLACES_S):
        start = first + place * PLACES_S
        late = changed and place >= DAYS * 2
        counts = {1: 400, 2: 200, 4: 50}
        if late:
            counts = {1: 400, 2: 300, 3: 100}
        noisy = {identity: int(n * rng.uniform(0.9, 1.1)) for identity, n in counts.items()}
        flat = [number for pair in noisy.items() for number in pair]
        for half in range(12):
            at = start + half * COARSE_S
            messages.append(HistoryBin.of(*origin, COARSE_S, at, 1, flat, [0, 1], []))
        places = [
            [1, 5000 + 400 * late + level[place, 0], 3000, noisy[1]],
            [2, 2000 + level[place, 1], 7000, noisy[2]],
        ]
        cells = [
            [client, rows, n // 2 if rows != 2 else n - 100 if client else 100]
            for client in (0, 1)
            for rows, n in noisy.items()
        ]
        whole = [number for identity, n in noisy.items() for number in (identity, 12 * n)]
        pairs = [number for cell in cells for number in cell]
        counted = HistoryBin.of(*origin, PLACES_S, start, 1, whole, [0, 1], pairs)
        table = pack_table(np.array(places, dtype=np.int64))
        messages.append(replace(counted, places=table, features=2))
    messages.append(
        HistoryBin.of(*origin, FINE_S, first + DAYS * DAY_S - FINE_S, 1, [1, 1], [0, 1], [])
    )
    return messages


EVENTS = [
    PastEvent(START + 10 * DAY_S, "parted", 3, 2),
    PastEvent(START + 10 * DAY_S, "merged", 4, 1),
    PastEvent(START - 5 * DAY_S, "gone", 4, None),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_federation(tmp_path)


def reader_of(file: Path, messages: list[Any]) -> HistoryReader:
    with closing(HistoryStore(load_config(file).resolved, file.parent / HISTORY_FILE)) as store:
        store.apply([HistoryRecord(message.record_key, message) for message in messages])
    return HistoryReader(file.parent / HISTORY_FILE)


def a_folder(parent: Path) -> Path:
    (parent / "new").mkdir()
    return parent / "new"


def test_every_kind_of_change_is_found_with_its_client_and_its_chance(file: Path) -> None:
    contract = load_config(file).contract
    model = contract.models[0].name
    reader = reader_of(file, a_history(contract))
    spans = spans_of(reader, model)
    assert [spans.after.first, spans.after.end] == [START + 10 * DAY_S, START + 20 * DAY_S]
    found = find_changes(reader, contract, model, spans, EVENTS)
    (new,) = found.new
    (gone,) = found.gone
    assert (new.cluster, new.kind, new.other) == (3, "parted", "cluster 2 (warm low)")
    assert new.share == pytest.approx(1 / 8, abs=0.01)
    assert new.clients == [("attic", 0.5), ("cellar", 0.5)]
    assert (gone.cluster, gone.kind, gone.other) == (4, "merged", 'cluster 1 "day"')
    moved = [cluster for cluster in found.moved if cluster.chance < 0.01]
    feature = contract.features[0]
    assert [(cluster.title, cluster.feature) for cluster in moved] == [
        ('cluster 1 "day"', feature.name)
    ]
    assert moved[0].by == pytest.approx(0.04 * (feature.high - feature.low), rel=0.3)
    shares = {cluster.cluster: cluster for cluster in found.shares if cluster.chance < 0.01}
    assert shares[2].clients[0][0] == "cellar", "all of the growth comes from there"
    assert {1, 2} == set(shares)
    text = "\n".join(lines_of(found))
    assert "cluster 3, parted from cluster 2" in text
    assert "(warm low): 12." in text
    assert f'cluster 1 "day": {feature.name} +' in text
    assert "chance below 0.01 %" in text


@pytest.mark.parametrize(("unknown_bins", "compared"), [(DAYS * 2, False), (DAYS, True)])
def test_a_feature_is_compared_in_the_bins_in_which_its_mean_is_known(
    file: Path, unknown_bins: int, compared: bool
) -> None:
    contract = load_config(file).contract
    model = contract.models[0].name
    messages = a_history(contract, changed=False)
    for place, message in enumerate(messages):
        if isinstance(message, HistoryBin) and message.places is not None:
            table = message.place_table()
            if (message.start - START) // PLACES_S < unknown_bins:
                # Cluster 2 on the first feature, as one that has just parted.
                table[1, 1] = PLACE_UNKNOWN
                messages[place] = replace(message, places=pack_table(table))
    reader = reader_of(file, messages)
    found = find_changes(reader, contract, model, spans_of(reader, model), ())
    pairs = {(moved.cluster, moved.feature): moved for moved in found.moved}
    warm, damp = (feature.name for feature in contract.features[:2])
    assert ((2, warm) in pairs) == compared
    assert {(1, warm), (1, damp), (2, damp)} <= set(pairs)
    if compared:
        span = contract.features[0].high - contract.features[0].low
        assert pairs[2, warm].before == pytest.approx(
            contract.features[0].low + 0.2 * span, abs=0.02 * span
        )
        assert pairs[2, warm].chance > 0.01


def test_nothing_is_found_where_nothing_has_changed(file: Path) -> None:
    contract = load_config(file).contract
    model = contract.models[0].name
    found = 0
    for seed in range(20):
        reader = reader_of(file, a_history(contract, 100 + seed, changed=False))
        changes = find_changes(reader, contract, model, spans_of(reader, model), ())
        assert changes.new == changes.gone == []
        assert changes.compared == 5, "two features that vary, and three shares"
        found += any(cluster.chance < 0.05 for cluster in (*changes.moved, *changes.shares))
    assert found <= 3, "one page of twenty has something below 5 %"


def test_spans_are_those_asked_for_and_such_that_cannot_be_are_refused(file: Path) -> None:
    contract = load_config(file).contract
    model = contract.models[0].name
    reader = reader_of(file, a_history(contract))
    later = spans_of(reader, model, (START + 15 * DAY_S, START + 18 * DAY_S))
    assert [*later.before, *later.after] == [START + day * DAY_S for day in (12, 15, 15, 18)]
    apart = spans_of(reader, model, (START + 15 * DAY_S, None), (START, START + 5 * DAY_S))
    assert [*apart.before, *apart.after] == [START + day * DAY_S for day in (0, 5, 15, 20)]
    recent = spans_of(reader, model, (START + DAYS * DAY_S - 6 * 3600, None))
    assert recent.width_s == FINE_S
    for after, before in (
        ((START + 9 * DAY_S, START + 3 * DAY_S), (None, None)),
        ((START, START + DAY_S), (None, None)),
        ((START + 5 * DAY_S, None), (START, START + 6 * DAY_S)),
    ):
        with pytest.raises(SettingsError, match=r"empty|overlap"):
            spans_of(reader, model, after, before)
    config = load_config(write_federation(a_folder(file.parent)))
    path = config.server.folder / HISTORY_FILE
    path.parent.mkdir(parents=True)
    with (
        closing(open_log(config.log)) as log,
        closing(HistoryStore(config.resolved, path)) as store,
    ):
        ensure_topics(log, config.contract, config.log)
        store.catch_up(log)
    with pytest.raises(SettingsError, match="has no history yet"):
        spans_of(HistoryReader(path), model)


def test_with_few_bins_only_what_is_new_or_gone_is_said(file: Path) -> None:
    contract = load_config(file).contract
    model = contract.models[0].name
    reader = reader_of(file, a_history(contract))
    spans = spans_of(reader, model, (START + 10 * DAY_S, START + 12 * DAY_S))
    found = find_changes(reader, contract, model, spans, ())
    assert [(cluster.cluster, cluster.kind) for cluster in found.new] == [(3, "new")]
    assert [(cluster.cluster, cluster.kind) for cluster in found.gone] == [(4, "quiet")]
    assert found.compared == 0
    assert "fewer than 12 nothing" in lines_of(found)[-1]


# The command.


def shoal_changes(*arguments: object) -> Result:
    return CliRunner().invoke(shoal, ["changes", *map(str, arguments)])


@pytest.fixture
def filled(file: Path) -> Path:
    """A federation whose log has the history and an event."""
    config = load_config(file)
    contract = config.contract
    event = ClusterEventMessage(
        "m/9/0",
        "parted",
        contract.federation,
        contract.models[0].name,
        **{
            "version": 9,
            "readings": 9,
            "at": START + 99 * DAY_S,
            "reading_at": START + 10 * DAY_S,
            "cluster": 3,
        },
        other=2,
    )
    with closing(open_log(config.log)) as log:
        ensure_topics(log, contract, config.log)
        for history_bin in a_history(contract):
            log.publish(
                contract.history_topic,
                history_bin.encode(),
                history_bin.record_key,
                history_bin.headers(),
            )
        log.publish(contract.events_topic, event.encode(), b"m", event.headers())
        log.flush()
    return file


def test_the_command_prints_text_and_json_and_draws_pictures(filled: Path, tmp_path: Path) -> None:
    text = shoal_changes("--config", filled)
    assert text.exit_code == 0, text.output
    assert "parted from cluster 2" in text.stdout, "by the time of readings, not by the clock"
    assert "Share moved" in text.stdout
    found = json.loads(
        shoal_changes("--config", filled, "--format", "json", "--from", "2027-01-25").stdout
    )
    assert [cluster["cluster"] for cluster in found["new"]] == [3]
    assert found["moved"][0]["chance"] < 0.01
    written = shoal_changes("--config", filled, "--out", tmp_path / "changes.txt")
    told = json.loads(shoal_changes("--config", filled, "--format", "json").stdout)
    number = sum(len(told[name]) for name in ("new", "gone", "moved", "share_moved"))
    assert (written.stdout, written.stderr) == (
        "",
        f"{tmp_path / 'changes.txt'}: {number} changes\n",
    )
    assert (tmp_path / "changes.txt").read_text() == text.stdout
    pytest.importorskip("matplotlib")
    assert (
        shoal_changes("--config", filled, "--format", "svg", "--out", tmp_path / "c.svg").exit_code
        == 0
    )
    size = [
        float(ET.parse(tmp_path / "c.svg").getroot().attrib[side].removesuffix("pt"))
        for side in ("width", "height")
    ]
    assert size[0] > size[1] > 100


def refused(*arguments: object) -> str:
    return str(shoal_changes(*arguments).exception)


def test_the_command_says_what_is_missing(filled: Path, file: Path, tmp_path: Path) -> None:
    assert "a picture needs --out FILE.svg" in refused("--config", filled, "--format", "svg")
    assert "no such model" in refused("--config", filled, "--model", "none")
    assert "cannot be written" in refused("--config", filled, "--out", tmp_path / "no" / "a.txt")
    new = write_federation(a_folder(tmp_path))
    config = load_config(new)
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
    assert "has no history yet" in refused("--config", new)

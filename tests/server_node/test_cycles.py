"""Cycles: features that follow the time of the day or the day of the week are found, and nothing
that only sways."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from shoal.cli.main import shoal
from shoal.config.settings import load_config
from shoal.kernels.chances import gamma_tail
from shoal.protocol.history import (
    COARSE_S,
    DAY_S,
    PLACE_UNKNOWN,
    PLACES_S,
    HistoryBin,
    HistoryNames,
    pack_table,
)
from shoal.protocol.topics import ensure_topics
from shoal.server_node.history.cycles import (
    Cycle,
    cycles_of,
    find_cycles,
    hidden_periods,
    lines_of,
)
from shoal.server_node.outputs.web import page_server
from shoal.server_node.report.status import StatusBoard
from shoal.transports import open_log
from tests.house.small_federation import write_federation
from tests.server_node.test_changes import autocorrelated, reader_of
from tests.server_node.web_browser import Browser
from tests.server_node.web_statuses import a_snapshot, a_status, some_nodes

MONDAY = 20_836 * DAY_S
"""2027-01-18, seconds since 1970"""
DAYS = 70


def chances(series: Any, phases: int) -> Any:
    """(f,) the chance of the cycle of each column of a series (n, f)."""
    found = cycles_of(series, phases)
    assert found is not None
    return found.chances


def test_a_cycle_is_found_and_what_it_explains_is_what_was_put_in() -> None:
    rng = np.random.default_rng(3)
    noise = autocorrelated(rng, 4 * DAYS, 40, 0.5)
    day = np.tile([0.0, 1.0, 0.0, -1.0], DAYS)[:, None]
    found = cycles_of(noise + day, 4)
    assert found is not None
    assert (found.chances < 0.01).all()
    assert np.abs(found.means[1] - 1).mean() < 0.2
    assert found.shares.mean() == pytest.approx(0.5 / 1.5, abs=0.05)


def test_what_sways_without_a_clock_has_the_chance_that_is_said() -> None:
    rng = np.random.default_rng(4)
    swaying = autocorrelated(rng, 4 * 30, 300, 0.9)
    assert (chances(swaying, 4) < 0.01).sum() <= 8, "one in a hundred, and two standard deviations"
    steps = np.cumsum(rng.normal(size=(7 * 20, 300)), axis=0)
    assert (chances(steps, 7) < 0.01).sum() <= 8
    # about a day long, with a phase that is kept for some days
    wandering = rng.normal(size=(4 * 30 + 200, 300))
    for at in range(2, len(wandering)):
        wandering[at] -= 0.97**2 * wandering[at - 2]
    assert (chances(wandering[200:], 4) < 0.01).sum() <= 8
    tide = (
        np.sin(2 * np.pi * np.arange(4 * DAYS) * 6 / 25)[:, None]
        + rng.normal(size=(4 * DAYS, 5)) / 3
    )
    assert (chances(tide, 4) > 0.2).all(), "a tide is no day"


def test_the_tail_of_a_gamma_variable_agrees_with_the_table() -> None:
    # shape 1: exponential; 1/2 and 3/2: half of chi-square with 1 and 3 degrees of freedom
    found = gamma_tail(np.array([1.0, 0.5, 1.5, 1.0]), np.array([3.0, 6.635 / 2, 11.345 / 2, 40.0]))
    assert found == pytest.approx([np.exp(-3), 0.01, 0.01, np.exp(-40)], rel=1e-3)


def test_a_constant_feature_and_one_that_only_grows_have_no_cycle() -> None:
    series = np.column_stack([np.full(80, 0.5), np.arange(80.0)])
    found = cycles_of(series, 4)
    assert found is not None
    assert found.chances.tolist() == [1.0, 1.0]
    assert found.shares.tolist() == [0.0, 0.0]


def a_history(contract: Any, days: int) -> Iterator[Any]:
    """Temperature follows the day, humidity the week."""
    rng = np.random.default_rng(5)
    origin = (contract.federation, contract.digest, contract.models[0].name)
    for place in range(4 * days):
        start = MONDAY + place * PLACES_S
        warm = 5000 + (0, 0, 1500, 0)[place % 4] + rng.normal() * 300
        damp = 6000 - 2000 * (place // 4 % 7 == 0) + rng.normal() * 300
        table = np.rint([[1, warm, damp, 300], [2, warm + 200, damp, 100]]).astype(np.int64)
        counted = HistoryBin.of(*origin, PLACES_S, start, 1, [1, 300, 2, 100], [0, 400], [])
        yield replace(counted, places=pack_table(table), features=2)
        yield HistoryBin.of(*origin, COARSE_S, start, 1, [1, 300, 2, 100], [0, 400], [])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_federation(tmp_path)


def test_the_day_and_the_week_of_each_feature_are_found_in_its_unit(file: Path) -> None:
    contract = load_config(file).contract
    first, second = contract.features[:2]
    found = find_cycles(
        reader_of(file, list(a_history(contract, DAYS))), contract, contract.models[0].name
    )
    certain = {(cycle.feature, cycle.period): cycle for cycle in found if cycle.chance < 0.01}
    assert set(certain) == {(first.name, "day"), (second.name, "week")}
    day = certain[first.name, "day"]
    week = certain[second.name, "week"]
    assert day.profile[2] - day.profile[0] == pytest.approx(
        0.15 * (first.high - first.low), rel=0.1
    )
    assert np.argmin(week.profile) == 0
    noise = 0.03 * (first.high - first.low)
    assert day.spread == pytest.approx([noise] * 4, rel=0.3), "what the day leaves"
    assert day.periods >= DAYS - 2
    assert week.periods >= DAYS // 7 - 2
    assert "lowest Monday" in week.text()
    assert "highest 12:00 to 18:00" in day.text()
    turned = contract.model_copy(
        update={"features": (first, second.model_copy(update={"kind": "circular"}))}
    )
    found = find_cycles(
        reader_of(file, list(a_history(contract, DAYS))), turned, contract.models[0].name
    )
    assert {cycle.feature for cycle in found} == {first.name}, (
        "a mean of directions is no direction"
    )
    alone = next(cycle for cycle in found if cycle.period == "day")
    assert day.chance / alone.chance == pytest.approx(2), "of any that was looked at: half as many"


def test_a_cycle_is_that_of_the_clusters_whose_means_are_known(file: Path) -> None:
    contract = load_config(file).contract
    model = contract.models[0].name
    first, second = contract.features[:2]
    whole = list(a_history(contract, DAYS))
    messages = []
    for message in whole:
        if message.places is not None:
            table = message.place_table()
            # A mean that was another cluster's, as of one that has just parted.
            table[1, 1] = PLACE_UNKNOWN
            # Nothing is known of the second feature in the first half.
            if message.start < MONDAY + DAYS // 2 * DAY_S:
                table[:, 2] = PLACE_UNKNOWN
            messages.append(replace(message, places=pack_table(table)))
        else:
            messages.append(message)
    found = {
        (cycle.feature, cycle.period): cycle
        for cycle in find_cycles(reader_of(file, messages), contract, model)
    }
    assert found[first.name, "day"].periods >= DAYS - 2, "a gap of one is none of the other"
    assert found[second.name, "day"].periods <= DAYS // 2
    lowest = first.low + 0.5 * (first.high - first.low)
    noise = 0.01 * (first.high - first.low)
    assert found[first.name, "day"].profile[0] == pytest.approx(lowest, abs=noise)


def test_a_short_history_says_so(file: Path) -> None:
    contract = load_config(file).contract
    model = contract.models[0].name
    assert find_cycles(reader_of(file, list(a_history(contract, 7))), contract, model) == []
    assert "takes 8 whole days" in lines_of(model, [])[0]
    assert (
        "below 0.1 %"
        in Cycle("warm", "", "day", [1.0, 2.0, 1.0, 1.0], [0.1] * 4, 0.5, 9, 0.0).text()
    )


@pytest.mark.parametrize(
    ("span_s", "hidden"),
    [
        (PLACES_S, set()),
        (PLACES_S + COARSE_S, {"day"}),
        (DAY_S + COARSE_S, {"day", "week"}),
    ],
)
def test_a_period_whose_phases_are_shorter_than_an_update_is_not_looked_at_and_that_is_said(
    file: Path, span_s: int, hidden: set[str]
) -> None:
    contract = load_config(file).contract
    model = contract.models[0].name
    names = HistoryNames(contract.federation, contract.digest, model, [], [], update_s=span_s)
    reader = reader_of(file, [*a_history(contract, DAYS), names])
    found = find_cycles(reader, contract, model)
    assert {cycle.period for cycle in found} == {"day", "week"} - hidden
    periods = hidden_periods(reader, model)
    assert set(periods) == hidden
    told = [line for line in lines_of(model, found, hidden=periods) if "not looked at" in line]
    assert len(told) == len(hidden)
    if hidden == {"day"}:
        assert told == [
            "The day is not looked at: the readings of an update span 6.5 hours, more than a phase"
            " of it (6)."
        ]


def test_the_command_shows_what_the_log_has(file: Path) -> None:
    config = load_config(file)
    contract = config.contract
    with closing(open_log(config.log)) as log:
        ensure_topics(log, contract, config.log)
        for history_bin in a_history(contract, DAYS):
            log.publish(
                contract.history_topic,
                history_bin.encode(),
                history_bin.record_key,
                history_bin.headers(),
            )
        log.flush()
    text = (
        CliRunner().invoke(shoal, ["history", "cycles", "--config", str(file)]).stdout.splitlines()
    )
    assert len(text) == 4
    assert text[-1].endswith("below 1 %.")
    found = json.loads(
        CliRunner().invoke(shoal, ["history", "cycles", "--config", str(file), "--json"]).stdout
    )
    assert len(found["cycles"]) == 2 * min(2, len(contract.features))


def test_the_page_draws_what_follows_the_clock_and_nothing_else(
    file: Path, browser: Browser
) -> None:
    contract = load_config(file).resolved
    model = next(iter(contract.models))
    snapshot = a_snapshot(contract.contract, some_nodes(2, 2, 40), model=model)
    history = reader_of(file, list(a_history(contract.contract, DAYS)))
    web = page_server(
        StatusBoard(a_status(contract.contract, [snapshot])), CollectorRegistry(), history=history
    )
    port = web.start()
    try:
        tab = browser.tab()
        tab.open(f"http://127.0.0.1:{port}/")
        tab.until("document.querySelectorAll('#cycles-list li').length === 2")
        times = "[...document.querySelectorAll('#shares .times')].map(part => part.textContent)"
        tab.until(f"{times}.includes('by day 75 %, at night 75 %, at weekends 75 %')")
        features = sorted(feature.name for feature in contract.features)
        # Folded, it names the features; each with what is usual when it is opened.
        named = tab.value_of("document.getElementById('cycles-features').textContent")
        assert sorted(named.split(", ")) == features
        tab.unfold()
        tab.shows("What follows the clock")
        words = tab.value_of(
            "[...document.querySelectorAll('#cycles-list span')].map(one => one.textContent)"
        )
        assert sorted(text.split(":")[0] for text in words) == features
        marks = tab.value_of(
            "[...document.querySelectorAll('#cycles-list path')].map(one => one.getBBox().width)"
        )
        assert sorted(marks) == [38, 38, 68, 68], "four phases of a day, seven of a week"
        assert tab.console_errors() == []
    finally:
        web.stop()


def test_the_page_says_that_a_cluster_of_earlier_weeks_has_none_of_the_newest_readings(
    file: Path, browser: Browser
) -> None:
    contract = load_config(file).resolved
    model = next(iter(contract.models))
    snapshot = a_snapshot(contract.contract, some_nodes(2, 2, 40), model=model)
    bins = []
    newest_weeks = MONDAY + (DAYS - 30) * DAY_S
    of_one_cluster = pack_table(np.array([[1, 400]]))
    for counted in a_history(contract.contract, DAYS):
        is_new = counted.width_s == COARSE_S and counted.start >= newest_weeks
        bins.append(replace(counted, clusters=of_one_cluster) if is_new else counted)
    web = page_server(
        StatusBoard(a_status(contract.contract, [snapshot])),
        CollectorRegistry(),
        history=reader_of(file, bins),
    )
    port = web.start()
    try:
        tab = browser.tab()
        tab.open(f"http://127.0.0.1:{port}/")
        times = "[...document.querySelectorAll('#shares .times')].map(part => part.textContent)"
        tab.until(f"{times}.includes('by day 100 %, at night 100 %, at weekends 100 %')")
        assert "none in the newest 28 days" in tab.value_of(times)
    finally:
        web.stop()

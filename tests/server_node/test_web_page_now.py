"""What the page says at first sight: clusters now, what changed, whether it is usual, each cluster
over time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from shoal.config.resolved import resolve
from shoal.protocol.history import COARSE_S, DAY_S, FINE_S, NO_CLUSTER, HistoryBin, HistoryNames
from shoal.server_node.history.store import (
    HISTORY_FILE,
    HistoryReader,
    HistoryRecord,
    HistoryStore,
)
from shoal.server_node.outputs.web import page_server
from shoal.server_node.report.status import ClientStatus, RecentEvent, ServerStatus, StatusBoard
from tests.server_node.test_anomalies import HOT, NIGHT, OUTAGE, RATE, Office
from tests.server_node.web_browser import Browser, Tab
from tests.server_node.web_page_checks import LOWEST_TEXT_CONTRAST, OVERFLOWING
from tests.server_node.web_statuses import NOW, a_contract, a_snapshot, a_status, some_nodes

CONTRACT = a_contract(4)
NEWEST = int(NOW) // COARSE_S * COARSE_S
ACTIVE = (
    ClientStatus("attic", NOW + 3600, 9, 900, 2.0),
    ClientStatus("cellar", NOW + 3600, 9, 900, 2.0),
)
"""the page's clock runs during the test: they are observed an hour in the future"""
EVENTS = (
    RecentEvent(NOW - 7200, "birth", 0, None, "cluster 0 is new: 60 % of the recent readings"),
    RecentEvent(
        NOW - 3600,
        "parted",
        1,
        0,
        "cluster 1 has parted from cluster 0: 20 % of the recent readings",
    ),
    RecentEvent(
        NOW - 60, "quiet", 2, None, "cluster 2 is quiet: no readings fall to it at present"
    ),
)
ROWS = "[...document.querySelectorAll('#timeline-rows tr')]"
MOSTLY = r"mostly -?[\d.,]+ to [\d.,]+ \S+; all others: mostly -?[\d.,]+ to [\d.,]+ \S+"
DRAWN = f"{ROWS}.some(row => row.querySelector('path').getAttribute('d'))"
ANSWERS = "Object.fromEntries([...document.querySelectorAll('#answers div')].map(row => "
ANSWERS += "[row.children[0].textContent, [row.className, row.children[2].textContent]]))"


def a_bin(
    start: int, clusters: dict[int, int], width: int, cells: tuple[int, ...] = ()
) -> HistoryBin:
    flat = [number for pair in clusters.items() for number in pair]
    return HistoryBin.of(
        CONTRACT.federation, CONTRACT.digest, "fcac", width, start, 1, flat, [0, 1], list(cells)
    )


def days_before(days: int) -> int:
    return int((datetime.fromtimestamp(NEWEST) - timedelta(days=days)).timestamp())


def history(
    folder: Path,
    now: dict[int, int],
    earlier: dict[int, int],
    days: int = 28,
    clients: tuple[str, ...] = (),
    newest_day: bool = False,
) -> HistoryReader:
    """A history that has the newest half hour and the same one of earlier days; `clients` are more
    than two. With `newest_day`, a bin of the day is there for shares of all readings."""
    cells = (0, 0, 30, 0, 1, 10, 1, 2, 40)
    bins: list[HistoryBin | HistoryNames] = [
        a_bin(NEWEST, now, FINE_S, cells),
        a_bin(NEWEST, now, COARSE_S),
    ]
    bins += [a_bin(days_before(back), earlier, COARSE_S) for back in range(1, days + 1)]
    bins += [a_bin(NEWEST - FINE_S * back, earlier, FINE_S) for back in range(12, 75)]
    bins += [a_bin(NEWEST - COARSE_S * back, earlier, COARSE_S) for back in range(1, 14)]
    if newest_day:
        bins.append(a_bin(NEWEST // DAY_S * DAY_S, now, DAY_S))
    clusters = [[identity, "", f"label {identity}"] for identity in range(9)]
    bins.append(
        HistoryNames(
            CONTRACT.federation, CONTRACT.digest, "fcac", ["attic", "cellar", *clients], clusters
        )
    )
    store = HistoryStore(resolve(CONTRACT), folder / HISTORY_FILE)
    store.apply([HistoryRecord(history_bin.record_key, history_bin) for history_bin in bins])
    store.close()
    return HistoryReader(folder / HISTORY_FILE)


def the_status(clusters: int = 3, **parts: Any) -> ServerStatus:
    status = a_status(
        CONTRACT, [a_snapshot(CONTRACT, some_nodes(4, clusters, 40 * clusters))], **parts
    )
    return replace(
        status,
        models={name: replace(model, events=EVENTS) for name, model in status.models.items()},
    )


def parted_from(status: ServerStatus, identity: int, parent: int) -> ServerStatus:
    """The status, of whose clusters one has parted from another."""
    model = status.models["fcac"]
    clusters = model.lineage.clusters | {
        identity: replace(model.lineage.clusters[identity], parent=parent)
    }
    return replace(
        status, models={"fcac": replace(model, lineage=replace(model.lineage, clusters=clusters))}
    )


NOT_PUBLISHED = "Rejected readings are not published: each client's own metrics and log have them."


@contextmanager
def shown(
    browser: Browser, status: ServerStatus, past: HistoryReader | None = None
) -> Iterator[tuple[Tab, Any]]:
    """A page that shows `status`, and what stops its server."""
    web = page_server(StatusBoard(status), CollectorRegistry(), history=past)
    port = web.start()
    try:
        tab = browser.tab()
        tab.resize(1280, 1000)
        tab.open(f"http://127.0.0.1:{port}/")
        tab.until("document.querySelectorAll('#answers div').length === 4")
        # what stands low on the page comes last
        tab.until("document.querySelector('#privacy .badge') !== null")
        yield tab, web.stop
        assert [
            error for error in tab.console_errors() if "ERR_CONNECTION_REFUSED" not in error
        ] == []
    finally:
        web.stop()


def test_it_says_how_many_clusters_there_are_what_changed_and_that_all_is_usual(
    browser: Browser, tmp_path: Path
) -> None:
    past = history(tmp_path, {0: 60, 1: 20, 2: 20}, {0: 60, 1: 20, 2: 20})
    with shown(browser, the_status(clients=ACTIVE), past) as (tab, _):
        assert tab.value_of("document.getElementById('now-count').textContent") == "3 clusters now"
        assert tab.value_of("document.getElementById('now-known').textContent") == "3 known"
        assert tab.value_of("document.getElementById('changed').textContent").endswith(
            EVENTS[1].text
        )
        assert EVENTS[0].text in tab.value_of("document.getElementById('before').textContent")
        answers = tab.value_of(ANSWERS)
        assert answers["Usual?"][0] == "good"
        assert answers["Usual?"][1].startswith("Yes: 100 % as on earlier w")
        assert answers["New?"] == [
            "good",
            (
                "0 % of the last hour's readings belonged to no cluster known then, up to 0 % is"
                " usual."
            ),
        ]
        most = "100 % of the newest readings are those of attic."
        assert answers["Complete?"] == [
            "good",
            f"2 of 2 clients active, no message rejected. {most}",
        ]
        assert NOT_PUBLISHED in tab.value_of("document.getElementById('clients-note').innerText")
        assert answers["Private?"] == [
            "good",
            "ε 4 per reading. Formal guarantee for every reading.",
        ]


def test_what_is_unusual_new_and_inactive_is_marked_by_a_sign_and_words(
    browser: Browser, tmp_path: Path
) -> None:
    past = history(tmp_path, {0: 10, 2: 20, NO_CLUSTER: 70}, {0: 60, 1: 40})
    inactive = (ACTIVE[0], ClientStatus("roof", NOW - 500, 3, 30, 0.0, rejected=7))
    with shown(browser, the_status(clients=inactive, rejected={"bounds": 2}), past) as (tab, _):
        answers = tab.value_of(ANSWERS)
        assert answers["Usual?"][0] == "warn"
        assert answers["Usual?"][1].startswith("No: 10 % as on earlier")
        assert answers["New?"][0] == "warn"
        assert answers["New?"][1].startswith(
            "70 % of the last hour's readings belonged to no cluster known then"
        )
        rejected = "2 messages rejected, 7 readings rejected by clients"
        most = "100 % of the newest readings are those of attic."
        assert answers["Complete?"] == [
            "warn",
            f"roof inactive; 1 of 2 clients active, {rejected}. {most}",
        ]
        cells = "[...document.querySelectorAll('#clients tr')].map(row => row.cells[3].textContent)"
        assert tab.value_of(cells) == ["Rejected", "–", "7"]
        signs = (
            "[...document.querySelectorAll('#answers .warn .sign')].map(sign => sign.textContent)"
        )
        assert tab.value_of(signs) == ["!", "!", "!"]


def test_a_cluster_that_merges_away_within_a_second_is_no_headline(browser: Browser) -> None:
    brief = (
        RecentEvent(NOW - 31, "parted", 7, 0, "cluster 7 has parted from cluster 0"),
        RecentEvent(NOW - 30, "merged", 7, 0, "cluster 7 has merged into cluster 0"),
    )
    status = the_status(clients=ACTIVE)
    models = {
        name: replace(model, events=(*EVENTS, *brief)) for name, model in status.models.items()
    }
    with shown(browser, replace(status, models=models)) as (tab, _):
        newest = tab.value_of("document.getElementById('changed').textContent")
        assert newest.endswith(EVENTS[1].text)
        before = tab.value_of("document.getElementById('before').textContent")
        assert before.endswith(EVENTS[0].text)
        # The list of all events has them.
        assert "cluster 7 has merged" in tab.value_of("document.body.textContent")


def test_a_late_cluster_is_dated_by_its_readings_and_one_at_a_bound_has_no_value(
    browser: Browser,
) -> None:
    readings = int(NOW) // 60 * 60 - 4 * 86_400
    born = RecentEvent(
        readings, "birth", 7, None, "cluster 7 is new", readings + 3 * 3600, readings + 86_400
    )
    nodes = some_nodes(4, 3, 120)
    # All readings of the first cluster are below what the contract allows.
    nodes["weight"][nodes["cluster"] == 0, 0] = 0.0
    nodes["centre"][0, 0] = 0.0
    status = a_status(CONTRACT, [a_snapshot(CONTRACT, nodes)], clients=ACTIVE)
    models = {name: replace(model, events=(born,)) for name, model in status.models.items()}
    with shown(browser, replace(status, models=models)) as (tab, _):
        figures = tab.value_of("document.getElementById('clusters').textContent")
        feature = CONTRACT.features[0]
        assert f"≤ {feature.low:g}" in figures.replace(".0", "")
        assert figures.count("≤") == 1
        headline = tab.value_of("document.getElementById('changed').textContent")
        listed = tab.value_of("document.querySelector('#events li').textContent")
        hours = [readings + 3600 * after for after in (0, 3, 24)]
        expected = tab.value_of(
            f"{hours}.map(moment => new Date(moment * 1000).toLocaleTimeString("
            "'en-GB', { hour: '2-digit', minute: '2-digit' }))"
        )
        found = re.search(r"(\d\d:\d\d) to .*?(\d\d:\d\d) \(found .*?(\d\d:\d\d)\)", headline)
        assert found is not None, headline
        assert list(found.groups()) == expected
        assert listed.replace(" ", "") == headline.replace(" ", "")


def test_clients_have_the_names_that_their_owners_gave_them(
    browser: Browser, tmp_path: Path
) -> None:
    shown_name = 'Büro <b id="planted">Süd</b> & "Nord"'
    past = history(tmp_path, {0: 60, 1: 20, 2: 20}, {0: 60, 1: 20, 2: 20})
    inactive = (ClientStatus("attic", NOW - 500, 3, 30, 0.0), ACTIVE[1])
    status = the_status(clients=inactive, client_names={"attic": shown_name})
    with shown(browser, status, past) as (tab, _):
        answers = tab.value_of(ANSWERS)
        assert answers["Complete?"][1].startswith(f"{shown_name} inactive; 1 of 2 clients")
        assert answers["Complete?"][1].endswith(f" are those of {shown_name}.")
        rows = "[...document.querySelectorAll('#clients tbody .name')].map(of => of.textContent)"
        assert sorted(tab.value_of(rows)) == sorted([shown_name, "cellar"])
        feeds = "[...document.querySelectorAll('#feeds tbody th')].map(of => of.textContent)"
        assert tab.value_of(feeds) == [shown_name, "cellar"]
        fed_by = "document.body.innerText.includes('attic')"
        assert tab.value_of(fed_by) is False, "nowhere is it called otherwise"
        assert tab.value_of("document.getElementById('planted')") is None


def test_what_was_unusual_in_the_time_shown_is_listed_once_it_is_asked_for(
    browser: Browser, tmp_path: Path
) -> None:
    office = Office(CONTRACT)
    hot = office.within(OUTAGE)
    office.cells[hot, 2, NIGHT] = 0
    office.cells[hot, 2, HOT] = RATE
    _, *bins = office.messages()
    clusters: list[list[int | str]] = [[HOT, "", "warm high"], [NIGHT, "", ""]]
    clients = ["attic", "cellar", "server"]
    # At night the readings of the first week were not told apart from others'.
    since = [[NIGHT, OUTAGE.first - 23 * DAY_S]]
    names = HistoryNames(*office.origin, clients, clusters, since)
    store = HistoryStore(resolve(CONTRACT), tmp_path / HISTORY_FILE)
    ended = OUTAGE.end + 5 * 3600
    fine = a_bin(ended - COARSE_S, {NIGHT: 90}, FINE_S)
    kept = [counted for counted in bins if counted.start < ended]
    store.apply([HistoryRecord(message.record_key, message) for message in (names, *kept, fine)])
    store.close()
    three = (*ACTIVE, ACTIVE[0]._replace(client="server"))
    status = the_status(clients=three, client_names={"server": "Büro <Süd>"})
    with shown(browser, status, HistoryReader(tmp_path / HISTORY_FILE)) as (tab, _):
        lines = "[...document.querySelectorAll('#unusual-list li')].map(line => line.textContent)"
        tab.until("document.querySelector('#overview path') !== null")
        assert tab.value_of(lines) == []
        tab.value_of("document.querySelector('#unusual-panel summary').click()")
        tab.until("document.getElementById('unusual-note').textContent !== ''")
        note = "document.getElementById('unusual-note').textContent"
        assert tab.value_of(note).startswith("There are too few earlier times like it (0)")
        day = "[...document.querySelectorAll('#spans button')].find(of => of.title === '1 day')"
        tab.value_of(f"{day}.click()")
        tab.until(f"{lines}.length > 0")
        assert tab.value_of(note).startswith("Nothing else has a chance below 1 %, of ")
        first, *_ = tab.value_of(lines)
        # Of the bins of six hours that the day touches, 30 hours.
        said = "Büro <Süd>: cluster 3 (warm high), 10 %, expected 0 % of its readings; chance "
        assert first.startswith(said), first
        apart = re.search(
            r"those of (\d+) earlier times like it.* cluster 2 is told apart from others since .+,"
            r" and compared with (\d+) times since then alone\.$",
            tab.value_of(note),
        )
        assert apart is not None, tab.value_of(note)
        assert 0 < int(apart[2]) < int(apart[1])


def test_a_source_that_has_ended_is_no_fault(browser: Browser, tmp_path: Path) -> None:
    past = history(tmp_path, {0: 10, 2: 20, NO_CLUSTER: 70}, {0: 60, 1: 40})
    day = a_bin(NEWEST // DAY_S * DAY_S, {0: 60, 1: 40}, DAY_S)
    with closing(HistoryStore(resolve(CONTRACT), tmp_path / HISTORY_FILE)) as store:
        store.apply([HistoryRecord(day.record_key, day)])
    away = tuple(client._replace(last_seen=NOW - 5000, rejected=0) for client in ACTIVE)
    with shown(browser, the_status(clients=away, ended=True), past) as (tab, _):
        answers = tab.value_of(ANSWERS)
        assert answers["New?"] == ["none", "The source has ended: no readings to judge."]
        assert answers["Usual?"] == ["none", "The source has ended: there is nothing to compare."]
        assert (
            tab.value_of("document.querySelector('#now-count').textContent") == "3 clusters found"
        )
        parts = "[...document.querySelectorAll('#shares .quiet')].map(part => part.textContent)"
        # Without the clients of the last hour, beside a share of all readings.
        shares = tab.value_of(parts)
        assert sorted(shares) == ["0 %", "40 %", "60 %"], "of all readings, and not the last hour's"
        # The table below says the same, and remarks nothing about a last hour.
        tab.until(f"{ROWS}.length >= 3")
        cells = "[...document.querySelectorAll('#timeline-rows td.share')]"
        told = tab.value_of(f"{cells}.map(cell => cell.children[0].textContent)")
        assert {"40 %", "60 %"} <= set(told), told
        assert not any(tab.value_of(f"{cells}.map(cell => cell.children[1].textContent)"))
        strip = tab.value_of("document.getElementById('timeline-panel').innerText")
        assert "last hour" not in strip
        assert "than usual" not in strip
        assert answers["Complete?"][0] == "good"
        ended = "The source has ended: what 2 clients sent is learnt"
        assert answers["Complete?"][1] == f"{ended}, no message rejected."
        text = tab.value_of("document.body.innerText")
        assert "inactive" not in text
        assert "the source has ended" in tab.value_of("document.body.textContent")


def test_an_alarm_that_is_on_and_a_client_with_most_of_the_readings_are_named(
    browser: Browser, tmp_path: Path
) -> None:
    status = the_status(clients=ACTIVE)
    alarmed = replace(
        status, models={name: replace(model, unusual=True) for name, model in status.models.items()}
    )
    past = history(tmp_path, {0: 60, 1: 40}, {0: 60, 1: 40}, clients=("roof", "yard"))
    with shown(browser, alarmed, past) as (tab, _):
        answers = tab.value_of(ANSWERS)
        assert answers["Usual?"][0] == "warn", "although the newest half hour is as on other days"
        said = (
            "No, an alarm is on: clusters have other shares than usual at this time, 100 % as on"
            " earlier w"
        )
        assert answers["Usual?"][1].startswith(said)
        assert " 100 % of the newest readings are those of attic." in answers["Complete?"][1]


def test_a_young_history_says_that_it_is_too_early(browser: Browser, tmp_path: Path) -> None:
    with shown(browser, the_status(), history(tmp_path, {0: 5}, {0: 5}, days=0)) as (tab, _):
        assert tab.value_of(ANSWERS)["Usual?"][1].startswith("Too early to say: it takes three")


def test_each_cluster_has_a_band_and_the_slider_tells_a_moment_in_words(
    browser: Browser, tmp_path: Path
) -> None:
    past = history(tmp_path, {0: 60, 1: 20, NO_CLUSTER: 20}, {0: 50, 7: 50}, days=0)
    with shown(browser, the_status(), past) as (tab, _):
        tab.until(f"{ROWS}.length === 4 && {DRAWN}")
        titles = tab.value_of(f"{ROWS}.map(row => row.querySelector('.pin').textContent)")
        assert "label 7 (7)" in titles, (
            "a cluster that has ended is listed while the time shown has readings of it"
        )
        outlines = tab.value_of(
            f"{ROWS}.map(row => row.querySelector('path').getAttribute('d').slice(0, 1))"
        )
        assert sorted(outlines) == [
            "",
            "M",
            "M",
            "M",
        ], "one known cluster has had no readings in this time"
        words = "document.getElementById('moment-words').textContent"
        assert "(0) 60 %" in tab.value_of(words)
        assert "no known cluster 20 %" in tab.value_of(words)
        tab.value_of("document.getElementById('moment').focus()")
        tab.press("Home")
        tab.until(f"{words}.includes('label 7 (7) 50 %')")
        assert tab.value_of(
            "document.getElementById('moment').getAttribute('aria-valuetext')"
        ) == tab.value_of(words)
        for name in ("6 hours", "30 days"):
            button = (
                "[...document.querySelectorAll('#spans button')].find(one => one.textContent ==="
                f" '{name}')"
            )
            tab.value_of(f"{button}.click()")
            tab.until(f"{button}.ariaPressed === 'true' && {DRAWN}")


def test_a_chosen_cluster_is_chosen_everywhere(browser: Browser, tmp_path: Path) -> None:
    with shown(browser, the_status(), history(tmp_path, {0: 60, 1: 40}, {0: 1})) as (tab, _):
        tab.until(f"{ROWS}.length >= 3")
        tab.value_of("document.querySelector('#shares button').click()")
        pressed = "document.querySelectorAll('{} .pin[aria-pressed=true]').length"
        tab.until(f"{pressed.format('#timeline')} === 1 && {pressed.format('#clusters')} === 1")
        assert tab.value_of(f"{ROWS}.filter(row => row.classList.contains('faded')).length") == 2
        tab.value_of("document.querySelector('#shares button').click()")
        tab.until(f"{pressed.format('#timeline')} === 0")


def test_the_row_below_a_chosen_cluster_says_what_is_known_of_it(
    browser: Browser, tmp_path: Path
) -> None:
    status = parted_from(the_status(), 1, parent=0)
    with shown(browser, status, history(tmp_path, {0: 60, 1: 40}, {0: 60, 1: 40})) as (tab, _):
        tab.until(DRAWN)
        tab.value_of(
            f"{ROWS}.find(row => row.textContent.includes('(1)')).querySelector('button').click()"
        )
        facts = "Object.fromEntries([...document.querySelectorAll('#timeline .details dl div')]"
        facts += ".map(fact => [...fact.children].map(part => part.textContent)))"
        tab.until(f"'Share' in {facts}")
        known = tab.value_of(facts)
        assert known["Newest readings from"] == "attic 100 %"
        assert known["Share"].startswith("40 % in ")
        assert known["Usual at this time"] == "40 %"
        assert " °C, mostly " in known["temperature"]
        assert known["What sets it apart"]
        assert known["Parted"].startswith("parted from ")
        assert known["Parted"].endswith("(0)")
        tab.value_of(
            f"{ROWS}.find(row => row.textContent.includes('(1)')).querySelector('button').click()"
        )
        tab.until("document.querySelector('#timeline .details') === null")


def test_the_row_below_a_chosen_cluster_shows_its_histograms_before_all_others(
    browser: Browser, tmp_path: Path
) -> None:
    with shown(browser, the_status(), history(tmp_path, {0: 60, 1: 40}, {0: 60, 1: 40})) as (
        tab,
        _,
    ):
        tab.until(DRAWN)
        for identity in (1, 0):
            tab.value_of(
                f"{ROWS}.find(row =>"
                f" row.textContent.includes('({identity})')).querySelector('.pin').click()"
            )
            figures = "[...document.querySelectorAll('#timeline .histograms figure')]"
            colour = f"c{identity}"
            tab.until(
                f"{figures}.length === 4 && {figures}.every(each =>"
                f" each.querySelector('.own.{colour}'))"
            )
            words = tab.value_of(f"{figures}.map(each => each.innerText)")
            assert [text.split()[0] for text in words] == [
                "temperature",
                "humidity",
                "light",
                "voltage",
            ]
            words = tab.value_of(f"{figures}.map(each => each.querySelector('p').textContent)")
            assert all(re.fullmatch(MOSTLY, text) for text in words), words
        drawn = (
            "[...each.querySelectorAll('path')].map(path => path.getBBox()).map(box => [box.width,"
            " box.height])"
        )
        layers = [
            layer for figure in tab.value_of(f"{figures}.map(each => {drawn})") for layer in figure
        ]
        assert len(layers) == 8
        assert all(width == 28 and height > 0 for width, height in layers)
        for width in (360, 1280):
            for scheme in ("light", "dark"):
                tab.resize(width, 900)
                tab.prefer(scheme)
                tab.until(
                    f"innerWidth === {width} && document.documentElement.dataset.theme ==="
                    f" '{scheme}'"
                )
                assert tab.value_of(OVERFLOWING) == []
                ratio, text = tab.value_of(LOWEST_TEXT_CONTRAST)
                assert ratio >= 4.5, text


def test_curves_lead_from_a_cluster_to_what_parted_from_it_and_from_a_merged_one_to_what_took_it(
    browser: Browser, tmp_path: Path
) -> None:
    merged = RecentEvent(NOW - 30, "merged", 7, 0, "cluster 7 has merged into cluster 0")
    status = parted_from(the_status(), 2, parent=1)
    model = replace(status.models["fcac"], events=(*EVENTS, merged))
    past = history(tmp_path, {0: 60, 1: 10, 2: 30}, {0: 60, 1: 20, 7: 20})
    with shown(browser, replace(status, models={"fcac": model}), past) as (tab, _):
        tab.until("document.querySelectorAll('#partings g path').length === 2")
        ends = tab.value_of(
            "[...document.querySelectorAll('#partings g path')].map(path => [0,"
            " path.getTotalLength()].map(length => {const {x, y} = path.getPointAtLength(length),"
            " frame = path.ownerSVGElement.getBoundingClientRect();const over ="
            " [...document.querySelectorAll('#timeline-rows tr')].find(row => {const {top, bottom}"
            " = row.getBoundingClientRect(); return frame.top + y > top && frame.top + y <"
            " bottom});return"
            " over.querySelector('.pin').textContent.match(/\\((\\d)\\)$/)[1]}).join(' to '))"
        )
        assert sorted(ends) == ["1 to 2", "7 to 0"]
        assert tab.value_of(
            f"{ROWS}.some(row => row.querySelector('.fed').textContent.startsWith('merged into '))"
        )
        tab.value_of("document.querySelector('#shares button').click()")
        tab.until("document.querySelectorAll('#partings .faded').length === 1")


def test_rows_keep_their_order_for_a_minute_and_while_the_pointer_is_on_them(
    browser: Browser,
) -> None:
    arrays = some_nodes(4, 3, 120)
    board = StatusBoard(a_status(CONTRACT, [a_snapshot(CONTRACT, arrays)]))
    web = page_server(board, CollectorRegistry())
    rows = (
        "[...document.querySelectorAll('#clusters tbody tr')].map(row => row.cells[2].textContent)"
    )
    try:
        tab = browser.tab()
        tab.resize(1280, 4000)
        tab.open(f"http://127.0.0.1:{web.start()}/")
        tab.until(f"{rows}.length === 3")
        descending = tab.value_of(rows)
        assert descending == sorted(descending, key=lambda share: -int(share.split()[0]))
        lightest = np.bincount(arrays["cluster"], weights=arrays["count"]).argmin()
        grown = arrays | {
            "count": arrays["count"] * np.where(arrays["cluster"] == lightest, 100, 1)
        }
        grown["centre_weight"] = np.bincount(grown["cluster"], weights=grown["count"])
        board.post(a_status(CONTRACT, [a_snapshot(CONTRACT, grown, version=2)]))
        tab.until(f"parseInt({rows}[2]) > 90")
        later = (
            "(() => {const now = performance.now.bind(performance); performance.now = () => now() +"
            " 61_000})()"
        )
        # The middle of the rows: what stands above them may still grow or shrink by a line.
        box = tab.value_of(
            "(({x, y, height}) => [x, y + height / 2])(document.querySelector('#clusters tbody')"
            ".getBoundingClientRect())"
        )
        tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + 40, y=box[1])
        tab.until("document.querySelector('#clusters tbody').matches(':hover')")
        tab.value_of(later)
        board.post(a_status(CONTRACT, [a_snapshot(CONTRACT, grown, version=3)]))
        tab.until("document.getElementById('counters').textContent.includes('Snapshot3')")
        assert int(tab.value_of(rows)[2].split()[0]) > 90
        tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=5, y=5)
        tab.until(f"parseInt({rows}[0]) > 90")
    finally:
        web.stop()


def test_marks_show_where_a_cluster_was_born_and_where_it_ended(
    browser: Browser, tmp_path: Path
) -> None:
    past = history(tmp_path, {0: 60, 2: 40}, {0: 60, 1: 20, 7: 20})
    with shown(browser, the_status(), past) as (tab, _):
        tab.until(DRAWN)
        marks = (
            f"{ROWS}.map(row => [row.querySelector('.pin').textContent.match(/\\((\\d)\\)$/)[1], "
        )
        marks += "...[...row.querySelectorAll('.band .mark')].map(mark => mark.hidden)])"
        shown_marks = {int(identity): hidden for identity, *hidden in tab.value_of(marks)}
        assert shown_marks == {0: [True, True], 1: [True, True], 2: [False, True], 7: [True, False]}


def test_events_are_listed_newest_first_and_by_kind(browser: Browser) -> None:
    with shown(browser, the_status()) as (tab, _):
        texts = "[...document.querySelectorAll('#events li span')].map(text => text.textContent)"
        assert tab.value_of(texts) == [event.text for event in reversed(EVENTS)]
        kinds = "[...document.querySelectorAll('#kinds button')]"
        assert tab.value_of(f"{kinds}.map(kind => kind.textContent)") == [
            "all 3",
            "new 1",
            "parted 1",
            "quiet 1",
        ]
        tab.value_of(f"{kinds}[2].click()")
        tab.until(f"JSON.stringify({texts}) === JSON.stringify(['{EVENTS[1].text}'])")


def test_clients_and_features_of_clusters_are_told_in_numbers(
    browser: Browser, tmp_path: Path
) -> None:
    with shown(browser, the_status(), history(tmp_path, {0: 60, 1: 40}, {0: 1})) as (tab, _):
        feeds = (
            "[...document.querySelectorAll('#feeds tbody tr')].map(row => [...row.cells].map(c =>"
            " c.textContent))"
        )
        tab.until(f"{feeds}.length === 2")
        table = {row[0]: sorted(filter(None, row[1:])) for row in tab.value_of(feeds)}
        assert table == {"attic": ["25", "75"], "cellar": ["100"]}
        assert list(table) == sorted(table)
        spans = (
            "[...document.querySelectorAll('#differ tbody td .visually-hidden')].map(words =>"
            " words.textContent)"
        )
        words = tab.value_of(spans)
        assert len(words) == 12
        assert all(" to " in text and ", centre " in text for text in words)


@pytest.mark.parametrize("clusters", [1, 60])
def test_one_and_sixty_clusters_and_two_hundred_clients_fit(
    browser: Browser, tmp_path: Path, clusters: int
) -> None:
    clients = tuple(ClientStatus(f"client-{i:03}", NOW + 3600, 9, 900, 2.0) for i in range(200))
    shares = {identity: 100 + identity for identity in range(clusters)}
    with shown(
        browser, the_status(clusters, clients=clients), history(tmp_path, shares, shares)
    ) as (tab, _):
        tab.until(f"{ROWS}.length === {min(clusters, 12)}")
        for width, scheme in product((360, 800, 1280), ("light", "dark")):
            tab.resize(width, 900)
            tab.prefer(scheme)
            tab.until(
                f"innerWidth === {width} && document.documentElement.dataset.theme === '{scheme}'"
            )
            assert tab.value_of(OVERFLOWING) == [], (width, scheme)
            ratio, text = tab.value_of(LOWEST_TEXT_CONTRAST)
            assert ratio >= 4.5, (text, width, scheme)
        assert tab.value_of("document.getElementById('differ-panel').hidden") == (clusters == 1)
        if clusters > 12:
            tab.value_of("document.getElementById('all-rows').click()")
            tab.until(f"{ROWS}.length === {clusters}")
            tab.value_of(
                "(() => {const field = document.getElementById('find-cluster'); field.value ="
                " '(17)'; field.dispatchEvent(new Event('input'))})()"
            )
            tab.until(f"{ROWS}.length === 1 && {ROWS}[0].textContent.includes('(17)')")
        else:
            assert tab.value_of("document.getElementById('find-cluster').hidden")


def test_the_page_of_two_clusters_and_five_clients_is_short(
    browser: Browser, tmp_path: Path
) -> None:
    five = tuple(ClientStatus(f"room-{i}", NOW + 3600, 410, 164_000, 1.3) for i in range(5))
    past = history(tmp_path, {0: 60, 1: 40}, {0: 55, 1: 45}, newest_day=True)
    with shown(browser, the_status(2, clients=five), past) as (tab, _):
        for width, highest in ((390, 3700), (1280, 2000)):
            tab.resize(width, 900)
            tab.until(
                f"innerWidth === {width} && document.documentElement.scrollHeight <= {highest}"
            )
        folded = "!document.querySelector('#clusters-panel details').open"
        assert tab.value_of(folded), "the clusters over time are the table of clusters"
        tab.resize(1280, 900)
        tab.until("innerWidth === 1280")
        # The five questions are answered before one scrolls.
        below = "document.getElementById('now').getBoundingClientRect().bottom <= 900"
        assert tab.value_of(below)
        tab.value_of("document.querySelector('#clusters-panel summary').click()")
        tab.until("document.querySelector('#clusters .pin').checkVisibility()")


def test_shares_now_are_of_all_readings_of_the_last_hour_and_add_to_a_hundred(
    browser: Browser, tmp_path: Path
) -> None:
    past = history(tmp_path, {0: 10, 1: 5, 2: 5, NO_CLUSTER: 100}, {0: 60, 1: 40}, days=0)
    with shown(browser, the_status(), past) as (tab, _):
        blocks = (
            "[...document.querySelectorAll('#shares .quiet')].map(words =>"
            " parseInt(words.textContent))"
        )
        assert sorted(tab.value_of(blocks)) == [4, 4, 9, 83]
        assert (
            tab.value_of("document.getElementById('shares').innerText").count(
                "no cluster known then"
            )
            == 1
        )
        assert tab.value_of(ANSWERS)["New?"][1].startswith("83 % of the last hour's readings")


def test_without_a_server_the_page_says_so_and_no_longer_now(browser: Browser) -> None:
    with shown(browser, the_status()) as (tab, stop):
        stop()
        tab.until(
            "document.getElementById('now-count').textContent === '3 clusters when last connected'"
        )
        answer = tab.value_of(ANSWERS)["Complete?"]
        assert answer == [
            "warn",
            "No: the server does not respond; clients go on learning meanwhile.",
        ]


def test_before_the_first_snapshot_the_page_says_what_it_waits_for(browser: Browser) -> None:
    with shown(browser, a_status(CONTRACT, clients=ACTIVE[:1])) as (tab, _):
        assert tab.value_of("document.getElementById('now-count').textContent") == "No cluster yet"
        assert (
            tab.value_of("document.getElementById('now-known').textContent")
            == "1 of 2 clients have sent updates."
        )
        for part in ("timeline-panel", "differ-panel", "feeds-panel", "shares"):
            assert tab.value_of(f"document.getElementById('{part}').hidden")
        # One of two: what is there is no proof that all are.
        assert tab.value_of(ANSWERS)["Complete?"] == ["none", "1 of 1 client active so far."]


def test_a_screen_reader_finds_headings_the_bands_rows_and_the_slider(
    browser: Browser, tmp_path: Path
) -> None:
    with shown(browser, the_status(), history(tmp_path, {0: 60, 1: 40}, {0: 1})) as (tab, _):
        tab.until(f"{ROWS}.length >= 3 && !document.getElementById('differ-panel').hidden")
        tab.call("Accessibility.enable")
        nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
        found = {
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if "role" in node
        }
        for heading in (
            "3 clusters now",
            "Clusters over time",
            "How clusters differ",
            "Cluster events",
        ):
            assert ("heading", heading) in found
        assert ("slider", "A moment in the time shown") in found
        assert ("list", "Clusters now, by their share of the recent readings") in found

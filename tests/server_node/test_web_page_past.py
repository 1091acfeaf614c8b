"""The time that the page shows: new readings, what is usual, all of the history, what clients feed;
and the regions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.config.resolved import resolve
from shoal.protocol.history import COARSE_S, FINE_S, NO_CLUSTER, HistoryBin
from shoal.protocol.regions import Region
from shoal.server_node.history.store import (
    HISTORY_FILE,
    HistoryReader,
    HistoryRecord,
    HistoryStore,
)
from shoal.server_node.outputs.web.page_renderer import PageRenderer
from shoal.server_node.report.status import ClientStatus
from tests.server_node.test_web_page_now import (
    ACTIVE,
    CONTRACT,
    DRAWN,
    NEWEST,
    NOW,
    ROWS,
    a_bin,
    history,
    shown,
    the_status,
)
from tests.server_node.web_browser import Browser, Tab
from tests.server_node.web_page_checks import LOWEST_TEXT_CONTRAST, OVERFLOWING, WITHOUT_NAME

STRIP = "document.querySelector('#new-readings path').getAttribute('d')"
SPAN = "document.getElementById('overview').getAttribute('aria-valuetext')"
ENDS = (
    "['min', 'now', 'max'].map(name =>"
    " Number(document.getElementById('overview').getAttribute(`aria-value${name}`)))"
)
ASKED = (
    "performance.getEntriesByType('resource').map(each => each.name).filter(name =>"
    " name.includes('v1/history'))"
)
HOUR = 3600
DAY = 86_400


OUTSIDE = """(() => {
const bands = document.querySelector('#timeline-axis').getBoundingClientRect();
const box = document.querySelector('#tick-lines').getBoundingClientRect();
const labels = [...document.querySelectorAll('#timeline-axis span')]
  .map(label => label.getBoundingClientRect());
const words = [...labels].sort((a, b) => a.left - b.left);
return [
  ...(box.width && (box.left < bands.left - 1 || box.right > bands.right + 1) ? ['lines'] : []),
  ...words.filter((label, i) => i && label.left < words[i - 1].right)
    .map(() => 'words of the axis'),
];
})()"""
"""what of the time axis lies beside the bands, or on other words"""


def fits_everywhere(tab: Tab) -> None:
    for width in (360, 800, 1280):
        for scheme in ("light", "dark"):
            tab.resize(width, 900)
            tab.prefer(scheme)
            tab.until(
                f"innerWidth === {width} && document.documentElement.dataset.theme === '{scheme}'"
            )
            assert tab.value_of(OVERFLOWING) == []
            tab.until(f"{OUTSIDE}.length === 0")
            ratio, text = tab.value_of(LOWEST_TEXT_CONTRAST)
            assert ratio >= 4.5, text
    assert tab.value_of(WITHOUT_NAME) == []


def test_a_strip_shows_when_readings_fell_to_no_known_cluster(
    browser: Browser, tmp_path: Path
) -> None:
    past = history(tmp_path, {0: 30, NO_CLUSTER: 70}, {0: 60, 1: 40}, days=0)
    with shown(browser, the_status(clients=ACTIVE), past) as (tab, _):
        tab.until(STRIP)
        assert tab.value_of(f"{STRIP}.match(/M/g).length") == 1, "one bar had such readings"
        cells = tab.value_of(
            "[...document.querySelectorAll('#new-readings > *')].map(cell =>"
            " cell.textContent.trim())"
        )
        assert cells[0] == "New readingsof no cluster known then"
        assert cells[1] == "70 % last hourup to 0 % usual"
        assert cells[2].startswith("At most 70 %, ")
        assert cells[3] == "full: 70 %"
        low, high = tab.value_of(
            "(({x, width}) => [x, x + width])(document.querySelector('#new-readings"
            " path').getBBox())"
        )
        assert 900 < low < high <= 1000, "the newest bar is at the right end"
        tab.until("document.getElementById('tick-lines').getAttribute('d')")
        assert tab.value_of(OUTSIDE) == []


def test_without_new_readings_the_strip_is_empty_and_says_so(
    browser: Browser, tmp_path: Path
) -> None:
    with shown(
        browser, the_status(clients=ACTIVE), history(tmp_path, {0: 60, 1: 40}, {0: 1}, days=0)
    ) as (tab, _):
        tab.until(
            "document.querySelector('#new-readings .visually-hidden').textContent === 'None in the"
            " time shown'"
        )
        assert tab.value_of(STRIP) in {None, ""}


def test_the_usual_share_is_marked_on_the_bar_and_said_in_words(
    browser: Browser, tmp_path: Path
) -> None:
    past = history(tmp_path, {0: 60, 1: 20, 2: 20}, {0: 30, 1: 60, 2: 10})
    with shown(browser, the_status(clients=ACTIVE), past) as (tab, _):
        tab.until("[...document.querySelectorAll('.share-bar .mean')].some(mark => !mark.hidden)")
        cells = {
            int(identity): (words, far, float(left or 0))
            for identity, words, far, left in tab.value_of(
                f"{ROWS}.map(row =>"
                " [row.querySelector('.pin').textContent.match(/\\((\\d)\\)$/)[1],"
                " row.querySelector('.share').lastChild.textContent,"
                " row.querySelector('.far').textContent,"
                " parseFloat(row.querySelector('.mean').style.left)])"
            )
        }
        assert cells[1][0] == ", usual at this time 60 %"
        assert cells[2][0] == ", usual at this time 10 %"
        assert cells[1][2] == pytest.approx(6 * cells[2][2], rel=0.02)
        shares = {0: 0.6, 1: 0.2, 2: 0.2}
        usual = {0: 0.3, 1: 0.6, 2: 0.1}
        assert {identity: far for identity, (_, far, _) in cells.items()} == {
            identity: (
                "! more than usual"
                if shares[identity] > usual[identity] + 0.05
                else "! less than usual"
                if shares[identity] < usual[identity] - 0.05
                else ""
            )
            for identity in usual
        }
        assert {far for _, far, _ in cells.values()} >= {"! more than usual", "! less than usual"}


def test_before_three_like_days_nothing_is_marked_as_usual(
    browser: Browser, tmp_path: Path
) -> None:
    with shown(browser, the_status(), history(tmp_path, {0: 60, 1: 40}, {0: 1}, days=0)) as (
        tab,
        _,
    ):
        tab.until(DRAWN)
        assert tab.value_of(
            "[...document.querySelectorAll('.share-bar .mean')].every(mark => mark.hidden)"
        )
        assert tab.value_of(
            "[...document.querySelectorAll('.far')].every(words => !words.textContent)"
        )


def test_keys_move_and_zoom_the_time_shown_in_all_of_the_history(
    browser: Browser, tmp_path: Path
) -> None:
    with shown(browser, the_status(), history(tmp_path, {0: 60, 1: 40}, {0: 60, 2: 40})) as (
        tab,
        _,
    ):
        tab.until(f"{DRAWN} && document.querySelectorAll('#overview path').length === 3")
        oldest, now, newest = tab.value_of(ENDS)
        assert (now, newest) == (NEWEST + 300, NEWEST + 300)
        assert oldest < NEWEST - 27 * DAY
        assert tab.value_of(SPAN).endswith(", up to now")
        tab.value_of("document.getElementById('overview').focus()")
        for key, length in (("+", "14 days"), ("+", "7 days"), ("-", "14 days")):
            tab.press(key)
            tab.until(f"{SPAN}.startsWith('{length}, ')")
        tab.press("Home")
        tab.until(f"Math.abs({ENDS}[1] - {oldest + 14 * DAY}) < {DAY} && !{SPAN}.includes('now')")
        tab.until(f"{ASKED}.some(name => /&to=\\d+$/.test(name))")
        tab.until("document.querySelector('#timeline-axis').lastChild.textContent !== 'now'")
        tab.press("ArrowRight")
        tab.until(f"{ENDS}[1] > {oldest + 15 * DAY}")
        tab.press("End")
        tab.until(f"{ENDS}[1] === {newest} && {SPAN}.endsWith('up to now')")
        tab.until("document.querySelector('#timeline-axis').lastChild.textContent === 'now'")


def test_the_pointer_chooses_a_span_and_drags_the_window(browser: Browser, tmp_path: Path) -> None:
    with shown(browser, the_status(), history(tmp_path, {0: 60, 1: 40}, {0: 60, 2: 40})) as (
        tab,
        _,
    ):
        tab.until(f"{DRAWN} && document.querySelectorAll('#overview path').length === 3")
        oldest, _, newest = tab.value_of(ENDS)

        def drag(first: float, last: float) -> None:
            left, top, width = tab.value_of(
                "(() => { const strip = document.getElementById('overview');"
                " strip.scrollIntoView({block: 'center'});const {left, top, width, height} ="
                " strip.getBoundingClientRect();return [left, top + height / 2, width]; })()"
            )
            middle = (first + last) / 2
            moves = (
                ("mousePressed", first),
                ("mouseMoved", middle),
                ("mouseMoved", last),
                ("mouseReleased", last),
            )
            for kind, place in moves:
                x = left + place * width
                tab.call(
                    "Input.dispatchMouseEvent",
                    type=kind,
                    x=x,
                    y=top,
                    button="left",
                    buttons=1,
                    clickCount=1,
                )

        def is_at(part: float) -> str:
            return f"Math.abs({ENDS}[1] - {oldest + part * (newest - oldest)}) < {DAY / 4}"

        drag(0.25, 0.5)
        tab.until(f"{is_at(0.5)} && {SPAN}.startsWith('7 days, ')")
        tab.until(f"{ASKED}.some(name => name.includes('&to='))")
        drag(0.4, 0.6)
        tab.until(f"{is_at(0.7)} && {SPAN}.startsWith('7 days, ')")
        drag(0.6, 1.0)
        tab.until(f"{SPAN}.endsWith('up to now')")
        button = (
            "[...document.querySelectorAll('#spans button')].find(one => one.ariaLabel === '{}')"
        )
        tab.value_of(f"{button.format('Earlier')}.click()")
        tab.until(f"{is_at(0.875)} && !{button.format('Later')}.disabled")
        assert tab.value_of(f"{button.format('All')}.hidden"), "30 days are all"
        tab.value_of(f"{button.format('30 days')}.click()")
        tab.until(
            f"{SPAN}.startsWith('28 days, ') && {button.format('30 days')}.ariaPressed === 'true'"
        )


def test_the_time_shown_fits_every_width_and_a_screen_reader_finds_it(
    browser: Browser, tmp_path: Path
) -> None:
    past = history(tmp_path, {0: 30, 1: 40, NO_CLUSTER: 30}, {0: 60, 1: 20, 2: 20})
    with shown(browser, the_status(clients=ACTIVE), past) as (tab, _):
        tab.until(f"{DRAWN} && document.querySelectorAll('#overview path').length === 3")
        tab.call("Accessibility.enable")
        nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
        found = {
            (node["role"]["value"], node.get("name", {}).get("value", "")): node
            for node in nodes
            if "role" in node
        }
        slider = found["slider", "The time shown, in all of the history"]
        assert slider["description"]["value"].startswith(
            "Arrow keys move the time shown by a quarter of its length"
        )
        assert ("group", "Time shown") in found
        assert ("group", "Time counted") in found
        assert any(role == "rowheader" and name.startswith("New readings") for role, name in found)
        fits_everywhere(tab)


def test_a_short_history_has_no_overview_to_zoom_in(browser: Browser, tmp_path: Path) -> None:
    bins = [a_bin(NEWEST + back * FINE_S, {0: 60}, FINE_S) for back in range(5)]
    bins.append(a_bin(NEWEST, {0: 60}, COARSE_S))
    store = HistoryStore(resolve(CONTRACT), tmp_path / HISTORY_FILE)
    store.apply([HistoryRecord(history_bin.record_key, history_bin) for history_bin in bins])
    store.close()
    with shown(browser, the_status(), HistoryReader(tmp_path / HISTORY_FILE)) as (tab, _):
        tab.until(DRAWN)
        assert tab.value_of("document.getElementById('overview-row').hidden")
        buttons = (
            "[...document.querySelectorAll('#spans button:not([hidden])')].map(one =>"
            " one.textContent)"
        )
        assert tab.value_of(buttons) == ["6 hours"]


def test_another_time_can_be_chosen_for_which_client_feeds_which_cluster(
    browser: Browser, tmp_path: Path
) -> None:
    past = history(tmp_path, {0: 60, 1: 40}, {0: 1})
    store = HistoryStore(resolve(CONTRACT), tmp_path / HISTORY_FILE)
    origin = (CONTRACT.federation, CONTRACT.digest, "fcac")
    earlier = HistoryBin.of(
        *origin, FINE_S, NEWEST - 30 * HOUR, 1, [0, 60], [0, 60], [0, 2, 360, 1, 1, 40]
    )
    store.apply([HistoryRecord(earlier.record_key, earlier)])
    store.close()
    with shown(browser, the_status(), past) as (tab, _):
        feeds = (
            "[...document.querySelectorAll('#feeds tbody tr')].map(row => [...row.cells].map(c =>"
            " c.textContent))"
        )

        def table() -> dict[str, list[str]]:
            return {row[0]: sorted(filter(None, row[1:]), key=int) for row in tab.value_of(feeds)}

        tab.until(f"{feeds}.length === 2")
        hour = {"attic": ["25", "75"], "cellar": ["100"]}
        assert table() == hour
        button = (
            "[...document.querySelectorAll('#feeds-spans button')].find(one => one.textContent ==="
            " '{}')"
        )
        assert tab.value_of(f"{button.format('1 hour')}.ariaPressed") == "true"
        tab.value_of(f"{button.format('2 days')}.click()")
        note = "document.getElementById('feeds-note').textContent"
        tab.until(f"{note}.endsWith('of the last 2 days.') && {feeds}.length === 2")
        assert table() == {"attic": ["2", "8", "90"], "cellar": ["50", "50"]}
        tab.value_of(f"{button.format('1 day')}.click()")
        tab.until(f"{note}.endsWith('of the last day.') && {feeds}.length === 2")
        assert table() == hour
        tab.value_of(f"{button.format('1 hour')}.click()")
        tab.until(f"{note}.includes('the last hour')")


def test_the_regions_below_are_shown_as_a_tree(browser: Browser) -> None:
    regions = (Region("north", 40), Region("north/harbour", 12), Region("south", 75))
    clients = (
        ClientStatus("north", NOW + 3600, 9, 1_640, 2.0),
        ClientStatus("south", NOW - 40, 9, 640, 0.0),
    )
    with shown(browser, the_status(clients=clients, regions=regions)) as (tab, _):
        rows = (
            "[...document.querySelectorAll('#regions tbody tr')].map(row => [...row.cells].map(c =>"
            " c.textContent))"
        )
        tab.until(f"{rows}.length === 3")
        north, harbour, south = tab.value_of(rows)
        assert (north[0], north[1], north[3]) == ("north", "40", "1,640")
        assert harbour == ["north: harbour", "12", "–", "–"]
        assert (south[0], south[1], south[3]) == ("southinactive", "75", "640")
        indents = tab.value_of(
            "[...document.querySelectorAll('#regions tbody .name')].map(name =>"
            " name.getBoundingClientRect().left)"
        )
        assert indents[0] == indents[2] < indents[1]
        assert "127 clients in 3 regions" in tab.value_of(
            "document.getElementById('regions-note').textContent"
        )
        tab.until(f"{rows}[2][2] !== {json.dumps(south[2])}")  # time goes on without another status
        fits_everywhere(tab)


def test_tables_of_four_features_fit_on_paper(browser: Browser) -> None:
    with shown(browser, the_status()) as (tab, _):
        tab.resize(718, 1000)  # what A4 leaves within the browser's margins
        tab.prefer("light", "print")
        tab.until("matchMedia('print').matches && innerWidth === 718")
        tab.until("document.querySelectorAll('#clusters tbody tr').length > 0")
        assert tab.value_of(OVERFLOWING) == []


def test_without_regions_there_is_nothing_of_them(browser: Browser) -> None:
    with shown(browser, the_status()) as (tab, _):
        tab.until("document.querySelectorAll('#clients tbody tr').length === 3")
        assert tab.value_of("document.getElementById('regions').hidden")


def test_the_status_has_the_regions_in_their_order() -> None:
    regions = (Region("north", 40), Region("north/harbour", 12))
    content = PageRenderer().render(the_status(regions=regions)).content
    assert content["regions"] == [
        {"path": "north", "clients": 40},
        {"path": "north/harbour", "clients": 12},
    ]

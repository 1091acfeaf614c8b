"""The live page in use: themes, axes, sorting, search; with pointer, keyboard and screen reader,
wide and narrow."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from shoal.config.contract import Feature, parse_contract
from shoal.server_node.outputs.encoding import as_json, plain
from shoal.server_node.outputs.web import page_server
from shoal.server_node.outputs.web.changes import REMOVED, change
from shoal.server_node.report.status import ClientStatus, StatusBoard
from shoal.server_node.report.units import feature_label, feature_view
from tests.server_node.web_browser import Browser, Tab
from tests.server_node.web_changes import applied
from tests.server_node.web_page_checks import (
    LOWEST_MARK_CONTRAST,
    LOWEST_TEXT_CONTRAST,
    OBSERVE,
    OVERFLOWING,
    WITHOUT_NAME,
)
from tests.server_node.web_statuses import (
    FEATURES,
    NOW,
    a_contract,
    a_snapshot,
    a_status,
    some_nodes,
)

LONG = "a-name-as-long-as-one-may-be" + "e" * 36
CONTRACT = a_contract(12, models=("fcac", LONG), name=LONG)
ARRAYS = some_nodes(12, 45, 300)
# The page's clock runs during the tests: clients that must not become inactive are observed an hour
# in the future.
CLIENTS = tuple(
    ClientStatus(f"client-{i}", NOW + (-500 if i % 100 == 7 else 3600), 1, 10 * i, float(i % 9))
    for i in range(1, 1001)
)
LEARNT = a_status(
    CONTRACT, [a_snapshot(CONTRACT, ARRAYS)], clients=CLIENTS, rejected={"bounds": 2}, ready=False
)
PICTURE = LEARNT

ROWS = "[...document.querySelectorAll('#{} tbody tr')].map(row => row.cells[{}].innerText.trim())"
MAP = "document.getElementById('map').toDataURL()"
OPAQUE_PIXELS = """(() => {
  const map = document.getElementById('map');
  const copy = Object.assign(
    document.createElement('canvas'), {width: map.width, height: map.height});
  const context = copy.getContext('2d');
  context.drawImage(map, 0, 0);
  const pixels = context.getImageData(0, 0, map.width, map.height).data;
  let opaque = 0;
  for (let i = 3; i < pixels.length; i += 4) opaque += pixels[i] > 200;
  return opaque;
})()"""
"""the number of opaque pixels of the map"""


def column(table: str, cell: int) -> str:
    return ROWS.format(table, cell)


def identities(tab: Tab) -> list[int]:
    """The identities behind the titles "what sets it apart (identity)", in the order of the
    rows."""
    return [
        int(title.rstrip(")").rpartition("(")[2]) for title in tab.value_of(column("clusters", 0))
    ]


def sort_by(tab: Tab, table: str, heading: str) -> None:
    tab.value_of(
        f"[...document.querySelectorAll('#{table} thead button')].find(b => b.textContent ==="
        f" '{heading}').click()"
    )


ALL_SHOWN = "document.querySelector('#privacy .badge') !== null"
"""what stands low on the page comes last"""


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Iterator[Tab]:
    web = page_server(StatusBoard(PICTURE), CollectorRegistry())
    port = web.start()
    try:
        tab = browser.tab()
        tab.resize(1440, 900)
        tab.open(f"http://127.0.0.1:{port}/")
        tab.until(ALL_SHOWN)
        yield tab
        assert tab.console_errors() == []
    finally:
        web.stop()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1024, 1440])
def test_texts_have_contrast_and_nothing_overflows(tab: Tab, width: int, scheme: str) -> None:
    tab.resize(width, 800)
    tab.prefer(scheme)
    tab.until(f"document.documentElement.dataset.theme === '{scheme}' && innerWidth === {width}")
    ratio, text = tab.value_of(LOWEST_TEXT_CONTRAST)
    assert ratio >= 4.5, text
    ratio, colour = tab.value_of(LOWEST_MARK_CONTRAST)
    assert ratio >= 3.0, f"--c{colour}"
    assert tab.value_of("document.documentElement.scrollWidth") <= width
    assert tab.value_of(OVERFLOWING) == []
    tab.resize(1440, 900)


def test_paper_is_light_and_has_all_rows(tab: Tab) -> None:
    tab.prefer("light")
    tab.until("document.documentElement.dataset.theme === 'light'")
    drawn = tab.value_of(MAP)
    tab.prefer("dark")
    tab.until(f"document.documentElement.dataset.theme === 'dark' && {MAP} !== {json.dumps(drawn)}")
    tab.resize(720, 1000)
    tab.prefer("dark", "print")
    tab.until("document.documentElement.dataset.theme === 'light'")
    ratio, text = tab.value_of(LOWEST_TEXT_CONTRAST)
    assert ratio >= 4.5, text
    cut = (
        "[...document.querySelectorAll('.scroll')].filter(part => part.scrollHeight >"
        " part.clientHeight + 1).length"
    )
    assert tab.value_of(cut) == 0
    assert not tab.value_of("document.getElementById('theme').checkVisibility()")
    tab.resize(1440, 900)
    tab.prefer("light")
    tab.until(
        f"document.documentElement.dataset.theme === 'light' && {MAP} === {json.dumps(drawn)}"
    )


def test_a_chosen_theme_is_kept_over_a_reload(tab: Tab) -> None:
    theme = "document.documentElement.dataset.theme"
    assert tab.value_of("document.getElementById('theme').checkVisibility()")
    tab.prefer("light")
    for chosen in ("dark", "light", ""):
        tab.value_of(
            f"(() => {{const choice = document.getElementById('theme'); choice.value = '{chosen}';"
            "choice.dispatchEvent(new Event('change'))})()"
        )
        tab.until(f"{theme} === '{chosen or 'light'}'")
        tab.call("Page.reload")
        tab.until(ALL_SHOWN)
        assert tab.value_of(theme) == (chosen or "light")
        assert tab.value_of("document.getElementById('theme').value") == chosen
        tab.prefer("dark")
        tab.until(f"{theme} === '{chosen or 'dark'}'")
        tab.prefer("light")


def test_every_control_is_reached_by_keyboard_has_a_name_and_shows_its_focus(tab: Tab) -> None:
    assert tab.value_of(WITHOUT_NAME) == []
    controls = (
        "[...document.querySelectorAll('button, a, input, select, canvas, .scroll, summary')]"
    )
    controls += ".filter(element => element.checkVisibility() && element.tabIndex >= 0)"
    total = tab.value_of(f"{controls}.length")
    tab.value_of("document.activeElement.blur()")
    reached = "(window.reached ??= new Set()).add(document.activeElement).size"
    for _ in range(total):
        tab.press("Tab")
        tab.value_of(reached)
        if tab.value_of("document.activeElement !== document.body"):
            outline = "getComputedStyle(document.activeElement).outlineStyle"
            assert tab.value_of(outline) != "none", tab.value_of("document.activeElement.outerHTML")
    missed = (
        f"{controls}.filter(element => !window.reached.has(element)).map(element =>"
        " element.outerHTML.slice(0, 90))"
    )
    assert tab.value_of(missed) == []


def test_clusters_are_listed_largest_first_and_by_any_column(tab: Tab) -> None:
    weights = ARRAYS["centre_weight"]
    assert identities(tab)[0] == weights.argmax()
    sort_by(tab, "clusters", "Cluster")
    assert identities(tab) == list(range(45))
    assert tab.value_of("document.querySelector('#clusters thead th').ariaSort") == "ascending"
    sort_by(tab, "clusters", "Age")
    assert identities(tab)[:2] == [44, 43]
    assert "44 min" in tab.value_of("document.querySelector('#clusters tbody tr').innerText")
    sort_by(tab, "clusters", "Share")


def test_forty_five_clusters_have_different_marks(tab: Tab) -> None:
    marks = "[...document.querySelectorAll('#clusters .swatch')].map(mark => mark.innerHTML)"
    assert len(set(tab.value_of(marks))) == 45


def test_a_pinned_cluster_is_highlighted_on_the_map(tab: Tab) -> None:
    before = tab.value_of(OPAQUE_PIXELS)
    button = "document.querySelector('#clusters tbody button')"
    tab.value_of(f"{button}.focus()")
    tab.press("Enter")
    tab.until(f"{button}.ariaPressed === 'true' && {OPAQUE_PIXELS} < {before * 0.7}")
    tab.press("Enter")
    tab.until(f"{button}.ariaPressed === 'false' && {OPAQUE_PIXELS} > {before * 0.9}")


def test_features_can_be_chosen_as_axes_and_the_choice_is_in_the_url(tab: Tab) -> None:
    choices = tab.value_of(
        "[...document.getElementById('across').options].map(option => option.textContent)"
    )
    assert [*choices[:2], choices[-1]] == ["temperature (°C)", "humidity (%)", "component 1"]
    assert len(choices) == 13
    tab.shows("The axes are two components of 12 features and explain")
    before = tab.value_of(MAP)
    for axis, feature in (("across", "temperature"), ("up", "light")):
        tab.value_of(
            f"(() => {{const choice = document.getElementById('{axis}'); choice.value ="
            f" '{feature}';choice.dispatchEvent(new Event('change'))}})()"
        )
    tab.until(f"{MAP} !== '{before}'")
    assert tab.value_of("location.hash") == "#across=temperature&up=light"
    assert not tab.value_of("document.getElementById('map-note').checkVisibility()")
    values = "['across', 'up'].map(axis => document.getElementById(axis)?.value)"
    tab.call("Page.reload")
    tab.until(f"{values}.join() === 'temperature,light'")
    assert not tab.value_of("document.getElementById('map-note').checkVisibility()")
    tab.value_of("void (location.hash = '')")
    tab.call("Page.reload")
    tab.until(f"{values}.join() === ',' && {ALL_SHOWN}")
    tab.shows("The axes are two components of 12 features and explain")


def test_a_thousand_clients_can_be_searched_sorted_and_filtered(tab: Tab) -> None:
    names = column("clients", 0)
    search = "document.getElementById('client-search')"
    assert tab.value_of(names)[:3] == ["client-1", "client-2", "client-3"], "2 before 10"
    assert tab.value_of(f"{names}.length") == 100
    tab.shows("100 of 1,000 are listed; search for the others.")
    tab.shows("10 clients inactive: nothing received for three times the usual interval")
    sort_by(tab, "clients", "Places")
    assert tab.value_of(names)[0] == "client-1000"
    tab.value_of(
        f"(() => {{{search}.value = 'CLIENT-77'; {search}.dispatchEvent(new Event('input'))}})()"
    )
    tab.until(f"{names}.length === 11")
    tab.value_of("document.getElementById('only-inactive').click()")
    tab.shows("No client matches.")
    tab.value_of(f"(() => {{{search}.value = ''; {search}.dispatchEvent(new Event('input'))}})()")
    tab.until(f"{names}.length === 10")
    assert all(name.endswith("inactive") for name in tab.value_of(names))
    tab.value_of("document.getElementById('only-inactive').click()")
    sort_by(tab, "clients", "Client")


def test_the_page_has_no_animations(tab: Tab) -> None:
    assert tab.value_of("document.getAnimations().length") == 0
    moving = (
        "[...document.querySelectorAll('*')].some(element => ['transitionDuration',"
        " 'animationDuration']"
    )
    moving += ".some(name => parseFloat(getComputedStyle(element)[name]) > 0))"
    assert not tab.value_of(moving)


def test_screen_readers_get_the_headline_and_not_every_number(tab: Tab) -> None:
    live = "[...document.querySelectorAll('[role=status], [aria-live]')].map(element => element.id)"
    assert tab.value_of(live) == [
        "connection",
        "reload-reason",
        "headline",
        "map-announcement",
        "naming",
    ]
    assert tab.value_of("document.getElementById('headline').textContent") == "fcac: 45 clusters"


def test_a_unit_that_stands_in_the_name_of_a_feature_is_not_said_twice(tab: Tab) -> None:
    features = [
        Feature(name=name, unit=unit, low=0, high=1)
        for name, unit in [
            ("RH (%)", "%"),
            ("pm2.5 [µg/m³]", "µg/m³"),
            ("Light", "lux"),
            ("Temp (F)", "°C"),
            ("x", ""),
            ("Sound dB(A)", "dB(A)"),
        ]
    ]
    labels = ["RH (%)", "pm2.5 [µg/m³]", "Light (lux)", "Temp (F) (°C)", "x", "Sound dB(A)"]
    assert [feature_label(feature) for feature in features] == labels
    tab.value_of(
        "void import('./format.js').then(({featureLabel, featureName}) => {"
        " Object.assign(window, {featureLabel, featureName}); })"
    )
    tab.until("typeof window.featureName === 'function'")
    given = json.dumps([plain(feature_view(feature)) for feature in features])
    assert tab.value_of(f"{given}.map(featureLabel)") == labels
    names = ["RH", "pm2.5", "Light", "Temp (F)", "x", "Sound"]
    assert tab.value_of(f"{given}.map(featureName)") == names


def test_the_page_applies_changes_as_they_are_defined(tab: Tab) -> None:
    tab.value_of("void import('./status.js').then(({applied}) => { window.applied = applied; })")
    tab.until("typeof window.applied === 'function'")
    before = {
        "a": [1, {"b": 2}, None, 44, 55, 66],
        "c": {"d": 1, "e": [1, 2]},
        "f": None,
        "__proto__": {"g": 1},
    }
    after = {
        "a": [1, {"b": 3}, {}, 44, 55, 66],
        "c": {"e": []},
        "f": {"h": True},
        "__proto__": {"g": 2},
        "constructor": 1,
    }
    changed = change(before, after)
    assert isinstance(changed["a"], dict)
    assert changed["c"][REMOVED] == ["d"]
    both = ", ".join(f"JSON.parse({json.dumps(as_json(value))})" for value in (before, changed))
    assert (
        json.loads(tab.value_of(f"JSON.stringify(applied({both}))"))
        == applied(before, changed)
        == after
    )


def test_a_thousand_nodes_in_each_of_thirty_updates_neither_skip_one_nor_shift_the_page(
    browser: Browser,
) -> None:
    updates = 30
    contract = a_contract(4)
    arrays = some_nodes(4, 12, 1000)
    board = StatusBoard(a_status(contract, [a_snapshot(contract, arrays, version=1)]))
    web = page_server(board, CollectorRegistry())
    port = web.start()
    try:
        tab = browser.tab()
        tab.resize(1280, 900)
        tab.open(f"http://127.0.0.1:{port}/")
        tab.until("document.getElementById('counters')?.textContent.includes('Nodes1,000')")
        tab.value_of("document.getElementById('map').scrollIntoView()")
        tab.until(
            "document.getElementById('map').ariaLabel === 'Map of 1,000 nodes in 12 clusters'"
        )
        elements = tab.value_of("document.querySelectorAll('*').length")
        tab.value_of(OBSERVE)
        for version in range(2, updates + 2):
            moved = {**arrays, "weight": arrays["weight"] + 0.0002 * version}
            board.post(a_status(contract, [a_snapshot(contract, moved, version)]))
            tab.until(f"[...observed.shown].some(shown => Number(shown) >= {version})")
        # its age may change before
        shown = "[...observed.shown].filter(shown => Number(shown) > 1).length"
        observed = tab.value_of(f"({{...observed, shown: {shown}}})")
        assert observed["shown"] == updates, "each version is shown"
        assert observed["frames"] >= 2 * updates, "frames are painted between updates too"
        assert observed["shift"] < 0.02
        assert tab.value_of("document.querySelectorAll('*').length") == elements, (
            "elements are reused"
        )
        assert tab.console_errors() == []
    finally:
        web.stop()


def test_the_ends_of_the_range_of_a_category_are_its_values(browser: Browser) -> None:
    contract = parse_contract(
        {
            "federation": {"name": "plant"},
            "features": [
                FEATURES[0],
                {"name": "load", "kind": "category", "values": ["off", "part", "full"]},
            ],
            "privacy": {"mode": "off"},
            "models": [{"name": "fcac", "algorithm": "fcac"}],
        }
    )
    arrays = {**some_nodes(2, 3, 60)}
    arrays["weight"] = np.column_stack([arrays["weight"][:, 0], (arrays["cluster"] + 0.5) / 3])
    web = page_server(
        StatusBoard(a_status(contract, [a_snapshot(contract, arrays)])), CollectorRegistry()
    )
    try:
        tab = browser.tab()
        tab.open(f"http://127.0.0.1:{web.start()}/")
        ends = tab.until("document.querySelector('#differ tfoot td:last-child')?.innerText")
        assert ends == "off – full"
        titles = (
            "[...document.querySelectorAll('#differ tbody td:last-child')].map(cell => cell.title)"
        )
        said = sorted(title.split(",")[0] for title in tab.value_of(titles))
        assert said == ["full to full", "off to off", "part to part"]
    finally:
        web.stop()

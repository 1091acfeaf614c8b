"""The live page in use: tabs, colours, axes, order, search; for eyes, keyboards and screen readers, wide and narrow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from server_node.status import ClientStatus, StatusBoard
from server_node.web import page_server
from tests.server_node.web_browser import Tab, browsing
from tests.server_node.web_pictures import NOW, a_contract, a_picture, a_snapshot, some_nodes
from tests.server_node.web_seeing import CUT_OFF, UNNAMED, WATCH, WORST_MARK, WORST_TEXT

LONG = "a-name-as-long-as-one-may-be" + "e" * 36
CONTRACT = a_contract(12, models=("fcac", LONG), name=LONG)
ARRAYS = some_nodes(12, 45, 300)
# The page's clock goes on while the tests run: who is not to fall silent meanwhile is heard an hour from now.
CLIENTS = tuple(
    ClientStatus(f"client-{i}", NOW + (-500 if i % 100 == 7 else 3600), 1, 10 * i, float(i % 9)) for i in range(1, 1001)
)
LEARNT = a_picture(CONTRACT, [a_snapshot(CONTRACT, ARRAYS)], clients=CLIENTS, rejected={"bounds": 2}, ready=False)
PICTURE = replace(
    LEARNT,
    models={**LEARNT.models, "fcac": replace(LEARNT.models["fcac"], since={i: NOW - 60 * i for i in range(45)})},
)

ROWS = "[...document.querySelectorAll('#{} tbody tr')].map(row => row.cells[{}].innerText.trim())"
MAP = "document.getElementById('map').toDataURL()"
INK = """(() => {
  const map = document.getElementById('map');
  const pen = Object.assign(document.createElement('canvas'), {width: map.width, height: map.height}).getContext('2d');
  pen.drawImage(map, 0, 0);
  const dots = pen.getImageData(0, 0, map.width, map.height).data;
  let strong = 0;
  for (let i = 3; i < dots.length; i += 4) strong += dots[i] > 200;
  return strong;
})()"""
"""how many points of the map are inked strongly"""


def column(table: str, cell: int) -> str:
    return ROWS.format(table, cell)


def sort_by(tab: Tab, table: str, heading: str) -> None:
    tab.value_of(
        f"[...document.querySelectorAll('#{table} thead button')].find(b => b.textContent === '{heading}').click()"
    )


@pytest.fixture(scope="module")
def tab(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    web = page_server(StatusBoard(PICTURE), CollectorRegistry())
    port = web.start()
    try:
        with browsing(chromium, tmp_path_factory.mktemp("browser")) as browser:
            tab = browser.tab()
            tab.resize(1440, 900)
            tab.open(f"http://127.0.0.1:{port}/")
            tab.shows("Formal guarantee")
            yield tab
            assert tab.complaints() == []
    finally:
        web.stop()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1024, 1440])
def test_everything_can_be_read_and_nothing_is_cut_off(tab: Tab, width: int, scheme: str) -> None:
    tab.resize(width, 800)
    tab.prefer(scheme)
    tab.until(f"document.documentElement.dataset.theme === '{scheme}' && innerWidth === {width}")
    ratio, text = tab.value_of(WORST_TEXT)
    assert ratio >= 4.5, text
    ratio, colour = tab.value_of(WORST_MARK)
    assert ratio >= 3.0, f"--c{colour}"
    assert tab.value_of("document.documentElement.scrollWidth") <= width
    assert tab.value_of(CUT_OFF) == []
    tab.resize(1440, 900)


def test_colours_are_chosen_and_remembered(tab: Tab) -> None:
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
        tab.shows("Formal guarantee")
        assert tab.value_of(theme) == (chosen or "light")
        assert tab.value_of("document.getElementById('theme').value") == chosen
        tab.prefer("dark")
        tab.until(f"{theme} === '{chosen or 'dark'}'")
        tab.prefer("light")


def test_whatever_can_be_used_is_reached_by_the_keyboard_has_a_name_and_shows_its_focus(tab: Tab) -> None:
    assert tab.value_of(UNNAMED) == []
    wanted = "[...document.querySelectorAll('button, a, input, select, canvas, .scroll, summary')]"
    wanted += ".filter(element => element.checkVisibility() && element.tabIndex >= 0)"
    total = tab.value_of(f"{wanted}.length")
    tab.value_of("document.activeElement.blur()")
    reached = "(window.reached ??= new Set()).add(document.activeElement).size"
    for _ in range(total):
        tab.press("Tab")
        tab.value_of(reached)
        if tab.value_of("document.activeElement !== document.body"):
            outline = "getComputedStyle(document.activeElement).outlineStyle"
            assert tab.value_of(outline) != "none", tab.value_of("document.activeElement.outerHTML")
    missed = f"{wanted}.filter(element => !window.reached.has(element)).map(element => element.outerHTML.slice(0, 90))"
    assert tab.value_of(missed) == []


def test_clusters_are_listed_largest_first_and_by_any_column(tab: Tab) -> None:
    weights = ARRAYS["centre_weight"]
    assert tab.value_of(column("clusters", 0))[0] == str(weights.argmax())
    sort_by(tab, "clusters", "Cluster")
    assert tab.value_of(column("clusters", 0)) == [str(i) for i in range(45)]
    assert tab.value_of("document.querySelector('#clusters thead th').ariaSort") == "ascending"
    sort_by(tab, "clusters", "Age")
    assert tab.value_of(column("clusters", 0))[:2] == ["44", "43"]
    assert tab.value_of(column("clusters", 3))[0] == "44 min"
    sort_by(tab, "clusters", "Share")


def test_past_ten_colours_no_two_of_forty_five_clusters_look_alike(tab: Tab) -> None:
    marks = "[...document.querySelectorAll('#clusters .swatch')].map(mark => mark.innerHTML)"
    assert len(set(tab.value_of(marks))) == 45


def test_a_cluster_stands_out_on_the_map_while_its_row_is_pressed(tab: Tab) -> None:
    before = tab.value_of(INK)
    button = "document.querySelector('#clusters tbody button')"
    tab.value_of(f"{button}.focus()")
    tab.press("Enter")
    tab.until(f"{button}.ariaPressed === 'true' && {INK} < {before * 0.7}")
    tab.press("Enter")
    tab.until(f"{button}.ariaPressed === 'false' && {INK} > {before * 0.9}")


def test_features_are_chosen_as_axes_and_the_choice_is_in_the_address(tab: Tab) -> None:
    choices = tab.value_of("[...document.getElementById('across').options].map(option => option.textContent)")
    assert choices[:3] == ["mixture 1", "temperature (°C)", "humidity (%)"]
    assert len(choices) == 13
    tab.shows("The two axes are mixtures of 12 features and show")
    before = tab.value_of(MAP)
    for axis, feature in (("across", "temperature"), ("up", "light")):
        tab.value_of(
            f"(() => {{const choice = document.getElementById('{axis}'); choice.value = '{feature}';"
            "choice.dispatchEvent(new Event('change'))})()"
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
    tab.until(f"{values}.join() === ','")
    tab.shows("The two axes are mixtures of 12 features and show")


def test_a_thousand_clients_are_searched_sorted_and_sifted(tab: Tab) -> None:
    names, search = column("clients", 0), "document.getElementById('client-search')"
    assert tab.value_of(names)[:3] == ["client-1", "client-2", "client-3"], "2 before 10"
    assert tab.value_of(f"{names}.length") == 100
    tab.shows("100 of 1,000 are listed; search for the others.")
    tab.shows("10 clients not heard for more than 30 s")
    sort_by(tab, "clients", "Readings")
    assert tab.value_of(names)[0] == "client-1000"
    tab.value_of(f"(() => {{{search}.value = 'CLIENT-77'; {search}.dispatchEvent(new Event('input'))}})()")
    tab.until(f"{names}.length === 11")
    tab.value_of("document.getElementById('only-silent').click()")
    tab.shows("No client fits.")
    tab.value_of(f"(() => {{{search}.value = ''; {search}.dispatchEvent(new Event('input'))}})()")
    tab.until(f"{names}.length === 10")
    assert all(name.endswith("silent") for name in tab.value_of(names))
    tab.value_of("document.getElementById('only-silent').click()")
    sort_by(tab, "clients", "Client")


def test_nothing_moves_that_somebody_did_not_ask_to_move(tab: Tab) -> None:
    assert tab.value_of("document.getAnimations().length") == 0
    moving = "[...document.querySelectorAll('*')].some(element => ['transitionDuration', 'animationDuration']"
    moving += ".some(name => parseFloat(getComputedStyle(element)[name]) > 0))"
    assert not tab.value_of(moving)


def test_screen_readers_are_told_the_headline_and_not_every_figure(tab: Tab) -> None:
    live = "[...document.querySelectorAll('[role=status], [aria-live]')].map(element => element.id)"
    assert tab.value_of(live) == ["connection", "moved", "headline", "map-said"]
    assert tab.value_of("document.getElementById('headline').textContent") == "fcac: 45 clusters"


def test_a_thousand_nodes_five_times_a_second_neither_stall_the_page_nor_make_it_jump(
    chromium: str, tmp_path: Path
) -> None:
    updates = 30
    contract = a_contract(4)
    arrays = some_nodes(4, 12, 1000)
    board = StatusBoard(a_picture(contract, [a_snapshot(contract, arrays, version=1)]))
    web = page_server(board, CollectorRegistry())
    port = web.start()
    try:
        with browsing(chromium, tmp_path) as browser:
            tab = browser.tab()
            tab.resize(1280, 900)
            tab.open(f"http://127.0.0.1:{port}/")
            tab.until("document.getElementById('counters')?.textContent.includes('Nodes1,000')")
            elements = tab.value_of("document.querySelectorAll('*').length")
            tab.value_of(WATCH)
            for version in range(2, updates + 2):
                moved = {**arrays, "weight": arrays["weight"] + 0.0002 * version}
                board.set(a_picture(contract, [a_snapshot(contract, moved, version)]))
                tab.until(f"[...seen.shown].some(shown => Number(shown) >= {version})")
            seen = tab.value_of("({...seen, shown: seen.shown.size})")
            assert seen["shown"] == updates, "each is shown"
            assert seen["frames"] >= 2 * updates, "and the page is painted while nothing new comes"
            assert seen["long"] <= updates, "an update is one piece of work, of which a busy machine makes a long task"
            assert seen["shift"] < 0.02
            assert tab.value_of("document.querySelectorAll('*').length") == elements, "nothing piles up"
            assert tab.complaints() == []
    finally:
        web.stop()

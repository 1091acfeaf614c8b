"""The live page in a real browser."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry

from shoal.protocol.quarantine import QuarantinedClient
from shoal.server_node.outputs.web import page_server
from shoal.server_node.report.status import ClientStatus, StatusBoard
from tests.server_node.web_browser import Browser, Tab
from tests.server_node.web_statuses import NOW, a_contract, a_snapshot, a_status, some_nodes

CONTRACT = a_contract(5, models=("fcac", "slow"))
EMPTY = a_status(CONTRACT, ready=False, lag_records=12)
ARRAYS = some_nodes(5, 6, 120)
EXCLUDED = QuarantinedClient("fcac", "south-wing", NOW, "odd", False)
LEARNT = a_status(
    CONTRACT, [a_snapshot(CONTRACT, ARRAYS)], rejected={"contract": 3}, quarantined=[EXCLUDED]
)
MARKUP = replace(
    LEARNT, clients=(*LEARNT.clients, ClientStatus("<img src=x onerror=alert(1)>", NOW, 1, 1, 0.0))
)

COUNTERS = (
    "Object.fromEntries([...document.querySelectorAll('#counters div')]"
    ".map(counter => [...counter.children].slice(0, 2).map(part => part.textContent)))"
)
NODE_COLOURS = """
(() => {
  const map = document.getElementById('map');
  const pixels = map.getContext('2d').getImageData(0, 0, map.width, map.height).data;
  const style = getComputedStyle(document.documentElement);
  const parts = (i) => style.getPropertyValue(`--c${i}`).trim()
    .match(/\\w\\w/g).map(h => parseInt(h, 16));
  const palette = Array.from({length: 10}, (_, i) => parts(i));
  const near = (i, colour) => pixels[i + 3] > 200 && colour
    .every((part, k) => Math.abs(pixels[i + k] - part) < 4);
  return palette.map(colour => {
    let n = 0;
    for (let i = 0; i < pixels.length; i += 4) n += near(i, colour);
    return n;
  });
})()
"""
"""the number of pixels of the map in each colour of the palette"""


def test_the_page_shows_the_status_without_console_errors(browser: Browser) -> None:
    board = StatusBoard(EMPTY)
    web = page_server(board, CollectorRegistry())
    port = web.start()
    try:
        tab = browser.tab()
        tab.resize(1280, 900)
        tab.open(f"http://127.0.0.1:{port}/")
        _shows_what_is_missing(tab)
        board.post(MARKUP)
        _shows_a_snapshot(tab)
        _explores_nodes_by_keyboard(tab)
        _fits_a_phone_and_the_dark_theme(tab)
        _chooses_another_model(tab)
        _notices_a_stalled_stream(tab)
        assert tab.console_errors() == []
        web.stop()
        _shows_when_the_server_has_stopped(tab)
        web = page_server(board, CollectorRegistry(), port=port)
        web.start()
        tab.until("document.getElementById('connection').textContent === 'live'")
        _enforces_the_content_security_policy(browser, port)
    finally:
        web.stop()


def _shows_what_is_missing(tab: Tab) -> None:
    tab.shows("greenhouse")
    tab.shows("No clustering yet")
    tab.shows("1 of 2 clients have sent updates.")
    tab.shows("12 updates in the log not read yet")
    tab.shows("No client has sent an update yet.")


def _shows_a_snapshot(tab: Tab) -> None:
    tab.until(f"{COUNTERS}.Clusters === '6'")
    counters = tab.value_of(COUNTERS)
    assert counters["Nodes"] == "120"
    assert counters["Places"] == "48,000", "in mode formal, whether a reading is valid is hidden"
    tab.shows("Places are readings, rejected ones included")
    assert counters["Updates"] == "120"
    assert counters["Clients"] == "4"
    assert counters["Rejected"] == "3"
    assert counters["Snapshot"] == "1"
    tab.shows("1 client in quarantine: nothing more that they send is absorbed.")
    states = "[...document.querySelectorAll('#clients .state')].map(state => state.textContent)"
    assert sorted(tab.value_of(states)) == ["", "", "in quarantine", "inactive"]
    for words in ("north-wing", "south-wing", "3 under another contract"):
        tab.shows(words)
    tab.unfold()
    for words in (
        "Formal guarantee for every reading",
        "ε per reading, all models\n4",
        "Not covered",
        "their epsilons add up",
    ):
        tab.shows(words)
    assert not tab.value_of("document.getElementById('empty').checkVisibility()")
    assert tab.value_of("document.querySelectorAll('#clusters tbody tr').length") == 6
    inactive = (
        "[...document.querySelectorAll('#clients tr.inactive .name')].map(name => name.textContent)"
    )
    assert tab.value_of(inactive) == ["roof"]
    assert tab.value_of("document.querySelector('#clients img') === null")
    tab.shows("<img src=x onerror=alert(1)>")
    tab.until(
        "document.getElementById('map').getAttribute('aria-label') === 'Map of 120 nodes in 6"
        " clusters'"
    )
    assert [points > 100 for points in tab.value_of(NODE_COLOURS)] == [True] * 6 + [False] * 4
    assert tab.value_of("document.querySelector('#history .steps').getAttribute('d').includes('H')")


def _explores_nodes_by_keyboard(tab: Tab) -> None:
    tab.value_of("document.getElementById('map').focus()")
    announcement = "document.getElementById('map-announcement').textContent"
    tab.press("ArrowRight")
    most = int(ARRAYS["count"].argmax())
    node = int(ARRAYS["node_id"][most])
    tab.until(
        f"{announcement}.startsWith('Node {node} · cluster {ARRAYS['cluster'][most]} · weight')"
    )
    temperature = -20 + 80 * ARRAYS["weight"][most, 0]
    tab.shows(f"{temperature:.2f} °C")
    tab.shows("A learnt prototype, not a reading.")
    tab.press("ArrowLeft")
    tab.until(f"!{announcement}.startsWith('Node {node} ')")
    tab.press("Escape")
    tab.until("document.getElementById('tip').hidden")


def _fits_a_phone_and_the_dark_theme(tab: Tab) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    tab.prefer("light")
    light = tab.value_of(ground)
    tab.prefer("dark")
    tab.until(f"{ground} !== '{light}'")
    tab.resize(360, 740)
    tab.until("innerWidth === 360")
    assert tab.value_of("document.documentElement.scrollWidth") == 360


def _chooses_another_model(tab: Tab) -> None:
    """By keyboard: one tab is in the tab order, and arrow keys move to the others and wrap
    around."""
    tabs = "[...document.querySelectorAll('[role=tab]')]"
    assert tab.value_of(
        f"{tabs}.map(tab => [tab.firstChild.textContent, tab.ariaSelected, tab.tabIndex])"
    ) == [
        ["fcac", "true", 0],
        ["slow", "false", -1],
    ]
    tab.value_of(f"{tabs}[0].focus()")
    tab.press("ArrowRight")
    tab.shows("No clustering yet")
    assert tab.value_of("location.hash") == "#model=slow"
    assert tab.value_of(f"{tabs}.map(tab => [tab.ariaSelected, tab.tabIndex])") == [
        ["false", -1],
        ["true", 0],
    ]
    assert tab.value_of(f"document.activeElement === {tabs}[1]")
    labelled = (
        "document.getElementById("
        "document.querySelector('[role=tabpanel]').getAttribute('aria-labelledby'))"
    )
    assert tab.value_of(f"{labelled}.textContent") == "slowfcac · no clusters yet"
    for key, selected in (("ArrowRight", 0), ("End", 1), ("Home", 0), ("ArrowLeft", 1)):
        tab.press(key)
        tab.until(
            f"{tabs}[{selected}].ariaSelected === 'true' && document.activeElement ==="
            f" {tabs}[{selected}]"
        )


def _notices_a_stalled_stream(tab: Tab) -> None:
    """When the page's clock jumps by a minute, it treats the stream as stalled, shows that, and
    opens another.

    The clock jumps until the page has looked: a heartbeat that arrives before it looks is of the
    new time.
    """
    tab.value_of("""void (() => {
      const [connection, clock] = [document.getElementById('connection'), Date.now];
      window.states = [];
      new MutationObserver(() => states.push(connection.textContent))
        .observe(connection, {childList: true});
      window.ahead = 0;
      Date.now = () => clock() + ahead;
    })()""")
    tab.until("window.states.length > 0 || void (window.ahead += 60_000)")
    tab.until("window.states.length === 2")
    stalled, live = tab.value_of("window.states")
    assert stalled.startswith("no data since ")
    assert live == "live"
    assert not tab.value_of("document.body.classList.contains('stale')")


def _shows_when_the_server_has_stopped(tab: Tab) -> None:
    tab.until(
        "/^disconnected since"
        " \\d\\d:\\d\\d:\\d\\d$/.test(document.getElementById('connection').textContent)"
    )
    tab.until("document.body.classList.contains('stale')")
    assert tab.value_of("document.title").startswith("disconnected · greenhouse")


def _enforces_the_content_security_policy(browser: Browser, port: int) -> None:
    """The browser refuses a script that the server did not send, and logs an error."""
    tab = browser.tab()
    tab.open(f"http://127.0.0.1:{port}/")
    tab.shows("greenhouse")
    tab.value_of(
        "void document.body.append(Object.assign(document.createElement('script'), {textContent:"
        " 'hacked = 1'}))"
    )
    assert tab.value_of("typeof hacked") == "undefined"
    assert any("Content Security Policy" in error for error in tab.console_errors())

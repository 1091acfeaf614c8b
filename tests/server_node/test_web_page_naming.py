"""Naming clusters on the live page, with pointer and keyboard, as a screen reader announces it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from prometheus_client import CollectorRegistry

from shoal.errors import LogUnavailable
from shoal.protocol.messages import ClusterAlerts, ClusterName
from shoal.server_node.outputs.web import make_access, page_server
from shoal.server_node.report.lineage.events import ClusterChange, EventKind
from shoal.server_node.report.status import ModelStatus, ServerStatus, StatusBoard
from tests.server_node.web_browser import Browser, Tab
from tests.server_node.web_page_checks import LOWEST_TEXT_CONTRAST, OVERFLOWING, WITHOUT_NAME
from tests.server_node.web_statuses import a_contract, a_snapshot, a_status, some_nodes

CONTRACT = a_contract(2, models=("fcac", "slow"))
SNAPSHOTS = [a_snapshot(CONTRACT, some_nodes(2, 4, 40), model=name) for name in ("fcac", "slow")]

TITLES = "[...document.querySelectorAll('#clusters .pin')].map(pin => pin.textContent)"
STATUS = "document.getElementById('naming').textContent"
NAMED = make_access("127.0.0.1", ["shoal.localhost"])
FIELD = "document.querySelector('#clusters input')"


class NamingServer:
    """A page whose requests are kept, and answered by `fails` where it is set; `apply` does what
    the server would."""

    def __init__(self) -> None:
        self.board = StatusBoard(a_status(CONTRACT, SNAPSHOTS))
        self.requests: list[ClusterName | ClusterAlerts] = []
        self.fails = False

    def publish(self, request: ClusterName | ClusterAlerts) -> None:
        if self.fails:
            raise LogUnavailable("away")
        self.requests.append(request)

    def apply(self, request: ClusterName | ClusterAlerts) -> None:
        model = self.board.status.models[request.model]
        if isinstance(request, ClusterName):
            change = ClusterChange(request.identity, EventKind.NAMED, {"name": request.name})
        else:
            values = {"confirmed": request.action == "confirm", "muted_until": request.until}
            change = ClusterChange(request.identity, EventKind.CONFIRMED, values)
        changed = model.lineage.changed(change)
        assert changed is not None
        self._show(replace(model, lineage=changed))

    def heaviest_first(self, identity: int) -> None:
        """Change the newest shares so that this cluster has nearly all of the readings."""
        model = self.board.status.models["fcac"]
        clusters = {
            other: replace(cluster, recent_share=0.95 if other == identity else 0.01)
            for other, cluster in model.lineage.clusters.items()
        }
        self._show(replace(model, lineage=replace(model.lineage, clusters=clusters)))

    def _show(self, model: ModelStatus) -> None:
        status: ServerStatus = self.board.status
        self.board.post(replace(status, models={**status.models, model.name: model}))


@pytest.fixture
def server() -> NamingServer:
    return NamingServer()


@pytest.fixture
def tab(browser: Browser, server: NamingServer, request: pytest.FixtureRequest) -> Iterator[Tab]:
    web = page_server(server.board, CollectorRegistry(), publish_request=server.publish)
    port = web.start()
    try:
        tab = browser.tab()
        tab.resize(1280, 900)
        tab.open(f"http://127.0.0.1:{port}/")
        tab.until(f"{TITLES}.length === 4")
        yield tab
        if "fails" not in request.node.name:
            assert tab.console_errors() == []
    finally:
        web.stop()


def button_of(identity: int) -> str:
    return (
        "[...document.querySelectorAll('.rename')].find(button =>"
        f" button.ariaLabel.endsWith('({identity})'))"
    )


def type_name(tab: Tab, text: str) -> None:
    tab.call("Input.insertText", text=text)


def open_field(tab: Tab, identity: int) -> None:
    """By keyboard, from the button."""
    tab.value_of(f"{button_of(identity)}.focus()")
    tab.press("Enter")
    tab.until(f"document.activeElement === {FIELD}")


def test_a_cluster_is_named_by_keyboard_and_shown_with_its_name(
    tab: Tab, server: NamingServer
) -> None:
    open_field(tab, 2)
    assert tab.value_of(f"{FIELD}.ariaLabel") == "Name of cluster 2"
    assert "Enter saves" in tab.value_of(STATUS)
    type_name(tab, " <b>night</b> ")
    tab.press("Enter")
    tab.until(
        f"{STATUS} === 'Requested the name “<b>night</b>” for cluster 2; the server reads it next.'"
    )
    assert tab.value_of(f"{FIELD} === null && document.activeElement === {button_of(2)}"), (
        "the focus goes back"
    )
    [request] = server.requests
    assert (request.model, request.identity, request.name) == ("fcac", 2, "<b>night</b>")
    assert "<b>night</b> (2)" not in tab.value_of(TITLES), "not before the server has it"
    server.apply(request)
    tab.until(f"{TITLES}.includes('<b>night</b> (2)')")
    tab.until(f"{STATUS} === 'Cluster 2 is named “<b>night</b>”.'")
    assert tab.value_of(f"{button_of(2)}.ariaLabel") == "Name cluster <b>night</b> (2)"
    open_field(tab, 2)
    assert tab.value_of(f"[{FIELD}.value, getSelection().toString()]") == [
        "<b>night</b>",
        "<b>night</b>",
    ]
    tab.press("Backspace")
    tab.value_of(f"void ({FIELD}.value = '')")
    tab.press("Enter")
    tab.until(f"{STATUS} === 'Requested no name for cluster 2; the server reads it next.'")
    server.apply(server.requests[1])
    tab.until(f"{STATUS} === 'Cluster 2 has no name any more.'")


def test_escape_cancels(tab: Tab, server: NamingServer) -> None:
    open_field(tab, 1)
    type_name(tab, "wrong")
    tab.press("Escape")
    tab.until(f"{FIELD} === null && document.activeElement === {button_of(1)} && {STATUS} === ''")
    assert server.requests == []


def test_one_field_is_open_at_a_time_and_another_model_closes_it(tab: Tab) -> None:
    open_field(tab, 1)
    tab.value_of(f"{button_of(3)}.click()")
    tab.until(
        f"{FIELD}.ariaLabel === 'Name of cluster 3' && document.querySelectorAll('#clusters"
        " input').length === 1"
    )
    tab.value_of("document.getElementById('tab-slow').click()")
    tab.until(f"{FIELD} === null && {STATUS} === ''")
    open_field(tab, 0)


def test_the_name_goes_to_the_model_on_the_page(tab: Tab, server: NamingServer) -> None:
    tab.value_of("document.getElementById('tab-slow').click()")
    tab.until("document.getElementById('tab-slow').ariaSelected === 'true'")
    open_field(tab, 0)
    type_name(tab, "day")
    tab.press("Enter")
    tab.until(f"{STATUS}.startsWith('Requested')")
    assert server.requests[0].model == "slow"


def test_an_open_field_keeps_its_place_text_and_focus_while_shares_change(
    tab: Tab, server: NamingServer
) -> None:
    last = tab.value_of(f"{TITLES}.at(-1)")
    identity = int(last.rpartition("(")[2].rstrip(")"))
    open_field(tab, identity)
    type_name(tab, "half a na")
    server.heaviest_first(identity)
    share_now = (
        "[...document.querySelectorAll('#clusters tbody tr')].find(row =>"
        f" row.cluster.identity === {identity}).cluster.shareNow"
    )
    tab.until(f"{share_now} > 0.9")
    # Its row moves once the field is closed, not under the hands of somebody who types.
    assert tab.value_of(f"{TITLES}.at(-1)") == last
    type_name(tab, "me")
    assert tab.value_of(f"[{FIELD}.value, document.activeElement === {FIELD}]") == [
        "half a name",
        True,
    ]


def test_a_request_that_fails_keeps_the_text_and_says_why(tab: Tab, server: NamingServer) -> None:
    server.fails = True
    open_field(tab, 1)
    type_name(tab, "night")
    tab.press("Enter")
    tab.until(f"{STATUS} === 'Not requested: the server cannot answer this now.'")
    assert tab.value_of(f"[{FIELD}.value, {FIELD}.ariaInvalid, {FIELD}.readOnly]") == [
        "night",
        "true",
        False,
    ]
    server.fails = False
    tab.press("Enter")
    tab.until(f"{STATUS}.startsWith('Requested')")


def test_a_cluster_is_confirmed_as_normal_and_taken_back_with_one_button(
    tab: Tab, server: NamingServer
) -> None:
    row = (
        "[...document.querySelectorAll('#clusters tbody tr')].find(row => row.cluster.identity"
        " === 2)"
    )
    cases = (
        ("confirm", "normal", "active, normal", "Raise alerts"),
        ("alert", "again", "active", "Confirm"),
    )
    for action, reported, state, next_label in cases:
        tab.value_of(f"{row}.querySelector('.alerts').click()")
        tab.until(f"{STATUS}.startsWith('Requested: cluster 2') && {STATUS}.includes('{reported}')")
        request = server.requests[-1]
        assert isinstance(request, ClusterAlerts)
        assert (request.model, request.identity, request.action) == ("fcac", 2, action)
        server.apply(request)
        tab.until(f"{row}.cells[1].textContent === '{state}'")
        assert tab.value_of(f"{row}.querySelector('.alerts').ariaLabel").startswith(next_label)


def test_the_field_has_contrast_and_fits(tab: Tab) -> None:
    for width, scheme in product((360, 1280), ("light", "dark")):
        the_field_fits(tab, width, scheme)
        tab.press("Escape")  # else the button that opens it stays hidden
        tab.until(f"{FIELD} === null")


def the_field_fits(tab: Tab, width: int, scheme: str) -> None:
    tab.resize(width, 800)
    tab.prefer(scheme)
    tab.until(f"document.documentElement.dataset.theme === '{scheme}' && innerWidth === {width}")
    size = (
        f"(({{width, height}}) => Math.min(width, height))({button_of(1)}.getBoundingClientRect())"
    )
    assert tab.value_of(size) >= 24, "large enough for a finger"
    open_field(tab, 1)
    assert tab.value_of(LOWEST_TEXT_CONTRAST)[0] >= 4.5
    assert tab.value_of(OVERFLOWING) == []
    assert tab.value_of(WITHOUT_NAME) == []
    assert tab.value_of("document.documentElement.scrollWidth") <= width


def test_a_page_under_another_host_name_offers_no_names(
    browser: Browser, server: NamingServer
) -> None:
    web = page_server(
        server.board, CollectorRegistry(), publish_request=server.publish, access=NAMED
    )
    port = web.start()
    try:
        tab = browser.tab()
        tab.open(f"http://shoal.localhost:{port}/")
        tab.until(f"{TITLES}.length === 4")
        assert tab.value_of("document.querySelectorAll('.rename').length") == 0
    finally:
        web.stop()


def test_the_page_of_another_site_cannot_name(browser: Browser, server: NamingServer) -> None:
    web, other = (
        page_server(server.board, CollectorRegistry(), publish_request=publish, access=NAMED)
        for publish in (server.publish, None)
    )
    port = web.start()
    elsewhere = other.start()
    try:
        tab = browser.tab()
        tab.open(f"http://shoal.localhost:{elsewhere}/")
        tab.until(f"{TITLES}.length === 4")
        tab.call("Page.setBypassCSP", enabled=True)
        tab.call("Page.reload")
        tab.until(f"{TITLES}.length === 4")
        body = "method: 'POST', body: JSON.stringify({name: 'hacked'})"
        for more in ("mode: 'no-cors'", "headers: {'Content-Type': 'application/json'}"):
            sent = (
                f"fetch('http://127.0.0.1:{port}/v1/clusters/0/name', {{{body}, {more}}}).then(()"
                " => 1, () => 0)"
            )
            tab.value_of(sent)
        assert server.requests == []
    finally:
        web.stop()
        other.stop()

"""The page on a server with a token, in a real browser: the form, the session, naming, and the end
of the session."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry

from shoal.protocol.messages import ClusterName
from shoal.server_node.outputs.web import page_server
from shoal.server_node.outputs.web.access import Access
from shoal.server_node.report.status import StatusBoard
from tests.server_node.web_browser import Browser, Tab
from tests.server_node.web_page_checks import LOWEST_TEXT_CONTRAST, OVERFLOWING, WITHOUT_NAME
from tests.server_node.web_statuses import a_contract, a_snapshot, a_status, some_nodes

TOKEN = "a-token-of-a-test-0123456789"
ACCESS = Access(frozenset({"shoal.localhost"}), TOKEN)
CONTRACT = a_contract(2)
STATUS = a_status(CONTRACT, [a_snapshot(CONTRACT, some_nodes(2, 4, 40))])
FORM = "document.querySelector('form')"
CONNECTION = "document.getElementById('connection')?.dataset.state"


def log_in(tab: Tab, token: str = TOKEN) -> None:
    tab.until(FORM)
    tab.value_of(f"{FORM}.token.value = '{token}'; {FORM}.querySelector('button').click()")


def test_a_person_logs_in_under_another_host_name_names_a_cluster_and_logs_out(
    browser: Browser,
) -> None:
    requests: list[ClusterName] = []
    web = page_server(
        StatusBoard(STATUS), CollectorRegistry(), publish_request=requests.append, access=ACCESS
    )
    port = web.start()
    try:
        tab = browser.tab()
        tab.open(f"http://shoal.localhost:{port}/")
        log_in(tab, "not-the-token-of-this-server")
        tab.shows("This is not the token of this server.")
        assert tab.value_of(LOWEST_TEXT_CONTRAST)[0] >= 4.5
        assert tab.value_of(OVERFLOWING) == []
        assert tab.value_of(WITHOUT_NAME) == []
        tab.open(f"http://shoal.localhost:{port}/")
        log_in(tab)
        tab.until(f"{CONNECTION} === 'live'")
        assert tab.value_of("document.cookie") == "", "no script can read the session"
        tab.until("document.querySelector('.rename') !== null")
        tab.value_of("document.querySelector('.rename').click()")
        tab.value_of(
            "(field => { field.value = 'night'; field.dispatchEvent(new KeyboardEvent('keydown',"
            " {key: 'Enter'})) })(document.querySelector('#clusters input'))"
        )
        tab.shows("Requested the name “night”")
        assert [request.name for request in requests] == ["night"]
        tab.value_of("document.getElementById('log-out').click()")
        tab.until(FORM)
    finally:
        web.stop()


def test_a_page_whose_session_has_ended_asks_for_the_token_again(browser: Browser) -> None:
    now = [1e9]
    board = StatusBoard(STATUS)
    access = replace(ACCESS, clock=lambda: now[0])
    web = page_server(board, CollectorRegistry(), access=access)
    port = web.start()
    try:
        tab = browser.tab()
        tab.open(f"http://127.0.0.1:{port}/")
        log_in(tab)
        tab.until(f"{CONNECTION} === 'live'")
        now[0] += 1e6
        web.stop()
        web = page_server(board, CollectorRegistry(), port=port, access=access)
        web.start()
        tab.until(FORM)
    finally:
        web.stop()

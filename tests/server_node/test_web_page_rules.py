"""The rules on the live page, in a browser."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from shoal.server_node.outputs.web import page_server
from shoal.server_node.report.status import StatusBoard
from tests.server_node.test_web_rules import CONTRACT, STATUS
from tests.server_node.web_browser import Browser
from tests.server_node.web_page_checks import LOWEST_TEXT_CONTRAST, OVERFLOWING
from tests.server_node.web_statuses import a_status

HIDDEN = "document.getElementById('rules-panel').hidden"
ITEMS = "[...document.querySelectorAll('#rules li')].map(item => item.textContent)"


def test_the_page_shows_the_rules_of_a_model_that_predicts_and_of_no_other(
    browser: Browser,
) -> None:
    board = StatusBoard(a_status(CONTRACT))
    web = page_server(board, CollectorRegistry())
    port = web.start()
    try:
        tab = browser.tab()
        tab.resize(1280, 900)
        tab.open(f"http://127.0.0.1:{port}/#model=damp")
        tab.until("document.querySelectorAll('[role=tab]').length === 2")
        assert tab.value_of(HIDDEN), "there is no snapshot yet"
        board.post(STATUS)
        tab.until(f"!{HIDDEN}")
        items = tab.value_of(ITEMS)
        assert len(items) == 3
        assert all(
            item.startswith("if temperature is ") and " then humidity = " in item for item in items
        )
        assert all(item.endswith(" % of the rows") for item in items)
        tab.shows("humidity is predicted from the other features. Predictions are off by ")
        assert tab.value_of(LOWEST_TEXT_CONTRAST)[0] >= 4.5
        tab.resize(360, 800)
        assert tab.value_of(OVERFLOWING) == []
        tab.value_of("document.getElementById('tab-clusters').click()")
        tab.until(HIDDEN)
        assert tab.console_errors() == []
    finally:
        web.stop()

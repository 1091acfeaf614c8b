"""Fixtures of the tests of the server: one browser for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server_node.web_browser import Browser, browsing


@pytest.fixture(scope="session")
def shared_browser(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One process for all tests of a worker, as its start takes longer than most of them."""
    with browsing(chromium, tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="module")
def browser(shared_browser: Browser) -> Iterator[Browser]:
    """A profile for the tests of one module: it shares no cookies and no storage with others, and
    closes its tabs."""
    with shared_browser.profile() as browser:
        yield browser

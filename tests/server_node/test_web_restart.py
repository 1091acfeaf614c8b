"""A page that stays open while its server is killed and restarted, and then replaced by that of
another federation."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.forked_python import nodes
from tests.kafka_broker import free_ports
from tests.noisy_rows import noisy_rows_file
from tests.server_node.web_browser import Browser, Tab

SERVER = "\n[server]\nport = {}\npool_clients = 1\nsnapshot_s = 0.01\n"
CONNECTION = "document.getElementById('connection').dataset.state"
FIGURES = (
    "Object.fromEntries([...document.querySelectorAll('#counters div')]"
    ".map(counter => [...counter.children].slice(0, 2).map(part => part.textContent)))"
)
HAPPENED = "[...document.querySelectorAll('#events li')].map(event => event.textContent)"
COUNTED = """({
  lines: document.querySelectorAll('#history .steps').length,
  clusters: new Set([...document.querySelectorAll('#clusters tbody th')]
    .map(cell => cell.textContent)).size
    === document.querySelectorAll('#clusters tbody tr').length,
  clients: [...document.querySelectorAll('#clients .name')].map(name => name.textContent),
})"""


def shoal(folder: Path, *arguments: str) -> str:
    """The standard output of a command that succeeded."""
    ended = nodes().run_text(*arguments, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def a_federation(folder: Path, name: str, port: int) -> str:
    """The federation file `name` in `folder`; its server listens on `port`."""
    (folder / name).mkdir()
    text = noisy_rows_file("gaussians").replace(
        'name = "gaussians"', f'name = "{name}"'
    ) + SERVER.format(port)
    (folder / name / "federation.toml").write_text(text, encoding="utf-8")
    return f"{name}/federation.toml"


@contextlib.contextmanager
def serving(folder: Path, file: str) -> Iterator[None]:
    """`shoal server`, killed at the end with SIGKILL."""
    with (folder / "server.log").open("ab") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "shoal", "server", "--config", file], cwd=folder, stderr=log
        )
        try:
            yield
        finally:
            server.kill()
            server.wait()


def learn(folder: Path, file: str, readings: int) -> None:
    """Send `readings` more readings of a stream through a real producer and client, which resume
    where they stopped."""
    shoal(
        folder,
        "producer",
        "--config",
        file,
        "--synthetic",
        "gaussians",
        "--speed",
        "max",
        "--limit",
        str(readings),
    )
    shoal(
        folder, "client", "--config", file, "--name", "client-1", "--until-idle", "0.2", "--no-wait"
    )


def test_a_page_survives_a_restart_of_its_server_and_reloads_for_another_federation(
    browser: Browser, tmp_path: Path
) -> None:
    port = free_ports(1)
    file = a_federation(tmp_path, "shed", port)
    other = a_federation(tmp_path, "barn", port)
    learn(tmp_path, file, 2000)
    tab = browser.tab()
    tab.resize(1280, 900)
    with serving(tmp_path, file):
        _open(tab, port)
        tab.until(f"{FIGURES}.Places === '2,000' && {COUNTED}.lines === 1")
        tab.value_of("void (window.marker = 'not reloaded')")
        before = tab.value_of(FIGURES)
        happened = tab.value_of(HAPPENED)
        assert happened
    tab.until(f"{CONNECTION} === 'disconnected'")
    tab.until(
        "/disconnected since \\d\\d:/.test(document.getElementById('connection').textContent)"
    )
    assert tab.value_of(FIGURES) == before, "the last values stay"
    learn(tmp_path, file, 4000)
    with serving(tmp_path, file):
        tab.until(f"{CONNECTION} === 'live' && {FIGURES}.Places === '4,000'")
        assert tab.value_of("window.marker") == "not reloaded"
        assert tab.value_of(COUNTED) == {"lines": 1, "clusters": True, "clients": ["client-1"]}
        seen = tab.value_of("document.querySelector('#history svg').ariaLabel")
        fresh = browser.tab()
        fresh.resize(1280, 900)
        _open(fresh, port)
        fresh.until(f"{FIGURES}.Places === '4,000'")
        assert fresh.value_of(HAPPENED)[-len(happened) :] == happened, (
            "the server has kept what happened before"
        )
        assert (
            fresh.value_of("document.querySelector('#history svg').ariaLabel.split(' in ')[0]")
            == seen.split(" in ")[0]
        )
    with serving(tmp_path, other):
        tab.shows("This address now serves federation barn; before, it was shed.")
        assert tab.value_of("typeof window.marker") == "undefined"
        tab.shows("No client has sent an update yet.")
        assert tab.value_of("document.title") == "barn · 0 clusters · shoal"


def _open(tab: Tab, port: int) -> None:
    """Open the page, however long the server takes to listen."""
    tab.open_with_retries(f"http://127.0.0.1:{port}/")
    tab.until(f"document.getElementById('connection') && {CONNECTION} === 'live'")

"""A real server killed under an open page and started again at the same address; then another federation there."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.server_node.web_browser import Tab, browsing

SERVER = "\n[server]\nport = {}\npool_clients = 1\nsnapshot_s = 0.01\n"
CONNECTION = "document.getElementById('connection').dataset.state"
FIGURES = (
    "Object.fromEntries([...document.querySelectorAll('#counters div')]"
    ".map(counter => [...counter.children].slice(0, 2).map(part => part.textContent)))"
)
COUNTED = """({
  lines: document.querySelectorAll('#history .steps').length,
  clusters: new Set([...document.querySelectorAll('#clusters tbody th')].map(cell => cell.innerText)).size
    === document.querySelectorAll('#clusters tbody tr').length,
  clients: [...document.querySelectorAll('#clients .name')].map(name => name.textContent),
})"""


def shoal(folder: Path, *words: str) -> str:
    """What a command said, once it has ended in order."""
    command = [sys.executable, "-m", "shoal", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=120).stdout


def a_federation(folder: Path, name: str, port: int) -> str:
    """Its file, in `folder`; its server listens at `port`."""
    text = shoal(folder, "producer", "--synthetic", "gaussians", "--print-federation")
    (folder / name).mkdir()
    text = text.replace('name = "gaussians"', f'name = "{name}"') + SERVER.format(port)
    (folder / name / "federation.toml").write_text(text, encoding="utf-8")
    return f"{name}/federation.toml"


@contextlib.contextmanager
def serving(folder: Path, file: str) -> Iterator[None]:
    """`shoal server`, killed at the end with SIGKILL, whatever it is doing."""
    with (folder / "server.log").open("ab") as said:
        server = subprocess.Popen([sys.executable, "-m", "shoal", "server", "--config", file], cwd=folder, stderr=said)
        try:
            yield
        finally:
            server.kill()
            server.wait()


def learn(folder: Path, file: str, readings: int) -> None:
    """The first so many readings of a stream, through a real producer and client; they go on where they were."""
    shoal(folder, "producer", "--config", file, "--synthetic", "gaussians", "--speed", "max", "--limit", str(readings))
    shoal(folder, "client", "--config", file, "--name", "client-1", "--until-idle", "0.2")


def a_free_port() -> int:
    with socket.socket() as trying:
        trying.bind(("127.0.0.1", 0))
        return int(trying.getsockname()[1])


def test_a_page_outlives_its_server_and_says_when_another_federation_has_taken_its_place(
    chromium: str, tmp_path: Path
) -> None:
    port = a_free_port()
    file, other = a_federation(tmp_path, "shed", port), a_federation(tmp_path, "barn", port)
    learn(tmp_path, file, 2000)
    (tmp_path / "browser").mkdir()
    with browsing(chromium, tmp_path / "browser") as browser:
        tab = browser.tab()
        tab.resize(1280, 900)
        with serving(tmp_path, file):
            _opened(tab, port)
            tab.until(f"{FIGURES}.Readings === '2,000' && {COUNTED}.lines === 1")
            tab.value_of("void (window.mine = 'not loaded anew')")
            before = tab.value_of(FIGURES)
        tab.until(f"{CONNECTION} === 'disconnected'")
        tab.until("/disconnected since \\d\\d:/.test(document.getElementById('connection').textContent)")
        assert tab.value_of(FIGURES) == before, "what was shown last stays"
        learn(tmp_path, file, 4000)
        with serving(tmp_path, file):
            tab.until(f"{CONNECTION} === 'live' && {FIGURES}.Readings === '4,000'")
            assert tab.value_of("window.mine") == "not loaded anew"
            assert tab.value_of(COUNTED) == {"lines": 1, "clusters": True, "clients": ["client-1"]}
            seen = tab.value_of("document.querySelector('#history svg').ariaLabel")
            fresh = browser.tab()
            fresh.resize(1280, 900)
            _opened(fresh, port)
            fresh.until(f"{FIGURES}.Readings === '4,000'")
            assert (
                fresh.value_of("document.querySelector('#history svg').ariaLabel.split(' in ')[0]")
                == seen.split(" in ")[0]
            )
        with serving(tmp_path, other):
            tab.shows("This address now shows federation barn; before, it was shed.")
            assert tab.value_of("typeof window.mine") == "undefined"
            tab.shows("No client has spoken yet.")
            assert tab.value_of("document.title") == "barn · 0 clusters · shoal"


def _opened(tab: Tab, port: int) -> None:
    """Loaded, however long the server takes to listen."""
    tab.open_once_it_answers(f"http://127.0.0.1:{port}/")
    tab.until(f"document.getElementById('connection') && {CONNECTION} === 'live'")

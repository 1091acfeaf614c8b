"""A second server started by mistake: it is turned away, or the first one ends and says so. Both logs are real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.house.processes import Process, none_left_over, wait_until
from tests.house.small_federation import write_federation

LEASE_RENEW_S = 0.5
REJECTED = 5
ACQUIRED = "lease_acquired generation="


@pytest.fixture(params=["sqlite", "kafka"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A federation's file."""
    address = f"sqlite:{tmp_path / 'federation.db'}"
    if request.param == "kafka":
        address = f"kafka://{request.getfixturevalue('kafka_bootstrap')}"
    file = write_federation(tmp_path, address=address)
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("[server]", f"[server]\nlease_renew_s = {LEASE_RENEW_S}"), encoding="utf-8")
    return file


def in_another_folder(file: Path) -> Path:
    """The same federation, its server elsewhere."""
    other = file.with_name("other.toml")
    other.write_text(file.read_text().replace('folder = "server"', 'folder = "elsewhere"'), encoding="utf-8")
    return other


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts servers, and ends what is left of them."""
    started: list[Process] = []

    def start(file: Path, *words: str) -> Process:
        log = tmp_path / f"server-{len(started)}.txt"
        started.append(Process(["server", "--config", str(file), "--no-page", *words], log))
        return started[-1]

    with none_left_over(started):
        yield start


def test_a_second_server_is_turned_away_wherever_its_folder_is(file: Path, server: Callable[..., Process]) -> None:
    first = server(file)
    wait_until(lambda: ACQUIRED in first.said())
    same = server(file)
    assert same.wait() == REJECTED
    assert "in use by another process" in same.said()
    for words in ((), ("--rebuild",)):
        other = server(in_another_folder(file), *words)
        assert other.wait() == REJECTED
        assert "another server holds the lease of" in other.said()
        assert ACQUIRED not in other.said()
    assert first.running()
    assert first.stop() == 0


def test_who_takes_over_answers_and_the_older_one_ends_and_says_why(file: Path, server: Callable[..., Process]) -> None:
    first = server(file)
    wait_until(lambda: ACQUIRED in first.said())
    second = server(in_another_folder(file), "--rebuild", "--take-over")
    assert first.wait() == REJECTED
    assert "another server has taken over" in first.said()
    assert second.running()
    back = server(file)
    assert back.wait() == REJECTED
    assert second.stop() == 0


def test_a_server_killed_goes_on_at_once_and_one_elsewhere_when_it_is_seen_to_be_dead(
    file: Path, server: Callable[..., Process]
) -> None:
    first = server(file)
    wait_until(lambda: ACQUIRED in first.said())
    first.kill()
    again = server(file)
    wait_until(lambda: ACQUIRED in again.said())
    assert "retrying" not in again.said()
    again.kill()
    elsewhere = server(in_another_folder(file), "--rebuild")
    wait_until(lambda: ACQUIRED in elsewhere.said())
    assert "to see whether it still renews it" in elsewhere.said()
    assert elsewhere.stop() == 0

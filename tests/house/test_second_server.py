"""A second server of a federation is refused, or takes over the lease and ends the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.house.processes import Process, killed_on_exit, wait_until
from tests.house.small_federation import write_federation

LEASE_RENEW_S = 0.5
REJECTED = 5
ACQUIRED = "lease_acquired generation="


@pytest.fixture(params=["sqlite", "kafka"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A federation file, on each transport."""
    address = f"sqlite:{tmp_path / 'federation.db'}"
    if request.param == "kafka":
        address = f"kafka://{request.getfixturevalue('kafka_bootstrap')}"
    file = write_federation(tmp_path, address=address)
    text = file.read_text(encoding="utf-8")
    file.write_text(
        text.replace("[server]", f"[server]\nlease_renew_s = {LEASE_RENEW_S}"), encoding="utf-8"
    )
    return file


def in_another_folder(file: Path) -> Path:
    """The same federation with another folder for its server."""
    other = file.with_name("other.toml")
    other.write_text(
        file.read_text().replace('folder = "server"', 'folder = "elsewhere"'), encoding="utf-8"
    )
    return other


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts servers, and kills those still running at the end."""
    started: list[Process] = []

    def start(file: Path, *arguments: str) -> Process:
        log = tmp_path / f"server-{len(started)}.txt"
        started.append(Process(["server", "--config", str(file), "--no-page", *arguments], log))
        return started[-1]

    with killed_on_exit(started):
        yield start


def test_a_second_server_is_refused_in_any_folder(
    file: Path, server: Callable[..., Process]
) -> None:
    first = server(file)
    wait_until(lambda: ACQUIRED in first.log_text())
    same = server(file)
    assert same.wait() == REJECTED
    assert "in use by another process" in same.log_text()
    for arguments in ((), ("--rebuild",)):
        other = server(in_another_folder(file), *arguments)
        assert other.wait() == REJECTED
        assert "another server holds the lease of" in other.log_text()
        assert ACQUIRED not in other.log_text()
    assert first.running()
    assert first.stop() == 0


def test_a_server_that_takes_over_ends_the_older_one(
    file: Path, server: Callable[..., Process]
) -> None:
    first = server(file)
    wait_until(lambda: ACQUIRED in first.log_text())
    second = server(in_another_folder(file), "--rebuild", "--take-over")
    assert first.wait() == REJECTED
    assert "another server has taken over" in first.log_text()
    assert second.running()
    back = server(file)
    assert back.wait() == REJECTED
    assert second.stop() == 0


def test_a_killed_server_restarts_at_once_and_another_waits_for_its_lease_to_expire(
    file: Path, server: Callable[..., Process]
) -> None:
    first = server(file)
    wait_until(lambda: ACQUIRED in first.log_text())
    first.kill()
    again = server(file)
    wait_until(lambda: ACQUIRED in again.log_text())
    assert "retrying" not in again.log_text()
    again.kill()
    elsewhere = server(in_another_folder(file), "--rebuild")
    wait_until(lambda: ACQUIRED in elsewhere.log_text())
    assert "to see whether it still renews it" in elsewhere.log_text()
    assert elsewhere.stop() == 0

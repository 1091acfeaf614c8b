"""Separate processes: a client waits for the contract of the server, and one with another contract
ends."""

from __future__ import annotations

from pathlib import Path

from shoal.config.settings import load_config
from tests.house.processes import Process, killed_on_exit, wait_until
from tests.house.small_federation import (
    updates_by_client,
    weather,
    write_federation,
    write_readings,
)


def test_a_client_waits_for_the_server_and_one_with_another_contract_ends_with_the_places(
    tmp_path: Path,
) -> None:
    file = write_federation(tmp_path)
    other = tmp_path / "other.toml"
    other.write_text(
        file.read_text(encoding="utf-8").replace("high = 50", "high = 60"), encoding="utf-8"
    )
    config = load_config(file)
    for name in ("attic", "cellar"):
        write_readings(config, name, weather(200, 1))

    def process(command: str, path: Path, *more: str) -> Process:
        return Process(
            [command, "--config", str(path), *more], tmp_path / f"{command}-{more[-1]}.txt"
        )

    waiting = process("client", file, "--name", "attic")
    with killed_on_exit([waiting]):
        wait_until(lambda: "no server has published the contract" in waiting.log_text())
        server = process("server", file, "--no-page")
        different = process("client", other, "--name", "cellar")
        with killed_on_exit([server, different]):
            different.end(2)
            assert "\n  features.warm.high: ours 60; the federation's 50\n" in different.log_text()
            mended = process("client", file, "--name", "cellar")
            with killed_on_exit([mended]):
                wait_until(lambda: set(updates_by_client(config)) == {"attic", "cellar"})

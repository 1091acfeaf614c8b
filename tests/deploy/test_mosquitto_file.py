"""The shipped configuration of Mosquitto: the broker starts with it and saves its state."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mosquitto_broker import Mosquitto

SHIPPED = Path(__file__).parents[2] / "deploy" / "mosquitto"
PLACES = {
    "mosquitto.conf": {"listener 1883", "persistence_location /mosquitto/data/"},
    "host.conf": {"listener 1883 127.0.0.1", "persistence_location /var/lib/mosquitto/"},
}


@pytest.mark.needs("mosquitto")
@pytest.mark.parametrize("file", PLACES)
def test_mosquitto_starts_with_the_shipped_file_and_saves_its_state(
    can_run_mosquitto: None, tmp_path: Path, file: str
) -> None:
    lines = (SHIPPED / file).read_text(encoding="utf-8").splitlines()
    assert {"persistence true", *PLACES[file]} <= set(lines)
    # The test chooses port and folder; all other lines are the shipped ones.
    replaced = ("listener", "persistence", "persistence_location", "log_dest", "max_queued_messages")
    more = "\n".join(line for line in lines if line.split(" ")[0] not in replaced)
    broker = Mosquitto(tmp_path, more)
    broker.stop()
    assert (tmp_path / "mosquitto.db").exists()
    assert "Error" not in broker.log()

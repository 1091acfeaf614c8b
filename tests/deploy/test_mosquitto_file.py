"""The shipped configuration of Mosquitto: the broker starts with it and saves its state."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from tests.mosquitto_broker import PATIENCE_S, Mosquitto

SHIPPED = Path(__file__).parents[2] / "deploy" / "mosquitto"
PLACES = {
    "mosquitto.conf": {"listener 1883", "persistence_location /mosquitto/data/"},
    "host.conf": {"listener 1883 127.0.0.1", "persistence_location /var/lib/mosquitto/"},
}


def with_password(folder: Path) -> Path:
    """The file of users that start.sh makes before it starts the broker, in this folder; the
    password is `secret`."""
    (folder / "password").write_text("secret\n", encoding="utf-8")
    script = (SHIPPED / "start.sh").read_text(encoding="utf-8")
    here = {"/run/shoal/mqtt": str(folder), "/mosquitto/passwords": str(folder / "passwords")}
    for shipped, place in here.items():
        assert shipped in script
        script = script.replace(shipped, place)
    # The test is the broker's user, and starts it.
    script, broker = script.replace("chown mosquitto", "true").rsplit("exec ", 1)
    assert broker == "mosquitto -c /mosquitto/config/mosquitto.conf\n"
    subprocess.run(["sh", "-c", script], check=True)
    return folder / "passwords"


def takes(broker: Mosquitto, password: str) -> bool:
    """Whether the broker lets the user `shoal` in; without a password, somebody without a name."""
    client = Client(CallbackAPIVersion.VERSION2)
    answers = []
    client.on_connect = lambda *given: answers.append(given[3])
    if password:
        client.username_pw_set("shoal", password)
    client.connect("127.0.0.1", broker.port)
    until = time.monotonic() + PATIENCE_S
    while not answers:
        client.loop(0.1)
        assert time.monotonic() < until
    client.disconnect()
    client.loop(0.1)
    return not answers[0].is_failure


@pytest.mark.needs("mosquitto")
def test_the_broker_of_compose_takes_the_password_that_was_made_and_no_other(
    can_run_mosquitto: None, tmp_path: Path
) -> None:
    users = with_password(tmp_path)
    assert "secret" not in users.read_text(encoding="utf-8")
    lines = (SHIPPED / "mosquitto.conf").read_text(encoding="utf-8").splitlines()
    asked = [
        line.replace("/mosquitto/passwords", str(users))
        for line in lines
        if "anonymous" in line or "/pass" in line
    ]
    broker = Mosquitto(tmp_path, "\n".join(asked))
    tried = {password: takes(broker, password) for password in ("secret", "other", "")}
    broker.stop()
    assert tried == {"secret": True, "other": False, "": False}


@pytest.mark.needs("mosquitto")
@pytest.mark.parametrize("file", PLACES)
def test_mosquitto_starts_with_the_shipped_file_and_saves_its_state(
    can_run_mosquitto: None, tmp_path: Path, file: str
) -> None:
    lines = (SHIPPED / file).read_text(encoding="utf-8").splitlines()
    assert {"persistence true", *PLACES[file]} <= set(lines)
    # The test chooses port and folder; all other lines are the shipped ones.
    replaced = (
        "listener",
        "persistence",
        "persistence_location",
        "log_dest",
        "max_queued_messages",
    )
    more = "\n".join(line for line in lines if line.split(" ")[0] not in replaced)
    more = more.replace("/mosquitto/passwords", str(with_password(tmp_path)))
    broker = Mosquitto(tmp_path, more)
    broker.stop()
    assert (tmp_path / "mosquitto.db").exists()
    assert "Error" not in broker.log()

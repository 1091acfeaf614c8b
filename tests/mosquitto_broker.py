"""A real Mosquitto for tests, in a folder, on a port of its own, that can be stopped, killed and
started again."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

from tests.kafka_broker import free_ports

PATIENCE_S = 300.0
CONFIGURATION = """
listener {port} 127.0.0.1
persistence true
persistence_location {folder}/
max_queued_messages 100000
log_dest file {folder}/broker.log
{more}
"""


def mosquitto() -> str | None:
    """The path of the program; Debian keeps it where only root looks."""
    return shutil.which("mosquitto", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")


class Mosquitto:
    """The broker runs as this user, and remembers in its folder; `more` are lines of its
    configuration."""

    def __init__(self, folder: Path, more: str = "allow_anonymous true") -> None:
        self.folder = folder
        self.port = free_ports()
        self._file = folder / "mosquitto.conf"
        # Started by root it would become another user, who may not write here.
        me = "" if os.getuid() else "user root\n"
        self._file.write_text(me + CONFIGURATION.format(port=self.port, folder=folder, more=more))
        self.start()

    def start(self) -> None:
        program = mosquitto()
        assert program is not None
        self._process = subprocess.Popen(
            [program, "-c", str(self._file)], stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + PATIENCE_S
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            assert self._process.poll() is None, (self.folder / "broker.log").read_text()
            assert time.monotonic() < until
            time.sleep(0.02)

    def stop(self) -> None:
        """SIGTERM, and wait: it saves what it remembers."""
        # A broker that listens but has not begun its main loop forgets the signal.
        for _ in range(int(PATIENCE_S)):
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
                return
        raise AssertionError("the broker does not end")

    def kill(self) -> None:
        """SIGKILL, whatever it is doing."""
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def log(self) -> str:
        return (self.folder / "broker.log").read_text()


class Sensor:
    """Something that publishes, QoS 1: when `publish` returns, the broker has it."""

    def __init__(self, port: int, **tls_and_login: Any) -> None:
        self._client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
        if (context := tls_and_login.get("tls")) is not None:
            self._client.tls_set_context(context)
        if (login := tls_and_login.get("login")) is not None:
            self._client.username_pw_set(*login)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def publish(self, topic: str, payload: str | bytes, retain: bool = False) -> None:
        self.publish_all([(topic, payload)], retain)

    def publish_all(self, messages: list[tuple[str, str | bytes]], retain: bool = False) -> None:
        on_their_way = [
            self._client.publish(topic, payload, 1, retain) for topic, payload in messages
        ]
        for message in on_their_way:
            message.wait_for_publish(PATIENCE_S)
            assert message.is_published()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._client.disconnect()
        self._client.loop_stop()

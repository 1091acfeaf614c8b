"""A federation whose sensors are heard over MQTT, and a listener that is run until nothing comes
any more."""

from __future__ import annotations

import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

from shoal.config.settings import Config, load_config
from shoal.producers.mqtt.client_stream import IngestCounts
from shoal.producers.mqtt.ingest import open_mqtt_ingest
from shoal.producers.mqtt.settings import mqtt_settings
from shoal.producers.mqtt.silence import SilenceMonitor
from shoal.producers.mqtt.topics import topics_of
from shoal.protocol.readings import USER_ID
from shoal.protocol.topics import READINGS
from shoal.transports import open_log
from shoal.transports.base import beginning
from tests.mosquitto_broker import PATIENCE_S
from tests.producers.running_producer import stored_in

FEDERATION = """
[federation]
name = "{name}"
[privacy]
mode = "off"{privacy}
[[models]]
name = "m"
algorithm = "fcac"
[[features]]
name = "warm"
low = -40
high = 1e9
[[features]]
name = "damp"
low = 0
high = 1e9
[client]
folder = "clients"
[mqtt]
host = "127.0.0.1"
port = {port}
{settings}
[mqtt.topics]
warm = "{warm}"
damp = "{damp}"
"""
CLIENT = "attic"
QUIET_S = 0.1
"""what should not come has so long to come; what should is waited for"""


class IngestSite:
    """A folder with a federation file of a name of its own, so that its session at a shared broker
    is its own too."""

    def __init__(
        self,
        folder: Path,
        port: int,
        settings: str = "",
        plain: bool = True,
        topics: tuple[str, str] | None = None,
        privacy: str = "",
    ) -> None:
        self.folder = folder
        self.name = f"h{uuid.uuid4().hex[:12]}"
        self.client: str | None = CLIENT
        if plain:
            # The values have the times they arrive: on a busy machine these may lie far apart.
            settings += "\ntolerance_s = 3600"
        fields = ("", "") if plain else ("#warm", "#air.damp")
        self.warm, self.damp = topics or (f"{self.name}/warm", f"{self.name}/damp")
        folder.mkdir(exist_ok=True)
        self.file = folder / "federation.toml"
        self.file.write_text(
            FEDERATION.format(
                name=self.name,
                port=port,
                settings=settings,
                privacy=f"\n{privacy}" if privacy else "",
                warm=self.warm + fields[0],
                damp=self.damp + fields[1],
            )
        )
        self.counts = self.new_tally()

    @property
    def config(self) -> Config:
        return load_config(self.file)

    def new_tally(self) -> IngestCounts:
        settings = mqtt_settings(self.config)
        return IngestCounts(
            SilenceMonitor(topics_of(settings, self.config.contract, CLIENT), settings.silent_s)
        )

    def run(self, readings: int = 0, faults: int = 0, **clocks: Any) -> IngestCounts:
        """One life: until so many readings are stored and so many faults counted, and nothing comes
        any more."""
        self.counts = counts = self.new_tally()
        with open_mqtt_ingest(
            self.config, self.client, self.folder / "clients", counts, **clocks
        ) as ingest:
            end = time.monotonic() + PATIENCE_S
            while (
                ingest.step(QUIET_S)
                or counts.published < readings
                or counts.faults.total() < faults
            ):
                assert time.monotonic() < end, (counts.published, counts.faults)
        return counts

    def readings(self) -> list[list[Any]]:
        """The values of every reading stored, in the order of the log."""
        return [stored.values for stored in stored_in(self.folder / "clients").get(CLIENT, [])]

    def times(self) -> list[float | None]:
        """Their times."""
        return [stored.time for stored in stored_in(self.folder / "clients")[CLIENT]]

    def users(self) -> list[bytes | None]:
        """Their user ids."""
        with closing(open_log(f"sqlite:{self.folder / 'clients' / CLIENT / 'readings.db'}")) as log:
            records, _ = log.read(READINGS, beginning(log, READINGS))
        return [dict(record.headers).get(USER_ID) for record in records]

    def pair(self, number: int) -> list[tuple[str, str | bytes]]:
        """One plain message of each sensor."""
        return [(self.warm, str(number)), (self.damp, str(number))]

    def timed(self, number: int, at: float) -> list[tuple[str, str | bytes]]:
        """One message of each sensor as JSON, with its own time."""
        return [
            (self.warm, f'{{"t": {at}, "warm": {number}}}'),
            (self.damp, f'{{"t": {at}, "air": {{"damp": {number}}}}}'),
        ]

"""Runs the ingest of one client's sensors until it is asked to stop."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path

from producers.mqtt.connection import Connection
from producers.mqtt.ingest import IngestCounts, IngestResources, MqttIngest
from producers.mqtt.payloads import topics_of
from producers.mqtt.settings import mqtt_settings
from producers.mqtt.silence import SilenceMonitor
from producers.progress import display_on
from producers.publisher import client_folder
from producers.report import ProducerTotals
from shoal.config.settings import Config
from shoal.protocol.topics import readings_settings
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.readings_log import open_readings
from shoal.runtime.service import run, stopped_by_signals


def run_ingest(config: Config, client: str, folder: Path, as_events: bool = False) -> ProducerTotals:
    """Receive the values of `client`'s sensors until SIGTERM or SIGINT; wait while a broker or a disk is unavailable.

    folder: the folder of the clients' folders; as_events: progress is told as events.
    Raises `ShoalError` for what waiting cannot mend.
    """
    settings = mqtt_settings(config)
    counts = IngestCounts(SilenceMonitor(topics_of(settings, config.contract, client), settings.silent_s))
    with stopped_by_signals() as stop, closing(display_on(sys.stderr, time.monotonic, as_events)) as display:

        def build() -> AbstractContextManager[MqttIngest]:
            return open_mqtt_ingest(config, client, folder, counts)

        run(build, stop, on_step=lambda _: display.show(counts.position, None))
    return ProducerTotals(
        False, {client: counts.published}, counts.already_there, counts.position, counts.faults, settings.address
    )


@contextmanager
def open_mqtt_ingest(
    config: Config,
    client: str,
    folder: Path,
    counts: IngestCounts,
    clock: Callable[[], float] = time.time,
    steady: Callable[[], float] = time.monotonic,
) -> Iterator[MqttIngest]:
    """The ingest as its checkpoint has it, closed at the end. Raises `InvalidState`, and as `Connection` does."""
    settings, contract = mqtt_settings(config), config.contract
    topics = topics_of(settings, contract, client)
    client_id = settings.client_id.replace("{client}", client) or f"shoal-{contract.federation}-{client}"
    own_folder = client_folder(folder, client)
    with ExitStack() as stack:
        owner = f"the MQTT producer of client {client} of {contract.federation}"
        checkpoint = stack.enter_context(Checkpoint(own_folder / "mqtt.db", owner))
        readings = stack.enter_context(closing(open_readings(config, client, folder)))
        ingest = MqttIngest(
            settings,
            IngestResources(client, contract.width, topics, checkpoint, readings, readings_settings(config.client)),
            counts,
            lambda: Connection(settings, client_id, topics, with_retained=bool(settings.time), steady=steady),
            clock=clock,
            steady=steady,
        )
        yield stack.enter_context(closing(ingest))

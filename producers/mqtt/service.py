"""A client's sensors, listened to until somebody asks for an end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from producers.mqtt.connection import Connection
from producers.mqtt.ingest import IngestCounts, IngestResources, MqttIngest
from producers.mqtt.payloads import topics_of
from producers.mqtt.silence import SilenceMonitor
from producers.progress import Display, display_on
from producers.publisher import client_folder
from producers.report import ProducerTotals
from shoal.config.settings import Config
from shoal.protocol.topics import readings_settings
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.readings_log import open_readings
from shoal.runtime.service import run, stopped_by_signals


def listen(config: Config, client: str, folder: Path, as_events: bool = False) -> ProducerTotals:
    """Listen for `client` until SIGTERM or Ctrl-C; waits out a broker or a disk that is away.

    folder: the folder of the clients' folders; as_events: progress is told as events.
    Raises what waiting does not mend.
    """
    counts = IngestCounts(SilenceMonitor(topics_of(config.mqtt, config.contract, client), config.mqtt.silent_s))
    with stopped_by_signals() as stop, closing(display_on(sys.stderr, time.monotonic, as_events)) as display:

        @contextmanager
        def shown() -> Iterator[Shown]:
            with open_mqtt_ingest(config, client, folder, counts) as listener:
                yield Shown(listener, counts, display)

        run(shown, stop)
    return ProducerTotals(
        False, {client: counts.published}, counts.already_there, counts.position, counts.faults, config.mqtt.address
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
    """The listener as its folder remembers it, let go of at the end. Raises `InvalidState`, or as `Connection`."""
    settings, contract = config.mqtt, config.contract
    topics = topics_of(settings, contract, client)
    client_id = settings.client_id.replace("{client}", client) or f"shoal-{contract.federation}-{client}"
    home = client_folder(folder, client)
    with ExitStack() as stack:
        owner = f"the MQTT producer of client {client} of {contract.federation}"
        checkpoint = stack.enter_context(Checkpoint(home / "mqtt.db", owner))
        readings = stack.enter_context(closing(open_readings(config, client, folder)))
        listener = MqttIngest(
            settings,
            IngestResources(client, contract.width, topics, checkpoint, readings, readings_settings(config.client)),
            counts,
            lambda: Connection(settings, client_id, topics, with_retained=bool(settings.time), steady=steady),
            clock=clock,
            steady=steady,
        )
        yield stack.enter_context(closing(listener))


class Shown:
    """A listener whose progress is shown."""

    def __init__(self, listener: MqttIngest, counts: IngestCounts, display: Display) -> None:
        self._listener, self._counts, self._display = listener, counts, display

    def step(self, timeout_s: float = 0.0) -> bool:
        """See `MqttIngest.step`."""
        busy = self._listener.step(timeout_s)
        self._display.show(self._counts.position, None)
        return busy

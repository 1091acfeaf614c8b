"""A real client in a scratch folder, seen from outside: readings go into its log, and updates into
the federation's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Self

from shoal.client_nodes.bootstrap import open_client
from shoal.client_nodes.node import ClientNode
from shoal.config.contract import Model
from shoal.config.sections import ClientSettings
from shoal.config.settings import Config, LogSettings, ReadingsSettings
from shoal.kernels.arrays import Floats
from shoal.protocol.messages import Update
from shoal.protocol.readings import NUMBER, USER_ID, Reading, number_contents
from shoal.protocol.topics import READINGS, readings_settings
from shoal.runtime.service import resumed
from shoal.transports import open_log
from shoal.transports.base import Headers, Log, Positions, Record, beginning
from shoal.transports.sqlite.log import SqliteLog

NOW = 1e9
"""the clock of audits stands still, and that of their readings logs goes on by a second with each
reading: what is published then depends on readings alone, however long the audit takes"""
NAME = "audited"
Altered = Callable[[int, Reading], bytes]
"""the bytes that are stored of a reading, by its place among those that are written"""


def unaltered(_: int, reading: Reading) -> bytes:
    """The reading as a producer stores it."""
    return reading.encode()


def in_folder(config: Config, folder: Path, models: Sequence[Model]) -> Config:
    """The federation with these models only, on embedded logs in `folder`, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    return config.model_copy(
        update={
            "contract": config.contract.model_copy(update={"models": tuple(models)}),
            "log": LogSettings(address=f"sqlite:{folder / 'federation.db'}"),
            "client": ClientSettings(
                folder=folder / "clients",
                # The longest that may be set: the clock of an audit stands still, and what is
                # published depends on the number of readings alone.
                publish_s=86400,
                batch_readings_max=100_000,
                drop_repeats=config.client.drop_repeats,
            ),
            "readings": ReadingsSettings(),
            "server": config.server.model_copy(update={"folder": folder / "server"}),
        }
    )


def new_records(log: Log, topic: str, positions: Positions) -> tuple[list[Record], Positions]:
    """All records of a topic from these positions on, and the next positions."""
    found: list[Record] = []
    records, positions = log.read(topic, positions)
    while records:
        found += records
        records, positions = log.read(topic, positions)
    return found, positions


class AuditedClient:
    """One client node, resumed, whose readings the audit writes."""

    def __init__(self, config: Config, name: str = NAME) -> None:
        """`config` from `in_folder`."""
        self._config = config
        # If opening fails on the way, what is open is closed; `pop_all` hands it on at the end.
        with ExitStack() as opening:
            own = config.client.folder / name
            own.mkdir(parents=True, exist_ok=True)
            # The folder of an audit is temporary: nothing in it has to outlast a power cut.
            written = SqliteLog(
                own / "readings.db", durable=False, clock=lambda: NOW + self._number
            )
            self._number = 0
            self._readings = opening.enter_context(closing(written))
            self._readings.ensure(READINGS, readings_settings(config.client))
            self.node: ClientNode = opening.enter_context(
                resumed(open_client(config, name, clock=lambda: NOW))
            )
            self._log = opening.enter_context(closing(open_log(config.log)))
            self._positions: Positions = beginning(self._log, config.contract.updates_topic)
            self.step_s = 0.0
            """processor time of the steps since readings were written last, or of the newest
            publication"""
            self.message_bytes = 0
            """size of what it published"""
            self.message_headers: list[Headers] = []
            """headers of each record that it published"""
            self._stack = opening.pop_all()

    def publish(
        self,
        readings: Floats,
        users: Sequence[bytes] = (),
        same_time_as: Sequence[int] = (),
        apart: bool = False,
        altered: Altered = unaltered,
    ) -> list[Update]:
        """Write readings as `write` does and step until idle; returns what was published."""
        self.write(readings, users, same_time_as, apart, altered)
        began = time.process_time()
        while self.node.step():
            pass
        self.step_s = time.process_time() - began
        return self._new_updates()

    def write(
        self,
        readings: Floats,
        users: Sequence[bytes] = (),
        same_time_as: Sequence[int] = (),
        apart: bool = False,
        altered: Altered = unaltered,
    ) -> None:
        """Write readings (n, d) into the client's log. A reading with NaN is rejected.

        `users` (n,): the user id of each reading; without them every reading is from a user of its
        own. `same_time_as` (n,): which of the readings each has its time from; without it each has
        a time of its own. `apart`: the log takes in each reading at a time of its own, which is
        slower; without, all of them at one time. `altered` may change the bytes of a reading, and
        not the headers that a producer gives it.
        """
        first = self._number + 1
        self.step_s = 0.0
        for place, values in enumerate(readings):
            self._number += 1
            user = (USER_ID, users[place] if users else str(self._number).encode())
            taken_at = NOW + first + (same_time_as[place] if same_time_as else place)
            (number,) = number_contents([self._number], [taken_at])
            headers = (*Reading.headers(), (NUMBER, number), user)
            value = altered(place, Reading(taken_at, values))
            self._readings.publish(READINGS, value, headers=headers)
            if apart:
                self._readings.flush()
        self._readings.flush()

    def step(self) -> None:
        """One step of the node."""
        began = time.process_time()
        self.node.step()
        self.step_s += time.process_time() - began

    def _new_updates(self) -> list[Update]:
        records, self._positions = new_records(
            self._log, self._config.contract.updates_topic, self._positions
        )
        self.message_bytes = sum(len(record.value or b"") for record in records)
        self.message_headers = [record.headers for record in records]
        return [Update.decode(record.value, record.headers) for record in records]

    def close(self) -> None:
        """Close the node and its logs."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

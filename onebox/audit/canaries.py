"""The audit by canaries: readings with values that occur nowhere else, sought in all that leaves a client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from onebox.audit.client import NAME, NOW, AuditedClient, in_folder, new_records
from onebox.federation import OneBox
from shoal.config.privacy import declared_bounds
from shoal.config.settings import Config
from shoal.privacy.audit.canaries import canary_readings, occurrences, traces
from shoal.privacy.audit.finding import EventFinding
from shoal.transports import open_log
from shoal.transports.base import beginning

READINGS = 300
USER_ID_BYTES = 12
"""of the user id of each canary, in hexadecimal digits: an id that occurs nowhere else"""


def audit_canaries(config: Config, folder: Path, generator: np.random.Generator) -> EventFinding:
    """Let a client learn and label canaries for every model; search the federation's log and the server's folder."""
    audited = in_folder(config, folder, config.contract.models)
    client = audited.client.model_copy(update={"label": True, "publish_readings": 50})
    audited = audited.model_copy(update={"client": client})
    bounds = declared_bounds(audited.contract)
    readings = canary_readings(bounds, READINGS, generator)
    users = [generator.bytes(USER_ID_BYTES).hex().encode() for _ in readings]
    with AuditedClient(audited) as node:
        node.publish(readings, users)
    with OneBox(audited, [NAME], lambda: NOW) as box:
        box.run_until_idle()
    wanted = traces(readings, bounds) | frozenset(users)
    left = b"\0".join(_what_left(audited))
    subject = ", ".join(model.name for model in audited.contract.models)
    planted = readings.size + len(users)
    found = occurrences(left, wanted)
    return EventFinding("canaries", subject, planted, "values, user ids", found, "traces of them outside the client")


def _what_left(config: Config) -> Iterator[bytes]:
    """Every record of the federation's log, and every file that is not the client's."""
    contract = config.contract
    topics = [contract.updates_topic, contract.snapshots_topic, contract.events_topic]
    topics += [contract.history_topic, contract.rejected_topic]
    with closing(open_log(config.log)) as log:
        for topic in topics:
            for record in new_records(log, topic, beginning(log, topic))[0]:
                yield record.value or b""
    folder = Path(config.log.address.removeprefix("sqlite:")).parent
    for path in sorted(folder.rglob("*")):
        if path.is_file() and config.client.folder not in path.parents:
            yield path.read_bytes()

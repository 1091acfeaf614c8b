"""The audit by canaries: readings with values that occur nowhere else, sought in all that leaves a
client."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from shoal.config.settings import Config
from shoal.kernels.arrays import Floats
from shoal.onebox.audit.client import NAME, NOW, AuditedClient, in_folder, new_records
from shoal.onebox.audit.statistics import EventFinding
from shoal.onebox.federation import OneBox
from shoal.privacy.base import Bounds
from shoal.transports import open_log
from shoal.transports.base import beginning

DIGITS = 14
"""significant digits by which text is searched: a number that is written in full has 15 or more.
With 14, one of 600 canaries is in text of 10 000 random numbers by chance once in ten million
searches; with 10, once in a thousand."""


def canary_readings(bounds: Bounds, n: int, generator: np.random.Generator) -> Floats:
    """(n, d) readings within the bounds, whose values have more digits than any that occur by
    chance."""
    return bounds.from_unit(generator.uniform(0.1, 0.9, size=(n, bounds.d)))


def traces(readings: Floats, bounds: Bounds, digits: int = DIGITS) -> frozenset[bytes]:
    """All byte strings that reveal a value of these readings, in their units or in unit
    coordinates.

    A value may be written as a number of 64 bits in either byte order, or as decimal digits; and a
    whole reading as numbers of 32 bits, of which a single one occurs by chance.
    """
    found: set[bytes] = set()
    for rows in (readings, bounds.to_unit(readings)):
        for value in rows.ravel().tolist():
            found.update(
                (struct.pack("<d", value), struct.pack(">d", value), _digits(value, digits))
            )
        if rows.shape[1] > 1:
            found.update(row.astype(form).tobytes() for row in rows for form in ("<f4", ">f4"))
    return frozenset(found)


def occurrences(where: bytes, wanted: Iterable[bytes]) -> int:
    """Number of the byte strings that occur in `where`."""
    return sum(text in where for text in wanted)


def _digits(value: float, digits: int) -> bytes:
    """The first significant digits, cut and not rounded, with the point; a number below 1 without
    the 0 before it."""
    whole, _, rest = f"{abs(value):.17f}".partition(".")
    if whole != "0":
        return f"{whole}.{rest}"[: digits + 1].encode()
    return f".{rest}"[: len(rest) - len(rest.lstrip("0")) + digits + 1].encode()


READINGS = 300
USER_ID_BYTES = 12
"""bytes of the user id of each canary, which is written in hexadecimal digits and occurs nowhere
else"""


def audit_canaries(config: Config, folder: Path, generator: np.random.Generator) -> EventFinding:
    """Let a client learn and label canaries for every model; search the federation's log and the
    server's folder."""
    audited = in_folder(config, folder, config.contract.models)
    client = audited.client.model_copy(update={"label": True, "publish_readings": 50})
    audited = audited.model_copy(update={"client": client})
    bounds = audited.resolved.bounds
    readings = canary_readings(bounds, READINGS, generator)
    users = [generator.bytes(USER_ID_BYTES).hex().encode() for _ in readings]
    with AuditedClient(audited) as node:
        node.publish(readings, users)
    with OneBox(audited, [NAME], lambda: NOW) as box:
        box.run_until_idle()
    wanted = traces(readings, bounds) | frozenset(users)
    # With a byte between them, so that nothing is found across the end of one record and the start
    # of the next.
    left = b"\0".join(what_left(audited))
    subject = ", ".join(model.name for model in audited.contract.models)
    planted = readings.size + len(users)
    found = occurrences(left, wanted)
    return EventFinding(
        "canaries", subject, planted, "values, user ids", found, "traces of them outside the client"
    )


def what_left(config: Config) -> Iterator[bytes]:
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

"""A process that only reads snapshots: `python -m benchmarks.path.observer FILE`.

It prints a JSON line for each snapshot when it has decoded it. If the log is unavailable, it tries
again.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from pathlib import Path

from shoal.config.settings import Config, load_config
from shoal.errors import LogUnavailable
from shoal.protocol.messages import Snapshot
from shoal.transports import open_log
from shoal.transports.base import Positions, Record

POLL_S = 0.25
AGAIN_S = 0.05


def watch(config: Config) -> None:
    """Read snapshots until the process is killed."""
    at: Positions = {0: 0}
    while True:
        try:
            with closing(open_log(config.log)) as log:
                while True:
                    records, at = log.read(config.contract.snapshots_topic, at, timeout_s=POLL_S)
                    for record in records:
                        # Leases are in this topic too.
                        if ("type", Snapshot.TYPE.encode()) in record.headers:
                            report(record)
        except LogUnavailable:
            time.sleep(AGAIN_S)


def report(record: Record) -> None:
    """Print time, version, position and bytes of a snapshot. It is decoded first, as a reader
    would."""
    snapshot = Snapshot.decode(record.value, record.headers)
    at = time.time()
    size = (
        len(record.value or b"")
        + len(record.key or b"")
        + sum(len(n) + len(c) for n, c in record.headers)
    )
    print(json.dumps([at, snapshot.version, snapshot.read_up_to[0], size]), flush=True)


if __name__ == "__main__":
    watch(load_config(Path(sys.argv[1])))

"""A server with many clients: what it takes to ingest their updates, to restart from its
checkpoint, and to rebuild.

    python -m benchmarks restarts

The updates are those of 20 clients that have learnt readings, each published under many names.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from benchmarks.grown_federation import Size, absorbed_by, opened, stepped_s, steps
from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, quick_option, rounded, table, write
from shoal.config.settings import Config
from shoal.kernels.forms import PROCESS
from shoal.protocol.messages import Update
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.node import ServerNode
from shoal.transports import open_log
from shoal.transports.base import Record, beginning

CLIENTS = (100, 1_000, 10_000)
REAL = 20
"""clients that learn; the others publish the same"""
READINGS = 1_000
"""readings of each client, in two updates"""
MIB = 2**20


def measured(clients: int, folder: Path) -> dict[str, Any]:
    """Processor seconds of a server with this many clients, a multiple of `REAL`."""
    with ExitStack() as stack:
        first = opened(stack, folder, "first", Size(readings=READINGS, clients=REAL))
        for _ in steps(first, Size(readings=READINGS, clients=REAL)):
            pass
        updates = _updates(first.config)
    (folder / "many").mkdir()
    with ExitStack() as stack:
        # Under the same name, so that the updates are of its contract.
        many = opened(stack, folder / "many", "first", Size(readings=READINGS, clients=REAL))
        _publish(many.config, updates, clients // REAL)
        ingest_s = stepped_s(many.server.step)
        absorbed = absorbed_by(many.server)
    assert absorbed == clients * READINGS, absorbed
    folder = many.config.server.folder
    size = (folder / "checkpoint.db").stat().st_size
    restart_s = _until_all_is_there(resumed(open_server(many.config)), absorbed)
    shutil.rmtree(folder)
    rebuild_s = _until_all_is_there(resumed(open_server(many.config, rebuild=True)), absorbed)
    return {
        "clients": clients,
        "updates": clients // REAL * len(updates),
        "ingest_s": ingest_s,
        "restart_s": restart_s,
        "rebuild_s": rebuild_s,
        "checkpoint_bytes": size,
    }


def _updates(config: Config) -> list[Record]:
    found: list[Record] = []
    with closing(open_log(config.log)) as log:
        at = beginning(log, config.contract.updates_topic)
        while True:
            records, at = log.read(config.contract.updates_topic, at)
            if not records:
                return found
            found += [
                record for record in records if ("type", Update.TYPE.encode()) in record.headers
            ]


def _publish(config: Config, updates: list[Record], copies: int) -> None:
    with closing(open_log(config.log)) as log:
        for copy in range(copies):
            for record in updates:
                update = Update.decode(record.value or b"", record.headers)
                renamed = replace(update, client=f"{update.client}-{copy}")
                log.publish(
                    config.contract.updates_topic, renamed.encode(), record.key, record.headers
                )
        log.flush()


def _until_all_is_there(opening: AbstractContextManager[ServerNode], absorbed: int) -> float:
    """Open a server and step until it has the readings that it had absorbed, and its status;
    processor seconds."""
    began = time.process_time()
    with opening as server:
        while server.step():
            pass
        server.status()  # which a page would show
        there = absorbed_by(server)
        spent_s = time.process_time() - began
    assert there == absorbed, f"{there} readings instead of {absorbed}"
    return spent_s


@click.command(context_settings={"max_content_width": 100})
@quick_option("20 and 40 clients")
@out_option("restarts")
def main(quick: bool, out: Path) -> None:
    """Measure restarts and rebuilds of servers with up to 10 000 clients, in two minutes."""
    # In the foreground: what they take to be compiled is not what a server takes for an update.
    PROCESS.load()
    machine = facts(("shoal", "numpy", "msgpack", "numba"))
    lines = []
    for clients in (REAL, 2 * REAL) if quick else CLIENTS:
        with tempfile.TemporaryDirectory() as scratch:
            lines.append(measured(clients, Path(scratch)))
        click.echo(str(lines[-1]))
    result = {
        "made_by": f"python -m benchmarks restarts{' --quick' * quick}",
        "machine": machine,
        "lines": lines,
        "load_after": round(os.getloadavg()[0], 2),
    }
    write(out, "restarts", result, markdown(result))
    click.echo(f"written to {out}/restarts.json and {out}/restarts.md")


def markdown(result: dict[str, Any]) -> str:
    """The result as a Markdown page."""
    cells = [
        [rounded(line["clients"]), rounded(line["updates"])]
        + [rounded(line[name]) for name in ("ingest_s", "restart_s", "rebuild_s")]
        + [rounded(line["checkpoint_bytes"] / MIB)]
        for line in result["lines"]
    ]
    heads = [
        "clients",
        "updates",
        "ingests, CPU s",
        "restarts, CPU s",
        "rebuilds, CPU s",
        "checkpoint, MiB",
    ]
    return (
        f"# Restarts of a server\n\nMade by `{result['made_by']}`; do not"
        f" edit.\n\n{table(heads, cells)}\nAn FCAC model of 100 nodes and 16 features; each client"
        f" has {READINGS} readings. It restarts from its checkpoint, and rebuilds from the log,"
        " until its status has all readings.\n\nLoad average"
        f" {result['machine']['load_average_1min']} before, {result['load_after']}"
        f" after.\n\n{one_line(result['machine'])}\n"
    )

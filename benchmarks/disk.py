"""What a million readings leave on the disks of a federation on the embedded log: file by file, and
table by table."""

from __future__ import annotations

import sqlite3
import tempfile
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import click

from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, quick_option, rounded, table, write
from benchmarks.streams import Blobs
from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import load_config
from shoal.kernels.forms import PROCESS
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS, readings_settings
from shoal.runtime.logs import open_client_log
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.node import ServerNode
from shoal.transports.base import Log

CLIENTS = 4
FEATURES = 3
BLOBS = 6
WALK_READINGS = 600
SEED = 4
BEGAN_S = 1_700_000_000.0
UPDATE_READINGS = 10
"""readings of an update: those of `publish_s`, where a sensor gives one a second"""
MODELS = (("clusters", "fcac"), ("tree", "cluster_tree"), ("fine", "fcac"))
PARTS = {
    "readings.db": "readings logs of clients",
    "federation.db": "the embedded log",
    "checkpoint.db": "checkpoints",
    "history.db": "the server's history",
}
"""name of a file -> what it is; the others together are the rest"""
REST = "the rest"
FIRST = "f69c57ea"
BEFORE = {"readings logs of clients": 115.0, "the embedded log": 258.0}
"""MB of a million readings in the logs with commit `FIRST`, by this command"""
TABLES_SHOWN = 6


@click.command(context_settings={"max_content_width": 100})
@quick_option("A short stream")
@click.option(
    "--readings",
    type=click.IntRange(600),
    default=2_000,
    show_default=True,
    help="Readings of each client.",
)
@out_option("disk")
def main(quick: bool, readings: int, out: Path) -> None:
    """Measure a federation of four clients with three models, to which readings come one by one and
    which publishes after ten.

    What the second half of the stream adds is counted: files begin with pages that stay.
    """
    if quick:
        # With fewer, the second half may find room in the pages of the first.
        readings = 600
    PROCESS.start()
    # Not in memory: the size of a page's file is that of a disk.
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as scratch:
        half, whole = measured(Path(scratch), readings)
    added = CLIENTS * (readings - readings // 2)
    files = per_million(half["files"], whole["files"], added)
    result = {
        "made_by": f"python -m benchmarks disk --readings {readings}",
        "machine": facts(("shoal", "numpy", "msgpack")),
        "clients": CLIENTS,
        "readings": readings,
        "update_readings": UPDATE_READINGS,
        "features": FEATURES,
        "mb_per_million": files,
        "tables_mb_per_million": per_million(half["tables"], whole["tables"], added),
        "begins_with_mb": {name: size / 1e6 for name, size in whole["empty"].items()},
        "before": {"commit": FIRST, **BEFORE},
    }
    write(out, "disk", result, markdown(result))
    click.echo(f"written to {out}/disk.json and {out}/disk.md")


def measured(folder: Path, readings: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Bytes by file and by table after half of the readings, and after all of them."""
    file = folder / "federation.toml"
    file.write_text(_federation(), encoding="utf-8")
    config = load_config(file)
    with ExitStack() as stack:
        server = stack.enter_context(resumed(open_server(config)))
        clients = []
        for number in range(CLIENTS):
            name = f"client-{number}"
            (config.client.folder / name).mkdir(parents=True)
            log = stack.enter_context(closing(open_client_log(config, name)))
            log.ensure(READINGS, readings_settings(config.client))
            node = stack.enter_context(resumed(open_client(config, name)))
            stream = Blobs(FEATURES, BLOBS, WALK_READINGS, SEED, number)
            clients.append((log, stream, node))
        empty = sizes(folder)["files"]
        half: dict[str, dict[str, int]] = {}
        for first in range(0, readings, UPDATE_READINGS):
            if not half and first >= readings // 2:
                half = sizes(folder)
            for log, stream, node in clients:
                _take(log, first, stream.draw(min(UPDATE_READINGS, readings - first)))
                while node.step():
                    pass
            _absorb(server)
        return half, sizes(folder) | {"empty": empty}


def _take(log: Log, first: int, rows: Any) -> None:
    """Readings as a sensor gives them: each is stored before the next comes."""
    for place, row in enumerate(rows):
        reading = Reading(BEGAN_S + first + place, row)
        log.publish(READINGS, reading.encode(), None, Reading.headers())
        log.flush()


def _absorb(server: ServerNode) -> None:
    while server.step():
        pass


def sizes(folder: Path) -> dict[str, dict[str, int]]:
    """Bytes of all files of each kind, and of each kind's tables and free pages.

    Of a database what is in its write-ahead log counts where it will be, and that log itself does
    not: its size says when it was last moved.
    """
    files: Counter[str] = Counter()
    tables: Counter[str] = Counter()
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name.endswith(("-wal", "-shm")):
            continue
        kind = PARTS.get(path.name, REST)
        # A process has its checkpoint for itself.
        if path.suffix != ".db" or path.name == "checkpoint.db":
            files[kind] += path.stat().st_size
            continue
        with closing(sqlite3.connect(path)) as db:
            page_bytes = db.execute("PRAGMA page_size").fetchone()[0]
            files[kind] += page_bytes * db.execute("PRAGMA page_count").fetchone()[0]
            names = _topics(db)
            pages = "SELECT name, sum(pgsize) FROM dbstat GROUP BY name"
            for name, size in db.execute(pages).fetchall():
                tables[f"{kind}: {names.get(name, name)}"] += size
            free = db.execute("PRAGMA freelist_count").fetchone()[0]
            tables[f"{kind}: free pages"] += page_bytes * free
    return {"files": dict(files), "tables": dict(tables)}


def _topics(db: sqlite3.Connection) -> dict[str, str]:
    """Name of a table -> its topic, in a log."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'topics'").fetchone():
        return {}
    rows = db.execute("SELECT number, name, partitions FROM topics").fetchall()
    return {
        f"rows_{number}_{partition}": name
        for number, name, partitions in rows
        for partition in range(partitions)
    }


def per_million(before: dict[str, int], after: dict[str, int], readings: int) -> dict[str, float]:
    """MB (10^6 bytes) that a million readings add, by name; the most first."""
    added = {name: (size - before.get(name, 0)) / readings for name, size in after.items()}
    return dict(sorted(added.items(), key=lambda item: -item[1]))


def _federation() -> str:
    features = "".join(
        f'[[features]]\nname = "x{number}"\nlow = 0.0\nhigh = 1.0\n' for number in range(FEATURES)
    )
    models = "".join(
        f'[[models]]\nname = "{name}"\nalgorithm = "{algorithm}"\n' for name, algorithm in MODELS
    )
    return (
        f'[federation]\nname = "disk"\n{features}'
        f'[privacy]\nmode = "formal"\nepsilon_per_reading = {20 * FEATURES}\n{models}'
        '[log]\naddress = "sqlite:federation.db"\n[client]\nfolder = "clients"\n'
        # By number alone: what is stored must not depend on how fast the machine is.
        f"publish_readings = {UPDATE_READINGS}\npublish_s = 86400.0\n"
        '[server]\nfolder = "server"\nport = 0\npool_clients = 1\n'
    )


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    before = {name: size for name, size in result["before"].items() if name != "commit"}
    files = result["mb_per_million"]
    lines = []
    for name, size in files.items():
        was = rounded(before[name]) if name in before else "-"
        begins = rounded(result["begins_with_mb"].get(name, 0.0))
        lines.append([name, rounded(size), was, begins])
    logs = sum(files[name] for name in before)
    lines.append(["both logs", rounded(logs), rounded(sum(before.values())), "-"])
    largest = list(result["tables_mb_per_million"].items())[:TABLES_SHOWN]
    return "\n".join(
        [
            f"# What a million readings leave on disks\n\nMade by `{result['made_by']}`; do not"
            " edit.\n",
            table(
                ["files", "MB of a million readings", f"of {FIRST}", "MB before the first"],
                lines,
            ),
            table(
                ["the largest tables", "MB of a million readings"],
                [[name, rounded(size)] for name, size in largest],
            ),
            (
                f"{result['clients']} clients with {len(MODELS)} models (two of FCAC, one of"
                f" cluster_tree), formal privacy and {result['features']} features. Readings come"
                f" one by one and are stored one by one; an update of each model is published"
                f" after {result['update_readings']}, as a sensor with one a second does by"
                f" default. {result['readings']} readings of each client, of which the second half"
                " is counted. Values are random in all their digits, as none of a sensor are."
                " What checkpoints and the history add ends with the growth of the models, and"
                " with the first day; logs go on. MB are 10^6 bytes.\n"
            ),
            one_line(result["machine"]) + "\n",
        ]
    )

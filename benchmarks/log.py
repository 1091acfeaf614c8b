"""Messages per second through the embedded log and through a plain file: one writer process, one
reader process.

    python -m benchmarks.log --repeats 3

Every figure is messages per second from the first publish to the last record read; beside it, in
the same run, a plain append-only file written and read the same way, with and without fsync. Writes
benchmarks/results/log.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sqlite3
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path

from shoal.transports.sqlite.log import SqliteLog

RESULTS = Path(__file__).parent / "results" / "log.json"
TOPIC = "bench"
SHAPES = (
    (1000, 100, 40_000),
    (1000, 1000, 60_000),
    (1000, 1, 2000),
    (100_000, 10, 2000),
    (100_000, 1, 500),
)
"""bytes of a message, messages of a commit, messages in all"""
spawn = multiprocessing.get_context("spawn")
Writer = Callable[[Path, bool, int, int, int], None]


def write_log(path: Path, durable: bool, size: int, batch: int, total: int) -> None:
    with closing(SqliteLog(path, durable=durable, buffer_bytes_max=1 << 30)) as log:
        for number in range(total):
            log.publish(TOPIC, struct.pack("<q", number) + bytes(size - 8))
            if number % batch == batch - 1:
                log.flush()


def write_file(path: Path, durable: bool, size: int, batch: int, total: int) -> None:
    with path.open("ab", buffering=0) as file:
        waiting = []
        for number in range(total):
            waiting.append(struct.pack("<qq", size, number) + bytes(size - 8))
            if len(waiting) == batch:
                file.write(b"".join(waiting))
                if durable:
                    os.fsync(file.fileno())
                waiting.clear()


def read_log(path: Path, total: int) -> None:
    with closing(SqliteLog(path)) as log:
        at = {0: 0}
        seen = 0
        while seen < total:
            records, at = log.read(TOPIC, at, timeout_s=60)
            if not records:
                raise SystemExit(f"no message after message {seen}")
            seen = check(
                seen, [struct.unpack_from("<q", record.value or b"")[0] for record in records]
            )


def read_file(path: Path, total: int) -> None:
    with path.open("rb") as file:
        rest = b""
        seen = 0
        while seen < total:
            rest += file.read(1 << 20)
            at = 0
            numbers = []
            while len(rest) - at >= 16:
                size, number = struct.unpack_from("<qq", rest, at)
                if len(rest) - at < 8 + size:
                    break
                bytes(rest[at + 16 : at + 8 + size])
                numbers.append(number)
                at += 8 + size
            rest = rest[at:]
            seen = check(seen, numbers)
            if not numbers:
                time.sleep(0.001)


def check(seen: int, numbers: list[int]) -> int:
    """Every message once and in order, or the figure means nothing."""
    if numbers != list(range(seen, seen + len(numbers))):
        raise SystemExit(f"the reader expected message {seen} and those after it")
    return seen + len(numbers)


def writing(
    go: Connection, write: Writer, path: Path, durable: bool, size: int, batch: int, total: int
) -> None:
    go.send("ready")
    go.recv()
    write(path, durable, size, batch, total)


def once(kind: str, durable: bool, size: int, batch: int, total: int) -> float:
    """Messages per second, writer and reader at once."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.db"
        if kind == "log":
            with closing(SqliteLog(path)) as log:
                log.ensure(TOPIC)
        else:
            path.touch()
        here, there = spawn.Pipe()
        write, read = (write_log, read_log) if kind == "log" else (write_file, read_file)
        writer = spawn.Process(
            target=writing, args=(there, write, path, durable, size, batch, total)
        )
        writer.start()
        here.recv()
        began = time.perf_counter()
        here.send("go")
        read(path, total)
        took = time.perf_counter() - began
        writer.join()
        return total / took


def compare(size: int, batch: int, total: int, durable: bool, repeats: int) -> dict[str, object]:
    """One row: the log and the file in turn, so that a busy machine is busy for both."""
    runs: dict[str, list[float]] = {"log": [], "file": []}
    for _ in range(repeats):
        for kind, rates in runs.items():
            rates.append(once(kind, durable, size, batch, total))
    log, file = (statistics.median(runs[kind]) for kind in ("log", "file"))
    print(
        f"{size:>7} B x {batch:<4} {'durable' if durable else 'relaxed'}: log {log:>9,.0f}/s  "
        f"file {file:>9,.0f}/s  ratio {log / file:.2f}"
    )
    return {
        "message_bytes": size,
        "messages_per_commit": batch,
        "messages": total,
        "durable": durable,
        "log_messages_per_s": round(log),
        "log_megabytes_per_s": round(log * size / 1e6, 1),
        "file_messages_per_s": round(file),
        "log_to_file": round(log / file, 2),
        "log_runs": [round(rate) for rate in runs["log"]],
        "file_runs": [round(rate) for rate in runs["file"]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="runs of each case, taken in turn (default 3)"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the messages to send (default 1.0)"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = {
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "system": platform.system(),
    }
    rows = []
    for size, batch, full in SHAPES:
        total = max(1, round(full * options.scale / batch)) * batch
        rows += [compare(size, batch, total, durable, options.repeats) for durable in (True, False)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(
        json.dumps({"machine": machine, "repeats": options.repeats, "rows": rows}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()

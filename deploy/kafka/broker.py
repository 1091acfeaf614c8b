#!/usr/bin/env python3
"""Starts and stops real Kafka brokers on loopback, from Maven jars. Needs Java 17 and Maven.

    broker.py start [--dir DIR] [--port 9092] [--nodes 1]   fetch the jars once, format once, start,
    return when ready broker.py stop  [--dir DIR]                             shut down in order

One node writes into DIR, several into DIR/node-1, DIR/node-2, ..., on ports 9092, 9094, ... The
controller of each uses the next port. The jars are kept in $XDG_CACHE_HOME/shoal (or
~/.cache/shoal).
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
FOLDER = Path("kafka-data")
PORT = 9092
START_S = 120.0
STOP_S = 60.0
KILL_S = 30.0
JAVA_MIN = 17
# For a small machine: about 200 MB resident.
JAVA = (
    "java",
    "-Xms96m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:MaxMetaspaceSize=128m",
)
HEAP_SINGLE = "-Xmx512m"
HEAP_CLUSTER = "-Xmx256m"
LOGGING = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)


class BrokerError(Exception):
    """A broker cannot be started or stopped; the message is one sentence with the reason."""


class Node(NamedTuple):
    """One process, broker and controller in one; the controller listens on the next port."""

    number: int
    folder: Path
    port: int


def cluster_of(folder: Path, port: int, nodes: int = 1) -> list[Node]:
    """The nodes whose files are in `folder`."""
    folder = folder.resolve()
    if nodes == 1:
        return [Node(1, folder, port)]
    return [
        Node(number + 1, folder / f"node-{number + 1}", port + 2 * number)
        for number in range(nodes)
    ]


def what_is_missing() -> str | None:
    """Why this machine cannot run a broker, or None when it can."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            return f"no {program} on the PATH; on Debian: apt install openjdk-17-jre-headless maven"
    output = subprocess.run(
        ["java", "-version"], capture_output=True, text=True, check=False
    ).stderr
    version = re.search(r'version "(\d+)', output)
    if version is None or int(version[1]) < JAVA_MIN:
        return (
            f"Kafka needs Java {JAVA_MIN} or later; `java -version` prints"
            f" {output.splitlines()[:1]}"
        )
    return None


def jars() -> Path:
    """The folder of jars, fetched on first use. It gets its name when complete, so later starts can
    rely on it."""
    version = re.search(
        r"<kafka\.version>(.*)</kafka\.version>", (HERE / "pom.xml").read_text(encoding="utf-8")
    )
    assert version is not None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal"
    folder = cache / f"kafka-{version[1]}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        shutil.copy(HERE / "pom.xml", scratch)
        command = [
            "mvn",
            "--quiet",
            "--batch-mode",
            "--file",
            f"{scratch}/pom.xml",
            f"-Djars={scratch}/jars",
            "package",
        ]
        fetched = subprocess.run(command, capture_output=True, text=True, check=False)
        if fetched.returncode != 0:
            raise BrokerError(
                f"Maven could not fetch the jars: {(fetched.stdout + fetched.stderr)[-2000:]}"
            )
        try:
            Path(scratch, "jars").rename(folder)
        except OSError:
            # Another process may have fetched them meanwhile.
            if not folder.is_dir():
                raise
        else:
            # Without them a broker only starts more slowly, as where Java has no such option.
            with suppress(BrokerError, FileNotFoundError):
                _archive_classes(folder, Path(scratch))
    return folder


def _archive(folder: Path) -> Path:
    """The classes of a folder of jars as the JVM lays them out in memory: a broker starts in half
    the time with them.

    The JVM passes a file over that does not fit, as after an upgrade of Java.
    """
    return folder.parent / f"{folder.name}.jsa"


def _archive_classes(folder: Path, scratch: Path) -> None:
    """Start a broker for once, whose JVM writes them when it ends. Raises `BrokerError`."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = scratch / "classes.jsa"
    (broker,) = start(
        cluster_of(scratch / "broker", port), java_options=[f"-XX:ArchiveClassesAtExit={made}"]
    )
    broker.terminate()
    broker.wait()
    if _is_read(made, folder, scratch):
        made.rename(_archive(folder))


def _is_read(archive: Path, folder: Path, scratch: Path) -> bool:
    """Whether the JVM reads these classes: with an archive that was cut off, as by a full disk, it
    ends with SIGBUS."""
    options = (
        "-XX:+VerifySharedSpaces",
        f"-XX:SharedArchiveFile={archive}",
        "-cp",
        str(folder / "*"),
        "-version",
    )
    return (
        subprocess.run([*JAVA, *options], capture_output=True, check=False, cwd=scratch).returncode
        == 0
    )


def start(
    cluster: Sequence[Node],
    only: Sequence[Node] = (),
    more: str = "",
    format_options: Sequence[str] = (),
    java_options: Sequence[str] = (),
) -> list[subprocess.Popen[bytes]]:
    """Start a cluster, or only the nodes in `only`; returns their processes once they are ready.
    Raises `BrokerError`.

    `more` are additional lines of server.properties, `format_options` additional options of the
    first formatting, `java_options` of the JVM of a broker.
    """
    starting = only or cluster
    for node in starting:
        running = pid_of(node.folder)
        if running is not None:
            raise BrokerError(
                f"a broker already runs in {node.folder}, process {running}; stop it first"
            )
        _check_ports(node)
    heap = HEAP_SINGLE if len(cluster) == 1 else HEAP_CLUSTER
    folder = jars()
    java = [*JAVA, heap, *LOGGING]
    if _archive(folder).exists():
        java.append(f"-XX:SharedArchiveFile={_archive(folder)}")
    java += ["-cp", str(folder / "*")]
    for node in starting:
        _write_properties(node, cluster, more)
    if not (cluster[0].folder / "data" / "meta.properties").exists():
        _format(java, cluster, format_options)
    program = [*java, *java_options, "kafka.Kafka"]
    processes = [_launch([*program, str(_properties(node))], node.folder) for node in starting]
    # Wait after starting all: the first one is not ready before a majority of controllers runs.
    for node, process in zip(starting, processes, strict=True):
        _wait_until_ready(node, process)
    return processes


def _check_ports(node: Node) -> None:
    """Raises `BrokerError` for a port in use: the broker itself would end with a page of Java."""
    for port in (node.port, node.port + 1):
        with closing(socket.socket()) as listening:
            # As the broker: connections of one that was stopped keep its port for a minute.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listening.bind(("127.0.0.1", port))
                listening.listen()
            except OSError as refused:
                raise BrokerError(
                    f"port {port} cannot be used ({refused.strerror}): stop what uses it, or choose"
                    " another with --port; the broker's controller needs the next port"
                ) from None


def stop(folder: Path) -> None:
    """Shut down the brokers in `folder`, if any run, and wait until they have ended.

    One that has not ended after `STOP_S` seconds is killed, as a service manager would do: the last
    controller of a cluster may wait minutes for a majority that has ended. What is in the log files
    survives that. Raises `BrokerError`.
    """
    running: list[Path] = []
    # All at once: a controller without a majority would wait for the others.
    for node in (folder, *folder.glob("node-*")):
        pid = pid_of(node)
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            running.append(node)
    until = time.monotonic() + STOP_S
    for node in running:
        if _has_ended(node, until):
            continue
        pid = pid_of(node)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        if not _has_ended(node, time.monotonic() + KILL_S):
            raise BrokerError(
                f"process {pid} did not end when it was killed; see {node / 'broker.log'}"
            )


def _has_ended(folder: Path, until: float) -> bool:
    """Whether the broker in `folder` ends before that moment of the monotonic clock."""
    while pid_of(folder) is not None:
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def pid_of(folder: Path) -> int | None:
    """The process id of the broker that runs in `folder`, if one does."""
    try:
        pid = int((folder / "pid").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    # Process ids are reused: it is the broker only if it was started with this folder's file.
    process = subprocess.run(
        ["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    is_broker = str(folder.resolve() / "server.properties") in process.stdout
    return pid if is_broker else None


def _properties(node: Node) -> Path:
    return node.folder / "server.properties"


def _write_properties(node: Node, cluster: Sequence[Node], more: str) -> None:
    node.folder.mkdir(parents=True, exist_ok=True)
    replicas = min(3, len(cluster))
    known = {
        "number": node.number,
        "port": node.port,
        "controller_port": node.port + 1,
        "controllers": ",".join(f"127.0.0.1:{member.port + 1}" for member in cluster),
        "folder": node.folder,
        "replicas": replicas,
        "replicas_min": max(1, replicas - 1),
    }
    text = (HERE / "server.properties").read_text(encoding="utf-8") + more
    for name, value in known.items():
        text = text.replace(f"@{name}@", str(value))
    _properties(node).write_text(text, encoding="utf-8")


def _format(java: Sequence[str], cluster: Sequence[Node], more: Sequence[str]) -> None:
    controllers = ",".join(
        f"{node.number}@127.0.0.1:{node.port + 1}:{_random_id()}" for node in cluster
    )
    tool = [
        *java,
        "kafka.tools.StorageTool",
        "format",
        "--initial-controllers",
        controllers,
        "-t",
        _random_id(),
        *more,
    ]
    # All at once: each starts a JVM.
    processes: list[subprocess.Popen[bytes]] = []
    for node in cluster:
        command = [*tool, "-c", str(_properties(node))]
        processes.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        )
    for formatting in processes:
        output = formatting.communicate()[0].decode(errors="replace")
        if formatting.returncode != 0:
            raise BrokerError(f"formatting failed: {output[-2000:]}")


def _random_id() -> str:
    """A random id in Kafka's format, without a leading "-", which would be read as an option."""
    while True:
        new_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not new_id.startswith("-"):
            return new_id


def _launch(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "broker.log").open("wb") as out:
        broker = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    (folder / "pid").write_text(str(broker.pid), encoding="utf-8")
    return broker


def _wait_until_ready(node: Node, broker: subprocess.Popen[bytes]) -> None:
    log = node.folder / "broker.log"
    until = time.monotonic() + START_S
    # The port opens up to a second before the broker responds; it logs this line when it does.
    while b"Kafka Server started" not in log.read_bytes():
        if broker.poll() is not None:
            raise BrokerError(
                f"the broker ended with {broker.returncode}:"
                f" {log.read_text(errors='replace')[-2000:]}"
            )
        if time.monotonic() > until:
            broker.kill()
            raise BrokerError(f"the broker was not ready in {START_S:.0f} s; see {log}")
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["start", "stop"])
    parser.add_argument("--dir", type=Path, default=FOLDER)
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--nodes", type=int, default=1, choices=range(1, 10), metavar="1..9")
    arguments = parser.parse_args()
    try:
        if arguments.verb == "stop":
            stop(arguments.dir)
            return
        if (missing := what_is_missing()) is not None:
            raise BrokerError(missing)
        cluster = cluster_of(arguments.dir, arguments.port, arguments.nodes)
        brokers = start(cluster)
    except BrokerError as error:
        sys.exit(f"broker.py: {error}")
    for broker in brokers:
        broker.returncode = 0  # it outlives this program, so that Popen must not warn
    addresses = ",".join(f"127.0.0.1:{node.port}" for node in cluster)
    pids = ", ".join(str(broker.pid) for broker in brokers)
    print(f"kafka://{addresses} is ready; process {pids}, files in {arguments.dir}")


if __name__ == "__main__":
    main()

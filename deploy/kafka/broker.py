#!/usr/bin/env python3
"""Real Kafka brokers on loopback, from Maven jars: started and stopped by one command. Needs Java 17 and Maven.

    broker.py start [--dir DIR] [--port 9092] [--nodes 1]   fetch the jars once, format once, start, return when ready
    broker.py stop  [--dir DIR]                             a controlled shutdown

One node writes into DIR, several into DIR/node-1, DIR/node-2, ..., on ports 9092, 9094, ... The port after each is
its controller's. The jars are kept in $XDG_CACHE_HOME/shoal (or ~/.cache/shoal).
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
FOLDER = Path("kafka-data")
PORT = 9092
START_S = 120.0
STOP_S = 60.0
JAVA_MIN = 17
# A small machine's share: about 200 MB resident.
JAVA = ("java", "-Xms96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:MaxMetaspaceSize=128m")
HEAP_ALONE, HEAP_OF_SEVERAL = "-Xmx512m", "-Xmx256m"
SAY = ("-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS")


class Trouble(Exception):
    """Why there is no broker; one sentence."""


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
    return [Node(number + 1, folder / f"node-{number + 1}", port + 2 * number) for number in range(nodes)]


def what_is_missing() -> str | None:
    """Why this machine cannot run a broker, or None when it can."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            return f"no {program} on the PATH; on Debian: apt install openjdk-17-jre-headless maven"
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < JAVA_MIN:
        return f"Kafka needs Java {JAVA_MIN} or later; `java -version` says {said.splitlines()[:1]}"
    return None


def jars() -> Path:
    """The folder of jars, fetched on first use. It is named once it is whole, so a second start can trust it."""
    version = re.search(r"<kafka\.version>(.*)</kafka\.version>", (HERE / "pom.xml").read_text(encoding="utf-8"))
    assert version is not None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal"
    kept = cache / f"kafka-{version[1]}"
    if kept.is_dir():
        return kept
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as aside:
        shutil.copy(HERE / "pom.xml", aside)
        words = ["mvn", "--quiet", "--batch-mode", "--file", f"{aside}/pom.xml", f"-Djars={aside}/jars", "package"]
        fetched = subprocess.run(words, capture_output=True, text=True, check=False)
        if fetched.returncode != 0:
            raise Trouble(f"Maven could not fetch the jars: {(fetched.stdout + fetched.stderr)[-2000:]}")
        try:
            Path(aside, "jars").rename(kept)
        except OSError:
            if not kept.is_dir():  # nobody else was faster
                raise
    return kept


def start(
    cluster: Sequence[Node], only: Sequence[Node] = (), more: str = "", format_words: Sequence[str] = ()
) -> list[subprocess.Popen[bytes]]:
    """Start a cluster, or only these of its nodes; their processes, once they answer. Raises `Trouble`.

    `more`: further lines of server.properties; `format_words`: further words for the first formatting.
    """
    starting = only or cluster
    for node in starting:
        if (running := pid_of(node.folder)) is not None:
            raise Trouble(f"a broker runs in {node.folder} already, process {running}; stop it first")
    heap = HEAP_ALONE if len(cluster) == 1 else HEAP_OF_SEVERAL
    java = [*JAVA, heap, *SAY, "-cp", str(jars() / "*")]
    for node in starting:
        _write_properties(node, cluster, more)
    if not (cluster[0].folder / "data" / "meta.properties").exists():
        _format(java, cluster, format_words)
    processes = [_launch([*java, "kafka.Kafka", str(_properties(node))], node.folder) for node in starting]
    # Only together are they ready: the first one waits for a majority of controllers.
    for node, process in zip(starting, processes, strict=True):
        _wait_until_ready(node, process)
    return processes


def stop(folder: Path) -> None:
    """Ask the brokers to shut down and wait until they have. Nothing to do when none runs."""
    homes = [home for home in (folder, *folder.glob("node-*")) if pid_of(home) is not None]
    # All at once: one that is left without a majority waits for it in vain.
    for home in homes:
        if (pid := pid_of(home)) is not None:
            os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + STOP_S
    for home in homes:
        while (pid := pid_of(home)) is not None:
            if time.monotonic() > until:
                raise Trouble(f"process {pid} did not end in {STOP_S:.0f} s; see {home / 'broker.log'}")
            time.sleep(0.05)


def pid_of(folder: Path) -> int | None:
    """The process id of the broker that runs in `folder`, if one does."""
    try:
        pid = int((folder / "pid").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    # Numbers are used again: it is the broker only if it was started with this folder's file.
    shown = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return pid if str(folder.resolve() / "server.properties") in shown.stdout else None


def _properties(node: Node) -> Path:
    return node.folder / "server.properties"


def _write_properties(node: Node, cluster: Sequence[Node], more: str) -> None:
    node.folder.mkdir(parents=True, exist_ok=True)
    copies = min(3, len(cluster))
    known = {
        "number": node.number,
        "port": node.port,
        "controller_port": node.port + 1,
        "controllers": ",".join(f"127.0.0.1:{one.port + 1}" for one in cluster),
        "folder": node.folder,
        "copies": copies,
        "copies_min": max(1, copies - 1),
    }
    text = (HERE / "server.properties").read_text(encoding="utf-8") + more
    for name, value in known.items():
        text = text.replace(f"@{name}@", str(value))
    _properties(node).write_text(text, encoding="utf-8")


def _format(java: Sequence[str], cluster: Sequence[Node], more: Sequence[str]) -> None:
    controllers = ",".join(f"{node.number}@127.0.0.1:{node.port + 1}:{_random_id()}" for node in cluster)
    words = ["format", "--initial-controllers", controllers, "-t", _random_id(), *more]
    asked = [[*java, "kafka.tools.StorageTool", *words, "-c", str(_properties(node))] for node in cluster]
    at_work = [subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for one in asked]
    for formatting in at_work:
        said = formatting.communicate()[0].decode(errors="replace")
        if formatting.returncode != 0:
            raise Trouble(f"formatting failed: {said[-2000:]}")


def _random_id() -> str:
    """As Kafka writes one, but never with "-" in front: it would be taken for an option."""
    while True:
        made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not made.startswith("-"):
            return made


def _launch(words: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "broker.log").open("wb") as out:
        broker = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    (folder / "pid").write_text(str(broker.pid), encoding="utf-8")
    return broker


def _wait_until_ready(node: Node, broker: subprocess.Popen[bytes]) -> None:
    said = node.folder / "broker.log"
    until = time.monotonic() + START_S
    # The port opens up to a second before requests are answered; this line is the broker's own word.
    while b"Kafka Server started" not in said.read_bytes():
        if broker.poll() is not None:
            raise Trouble(f"the broker ended with {broker.returncode}: {said.read_text(errors='replace')[-2000:]}")
        if time.monotonic() > until:
            broker.kill()
            raise Trouble(f"the broker was not ready in {START_S:.0f} s; see {said}")
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["start", "stop"])
    parser.add_argument("--dir", type=Path, default=FOLDER)
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--nodes", type=int, default=1, choices=range(1, 10), metavar="1..9")
    asked = parser.parse_args()
    try:
        if asked.verb == "stop":
            stop(asked.dir)
            return
        if (missing := what_is_missing()) is not None:
            raise Trouble(missing)
        cluster = cluster_of(asked.dir, asked.port, asked.nodes)
        brokers = start(cluster)
    except Trouble as trouble:
        sys.exit(f"broker.py: {trouble}")
    for broker in brokers:
        broker.returncode = 0  # it goes on without us, and that is no slip
    places = ",".join(f"127.0.0.1:{node.port}" for node in cluster)
    pids = ", ".join(str(broker.pid) for broker in brokers)
    print(f"kafka://{places} answers; process {pids}, files in {asked.dir}")


if __name__ == "__main__":
    main()

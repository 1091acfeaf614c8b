#!/usr/bin/env python3
"""A real Kafka broker on loopback, from Maven jars: started and stopped by one command. Needs Java 17 and Maven.

    broker.py start [--dir DIR] [--port 9092]     fetch the jars once, format once, start, return when it answers
    broker.py stop  [--dir DIR]                   a controlled shutdown

The jars are kept in $XDG_CACHE_HOME/shoal (or ~/.cache/shoal). What the broker writes is in DIR.
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

HERE = Path(__file__).resolve().parent
FOLDER = Path("kafka-data")
PORT = 9092
START_S = 120.0
STOP_S = 60.0
JAVA_MIN = 17
# A small machine's share: about 200 MB resident.
JAVA = ("java", "-Xms96m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:MaxMetaspaceSize=128m")
SAY = ("-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS")


class Trouble(Exception):
    """Why there is no broker; one sentence."""


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


def start(folder: Path, port: int, more: str = "", format_words: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Start a broker whose files are in `folder`; its process, once it answers. Raises `Trouble`.

    `more`: further lines of server.properties; `format_words`: further words for the first formatting.
    """
    folder = folder.resolve()
    if (running := pid_of(folder)) is not None:
        raise Trouble(f"a broker runs in {folder} already, process {running}; stop it first")
    folder.mkdir(parents=True, exist_ok=True)
    properties = folder / "server.properties"
    text = (HERE / "server.properties").read_text(encoding="utf-8") + more
    for name, value in {"port": port, "controller_port": port + 1, "folder": folder}.items():
        text = text.replace(f"@{name}@", str(value))
    properties.write_text(text, encoding="utf-8")
    java = [*JAVA, *SAY, "-cp", str(jars() / "*")]
    if not (folder / "data" / "meta.properties").exists():
        _format(java, properties, format_words)
    return _launch([*java, "kafka.Kafka", str(properties)], folder)


def stop(folder: Path) -> None:
    """Ask the broker to shut down and wait until it has. Nothing to do when none runs."""
    pid = pid_of(folder)
    if pid is None:
        return
    os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + STOP_S
    while pid_of(folder) is not None:
        if time.monotonic() > until:
            raise Trouble(f"process {pid} did not end in {STOP_S:.0f} s; see {folder / 'broker.log'}")
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


def _format(java: Sequence[str], properties: Path, more: Sequence[str]) -> None:
    cluster = "-"
    while cluster.startswith("-"):  # it would be taken for an option
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    words = ["kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", str(properties), *more]
    done = subprocess.run([*java, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Trouble(f"formatting failed: {(done.stdout + done.stderr)[-2000:]}")


def _launch(words: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    said = folder / "broker.log"
    with said.open("wb") as out:
        broker = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    (folder / "pid").write_text(str(broker.pid), encoding="utf-8")
    until = time.monotonic() + START_S
    # The port opens up to a second before requests are answered; this line is the broker's own word.
    while b"Kafka Server started" not in said.read_bytes():
        if broker.poll() is not None:
            raise Trouble(f"the broker ended with {broker.returncode}: {said.read_text(errors='replace')[-2000:]}")
        if time.monotonic() > until:
            broker.kill()
            raise Trouble(f"the broker was not ready in {START_S:.0f} s; see {said}")
        time.sleep(0.05)
    return broker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["start", "stop"])
    parser.add_argument("--dir", type=Path, default=FOLDER)
    parser.add_argument("--port", type=int, default=PORT)
    asked = parser.parse_args()
    try:
        if asked.verb == "stop":
            stop(asked.dir)
            return
        if (missing := what_is_missing()) is not None:
            raise Trouble(missing)
        broker = start(asked.dir, asked.port)
    except Trouble as trouble:
        sys.exit(f"broker.py: {trouble}")
    broker.returncode = 0  # it goes on without us, and that is no slip
    print(f"kafka://127.0.0.1:{asked.port} answers; process {broker.pid}, files in {asked.dir}")


if __name__ == "__main__":
    main()

"""A Docker engine for tests, which leaves nothing behind.

It has its own socket and folder, so it shares no containers and images with another engine, and is
stopped by its process id. It needs root, as every Docker engine does, and Debian's packages
docker.io and docker-compose.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

START_S = 180.0
STOP_S = 180.0
PROGRAMS = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "docker-compose": "docker-compose",
    "iptables": "iptables",
    "debootstrap": "debootstrap",
}
"""program -> Debian's package"""


def what_is_missing() -> str | None:
    """Why no engine can be started here, or None when one can."""
    absent = sorted(
        {package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    )
    if absent:
        return f"on Debian: apt install {' '.join(absent)}"
    if os.geteuid() != 0:
        return "only root can start an engine"
    return None


class EngineError(Exception):
    """An engine or a command in a container failed; the message has its output."""


class Engine:
    """A running engine with its own folder."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-engine-"))
        self.socket = f"unix://{self.folder}/docker.sock"
        # cgroupfs, so that no systemd is needed; the engine chooses a storage driver that this file
        # system supports.
        command = ["dockerd", "--host", self.socket, "--exec-opt", "native.cgroupdriver=cgroupfs"]
        for option, name in {"data-root": "data", "exec-root": "exec", "pidfile": "pid"}.items():
            command += [f"--{option}", f"{self.folder}/{name}"]
        with (self.folder / "dockerd.log").open("wb") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def docker(self, *command: str, stdin: int | None = None) -> str:
        """Run `docker COMMAND`; returns its output. Raises `EngineError`."""
        return run(["docker", *command], self.environment, stdin=stdin)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a program that uses this engine, without BuildKit, which not every
        engine has."""
        return {
            **os.environ,
            "DOCKER_HOST": self.socket,
            "DOCKER_BUILDKIT": "0",
            "COMPOSE_DOCKER_CLI_BUILD": "0",
        }

    def stop(self) -> None:
        """Stop the engine and everything in it, and remove its files."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        mounted = [
            line.split()[1]
            for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
        ]
        for place in sorted(
            (place for place in mounted if place.startswith(f"{self.folder}/")), reverse=True
        ):
            subprocess.run(["umount", "--lazy", place], check=False)
        shutil.rmtree(self.folder)

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + START_S
        while subprocess.run(
            ["docker", "info"], env=self.environment, capture_output=True, check=False
        ).returncode:
            if self._process.poll() is not None or time.monotonic() > until:
                log = (self.folder / "dockerd.log").read_text(errors="replace")[-2000:]
                raise EngineError(f"the engine does not respond: {log}")
            time.sleep(0.2)


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path | None = None,
    stdin: int | None = None,
) -> str:
    """Run a program; returns its output. Raises `EngineError` with the end of it for another exit
    code than 0."""
    ended = subprocess.run(
        command,
        env=dict(environment),
        cwd=cwd,
        stdin=stdin,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if ended.returncode != 0:
        raise EngineError(
            f"{' '.join(command)} ended with {ended.returncode}:"
            f" {(ended.stdout + ended.stderr)[-3000:]}"
        )
    return ended.stdout

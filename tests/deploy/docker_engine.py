"""A Docker engine of the tests' own: started, asked, stopped, and nothing of it left.

It has its own socket and its own folder, so it meets no other engine's containers and images; what it is killed with is
its process id. It needs root, as every Docker engine does, and Debian's packages docker.io and docker-compose.
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

START_S = 60.0
STOP_S = 60.0
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
    absent = sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})
    if absent:
        return f"on Debian: apt install {' '.join(absent)}"
    if os.geteuid() != 0:
        return "only root can start an engine"
    return None


class Trouble(Exception):
    """What an engine or a container would not do, in its own words."""


class Engine:
    """A running engine in a folder that is its own."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-engine-"))
        self.socket = f"unix://{self.folder}/docker.sock"
        # No systemd is needed; the storage driver is the best that this file system can carry.
        words = ["dockerd", "--host", self.socket, "--exec-opt", "native.cgroupdriver=cgroupfs"]
        for option, name in {"data-root": "data", "exec-root": "exec", "pidfile": "pid"}.items():
            words += [f"--{option}", f"{self.folder}/{name}"]
        with (self.folder / "dockerd.log").open("wb") as out:
            self._process = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise

    def docker(self, *words: str, stdin: int | None = None) -> str:
        """Run `docker WORDS`; what it printed. Raises `Trouble`."""
        return run(["docker", *words], self.environment, stdin=stdin)

    @property
    def environment(self) -> dict[str, str]:
        """Of a program that is to speak to this engine: the plain way of building, which every engine knows."""
        return {**os.environ, "DOCKER_HOST": self.socket, "DOCKER_BUILDKIT": "0", "COMPOSE_DOCKER_CLI_BUILD": "0"}

    def stop(self) -> None:
        """End the engine with whatever runs in it, and remove all it has written."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        mounted = [line.split()[1] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
        for place in sorted((place for place in mounted if place.startswith(f"{self.folder}/")), reverse=True):
            subprocess.run(["umount", "--lazy", place], check=False)
        shutil.rmtree(self.folder)

    def _wait_until_it_answers(self) -> None:
        until = time.monotonic() + START_S
        while subprocess.run(["docker", "info"], env=self.environment, capture_output=True, check=False).returncode:
            if self._process.poll() is not None or time.monotonic() > until:
                said = (self.folder / "dockerd.log").read_text(errors="replace")[-2000:]
                raise Trouble(f"the engine does not answer: {said}")
            time.sleep(0.2)


def run(words: Sequence[str], environment: Mapping[str, str], cwd: Path | None = None, stdin: int | None = None) -> str:
    """What a program printed. Raises `Trouble` with its last words when it did not end with 0."""
    ended = subprocess.run(
        words,
        env=dict(environment),
        cwd=cwd,
        stdin=stdin,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if ended.returncode != 0:
        raise Trouble(f"{' '.join(words)} ended with {ended.returncode}: {(ended.stdout + ended.stderr)[-3000:]}")
    return ended.stdout

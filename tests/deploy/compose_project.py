"""A compose project on an engine: brought up, asked, hurt, taken down."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.deploy.docker_engine import Engine, Trouble, run

TOP = Path(__file__).parent.parent.parent
PATIENCE_S = 180.0
LABEL = "com.docker.compose"
Answer = TypeVar("Answer")


def wait_for(what: str, look: Callable[[], Answer | None], patience_s: float = PATIENCE_S) -> Answer:
    """The first answer that is something; `AssertionError` with `what` when there is none in time."""
    until = time.monotonic() + patience_s
    while True:
        if answer := look():
            return answer
        assert time.monotonic() < until, f"waited {patience_s:.0f} s in vain for {what}"
        time.sleep(0.25)


def free_port() -> int:
    """A port that nobody uses just now."""
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class Project:
    """docker-compose.yml as it is, with ports of its own, all services but those `without`."""

    def __init__(self, engine: Engine, name: str, without: Sequence[str] = (), profiles: Sequence[str] = ()) -> None:
        self._engine = engine
        self._profiles = [word for profile in profiles for word in ("--profile", profile)]
        self.page, self.prometheus, sensors = (f"http://127.0.0.1:{free_port()}" for _ in range(3))
        self.environment = engine.environment | {
            "COMPOSE_PROJECT_NAME": name,
            "SHOAL_PAGE_PORT": self.page.rpartition(":")[2],
            "SHOAL_PROMETHEUS_PORT": self.prometheus.rpartition(":")[2],
            "SHOAL_SENSORS_PORT": sensors.rpartition(":")[2],
        }
        self.name = name
        self.services = [service for service in self.compose("config", "--services").split() if service not in without]

    def compose(self, *words: str) -> str:
        """Run `docker-compose WORDS`; what it printed. Raises `Trouble`."""
        return run(["docker-compose", *self._profiles, *words], self.environment, cwd=TOP)

    def docker(self, *words: str) -> str:
        """Run `docker WORDS`."""
        return self._engine.docker(*words)

    def up(self) -> None:
        """Build, start, and wait until every health check says healthy and the topics are there."""
        try:
            self.compose("up", "--detach", *self.services)
            wait_for("every health check", self._all_well)
        except (Trouble, AssertionError) as trouble:
            raise AssertionError(f"{trouble}\n{self.state()}\n{self.said()}") from None

    def down(self, *words: str) -> None:
        """Stop and remove the containers; volumes too with `-v`."""
        self.compose("down", "--timeout", "30", *words)

    def inspect(self, service: str) -> dict[str, Any]:
        """What the engine knows of the service's container."""
        container = self.container(service)
        seen: list[dict[str, Any]] = json.loads(self.docker("inspect", container))
        return seen[0]

    def container(self, service: str) -> str:
        """The container's id."""
        labels = {"project": self.name, "service": service}
        chosen = [word for name, value in labels.items() for word in ("--filter", f"label={LABEL}.{name}={value}")]
        ids = self.docker("ps", "--all", "--quiet", *chosen).split()
        assert len(ids) == 1, f"{service} has {len(ids)} containers"
        return ids[0]

    def kill(self, service: str) -> None:
        """SIGKILL, and start it again."""
        self.docker("kill", "--signal", "KILL", self.container(service))
        self.compose("start", service)

    def run_in(self, service: str, program: str) -> str:
        """What a Python program prints in the service's container."""
        return self.docker("exec", self.container(service), "python", "-c", program)

    def asked(self, path: str) -> Any:
        """What the server answers there; None when it does not."""
        return _asked(self.page + path)

    def query(self, expression: str) -> dict[str, float]:
        """A query of Prometheus: the value of each series, by its labels `job` or `client` or `model`."""
        said = _asked(f"{self.prometheus}/api/v1/query?{urlencode({'query': expression})}")
        series = said["data"]["result"] if said else []
        return {_label(one["metric"]): float(one["value"][1]) for one in series}

    def state(self) -> str:
        """A line for each container."""
        return self.docker("ps", "--all", "--format", "{{.Names}} {{.Status}}")

    def said(self, *services: str) -> str:
        """The last lines of each."""
        return self.compose("logs", "--no-color", "--tail", "15", *services)

    def all_said(self, service: str) -> list[str]:
        """Every line of it, on both of its outputs."""
        container = self.container(service)
        said = run(["sh", "-c", 'docker logs "$1" 2>&1', "sh", container], self.environment)
        return said.splitlines()

    def _all_well(self) -> bool:
        return all(self._well(self.inspect(service)["State"]) for service in self.services)

    @staticmethod
    def _well(state: dict[str, Any]) -> bool:
        if "Health" in state:
            return bool(state["Health"]["Status"] == "healthy")
        return bool(state["Running"] or (state["Status"] == "exited" and state["ExitCode"] == 0))


def _asked(address: str) -> Any:
    try:
        with urlopen(address, timeout=10) as answer:
            return json.loads(answer.read())
    except (URLError, OSError, ValueError):
        return None


def _label(metric: dict[str, str]) -> str:
    return next((metric[name] for name in ("client", "model", "job") if name in metric), "")

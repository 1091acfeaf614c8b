"""A compose project on an engine: start, query, kill and remove its containers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from tests.deploy.docker_engine import Engine, EngineError, run
from tests.kafka_broker import free_ports

TOP = Path(__file__).parent.parent.parent
TIMEOUT_S = 300.0
LABEL = "com.docker.compose"
Result = TypeVar("Result")


def wait_for(what: str, poll: Callable[[], Result | None], timeout_s: float = TIMEOUT_S) -> Result:
    """The first truthy result of `poll`; `AssertionError` with `what` when there is none in
    time."""
    until = time.monotonic() + timeout_s
    while True:
        if result := poll():
            return result
        assert time.monotonic() < until, f"no {what} within {timeout_s:.0f} s"
        time.sleep(0.25)


class Project:
    """docker-compose.yml unchanged, on free ports, with all services except those in `without`."""

    def __init__(
        self, engine: Engine, name: str, without: Sequence[str] = (), profiles: Sequence[str] = ()
    ) -> None:
        self._engine = engine
        self._profiles = [option for profile in profiles for option in ("--profile", profile)]
        first = free_ports(4)
        self.page, self.prometheus, sensors, alerts = (
            f"http://127.0.0.1:{port}" for port in range(first, first + 4)
        )
        self.environment = engine.environment | {
            "COMPOSE_PROJECT_NAME": name,
            "SHOAL_PAGE_PORT": self.page.rpartition(":")[2],
            "SHOAL_PROMETHEUS_PORT": self.prometheus.rpartition(":")[2],
            "SHOAL_SENSORS_PORT": sensors.rpartition(":")[2],
            "SHOAL_ALERTMANAGER_PORT": alerts.rpartition(":")[2],
        }
        self.name = name
        self.services = [
            service
            for service in self.compose("config", "--services").split()
            if service not in without
        ]

    def compose(self, *command: str) -> str:
        """Run `docker-compose COMMAND`; returns its output. Raises `EngineError`."""
        return run(["docker-compose", *self._profiles, *command], self.environment, cwd=TOP)

    def docker(self, *command: str) -> str:
        """Run `docker COMMAND`; returns its output."""
        return self._engine.docker(*command)

    def up(self) -> None:
        """Build, start, and wait until all services are healthy and the topics exist."""
        try:
            self.compose("up", "--detach", *self.services)
            wait_for("health of every service", self._all_healthy)
        except (EngineError, AssertionError) as error:
            raise AssertionError(f"{error}\n{self.state()}\n{self.logs()}") from None

    def down(self, *command: str) -> None:
        """Stop and remove the containers; volumes too with `-v`."""
        self.compose("down", "--timeout", "30", *command)

    def inspect(self, service: str) -> dict[str, Any]:
        """The engine's description of the service's container."""
        seen: list[dict[str, Any]] = json.loads(self.docker("inspect", self.container(service)))
        return seen[0]

    def container(self, service: str) -> str:
        """The id of the service's container."""
        ids = self._containers(service=service)
        assert len(ids) == 1, f"{service} has {len(ids)} containers"
        return ids[0]

    def _containers(self, **labels: str) -> list[str]:
        """The ids of the project's containers with these labels."""
        labels["project"] = self.name
        chosen = [
            word
            for name, value in labels.items()
            for word in ("--filter", f"label={LABEL}.{name}={value}")
        ]
        return self.docker("ps", "--all", "--quiet", *chosen).split()

    def kill(self, service: str) -> None:
        """SIGKILL, and start it again."""
        self.docker("kill", "--signal", "KILL", self.container(service))
        self.compose("start", service)

    def run_in(self, service: str, program: str) -> str:
        """Run a Python program in the service's container; returns its output."""
        return self.docker("exec", self.container(service), "python", "-c", program)

    def get(self, path: str) -> Any:
        """The JSON that the server returns for `path`, None if it does not."""
        return _get(self.page + path, self.token)

    @cached_property
    def token(self) -> str:
        """The token of the page, which the project made at its first start and keeps in a
        volume."""
        return self.docker("exec", self.container("server"), "cat", "/run/shoal/page/token").strip()

    def query(self, expression: str) -> dict[str, float]:
        """Query Prometheus; the value of each series by its label `client`, `model` or `job`."""
        response = _get(f"{self.prometheus}/api/v1/query?{urlencode({'query': expression})}")
        series = response["data"]["result"] if response else []
        return {
            _label(series_of_metric["metric"]): float(series_of_metric["value"][1])
            for series_of_metric in series
        }

    def state(self) -> str:
        """A line for each container."""
        return self.docker("ps", "--all", "--format", "{{.Names}} {{.Status}}")

    def logs(self, *services: str) -> str:
        """The last log lines of these services, or of all."""
        return self.compose("logs", "--no-color", "--tail", "15", *services)

    def log_lines(self, service: str) -> list[str]:
        """Every log line of a service, standard output and error."""
        container = self.container(service)
        log = run(["sh", "-c", 'docker logs "$1" 2>&1', "sh", container], self.environment)
        return log.splitlines()

    def _all_healthy(self) -> bool:
        # One command for all of them: one each would compute as much as the project does.
        found = json.loads(self.docker("inspect", *self._containers()))
        states = {
            container["Config"]["Labels"][f"{LABEL}.service"]: container["State"]
            for container in found
        }
        return all(self._healthy(states[service]) for service in self.services)

    @staticmethod
    def _healthy(state: dict[str, Any]) -> bool:
        if "Health" in state:
            return bool(state["Health"]["Status"] == "healthy")
        return bool(state["Running"] or (state["Status"] == "exited" and state["ExitCode"] == 0))


def _get(address: str, token: str = "") -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urlopen(Request(address, headers=headers), timeout=60) as answer:
            return json.loads(answer.read())
    except (URLError, OSError, ValueError):
        return None


def _label(metric: dict[str, str]) -> str:
    return next((metric[name] for name in ("client", "model", "job") if name in metric), "")

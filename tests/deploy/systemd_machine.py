"""A machine with a systemd of its own, as far as a container can be one: what deploy/systemd says is done on it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.deploy.compose_project import wait_for
from tests.deploy.docker_engine import Engine, Trouble
from tests.deploy.image_stand_ins import AUTHORITIES, DEBIAN

TOP = Path(__file__).parent.parent.parent
BOOT = (
    # systemd mounts; and what it starts behind ProtectProc= is only to be seen by who may trace it.
    *("--cap-add", "SYS_ADMIN", "--cap-add", "SYS_PTRACE", "--security-opt", "seccomp=unconfined"),
    *("--security-opt", "apparmor=unconfined", "--cgroupns", "private", "--tty", "--stop-signal", "SIGRTMIN+3"),
    *("--tmpfs", "/run:exec", "--tmpfs", "/run/lock", "--tmpfs", "/tmp:exec", "--env", "container=docker"),
)
CHECKOUT = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "shoal",
    "producers",
    "client_nodes",
    "server_node",
    "onebox",
    "deploy",
)


def commands_of_the_docs() -> str:
    """The block of docs/how-to/systemd.md that installs the units and starts them."""
    page = (TOP / "docs/how-to/systemd.md").read_text(encoding="utf-8")
    found = re.search(r"^    python3 -m venv /opt/shoal\n(?:    .+\n)+", page, re.MULTILINE)
    assert found is not None
    return found[0]


class Machine:
    """One that runs."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self._name = engine, name

    def run(self, script: str) -> str:
        """What a shell script prints, run in the checkout; it ends at the first mistake. Raises `Trouble`."""
        chosen = ["--env", f"PIP_CERT={AUTHORITIES}"] if AUTHORITIES.exists() else []
        return self._engine.docker("exec", *chosen, "--workdir", "/root", self._name, "bash", "-ec", script)

    def shows(self, unit: str, *names: str) -> list[str]:
        """The values of these properties of a unit, in this order."""
        lines = self.run(f"systemctl show -p {','.join(names)} {unit}").splitlines()
        found = dict(line.split("=", 1) for line in lines if "=" in line)
        return [found[name] for name in names]

    def receive(self, *names: str) -> None:
        """Files and folders of this repository, into the folder that scripts run in."""
        packed = subprocess.Popen(
            ["tar", "-C", str(TOP), "--exclude=__pycache__", "-c", *names], stdout=subprocess.PIPE
        )
        assert packed.stdout is not None
        self._engine.docker("cp", "-", f"{self._name}:/root", stdin=packed.stdout.fileno())
        packed.stdout.close()
        assert packed.wait() == 0


@contextmanager
def systemd_machine(engine: Engine, name: str = "machine") -> Iterator[Machine]:
    """A machine that has booted, with a checkout; gone at the end."""
    engine.docker("run", "--detach", "--name", name, *BOOT, DEBIAN, "/lib/systemd/systemd")
    try:
        box = Machine(engine, name)
        wait_for("systemd", lambda: _booted(box))
        box.receive(*CHECKOUT)
        yield box
    finally:
        engine.docker("rm", "--force", "--volumes", name)


def _booted(box: Machine) -> bool:
    try:
        return box.run("systemctl is-active multi-user.target").strip() == "active"
    except Trouble:
        return False

"""A container with its own systemd, to install and run the units of deploy/systemd in."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.deploy.compose_project import wait_for
from tests.deploy.docker_engine import Engine, EngineError
from tests.deploy.image_stand_ins import AUTHORITIES, DEBIAN

TOP = Path(__file__).parent.parent.parent
BOOT = (
    # systemd mounts file systems; and with ProtectProc= a unit's processes are visible only with
    # SYS_PTRACE.
    "--cap-add",
    "SYS_ADMIN",
    "--cap-add",
    "SYS_PTRACE",
    "--security-opt",
    "seccomp=unconfined",
    "--security-opt",
    "apparmor=unconfined",
    "--cgroupns",
    "private",
    "--tty",
    "--stop-signal",
    "SIGRTMIN+3",
    "--tmpfs",
    "/run:exec",
    "--tmpfs",
    "/run/lock",
    "--tmpfs",
    "/tmp:exec",
    "--env",
    "container=docker",
)


def checkout() -> list[str]:
    """The files and folders of a clone that are needed to install it and its units."""
    packages = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]["packages"]
    folders = sorted({package.partition(".")[0] for package in packages})
    return ["pyproject.toml", "README.md", "LICENSE", "deploy", *folders]


def commands_of_the_docs() -> str:
    """The commands of docs/how-to/systemd.md that install and start the units."""
    page = (TOP / "docs/how-to/systemd.md").read_text(encoding="utf-8")
    found = re.search(r"^    python3 -m venv /opt/shoal\n(?:    .+\n)+", page, re.MULTILINE)
    assert found is not None
    return found[0]


class Machine:
    """A running machine."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name

    def run(self, script: str) -> str:
        """Run a shell script in the checkout; returns its output. Raises `EngineError` at the first
        failing command."""
        options = ["--env", f"PIP_CERT={AUTHORITIES}"] if AUTHORITIES.exists() else []
        return self._engine.docker(
            "exec", *options, "--workdir", "/root", self._name, "bash", "-ec", script
        )

    def properties(self, unit: str, *names: str) -> list[str]:
        """The values of properties of a unit, in the order of `names`."""
        lines = self.run(f"systemctl show -p {','.join(names)} {unit}").splitlines()
        found = dict(line.split("=", 1) for line in lines if "=" in line)
        return [found[name] for name in names]

    def copy(self, *names: str) -> None:
        """Copy files and folders of this repository into the folder in which scripts run."""
        archive = subprocess.Popen(
            ["tar", "-C", str(TOP), "--exclude=__pycache__", "-c", *names], stdout=subprocess.PIPE
        )
        assert archive.stdout is not None
        self._engine.docker("cp", "-", f"{self._name}:/root", stdin=archive.stdout.fileno())
        archive.stdout.close()
        assert archive.wait() == 0


@contextmanager
def systemd_machine(engine: Engine, name: str = "machine") -> Iterator[Machine]:
    """A booted machine with a checkout; removed at the end."""
    engine.docker("run", "--detach", "--name", name, *BOOT, DEBIAN, "/lib/systemd/systemd")
    try:
        machine = Machine(engine, name)
        wait_for("systemd", lambda: _booted(machine))
        machine.copy(*checkout())
        yield machine
    finally:
        engine.docker("rm", "--force", "--volumes", name)


def _booted(machine: Machine) -> bool:
    try:
        return machine.run("systemctl is-active multi-user.target").strip() == "active"
    except EngineError:
        return False

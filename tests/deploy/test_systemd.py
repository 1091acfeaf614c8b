"""The systemd units: verified by systemd, confined by its own measure; their processes run under
that confinement."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.main import shoal
from shoal.config.settings import load_config
from shoal.producers.mqtt.settings import mqtt_settings
from shoal.producers.synthetic import federation_file
from shoal.protocol.topics import ensure_topics
from shoal.transports import open_log
from tests.mosquitto_broker import PATIENCE_S

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
SERVICES = (
    "shoal-server.service",
    "shoal-client@.service",
    "shoal-producer-mqtt@.service",
    "shoal-helper.service",
    "shoal-page.service",
)
EXPOSURE_MAX = 12
"""exposure by `systemd-analyze security` in tenths: 0 is fully confined, 100 not at all"""
TOPICS = '[mqtt]\nhost = "127.0.0.1"\nport = {port}\n[mqtt.topics]\n'

MASKED = '[privacy]\nmode = "masked"\nunit = "client"\nepsilon = 1\n'

needs_systemd = pytest.mark.needs("systemd-analyze")


@pytest.fixture
def installed(systemd_analyze: str, tmp_path: Path) -> Path:
    """A root folder with systemd's units, shoal's units with their drop-in, and the program that
    they start."""
    root = tmp_path / "root"
    folder = root / "etc" / "systemd" / "system"
    folder.mkdir(parents=True)
    for file in UNITS.glob("shoal*"):
        shutil.copy(file, folder)
    for service in SERVICES:
        (folder / f"{service}.d").mkdir()
        shutil.copy(UNITS / "password.conf", folder / f"{service}.d")
    shutil.copy(UNITS / "token.conf", folder / "shoal-server.service.d")
    candidates = (Path("/usr/lib/systemd/system"), Path("/lib/systemd/system"))
    systemd_units = next(path for path in candidates if path.is_dir())
    shutil.copytree(
        systemd_units, root / "usr/lib/systemd/system", symlinks=True, ignore_dangling_symlinks=True
    )
    program = root / "opt/shoal/bin/shoal"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return root


def analysed(systemd_analyze: str, root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [systemd_analyze, "--no-pager", f"--root={root}", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def instance(service: str) -> str:
    return service.replace("@.", "@attic.")


@needs_systemd
def test_systemd_verifies_the_units(systemd_analyze: str, installed: Path) -> None:
    ended = analysed(
        systemd_analyze, installed, "verify", "--man=no", *map(instance, SERVICES), "shoal.target"
    )
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("service", SERVICES)
def test_verification_finds_a_missing_program_and_an_unknown_setting(
    systemd_analyze: str, installed: Path, service: str
) -> None:
    unit = installed / "etc/systemd/system" / service
    unit.write_text(unit.read_text().replace("ProtectHome=", "ProtectHouse="))
    (installed / "opt/shoal/bin/shoal").unlink()
    ended = analysed(systemd_analyze, installed, "verify", "--man=no", instance(service))
    assert ended.returncode != 0
    assert "ProtectHouse" in ended.stderr
    assert "/opt/shoal/bin/shoal is not executable" in ended.stderr


@needs_systemd
@pytest.mark.parametrize("service", SERVICES)
def test_the_units_are_confined_by_systemds_own_measure(
    systemd_analyze: str, installed: Path, service: str
) -> None:
    arguments = ("security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", instance(service))
    ended = analysed(systemd_analyze, installed, *arguments)
    assert ended.returncode == 0, ended.stdout
    for word in (
        "User=/DynamicUser=",
        "ProtectSystem=",
        "SystemCallFilter=~@mount",
        "RestrictNamespaces=~mnt",
    ):
        assert f"✓ {word}" in ended.stdout, word


def test_no_unit_can_access_the_folder_of_another() -> None:
    folders = {service: settings_of(service)["StateDirectory"][0].split() for service in SERVICES}
    assert folders["shoal-server.service"] == ["shoal-server", "shoal-log"]
    assert folders["shoal-client@.service"] == ["shoal-client/%i", "shoal-log"]
    assert folders["shoal-helper.service"] == ["shoal-helper", "shoal-log"]
    assert folders["shoal-page.service"] == ["shoal-page", "shoal-log"]
    assert folders["shoal-producer-mqtt@.service"] == ["shoal-client/%i"], (
        "the producer does not use the log"
    )


def test_a_password_for_one_unit_leaves_the_federation_file_valid_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "federation.toml"
    config.write_text(
        federation_file("gaussians") + '[mqtt]\nhost = "127.0.0.1"\n', encoding="utf-8"
    )
    assert not mqtt_settings(load_config(config)).user, "a unit without the drop-in"
    given = [
        line
        for line in (UNITS / "password.conf").read_text(encoding="utf-8").splitlines()
        if "=SHOAL" in line
    ]
    for pair in given[0].removeprefix("Environment=").split():
        name, _, value = pair.partition("=")
        monkeypatch.setenv(name, value.replace("%d", "/run/credentials/unit"))
    mqtt = mqtt_settings(load_config(config))
    assert (mqtt.user, mqtt.secret_file) == ("shoal", Path("/run/credentials/unit/secret"))


# The processes of the units, confined as in the units.


def settings_of(service: str) -> dict[str, list[str]]:
    """name -> its values, in the order of the file."""
    found: dict[str, list[str]] = {}
    for line in (UNITS / service).read_text(encoding="utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


@pytest.fixture
def confined() -> list[str]:
    """A command that runs another without privileges, with one writable folder: append the folder
    and the command."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None:
        pytest.skip("confinement needs root: run as root, with unshare and setpriv (util-linux)")
    mounts = 'mount --bind "$1" "$1" && mount -o remount,ro,bind / && shift'
    unprivileged = "setpriv --no-new-privs --bounding-set=-all --inh-caps=-all"
    return ["unshare", "--mount", "sh", "-c", f'{mounts} && exec {unprivileged} "$@"', "confined"]


@contextlib.contextmanager
def started(service: str, confined: list[str], state: Path, config: Path) -> Iterator[list[str]]:
    """Run the unit's ExecStart with its environment; yields its first two notifications to
    systemd."""
    settings = settings_of(service)
    command = (
        settings["ExecStart"][0]
        .replace("%i", "attic")
        .replace("/etc/shoal/federation.toml", str(config))
    )
    command = (
        command.replace("%d", str(config.parent))
        .replace("%S", str(state))
        .replace("--port 9109", "--port 0")
    )
    program, *arguments = command.split()
    assert program == "/opt/shoal/bin/shoal"
    given = dict(
        pair.split("=", 1) for line in settings.get("Environment", []) for pair in line.split()
    )
    environment = os.environ | {
        name: value.replace("%S", str(state)) for name, value in given.items()
    }
    for folder in settings["StateDirectory"][0].replace("%i", "attic").split():
        (state / folder).mkdir(parents=True, exist_ok=True)
    notifications: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(state / "notify"))
        systemd.settimeout(PATIENCE_S)
        environment |= {"NOTIFY_SOCKET": str(state / "notify"), "PYTHONDONTWRITEBYTECODE": "1"}
        run = [*confined, str(state), sys.executable, "-m", "shoal", *arguments]
        with (state / "output.txt").open("w") as log:
            process = subprocess.Popen(run, env=environment, stdout=log, stderr=log)
        try:
            notifications.append(systemd.recv(100).decode())
            notifications.append(systemd.recv(100).decode())
            yield notifications
            process.terminate()
            assert process.wait(PATIENCE_S) == 0, (state / "output.txt").read_text()
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


@pytest.mark.parametrize("service", SERVICES)
def test_the_process_of_a_unit_runs_when_it_can_write_its_own_folders_only(
    service: str, confined: list[str], state: Path, tmp_path: Path, mosquitto_port: int
) -> None:
    config = tmp_path / "federation.toml"
    plant = federation_file("gaussians")
    features = re.findall(r'\[\[features\]\]\nname = "([^"]+)"', plant)
    topics = "".join(f'{name} = "{tmp_path.name}/{name}"\n' for name in features)
    if service == "shoal-helper.service":
        made = CliRunner().invoke(
            shoal,
            [
                "keys",
                "helper",
                str(tmp_path / "helper.key"),
                "--folder",
                str(state / "shoal-helper"),
            ],
            catch_exceptions=False,
        )
        plant = re.sub(r"(?s)\[privacy\].*?(?=\[\[models)", f"{MASKED}{made.stdout}", plant)
    log = f'[log]\naddress = "sqlite:{state}/shoal-log/federation.db"\n[server]\nport = 0\n'
    config.write_text(plant + log + TOPICS.format(port=mosquitto_port) + topics)
    if service == "shoal-page.service":
        # It waits for the topics, which a server makes.
        (state / "shoal-log").mkdir()
        settings = load_config(config)
        with contextlib.closing(open_log(settings.log)) as made_before:
            ensure_topics(made_before, settings.contract, settings.log)
    begun = {
        "shoal-server.service": "shoal-server/checkpoint.db",
        "shoal-helper.service": "shoal-helper/helper.db",
        "shoal-page.service": "shoal-page/history.db",
        "shoal-client@.service": "shoal-client/attic/checkpoint.db",
        "shoal-producer-mqtt@.service": "shoal-client/attic/mqtt.db",
    }
    with started(service, confined, state, config) as notifications:
        assert notifications == ["READY=1", "WATCHDOG=1"]
        end = time.monotonic() + PATIENCE_S
        while not (state / begun[service]).exists():
            assert time.monotonic() < end, (state / "output.txt").read_text()
            time.sleep(0.05)


def test_the_confinement_of_these_tests_works(
    confined: list[str], state: Path, tmp_path: Path
) -> None:
    script = (
        f"touch {state}/inside && ! touch {tmp_path}/outside 2>/dev/null && grep -q"
        " 'CapEff:.*0000$' /proc/self/status"
    )
    assert subprocess.run([*confined, str(state), "sh", "-c", script], check=False).returncode == 0
    assert (state / "inside").exists()
    assert not (tmp_path / "outside").exists()

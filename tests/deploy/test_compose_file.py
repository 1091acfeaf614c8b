"""The compose files and the image, as far as they can be read without an engine."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.main import shoal
from shoal.config.settings import load_config
from shoal.transports.kafka.transport import KafkaSettings

TOP = Path(__file__).parent.parent.parent
FILES = [TOP / "docker-compose.yml", TOP / "deploy/compose/production.yml"]
VERSIONS = {"compose_1": ["docker-compose"], "compose_2": ["docker", "compose"]}
"""by the fixture that says whether it is here"""
CHOSEN = {
    "SHOAL_LOG_ADDRESS": "kafka://broker:9093",
    "SHOAL_LOG_USER": "mill",
    "SHOAL_CLIENT_NAME": "mill",
    "SHOAL_PASSWORD_FILE": "/etc/hostname",
    "SHOAL_CA_FILE": "/etc/hostname",
    "COMPOSE_PROFILES": "centre,site,mqtt",
}
"""what the files must be given"""


@pytest.mark.needs("docker")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_compose_reads_the_file_without_a_word_of_warning(
    version: str, file: Path, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(version)
    words = [*VERSIONS[version], "--file", str(file), "config"]
    read = subprocess.run(words, env=os.environ | CHOSEN, capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")
    assert read.stdout


@pytest.mark.needs("docker")
@pytest.mark.parametrize("version", VERSIONS)
def test_keys_for_signing_are_mounted_beside_the_password_where_they_belong(
    version: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(version)
    files = [word for name in ("production", "signed") for word in ("--file", str(TOP / f"deploy/compose/{name}.yml"))]
    given = CHOSEN | {"SHOAL_CLIENT_KEYS": "/etc", "SHOAL_SIGNING_KEY_FILE": "/etc/hostname"}
    words = [*VERSIONS[version], *files, "config"]
    read = subprocess.run(words, env=os.environ | given, capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")
    # Volumes are called as services are, and Compose 2 lists them after these.
    section = re.search(r"^services:\n((?:  .*\n)+)", read.stdout, re.MULTILINE)
    assert section is not None
    services = dict(re.findall(r"^  (\S+):\n((?:    .*\n)+)", section[1], re.MULTILINE))
    of_client, of_server = services["client"], services["server"]
    assert "SHOAL_CLIENT_SIGNING_KEY_FILE: /run/secrets/signing_key" in of_client
    assert "SHOAL_SERVER_CLIENT_KEYS: /run/client_keys" in of_server
    assert all(f"source: {secret}" in of_client for secret in ("signing_key", "kafka_password", "kafka_ca"))
    assert "signing_key" not in of_server, "the server has no business with the key of one"
    assert "client_keys" not in of_client, "a client has no business with the keys of others"


@pytest.mark.parametrize("file", [*FILES, TOP / "deploy/Dockerfile"], ids=lambda file: file.name)
def test_images_are_pinned_to_exact_versions(file: Path) -> None:
    images = re.findall(r"^\s*(?:image:|FROM) (\S+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert images
    for image in images:
        assert re.search(r":v?\d+\.\d+", image), image


def test_the_image_is_named_after_the_version_of_shoal() -> None:
    version = CliRunner().invoke(shoal, ["--version"]).output.split()[-1]
    for file in FILES:
        assert f"image: shoal:{version}\n" in file.read_text(encoding="utf-8")


def test_the_broker_in_the_compose_file_is_the_one_that_is_tested() -> None:
    pom = (TOP / "deploy/kafka/pom.xml").read_text(encoding="utf-8")
    version = re.search(r"<kafka\.version>(.*)</kafka\.version>", pom)
    assert version is not None
    assert f"image: apache/kafka:{version[1]}\n" in FILES[0].read_text(encoding="utf-8")


def test_the_federation_file_is_right_and_meant_for_the_containers() -> None:
    file = TOP / "deploy/compose/federation.toml"
    checked = CliRunner().invoke(shoal, ["check", str(file)])
    assert checked.exit_code == 0, checked.output
    config = load_config(file)
    assert config.log.address == "kafka://kafka:9092"
    for folder in (config.client.folder, config.server.folder):
        assert folder.is_relative_to("/var/lib/shoal")
    text = FILES[0].read_text(encoding="utf-8")
    assert f'"{config.client.metrics_port}", /livez]' in text
    assert f'"{config.server.port}", /readyz]' in text


def test_every_setting_named_in_a_compose_file_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    named = set(re.findall(r"^\s+(SHOAL_\w+): ", "".join(f.read_text(encoding="utf-8") for f in FILES), re.MULTILINE))
    assert "SHOAL_LOG_SECRET_FILE" in named
    suitable = {"ADDRESS": "kafka://broker:9092", "REPLICATION": "3", "TLS": "true", "SASL": "scram-sha-512"}
    for variable in named:
        monkeypatch.setenv(variable, suitable.get(variable.removeprefix("SHOAL_LOG_"), "/x"))
    log = load_config(TOP / "deploy/compose/federation.toml").log
    assert isinstance(log, KafkaSettings)
    assert (log.tls, log.secret_file) == (True, Path("/x"))


def test_nothing_but_what_is_named_can_get_into_the_image() -> None:
    first, *rest = [
        line for line in (TOP / ".dockerignore").read_text(encoding="utf-8").splitlines() if not line.startswith("#")
    ]
    assert first == "*"
    kept = {line.removeprefix("!") for line in rest if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--)(.*) \S+$", (TOP / "deploy/Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {
        source.split("/")[0] if source not in kept else source for line in copied for source in line.split()
    } == kept

"""The compose files and the Dockerfile, checked without an engine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from shoal.cli.main import shoal
from shoal.config.settings import load_config
from shoal.server_node.outputs.alert_rules import load_rules
from shoal.transports.kafka.settings import KafkaSettings

TOP = Path(__file__).parent.parent.parent
FILES = [TOP / "docker-compose.yml", TOP / "deploy/compose/production.yml"]
VERSIONS = {"compose_1": ["docker-compose"], "compose_2": ["docker", "compose"]}
"""fixture that skips where this version is missing -> its command"""
VARIABLES = {
    "SHOAL_LOG_ADDRESS": "kafka://broker:9093",
    "SHOAL_LOG_USER": "mill",
    "SHOAL_CLIENT_NAME": "mill",
    "SHOAL_PASSWORD_FILE": "/etc/hostname",
    "SHOAL_CA_FILE": "/etc/hostname",
    "COMPOSE_PROFILES": "centre,site,host,helper,mqtt,events,docs",
}
"""variables that the files require"""


@pytest.mark.needs("docker")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_compose_accepts_the_file_without_warnings(
    version: str, file: Path, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(version)
    command = [*VERSIONS[version], "--file", str(file), "config"]
    read = subprocess.run(
        command, env=os.environ | VARIABLES, capture_output=True, text=True, check=False
    )
    assert (read.returncode, read.stderr) == (0, "")
    assert read.stdout


@pytest.mark.needs("docker")
@pytest.mark.parametrize("version", VERSIONS)
def test_signing_keys_are_mounted_where_they_are_needed_only(
    version: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(version)
    files = [
        option
        for name in ("production", "signed")
        for option in ("--file", str(TOP / f"deploy/compose/{name}.yml"))
    ]
    given = VARIABLES | {"SHOAL_CLIENT_KEYS": "/etc", "SHOAL_SIGNING_KEY_FILE": "/etc/hostname"}
    command = [*VERSIONS[version], *files, "config"]
    read = subprocess.run(
        command, env=os.environ | given, capture_output=True, text=True, check=False
    )
    assert (read.returncode, read.stderr) == (0, "")
    # Only the section of the services: volumes have the same names.
    section = re.search(r"^services:\n((?:  .*\n)+)", read.stdout, re.MULTILINE)
    assert section is not None
    services = dict(re.findall(r"^  (\S+):\n((?:    .*\n)+)", section[1], re.MULTILINE))
    of_client = services["client"]
    of_server = services["server"]
    assert "SHOAL_CLIENT_SIGNING_KEY_FILE: /run/secrets/signing_key" in of_client
    assert "SHOAL_SERVER_CLIENT_KEYS: /run/client_keys" in of_server
    assert all(
        f"source: {secret}" in of_client for secret in ("signing_key", "kafka_password", "kafka_ca")
    )
    assert "source: page_token" in of_server
    assert "page_token" not in of_client, "a client does not read the page"
    assert "signing_key" not in of_server, "the server needs no client's signing key"
    assert "client_keys" not in of_client, "a client needs no public keys"
    assert "/var/lib/shoal/helper.key" in services["helper"], "the volume that has its state"
    assert not any("helper.key" in services[name] for name in ("server", "client")), (
        "a helper is another party"
    )


@pytest.mark.parametrize("file", [*FILES, TOP / "deploy/Dockerfile"], ids=lambda file: file.name)
def test_images_are_pinned_to_exact_versions(file: Path) -> None:
    images = re.findall(
        r"^\s*(?:image:|FROM) (\S+)", file.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert images
    for image in images:
        assert re.search(r":v?\d+\.\d+", image), image


def test_the_image_is_named_after_the_version_of_shoal() -> None:
    version = CliRunner().invoke(shoal, ["--version"]).output.split()[-1]
    for file in FILES:
        assert f"image: shoal:{version}\n" in file.read_text(encoding="utf-8")


def test_the_compose_file_has_the_kafka_version_of_the_tests() -> None:
    pom = (TOP / "deploy/kafka/pom.xml").read_text(encoding="utf-8")
    version = re.search(r"<kafka\.version>(.*)</kafka\.version>", pom)
    assert version is not None
    assert f"image: apache/kafka:{version[1]}\n" in FILES[0].read_text(encoding="utf-8")


def test_the_federation_file_is_valid_and_fits_the_containers() -> None:
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


def test_every_setting_in_a_compose_file_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    named = set(
        re.findall(
            r"^\s+(SHOAL_\w+): ",
            "".join(f.read_text(encoding="utf-8") for f in FILES),
            re.MULTILINE,
        )
    )
    assert "SHOAL_LOG_SECRET_FILE" in named
    suitable = {
        "SHOAL_LOG_ADDRESS": "kafka://broker:9092",
        "SHOAL_LOG_REPLICATION": "3",
        "SHOAL_LOG_TLS": "true",
        "SHOAL_LOG_SASL": "oauthbearer",
        "SHOAL_LOG_OAUTH_URL": "https://idp.example/token",
        "SHOAL_SERVER_ALLOWED_HOSTS": "server,shoal.example",
        "SHOAL_EVENTS_WEBHOOK_URL": "https://alerts.example/shoal",
        "SHOAL_HOST_CLIENT": "key",
        "SHOAL_HOST_ADDRESS": "kafka://site.example:9092",
        "SHOAL_HOST_TOPIC": "readings",
    }
    for variable in named:
        monkeypatch.setenv(variable, suitable.get(variable, "/x"))
    log = load_config(TOP / "deploy/compose/federation.toml").log
    assert isinstance(log, KafkaSettings)
    assert (log.tls, log.secret_file) == (True, Path("/x"))
    assert (log.oauth_url, log.oauth_scope) == ("https://idp.example/token", "/x")


def test_the_rules_of_the_events_service_are_valid_and_it_keeps_its_position_in_its_volume(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = load_rules(TOP / "deploy/compose/alerts.toml")
    assert [rule.name for rule in rules][:2] == ["large new cluster", "cluster ended"]
    section = FILES[0].read_text(encoding="utf-8").split("\n  events:\n")[1].split("\n\n")[0]
    for variable, setting in re.findall(r"^      (SHOAL_EVENTS_\w+): (.*)$", section, re.MULTILINE):
        monkeypatch.setenv(variable, re.sub(r"\$\{\w+:?-(.*)\}", r"\1", setting))
    config = load_config(TOP / "deploy/compose/federation.toml")
    assert (config.events.folder, config.events.rules) == (
        Path("/var/lib/shoal/events"),
        Path("/etc/shoal/alerts.toml"),
    )
    assert not config.sinks, "nothing is delivered anywhere until it is set"
    assert ":/etc/shoal/alerts.toml:ro" in section
    assert "events:/var/lib/shoal" in section


@pytest.mark.parametrize("name", ["requirements.txt", "build_requirements.txt"])
def test_the_image_installs_the_tested_versions_by_digest(name: str) -> None:
    assert f"--require-hashes -r deploy/{name}" in (TOP / "deploy/Dockerfile").read_text(
        encoding="utf-8"
    )
    locked = (TOP / "deploy" / name).read_text(encoding="utf-8").replace(" \\\n", " ")
    lines = [line for line in locked.splitlines() if not line.startswith("#")]
    assert lines
    tested = (
        (TOP / "constraints.txt").read_text(encoding="utf-8").lower().replace("_", "-").splitlines()
    )
    for line in lines:
        pin, *digests = line.split()
        assert pin.lower().replace("_", "-") in tested, f"{pin} is not the version that is tested"
        assert digests
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", digest) for digest in digests)


def test_what_the_image_locks_is_all_that_shoal_needs_there() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = [
        *project["dependencies"],
        *extras["kafka"],
        *extras["server"],
        *extras["mqtt"],
        *extras["sign"],
    ]
    needed += extras["masked"]
    names = {re.split(r"[<>=~!\[; ]", name)[0].lower().replace("_", "-") for name in needed}
    locked = (TOP / "deploy/requirements.txt").read_text(encoding="utf-8").lower().replace("_", "-")
    assert all(f"\n{name}==" in locked for name in names if name != "shoal"), names


def test_no_password_is_in_the_tree_and_each_secret_reaches_only_who_needs_it() -> None:
    text = FILES[0].read_text(encoding="utf-8")
    services = dict(
        re.findall(r"^  (\S+):\n((?:    .*\n|\n)+)", text.split("\nservices:\n")[1], re.MULTILINE)
    )
    holders = {
        secret: {name for name, section in services.items() if f"{secret}:/run/shoal/" in section}
        for secret in ("page-token", "grafana-password", "mqtt-password")
    }
    assert holders == {
        "page-token": {"secrets", "server", "prometheus"},
        "grafana-password": {"secrets", "grafana"},
        "mqtt-password": {"secrets", "mosquitto", "sensors-1", "events"},
    }
    # A volume has the owner of the folder that the image has there: the service that makes the
    # secrets is not root.
    made = re.findall(r"-(?:token|password):(/run/shoal/\w+)", services["secrets"])
    owned = re.search(
        r"install -d -o shoal -g shoal -m 755 (.*)",
        (TOP / "deploy/Dockerfile").read_text(encoding="utf-8"),
    )
    assert owned is not None
    assert owned[1].split() == made
    for name in ("server", "prometheus", "grafana", "mosquitto", "sensors-1", "events"):
        assert re.search(
            r"(page-token|grafana-password|mqtt-password):/run/shoal/\w+:ro", services[name]
        )
    assert not re.search(r"(PASSWORD|TOKEN|SECRET)\w*: *[^/$\s]", text), "a value and not a file"


def test_the_build_context_has_only_what_the_dockerfile_copies() -> None:
    first, *rest = [
        line
        for line in (TOP / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    ]
    assert first == "*"
    kept = {line.removeprefix("!") for line in rest if line.startswith("!")}
    copied = re.findall(
        r"^COPY (?!--)(.*) \S+$",
        (TOP / "deploy/Dockerfile").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert {
        source.split("/")[0] if source not in kept else source
        for line in copied
        for source in line.split()
    } == kept


def services(file: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(file.read_text(encoding="utf-8"))["services"]
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_service_has_limits_and_one_that_stays_has_a_health_check(file: Path) -> None:
    for name, service in services(file).items():
        if "image" not in service:  # an addition to a service of another file
            continue
        assert service["mem_limit"], name
        assert service["cpus"], name
        assert ("healthcheck" in service) != (service.get("restart") == "on-failure"), name


def test_services_that_have_no_business_with_each_other_share_no_network() -> None:
    found = services(TOP / "docker-compose.yml")
    networks = {name: set(service.get("networks", [])) for name, service in found.items()}
    for name, service in found.items():
        assert networks[name] or service.get("network_mode") == "none", (
            f"{name} is in the default network"
        )
    reachable = {
        name: {other for other in networks if networks[other] & networks[name]} for name in networks
    }
    assert "kafka" not in reachable["grafana"] | reachable["mosquitto"] | reachable["prometheus"]
    for number in range(1, 6):
        assert found[f"producer-{number}"]["network_mode"] == "none"
        assert not networks[f"client-{number}"] & {"page", "sensors", "outward", "dashboards"}


def test_the_alertmanager_file_is_valid_and_prometheus_knows_where_it_is() -> None:
    folder = TOP / "deploy" / "prometheus"
    alerting = yaml.safe_load((folder / "prometheus.yml").read_text(encoding="utf-8"))["alerting"]
    assert alerting["alertmanagers"][0]["static_configs"][0]["targets"] == ["alertmanager:9093"]
    rules = yaml.safe_load((folder / "rules.yml").read_text(encoding="utf-8"))
    severities = {
        rule["labels"]["severity"]
        for group in rules["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    route = yaml.safe_load((folder / "alertmanager.yml").read_text(encoding="utf-8"))["route"]
    routed = {matcher.split('"')[1] for inner in route["routes"] for matcher in inner["matchers"]}
    assert routed <= severities
    if amtool := shutil.which("amtool"):
        subprocess.run(
            [amtool, "check-config", str(folder / "alertmanager.yml")],
            check=True,
            capture_output=True,
        )

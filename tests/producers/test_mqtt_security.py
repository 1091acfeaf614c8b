"""A broker with TLS, passwords and access rules: what is not allowed fails at once, with what to
correct."""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.errors import LogError, LogUnavailable, SettingsError
from tests.certificates import authority, signed
from tests.mosquitto_broker import Mosquitto, Sensor
from tests.producers.mqtt_ingest import IngestSite

pytestmark = pytest.mark.needs("mosquitto")

CONFIGURATION = """
allow_anonymous false
password_file {folder}/passwords
acl_file {folder}/rules
cafile {folder}/authority.crt
certfile {folder}/broker.crt
keyfile {folder}/broker.key
"""
RULES = """
user producer
topic read home/#
user sensor
topic write home/#
"""
TOPICS = ("home/warm", "home/damp")


@pytest.fixture(scope="module")
def broker(
    can_run_mosquitto: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mosquitto]:
    folder = tmp_path_factory.mktemp("secure")
    authority(folder, "authority")
    authority(folder, "stranger")
    signed(folder, "broker", "subjectAltName=IP:127.0.0.1")
    (folder / "passwords").write_text("producer:of producer\nsensor:of sensor\n")
    subprocess.run(
        ["mosquitto_passwd", "-U", str(folder / "passwords")], check=True, capture_output=True
    )
    (folder / "rules").write_text(RULES)
    broker = Mosquitto(folder, CONFIGURATION.format(folder=folder))
    yield broker
    broker.stop()


def ingest_of(
    tmp_path: Path,
    broker: Mosquitto,
    *,
    password: str = "of producer",
    trusted: str = "authority",
    more: str = "",
) -> IngestSite:
    (tmp_path / "secret").write_text(password + "\n")
    login = 'user = "producer"\nsecret_file = "secret"'
    tls = f'tls = true\nca_file = "{broker.folder / trusted}.crt"' if trusted else ""
    return IngestSite(tmp_path, broker.port, f"{login}\n{tls}\n{more}", topics=TOPICS)


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_with_the_right_password_over_tls_messages_arrive(
    tmp_path: Path, broker: Mosquitto, version: str
) -> None:
    site = ingest_of(tmp_path, broker, more=f'version = "{version}"')
    site.run()
    context = ssl.create_default_context(cafile=str(broker.folder / "authority.crt"))
    with Sensor(broker.port, tls=context, login=("sensor", "of sensor")) as sensor:
        sensor.publish_all(site.pair(1))
    site.run(readings=1)
    assert site.readings() == [[1.0, 1.0]]


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_wrong_password_is_not_retriable_and_not_printed(
    tmp_path: Path, broker: Mosquitto, version: str
) -> None:
    with pytest.raises(LogError, match="check user and secret_file") as caught:
        ingest_of(tmp_path, broker, password="hunter2", more=f'version = "{version}"').run()
    assert "hunter2" not in str(caught.value)


def test_an_authority_we_do_not_know_is_refused(tmp_path: Path, broker: Mosquitto) -> None:
    with pytest.raises(LogError, match="certificate is not one we trust"):
        ingest_of(tmp_path, broker, trusted="stranger").run()


def test_a_certificate_of_another_host_is_refused(tmp_path: Path, broker: Mosquitto) -> None:
    site = ingest_of(tmp_path, broker)
    site.file.write_text(site.file.read_text().replace('"127.0.0.1"', '"localhost"'))
    with pytest.raises(LogError, match="certificate is not one we trust; check ca_file and host"):
        site.run()


def test_a_tls_port_used_without_tls_is_reported(tmp_path: Path, broker: Mosquitto) -> None:
    with pytest.raises(LogUnavailable, match="connection was closed at once: check tls and port"):
        ingest_of(tmp_path, broker, trusted="").run()


def test_tls_to_a_plain_port_is_reported(
    tmp_path: Path, broker: Mosquitto, mosquitto_port: int
) -> None:
    site = ingest_of(tmp_path, broker)
    site.file.write_text(site.file.read_text().replace(str(broker.port), str(mosquitto_port)))
    with pytest.raises(LogUnavailable, match="connection was closed at once: check tls and port"):
        site.run()


def test_topics_without_read_permission_are_reported(
    can_run_mosquitto: None, tmp_path: Path
) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    # Mosquitto's plain rules let every client subscribe and then deliver nothing; its plug-in
    # refuses.
    rules = {
        "publishClientSend": True,
        "publishClientReceive": True,
        "subscribe": False,
        "unsubscribe": True,
    }
    (folder / "rules.json").write_text(json.dumps({"defaultACLAccess": rules}))
    plugin = next(Path("/usr/lib").rglob("mosquitto_dynamic_security.so"))
    broker = Mosquitto(
        folder, f"allow_anonymous true\nplugin {plugin}\nplugin_opt_config_file {folder}/rules.json"
    )
    try:
        for version in ("5", "3.1.1"):
            with pytest.raises(LogError, match=r"does not let us read all of \[mqtt.topics\]"):
                IngestSite(tmp_path / version, broker.port, f'version = "{version}"').run()
    finally:
        broker.stop()


def test_files_that_are_no_certificates_are_reported(tmp_path: Path, broker: Mosquitto) -> None:
    (tmp_path / "empty.crt").touch()
    with pytest.raises(
        SettingsError, match=r"\[mqtt\] ca_file, certificate_file or key_file cannot be read"
    ):
        ingest_of(tmp_path, broker, trusted=str(tmp_path / "empty")).run()


def test_a_broker_that_asks_for_a_certificate_gets_ours(
    can_run_mosquitto: None, tmp_path: Path
) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    authority(folder, "authority")
    signed(folder, "broker", "subjectAltName=IP:127.0.0.1")
    signed(folder, "ours", "subjectAltName=DNS:ours")
    lines = CONFIGURATION.format(folder=folder).splitlines()
    tls = "\n".join(
        line for line in lines if "file" in line and "password" not in line and "acl" not in line
    )
    broker = Mosquitto(folder, f"{tls}\nrequire_certificate true\nuse_identity_as_username true")
    ca = f'tls = true\nca_file = "{folder}/authority.crt"'
    own = f'certificate_file = "{folder}/ours.crt"\nkey_file = "{folder}/ours.key"'
    try:
        assert IngestSite(tmp_path / "with", broker.port, f"{ca}\n{own}").run().published == 0
        with pytest.raises(LogUnavailable):
            IngestSite(tmp_path, broker.port, ca).run()
    finally:
        broker.stop()

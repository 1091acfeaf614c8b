"""Processes that log in by signed tokens of a real provider (Keycloak), which brokers verify by
the keys that it publishes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shoal.config.settings import Config, load_config
from shoal.files import write_secret
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS, READINGS_SETTINGS
from shoal.transports import open_log
from shoal.transports.base import Log, TopicSettings, partition_of
from shoal.transports.kafka.settings import KafkaSettings
from shoal.transports.kafka.tokens import TokenEndpoint
from shoal.transports.sqlite.log import SqliteLog
from tests.federation_text import federation_text
from tests.house.processes import Process, killed_on_exit, wait_until
from tests.house.small_federation import weather
from tests.kafka_broker import Broker
from tests.kafka_security import secure_broker
from tests.keycloak import ADMIN, OTHER_REALM, REALM, SECRET, Keycloak

pytestmark = pytest.mark.integration

LIFETIME_S = 12
"""of a token: processes on a busy machine log in within it"""
SESSION_S = 4
"""a connection logs in again after this many seconds, or sooner when its token ends"""
AUDIENCE = "kafka"
PROCESSES = ("centre", "attic", "site")
"""clients of the provider: the server, a client and a host, each with a secret of its own"""
OTHER = "visitor"
"""a client whose tokens are for something else than the brokers"""
DEVICES = ("d0", "d1", "d2", "d3")
PARTITIONS = 2
PUBLISH_READINGS = 20
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
LISTENER = "listener.name.clients.oauthbearer."
REFUSED_CODE = 4


def properties_of(keycloak: Keycloak) -> str:
    """What a broker needs to verify tokens."""
    users = ";".join(f"User:{name}" for name in ("admin", "ANONYMOUS", *PROCESSES))
    lines = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        f"{LISTENER}sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer."
        "OAuthBearerLoginModule required;",
        f"{LISTENER}sasl.server.callback.handler.class": HANDLER,
        f"{LISTENER}connections.max.reauth.ms": str(1000 * SESSION_S),
        "sasl.oauthbearer.jwks.endpoint.url": keycloak.keys_url,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": keycloak.issuer(),
        # The client id, by which access rules name a process.
        "sasl.oauthbearer.sub.claim.name": "azp",
        # All clocks are one.
        "sasl.oauthbearer.clock.skew.seconds": "0",
        "super.users": users,
    }
    return "\n" + "".join(f"{name}={value}\n" for name, value in lines.items())


@pytest.fixture(scope="module")
def keycloak(can_run_kafka: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keycloak]:
    audiences = dict.fromkeys(PROCESSES, AUDIENCE) | {OTHER: "another"}
    keycloak = Keycloak(tmp_path_factory.mktemp("keycloak"), LIFETIME_S, audiences)
    yield keycloak
    keycloak.stop()


def broker_of(keycloak: Keycloak, folder: Path) -> Broker:
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keycloak.keys_url}"
    return secure_broker(folder, properties_of(keycloak), [allowed])


@pytest.fixture(scope="module")
def federation_broker(
    keycloak: Keycloak, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    broker = broker_of(keycloak, tmp_path_factory.mktemp("federation"))
    yield broker
    broker.stop()


@pytest.fixture
def site_broker(keycloak: Keycloak, tmp_path: Path) -> Iterator[Broker]:
    """Readings stay on the site, so that it has brokers of its own."""
    (tmp_path / "broker").mkdir()
    broker = broker_of(keycloak, tmp_path / "broker")
    yield broker
    broker.stop()


def login(broker: Broker, keycloak: Keycloak, client: str) -> dict[str, Any]:
    """The settings by which a process logs in at this broker as this client of the provider."""
    return {
        "address": f"kafka://{broker.bootstrap}",
        "tls": True,
        "ca_file": str(broker.folder / "authority.crt"),
        "sasl": "oauthbearer",
        "oauth_url": keycloak.token_url(),
        "user": client,
        "secret_file": "client.secret",
    }


def federation_of(folder: Path, **sections: Any) -> Path:
    """The folder of a process, with its secrets, and its federation file."""
    folder.mkdir()
    write_secret(folder / "client.secret", SECRET.encode())
    write_secret(folder / "site.key", bytes(range(32)))
    file = folder / "federation.toml"
    client = {"folder": "clients", "publish_readings": PUBLISH_READINGS, "publish_s": 86400}
    server = {"folder": "server", "port": 0, "pool_s": 1, "snapshot_s": 1}
    text = federation_text("plant", client=client, server=server, **sections)
    file.write_text(text, encoding="utf-8")
    return file


class Feed:
    """Readings for a client, or for all devices of a site."""

    def __init__(self, log: Log, topic: str, names: tuple[str, ...]) -> None:
        """`names`: keys of the records; none: records of one client, without a key."""
        self._log = log
        self._topic = topic
        self._names = names
        self._number = 0

    def send(self) -> None:
        """Enough for an update of each."""
        for values in weather(PUBLISH_READINGS, self._number):
            self._number += 1
            value = Reading(1e9 + self._number, values).encode()
            if not self._names:
                self._log.publish(self._topic, value, None, Reading.headers())
            for name in self._names:
                key = name.encode()
                partition = partition_of(key, PARTITIONS)
                self._log.publish(self._topic, value, key, Reading.headers(), partition)
        self._log.flush()


def published(process: Process) -> int:
    return process.log_text().count("updates_published")


def have_got(keycloak: Keycloak, tokens: dict[str, int]) -> bool:
    """Whether each client of the provider was given so many tokens."""
    return all(keycloak.tokens(client) >= count for client, count in tokens.items())


def have_published(processes: list[Process], before: list[int]) -> bool:
    """Whether each process has published more than before."""
    counts = [published(process) for process in processes]
    return all(count > earlier for count, earlier in zip(counts, before, strict=True))


def site_settings(login_of: dict[str, Any]) -> dict[str, Any]:
    """The section of a host of a group."""
    group = {"client": "key", "topic": "devices", "group": "hosts", "noise_key_file": "site.key"}
    return login_of | group


def test_a_server_a_client_and_a_host_go_on_by_new_signed_tokens(
    keycloak: Keycloak, federation_broker: Broker, site_broker: Broker, tmp_path: Path
) -> None:
    files = {}
    for name in PROCESSES:
        sections = {"log": login(federation_broker, keycloak, name)}
        if name == "site":
            sections["host"] = site_settings(login(site_broker, keycloak, name))
        files[name] = federation_of(tmp_path / name, **sections)
    of_site = load_config(files["site"])
    own = load_config(files["attic"]).client.folder / "attic"
    own.mkdir(parents=True)
    with (
        closing(open_log(of_site.host)) as topic,
        closing(SqliteLog(own / "readings.db")) as readings,
    ):
        topic.ensure(of_site.host.topic, TopicSettings(partitions=PARTITIONS))
        readings.ensure(READINGS, READINGS_SETTINGS)
        feeds = [Feed(topic, of_site.host.topic, DEVICES), Feed(readings, READINGS, ())]
        check_all_go_on(keycloak, files, feeds)


def check_all_go_on(keycloak: Keycloak, files: dict[str, Path], feeds: list[Feed]) -> None:
    """Start the processes, and feed them until each has published by its third token."""
    commands = {
        "centre": ["server", "--no-page"],
        "attic": ["client", "--name", "attic"],
        "site": ["host"],
    }
    given_before = {name: keycloak.tokens(name) for name in PROCESSES}
    processes = {}
    for name, (command, *words) in commands.items():
        arguments = [command, "--config", str(files[name]), *words]
        processes[name] = Process(arguments, files[name].parent / "process.log")
    publishing = [processes["attic"], processes["site"]]

    with killed_on_exit(list(processes.values())):
        for token in (1, 2, 3):
            given = {name: count + token for name, count in given_before.items()}
            wait_until(partial(have_got, keycloak, given))
            before = [published(process) for process in publishing]
            for feed in feeds:
                feed.send()
            wait_until(partial(have_published, publishing, before))
        # By now the first token, and every session that it began, has long ended.
        for process in processes.values():
            assert process.stop() == 0
        assert "snapshot_published" in processes["centre"].log_text()


@pytest.mark.parametrize(
    ("client", "realm", "ends"),
    [
        pytest.param(OTHER, REALM, False, id="another audience"),
        pytest.param(ADMIN, OTHER_REALM, False, id="another issuer"),
        pytest.param("attic", REALM, True, id="an end in the past"),
    ],
)
def test_a_token_that_is_not_for_the_brokers_ends_a_process_with_one_clear_line(
    client: str,
    realm: str,
    ends: bool,
    keycloak: Keycloak,
    federation_broker: Broker,
    tmp_path: Path,
) -> None:
    settings = login(federation_broker, keycloak, "")
    del settings["oauth_url"]
    file = federation_of(tmp_path / "attic", log=settings)
    token = signed_token(load_config(file), keycloak.token_url(realm), client, ends=ends)
    process = Process(
        ["client", "--config", str(file), "--name", "attic"], tmp_path / "process.log"
    )
    with killed_on_exit([process]):
        process.end(REFUSED_CODE)
    # After the two that say what it was started with.
    started, privacy, *lines = process.log_text().splitlines()
    assert "started" in started
    assert "privacy" in privacy
    (line,) = lines
    assert "do not accept the token" in line
    assert "audience" in line
    assert token not in process.log_text()


def signed_token(config: Config, url: str, client: str, *, ends: bool) -> str:
    """Put a token of this client where the process reads it; `ends`: once it has ended."""
    assert isinstance(config.log, KafkaSettings)
    secret_file = config.log.secret_file
    assert secret_file is not None
    token, ends_at = TokenEndpoint(url, client, secret_file).token()
    while ends and time.time() < ends_at:
        time.sleep(0.1)
    secret_file.write_text(token, encoding="utf-8")
    return token

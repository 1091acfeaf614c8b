"""TLS, passwords and access rules on a real broker: what is allowed, and that the rest fails soon,
with a reason."""

from __future__ import annotations

import logging
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourceType,
    UserScramCredentialUpsertion,
)

from deploy.kafka.broker import jars as kafka_jars
from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import LogSettings, load_config, log_settings
from shoal.errors import LogError, LogUnavailable, SettingsError
from shoal.protocol.messages import Update
from shoal.protocol.signatures import HEADER, signature, write_keys
from shoal.protocol.topics import ensure_topics
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.transports import open_log
from shoal.transports.kafka.log import KafkaLog
from shoal.transports.kafka.settings import KafkaSettings
from tests.certificates import authority
from tests.house.processes import Process
from tests.house.small_federation import create_federation, write_federation
from tests.kafka_broker import Broker
from tests.kafka_security import ADMIN, ADMIN_PASSWORD, secure_broker

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "security.md"
WAIT_S = 120.0
SECRET = "battery staple"
LOG_ERROR = 4


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """These brokers answer; what they say does not change by waiting."""
    monkeypatch.setattr("shoal.transports.kafka.connection.CONNECT_S", 3.0)


@pytest.fixture(scope="module")
def broker(can_run_kafka: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker, with topics `updates` and `snapshots` and a user `attic` who may write one and
    read the other."""
    broker = secure_broker(tmp_path_factory.mktemp("kafka-secure"))
    with closing(log_of(broker, ADMIN, ADMIN_PASSWORD)) as log:
        log.ensure("updates")
        log.ensure("snapshots")
        log.publish("snapshots", b"a snapshot")
    reach = log._topics._client_config
    with closing(KafkaAdminClient(**reach)) as admin:
        admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("attic", "SCRAM-SHA-512", SECRET)]
        )
        rules = (("updates", ACLOperation.WRITE), ("snapshots", ACLOperation.READ))
        admin.create_acls([allow("attic", topic, operation) for topic, operation in rules])
    yield broker
    broker.stop()


def allow(user: str, topic: str, operation: ACLOperation) -> ACL:
    return ACL(
        f"User:{user}",
        "*",
        operation,
        ACLPermissionType.ALLOW,
        ResourcePattern(ResourceType.TOPIC, topic),
    )


def settings_of(broker: Broker, user: str, password: str, /, **more: Any) -> LogSettings:
    secret = broker.folder / f"{user}.secret"
    secret.write_text(password + "\n", encoding="utf-8")
    known: dict[str, Any] = {"tls": True, "ca_file": broker.folder / "authority.crt"}
    known |= {"sasl": "scram-sha-512", "user": user, "secret_file": secret} | more
    return log_settings(address=f"kafka://{broker.bootstrap}", **known)


def log_of(broker: Broker, user: str, password: str, /, **more: Any) -> KafkaLog:
    log = open_log(settings_of(broker, user, password, **more))
    assert isinstance(log, KafkaLog)
    return log


def test_a_client_may_write_updates_and_read_snapshots_and_not_the_reverse(broker: Broker) -> None:
    with closing(log_of(broker, "attic", SECRET)) as log:
        log.publish("updates", b"an update")
        log.flush()
        (snapshot,), _ = log.read("snapshots", {0: 0}, timeout_s=WAIT_S)
        assert snapshot.value == b"a snapshot"
        log.publish("snapshots", b"forged")
        with pytest.raises(LogError, match="TopicAuthorizationFailed"):
            log.flush()
        with pytest.raises(LogError, match="TopicAuthorizationFailed"):
            log.read("updates", {0: 0}, timeout_s=WAIT_S)
        with pytest.raises(LogError, match="TopicAuthorizationFailed"):
            log.ensure("a-topic-of-its-own")
        log.publish("updates", b"another")
        log.flush()
    with closing(log_of(broker, ADMIN, ADMIN_PASSWORD)) as log:
        assert [record.value for record in log.read("updates", {0: 0}, timeout_s=WAIT_S)[0]] == [
            b"an update",
            b"another",
        ]
        assert log.bounds("snapshots") == {0: (0, 1)}


def rules_on_the_page(federation: str) -> list[ACL]:
    """What the commands of docs/how-to/security.md allow, for this federation."""
    rules = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if "kafka-acls.sh" not in line:
            continue
        words = shlex.split(line)
        pairs = [
            (words[place], words[place + 1])
            for place in range(len(words) - 1)
            if words[place].startswith("--")
        ]
        options = dict(pairs)
        kind, name = (
            ("group", options["--group"]) if "--group" in options else ("topic", options["--topic"])
        )
        pattern = ResourcePattern(
            ResourceType[kind.upper()], name.replace("office.", f"{federation}.")
        )
        for operation in (
            ACLOperation[value.upper()] for option, value in pairs if option == "--operation"
        ):
            rules.append(
                ACL(options["--allow-principal"], "*", operation, ACLPermissionType.ALLOW, pattern)
            )
    return rules


def commands_of_quotas(bootstrap: str, admin_file: Path) -> list[list[str]]:
    """The arguments of the commands of docs/how-to/security.md that are about quotas."""
    admin = f"--bootstrap-server {bootstrap} --command-config {admin_file}"
    lines = PAGE.read_text(encoding="utf-8").partition("\n## Quotas")[2].splitlines()
    commands = [line for line in lines if line.strip().startswith("kafka-configs.sh")]
    return [shlex.split(line.replace("$ADMIN", admin))[1:] for line in commands]


def kafka_configs(arguments: Sequence[str]) -> str:
    """What Kafka's own tool prints."""
    words = ["java", "-cp", f"{kafka_jars()}/*", "kafka.admin.ConfigCommand", *arguments]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_quotas_of_the_page_are_set_and_a_site_beyond_them_waits_and_loses_nothing(
    broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(log_of(broker, ADMIN, ADMIN_PASSWORD)) as log:
        log.ensure("site-updates")
        with closing(KafkaAdminClient(**log._topics._client_config)) as admin:
            admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion("mill", "SCRAM-SHA-512", SECRET)]
            )
            rights = (ACLOperation.WRITE, ACLOperation.READ)
            admin.create_acls([allow("mill", "site-updates", right) for right in rights])
    file = tmp_path / "admin.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{ADMIN}" password="{ADMIN_PASSWORD}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={broker.folder}/authority.crt\n",
        encoding="utf-8",
    )
    set_quotas, describe = commands_of_quotas(broker.bootstrap, file)
    kafka_configs(set_quotas)
    shown = kafka_configs(describe)
    for quota in set_quotas[-1].split(","):
        name, _, rate = quota.partition("=")
        assert f"{name}={float(rate)}" in shown
    sent = [b"%d" % number * 1000 for number in range(400)]
    few = [
        word.replace("producer_byte_rate=1048576", "producer_byte_rate=50000")
        for word in set_quotas
    ]
    assert few != set_quotas
    kafka_configs(few)
    with (
        caplog.at_level(logging.WARNING, "kafka.net.connection"),
        closing(log_of(broker, "mill", SECRET)) as log,
    ):
        for value in sent:
            log.publish("site-updates", value)
        log.flush(WAIT_S)
        at = {0: 0}
        read: list[bytes | None] = []
        while len(read) < len(sent):
            records, at = log.read("site-updates", at, timeout_s=WAIT_S)
            read += [record.value for record in records]
    assert read == sent
    assert "throttled by broker" in caplog.text


def test_a_client_and_a_server_with_the_rights_that_the_page_names_do_their_work(
    broker: Broker, tmp_path: Path
) -> None:
    file = create_federation(
        tmp_path, ["attic"], readings=100, pool_clients=1, address=f"kafka://{broker.bootstrap}"
    )
    admin_log = log_of(broker, ADMIN, ADMIN_PASSWORD)
    with closing(admin_log), closing(KafkaAdminClient(**admin_log._topics._client_config)) as admin:
        contract = load_config(file).contract
        ensure_topics(admin_log, contract)
        for user in ("mill", "centre"):
            admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(user, "SCRAM-SHA-512", SECRET)]
            )
        admin.create_acls(rules_on_the_page(contract.federation))
    config = load_config(file)
    as_client = config.model_copy(update={"log": settings_of(broker, "mill", SECRET)})
    as_server = config.model_copy(update={"log": settings_of(broker, "centre", SECRET)})
    with resumed(open_client(as_client, "attic")) as client:
        while client.step():
            pass
    with closing(open_log(as_client.log)) as log:
        log.publish(contract.updates_topic, b"nonsense", b"clusters", Update.headers())
    with resumed(open_server(as_server)) as server:
        while server.status().lag_records:
            server.step(1.0)
        assert server.models()["clusters"].status().snapshot is not None
        assert server.status().rejected == {"malformed": 1}
    with resumed(open_client(as_client, "attic")) as client:
        assert client.totals["learned"] == 100
        with (
            pytest.raises(LogError, match="TopicAuthorizationFailed"),
            resumed(open_server(as_client)) as server,
        ):
            server.step()


def test_an_update_in_another_clients_name_is_rejected_and_the_other_clients_is_absorbed(
    broker: Broker, tmp_path: Path
) -> None:
    file = create_federation(
        tmp_path,
        ["attic", "cellar"],
        readings=100,
        pool_clients=1,
        address=f"kafka://{broker.bootstrap}",
    )
    text = file.read_text(encoding="utf-8").replace(
        "label = true", 'signing_key_file = "{client}.key"'
    )
    file.write_text(text + 'client_keys = "keys"\n', encoding="utf-8")
    config = load_config(file)
    for client, key in (("attic", b"a" * 32), ("cellar", b"c" * 32)):
        write_keys(tmp_path / f"{client}.key", [key])
        write_keys(tmp_path / "keys" / f"{client}.key", [key])
    contract = config.contract
    admin_log = log_of(broker, ADMIN, ADMIN_PASSWORD)
    with closing(admin_log), closing(KafkaAdminClient(**admin_log._topics._client_config)) as admin:
        ensure_topics(admin_log, contract)
        admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("cellar", "SCRAM-SHA-512", SECRET)]
        )
        rules = (
            (contract.updates_topic, ACLOperation.WRITE),
            (contract.snapshots_topic, ACLOperation.READ),
        )
        others = (contract.rejected_topic, contract.events_topic, contract.history_topic)
        rules += tuple((topic, ACLOperation.DESCRIBE) for topic in others)
        admin.create_acls([allow(user, *rule) for user in ("attic", "cellar") for rule in rules])
    with resumed(
        open_client(
            config.model_copy(update={"log": settings_of(broker, "cellar", SECRET)}), "cellar"
        )
    ) as cellar:
        assert cellar.step()
    # The login and the key of attic, with cellar's name and next number in the update.
    with closing(log_of(broker, ADMIN, ADMIN_PASSWORD)) as log:
        genuine = log.read(contract.updates_topic, {0: 0}, timeout_s=WAIT_S)[0][-1]
    update = Update.decode(genuine.value, genuine.headers)
    forged = replace(update, sequence=update.sequence + 1, readings=10**6).encode()
    with closing(log_of(broker, "attic", SECRET)) as log:
        by_attic = (HEADER, signature(b"a" * 32, contract.updates_topic, forged))
        for headers in (Update.headers(), (*Update.headers(), by_attic)):
            log.publish(contract.updates_topic, forged, b"clusters", headers)
        log.flush()
    as_cellar = config.model_copy(update={"log": settings_of(broker, "cellar", SECRET)})
    with (
        pytest.raises(SettingsError, match="accept_unseen"),
        resumed(open_client(as_cellar, "cellar")),
    ):
        pass
    accepting = as_cellar.client.model_copy(update={"accept_unseen": True})
    with resumed(
        open_client(as_cellar.model_copy(update={"client": accepting}), "cellar")
    ) as cellar:
        while cellar.step():
            pass
        learnt = cellar.totals["updates"]
    as_admin = config.model_copy(update={"log": settings_of(broker, ADMIN, ADMIN_PASSWORD)})
    with resumed(open_server(as_admin)) as server:
        while server.status().lag_records:
            server.step(1.0)
        assert server.status().rejected == {"signature": 2}
        (absorbed,) = server.models()["clusters"].clients.totals()
        assert absorbed[:3] == ("cellar", learnt, 100)
        count = server.metrics.registry.get_sample_value(
            "shoal_rejected_messages_total", {"reason": "signature"}
        )
        assert count == 2.0


@pytest.mark.parametrize(
    ("user", "more", "error", "expected"),
    [
        ("stranger", {}, LogError, "user and secret_file"),
        ("attic", {}, LogError, "user and secret_file"),
        ("attic", {"ca_file": None}, LogError, "ca_file"),
        ("attic", {"ca_file": "other.crt"}, LogError, "ca_file"),
        (
            "attic",
            {"tls": False, "ca_file": None},
            LogUnavailable,
            "connection was closed at once: check tls",
        ),
        ("attic", {"sasl": "plain"}, LogError, "check sasl"),
        ("attic", {"sasl": "none", "user": "", "secret_file": None}, LogError, "check sasl"),
    ],
)
def test_a_failed_login_has_its_reason(
    broker: Broker, user: str, more: dict[str, Any], error: type[Exception], expected: str
) -> None:
    if more.get("ca_file"):
        more = more | {"ca_file": authority(broker.folder, "other")}
    with (
        closing(log_of(broker, user, "a guess", **more)) as log,
        pytest.raises(error, match=expected) as caught,
    ):
        log.ensure("updates")
    assert "a guess" not in f"{caught.value!r} {caught.value.__cause__!r} {vars(log)}"


def test_a_failed_login_is_reported_soon_though_an_unavailable_broker_is_waited_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.transports.kafka.connection.CONNECT_S", 3600.0)
    for more in ({}, {"ca_file": authority(broker.folder, "other")}, {"sasl": "plain"}):
        with (
            closing(log_of(broker, "stranger", "a guess", **more)) as log,
            pytest.raises(LogError, match="check"),
        ):
            log.ensure("updates")


@pytest.mark.parametrize(
    "command", [["topics", "ensure"], ["client", "--name", "attic"], ["server", "--no-page"]]
)
def test_a_process_of_a_stranger_ends_with_the_reason(
    command: list[str], broker: Broker, tmp_path: Path
) -> None:
    file = write_federation(tmp_path, address=f"kafka://{broker.bootstrap}")
    secret = tmp_path / "secret"
    secret.write_text("a guess", encoding="utf-8")
    how = (
        f'tls = true\nca_file = "{broker.folder}/authority.crt"\nsasl = "scram-sha-512"\nuser ='
        ' "stranger"\n'
    )
    text = file.read_text(encoding="utf-8").replace(
        "[client]", f'{how}secret_file = "{secret}"\n[client]'
    )
    file.write_text(text, encoding="utf-8")
    process = Process([*command, "--config", str(file)], tmp_path / "output.txt")
    process.end(LOG_ERROR)
    assert "user and secret_file" in process.log_text()
    assert "a guess" not in process.log_text()
    assert "Traceback" not in process.log_text()


def test_tls_to_a_port_without_tls_is_reported(kafka_bootstrap: str, broker: Broker) -> None:
    settings = KafkaSettings(tls=True, ca_file=broker.folder / "authority.crt")
    with (
        closing(KafkaLog(f"//{kafka_bootstrap}", settings)) as log,
        pytest.raises(LogUnavailable, match="TLS handshake"),
    ):
        log.ensure("updates")


def test_a_login_to_a_port_without_login_is_reported(kafka_bootstrap: str, broker: Broker) -> None:
    secret = broker.folder / "attic.secret"
    secret.write_text(SECRET, encoding="utf-8")
    settings = KafkaSettings(sasl="scram-sha-512", user="attic", secret_file=secret)
    with (
        closing(KafkaLog(f"//{kafka_bootstrap}", settings)) as log,
        pytest.raises(LogError, match="do not expect a login"),
    ):
        log.ensure("updates")


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"sasl": "scram-sha-512", "user": "a"}, "secret_file"),
        ({"sasl": "scram-sha-256", "secret_file": "s"}, "user"),
        ({"sasl": "plain", "user": "a", "secret_file": "s"}, "tls = true"),
        ({"sasl": "oauthbearer", "secret_file": "s"}, "tls = true"),
        ({"user": "a"}, "sasl"),
        ({"ca_file": "c"}, "tls = true"),
        ({"tls": True, "key_file": "k"}, "go together"),
    ],
)
def test_incomplete_login_settings_are_refused(section: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        KafkaSettings.model_validate(section)


def test_a_secret_that_cannot_be_read_is_named_and_not_shown(tmp_path: Path) -> None:
    secret = tmp_path / "gone"
    missing = log_settings(
        address="kafka://a:1", sasl="scram-sha-512", user="a", secret_file=secret
    )
    with pytest.raises(SettingsError, match="gone: cannot be read"):
        open_log(missing)

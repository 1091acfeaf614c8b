"""The settings with which a replica reaches the brokers."""

from __future__ import annotations

import time
from pathlib import Path

from shoal.config.sections import ReplicaSettings
from shoal.config.settings import log_settings
from tests.token_endpoint import token_endpoint

KAFKA = "kafka://127.0.0.1:9"


def test_a_restarted_replica_fences_the_process_before_it_and_a_takeover_takes_seconds(
    quix_streams: None,
) -> None:
    from shoal.server_node.replicas.replica import (  # noqa: PLC0415 - an extra
        consumer_config,
        producer_config,
    )

    settings = ReplicaSettings()
    ours = producer_config(log_settings(address=KAFKA), settings, "one")
    assert (
        ours["transactional.id"]
        == producer_config(log_settings(address=KAFKA), settings, "one")["transactional.id"]
    )
    assert (
        ours["transactional.id"]
        != producer_config(log_settings(address=KAFKA), settings, "two")["transactional.id"]
    )
    assert ours["transaction.timeout.ms"] == 6000
    slow = ReplicaSettings(commit_s=10.0)
    assert (
        producer_config(log_settings(address=KAFKA), slow, "one")["transaction.timeout.ms"]
        == 50_000
    )
    assert consumer_config(settings, "one")["session.timeout.ms"] == 6000
    assert consumer_config(settings, "one")["isolation.level"] == "read_committed"


def test_the_settings_of_kafka_reach_quix_streams(quix_streams: None, tmp_path: Path) -> None:
    from shoal.server_node.replicas.replica import connection  # noqa: PLC0415 - an extra

    for name in ("password", "ca.pem"):
        (tmp_path / name).write_text("secret")
    log = log_settings(
        address="kafka://one:1,two:2",
        tls=True,
        ca_file=tmp_path / "ca.pem",
        sasl="scram-sha-512",
        user="replica",
        secret_file=tmp_path / "password",
    )
    assert connection(log).as_librdkafka_dict() == {
        "bootstrap.servers": "one:1,two:2",
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "replica",
        "sasl.password": "secret",
    }


def test_a_replica_gets_tokens_of_an_endpoint_with_their_end(
    quix_streams: None, tmp_path: Path
) -> None:
    from shoal.server_node.replicas.replica import connection  # noqa: PLC0415 - an extra

    (tmp_path / "secret").write_text("battery staple")
    with token_endpoint("replica", lifetime_s=300.0) as endpoint:
        log = log_settings(
            address=KAFKA,
            tls=True,
            sasl="oauthbearer",
            user="replica",
            secret_file=tmp_path / "secret",
            oauth_url=endpoint.url(),
        )
        known = connection(log).as_librdkafka_dict()
        assert known["sasl.mechanism"] == "OAUTHBEARER"
        before = time.time()
        token, ends_at = known["oauth_cb"]("")
        assert token == endpoint.tokens[0]
        assert before + 300.0 <= ends_at <= time.time() + 300.0

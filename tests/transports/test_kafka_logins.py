"""Logins by password and by bearer token, over TLS, on a real broker: which succeed, and the errors
of the others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from shoal.config.settings import log_settings
from shoal.errors import LogError, LogUnavailable, ShoalError
from shoal.transports import open_log
from shoal.transports.kafka.log import KafkaLog
from tests.kafka_broker import Broker
from tests.kafka_security import ADMIN, ADMIN_PASSWORD, secure_broker
from tests.token_endpoint import Endpoint, token_endpoint, unsigned_token

SECRET = "battery staple"
SESSION_S = 2
"""a connection must show its token again after this many seconds, or sooner when the token ends"""

# Without a handler of its own the broker takes unsigned tokens, and checks when they end: enough to
# try what a client does, and for tests only.
FURTHER = f"""
sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN,OAUTHBEARER
listener.name.clients.plain.sasl.jaas.config=\\
org.apache.kafka.common.security.plain.PlainLoginModule required user_attic="{SECRET}";
listener.name.clients.oauthbearer.sasl.jaas.config=\\
org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required \\
unsecuredLoginStringClaim_sub="broker";
listener.name.clients.oauthbearer.connections.max.reauth.ms={1000 * SESSION_S}
super.users=User:admin;User:ANONYMOUS;User:attic
"""


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """This broker answers; what it says does not change by waiting."""
    monkeypatch.setattr("shoal.transports.kafka.connection.CONNECT_S", 3.0)


@pytest.fixture(scope="module")
def broker(can_run_kafka: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = secure_broker(tmp_path_factory.mktemp("kafka-logins"), FURTHER)
    yield broker
    broker.stop()


def log_of(broker: Broker, sasl: str, user: str, secret_file: Path, **more: Any) -> KafkaLog:
    settings = {
        "address": f"kafka://{broker.bootstrap}",
        "tls": True,
        "ca_file": broker.folder / "authority.crt",
        "sasl": sasl,
        "user": user,
        "secret_file": secret_file,
    } | more
    log = open_log(log_settings(**settings))
    assert isinstance(log, KafkaLog)
    return log


def assert_round_trip(log: KafkaLog, topic: str, word: bytes) -> None:
    """A record is written, and read again."""
    log.ensure(topic)
    end = log.bounds(topic)[0][1]
    log.publish(topic, word)
    log.flush(60.0)
    assert [record.value for record in log.read(topic, {0: end}, timeout_s=30.0)[0]] == [word]


@pytest.mark.parametrize(
    ("sasl", "user", "secret"),
    [
        ("plain", "attic", SECRET),
        ("scram-sha-512", ADMIN, ADMIN_PASSWORD),
        ("oauthbearer", "", None),
    ],
)
def test_who_may_come_in_writes_and_reads(
    sasl: str, user: str, secret: str | None, broker: Broker, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text((secret or unsigned_token(3600)) + "\n", encoding="utf-8")
    with closing(log_of(broker, sasl, user, file)) as log:
        assert_round_trip(log, sasl, b"by " + sasl.encode())


@contextmanager
def with_a_token_that_ends(
    broker: Broker, file: Path, topic: str
) -> Iterator[tuple[KafkaLog, float]]:
    """A log that has come in with a token, and when this token ends: soon, or later where the
    machine was too busy to come in before."""
    for sessions in (2, 8, 32, 128):
        ends_at = time.time() + sessions * SESSION_S
        file.write_text(unsigned_token(sessions * SESSION_S), encoding="utf-8")
        with closing(log_of(broker, "oauthbearer", "", file)) as log:
            try:
                assert_round_trip(log, topic, b"with the first")
            except (LogError, LogUnavailable):
                if time.time() < ends_at:
                    raise
            else:
                yield log, ends_at
                return
    pytest.fail("every token has ended before its first use")


def test_a_token_renewed_on_disk_works_after_the_old_one_expires(
    broker: Broker, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    with with_a_token_that_ends(broker, file, "renewed") as (log, ends_at):
        renewed = tmp_path / "renewed"
        renewed.write_text(unsigned_token(3600), encoding="utf-8")
        renewed.replace(file)
        number = 0
        # beyond the end of the first, and of any session that it began
        while time.time() < ends_at + SESSION_S:
            number += 1
            assert_round_trip(log, "renewed", b"%d" % number)
            time.sleep(0.2)
        assert number > 1


def test_a_token_that_is_not_renewed_stops_the_log_with_a_reason(
    broker: Broker, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    with with_a_token_that_ends(broker, file, "ended"):
        pass
    with pytest.raises(LogError, match="user and secret_file"):
        until_refused(broker, file)


def until_refused(broker: Broker, file: Path) -> None:
    """As a process does: after an error that may pass, all is built again."""
    while True:
        with suppress(LogUnavailable), closing(log_of(broker, "oauthbearer", "", file)) as log:
            assert_round_trip(log, "ended", b"and no longer")


@pytest.mark.parametrize(
    ("sasl", "user", "secret"),
    [
        ("plain", "attic", "a guess"),
        ("plain", "nobody", SECRET),
        ("oauthbearer", "", "a guess"),
        ("oauthbearer", "", unsigned_token(-3600)),
    ],
)
def test_a_failed_login_has_its_reason(
    sasl: str, user: str, secret: str, broker: Broker, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text(secret, encoding="utf-8")
    with (
        closing(log_of(broker, sasl, user, file)) as log,
        pytest.raises(LogError, match="user and secret_file") as caught,
    ):
        log.ensure("whatever")
    assert secret not in f"{caught.value!r} {caught.value.__cause__!r} {vars(log)}"


def log_by_endpoint(broker: Broker, endpoint: Endpoint, folder: Path, **more: Any) -> KafkaLog:
    file = folder / "client_secret"
    file.write_text(SECRET, encoding="utf-8")
    return log_of(broker, "oauthbearer", "attic", file, oauth_url=endpoint.url(), **more)


def test_a_log_goes_on_by_new_tokens_of_the_endpoint_after_the_first_has_expired(
    broker: Broker, tmp_path: Path
) -> None:
    with (
        # Longer than a session, so that both ends come: of a session, and of a token.
        token_endpoint("attic", SECRET, lifetime_s=4 * SESSION_S) as endpoint,
        closing(log_by_endpoint(broker, endpoint, tmp_path)) as log,
    ):
        number = 0
        while len(endpoint.tokens) < 3:
            number += 1
            assert_round_trip(log, "by-endpoint", b"%d" % number)
            time.sleep(0.2)
        assert number > 1
        # A token serves several connections and sessions.
        assert len(endpoint.forms) == len(endpoint.tokens)


def test_an_outage_of_the_endpoint_has_its_reason_and_passes(
    broker: Broker, tmp_path: Path
) -> None:
    with token_endpoint("attic", SECRET, lifetime_s=2 * SESSION_S) as endpoint:
        with closing(log_by_endpoint(broker, endpoint, tmp_path)) as log:
            assert_round_trip(log, "outage", b"before")
            endpoint.instead = (503, {}, b"")
            with pytest.raises(LogUnavailable):
                round_trips(log, "outage")
        reason = ""
        # As a process does: after an error that may pass, all is built again.
        while "token endpoint" not in reason:
            with closing(log_by_endpoint(broker, endpoint, tmp_path)) as log:
                try:
                    assert_round_trip(log, "outage", b"with the first")
                except LogUnavailable as error:
                    reason = str(error)
        assert "status 503" in reason
        endpoint.instead = None
        endpoint.lifetime_s = 3600.0
        written = False
        while not written:
            with (
                suppress(LogUnavailable),
                closing(log_by_endpoint(broker, endpoint, tmp_path)) as log,
            ):
                assert_round_trip(log, "outage", b"after")
                written = True


def round_trips(log: KafkaLog, topic: str) -> None:
    """One after the other, until there is an error."""
    while True:
        assert_round_trip(log, topic, b"meanwhile")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"user": "nobody"}, "status 401, invalid_client"),
        ({"oauth_url": "http://127.0.0.1:9/token"}, "not reached"),
    ],
)
def test_a_login_without_a_token_has_its_reason(
    more: dict[str, str], expected: str, broker: Broker, tmp_path: Path
) -> None:
    file = tmp_path / "client_secret"
    file.write_text(SECRET, encoding="utf-8")
    with token_endpoint("attic", SECRET) as endpoint:
        known = {"user": "attic", "oauth_url": endpoint.url()} | more
        with (
            closing(log_of(broker, "oauthbearer", secret_file=file, **known)) as log,
            pytest.raises(ShoalError, match=f"token endpoint .*{expected}") as caught,
        ):
            log.ensure("whatever")
    assert caught.value.retriable == (expected == "not reached")
    assert SECRET not in f"{caught.value!r} {caught.value.__cause__!r} {vars(log)}"

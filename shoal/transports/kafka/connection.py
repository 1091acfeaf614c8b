"""Connections to Kafka: the configuration of kafka-python's clients and of topics, and errors that
say what to do."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kafka import errors
from kafka.net.compat import KafkaNetClient
from kafka.net.sasl.oauth import AbstractTokenProvider

from shoal.errors import LogError, LogUnavailable, ShoalError
from shoal.files import read_password
from shoal.transports.base import TopicSettings
from shoal.transports.kafka.checksums import use_fast_checksums
from shoal.transports.kafka.settings import KafkaSettings

if TYPE_CHECKING:
    from shoal.transports.kafka.tokens import TokenSource

# Where this module is loaded, as every client of a broker needs it.
use_fast_checksums()

MIB = 1024 * 1024
CONNECT_S = 10.0
"""seconds after which a broker that has not answered is unavailable; the caller tries again"""
BATCH_BYTES = 32 * 1024
FRAME_BYTES = 64 * 1024
"""part of a topic's max.message.bytes for what Kafka adds to key, value and headers. It is more
than a batch of small records takes, so only a single record can be too large for its topic, and
`check_record` rejects that one first."""
SEGMENT_BYTES_MIN = MIB
SEGMENT_BYTES_MAX = 1024 * MIB
# Kafka removes whole segments, never the newest: shorter ones let retention come near its time.
SEGMENT_S_MAX = 7 * 86400.0
COMPACT_EVERY_S = 600.0
# A reader that was away for less sees that a key was removed.
TOMBSTONE_S = 24 * 3600.0


def _security_protocol(settings: KafkaSettings) -> str:
    protocol = "SSL" if settings.tls else "PLAINTEXT"
    if settings.sasl == "none":
        return protocol
    return f"SASL_{protocol}"


def client_config(servers: list[str], settings: KafkaSettings) -> dict[str, Any]:
    """The configuration that all clients of kafka-python share. It contains secrets: never print
    it.

    Raises `SettingsError` for a file that cannot be read.
    """
    known: dict[str, Any] = {
        "bootstrap_servers": servers,
        "bootstrap_timeout_ms": int(1000 * CONNECT_S),
        # The library's default grows to 30 s, so a broker that is available again would wait that
        # long for us.
        "reconnect_backoff_max_ms": 1000,
        "security_protocol": _security_protocol(settings),
    }
    files = {
        "ssl_cafile": settings.ca_file,
        "ssl_certfile": settings.certificate_file,
        "ssl_keyfile": settings.key_file,
    }
    for name, file in files.items():
        if file is not None:
            read_password(file, "log")  # kafka-python does not name a file that it cannot read
            known[name] = str(file)
    if settings.sasl == "none":
        return known
    assert settings.secret_file is not None  # KafkaSettings checks it
    secret = read_password(settings.secret_file, "log")
    known["sasl_mechanism"] = settings.sasl.upper()
    if settings.sasl == "oauthbearer":
        # It loads an HTTP client, which a client of the edge with another login does without.
        from shoal.transports.kafka.tokens import token_source  # noqa: PLC0415 - tokens only

        known["sasl_oauth_token_provider"] = TokenProvider(token_source(settings))
    else:
        known |= {"sasl_plain_username": settings.user, "sasl_plain_password": secret}
    return known


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Bearer tokens for kafka-python, which asks for one at each login."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source

    def token(self) -> str:
        """A token. Raises an error of the library for one that may pass."""
        try:
            return self._source.token()[0]
        except ShoalError as error:
            # The library ends a connection by its own errors. Its user connects anew after one that
            # may pass, and `connect` then reports the reason.
            raise errors.KafkaConnectionError(str(error)) from error

    def check(self) -> None:
        """Raises `LogUnavailable`, `LogError` or `SettingsError` where there is no token."""
        self._source.token()


def configs_of(settings: TopicSettings, replication: int) -> dict[str, str]:
    """A topic's settings as Kafka's configuration. `replication` 0: the brokers' default."""
    retained = settings.retain_bytes is not None or _finite(settings.retain_s) is not None
    retain_s = _finite(settings.retain_s)
    message_bytes = settings.record_bytes_max + FRAME_BYTES
    policy = "delete"
    if settings.compact:
        policy = "compact,delete" if retained else "compact"
    # -1 is no limit.
    retention_ms = -1 if retain_s is None else round(1000 * retain_s)
    retention_bytes = -1 if settings.retain_bytes is None else settings.retain_bytes
    configs = {
        "cleanup.policy": policy,
        "retention.ms": str(retention_ms),
        "retention.bytes": str(retention_bytes),
        "max.message.bytes": str(message_bytes),
        # Retention uses the brokers' clock: a wrong clock of a writer must not remove what was just
        # written.
        "message.timestamp.type": "LogAppendTime",
        # Brokers with another default pack records anew, in a codec that readers may lack.
        "compression.type": "producer",
    }
    segment_bytes = SEGMENT_BYTES_MAX
    segment_s = SEGMENT_S_MAX
    if settings.retain_bytes is not None:
        # Whole segments are removed, so a small topic needs small ones; and a record must fit into
        # one.
        segment_bytes = min(
            SEGMENT_BYTES_MAX, max(SEGMENT_BYTES_MIN, settings.retain_bytes // 8, message_bytes)
        )
    if retain_s is not None:
        segment_s = min(SEGMENT_S_MAX, max(COMPACT_EVERY_S, retain_s / 8))
    if settings.compact:
        # The newest segment is never compacted, so it must not stay the newest for long.
        segment_s = COMPACT_EVERY_S
        configs |= {
            "min.cleanable.dirty.ratio": "0.1",
            "delete.retention.ms": str(round(1000 * TOMBSTONE_S)),
        }
    if replication >= 3:
        configs["min.insync.replicas"] = str(replication - 1)
    return configs | {
        "segment.bytes": str(segment_bytes),
        "segment.ms": str(round(1000 * segment_s)),
    }


def settings_of(configs: dict[str, str], partitions: int) -> TopicSettings:
    """The reverse of `configs_of`: a topic's settings from its Kafka configuration."""
    retain_bytes = None
    retain_s = None
    # Kafka keeps limits of a topic that is only compacted, and does not apply them.
    if "delete" in configs["cleanup.policy"]:
        retention_bytes = int(configs["retention.bytes"])
        if retention_bytes >= 0:
            retain_bytes = retention_bytes
        retention_ms = int(configs["retention.ms"])
        if retention_ms >= 0:
            retain_s = retention_ms / 1000
    return TopicSettings(
        partitions=partitions,
        compact="compact" in configs["cleanup.policy"],
        retain_bytes=retain_bytes,
        retain_s=retain_s,
        record_bytes_max=max(1, int(configs["max.message.bytes"]) - FRAME_BYTES),
    )


def _finite(seconds: float | None) -> float | None:
    if seconds is None or math.isinf(seconds):
        return None
    return seconds


_PERMANENT = {
    "SaslAuthenticationFailedError": "the brokers do not accept the user or the secret; check user "
    "and secret_file",
    "CERTIFICATE_VERIFY_FAILED": "the brokers' certificate is not one we trust; check ca_file and "
    "the host in address",
    "IllegalSaslStateError": "the brokers do not expect a login on this port; check the port, or "
    'set sasl = "none"',
    "UnsupportedSaslMechanismError": "the brokers do not offer this login mechanism; check sasl",
    "FencedInstanceIdError": "another process has joined the group as the same member; give each "
    "host a member of its own in [host]",
    "WRONG_VERSION_NUMBER": "the brokers do not use TLS on this port; check the port and tls",
}
"""text in the library's log, or name of its error, for failures that no later try can mend -> what
to do"""
TOKEN_REFUSED = (
    "the brokers do not accept the token: its audience, issuer, signature or end is not as they"
    " expect; check user and secret_file, oauth_scope, what audience the provider gives, and the"
    " clocks"
)
_TEMPORARY = {
    "ECONNREFUSED": "no server listens there",
    "DNS": "the host's name is not known",
    "UNEXPECTED_EOF": "the connection was closed at the TLS handshake: check tls and port, unless "
    "they are restarting",
    "socket disconnected": "the connection was closed at once: check tls, sasl and port, unless "
    "they are restarting",
}
LOST_MIN = 3
FIRST_ATTEMPT_MS = 2000
_PERMANENT_ERRORS = (
    errors.AuthorizationError,
    errors.SaslAuthenticationFailedError,
    errors.MessageSizeTooLargeError,
    errors.InvalidTopicError,
    errors.InvalidConfigurationError,
    errors.PolicyViolationError,
    errors.UnsupportedVersionError,
    errors.FencedInstanceIdError,
)

# The library logs many warnings about single connections; what matters of them is in our errors.
logging.getLogger("kafka").addHandler(logging.NullHandler())


class ConnectionFailures(logging.Handler):
    """Collects the warnings that the library logs while it connects: its error gives no cause."""

    def __init__(self, *, by_token: bool) -> None:
        """`by_token`: whether the login is by a bearer token."""
        super().__init__(logging.WARNING)
        self._by_token = by_token
        self._messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self._messages.append(record.getMessage())

    def to_error(self, where: str) -> ShoalError:
        """The reason for a failure to connect: `LogError` when no later try can succeed, else
        `LogUnavailable`."""
        for sign, meaning in _PERMANENT.items():
            if any(sign in message for message in self._messages):
                if self._by_token and sign == "SaslAuthenticationFailedError":
                    return LogError(f"{where}: {TOKEN_REFUSED}")
                return LogError(f"{where}: {meaning}")
        # A broker that refuses a password answers so and closes the connection, and the library may
        # see only that it was closed. A broker that sent its version each time before it closed is
        # not one that is restarting.
        lost = [message for message in self._messages if "Connection lost" in message]
        answered = all(
            "broker_version=(" in message and "disconnected" in message for message in lost
        )
        if len(lost) >= LOST_MIN and answered:
            if self._by_token:
                return LogError(f"{where}: {TOKEN_REFUSED}")
            return LogError(
                f"{where}: they close the connection at the login: check sasl, user and secret_file"
            )
        # The newest tells what is wrong now.
        for message in reversed(self._messages):
            for sign, meaning in _TEMPORARY.items():
                if sign in message:
                    return LogUnavailable(f"{where} cannot be reached: {meaning}")
        return LogUnavailable(f"{where} cannot be reached: no answer in time")


def connect(where: str, make: Callable[..., Any], known: Mapping[str, Any]) -> Any:
    """A connected client of kafka-python. A failure is explained by what the library logged
    meanwhile.

    `known["bootstrap_timeout_ms"]` bounds all attempts together; the first is short and each later
    one twice as long, so that a wrong password is reported soon. Raises `LogError`,
    `LogUnavailable` and `SettingsError`.
    """
    provider = known.get("sasl_oauth_token_provider")
    if provider is not None:
        # Before any connection: the library would only report that there is none.
        provider.check()
    left_ms = known["bootstrap_timeout_ms"]
    next_ms = FIRST_ATTEMPT_MS
    with _collecting_failures(by_token=provider is not None) as reasons:
        while True:
            this_ms = min(next_ms, left_ms)
            # Short first: the library reports a wrong password only when an attempt ends.
            left_ms = left_ms - this_ms
            next_ms = 2 * next_ms
            try:
                return _attempt(where, make, {**known, "bootstrap_timeout_ms": this_ms}, reasons)
            except LogUnavailable:
                if provider is not None:
                    # The token may have ended meanwhile, and no other one be had.
                    provider.check()
                if not left_ms:
                    raise


def _attempt(
    where: str, make: Callable[..., Any], known: Mapping[str, Any], reasons: ConnectionFailures
) -> Any:
    started: list[Any] = []

    def client(**settings: Any) -> Any:
        started.append(KafkaNetClient(**settings))
        return started[-1]

    try:
        return make(**known, kafka_client=client)
    except (errors.KafkaError, OSError) as error:
        # The library leaves running what it had started: a thread and some open files each time. A
        # process that waits for its brokers through a night would run out of them.
        for library_client in started:
            library_client.close()
        if isinstance(error, errors.KafkaTimeoutError | errors.KafkaConnectionError):
            raise reasons.to_error(where) from error
        raise LogError(f"{where}: {type(error).__name__}; check [log]") from error


@contextmanager
def _collecting_failures(*, by_token: bool) -> Iterator[ConnectionFailures]:
    reasons = ConnectionFailures(by_token=by_token)
    logger = logging.getLogger("kafka.net")
    logger.addHandler(reasons)
    try:
        yield reasons
    finally:
        logger.removeHandler(reasons)


@contextmanager
def kafka_errors(where: str, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn errors of the library within the context into errors of shoal, except those in `but`."""
    try:
        yield
    except but:
        raise
    except errors.KafkaError as error:
        raise to_shoal_error(error, where) from error


def to_shoal_error(error: BaseException, where: str) -> ShoalError:
    """An error of the library as an error of shoal, without its text, which may hold bytes of a
    record."""
    name = type(error).__name__
    if isinstance(error, errors.AuthorizationError):
        return LogError(
            f"{where}: {name}: this user has no right to do that; see docs/how-to/security.md"
        )
    if isinstance(error, _PERMANENT_ERRORS):
        return LogError(f"{where}: {_PERMANENT.get(name, name)}")
    return LogUnavailable(
        f"{where}: a broker is unavailable, or does not answer as it should ({name})"
    )

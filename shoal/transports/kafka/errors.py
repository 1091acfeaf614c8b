"""Errors of kafka-python as errors of shoal, and connecting with an explanation when it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kafka import errors
from kafka.net.compat import KafkaNetClient

from shoal.errors import LogError, LogUnavailable, ShoalError

_PERMANENT = {
    "SaslAuthenticationFailedError": "the brokers do not accept the user or the secret; check user and secret_file",
    "CERTIFICATE_VERIFY_FAILED": "the brokers' certificate is not one we trust; check ca_file and the host in address",
    "IllegalSaslStateError": 'the brokers do not expect a login on this port; check the port, or set sasl = "none"',
    "UnsupportedSaslMechanismError": "the brokers do not offer this login mechanism; check sasl",
    "WRONG_VERSION_NUMBER": "the brokers do not use TLS on this port; check the port and tls",
}
"""text in the library's log, or name of its error, for failures that no later try can mend -> what to do"""
_TEMPORARY = {
    "ECONNREFUSED": "no server listens there",
    "DNS": "the host's name is not known",
    "UNEXPECTED_EOF": "the connection was closed at the TLS handshake: check tls and port, unless they are restarting",
    "socket disconnected": "the connection was closed at once: check tls, sasl and port, unless they are restarting",
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
)

# The library logs many warnings about single connections; what matters of them is in our errors.
logging.getLogger("kafka").addHandler(logging.NullHandler())


class ConnectionFailures(logging.Handler):
    """Collects the warnings that the library logs while it connects: its error gives no cause."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self._messages.append(record.getMessage())

    def to_error(self, where: str) -> ShoalError:
        """Why there is no connection, as `LogError` when no later try can succeed, else as `LogUnavailable`."""
        for sign, meaning in _PERMANENT.items():
            if any(sign in message for message in self._messages):
                return LogError(f"{where}: {meaning}")
        # A broker that refuses a password answers so and closes the connection, and the library may see only that it
        # was closed. A broker that told its version each time before it closed is not one that is restarting.
        lost = [message for message in self._messages if "Connection lost" in message]
        answered = all("broker_version=(" in message and "disconnected" in message for message in lost)
        if len(lost) >= LOST_MIN and answered:
            return LogError(f"{where}: they close the connection at the login: check sasl, user and secret_file")
        for message in reversed(self._messages):
            for sign, meaning in _TEMPORARY.items():
                if sign in message:
                    return LogUnavailable(f"{where} cannot be reached: {meaning}")
        return LogUnavailable(f"{where} cannot be reached: no answer in time")


def connect(where: str, make: Callable[..., Any], known: Mapping[str, Any]) -> Any:
    """A connected client of kafka-python. A failure is explained by what the library logged meanwhile.

    `known["bootstrap_timeout_ms"]` bounds all attempts together; the first is short and each later one twice as long,
    so that a wrong password is reported soon. Raises `LogError` and `LogUnavailable`.
    """
    left_ms, next_ms = known["bootstrap_timeout_ms"], FIRST_ATTEMPT_MS
    with _collecting_failures() as reasons:
        while True:
            this_ms = min(next_ms, left_ms)
            left_ms, next_ms = left_ms - this_ms, 2 * next_ms
            try:
                return _attempt(where, make, {**known, "bootstrap_timeout_ms": this_ms}, reasons)
            except LogUnavailable:
                if not left_ms:
                    raise


def _attempt(where: str, make: Callable[..., Any], known: Mapping[str, Any], reasons: ConnectionFailures) -> Any:
    started: list[Any] = []

    def client(**settings: Any) -> Any:
        started.append(KafkaNetClient(**settings))
        return started[-1]

    try:
        return make(**known, kafka_client=client)
    except (errors.KafkaError, OSError) as error:
        # The library leaves running what it had started: a thread and some open files each time. A process that waits
        # for its brokers through a night would run out of them.
        for one in started:
            one.close()
        if isinstance(error, errors.KafkaTimeoutError | errors.KafkaConnectionError):
            raise reasons.to_error(where) from error
        raise LogError(f"{where}: {type(error).__name__}; check [log]") from error


@contextmanager
def _collecting_failures() -> Iterator[ConnectionFailures]:
    reasons, logger = ConnectionFailures(), logging.getLogger("kafka.net")
    logger.addHandler(reasons)
    try:
        yield reasons
    finally:
        logger.removeHandler(reasons)


@contextmanager
def kafka_errors(where: str, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turns errors of the library inside into errors of shoal, except those in `but`."""
    try:
        yield
    except but:
        raise
    except errors.KafkaError as error:
        raise to_shoal_error(error, where) from error


def to_shoal_error(error: BaseException, where: str) -> ShoalError:
    """An error of the library as an error of shoal, without its text, which may hold bytes of a record."""
    name = type(error).__name__
    if isinstance(error, errors.AuthorizationError):
        return LogError(f"{where}: {name}: this user has no right to do that; see docs/how-to/security.md")
    if isinstance(error, _PERMANENT_ERRORS):
        return LogError(f"{where}: {_PERMANENT.get(name, name)}")
    return LogUnavailable(f"{where}: a broker is unavailable, or does not answer as it should ({name})")

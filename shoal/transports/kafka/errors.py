"""What goes wrong between kafka-python and its brokers, in our words."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kafka import errors
from kafka.net.compat import KafkaNetClient

from shoal.errors import LogError, LogUnavailable, ShoalError

_FOR_GOOD = {
    "SaslAuthenticationFailedError": "the brokers do not accept the user or the secret; check user and secret_file",
    "CERTIFICATE_VERIFY_FAILED": "the brokers' certificate is not one we trust; check ca_file and the host in address",
    "IllegalSaslStateError": 'the brokers want no login on this port; check the port, or set sasl = "none"',
    "UnsupportedSaslMechanismError": "the brokers do not offer this way to log in; check sasl",
    "WRONG_VERSION_NUMBER": "the brokers do not speak TLS on this port; check the port and tls",
}
"""what stands in the library's log, or is the name of its error, when trying again cannot help -> what to do"""
_FOR_NOW = {
    "ECONNREFUSED": "nobody listens there",
    "DNS": "the host's name is not known",
    "UNEXPECTED_EOF": "they hang up on a TLS greeting: check tls and the port, unless they are just restarting",
    "socket disconnected": "they hang up when spoken to: check tls, sasl and the port, unless they are just restarting",
}
LOST_MIN = 3
FIRST_ATTEMPT_MS = 2000
_NEVER_AGAIN = (
    errors.AuthorizationError,
    errors.SaslAuthenticationFailedError,
    errors.MessageSizeTooLargeError,
    errors.InvalidTopicError,
    errors.InvalidConfigurationError,
    errors.PolicyViolationError,
    errors.UnsupportedVersionError,
)

# Its warnings are about single connections and come by the dozen; what matters of them is in our errors.
logging.getLogger("kafka").addHandler(logging.NullHandler())


class Reasons(logging.Handler):
    """Collects what the library says in its log while it connects: its error gives no cause."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what was said."""
        self._said.append(record.getMessage())

    def verdict(self, where: str) -> ShoalError:
        """Why there is no connection: `LogError` when trying again cannot help, else `LogUnavailable`."""
        for sign, meaning in _FOR_GOOD.items():
            if any(sign in said for said in self._said):
                return LogError(f"{where}: {meaning}")
        # A broker that refuses a password says so and hangs up, and the library may see only the second. One that
        # told its version each time and then always hung up is not one that is just restarting.
        lost = [said for said in self._said if "Connection lost" in said]
        if len(lost) >= LOST_MIN and all("broker_version=(" in said and "disconnected" in said for said in lost):
            return LogError(f"{where}: they answer, and hang up at the login: check sasl, user and secret_file")
        for said in reversed(self._said):
            for sign, meaning in _FOR_NOW.items():
                if sign in said:
                    return LogUnavailable(f"{where} cannot be reached: {meaning}")
        return LogUnavailable(f"{where} cannot be reached: no answer in time")


def connect(where: str, make: Callable[..., Any], known: Mapping[str, Any]) -> Any:
    """A connected client of kafka-python. A failure is explained by what the library logged meanwhile.

    It tries for as long as `known` says that brokers are waited for, but shortly at first and then longer: who has the
    wrong password is told so at once. Raises `LogError` and `LogUnavailable`.
    """
    left_ms, next_ms = known["bootstrap_timeout_ms"], FIRST_ATTEMPT_MS
    with _listening() as reasons:
        while True:
            this_ms = min(next_ms, left_ms)
            left_ms, next_ms = left_ms - this_ms, 2 * next_ms
            try:
                return _attempt(where, make, {**known, "bootstrap_timeout_ms": this_ms}, reasons)
            except LogUnavailable:
                if not left_ms:
                    raise


def _attempt(where: str, make: Callable[..., Any], known: Mapping[str, Any], reasons: Reasons) -> Any:
    begun: list[Any] = []

    def client(**settings: Any) -> Any:
        begun.append(KafkaNetClient(**settings))
        return begun[-1]

    try:
        return make(**known, kafka_client=client)
    except (errors.KafkaError, OSError) as error:
        # The library forgets what it had begun and leaves it running: a thread and some open files each time, and
        # a process that waits for its brokers through a night would run out of them.
        for one in begun:
            one.close()
        if isinstance(error, errors.KafkaTimeoutError | errors.KafkaConnectionError):
            raise reasons.verdict(where) from error
        raise LogError(f"{where}: {type(error).__name__}; check [log]") from error


@contextmanager
def _listening() -> Iterator[Reasons]:
    reasons, logger = Reasons(), logging.getLogger("kafka.net")
    logger.addHandler(reasons)
    try:
        yield reasons
    finally:
        logger.removeHandler(reasons)


@contextmanager
def explained(where: str, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """The library's errors as ours, `but` for some."""
    try:
        yield
    except but:
        raise
    except errors.KafkaError as error:
        raise ours(error, where) from error


def ours(error: BaseException, where: str) -> ShoalError:
    """An error of the library as one of ours; its own text may hold bytes of a record and is left out."""
    name = type(error).__name__
    if isinstance(error, errors.AuthorizationError):
        return LogError(f"{where}: {name}: this user may not do that; see docs/how-to/security.md")
    if isinstance(error, _NEVER_AGAIN):
        return LogError(f"{where}: {_FOR_GOOD.get(name, name)}")
    return LogUnavailable(f"{where}: a broker is away, or does not answer as it should ({name})")

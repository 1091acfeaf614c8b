"""A connection to an MQTT broker, by paho-mqtt: QoS 1, a persistent session, own acknowledgements.

There is no thread: `receive` runs the network, and failures are raised. A lost connection is not
restored: the caller makes a new one, and the broker sends again what was not acknowledged.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from shoal.errors import LogError, LogUnavailable, MissingExtra, SettingsError
from shoal.files import read_password
from shoal.producers.mqtt.settings import MqttSettings

try:
    from paho.mqtt.client import Client, MQTTMessage, MQTTv5, MQTTv311
    from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties
    from paho.mqtt.subscribeoptions import SubscribeOptions
except ImportError:
    raise MissingExtra("MQTT", "mqtt") from None

# Not 0, with which messages are lost; repeats, which 1 allows, are recognised by `MqttIngest`.
QOS = 1
CONNECT_S = 10.0
KEEP_ALIVE_S = 20
UNACKNOWLEDGED_MAX = 100
"""messages that the broker (MQTT 5) sends before it waits for an acknowledgement"""
BATCH_MESSAGES_MAX = 200
PACKET_BYTES_MAX = 2 * 1024 * 1024
"""largest packet of the broker (MQTT 5): a message is in memory before its length is checked"""
FAILURE = 128
"""smallest reason code of a failure"""
CLOSED = "the connection was closed at once: check tls and port, unless it is restarting"
LOST = "the connection was lost; should that go on, does another producer use our client_id?"
_NOT_AUTHORISED = "does not authorise this user; check user and secret_file, and the broker's rules"
_PERMANENT = {
    "Bad user name or password": (
        "does not accept the user or the secret; check user and secret_file"
    ),
    "Not authorized": _NOT_AUTHORISED,
    "Banned": _NOT_AUTHORISED,
    "Client identifier not valid": "does not accept the client_id",
    "Unsupported protocol version": "does not support this version of MQTT; check version",
}
"""reason of a failure that no later try can mend, as brokers give it -> what to do"""


class Message(NamedTuple):
    """One message as it arrived."""

    topic: str
    payload: bytes
    number: int
    """number of the delivery; a repetition has the same one"""
    acknowledged: bool
    """whether the broker expects no acknowledgement (QoS 0)"""
    repeated: bool
    """whether the broker may have sent it before"""
    retained: bool
    """whether it is an old message that the broker keeps for new subscribers"""


class Connection:
    """A connection that has subscribed to `topics`.

    The caller acknowledges every message, in the order received. Raises `LogUnavailable` (a new
    connection may succeed later), `LogError` and `SettingsError` (it cannot).
    """

    def __init__(
        self,
        settings: MqttSettings,
        client_id: str,
        topics: Iterable[str],
        *,
        with_retained: bool,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._steady = steady
        self._inbox: list[Message] = []
        self._failure: str | None = None
        self._session: bool | None = None
        self._granted: dict[int, bool] | None = None
        self._client = _client(settings, client_id)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message
        try:
            self._connect()
            self._until(lambda: self._session is not None)
            self._subscribe(sorted(topics), with_retained)
        except BaseException:
            self.close()
            raise

    @property
    def session_present(self) -> bool:
        """Whether the broker has kept the session of an earlier connection."""
        return bool(self._session)

    def receive(self, timeout_s: float) -> list[Message]:
        """The next messages; waits up to `timeout_s` for the first."""
        end = self._steady() + timeout_s
        left = timeout_s
        # Once also with a timeout of 0: nothing else reads from the socket, or keeps the connection
        # alive.
        while not self._inbox and left >= 0:
            # It may return early, without a message.
            self._loop(left)
            left = end - self._steady()
        received = 0
        while received < len(self._inbox) < BATCH_MESSAGES_MAX:
            received = len(self._inbox)
            self._loop(0.0)
        messages = self._inbox[:BATCH_MESSAGES_MAX]
        self._inbox = self._inbox[BATCH_MESSAGES_MAX:]
        return messages

    def acknowledge(self, messages: Iterable[Message]) -> None:
        """Acknowledge these messages, so that the broker may delete them."""
        for message in messages:
            if not message.acknowledged:
                self._check(self._client.ack(message.number, QOS))

    def close(self) -> None:
        """Disconnect; the broker keeps the session."""
        # Its reason would be taken for a failure, and a message that comes now for one to
        # acknowledge.
        self._client.on_disconnect = None
        self._client.on_message = None
        with suppress(OSError, ValueError):
            self._client.disconnect()
            if self._client.socket() is not None:
                # Sends what `disconnect` has written, so that the broker need not wait for the
                # keep-alive.
                self._client.loop(0.0)

    def _connect(self) -> None:
        settings = self._settings
        port = settings.port_or_default
        try:
            if settings.version == "5":
                properties = _connect_properties(settings)
                code = self._client.connect(
                    settings.host, port, KEEP_ALIVE_S, clean_start=False, properties=properties
                )
            else:
                code = self._client.connect(settings.host, port, KEEP_ALIVE_S)
            self._check(code)
        # From the narrow to the wide: a certificate's error is an SSLError, and both of them, like
        # a reset, are OSErrors, whose clause would take them all. UnicodeError is none: it comes
        # from the encoding of a host name for DNS.
        except ssl.SSLCertVerificationError:
            raise LogError(
                f"{settings.address}: the broker's certificate is not one we trust; check ca_file"
                " and host"
            ) from None
        except ssl.SSLError as broken:
            raise self._unavailable(f"no TLS there ({broken.reason}); check tls and port") from None
        except UnicodeError:
            raise SettingsError(f"[mqtt] host: {settings.host!r} is no name of a host") from None
        except ConnectionResetError:
            raise self._unavailable(CLOSED) from None
        except OSError as error:
            raise self._unavailable(error.strerror or "no answer in time") from None

    def _subscribe(self, topics: list[str], with_retained: bool) -> None:
        if self._settings.version == "5":
            # Messages retained before the session started are sent once or not at all.
            retained = SubscribeOptions.RETAIN_DO_NOT_SEND
            if with_retained:
                retained = SubscribeOptions.RETAIN_SEND_IF_NEW_SUB
            options = SubscribeOptions(QOS, retainHandling=retained)
            code, number = self._client.subscribe([(topic, options) for topic in topics])
        else:
            code, number = self._client.subscribe([(topic, QOS) for topic in topics])
        self._check(code)
        self._until(lambda: self._granted is not None and number in self._granted)
        if not (self._granted or {})[number or 0]:
            raise LogError(
                f"{self._settings.address}: the broker does not let us read all of [mqtt.topics];"
                " mend its rules"
            )

    def _until(self, holds: Callable[[], bool]) -> None:
        end = self._steady() + CONNECT_S
        while not holds():
            left = end - self._steady()
            if left <= 0:
                raise self._unavailable("no answer in time")
            self._loop(left)

    def _loop(self, timeout_s: float) -> None:
        """Run the network, and raise what went wrong."""
        self._check(self._client.loop(timeout_s))

    def _check(self, code: MQTTErrorCode) -> None:
        if self._failure in _PERMANENT:
            raise LogError(f"{self._settings.address}: the broker {_PERMANENT[self._failure]}")
        if self._failure is not None:
            raise self._unavailable(self._failure)
        if code != MQTTErrorCode.MQTT_ERR_SUCCESS:
            # Before the broker has answered, a closed connection is usually a wrong port or TLS;
            # after that, another producer with the same client_id.
            raise self._unavailable(CLOSED if self._session is None else LOST)

    def _unavailable(self, why: str) -> LogUnavailable:
        return LogUnavailable(f"{self._settings.address} cannot be reached: {why}")

    # Callbacks of paho, called while the network runs.

    def _on_connect(self, client: Client, _: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self._failure = str(reason)
        else:
            self._session = bool(flags.session_present)

    def _on_subscribe(
        self, client: Client, _: Any, number: int, reasons: list[Any], properties: Any
    ) -> None:
        self._granted = {number: all(reason.value < FAILURE for reason in reasons)}

    def _on_disconnect(
        self, client: Client, _: Any, flags: Any, reason: Any, properties: Any
    ) -> None:
        if self._failure is None and flags.is_disconnect_packet_from_server:
            self._failure = str(reason)

    def _on_message(self, client: Client, _: Any, message: MQTTMessage) -> None:
        self._inbox.append(
            Message(
                message.topic,
                bytes(message.payload),
                message.mid,
                message.qos == 0,
                message.dup,
                bool(message.retain),
            )
        )


def _client(settings: MqttSettings, client_id: str) -> Client:
    """A configured client, without the broker's address.

    It contains the secret: never print it.
    """
    is_version_5 = settings.version == "5"
    client = Client(
        CallbackAPIVersion.VERSION2,
        client_id,
        # MQTT 5 asks for the earlier session when it connects, 3.1.1 by this.
        clean_session=None if is_version_5 else False,
        protocol=MQTTv5 if is_version_5 else MQTTv311,
        # The caller makes a new connection: it has to see whether the broker has kept the session.
        reconnect_on_failure=False,
        # A message is acknowledged once its readings are stored, and not when it has arrived.
        manual_ack=True,
    )
    client.connect_timeout = CONNECT_S
    if settings.secret_file is not None:
        client.username_pw_set(settings.user, read_password(settings.secret_file, "mqtt"))
    if settings.tls:
        client.tls_set_context(_tls(settings))
    return client


def _connect_properties(settings: MqttSettings) -> Properties:
    # The library has no type here.
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # of paho
    properties.SessionExpiryInterval = settings.session_s
    properties.ReceiveMaximum = UNACKNOWLEDGED_MAX
    properties.MaximumPacketSize = PACKET_BYTES_MAX
    return properties


def _tls(settings: MqttSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
        if settings.certificate_file is not None:
            context.load_cert_chain(settings.certificate_file, settings.key_file)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            "[mqtt] ca_file, certificate_file or key_file cannot be read"
            f" ({type(error).__name__}); name files (PEM) this user may read"
        ) from None
    return context

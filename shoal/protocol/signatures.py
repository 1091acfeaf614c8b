"""Signatures of records of the topic of updates: of clients, with HMAC-SHA-256, and of operators.

The client and the server hold the same secret, each in a file of its own. So the server could forge
an update; but it is the one that absorbs them. A signature covers the topic, the type and version
of the message, and the bytes of its value, which hold the client's name.

Requests are signed with Ed25519 where `[server] operator_keys` has public keys, so that who has the
server's files cannot pose as an operator; otherwise with a secret in the folder of the clients'
keys, which no client has.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shoal.config.sections import ServerSettings
from shoal.errors import MessageRejected, SettingsError
from shoal.files import read_secret, write_secret
from shoal.protocol.messages import VERSION, Update
from shoal.telemetry.events import log_event
from shoal.transports.base import Headers

if TYPE_CHECKING:
    from shoal.protocol.ed25519 import PublicKeys

HEADER: Final = "signature"
KEY_BYTES = 32
SIGNATURE_BYTES: Final = 32
"""bytes of a signature of HMAC-SHA-256"""
NOT_ITS_KEY: Final = "it is not signed with a key of the client it names"
OPERATOR: Final = "_operator"
"""the name of the key with which requests to quarantine clients are signed; no client can have it
"""
KEYS_MAX = 16
"""keys in one file: the newest first, then those that earlier updates were signed with"""
_LINE = re.compile(rf"[0-9a-f]{{{2 * KEY_BYTES}}}")
# A path may name any file by mistake; a large one is refused before it is read.
_FILE_BYTES_MAX = 4096


def signature(key: bytes, topic: str, value: bytes, kind: str = Update.TYPE) -> bytes:
    """The signature, 32 bytes, of a message of this kind with the bytes `value` in `topic`."""
    mac = hmac.new(key, _start(topic, kind), "sha256")
    mac.update(value)
    return mac.digest()


def _start(topic: str, kind: str) -> bytes:
    # Signed too: otherwise a message could be sent again to another federation that has the same
    # keys, or as one of another kind. No topic or kind has a line break, so two starts never read
    # alike.
    return f"shoal signature 1\n{topic}\n{kind}\n{VERSION}\n".encode()


def client_file(template: Path, client: str) -> Path:
    """`[client] signing_key_file` of this client."""
    return Path(str(template).replace("{client}", client))


def server_file(folder: Path, client: str) -> Path:
    """The file of this client in `[server] client_keys`."""
    return folder / f"{client}.key"


def read_keys(file: Path) -> list[bytes]:
    """The secrets in a file, the newest first: 64 hexadecimal digits a line.

    Raises `SettingsError`, without any of them, for a file that cannot be read, that others may
    read, or that holds anything else.
    """
    try:
        content = read_secret(
            file,
            _FILE_BYTES_MAX,
            kind="signing key",
            risk="publish as this client",
            remedy="make a new one with `shoal keys new --rotate`",
        )
    except OSError as error:
        raise SettingsError(
            f"signing key {file} cannot be read: {error.strerror}; make it with `shoal keys new`, "
            "or copy it here"
        ) from None
    lines = content.decode("ascii", "replace").split()
    if not 1 <= len(lines) <= KEYS_MAX or not all(map(_LINE.fullmatch, lines)):
        raise SettingsError(
            f"signing key {file} must hold 1 to {KEYS_MAX} lines of {2 * KEY_BYTES} hexadecimal "
            "digits; copy it again from where it was made"
        )
    return [bytes.fromhex(line) for line in lines]


def read_client_key(template: Path | None, client: str) -> bytes | None:
    """The key that a client signs its updates with; None without a file for keys.

    Raises `SettingsError`.
    """
    if template is None:
        return None
    file = client_file(template, client)
    return read_keys(file)[0]


def write_keys(file: Path, keys: list[bytes]) -> None:
    """Write secrets to a file that only its owner may read, whole or not at all.

    Raises `SettingsError`.
    """
    if len(keys) > KEYS_MAX:
        raise SettingsError(
            f"signing key {file} holds {KEYS_MAX} keys already; remove the last lines, the oldest "
            "keys"
        )
    try:
        lines = "".join(f"{key.hex()}\n" for key in keys)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_secret(file, lines.encode("ascii"), replace=True)
    except OSError as error:
        raise SettingsError(
            f"signing key {file} cannot be made: {error.strerror}; name a folder that this user "
            "may write"
        ) from None


class RequestSigner:
    """Signs requests as an operator, or as the server.

    Without keys in the settings it does not sign.
    """

    def __init__(self, settings: ServerSettings, *, as_server: bool = False) -> None:
        """Raises `SettingsError` for a private key that is missing or cannot be read."""
        self._folder = settings.client_keys
        self._key = None
        if settings.operator_keys is None:
            return
        if as_server:
            signer = "server"
            name = "signing_key_file"
            file = settings.signing_key_file
        else:
            signer = "operator"
            name = "operator_key_file"
            file = settings.operator_key_file
        if file is None:
            raise SettingsError(
                f"[server] operator_keys says that requests are signed: set {name} in [server] "
                f"and make it with `shoal keys {signer}`"
            )
        # Loaded only here: a client without a key needs none of it.
        from shoal.protocol.ed25519 import read_private_key  # noqa: PLC0415 - only with a key

        self._key = read_private_key(file)

    def headers(self, topic: str, value: bytes, kind: str) -> Headers:
        """The header to add to a request.

        Raises `SettingsError` for a secret that cannot be read or made.
        """
        if self._key is not None:
            return ((HEADER, self._key.sign(_start(topic, kind) + value)),)
        if self._folder is None:
            return ()
        file = server_file(self._folder, OPERATOR)
        if not file.exists():
            write_keys(file, [secrets.token_bytes(KEY_BYTES)])
        return ((HEADER, signature(read_keys(file)[0], topic, value, kind)),)


class ServerKeys:
    """All that a server checks signatures with, of clients and of requests.

    Requests are those of operators and servers. A changed file of an operator counts at the next
    start.
    """

    def __init__(self, settings: ServerSettings, server_keys: Path | None = None) -> None:
        """`server_keys` is that of `[log]`, with the server's earlier keys.

        A rebuild finds requests that were signed with them. Raises `SettingsError` for keys that
        cannot be read.
        """
        self._clients: ClientKeys | None = None
        if settings.client_keys is not None:
            self._clients = ClientKeys(settings.client_keys)
        self._public: PublicKeys | None = None
        if settings.operator_keys is not None:
            # Loaded only here: a server without keys of operators needs none of it.
            from shoal.protocol.ed25519 import (  # noqa: PLC0415 - only with a key
                PublicKeys,
                read_private_key,
                read_public_keys,
            )

            accepted = list(read_public_keys(settings.operator_keys))
            if settings.signing_key_file is not None:
                accepted.append(read_private_key(settings.signing_key_file).public)
            if server_keys is not None:
                accepted += read_public_keys(server_keys)
            self._public = PublicKeys(accepted)

    def check_client(
        self, client: str, topic: str, value: bytes, headers: Headers, kind: str = Update.TYPE
    ) -> None:
        """Raises `MessageRejected` ("signature") unless this client signed this message.

        Nothing is checked where clients do not sign.
        """
        if self._clients is not None:
            self._clients.check(client, topic, value, headers, kind)

    def check_request(self, topic: str, value: bytes, headers: Headers, kind: str) -> None:
        """Raises `MessageRejected` ("signature") unless an operator or the server signed it.

        Nothing is checked where they do not sign.
        """
        if self._public is None:
            self.check_client(OPERATOR, topic, value, headers, kind)
            return
        signature_ = dict(headers).get(HEADER, b"")
        if not self._public.have_signed(_start(topic, kind) + value, signature_):
            raise MessageRejected("signature", "it is not signed with a key of an operator")


class ClientKeys:
    """The server's folder of secrets, one file per client.

    A file that is added, changed or removed counts at once: a client whose key is removed must not
    be learnt from until the server is started anew.
    """

    def __init__(self, folder: Path) -> None:
        """Raises `SettingsError` when there is no such folder, or a file in it is not a key."""
        self._folder = folder
        self._known: dict[str, tuple[object, list[bytes]]] = {}
        if not folder.is_dir():
            raise SettingsError(
                f"[server] client_keys: {folder} is not a folder; make keys with `shoal keys new`"
            )
        # Read and dropped: a file that is no key is found now, and not at the first update of its
        # client.
        for file in sorted(folder.glob("*.key")):
            read_keys(file)

    def check(
        self, client: str, topic: str, value: bytes, headers: Headers, kind: str = Update.TYPE
    ) -> None:
        """Raises `MessageRejected` ("signature") unless this client signed this message."""
        sent = dict(headers).get(HEADER)
        if sent is None:
            raise MessageRejected("signature", "it is not signed")
        # Before a file is looked at or anything computed: the length of a signature is no secret.
        if len(sent) != SIGNATURE_BYTES:
            raise MessageRejected("signature", NOT_ITS_KEY)
        is_signed = False
        # All keys are compared, and each in constant time: how long it takes does not tell which
        # one matched, nor how many bytes of a forged signature are right.
        for key in self._keys_of(client):
            is_signed |= hmac.compare_digest(sent, signature(key, topic, value, kind))
        if not is_signed:
            raise MessageRejected("signature", NOT_ITS_KEY)

    def _keys_of(self, client: str) -> list[bytes]:
        file = server_file(self._folder, client)
        try:
            status = file.stat()
            # All of these: a file that is replaced within a tick of the clock has another inode.
            version = (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size)
            if client not in self._known or self._known[client][0] != version:
                self._known[client] = (version, read_keys(file))
        # A key that was taken away is refused from here on, and not only after a restart.
        except FileNotFoundError:
            self._known.pop(client, None)
            raise MessageRejected("signature", "there is no key for the client it names") from None
        except (OSError, SettingsError) as unusable:
            self._known.pop(client, None)
            log_event("client_key_unusable", logging.WARNING, client=client, detail=str(unusable))
            raise MessageRejected(
                "signature", "the key for the client it names cannot be used"
            ) from None
        return self._known[client][1]

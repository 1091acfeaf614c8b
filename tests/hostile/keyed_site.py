"""A server whose clients sign their updates or do not: an attacker has the keys of its own names,
as clients have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.config.contract import Contract
from shoal.protocol.messages import Update
from shoal.protocol.signatures import HEADER, server_file, signature, write_keys
from tests.server_node.server_fixture import ServerFixture

KEYS = "keys"


class KeyedSite(ServerFixture):
    """As `ServerFixture`; with `keyed` the server asks for signatures, and every update sent is
    signed."""

    def __init__(
        self, folder: Path, keyed: bool, contract: Contract | None = None, **settings: Any
    ) -> None:
        self._keys = folder / KEYS if keyed else None
        if self._keys is not None:
            self._keys.mkdir(parents=True)
            settings["client_keys"] = self._keys
        super().__init__(folder, contract, **settings)

    def send(self, *updates: Update) -> None:
        """Publish updates in this order, each signed by the client it names, where clients sign."""
        self.publish(*(self.record_of(update) for update in updates))

    def record_of(self, update: Update) -> tuple[str, bytes, tuple[tuple[str, bytes], ...]]:
        """Key, value and headers of the record of an update."""
        value = update.encode()
        headers = update.headers()
        if self._keys is not None:
            file = server_file(self._keys, update.client)
            key = update.client.encode().ljust(32, b"\0")[:32]
            if not file.exists():
                write_keys(file, [key])
            headers += ((HEADER, signature(key, self.contract.updates_topic, value)),)
        return update.model, value, headers

    def reasons(self) -> list[str]:
        """Why records were rejected, sorted."""
        return sorted(
            dict(record.headers)["reason"].decode() for record in self.rejected().values()
        )

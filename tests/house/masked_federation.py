"""A federation with masked counts in a folder: clients, server and helpers, each with a checkpoint,
in fixed order."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shoal.client_nodes.bootstrap import open_client
from shoal.client_nodes.node import ClientNode
from shoal.config.settings import Config, load_config
from shoal.helper_node.bootstrap import open_helper
from shoal.helper_node.node import HelperNode
from shoal.privacy.masks import helper_public
from shoal.protocol.codec import pack
from shoal.protocol.masked import log_name
from shoal.protocol.readings import Reading
from shoal.protocol.signatures import write_keys
from shoal.protocol.topics import READINGS, READINGS_SETTINGS
from shoal.runtime.helper_state import make_helper_state
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.node import ServerNode
from shoal.transports import open_log
from shoal.transports.base import Record, beginning
from shoal.transports.sqlite.log import SqliteLog

FILE = """
[federation]
name = "{name}"
[[features]]
name = "warm"
low = 0
high = 1
[[features]]
name = "damp"
low = 0
high = 1
[privacy]
mode = "masked"
unit = "client"
epsilon = {epsilon}
window_readings = {window}
batch_min = {batch_min}
batch_s = 10
window_s = 1000
{privacy}
{helpers}
[[models]]
name = "clusters"
algorithm = "density_tree"
options = {{ grow_readings = 1 }}
[log]
address = "{address}"
[client]
folder = "clients"
[server]
folder = "server"
port = 0
snapshot_s = 86400
"""


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


class MaskedFederation:
    """The file of a federation, and its nodes."""

    def __init__(  # noqa: PLR0913 - each with a default
        self,
        folder: Path,
        *,
        clients: int = 6,
        helpers: int = 2,
        window: int = 40,
        epsilon: float = 4.0,
        batch_min: int = 3,
        privacy: str = "",
        address: str = "sqlite:federation.db",
        name: str = "plant",
        more: str = "",
        secrets_of: Mapping[str, bytes] | None = None,
    ) -> None:
        """`more`: further sections of the file; `secrets_of`: of helpers that are other programs,
        whose state these keep themselves."""
        self.lacks = 0.0
        """share of the readings that lack a value"""
        self.folder = folder
        self.window = window
        # A broker is shared by several tests.
        name = name if address.startswith("sqlite:") else f"{name}-{uuid.uuid4().hex}"
        self.names = [f"c{i}" for i in range(clients)]
        self.helpers = [f"h{i}" for i in range(helpers)]
        tables = []
        others = secrets_of or {}
        for helper in self.helpers:
            secret = others.get(helper) or secrets.token_bytes(32)
            write_keys(self.key_file(helper), [secret])
            if helper not in others:
                make_helper_state(self.key_file(helper).parent, helper_public(secret))
            tables.append(
                f'[[privacy.helpers]]\nname = "{helper}"\nkey = "{helper_public(secret).hex()}"'
            )
        self.file = folder / "federation.toml"
        self.file.write_text(
            FILE.format(
                name=name,
                epsilon=epsilon,
                window=window,
                batch_min=batch_min,
                privacy=privacy,
                helpers="\n".join(tables),
                address=address,
            )
            + more
        )
        self.config: Config = load_config(self.file)
        self.clock = Clock()

    @classmethod
    def written_before(cls, folder: Path, *, clients: int, now: float) -> Self:
        """The federation that another process has left in a folder, with the same other sizes."""
        federation = cls.__new__(cls)
        federation.lacks = 0.0
        federation.folder = folder
        federation.window = 40
        federation.names = [f"c{i}" for i in range(clients)]
        federation.helpers = ["h0", "h1"]
        federation.file = folder / "federation.toml"
        federation.config = load_config(federation.file)
        federation.clock = Clock()
        federation.clock.now = now
        return federation

    def key_file(self, helper: str) -> Path:
        """The key of a helper, in a folder of its own."""
        return self.folder / helper / f"{helper}.key"

    def secret(self, helper: str) -> bytes:
        """The 32 bytes of a helper's key."""
        return bytes.fromhex(self.key_file(helper).read_text())

    def lose_log(self) -> None:
        """The federation's log is created anew, and with it the server's folder."""
        for file in (*self.folder.glob("federation.db*"), *self.config.server.folder.glob("*.db*")):
            file.unlink()

    @property
    def log_name(self) -> str:
        """The name of its log, as masks have it."""
        with closing(open_log(self.config.log)) as log:
            return log_name(log.identity(self.config.contract.updates_topic))

    def rows(self, client: str, windows: int, first: int = 0) -> NDArray[np.float64]:
        """Readings of two clusters: (windows x window, 2)."""
        found = []
        for number in range(first, first + windows):
            rng = np.random.default_rng([self.names.index(client), number])
            kind = rng.integers(0, 2, self.window)
            found.append(
                np.array([[0.2, 0.3], [0.8, 0.7]])[kind] + rng.normal(0, 0.03, (self.window, 2))
            )
        rows = np.clip(np.concatenate(found), 0, 1)
        gaps = (
            np.random.default_rng([self.names.index(client), windows, first, 1]).random(len(rows))
            < self.lacks
        )
        rows[gaps, np.arange(len(rows))[gaps] % 2] = np.nan
        return rows

    def feed(self, windows: int, clients: Sequence[str] | None = None, first: int = 0) -> None:
        """Put windows of readings into the logs of clients."""
        for client in self.names if clients is None else clients:
            folder = self.config.client.folder / client
            folder.mkdir(parents=True, exist_ok=True)
            with closing(SqliteLog(folder / "readings.db")) as log:
                log.ensure(READINGS, READINGS_SETTINGS)
                for row in self.rows(client, windows, first):
                    log.publish(READINGS, Reading(None, row).encode(), headers=Reading.headers())
                log.flush()

    @contextmanager
    def client(self, name: str) -> Iterator[ClientNode]:
        """One client, resumed."""
        with resumed(open_client(self.config, name, clock=self.clock)) as node:
            yield node

    @contextmanager
    def helper(self, name: str) -> Iterator[HelperNode]:
        """One helper, resumed."""
        with resumed(
            open_helper(self.config, self.secret(name), self.key_file(name).parent)
        ) as node:
            yield node

    @contextmanager
    def server(self, **options: Any) -> Iterator[ServerNode]:
        """The server, resumed."""
        with resumed(open_server(self.config, clock=self.clock, **options)) as node:
            yield node

    def run(
        self,
        clients: Sequence[str] | None = None,
        helpers: Sequence[str] | None = None,
        until: Callable[[ServerNode], bool] | None = None,
    ) -> bytes:
        """Step all nodes, with time passing, until nothing happens for a while; the state of the
        server's model."""
        with ExitStack() as stack:
            server = stack.enter_context(self.server())
            nodes: list[Any] = [
                stack.enter_context(self.client(client))
                for client in (self.names if clients is None else clients)
            ]
            nodes += [
                stack.enter_context(self.helper(helper))
                for helper in (self.helpers if helpers is None else helpers)
            ]
            idle = 0
            while idle < 4:
                worked = [node.step() for node in (server, *nodes)]
                idle = 0 if any(worked) else idle + 1
                self.clock.now += 6.0
                if until is not None and until(server):
                    break
            return model_state(server)

    def records(self, kind: str) -> list[Record]:
        """The records of this type in the topic of updates, in order."""
        found: list[Record] = []
        with closing(open_log(self.config.log)) as log:
            topic = self.config.contract.updates_topic
            at = beginning(log, topic)
            while True:
                records, after = log.read(topic, at)
                found += [
                    record
                    for record in records
                    if dict(record.headers).get("type") == kind.encode()
                ]
                if not records and after == at:
                    return found
                at = after


def model_state(server: ServerNode) -> bytes:
    """The state of the model's server half, encoded."""
    return pack(server.models()["clusters"].state()["half"])

"""A whole federation in one process, for the demo and for tests of the whole path."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from types import MappingProxyType
from typing import Self

from shoal.client_nodes.bootstrap import open_client
from shoal.client_nodes.node import ClientNode
from shoal.config.settings import Config
from shoal.errors import SettingsError
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.ingest.request_publishing import request_wake
from shoal.server_node.node import ServerNode
from shoal.telemetry.events import EventsOfClient
from shoal.transports import open_log


class OneBox:
    """Clients and server in one process, stepped in a fixed order: the clients by name, then the
    server.

    They use the same logs and checkpoints as in separate processes. Closing it is like killing
    those: the next one on the same files resumes from the checkpoints.
    """

    def __init__(
        self,
        config: Config,
        clients: Sequence[str],
        clock: Callable[[], float] = time.time,
        *,
        texts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Open the nodes. Raises what they raise, and `SettingsError` for no clients or a name
        given twice.

        `texts`: client -> what the data call it, where that is not its name: its events have it.
        """
        if not clients or len(set(clients)) != len(clients):
            raise SettingsError("a federation needs clients, each with a name of its own")
        self._config = config
        self._texts = texts
        self._stack = ExitStack()
        # If opening one node fails, those before it are closed; `pop_all` hands them on once all
        # are open.
        with ExitStack() as opening:
            # The server first: clients compare their contract with the one that it publishes.
            self.server: ServerNode = opening.enter_context(
                resumed(open_server(config, clock=clock))
            )
            self.clients: dict[str, ClientNode] = {}
            for name in sorted(clients):
                with EventsOfClient(name, texts.get(name)):
                    client = resumed(open_client(config, name, clock=clock))
                    self.clients[name] = opening.enter_context(client)
            self._stack = opening.pop_all()

    def step(self) -> bool:
        """One step of every node; True if any did something. Raises what the nodes raise."""
        worked = False
        for name, client in self.clients.items():
            with EventsOfClient(name, self._texts.get(name)):
                worked = client.step() or worked
        return self.server.step() or worked

    def run_until_idle(self) -> None:
        """Step until no node has anything left to do."""
        while self.step():
            pass

    def wake_rounds(self) -> None:
        """Let models in rounds run again: they may be sleeping, with clusters found in the middle
        of a stream."""
        names = [
            name
            for name, model in self.server.models().items()
            if model.status().rounds is not None
        ]
        if names:
            with closing(open_log(self._config.log)) as log:
                request_wake(self._config, log, names)

    def close(self) -> None:
        """Close all logs and checkpoints."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

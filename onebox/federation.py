"""A whole federation in one process on one machine: the demo runs it, and the whole-house tests drive it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Self

from client_nodes.bootstrap import open_client
from client_nodes.node import ClientNode
from server_node.bootstrap import open_server
from server_node.node import ServerNode
from shoal.config.settings import Config
from shoal.errors import SettingsError


class OneBox:
    """Clients and server, stepped in a fixed order: the clients by name, then the server.

    The same nodes, logs and checkpoints as in separate processes; only the processes are one. Leave it as a
    context manager, and what it remembers is what killed processes would.
    """

    def __init__(self, config: Config, clients: Sequence[str], clock: Callable[[], float] = time.time) -> None:
        """Raises what the nodes raise, and `SettingsError` for no clients or one that stands twice."""
        if not clients or len(set(clients)) != len(clients):
            raise SettingsError("a federation needs clients, each with a name of its own")
        self._stack = ExitStack()
        with ExitStack() as opening:
            self.clients: dict[str, ClientNode] = {
                name: opening.enter_context(open_client(config, name, clock=clock)) for name in sorted(clients)
            }
            self.server: ServerNode = opening.enter_context(open_server(config, clock=clock))
            self._stack = opening.pop_all()

    def step(self) -> bool:
        """One step of everybody. True when anybody did anything. Raises as the nodes do."""
        learnt = [client.step() for client in self.clients.values()]
        return self.server.step() or any(learnt)

    def run_until_quiet(self) -> None:
        """Step until nobody has anything left to do."""
        while self.step():
            pass

    def close(self) -> None:
        """Let go of all logs and checkpoints."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

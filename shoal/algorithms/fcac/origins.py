"""Which clients the inputs of each node came from, and groups that no single client can join (not in the paper).

Nodes of a single client between two clusters connect them, however far they are apart. With a bound on a client's
share, a node is *shared* when no client has more than that share of its inputs. Shared nodes join groups as ever. The
other nodes of a client, and the edges between them, are parts that belong to at most one group of shared nodes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import State
from shoal.kernels.graph import components


class Origins:
    """How many inputs each node has had from each client. Nodes are named by position, as in `Nodes`."""

    def __init__(self) -> None:
        self._inputs: list[Counter[str]] = []
        self._queue: deque[str] = deque()
        """clients of the inputs that are to be learnt next; some wait in the buffer of the network"""

    def expect(self, clients: Iterable[str]) -> None:
        """The next inputs come from these clients."""
        self._queue.extend(clients)

    def count(self, position: int) -> None:
        """The node at `position`, which may be new, has learnt the next input."""
        client = self._queue.popleft() if self._queue else ""
        if position == len(self._inputs):
            self._inputs.append(Counter())
        self._inputs[position][client] += 1

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Forget the nodes where `mask` is false."""
        self._inputs = [inputs for inputs, stays in zip(self._inputs, mask.tolist(), strict=True) if stays]

    def groups(self, edges: NDArray[np.int64], share_max: float) -> NDArray[np.int64]:
        """edges (e, 2) of positions -> (k,) group of each node, numbered by first node."""
        k = len(self._inputs)
        owner = np.array([_owner(inputs, share_max) for inputs in self._inputs], dtype=object)
        # Equal owners: both shared (""), or both mostly of one client.
        unit = components(k, edges[owner[edges[:, 0]] == owner[edges[:, 1]]])
        shared = owner == ""
        ties: dict[int, Counter[int]] = {}
        for a, b in edges.tolist():
            if shared[a] != shared[b]:
                part, group = (b, a) if shared[a] else (a, b)
                ties.setdefault(int(unit[part]), Counter())[int(unit[group])] += 1
        # To the group with the most edges; of equal ones to the first.
        joined = {part: min(groups, key=lambda group: (-groups[group], group)) for part, groups in ties.items()}
        numbers: dict[int, int] = {}
        found = [joined.get(number, number) for number in unit.tolist()]
        return np.array([numbers.setdefault(number, len(numbers)) for number in found], dtype=np.int64)

    def state(self) -> State:
        """Plain values and arrays for `restored`."""
        names = sorted({client for inputs in self._inputs for client in inputs})
        index = {name: number for number, name in enumerate(names)}
        table = [
            [position, index[client], count]
            for position, inputs in enumerate(self._inputs)
            for client, count in sorted(inputs.items())
        ]
        origin = np.array(table, dtype=np.int64).reshape(-1, 3)
        return {"origin_client": names, "origin": origin, "origin_queue": list(self._queue)}

    @classmethod
    def restored(cls, saved: StateReader, k: int) -> Origins:
        """The origins of the `k` nodes of a saved state. Raises `InvalidState`."""
        names, table = saved.read_names("origin_client"), saved.read_ints("origin", (None, 3))
        places = (table[:, 0] < k) & (table[:, 1] < len(names)) & (table[:, 2] > 0)
        saved.check(bool(places.all()), "an origin has no such node or client")
        origins = cls()
        origins._inputs, origins._queue = [Counter() for _ in range(k)], deque(saved.read_names("origin_queue"))
        for position, client, count in table.tolist():
            origins._inputs[position][names[client]] = count
        return origins


def _owner(inputs: Counter[str], share_max: float) -> str:
    """The client that has more than `share_max` of the inputs; empty: none has."""
    client, most = max(inputs.items(), key=lambda one: one[1], default=("", 0))
    return client if most > share_max * inputs.total() else ""

"""The edges of CAEFC with their ages, and the origins of its nodes: the clients that the inputs of
each node came from.

Origins (not in the paper) keep any single client from joining two groups of nodes by an edge.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby, repeat
from typing import Annotated

import numpy as np

from shoal.kernels.arrays import Bools, Ints
from shoal.kernels.graph import age_threshold, components
from shoal.saved_state import IntArray, SavedState, require, state_type

NEIGHBOURS_MIN = 8
"""least width of a table"""
CLIENTS_UNBOUNDED = 3
"""up to this many clients the share of one has no bound: by chance alone one of so few often has
nearly all inputs of a node"""
CLIENTS_COUNTED_MAX = 100
"""clients whose inputs a node counts one by one"""
EdgeTable = tuple[Ints, Ints, Ints]
"""degrees (capacity,); for each node its neighbours (capacity, width), and the ages (capacity,
width) of the edges to them, of which the first `degree` count, in any order"""


class Edges:
    """Edges between node positions, each with an age; and the number and summed age of all that
    were deleted.

    `ages[node]` maps each neighbour of a node to the age of the edge; nodes have few edges.
    Compiled kernels work on a table instead; each form is made from the other when it is asked for.
    The sum of deleted ages is an integer, so it does not depend on the order of deletion.
    """

    def __init__(self) -> None:
        self._ages: list[dict[int, int]] = []
        self._table: EdgeTable | None = None
        """edges of the first `_size` nodes; where it is set, it alone counts"""
        self._size = 0
        self._listed: tuple[Ints, Ints] | None = None
        """what `arrays` gives, as long as nothing has changed"""
        self.n_deleted = 0
        self.deleted_age_sum = 0

    @property
    def ages(self) -> list[dict[int, int]]:
        """Age of the edge to each neighbour, for each node. The table no longer counts, because
        this may change."""
        if self._table is not None:
            self._ages = [
                dict(zip(neighbours[:degree].tolist(), ages[:degree].tolist(), strict=True))
                for degree, neighbours, ages in zip(
                    *(part[: self._size] for part in self._table), strict=True
                )
            ]
            self._table = None
        self._listed = None
        return self._ages

    def table(self, capacity: int) -> EdgeTable:
        """The edges as arrays with room for `capacity` nodes, for a kernel that changes them;
        `resized` must follow."""
        if self._table is None or len(self._table[0]) != capacity:
            tables = self.ages
            # Twice what is needed, so that a kernel seldom returns for want of room.
            width = max(NEIGHBOURS_MIN, 2 * max(map(len, tables), default=0))
            self._size = len(tables)
            degrees = np.zeros(capacity, np.int64)
            neighbours = np.zeros((capacity, width), np.int64)
            ages = np.zeros((capacity, width), np.int64)
            for node, table in enumerate(tables):
                degrees[node] = len(table)
                neighbours[node, : len(table)] = list(table)
                ages[node, : len(table)] = list(table.values())
            self._table = degrees, neighbours, ages
        return self._table

    def resized(self, size: int) -> None:
        """A kernel has changed the table, and has left `size` nodes."""
        self._size = size
        self._listed = None

    @property
    def mean_deleted_age(self) -> float:
        """0 while no edge was deleted."""
        if self.n_deleted == 0:
            return 0.0
        return self.deleted_age_sum / self.n_deleted

    def __len__(self) -> int:
        if self._table is not None:
            return int(self._table[0][: self._size].sum()) // 2
        return sum(map(len, self._ages)) // 2

    def add_node(self) -> None:
        """Make room for one more node, behind the others and without edges."""
        if self._table is not None and self._size < len(self._table[0]):
            self._table[0][self._size] = 0
            self._size += 1
        else:
            self.ages.append({})

    def increment_ages(self, node: int) -> None:
        """Increment the ages of all edges of `node` by 1 (eq. 25)."""
        tables = self.ages
        table = tables[node]
        for other in table:
            table[other] += 1
            tables[other][node] += 1

    def link(self, a: int, b: int) -> None:
        """Connect two nodes by an edge of age 1, or reset the age of their edge to 1 (eq. 26)."""
        self.ages[a][b] = self.ages[b][a] = 1

    def remove_old_edges(self, node: int, edge_factor: float) -> None:
        """Delete the edges of `node` that are too old compared with its others and all deleted ones
        (eq. 28, 29)."""
        table = self.ages[node]
        threshold = age_threshold(list(table.values()), edge_factor)
        if threshold is None:
            return
        # The more edges have been deleted, the more their ages count beside those of this node.
        share = self.n_deleted / (self.n_deleted + len(table))
        age_max = self.mean_deleted_age * share + threshold * (1 - share)
        # Listed first, as the table must not shrink while it is gone through.
        too_old = [other for other, age in table.items() if age > age_max]
        for other in too_old:
            self.n_deleted += 1
            self.deleted_age_sum += table.pop(other)
            del self.ages[other][node]

    def has_edge(self) -> Bools:
        """(k,) whether each node has an edge."""
        return np.array([bool(table) for table in self.ages], dtype=np.bool_)

    def keep(self, mask: Bools) -> None:
        """Renumber nodes when those without edges are removed; `mask` (k,) is false for these."""
        position = (np.cumsum(mask) - 1).tolist()
        kept = [table for table, stays in zip(self.ages, mask.tolist(), strict=True) if stays]
        self._ages = [{position[other]: age for other, age in table.items()} for table in kept]

    def arrays(self) -> tuple[Ints, Ints]:
        """(e, 2) positions, the smaller first, in ascending order; (e,) ages."""
        # A snapshot, its clusters and a checkpoint list the same edges, and to list them takes a
        # hundred times as long as to copy them.
        if self._listed is None:
            self._listed = self._list()
        edges, ages = self._listed
        return edges.copy(), ages.copy()

    def _list(self) -> tuple[Ints, Ints]:
        if self._table is not None:
            degrees, neighbours, ages = (part[: self._size] for part in self._table)
            there = np.arange(neighbours.shape[1]) < degrees[:, None]
            edges = np.stack(
                [np.repeat(np.arange(self._size), degrees), neighbours[there], ages[there]], axis=1
            )
            # Each edge stands in the tables of both its nodes; one of the two is enough.
            edges = edges[edges[:, 0] < edges[:, 1]]
            # As the form with dictionaries lists them, so that both forms save the same bytes.
            edges = edges[np.lexsort((edges[:, 1], edges[:, 0]))]
            return edges[:, :2], edges[:, 2]
        listed = sorted(
            (a, b, age) for a, table in enumerate(self._ages) for b, age in table.items() if a < b
        )
        table = np.array(listed, dtype=np.int64).reshape(-1, 3)
        return table[:, :2], table[:, 2]

    def components(self) -> Ints:
        """(k,) component of each node, numbered by first node; a node without edges is one
        component."""
        n_nodes = len(self._ages) if self._table is None else self._size
        return components(n_nodes, self.arrays()[0])


@state_type
class OriginsState(SavedState):
    """The clients that the inputs of each node came from, and how many of each."""

    clients: list[str]
    rows: Annotated[Ints, IntArray("origins", 3)]
    """position of a node, position of a client, number of its inputs"""
    queue: list[str]
    """the clients of the inputs that follow, in their order"""

    def check(self) -> None:
        known = (self.rows[:, 1] < len(self.clients)) & (self.rows[:, 2] > 0)
        require(bool(known.all()), "an origin has no such client, or no input")


class Origins:
    """Number of inputs that each node has had from each client. Nodes are named by position, as in
    `Nodes`.

    A node counts `CLIENTS_COUNTED_MAX` clients. A further one takes the place, and the count, of
    the one with the fewest inputs (Space-Saving: Metwally, Agrawal, El Abbadi 2005). So memory does
    not grow with the clients, the counts still add up to all inputs, none is too low, and that of a
    client with nearly all inputs is hardly too high.
    """

    def __init__(self) -> None:
        self._inputs: list[dict[str, int]] = []
        self._queue: deque[tuple[str, int]] = deque()
        """clients of the inputs that are to be learnt next, each with the number of its inputs in a
        row; some wait in the buffer of the network"""

    def expect(self, clients: Iterable[str]) -> None:
        """The next inputs come from these clients."""
        for client, run in groupby(clients):
            more = len(list(run))
            if self._queue and self._queue[-1][0] == client:
                more += self._queue.pop()[1]
            self._queue.append((client, more))

    def count(self, position: int) -> None:
        """The node at `position`, which may be new, has learnt the next input."""
        if position == len(self._inputs):
            self._inputs.append({})
        self._add(position, self._take_next(), 1)

    def count_each(self, positions: Ints, ids_before: Ints, ids: Ints) -> None:
        """The nodes at these positions (n,) have learnt the next n inputs. `ids_before` and `ids`:
        ids of the nodes before and after; nodes may have been removed after the last of the inputs
        only."""
        for position, client in zip(
            positions.tolist(), self._take_each(len(positions)), strict=True
        ):
            if position == len(self._inputs):
                self._inputs.append({})
            inputs = self._inputs[position]
            # Mostly the node has had inputs of this client; the call takes longer than to count.
            if client in inputs:
                inputs[client] += 1
            else:
                self._add(position, client, 1)
        made = len(self._inputs) - len(ids_before)
        # Most often none was removed.
        if len(ids) < len(self._inputs):
            # A new node's id is the next one after that of the last node.
            first = 0
            if len(ids_before):
                first = ids_before[-1] + 1
            ids_with_new = np.concatenate([ids_before, np.arange(first, first + made)])
            # Ids ascend, and those that are left are some of these: to look them up in their order
            # takes a tenth of the time of `isin`.
            stays = np.zeros(len(ids_with_new), dtype=np.bool_)
            stays[ids_with_new.searchsorted(ids)] = True
            self.keep(stays)

    def _add(self, position: int, client: str, number: int) -> None:
        inputs = self._inputs[position]
        if client in inputs:
            inputs[client] += number
            return
        if len(inputs) >= CLIENTS_COUNTED_MAX:
            fewest = min(inputs.values())
            # Of several the first by name: a restored node lists its clients in another order.
            number += inputs.pop(min(name for name, count in inputs.items() if count == fewest))
        inputs[client] = number

    def _take_next(self) -> str:
        """The client of the next input, which is no longer expected then. `_take_each` for one
        takes twice as long."""
        if not self._queue:
            return ""
        client, run = self._queue[0]
        if run > 1:
            self._queue[0] = (client, run - 1)
        else:
            self._queue.popleft()
        return client

    def _take_each(self, inputs: int) -> Iterator[str]:
        """The client of each of the next inputs, which are no longer expected then."""
        while inputs:
            # Without an announced client, as for rows that a user gives, it has the empty name.
            client = ""
            run = inputs
            if self._queue:
                client, run = self._queue.popleft()
            taken = min(run, inputs)
            if run > taken:
                self._queue.appendleft((client, run - taken))
            inputs -= taken
            yield from repeat(client, taken)

    def keep(self, mask: Bools) -> None:
        """Forget the nodes where `mask` is false."""
        self._inputs = [
            inputs for inputs, stays in zip(self._inputs, mask.tolist(), strict=True) if stays
        ]

    def groups(self, edges: Ints, share_max: float) -> Ints:
        """edges (e, 2) of positions -> (k,) group of each node, numbered by first node.

        Up to `CLIENTS_UNBOUNDED` clients there is no bound: one of so few has more than `share_max`
        by chance.
        """
        k = len(self._inputs)
        clients: set[str] = set().union(*self._inputs)
        if len(clients) <= CLIENTS_UNBOUNDED:
            return components(k, edges)
        owner = np.array([_owner(inputs, share_max) for inputs in self._inputs], dtype=object)
        # Equal owners: both shared (""), or both mostly of one client.
        unit = components(k, edges[owner[edges[:, 0]] == owner[edges[:, 1]]])
        shared = owner == ""
        # An edge between a part of one client and a shared group joins the part to that group
        # alone: through a second one the client would join the two groups.
        between = edges[shared[edges[:, 0]] != shared[edges[:, 1]]]
        group_side = shared[between]
        parts = unit[between[~group_side]].tolist()
        groups = unit[between[group_side]].tolist()
        ties: dict[int, Counter[int]] = {}
        for part, group in zip(parts, groups, strict=True):
            ties.setdefault(part, Counter())[group] += 1
        joined = {part: _most_tied(edges_to) for part, edges_to in ties.items()}
        numbers: dict[int, int] = {}
        group_of = []
        for number in unit.tolist():
            group = joined.get(number, number)
            group_of.append(numbers.setdefault(group, len(numbers)))
        return np.array(group_of, dtype=np.int64)

    def state(self) -> OriginsState:
        """The inputs of each node by client, and the queue."""
        names = sorted(set[str]().union(*self._inputs))
        index = {name: number for number, name in enumerate(names)}
        # A row for each node and client: up to 10^5, and they are saved each second.
        lengths = [len(inputs) for inputs in self._inputs]
        rows = np.empty((sum(lengths), 3), np.int64)
        rows[:, 0] = np.repeat(np.arange(len(lengths)), lengths)
        clients = map(index.__getitem__, chain.from_iterable(self._inputs))
        rows[:, 1] = np.fromiter(clients, np.int64, len(rows))
        counts = chain.from_iterable(inputs.values() for inputs in self._inputs)
        rows[:, 2] = np.fromiter(counts, np.int64, len(rows))
        rows = rows[np.argsort(rows[:, 0] * len(names) + rows[:, 1])]
        queue = [client for client, inputs_left in self._queue for _ in range(inputs_left)]
        return OriginsState(clients=names, rows=rows, queue=queue)

    @classmethod
    def restored(cls, saved: OriginsState, k: int) -> Origins:
        """The origins of the `k` nodes of a saved state. Raises `InvalidState`."""
        require(bool((saved.rows[:, 0] < k).all()), "an origin has no such node")
        origins = cls()
        origins._inputs = [{} for _ in range(k)]
        origins.expect(saved.queue)
        for position, client, count in saved.rows.tolist():
            origins._inputs[position][saved.clients[client]] = count
        return origins


def _most_tied(edges_to: Mapping[int, int]) -> int:
    """The group to which the most edges lead; of equal ones the first."""
    return min(edges_to, key=lambda group: (-edges_to[group], group))


def _owner(inputs: Mapping[str, int], share_max: float) -> str:
    """The client that has more than `share_max` of the inputs; empty: none has."""
    most = max(inputs.values(), default=0)
    if most <= share_max * sum(inputs.values()):
        return ""
    # Ties by name, so that the answer does not depend on the order in which clients came.
    return max(client for client, count in inputs.items() if count == most)

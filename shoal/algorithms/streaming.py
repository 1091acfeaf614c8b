"""The contract of the streaming family: nothing waits for anybody.

A streaming algorithm is two halves in one folder. The client half learns from private rows and
contributes named arrays; the server half absorbs contributions and answers with a snapshot of named
arrays. Both halves save and restore their whole state as plain values and arrays (no pickle), so that
a process can be killed at any instant and go on bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.view import ClusteringView, Summary

Rows = NDArray[np.float64]
"""(n, d) private rows"""
Arrays = Mapping[str, NDArray[Any]]
"""what travels: named arrays, as declared by a table of `ArraySpec`"""
State = dict[str, Any]
"""plain values (None, bool, int, float, str), arrays, and lists and dicts of these; has an int "version" """


@dataclass(frozen=True)
class ArraySpec:
    """Declared form of one array that travels. `shape` mixes sizes and names; equal names must be equal sizes.

    The name "d" is the number of features of the contract. `positive` arrays hold no value below 1;
    `rowlike` arrays hold points in feature space and are checked against the bounds of the contract.
    """

    dtype: str
    shape: tuple[int | str, ...]
    positive: bool = False
    rowlike: bool = False
    above_zero: bool = False
    """no value is 0 or below, such as a bandwidth that others divide by"""
    points_into: str | None = None
    """values are positions in the arrays whose first size has this name"""
    per_node: bool = False
    """one entry for each node: an update too large for one record is cut between nodes, in the order they have (FCAC's
    by winning count, so that the first part is the weightiest). What is not per node travels in every part"""


@dataclass(frozen=True)
class Contribution:
    """One client's say as the server half sees it."""

    client: str
    sequence: int
    arrays: Arrays


class ClientHalf(Protocol):
    """Learns on the client."""

    @property
    def size(self) -> int:
        """Nodes it has now."""
        ...

    def learn(self, rows: Rows) -> None:
        """Learn each row once, in order. Any batching gives the same state. Raises `InvalidData`."""
        ...

    def contribute(self) -> Arrays:
        """What is to be said now, by the update table; all arrays empty when there is nothing to say.

        What was contributed counts as said: the next call says only what changed since (unless configured
        to say everything each time).
        """
        ...

    def reset_published(self) -> None:
        """Nobody remembers what was contributed: the next call says everything."""
        ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None:
        """Become the saved one. Raises `InvalidState`."""
        ...


class ServerHalf(Protocol):
    """Merges on the server."""

    def absorb(self, contributions: Sequence[Contribution], key: bytes) -> None:
        """Merge contributions that belong together; any random order inside is a pure function of `key`."""
        ...

    def snapshot(self) -> Arrays:
        """The model as it stands, by the snapshot table."""
        ...

    def predict(self, rows: Rows) -> NDArray[np.int64]:
        """rows (n, d) -> (n,) cluster of each row, -1 before anything was learnt."""
        ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None:
        """Become the saved one. Raises `InvalidState`."""
        ...


@dataclass(frozen=True)
class StreamingAlgorithm:
    """The declaration of a streaming algorithm: how its halves are made, and which arrays travel between them."""

    in_rounds: ClassVar[bool] = False

    name: str
    client: Callable[[Mapping[str, Any], int | None], ClientHalf]
    """(options, d or None) -> a client half that has learnt nothing yet. Raises `SettingsError`"""
    server: Callable[[Mapping[str, Any], int | None], ServerHalf]
    """(options, d or None) -> a server half that has absorbed nothing yet. Raises `SettingsError`"""
    update: Mapping[str, ArraySpec]
    """the arrays that a client sends"""
    snapshot: Mapping[str, ArraySpec]
    """the arrays that the server publishes"""
    predict: Callable[[Arrays, Rows], NDArray[np.int64]]
    """(snapshot arrays, rows (n, d)) -> (n,) cluster of each row, -1 where there is none; needs only the snapshot"""
    view: Callable[[Arrays], ClusteringView]
    """snapshot arrays -> its clustering"""
    paper_only: bool = False
    """there to be compared with in experiments; not meant for a running federation"""

    def summary(self, snapshot: Arrays) -> Summary:
        """Snapshot arrays -> the sizes of its clustering."""
        return self.view(snapshot).summary()

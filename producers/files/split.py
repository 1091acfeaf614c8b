"""Splits: the rules that assign the rows of one source to clients, the same ones at every start.

Every rule reads the rows once, in order, in little memory; those that need to know how many rows
there are (`blocks`, `label-skew`) get the counts from an earlier pass.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Protocol

import numpy as np

from shoal.config.base import client_name_of
from shoal.errors import SettingsError

CLIENTS_MAX = 256
"""most clients of a producer, as each has an open log; start several producers for more"""
CLASSES_MAX = 10_000
SHARDS_PER_CLIENT = 2
"""shards of a client in a label skew: most get two classes (McMahan et al. 2017, section 3)"""
# Drawn in blocks: a draw of NumPy takes longer than the search among the shares.
DRAWS = 1024
RULES = "column:NAME, round-robin, blocks, label-skew:COLUMN or dirichlet:COLUMN:ALPHA"

Counts = Mapping[str, int]
"""rows per text in the rule's column; everything under "" when it has none"""
Assigner = Callable[[str], str]
"""text in the rule's column -> the row's client; called for each row, in order"""


class Split(Protocol):
    """One rule that assigns rows to clients."""

    @property
    def column(self) -> str | None:
        """The column that the rule reads; None when it reads none."""
        ...

    @property
    def counts_first(self) -> bool:
        """Whether `assigner` needs the counts."""
        ...

    @property
    def clients_max(self) -> int | None:
        """Most clients among which the rule assigns rows; None where only the rows know."""
        ...

    @property
    def name(self) -> str:
        """The rule with all its parameters."""
        ...

    def assigner(self, counts: Counts) -> Assigner:
        """A new assigner, for one pass over the rows."""
        ...


def split_of(rule: str, clients: int, seed: int, label_column: str | None = None) -> Split:
    """The rule as written on the command line.

    `label_column` is the default column of the label rules. Raises `SettingsError` for no such
    rule, a number of clients outside 1..256, an alpha that is not positive.
    """
    if not 1 <= clients <= CLIENTS_MAX:
        raise SettingsError(
            f"{clients} clients; one producer feeds 1 to {CLIENTS_MAX}, start several for more"
        )
    kind, _, rest = rule.partition(":")
    if kind == "column" and rest:
        return ByColumn(rest)
    if kind == "round-robin" and not rest:
        return RoundRobin(clients)
    if kind == "blocks" and not rest:
        return Blocks(clients)
    if kind == "label-skew":
        column = rest or label_column
        if column:
            return LabelSkew(column, clients, seed)
    if kind == "dirichlet":
        named, _, alpha = rest.rpartition(":")
        column = named or label_column
        if column:
            return Dirichlet(column, clients, _alpha(alpha), seed)
    raise SettingsError(f"split {rule!r}: the rules are {RULES}")


def numbered(clients: int) -> list[str]:
    """client-1 to client-N."""
    return [f"client-{number}" for number in range(1, clients + 1)]


class ByColumn:
    """Split by a column, whose text names the client."""

    counts_first = False
    clients_max = None

    def __init__(self, column: str) -> None:
        self.column = column
        self.name = f"column:{column}"
        self.texts: dict[str, str] = {}
        """client -> its text in the column, of all clients that were met"""

    def assigner(self, counts: Counts) -> Assigner:
        names: dict[str, str] = {}

        def assign(text: str) -> str:
            if text not in names:
                if len(names) == CLIENTS_MAX:
                    raise SettingsError(
                        f"column {self.column!r} names more than {CLIENTS_MAX} clients; is it the"
                        " column of the client?"
                    )
                names[text] = client_name_of(text)
                self.texts[names[text]] = text
            return names[text]

        return assign


class RoundRobin:
    """Round robin: rows go to the clients in turn."""

    column = None
    counts_first = False

    def __init__(self, clients: int) -> None:
        self._names = numbered(clients)
        self.name = f"round-robin:{clients}"
        self.clients_max = clients

    def assigner(self, counts: Counts) -> Assigner:
        # The text is what `next` would give at the end, which a cycle has not.
        return partial(next, itertools.cycle(self._names))


class Blocks:
    """Blocks of rows: of n rows for N clients, the first n/N go to the first client, and so on."""

    column = None
    counts_first = True

    def __init__(self, clients: int) -> None:
        self._names = numbered(clients)
        self.name = f"blocks:{clients}"
        self.clients_max = clients

    def assigner(self, counts: Counts) -> Assigner:
        rows = itertools.count()
        total = max(1, sum(counts.values()))
        last = len(self._names) - 1

        def assign(_: str) -> str:
            # The file may have grown since its rows were counted.
            return self._names[min(next(rows) * len(self._names) // total, last)]

        return assign


class LabelSkew:
    """Label skew: rows sorted by class are cut into 2 N shards, and each of N clients gets two."""

    counts_first = True

    def __init__(self, column: str, clients: int, seed: int) -> None:
        self.column = column
        self._names = numbered(clients)
        self._seed = seed
        self.name = f"label-skew:{column}:{clients}:{seed}"
        self.clients_max = clients

    def assigner(self, counts: Counts) -> Assigner:
        shards = SHARDS_PER_CLIENT * len(self._names)
        order = np.random.default_rng([self._seed, shards]).permutation(shards)
        owners: list[str] = [self._names[place // SHARDS_PER_CLIENT] for place in order]
        total = max(1, sum(counts.values()))
        # The place that the next row of a class has among the rows sorted by class, so that no row
        # need be stored.
        places: dict[str, int] = {}
        before = 0
        for label in sorted(counts):
            places[label] = before
            before += counts[label]

        def assign(text: str) -> str:
            place = places.get(text, 0)
            places[text] = place + 1
            shard: int = min(place * shards // total, shards - 1)
            return owners[shard]

        return assign


class Dirichlet:
    """Dirichlet split: a row's client is drawn from shares in its class, of Dirichlet(alpha)."""

    counts_first = False

    def __init__(self, column: str, clients: int, alpha: float, seed: int) -> None:
        self.column = column
        self._names = numbered(clients)
        self._alpha = alpha
        self._seed = seed
        self.name = f"dirichlet:{column}:{clients}:{alpha!r}:{seed}"
        self.clients_max = clients

    def assigner(self, counts: Counts) -> Assigner:
        draws: dict[str, Iterator[int]] = {}

        def assign(text: str) -> str:
            if text not in draws:
                if len(draws) == CLASSES_MAX:
                    raise SettingsError(
                        f"column {self.column!r} has more than {CLASSES_MAX} classes; is it the"
                        " label?"
                    )
                draws[text] = self._drawn(text)
            return self._names[next(draws[text])]

        return assign

    def _drawn(self, label: str) -> Iterator[int]:
        """The client of each row of a class, by its number, without end."""
        # Of the text, not of the order in which classes come: every class has draws of its own, the
        # same ones whichever rows are before it. Python's `hash` of a text differs in each process.
        digest = hashlib.sha256(label.encode("utf-8", "surrogatepass")).digest()
        generator = np.random.default_rng([self._seed, int.from_bytes(digest[:8], "big")])
        shares = np.cumsum(generator.dirichlet(np.full(len(self._names), self._alpha)))
        last = len(self._names) - 1
        while True:
            places = np.searchsorted(shares, generator.random(DRAWS), "right")
            # The shares may add up to a little less than 1: what is drawn above them is the last
            # client's.
            yield from places.clip(0, last).tolist()


def _alpha(text: str) -> float:
    try:
        alpha = float(text)
    except ValueError:
        # NaN fails the comparison below.
        alpha = math.nan
    if not 0 < alpha < math.inf:
        raise SettingsError(
            f"dirichlet: alpha is a number above 0 (0.1: very uneven, 100: even), not {text!r}"
        )
    return alpha

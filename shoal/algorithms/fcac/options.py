"""The options of FCAC. The defaults are those of the published program."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from shoal.errors import SettingsError


@dataclass(frozen=True)
class FcacOptions:
    """Options of both halves. Raises `SettingsError`, naming the option and its range."""

    edge_factor: float = 0.1
    """an edge is too old above the upper quartile of ages plus this times the interquartile range (in the paper 1.0)"""
    initial_rows: int = 10
    """rows that are buffered before the first is learnt; the first bandwidth is computed from them"""
    diversity_cut: float = 1e-6
    """the initial nodes are enough when the determinant of their similarities is below this (Algorithm 1, line 7)"""
    diversity_nodes_min: int = 10
    """and when there are at least this many"""
    second_winner_factor: float = 0.01
    """learning rate of the second winner in CA+ (eq. 31)"""
    neighbour_factor: float = 0.1
    """learning rate of the winner's neighbours in CAEFC (eq. 27)"""
    similarity: str = "caefc"
    """"caefc": exp(correntropy), eq. 30; "cae": exp(1 - CIM), eq. 13, which makes more nodes"""
    nodes_max: int | None = None
    """largest number of nodes, to bound memory on an endless stream (not in the paper): when it is reached, the nearest
    node learns a row that would have become a node. None: no limit"""
    client_share_max: float = 1.0
    """on the server, nodes with more than this share of their inputs from one client belong to one group of other nodes
    at most, so that no client alone can join two clusters (not in the paper). 1.0: no bound"""
    contribute: str = "changed"
    """"changed": a contribution has the nodes created or won since the last one; "all": every node each time"""

    def __post_init__(self) -> None:
        for name in ("edge_factor", "second_winner_factor", "neighbour_factor"):
            self._check(name, _is_number(getattr(self, name)) and 0 <= getattr(self, name) < math.inf, "at least 0")
        cut = self.diversity_cut
        self._check("diversity_cut", _is_number(cut) and 0 < cut < math.inf, "above 0")
        for name in ("second_winner_factor", "neighbour_factor"):
            self._check(name, getattr(self, name) <= 1, "at most 1")
        share = self.client_share_max
        self._check("client_share_max", _is_number(share) and 0 < share <= 1, "above 0, at most 1")
        for name in ("initial_rows", "diversity_nodes_min"):
            self._check(name, _is_count(getattr(self, name)) and getattr(self, name) >= 2, "a whole number, at least 2")
        nodes_max = self.nodes_max
        self._check("nodes_max", nodes_max is None or (_is_count(nodes_max) and nodes_max >= 2), "at least 2, or none")
        self._check("similarity", self.similarity in ("caefc", "cae"), '"caefc" or "cae"')
        self._check("contribute", self.contribute in ("changed", "all"), '"changed" or "all"')

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """From a mapping, such as the options of a model in the contract."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                raise SettingsError(f"fcac has no option {name!r}; it has {', '.join(known)}")
        return cls(**options)

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for a saved state."""
        return dict(vars(self))

    def _check(self, name: str, holds: bool, wanted: str) -> None:
        if not holds:
            raise SettingsError(f"fcac option {name} = {getattr(self, name)!r}, must be {wanted}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

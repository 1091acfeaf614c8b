"""The options of FCAC. The defaults are those of the published program."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shoal.algorithms.options import AlgorithmOptions, option


class FcacOptions(AlgorithmOptions):
    """Options of both halves."""

    ALGORITHM = "fcac"

    edge_factor: float = option(
        0.1,
        "an edge is removed at an age above the upper quartile of ages plus this times the "
        "interquartile range (in the paper 1.0)",
        least=0.0,
    )
    initial_rows: int = option(
        10,
        "rows that are buffered before the first is learnt; the first bandwidth is computed from "
        "them",
        least=2,
    )
    diversity_cut: float = option(
        1e-6,
        "the initial nodes are enough when the determinant of their similarities is below this "
        "(Algorithm 1, line 7)",
        above=0.0,
    )
    diversity_nodes_min: int = option(10, "and when there are at least this many", least=2)
    second_winner_factor: float = option(
        0.01, "learning rate of the second winner in CA+ (eq. 31)", least=0.0, most=1.0
    )
    neighbour_factor: float = option(
        0.1, "learning rate of the winner's neighbours in CAEFC (eq. 27)", least=0.0, most=1.0
    )
    similarity: Literal["caefc", "cae"] = option(
        "caefc",
        '"caefc": exp(correntropy), eq. 30; "cae": exp(1 - CIM), eq. 13, which makes more nodes',
    )
    nodes_max: Annotated[int, Field(ge=2)] | None = option(
        None,
        "largest number of nodes, to bound memory on an endless stream (not in the paper): when it "
        "is reached, the nearest node learns a row that would have become a node. None: no limit",
    )
    client_share_max: float = option(
        1.0,
        "on the server, nodes with more than this share of their inputs from one client belong to "
        "one group of other nodes at most, so that no client alone can join two clusters (not in "
        "the paper); a node counts the inputs of 100 clients, in place of whom others come. 1.0: "
        "no bound",
        above=0.0,
        most=1.0,
    )
    contribute: Literal["changed", "all"] = option(
        "changed",
        '"changed": a contribution has the nodes created or won since the last one; "all": every'
        " node each time",
    )

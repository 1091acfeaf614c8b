"""The queries of a replay: models that ask clients for statistics in their snapshots, answered by
all clients once they have learnt everything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from shoal.algorithms.streaming import Arrays, Contribution, QueryingHalf
from shoal.client_nodes.intake import NO_SPAN
from shoal.client_nodes.learner import ModelLearner
from shoal.client_nodes.publisher import Publisher
from shoal.config.resolved import ResolvedModel
from shoal.onebox.replay.plan import ReplayPlan
from shoal.onebox.replay.results import ReplayedRecord, halves_of
from shoal.protocol.messages import Update
from shoal.protocol.validation import Validator

ANSWER_S: Final = 1e-3
"""seconds between two answers, which keep their order"""
NO_KEY: Final = b""
"""the key of a server half that draws nothing, as those that ask for statistics do"""


class QueriesResult(NamedTuple):
    """Queries to clients, and their answers."""

    snapshot: Arrays
    """arrays of the model in the end"""
    queries: int
    clients: int
    """clients that have answered"""
    records: list[ReplayedRecord]
    """the answers, in their order"""


@dataclass
class AnsweringClient:
    """One client that has learnt, and its newest update."""

    name: str
    learner: ModelLearner
    at: float
    number: int
    """records of it so far"""


def run_queries(
    plan: ReplayPlan, model: ResolvedModel, known: Iterable[ReplayedRecord]
) -> QueriesResult:
    """Let the clients answer until nothing is asked. `known`: the records of the replay in their
    canonical order.

    The server half absorbs these, and then what clients answer in turns, by updates of their own: a
    server that reads all of them comes to the same model. The state of all clients is held in
    memory.
    """
    server = cast("QueryingHalf", model.streaming.server(model.options, plan.contract.width))
    newest: dict[str, tuple[float, int]] = {}
    end = 0.0
    for record in known:
        end = max(end, record.at)
        newest[record.client] = record.at, record.number + 1
        if record.model == model.name:
            server.absorb([_contribution(record.client, record.value)], NO_KEY)
    clients = _open_clients(plan, model, newest)
    queries = int(server.take_new_query())
    answers: list[ReplayedRecord] = []
    answered: set[str] = set()
    while True:
        n_before = len(answers)
        for record, is_new_query in _turn(clients, server, end + ANSWER_S * n_before):
            answers.append(record)
            answered.add(record.client)
            queries += is_new_query
        # A client that has a query to answer answers it in its turn: a turn without answers is the
        # last.
        if len(answers) == n_before:
            break
    return QueriesResult(server.snapshot(), queries, len(answered), answers)


def _open_clients(
    plan: ReplayPlan, model: ResolvedModel, newest: Mapping[str, tuple[float, int]]
) -> list[AnsweringClient]:
    """The clients, those whose newest update is the oldest first: a phase ends once all that are
    present have answered."""
    validator = Validator(plan.contract)
    clients = []
    for part in range(plan.parts):
        for name, state in halves_of(plan, part, model.name):
            publisher = Publisher(plan.contract, name, validator, plan.update_bytes_max)
            learner = ModelLearner(model, plan.contract.width, publisher)
            learner.restore(state)
            at, number = newest.get(name, (0.0, 0))
            clients.append(AnsweringClient(name, learner, at, number))
    # The order in which a log would have their updates; clients of one moment by name.
    return sorted(clients, key=lambda client: (client.at, client.name))


def _turn(
    clients: list[AnsweringClient], server: QueryingHalf, at: float
) -> Iterator[tuple[ReplayedRecord, bool]]:
    """Each client contributes one piece of its answer; with it, whether something else is
    asked from then on."""
    snapshot = server.snapshot()
    for client in clients:
        client.learner.adopt_arrays(snapshot)
        if not client.learner.owes_answer:
            continue
        at += ANSWER_S
        update = client.learner.make_update(at, NO_SPAN, None)
        assert update is not None, "an answer that is owed"
        for message in update.records:
            if message.value is None:
                continue
            server.absorb([_contribution(client.name, message.value)], NO_KEY)
            is_new_query = server.take_new_query()
            if is_new_query:
                snapshot = server.snapshot()
            record = ReplayedRecord(at, client.name, client.number, update.model, message.value)
            client.number += 1
            yield record, is_new_query


def _contribution(client: str, value: bytes) -> Contribution:
    update = Update.decode(value, Update.headers())
    return Contribution(client, update.sequence, update.arrays)

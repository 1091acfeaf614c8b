"""Changed messages of the kinds that are neither updates nor snapshots of rows, to the readers of
each."""

from __future__ import annotations

import random
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from shoal.client_nodes.snapshots import Snapshots
from shoal.config.resolved import ResolvedContract, resolve
from shoal.errors import MessageRejected, ShoalError
from shoal.protocol.conflicts import (
    CONFLICTS_KEY,
    ConflictList,
    PublishedDigests,
    check_no_conflict,
)
from shoal.protocol.events import ClusterEventMessage, SiteEvent
from shoal.protocol.history import (
    BINS_KEPT,
    HistoryBin,
    HistoryNames,
    pack_table,
    triples,
)
from shoal.protocol.lease import is_open_round
from shoal.protocol.masked import MASKED_MESSAGES, OpenRound, packed_answered
from shoal.protocol.messages import Envelope, Snapshot
from shoal.protocol.published_contract import (
    CONTRACT_KEY,
    PublishedContract,
    check_contract,
    published_contracts,
)
from shoal.protocol.quarantine import QuarantineList
from shoal.protocol.regions import RegionUpdate
from shoal.protocol.validation import Validator
from shoal.server_node.history.store import HistoryStore, decode_record
from shoal.server_node.ingest.ingest import RecordFailed
from shoal.transports import open_log
from shoal.transports.base import Record
from tests.hostile.fuzzing import batches, keeping, numbers
from tests.hostile.fuzzing.mutations import changed_json
from tests.hostile.fuzzing.test_messages import Unforeseen, changed
from tests.hostile.fuzzing.valid_messages import Message
from tests.house.masked_federation import MaskedFederation
from tests.house.small_federation import all_records
from tests.small_plant import plant


def valid_messages(contract: ResolvedContract) -> list[Message]:
    """A message of each kind that a server publishes beside updates and snapshots."""
    federation = contract.federation
    digest = contract.digest
    model = contract.contract.models[0].name
    named = (federation, digest, model)
    start = 1_000_000_000 // 86_400 * 86_400
    places = pack_table(np.array([[0, 5000, 2500, 7]]))
    bare = HistoryBin.of(*named, min(BINS_KEPT), start, 1, [0, 5], [0, 5], [0, 0, 5])
    counted = replace(bare, places=places, features=2)
    mark = b"\x01" * 32
    made: list[tuple[bytes, Envelope]] = [
        (CONTRACT_KEY, PublishedContract.of(contract)),
        (
            CONFLICTS_KEY,
            ConflictList(
                federation, [[model, "attic", 3, mark]], [[model, "attic", 3, mark, mark, mark]]
            ),
        ),
        (b"@quarantine", QuarantineList(federation, [[model, "attic", 1e9, "odd", False]])),
        (
            f"@round/{model}".encode(),
            OpenRound(*named, 3, b"p" * 16, packed_answered({"attic": 2, "cellar": 0})),
        ),
        (counted.record_key, counted),
        (
            f"{model}/names".encode(),
            HistoryNames(*named, ["attic"], [[0, "north hall", "Warm high"]]),
        ),
    ]
    return [Message(key.decode(), model.encode(), model.headers()) for key, model in made]


def test_every_kind_of_message_that_a_server_publishes_is_read_or_rejected(tmp_path: Path) -> None:
    contract = resolve(plant())
    seeds = valid_messages(contract)
    history = HistoryStore(contract, tmp_path / "history.db")
    with closing(open_log(f"sqlite:{tmp_path / 'federation.db'}")) as log:
        snapshots = Snapshots(contract.contract, Validator(contract), log)
        for seed in seeds:
            assert read(contract, history, snapshots, seed), f"a valid message is read: {seed.key}"
        for number in numbers("kinds", 0.05):
            case = changed(number, seeds)
            with keeping("kinds", number, lambda case=case: repr(tuple(case)).encode()):
                read(contract, history, snapshots, case)


def read(
    contract: ResolvedContract, history: HistoryStore, snapshots: Snapshots, case: Message
) -> bool:
    """Read a message as clients, servers and commands do. Whether it was taken; raises what is no
    rejection."""
    key = case.key.encode()
    record = Record("snapshots", 0, 0, 0, key, case.value, case.headers)
    taken = False
    with suppress(ShoalError):
        check_contract(record, contract.contract)
        taken |= bool(published_contracts(record, contract.federation))
    with suppress(ShoalError):
        check_no_conflict(record, "attic", PublishedDigests())
    with suppress(MessageRejected):
        check = ConflictList.decode(case.value, case.headers)
        taken |= bool(check.conflicts and check.copies)
    with suppress(MessageRejected):
        taken |= bool(QuarantineList.decode(case.value, case.headers).clients)
    if is_open_round(key):
        snapshots._keep_round(record)
        opened = snapshots.open_round(contract.contract.models[0].name)
        taken |= opened is not None and opened.answered_window("attic") >= -1
    if (found := decode_record(record, contract)) is not None and found.message is not None:
        history.apply([found])
        history.expired([found])
        if isinstance(found.message, HistoryBin):
            triples(found.message.cells)
            found.message.place_table()
        taken = True
    for kind in (*MASKED_MESSAGES, RegionUpdate, Snapshot):
        with suppress(MessageRejected):
            kind.decode(case.value, case.headers)
    return taken


EVENTS = (
    ClusterEventMessage(
        "m/1/0",
        "birth",
        "plant",
        "m",
        1,
        5,
        1e9,
        0,
        dwell=3.0,
        centre={"warm": 1.5},
        units={"warm": "C"},
    ),
    SiteEvent(
        "m/0/5/novel_streak",
        "novel_streak",
        "plant",
        "attic",
        "m",
        1,
        5,
        1e9,
        outside={"warm": "above"},
    ),
)


def test_every_event_that_sinks_forward_is_read_or_rejected() -> None:
    for number in numbers("events", 0.05):
        rng = random.Random(number)
        event = rng.choice(EVENTS)
        value = changed_json(rng, event.encode())
        with keeping("events", number, lambda value=value: value), suppress(MessageRejected):
            assert type(event).decode(value).encode()


def test_no_changed_message_of_masked_counts_makes_a_server_or_a_helper_fail(
    tmp_path: Path,
) -> None:
    masked = MaskedFederation(tmp_path, clients=3, helpers=2, batch_min=2)
    masked.feed(2)
    masked.run()
    topic = masked.config.contract.updates_topic
    records = all_records(masked.config.log.address, topic)
    seeds = [
        Message((record.key or b"").decode(), record.value or b"", record.headers)
        for record in records
    ]
    kinds = {dict(record.headers)["type"] for record in records}
    assert {b"masked_counts", b"close_round", b"helper_sum"} <= kinds
    with ExitStack() as stack:
        server = stack.enter_context(masked.server())
        server._rejections.failed = Unforeseen()
        nodes = [server, *(stack.enter_context(masked.helper(helper)) for helper in masked.helpers)]
        log = stack.enter_context(closing(open_log(masked.config.log)))
        for batch in batches("masked", 0.05):
            for case in (changed(number, seeds) for number in batch):
                log.publish(topic, case.value, case.key.encode(), case.headers)
            log.flush()
            masked.clock.now += 7.0
            try:
                while any(node.step() for node in nodes):
                    pass
            except RecordFailed as failed:
                raise AssertionError(f"one of the cases {batch[0]} to {batch[-1]}") from failed
    masked.feed(1, first=2)
    before = masked.records("helper_sum")
    masked.run()
    assert len(masked.records("helper_sum")) > len(before), "the helpers and the server still work"

"""Masked counts through a whole federation: the sums to the bit, what each failure does, and what
nobody sees."""

from __future__ import annotations

import logging
import shutil
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import chi2, chisquare

from shoal.algorithms.density_tree import DensityTreeCounter, DensityTreeServer
from shoal.algorithms.streaming import Contribution
from shoal.cli.check import check
from shoal.cli.keys import server as server_key
from shoal.client_nodes.masked_windows import MaskedModel
from shoal.config.resolved import resolve
from shoal.config.settings import load_config
from shoal.errors import InvalidState, SettingsError
from shoal.helper_node.node import HelperNode
from shoal.onebox.replay.replay_command import replay_command
from shoal.privacy.gaussian import GaussianNoise
from shoal.privacy.ledger import LEDGER, SpentMasked, account, read_spending
from shoal.privacy.masked import Masked
from shoal.privacy.masks import helper_public, mask, pair_key, sign
from shoal.protocol import masked
from shoal.protocol.codec import pack
from shoal.protocol.masked import (
    ROUND_KEY,
    CloseRound,
    HelperSum,
    MaskedCounts,
    OpenRound,
    batch_digest,
    bytes_of,
    packed_offsets,
    signed_counts,
    words_of,
)
from shoal.protocol.topics import ensure_topics
from shoal.runtime.helper_state import make_helper_state
from shoal.server_node.bootstrap import OwnHelper
from shoal.server_node.ingest.request_publishing import request_quarantine
from shoal.server_node.outputs.client_commands import unlearn
from shoal.server_node.replicas.replica_command import replica
from shoal.server_node.report.privacy import clients_note
from shoal.transports import open_log
from shoal.transports.base import Record, latest
from tests.house.masked_federation import MaskedFederation, model_state
from tests.house.processes import wait_until
from tests.server_node.web_statuses import a_contract


def decoded(federation: MaskedFederation, kind: type[Any]) -> list[Any]:
    """The messages of this kind in the log, in order."""
    return [kind.decode(record.value, record.headers) for record in federation.records(kind.TYPE)]


def publish(federation: MaskedFederation, *messages: Any) -> None:
    """Put messages into the log, as any writer of the topic can."""
    contract = federation.config.contract
    with closing(open_log(federation.config.log)) as log:
        for message in messages:
            log.publish(
                contract.updates_topic,
                message.encode(),
                contract.update_key(message.model),
                message.headers(),
            )
        log.flush()


def rejected(federation: MaskedFederation) -> list[str]:
    """The reasons for which messages were rejected."""
    with closing(open_log(federation.config.log)) as log:
        return sorted(
            dict(record.headers)["reason"].decode()
            for record in latest(log, federation.config.contract.rejected_topic).values()
        )


def spent_by(federation: MaskedFederation, client: str) -> SpentMasked:
    """What the ledger of a client holds of its masked counts."""
    return read_spending(federation.config.client.folder / client / LEDGER)[
        account(client, "plant")
    ].masked[0]


def plain_tree(federation: MaskedFederation) -> bytes:
    """The tree of the same batches from plain counts and the helpers' noise, which takes all their
    secrets to know."""
    contract = federation.config.resolved
    model = contract.models["clusters"]
    server, counter = (kind(2, **model.options) for kind in (DensityTreeServer, DensityTreeCounter))
    by_place = {record.offset: record for record in federation.records("masked_counts")}
    sums = decoded(federation, HelperSum)
    mode: Any = contract.mode
    for close in decoded(federation, CloseRound):
        messages = [
            MaskedCounts.decode(by_place[o].value, by_place[o].headers) for o in close.places
        ]
        cohort = (f"{close.federation}/clusters".encode(), close.round)
        total = np.zeros(close.cells, dtype=np.int64)
        places = 0
        for message in messages:
            rows = federation.rows(message.client, 1, message.window)
            public = message.client.encode() + b"\0clusters"
            counted = counter.count(rows, np.ones(len(rows), bool), public, message.window, cohort)
            assert counted.counts @ counted.counts <= mode.clip_squared, (
                "these windows are not cut off"
            )
            total += counted.counts
            places += message.places
        for name in federation.helpers:
            masks = np.zeros(close.cells, dtype=np.uint32)
            for message in messages:
                own = (close.federation, close.contract, close.model, name, message.client)
                names = (*own, federation.log_name)
                pair = pair_key(federation.secret(name), message.key, names)
                masks += mask(pair, message.entry.name(close.round, close.plan), close.cells)
            answer = next(
                message
                for message in sums
                if (message.helper, message.round) == (name, close.round)
            )
            total += signed_counts(masks - words_of(answer.total))
        arrays = {**counted.update(total), "places": np.array([places])}
        server.absorb([Contribution("cohort", close.round, arrays)], b"")
        counter.adopt(server.snapshot())
    return pack(server.state())


@pytest.mark.parametrize("lacks", [0.0, 0.3])
def test_masked_counts_give_the_bits_of_plain_ones_over_rounds_with_drops_and_duplicates(
    tmp_path: Path, lacks: float
) -> None:
    learn = 'missing = "learn"\n' if lacks else ""
    federation = MaskedFederation(
        tmp_path, clients=7, window=30, epsilon=30.0, privacy=f"{learn}clip = 30"
    )
    federation.lacks = lacks
    rng = np.random.default_rng(4)
    for number, present in enumerate((5, 3, 7, 4, 6, 5)):
        federation.feed(1, first=number)
        federation.run(clients=sorted(rng.choice(federation.names, present, replace=False)))
        publish(
            federation,
            *decoded(federation, MaskedCounts)[-3:],
            *decoded(federation, HelperSum)[-1:],
        )
    state = federation.run()
    closes = decoded(federation, CloseRound)
    assert len(closes) >= 6
    assert len({len(message.places) for message in closes}) > 1, (
        "clients were missing in some rounds"
    )
    assert state == plain_tree(federation)
    spent = spent_by(federation, "c0")
    mode = federation.config.resolved.mode
    assert isinstance(mode, Masked)
    assert spent.windows * mode.window_nano == spent.rho


def test_rounds_on_kafka_give_the_tree_of_plain_counts_and_a_helper_restored_there_stops(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    federation = MaskedFederation(
        tmp_path, clients=3, epsilon=30.0, privacy="clip = 40", address=f"kafka://{kafka_bootstrap}"
    )
    folder = federation.key_file("h0").parent

    def has_plain_tree(rounds: int) -> bool:
        state = federation.run()
        return len(decoded(federation, HelperSum)) == 2 * rounds and state == plain_tree(federation)

    federation.feed(1)
    wait_until(lambda: has_plain_tree(1))
    shutil.copytree(folder, tmp_path / "backup")
    federation.feed(1, first=1)
    wait_until(lambda: has_plain_tree(2))
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    with (
        pytest.raises(InvalidState, match="older than what the helper has published"),
        federation.helper("h0"),
    ):
        pass


def test_a_client_that_is_late_sends_the_window_again_for_the_next_round_and_pays_once(
    tmp_path: Path,
) -> None:
    federation = MaskedFederation(tmp_path)
    federation.feed(1)
    federation.run(clients=federation.names[:-1], helpers=[])
    assert [len(message.places) for message in decoded(federation, CloseRound)] == [5]
    federation.run(clients=["c5"], helpers=[])  # too late for round 1, which is closed
    federation.feed(1, federation.names[:-1], first=1)
    federation.run()
    own = [message for message in decoded(federation, MaskedCounts) if message.client == "c5"]
    assert {(message.round, message.window) for message in own} == {(1, 0), (2, 0)}
    assert [len(message.places) for message in decoded(federation, CloseRound)] == [5, 6]
    assert spent_by(federation, "c5").windows == 1


def test_a_client_that_an_open_round_does_not_name_learns_that_its_window_was_taken_by_asking_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = MaskedFederation(tmp_path)
    federation.feed(2)
    monkeypatch.setattr(masked, "ANSWERED_MAX", 3)
    federation.run()
    batches = [len(message.places) for message in decoded(federation, CloseRound)]
    assert sum(batches) == 12, "no window was taken twice and none was lost"
    assert [spent_by(federation, client).windows for client in federation.names] == [2] * 6


def test_rounds_wait_for_a_helper_and_no_sum_leaks_meanwhile(tmp_path: Path) -> None:
    federation = MaskedFederation(tmp_path, clients=5)
    federation.feed(2)
    federation.run(helpers=["h0"])
    assert len(decoded(federation, CloseRound)) == 1
    assert [message.helper for message in decoded(federation, HelperSum)] == ["h0"]
    messages = decoded(federation, MaskedCounts)
    total = sum(words_of(message.counts).astype(np.uint64) for message in messages) % 2**32
    residue = (total.astype(np.uint32) - words_of(decoded(federation, HelperSum)[0].total)).view(
        np.uint8
    )
    # Uniform bytes, not counts with noise, which would be small.
    assert chisquare(np.bincount(residue // 32, minlength=8)).pvalue > 1e-6
    federation.run()
    assert len(decoded(federation, CloseRound)) == 2


def test_the_server_rebuilds_the_same_bits_from_the_log(tmp_path: Path) -> None:
    federation = MaskedFederation(tmp_path)
    federation.feed(3)
    state = federation.run()
    shutil.rmtree(federation.config.server.folder)
    with federation.server(rebuild=True) as server:
        while server.step():
            pass
        assert model_state(server) == state


def test_a_helper_answers_the_same_question_with_the_same_bytes_and_refuses_every_other_one(
    tmp_path: Path,
) -> None:
    federation = MaskedFederation(tmp_path)
    federation.feed(1)
    federation.run()
    close = decoded(federation, CloseRound)[0]
    offsets = decoded(federation, CloseRound)[0].places
    before = [record.value for record in federation.records("helper_sum")]
    fewer = replace(close, offsets=packed_offsets(offsets[:-1]), batch=bytes(32))
    same_windows = replace(close, round=2)
    federation.run(
        clients=[], until=lambda _: publish(federation, close, fewer, same_windows) is None
    )
    federation.run(clients=[])
    after = [record.value for record in federation.records("helper_sum")]
    assert set(after) == set(before), "no other number about these windows"
    assert len(after) > len(before), "the same question is answered again"
    assert set(rejected(federation)) <= {"repeated", "malformed", "sequence", "conflict"}


def test_a_message_published_again_as_another_window_spoils_its_sum_and_shows_nothing(
    tmp_path: Path,
) -> None:
    federation = MaskedFederation(tmp_path, clients=4, batch_min=4)
    federation.feed(1)
    federation.run(clients=federation.names[:3])
    stolen = decoded(federation, MaskedCounts)[0]
    publish(federation, replace(stolen, window=7))
    federation.run()
    assert rejected(federation) == ["conflict"], "one message of a client in a round"
    publish(federation, replace(stolen, round=2, window=9))
    federation.feed(1, federation.names[1:], first=1)
    federation.run()
    closes = decoded(federation, CloseRound)
    assert [only_invented(federation, message) for message in closes] == [
        False,
        False,
        True,
    ], "then helpers are checked"
    with federation.server() as server:
        snapshot = server.models()["clusters"].snapshot
        assert snapshot is not None
        assert snapshot.updates == 1, "masks that belong to other names do not cancel"


def test_a_helper_whose_folder_was_restored_stops_and_says_why(tmp_path: Path) -> None:
    federation = MaskedFederation(tmp_path)
    federation.feed(2)
    with ExitStack() as stack:
        stack.enter_context(federation.helper("h0"))
    folder = federation.key_file("h0").parent
    shutil.copytree(folder, tmp_path / "backup")
    federation.run()
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    with (
        pytest.raises(InvalidState, match="older than what the helper has published"),
        federation.helper("h0"),
    ):
        pass
    (folder / "helper.db").unlink()
    with (
        pytest.raises(InvalidState, match="new one, which is a new contract"),
        federation.helper("h0"),
    ):
        pass
    make_helper_state(folder, helper_public(federation.secret("h0")))
    with (
        pytest.raises(InvalidState, match="older than what the helper has published"),
        federation.helper("h0"),
    ):
        pass


def test_a_forged_or_foreign_sum_is_rejected_and_changes_nothing(tmp_path: Path) -> None:
    federation = MaskedFederation(tmp_path)
    federation.feed(1)
    federation.run(helpers=["h0"])
    honest = decoded(federation, HelperSum)[0]
    forged = replace(honest, helper="h1")
    stranger = replace(honest, helper="somebody")
    changed = replace(honest, total=bytes(len(honest.total)))
    publish(federation, forged, stranger, changed)
    federation.run()
    assert {"signature", "client"} <= set(rejected(federation))
    assert len(decoded(federation, CloseRound)) == 1


def test_an_old_sum_under_another_round_or_federation_is_rejected_and_stops_no_helper(
    tmp_path: Path,
) -> None:
    federation = MaskedFederation(tmp_path)
    federation.feed(1)
    federation.run()
    for old in decoded(federation, HelperSum):
        publish(federation, replace(old, round=99), replace(old, contract="0" * len(old.contract)))
    federation.feed(1, first=1)
    federation.run()
    assert set(rejected(federation)) == {"signature", "contract"}
    assert len(decoded(federation, CloseRound)) == 2


def forged_round(
    federation: MaskedFederation, like: MaskedCounts, round_: int
) -> tuple[list[MaskedCounts], int]:
    """Messages of invented clients for a round, and the offset that the first one gets."""
    kinds = (MaskedCounts.TYPE, CloseRound.TYPE, HelperSum.TYPE)
    first = max(record.offset for kind in kinds for record in federation.records(kind))
    return [
        replace(like, client=f"invented-{i}", round=round_, window=0) for i in range(3)
    ], first + 1


def forged_close(
    federation: MaskedFederation, messages: list[MaskedCounts], first: int
) -> CloseRound:
    """The end of a round with these messages, as a server would have made it."""
    one = messages[0]
    resolved = federation.config.resolved
    names = (resolved.federation, resolved.digest, one.model)
    entries = [message.entry for message in messages]
    batch = batch_digest(names, one.round, one.plan, one.cells, entries)
    offsets = packed_offsets(range(first, first + len(messages)))
    return CloseRound(*names, one.round, one.plan, one.cells, 0, offsets, batch)


def test_a_forged_end_of_a_far_round_does_not_stop_the_helpers_for_ever(tmp_path: Path) -> None:
    federation = MaskedFederation(tmp_path)
    federation.feed(1)
    federation.run()
    messages, first = forged_round(federation, decoded(federation, MaskedCounts)[0], 10**9)
    publish(federation, *messages, forged_close(federation, messages, first))
    federation.feed(1, first=1)
    federation.run()
    assert {message.round for message in decoded(federation, HelperSum)} == {1, 2}


@pytest.mark.parametrize("signs", [True, False])
def test_where_the_server_signs_no_helper_answers_a_forged_end_of_the_open_round(
    tmp_path: Path, signs: bool
) -> None:
    federation = MaskedFederation(tmp_path)
    if signs:
        sign_as_server(federation)
    federation.feed(1)
    federation.run()
    messages, first = forged_round(federation, decoded(federation, MaskedCounts)[0], 2)
    publish(federation, *messages, forged_close(federation, messages, first))
    with federation.helper("h0") as helper:
        while helper.step():
            pass
    assert {message.round for message in decoded(federation, HelperSum)} == (
        {1} if signs else {1, 2}
    )


def sign_as_server(federation: MaskedFederation) -> None:
    """Let the server sign with a key whose public part all members have."""
    file = federation.file
    text = file.read_text().replace("[log]", '[log]\nserver_keys = "server.pub"')
    file.write_text(text.replace("[server]", '[server]\nsigning_key_file = "server.key"'))
    assert CliRunner().invoke(server_key, ["--config", str(file)]).exit_code == 0
    federation.config = load_config(file)


def with_partitions(federation: MaskedFederation, partitions: int) -> None:
    """Keep the updates in so many partitions; before any process has started."""
    text = federation.file.read_text().replace("[log]", f"[log]\npartitions = {partitions}")
    federation.file.write_text(text)
    federation.config = load_config(federation.file)


def test_messages_in_another_partition_than_that_of_the_model_hinder_no_round(
    tmp_path: Path,
) -> None:
    federation = MaskedFederation(tmp_path, batch_min=6)
    with_partitions(federation, 3)
    federation.feed(1)
    federation.run(clients=[], helpers=[])
    for name in federation.names[:5]:
        with federation.client(name) as client:
            while client.step():
                pass
    with ExitStack() as stack:
        helpers = [stack.enter_context(federation.helper(name)) for name in federation.helpers]

        def read_all() -> None:
            for helper in helpers:
                while helper.step():
                    pass

        read_all()
        honest = federation.records(MaskedCounts.TYPE)
        others = {0, 1, 2} - {record.partition for record in honest}
        assert len(others) == 2, "the key of a model has one partition"
        topic = federation.config.contract.updates_topic
        with closing(open_log(federation.config.log)) as log:
            # At the offsets that the honest ones have in theirs.
            for message in decoded(federation, MaskedCounts):
                forged = replace(message, client=f"invented-{message.client}").encode()
                for other in others:
                    log.publish(topic, forged, headers=MaskedCounts.headers(), partition=other)
            log.flush()
        read_all()
    federation.run()
    assert rejected(federation) == ["malformed"] * 10
    assert [len(close.places) for close in decoded(federation, CloseRound)] == [6]
    assert len(decoded(federation, HelperSum)) == 2


def test_a_forged_round_far_ahead_does_not_silence_a_client(tmp_path: Path) -> None:
    federation = MaskedFederation(tmp_path, clients=3)
    federation.feed(1)
    federation.run(helpers=[])
    with closing(open_log(federation.config.log)) as log:
        topic = federation.config.contract.snapshots_topic
        key = f"{ROUND_KEY}clusters".encode()
        opened = OpenRound.decode(latest(log, topic)[key].value, OpenRound.headers())
        far = replace(opened, round=10**12)
        log.publish(topic, far.encode(), key, far.headers())
        log.flush()
    with federation.client("c0") as client:
        while client.step():
            pass
    federation.run()
    federation.feed(1, first=1)
    federation.run()
    assert [len(message.places) for message in decoded(federation, CloseRound)] == [3, 3]


def test_a_sum_of_other_messages_than_those_of_the_batch_makes_the_round_void(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = MaskedFederation(tmp_path)
    federation.feed(1)
    federation.run(helpers=["h0"])
    close = decoded(federation, CloseRound)[0]
    honest = decoded(federation, HelperSum)[0]
    names = (close.federation, close.contract, close.model, "h1")
    total = np.zeros(close.cells, dtype=np.uint32)
    for message in decoded(federation, MaskedCounts)[:-1]:
        pair = pair_key(
            federation.secret("h1"), message.key, (*names, message.client, federation.log_name)
        )
        total += mask(pair, message.entry.name(close.round, close.plan), close.cells)
    other = replace(honest, helper="h1", total=bytes_of(total))
    publish(
        federation, replace(other, signature=sign(federation.secret("h1"), other.signed_content))
    )
    federation.run(clients=[], helpers=[])
    assert "masked_round_void" in caplog.text
    with federation.server() as server:
        assert server.models()["clusters"].status().snapshot is None, "nothing was learnt"


@pytest.mark.parametrize("lie_first", [False, True])
def test_of_two_sums_that_a_helper_signs_for_one_batch_every_reader_takes_the_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lie_first: bool
) -> None:
    """A helper cannot tell one reader something else than another: all read one log, in one
    order."""
    (tmp_path / "before").mkdir()
    before = MaskedFederation(tmp_path / "before", clients=3)
    before.feed(1)
    before.run(helpers=[])
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    before.run(clients=[], helpers=["h1"])
    [honest] = decoded(before, HelperSum)
    moved = replace(honest, total=bytes_of(words_of(honest.total) - np.uint32(5)))
    lie = replace(moved, signature=sign(before.secret("h1"), moved.signed_content))
    federation = MaskedFederation.written_before(
        tmp_path / "after", clients=len(before.names), now=before.clock.now
    )
    publish(federation, *([lie, honest] if lie_first else [honest, lie]))
    federation.run(clients=[], helpers=["h0"])
    said = [entry for entry in caplog.records if entry.getMessage() == "helper_sums_differ"]
    assert [entry.__dict__["fields"]["helper"] for entry in said] == ["h1"]
    with federation.server() as server:
        learned = model_state(server)
        assert server.models()["clusters"].status().snapshot.updates == 1
    shutil.rmtree(federation.config.server.folder)
    with federation.server(rebuild=True) as server:
        while server.step():
            pass
        assert model_state(server) == learned


def test_a_client_that_spoils_every_batch_is_found_by_halving_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    federation = MaskedFederation(tmp_path, clients=6, helpers=1)
    real = MaskedModel.make_message

    def random_counts(self: MaskedModel, window: Any, opened: Any) -> MaskedCounts:
        message = real(self, window, opened)
        return (
            replace(message, counts=b"\x7f" * len(message.counts))
            if message.client == "c4"
            else message
        )

    monkeypatch.setattr(MaskedModel, "make_message", random_counts)
    federation.feed(12)
    with caplog.at_level("ERROR", logger="shoal"):
        before = federation.run()
    void = [record for record in caplog.records if "masked_round_void" in record.getMessage()]
    assert 2 <= len(void) <= 6
    rounds = decoded(federation, CloseRound)
    by_offset = {
        record.offset: MaskedCounts.decode(record.value, record.headers)
        for record in federation.records("masked_counts")
    }
    last = {by_offset[offset].client for offset in rounds[-1].places}
    assert "c4" not in last
    assert len(rounds) > len(void) + 5
    shutil.rmtree(federation.config.server.folder)
    with federation.server(rebuild=True) as server:
        while server.step():
            pass
        assert model_state(server) == before, "a rebuild leaves out the same client"


@pytest.mark.parametrize(
    ("fault", "words"), [("mask", "wrong sums"), ("noise", "too little noise")]
)
def test_a_wrong_helper_is_named_and_no_window_is_spent_until_it_is_right_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: str,
    words: str,
) -> None:
    federation = MaskedFederation(tmp_path, clients=3)
    real = HelperNode._pair
    noise = GaussianNoise.draw

    def of_another(self: HelperNode, close: CloseRound, entry: Any) -> bytes:
        return bytes(32) if self.name == "h1" else real(self, close, entry)

    def little(self: GaussianNoise, seed: bytes, cells: int) -> Any:
        return noise(self, seed, cells) // 4

    with monkeypatch.context() as patch:
        patch.setattr(HelperNode, "_pair", of_another)
        if fault == "noise":  # after a void batch, which makes the server check them
            patch.setattr(GaussianNoise, "draw", little)
        federation.feed(8)
        with caplog.at_level("ERROR", logger="shoal"):
            federation.run(
                until=lambda _: (
                    "masked_helper_wrong" in caplog.text and federation.clock.now > 1e9 + 200
                )
            )
    said = {record.__dict__["fields"].get("helpers", "") for record in caplog.records}
    assert any("h1: wrong sums" in message for message in said), said
    assert any("h0" in message for message in said) is (fault == "noise")
    if fault == "noise":
        assert any(f"h0: {words}" in message for message in said)
    assert sum("masked_round_void" in record.getMessage() for record in caplog.records) == 1
    with federation.server() as server:
        server.status()
        value = server.metrics.registry.get_sample_value
        assert value("shoal_helpers_wrong") == (2 if fault == "noise" else 1)
    spent = [
        message
        for message in decoded(federation, CloseRound)
        if not only_invented(federation, message)
    ]
    assert len(spent) == 1, "the batches that follow have invented clients alone"
    federation.run()
    assert (
        len(
            [
                message
                for message in decoded(federation, CloseRound)
                if not only_invented(federation, message)
            ]
        )
        == 8
    )
    with federation.server() as server:
        before = model_state(server)
        assert server.models()["clusters"].status().snapshot.updates == 7
    shutil.rmtree(federation.config.server.folder)
    with federation.server(rebuild=True) as server:
        while server.step():
            pass
        assert model_state(server) == before, (
            "a rebuild does not know the masks of the checks, and does not need them"
        )


def only_invented(federation: MaskedFederation, close: CloseRound) -> bool:
    """Whether a batch has invented clients alone."""
    by_offset = {
        record.offset: MaskedCounts.decode(record.value, record.headers)
        for record in federation.records("masked_counts")
    }
    return all(by_offset[offset].client.startswith("helper-check-") for offset in close.places)


def test_every_helper_adds_the_whole_noise_and_other_noise_each_round(tmp_path: Path) -> None:
    federation = MaskedFederation(tmp_path, clients=3)
    federation.feed(2)
    federation.run()
    mode: Any = federation.config.resolved.mode
    messages = decoded(federation, MaskedCounts)
    noises = []
    closes = {message.round: message for message in decoded(federation, CloseRound)}
    for answer in decoded(federation, HelperSum):
        close = closes[answer.round]
        masks = np.zeros(len(answer.total) // 4, dtype=np.uint32)
        for message in (message for message in messages if message.round == answer.round):
            own = (close.federation, close.contract, close.model, answer.helper, message.client)
            names = (*own, federation.log_name)
            pair = pair_key(federation.secret(answer.helper), message.key, names)
            masks += mask(pair, message.entry.name(close.round, close.plan), close.cells)
        noises.append(signed_counts(masks - words_of(answer.total)))
    assert len(noises) == 4
    for noise in noises:
        share = float(noise @ noise) / mode.variance
        assert chi2.ppf(1e-6, len(noise)) < share < chi2.ppf(1 - 1e-6, len(noise))
    assert len({noise.tobytes() for noise in noises}) == 4


def test_a_window_that_waits_when_the_log_is_created_anew_is_charged_again(tmp_path: Path) -> None:
    federation = MaskedFederation(tmp_path, clients=3)
    federation.feed(1)
    federation.run(helpers=["h0"])
    assert spent_by(federation, "c0").windows == 1
    federation.lose_log()
    federation.run()
    assert [len(message.places) for message in decoded(federation, CloseRound)] == [3]
    assert spent_by(federation, "c0").windows == 2, "helpers may have unmasked it twice"


def test_a_batch_has_no_more_clients_than_fit_and_the_others_answer_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.server_node.ingest.model_round.CLIENTS_MAX", 4)
    federation = MaskedFederation(tmp_path)
    federation.feed(1)
    federation.run()
    federation.feed(1, first=1)
    federation.run()
    assert [len(message.places) for message in decoded(federation, CloseRound)][:2] == [4, 4]


def test_a_plain_update_of_counts_without_masks_is_rejected(tmp_path: Path) -> None:
    from shoal.protocol.messages import Update  # noqa: PLC0415 - beside what it is for

    federation = MaskedFederation(tmp_path)
    federation.run(clients=[])
    contract = federation.config.resolved
    model = contract.models["clusters"]
    counted = DensityTreeCounter(2, **model.options).count(
        federation.rows("c0", 1), np.ones(40, bool), b"", 0
    )
    update = Update(
        federation="plant",
        contract=contract.digest,
        model="clusters",
        algorithm="density_tree",
        client="c0",
        sequence=1,
        readings=40,
        privacy=model.statement,
        arrays=counted.update(counted.counts),
        made_at=0.0,
    )
    publish(federation, update)
    federation.run(clients=[])
    assert rejected(federation) == ["privacy"]


def test_too_few_clients_keep_the_round_open(tmp_path: Path) -> None:
    federation = MaskedFederation(tmp_path)
    federation.feed(2, federation.names[:2])
    federation.run(clients=federation.names[:2])
    assert decoded(federation, CloseRound) == []
    assert len(decoded(federation, MaskedCounts)) == 2, (
        "each client has answered once, and reads no further window"
    )
    federation.feed(1, ["c2"])
    federation.run(clients=federation.names[:3])
    assert [len(message.places) for message in decoded(federation, CloseRound)] == [3]


def wait_windows(federation: MaskedFederation, windows: int) -> None:
    """Let the clients run while as much time passes as windows of the contract take."""
    with ExitStack() as stack:
        clients = [stack.enter_context(federation.client(name)) for name in federation.names]
        for _ in range(windows):
            federation.clock.now += federation.config.contract.privacy.window_s
            for client in clients:
                client.step()


def test_a_client_whose_budget_is_spent_publishes_nothing_more_until_time_has_passed(
    tmp_path: Path,
) -> None:
    privacy = "budget_windows = 2\nbudget_days = 1"
    federation = MaskedFederation(tmp_path, clients=3, privacy=privacy)
    federation.feed(4)
    federation.run()
    assert {update.window for update in decoded(federation, MaskedCounts)} == {0, 1}
    wait_windows(federation, 80)
    federation.run()
    assert {update.window for update in decoded(federation, MaskedCounts)} == {0, 1}
    wait_windows(federation, 10)
    federation.run()
    assert {update.window for update in decoded(federation, MaskedCounts)} == {0, 1, 2, 3}


def test_a_clock_that_is_set_ahead_for_a_moment_frees_no_budget_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    privacy = "budget_windows = 2\nbudget_days = 1"
    federation = MaskedFederation(tmp_path, clients=3, privacy=privacy)
    federation.feed(4)
    federation.run()
    with caplog.at_level(logging.WARNING, logger="shoal"):
        federation.clock.now += 31 * 86_400.0
        federation.run()
        federation.clock.now -= 31 * 86_400.0
        federation.run()
    assert {update.window for update in decoded(federation, MaskedCounts)} == {0, 1}
    assert "masked_clock_ahead" in caplog.text


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ("checkpoint.db", "the checkpoint is older than the ledger"),
        (".", "the folder is older than what the client has published"),
    ],
)
def test_a_client_with_a_checkpoint_or_a_whole_folder_older_than_what_it_has_published_stops(
    tmp_path: Path, part: str, why: str
) -> None:
    federation = MaskedFederation(tmp_path)
    federation.feed(1)
    federation.run()
    folder = federation.config.client.folder / "c0"
    shutil.copytree(folder, tmp_path / "copy")
    federation.feed(2, first=1)
    federation.run()
    before = decoded(federation, MaskedCounts)
    if part == ".":
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "copy", folder)
    else:
        shutil.copy(tmp_path / "copy" / part, folder / part)
    with pytest.raises(InvalidState, match=why):
        federation.run()
    assert decoded(federation, MaskedCounts) == before


def test_the_server_alone_is_no_helper(tmp_path: Path) -> None:
    federation = MaskedFederation(tmp_path, helpers=1)
    own = federation.config.server.model_copy(update={"helper_key_file": federation.key_file("h0")})
    alone = federation.config.model_copy(update={"server": own})
    with (
        pytest.raises(SettingsError, match="must not be the only helper"),
        OwnHelper(alone).running(),
    ):
        pass


def test_a_helper_within_the_server_answers_besides_the_other_one(tmp_path: Path) -> None:
    federation = MaskedFederation(tmp_path, clients=3)
    own = federation.config.server.model_copy(update={"helper_key_file": federation.key_file("h0")})
    public = helper_public(federation.secret("h0"))
    make_helper_state(federation.config.server.folder / "helper", public)
    helper = OwnHelper(federation.config.model_copy(update={"server": own}))
    federation.feed(1)
    with helper.running():
        federation.run(helpers=["h1"], until=lambda _: helper.step() and False)
    federation.run(helpers=[])
    assert sorted(message.helper for message in decoded(federation, HelperSum)) == ["h0", "h1"]
    with federation.server() as server:
        assert server.models()["clusters"].status().snapshot.updates == 1


def test_no_client_can_be_put_into_quarantine_or_unlearned(tmp_path: Path) -> None:
    federation = MaskedFederation(tmp_path)
    with closing(open_log(federation.config.log)) as log:
        ensure_topics(log, federation.config.contract, federation.config.log)
        for action in ("quarantine", "unlearn", "forget"):
            with pytest.raises(SettingsError, match="no client can be told from the others"):
                request_quarantine(federation.config, log, "c0", action, "")


def test_what_cannot_be_erased_is_said_by_unlearn_and_before_anybody_joins(tmp_path: Path) -> None:
    federation = MaskedFederation(tmp_path)
    assert "in sums for good" in " ".join(CliRunner().invoke(unlearn, ["--help"]).output.split())
    with pytest.raises(SettingsError, match="stays in the sums for good"):
        CliRunner().invoke(
            unlearn, ["--config", str(federation.file), "c0"], catch_exceptions=False
        )
    checked = CliRunner().invoke(check, [str(federation.file)], catch_exceptions=False)
    assert "cannot be erased" in " ".join(checked.output.split())


def test_the_page_says_why_single_clients_are_not_on_it(tmp_path: Path) -> None:
    federation = MaskedFederation(tmp_path)
    with federation.server() as server:
        note = clients_note(server.status().contract)
    assert "its share of clusters" in note
    assert clients_note(resolve(a_contract())) == ""


def test_replicas_and_replays_refuse_masked_counts_with_words(tmp_path: Path) -> None:
    federation = MaskedFederation(tmp_path)
    name = str(federation.file)
    for command in (
        [replica, "--config", name, "--name", "r"],
        [replay_command, "--config", name, "--client-column", "c", "--time-column", "t", name],
    ):
        ended = CliRunner().invoke(command[0], command[1:])
        assert isinstance(ended.exception, SettingsError), ended.output
        assert "masked" in str(ended.exception) or "learns from counts" in str(ended.exception)


def test_messages_are_small(tmp_path: Path) -> None:
    federation = MaskedFederation(tmp_path)
    federation.feed(1)
    federation.run()
    record: Record = federation.records("masked_counts")[0]
    message = MaskedCounts.decode(record.value, record.headers)
    size = len(record.value or b"") + sum(len(name) + len(value) for name, value in record.headers)
    assert size <= 4 * message.cells + 300


def test_a_flood_of_messages_for_one_round_hinders_no_helper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.helper_node.model_sums.ENTRIES_MAX", 8)
    monkeypatch.setattr("shoal.helper_node.model_sums.GROUP", 3)
    flooded = MaskedFederation(tmp_path / "flooded")
    flooded.feed(2)
    # The server takes clients in and a helper nothing, which comes to the junk first.
    flooded.run(clients=[], helpers=[])
    contract = flooded.config.contract
    names = (contract.federation, contract.digest, "clusters")
    junk = MaskedCounts(
        *names, "made-up", bytes(32), 1, 0, 1, bytes(masked.PLAN_BYTES), bytes(16), bytes(4)
    )
    publish(flooded, *(replace(junk, client=f"made-up-{number}") for number in range(20)))
    for helper in flooded.helpers:
        with flooded.helper(helper) as node:
            node.step()
            assert len(node._models["clusters"].sent) == 8
    flooded.run()
    closes = decoded(flooded, CloseRound)
    batches = {(close.round, close.batch) for close in closes}
    sums = {(answer.round, answer.batch, answer.helper) for answer in decoded(flooded, HelperSum)}
    assert len(batches) == 2, "both windows of all clients"
    assert sums == {(*batch, helper) for batch in batches for helper in flooded.helpers}
    for helper in flooded.helpers:
        with flooded.helper(helper) as node:
            assert node._models["clusters"].unmasked == dict.fromkeys(flooded.names, 1)

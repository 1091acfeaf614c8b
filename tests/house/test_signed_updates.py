"""A federation with signed updates: forged ones are rejected, genuine ones are absorbed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.algorithms.registry import load_algorithm
from shoal.cli.keys import keys as keys_group
from shoal.cli.topics import rejected as rejected_group
from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import Config, load_config
from shoal.errors import MessageRejected, SettingsError
from shoal.protocol.chunking import encode_update
from shoal.protocol.messages import Update, Wake
from shoal.protocol.signatures import HEADER, read_keys, signature
from shoal.protocol.topics import ensure_topics
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.ingest.request_publishing import request_wake
from shoal.transports import open_log
from shoal.transports.base import Headers, latest
from tests.house.small_federation import (
    all_records,
    clock,
    create_federation,
    final_model,
    model_bytes,
    run_to_end,
)

CLIENTS = ("attic", "cellar")


def create_signed_federation(folder: Path, clients: Sequence[str] = CLIENTS, **sizes: int) -> Path:
    """A federation with readings whose clients sign and whose server requires it."""
    file = create_federation(folder, clients, readings=120, pool_clients=len(clients), **sizes)
    require_signatures(file)
    for client in clients:
        make_key(file, client)
    return file


def require_signatures(file: Path) -> None:
    text = file.read_text(encoding="utf-8").replace(
        "label = true", 'signing_key_file = "{client}/signing.key"'
    )
    file.write_text(text + 'client_keys = "keys"\n', encoding="utf-8")


def make_key(file: Path, client: str, *more: str) -> str:
    result = CliRunner().invoke(
        keys_group, ["new", "--config", str(file), "--name", client, *more], catch_exceptions=False
    )
    assert result.exit_code == 0
    return result.output


def key_of(file: Path, client: str) -> bytes:
    return read_keys(file.parent / "keys" / f"{client}.key")[0]


def signed(config: Config, value: bytes, key: bytes) -> Headers:
    return (*Update.headers(), (HEADER, signature(key, config.contract.updates_topic, value)))


def is_signed(config: Config, value: bytes, headers: Headers, key: bytes) -> bool:
    """Whether a record has the signature by this key, whatever other headers it has."""
    return dict(headers).get(HEADER) == signature(key, config.contract.updates_topic, value)


def publish(config: Config, *messages: tuple[bytes, Headers]) -> None:
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        for value, headers in messages:
            log.publish(config.contract.updates_topic, value, b"clusters", headers)
        log.flush()


def rejected(config: Config) -> list[tuple[str, bytes]]:
    with closing(open_log(config.log)) as log:
        found = sorted(
            latest(log, config.contract.rejected_topic).values(), key=lambda record: record.offset
        )
    return [(dict(record.headers)["reason"].decode(), record.value or b"") for record in found]


def updates_of(config: Config, client: str) -> list[tuple[bytes, Headers]]:
    records = all_records(config.log.address, config.contract.updates_topic)
    messages = [(record.value or b"", record.headers) for record in records]
    return [message for message in messages if Update.decode(*message).client == client]


def test_clients_that_sign_make_the_model_that_unsigned_ones_would_make(tmp_path: Path) -> None:
    file = create_signed_federation(tmp_path)
    config = load_config(file)
    run_to_end(file, CLIENTS)
    assert rejected(config) == []
    with_signatures = final_model(file)
    assert all(
        dict(headers).get(HEADER) for client in CLIENTS for _, headers in updates_of(config, client)
    )
    unasked = config.model_copy(
        update={
            "server": config.server.model_copy(
                update={"client_keys": None, "folder": tmp_path / "unasked"}
            )
        }
    )
    with resumed(open_server(unasked, rebuild=True, clock=clock)) as server:
        while server.step():
            pass
        assert server.models()["clusters"].snapshot is not None
        assert model_bytes(server) == with_signatures


def test_updates_in_the_name_of_another_client_are_rejected(tmp_path: Path) -> None:
    file = create_signed_federation(tmp_path)
    config = load_config(file)
    with resumed(open_client(config, "attic", clock=clock)) as client:
        while client.step():
            pass
    (genuine, _), *_ = updates_of(config, "attic")
    in_cellars_name = replace(Update.decode(genuine, Update.headers()), client="cellar").encode()
    stranger = replace(Update.decode(genuine, Update.headers()), client="stranger").encode()
    tampered = replace(Update.decode(genuine, Update.headers()), sequence=77).encode()
    attic_key = key_of(file, "attic")
    forged = [
        (in_cellars_name, Update.headers()),
        (in_cellars_name, signed(config, in_cellars_name, attic_key)),
        (stranger, signed(config, stranger, attic_key)),
        (tampered, signed(config, genuine, attic_key)),
    ]
    publish(config, *forged)
    run_to_end(file, CLIENTS)
    assert rejected(config) == [("signature", value) for value, _ in forged]
    with resumed(open_server(config, clock=clock)) as server:
        absorbed = {
            client: updates for client, updates, *_ in server.models()["clusters"].clients.totals()
        }
        assert absorbed == {client: len(updates_of_signed(config, client)) for client in CLIENTS}
        assert absorbed["cellar"] > 0
        publish(config, forged[0])
        server.step()
        count = server.metrics.registry.get_sample_value(
            "shoal_rejected_messages_total", {"reason": "signature"}
        )
        assert count == 1.0
        assert server.status().rejected == {"signature": 1}


def updates_of_signed(config: Config, client: str) -> set[bytes]:
    """The distinct updates of a client that have its signature."""
    key = (
        read_keys(config.server.client_keys / f"{client}.key")[0]
        if config.server.client_keys
        else b""
    )
    messages = updates_of(config, client)
    return {value for value, headers in messages if is_signed(config, value, headers, key)}


def test_a_genuine_message_repeated_later_changes_nothing(tmp_path: Path) -> None:
    file = create_signed_federation(tmp_path)
    config = load_config(file)
    run_to_end(file, CLIENTS)
    before = final_model(file)
    genuine = updates_of(config, "cellar")
    publish(config, *genuine, *reversed(genuine))
    run_to_end(file, CLIENTS)
    assert final_model(file) == before
    assert rejected(config) == []


def test_a_signature_for_another_federation_is_rejected_also_with_the_same_key(
    tmp_path: Path,
) -> None:
    file = create_signed_federation(tmp_path)
    config = load_config(file)
    run_to_end(file, CLIENTS)
    value = replace(Update.decode(*updates_of(config, "attic")[0]), sequence=99).encode()
    elsewhere = (
        *Update.headers(),
        (HEADER, signature(key_of(file, "attic"), "other.updates", value)),
    )
    publish(config, (value, elsewhere))
    run_to_end(file, CLIENTS)
    assert rejected(config) == [("signature", value)]


def test_every_chunk_is_signed_and_a_forged_one_does_not_stop_reassembly(tmp_path: Path) -> None:
    file = create_signed_federation(tmp_path, ["attic"], publish_readings=120)
    config = load_config(file)
    small = config.model_copy(
        update={"log": config.log.model_copy(update={"update_bytes_max": 1700})}
    )
    with resumed(open_client(small, "attic", clock=clock)) as client:
        while client.step():
            pass
    messages = updates_of(config, "attic")
    assert len(messages) > 2
    chunks = [Update.decode(*message) for message in messages]
    forged = replace(chunks[1], arrays=chunks[0].arrays).encode()
    elsewhere = config.model_copy(
        update={
            "log": small.log.model_copy(update={"address": f"sqlite:{tmp_path / 'again.db'}"}),
            "server": config.server.model_copy(update={"folder": tmp_path / "again"}),
        }
    )
    publish(
        elsewhere, messages[0], (forged, messages[1][1]), (forged, Update.headers()), *messages[1:]
    )
    with resumed(open_server(elsewhere, clock=clock)) as server:
        while server.step():
            pass
        assert [updates for _, updates, *_ in server.models()["clusters"].clients.totals()] == [1]
    assert [reason for reason, _ in rejected(elsewhere)] == ["signature", "signature"]


def test_updates_rejected_without_a_key_are_absorbed_when_requeued_with_it(tmp_path: Path) -> None:
    file = create_signed_federation(tmp_path)
    config = load_config(file)
    kept = (tmp_path / "keys" / "cellar.key").rename(tmp_path / "cellar.key")
    run_to_end(file, CLIENTS)
    assert {reason for reason, _ in rejected(config)} == {"signature"}
    kept.rename(tmp_path / "keys" / "cellar.key")
    for record in all_records(config.log.address, config.contract.rejected_topic):
        assert record.key is not None
        result = CliRunner().invoke(
            rejected_group, ["requeue", "--config", str(file), record.key.decode()]
        )
        assert result.exit_code == 0, result.output
    run_to_end(file, CLIENTS)
    with resumed(open_server(config, clock=clock)) as server:
        assert [client for client, *_ in server.models()["clusters"].clients.totals()] == list(
            CLIENTS
        )
        assert server.status().rejected == {}


def test_a_key_is_changed_without_losing_an_update(tmp_path: Path) -> None:
    file = create_signed_federation(tmp_path)
    config = load_config(file)
    with resumed(open_client(config, "attic", clock=clock)) as client:
        client.step()
    old = key_of(file, "attic")
    make_key(file, "attic", "--rotate")
    assert read_keys(tmp_path / "keys" / "attic.key") == [key_of(file, "attic"), old]
    # The newest updates are repeated, signed with the key as it is now.
    run_to_end(file, CLIENTS)
    new = key_of(file, "attic")
    messages = updates_of(config, "attic")
    with_old = [is_signed(config, value, headers, old) for value, headers in messages]
    assert [is_signed(config, value, headers, new) for value, headers in messages] == [
        not which for which in with_old
    ]
    assert set(with_old) == {True, False}
    assert with_old == sorted(with_old, reverse=True)
    assert rejected(config) == []


def test_updates_stored_before_a_client_had_a_key_are_signed_when_they_are_published(
    tmp_path: Path,
) -> None:
    file = create_federation(tmp_path, CLIENTS, readings=120, pool_clients=2)
    config = load_config(file)
    with resumed(open_client(config, "attic", clock=clock)) as client:
        # Updates are stored and not published.
        client._outbox.publish_pending = lambda: 0  # type: ignore[method-assign]  # a fault
        client.step()
    require_signatures(file)
    for client_with_key in CLIENTS:
        make_key(file, client_with_key)
    run_to_end(file, CLIENTS)
    assert rejected(config) == []


def test_a_client_without_its_key_does_not_start(tmp_path: Path) -> None:
    file = create_signed_federation(tmp_path)
    (tmp_path / "attic" / "signing.key").unlink()
    with (
        pytest.raises(SettingsError, match=r"signing\.key cannot be read"),
        resumed(open_client(load_config(file), "attic")),
    ):
        pass


def test_a_wake_is_signed_as_an_operator(tmp_path: Path) -> None:
    file = create_signed_federation(tmp_path)
    more = '[[models]]\nname = "heaps"\nalgorithm = "kmeans"\noptions = { clusters = 2 }\n[log]'
    file.write_text(file.read_text(encoding="utf-8").replace("[log]", more), encoding="utf-8")
    config = load_config(file)
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        unsigned = Wake(config.contract.federation, config.contract.digest, "heaps", made_at=1.0)
        log.publish(
            config.contract.updates_topic, unsigned.encode(), b"plant/heaps", Wake.headers()
        )
        request_wake(config, log, ("heaps",))
    run_to_end(file, ())
    assert len(rejected(config)) == 1, "the unsigned one"
    assert ("type", Wake.TYPE.encode()) in all_records(
        config.log.address, config.contract.updates_topic
    )[0].headers


def test_chunks_leave_room_for_the_signature(tmp_path: Path) -> None:
    file = create_signed_federation(tmp_path, ["attic"])
    config = load_config(file)
    run_to_end(file, ["attic"])
    update = Update.decode(*updates_of(config, "attic")[0])
    smallest = next(size for size in range(1000, 5000, 10) if _can(update, size))
    for _, value in encode_update(update, load_algorithm("fcac").update, smallest):
        headers = signed(config, value, key_of(file, "attic"))
        assert (
            len(value)
            + len(b"clusters")
            + sum(len(name) + len(content) for name, content in headers)
            <= smallest
        )


def _can(update: Update, size: int) -> bool:
    try:
        return len(encode_update(update, load_algorithm("fcac").update, size)) > 0
    except MessageRejected:
        return False

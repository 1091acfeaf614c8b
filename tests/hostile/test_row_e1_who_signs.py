"""A client that holds what clients hold can forge neither a server's records nor an operator's
requests."""

from __future__ import annotations

import hmac
import sys
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.keys import keys
from shoal.config.settings import Config, load_config
from shoal.errors import MissingExtra, SettingsError
from shoal.protocol.ed25519 import PrivateKey, PublicKeys, read_public_keys
from shoal.protocol.messages import ClusterName
from shoal.protocol.signatures import HEADER
from shoal.runtime import logs
from shoal.runtime.checkpoint import OutboxRecord
from shoal.runtime.logs import SignedTopic, open_federation_log
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.ingest.request_publishing import request_publisher
from shoal.server_node.ingest.requests import request_signer
from shoal.server_node.outputs.client_commands import quarantine
from shoal.server_node.outputs.cluster_commands import name
from shoal.transports import open_log
from shoal.transports.base import Headers, Record, TopicSettings, beginning
from tests.federation_text import WARM, federation_text
from tests.house.processes import wait_until

MODULES = (
    "cryptography",
    "cryptography.exceptions",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
)
FILE = federation_text(
    features=[WARM],
    log={"address": "sqlite:federation.db", "server_keys": "public/server.pub"},
    server={
        "signing_key_file": "private/server.key",
        "operator_keys": "public/operators.pub",
        "operator_key_file": "private/operator.key",
    },
)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A federation whose server and operator have made their keys."""
    file = tmp_path / "plant.toml"
    file.write_text(FILE, encoding="utf-8")
    for command in ("server", "operator"):
        made = CliRunner().invoke(keys, [command, "--config", str(file)])
        assert made.exit_code == 0, made.output
        secret = (tmp_path / "private" / f"{command}.key").read_text(encoding="ascii").split()[1]
        assert secret not in made.output
        again = CliRunner().invoke(keys, [command, "--config", str(file)])
        assert "exists already" in str(again.exception)
    return load_config(file)


def unsigned(value: bytes) -> OutboxRecord:
    return OutboxRecord("snapshots", value, b"model", (("type", b"snapshot"), ("v", b"1")))


@pytest.mark.parametrize("package", [True, False])
def test_a_record_forged_with_all_that_a_client_holds_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: bool
) -> None:
    server = PrivateKey(b"s" * 32)
    client = PrivateKey(b"c" * 32)
    public = server.public
    true = unsigned(b"true")
    headers: list[Headers] = [
        true.headers,
        true.headers + logs._signed(server, *true[:1], true.key, *_rest(true)),
    ]
    forged = unsigned(b"forged")
    message = logs._message("snapshots", forged.key, forged.headers, forged.value)
    forgeries = [
        client.sign(message),
        hmac.new(public, message, "sha512").digest(),
        hmac.new(public, message, "sha256").digest(),
        dict(headers[1])[logs.HEADER],
        bytes(64),
        b"",
    ]
    if not package:  # as on an edge device, which has no package for it
        for module in MODULES:
            monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtra, match="sign"):
            PrivateKey(bytes(32))
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        log.ensure("snapshots", TopicSettings())
        for entry in headers:
            log.publish("snapshots", b"true", b"model", entry)
        for signature in forgeries:
            log.publish(
                "snapshots", b"forged", b"model", (*forged.headers, (logs.HEADER, signature))
            )
        log.flush()
        records, _ = SignedTopic(log, "snapshots", PublicKeys([public])).read(
            "snapshots", beginning(log, "snapshots")
        )
        assert [record.value for record in records] == [b"true"]


def _rest(record: OutboxRecord) -> tuple[Headers, bytes | None]:
    return record.headers, record.value


def test_a_server_without_its_private_key_or_with_another_one_does_not_start(
    config: Config, tmp_path: Path
) -> None:
    with resumed(open_server(config)):
        pass
    without = config.model_copy(
        update={"server": config.server.model_copy(update={"signing_key_file": None})}
    )
    with (
        pytest.raises(SettingsError, match=r"set signing_key_file in \[server\]"),
        resumed(open_server(without)),
    ):
        pass
    other = PrivateKey(b"o" * 32).public.hex()
    (tmp_path / "public" / "server.pub").write_text(f"public {other}\n", encoding="ascii")
    with (
        pytest.raises(SettingsError, match="does not have the public key that belongs to"),
        resumed(open_server(config)),
    ):
        pass


def requests_rejected(config: Config) -> list[str]:
    with resumed(open_server(config)) as node:
        while node.step():
            pass
    with closing(open_federation_log(config)) as log:
        topic = config.contract.rejected_topic
        records: list[Record] = list(log.read(topic, beginning(log, topic))[0])
    return [dict(record.headers)["reason"].decode() for record in records]


def test_requests_count_when_an_operator_or_the_server_has_signed_them(
    config: Config, tmp_path: Path
) -> None:
    file = str(tmp_path / "plant.toml")
    assert CliRunner().invoke(quarantine, ["--config", file, "attic"]).exit_code == 0
    assert CliRunner().invoke(name, ["--config", file, "7", "north"]).exit_code == 0
    request = ClusterName("plant", config.contract.digest, "clusters", 8, "south", made_at=1.0)
    record = OutboxRecord(
        config.contract.updates_topic, request.encode(), b"plant/clusters", request.headers()
    )
    by_server = request_signer(config.server, as_server=True)(record)
    client = PrivateKey(b"c" * 32)
    public = read_public_keys(config.server.operator_keys or Path())[0]
    with closing(open_log(config.log)) as log:
        for more in (
            by_server,
            (),
            ((HEADER, client.sign(record.value or b"")),),
            ((HEADER, hmac.new(public, record.value or b"", "sha512").digest()),),
            tuple((server, value[:-1] + bytes([value[-1] ^ 1])) for server, value in by_server),
        ):
            log.publish(record.topic, record.value, record.key, record.headers + more)
        log.flush()
    assert requests_rejected(config) == ["cluster", "cluster", *["signature"] * 4], (
        "there is no cluster yet"
    )
    with resumed(open_server(config)) as node:
        assert [client.client for client in node.status().quarantined] == ["attic"]


def test_with_a_new_key_the_records_of_the_old_one_are_still_read(
    config: Config, tmp_path: Path
) -> None:
    file = str(tmp_path / "plant.toml")
    before = read_public_keys(config.log.server_keys or Path())
    request = ClusterName("plant", config.contract.digest, "clusters", 8, "south", made_at=1.0)
    with resumed(open_server(config)) as node:
        publish = request_publisher(config)  # of the page
        assert CliRunner().invoke(keys, ["server", "--config", file, "--rotate"]).exit_code == 0
        publish(request)
        while node.step():
            pass
    after = read_public_keys(config.log.server_keys or Path())
    assert after[1:] == before
    topic = config.contract.snapshots_topic
    with closing(open_federation_log(config)) as signed, closing(open_log(config.log)) as log:
        records = [
            transport.read(topic, beginning(transport, topic))[0] for transport in (signed, log)
        ]
        assert list(records[0]) == list(records[1]) != [], "none is left out"
    publish(replace(request, made_at=2.0))
    request_publisher(config)(replace(request, made_at=3.0))
    assert requests_rejected(config) == ["cluster"] * 3, (
        "all three signatures count, of the old key and of the new one"
    )


def test_on_kafka_too_requests_count_when_an_operator_or_the_server_has_signed_them(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    file = tmp_path / "plant.toml"
    text = FILE.replace("sqlite:federation.db", f"kafka://{kafka_bootstrap}")
    file.write_text(text.replace('"plant"', f'"plant-{uuid.uuid4().hex[:8]}"'), encoding="utf-8")
    for command in ("server", "operator"):
        assert CliRunner().invoke(keys, [command, "--config", str(file)]).exit_code == 0
    config = load_config(file)
    contract = config.contract
    with resumed(open_server(config)):
        pass
    assert CliRunner().invoke(quarantine, ["--config", str(file), "attic"]).exit_code == 0
    request = ClusterName(contract.federation, contract.digest, "clusters", 8, "south", made_at=1.0)
    key = contract.update_key("clusters")
    value = request.encode()
    record = OutboxRecord(contract.updates_topic, value, key, request.headers())
    with closing(open_log(config.log)) as log:
        for more in (
            request_signer(config.server, as_server=True)(record),
            (),
            ((HEADER, PrivateKey(b"c" * 32).sign(value)),),
        ):
            log.publish(record.topic, value, key, record.headers + more)
        log.flush()
    assert CliRunner().invoke(keys, ["server", "--config", str(file), "--rotate"]).exit_code == 0
    topic = contract.rejected_topic
    reasons = list[str]()
    with resumed(open_server(config)) as node, closing(open_log(config.log)) as log:

        def all_are_rejected() -> bool:
            node.step()
            records, _ = log.read(topic, beginning(log, topic))
            reasons[:] = [dict(record.headers)["reason"].decode() for record in records]
            return len(reasons) == 3

        wait_until(all_are_rejected)
        assert [client.client for client in node.status().quarantined] == ["attic"]
    assert reasons == ["cluster", "signature", "signature"], (
        "the first was signed with the key of before"
    )

"""A client compares its contract with the one that the server has published, before it publishes
anything."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shoal.cli.main import shoal
from shoal.client_nodes import client_command
from shoal.client_nodes.bootstrap import open_client
from shoal.client_nodes.snapshots import read_published
from shoal.config.contract import Model, Privacy, Rounds
from shoal.config.resolved import resolve
from shoal.config.settings import Config, load_config
from shoal.errors import ContractDiffers, ContractMissing, LogError
from shoal.protocol.ed25519 import PrivateKey, write_public_keys
from shoal.protocol.published_contract import (
    CONTRACT_KEY,
    PublishedContract,
    check_contract,
    publish_contract,
)
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.transports import open_log
from shoal.transports.base import CODEC, UNREADABLE, Record, TopicSettings
from tests.client_nodes.site import readings
from tests.house.small_federation import all_records, write_federation, write_readings
from tests.small_plant import plant


@pytest.fixture
def agreed(tmp_path: Path) -> Config:
    """The configuration of a federation, whose server has published its contract."""
    config = load_config(write_federation(tmp_path))
    with resumed(open_server(config)):
        pass
    return config


def changed(config: Config, before: str, after: str) -> Config:
    """The configuration from a file in which this text is another one."""
    file = config.server.folder.parent / "federation.toml"
    other = file.with_name("other.toml")
    assert before in file.read_text(encoding="utf-8")
    other.write_text(file.read_text(encoding="utf-8").replace(before, after, 1), encoding="utf-8")
    return load_config(other)


def test_a_client_with_another_contract_publishes_nothing_and_starts_once_it_is_mended(
    agreed: Config,
) -> None:
    write_readings(agreed, "attic", readings(120))
    other = changed(agreed, "high = 50", "high = 60")
    with (
        pytest.raises(
            ContractDiffers, match=r"\n  features\.warm\.high: ours 60; the federation's 50$"
        ),
        resumed(open_client(other, "attic")),
    ):
        pass
    assert not all_records(agreed.log.address, agreed.contract.updates_topic)
    with resumed(open_client(agreed, "attic")) as node:
        while node.step():
            pass
        assert node.totals["learned"] == 120
    assert len(all_records(agreed.log.address, agreed.contract.updates_topic)) == 2


def test_a_new_client_waits_for_the_contract_and_a_known_one_does_not(tmp_path: Path) -> None:
    config = load_config(write_federation(tmp_path))
    with (
        pytest.raises(ContractMissing, match="start `shoal server`"),
        resumed(open_client(config, "attic", needs_contract=True)),
    ):
        pass
    with resumed(open_server(config)), resumed(open_client(config, "attic", needs_contract=True)):
        pass
    (tmp_path / "federation.db").unlink()
    with resumed(open_client(config, "attic", needs_contract=True)):
        pass


def test_a_client_that_cannot_unpack_the_contract_does_not_say_that_no_server_has_published_it(
    tmp_path: Path,
) -> None:
    config = load_config(write_federation(tmp_path))
    topic = config.contract.snapshots_topic
    with closing(open_log(config.log)) as log:
        log.ensure(topic, TopicSettings())
        # As the reader of Kafka gives a record whose codec is not installed.
        log.publish(topic, None, None, ((UNREADABLE, b"UnsupportedCodecError"), (CODEC, b"zstd")))
        log.flush()
        published = read_published(log, config.contract)
    with pytest.raises(ContractMissing, match=r"zstd.*install '\.\[zstd\]'.*topics ensure") as told:
        published.agreed(config.resolved, required=True)
    assert "no server" not in str(told.value)


def test_a_command_that_ends_when_idle_ends_without_a_server_unless_it_need_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_command, "SERVER_START_S", 0.0)
    command = [
        "client",
        "--config",
        str(write_federation(tmp_path)),
        "--name",
        "attic",
        "--until-idle",
        "0",
    ]
    assert isinstance(CliRunner().invoke(shoal, command).exception, LogError)
    assert not (tmp_path / "clients" / "attic" / "noise.key").exists()
    assert CliRunner().invoke(shoal, [*command, "--no-wait"]).exit_code == 0


def test_a_client_that_reads_snapshots_ends_when_a_server_takes_another_contract(
    agreed: Config,
) -> None:
    write_readings(agreed, "attic", readings(40))
    other = changed(agreed, "damp", "dusty")
    with resumed(open_client(agreed, "attic")) as node:
        node.step()
        empty = other.server.model_copy(update={"folder": other.server.folder / "other"})
        with resumed(open_server(other.model_copy(update={"server": empty}), accept_changes=True)):
            pass
        with pytest.raises(
            ContractDiffers, match=r"features\.damp: ours there; the federation's left out"
        ):
            _ = [node.step() for _ in range(100)]


def test_with_a_server_key_only_a_signed_contract_counts(agreed: Config) -> None:
    other = changed(agreed, "high = 50", "high = 60")
    keys = other.server.folder.parent / "server.pub"
    write_public_keys(keys, [PrivateKey(b"k" * 32).public])
    signed = other.model_copy(update={"log": other.log.model_copy(update={"server_keys": keys})})
    with closing(open_log(agreed.log)) as log:
        publish_contract(log, agreed.resolved)
    with pytest.raises(ContractMissing), resumed(open_client(signed, "attic", needs_contract=True)):
        pass


def record_of(message: PublishedContract) -> Record:
    return Record("plant.snapshots", 0, 0, 0, CONTRACT_KEY, message.encode(), message.headers())


WARM, DAMP = plant().features
NAME = "ours left out; the federation's there"


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (
            {"features": (DAMP, WARM)},
            ["features: ours in the order warm, damp; the federation's damp, warm"],
        ),
        (
            {"features": (WARM, DAMP, WARM.model_copy(update={"name": "new"}))},
            [f"features.new: {NAME}"],
        ),
        (
            {
                "models": (
                    Model(
                        name="clusters",
                        algorithm="fcac",
                        options={"a": True},
                        rounds=Rounds(quorum=0.5),
                    ),
                )
            },
            [
                "models.clusters.options.a: ours left out; the federation's true",
                "models.clusters.rounds.quorum: ours 0.8; the federation's 0.5",
            ],
        ),
        (
            {"privacy": Privacy.model_validate({"mode": "formal", "counts_epsilon": 2.0})},
            [
                'privacy.mode: ours "off"; the federation\'s "formal"',
                "privacy.counts_epsilon: ours left out; the federation's 2",
            ],
        ),
    ],
    ids=["order", "feature", "model", "privacy"],
)
def test_an_error_names_each_place_in_which_two_contracts_differ(
    change: dict[str, Any], lines: list[str]
) -> None:
    other = plant().model_copy(update=change)
    theirs = PublishedContract(other.federation, other.digest, other.model_dump_json())
    with pytest.raises(ContractDiffers) as caught:
        check_contract(record_of(theirs), plant())
    assert str(caught.value).split("\n  ")[1:] == lines


def test_what_a_message_says_cannot_change_the_terminal() -> None:
    theirs = PublishedContract("plant", "0" * 32, json.dumps({"federation": "\x1b[2J" + "x" * 999}))
    with pytest.raises(ContractDiffers) as caught:
        check_contract(record_of(theirs), plant())
    assert "\x1b" not in str(caught.value)
    assert max(map(len, str(caught.value).split("\n  ")[1:])) < 210


def test_a_record_that_is_no_contract_or_anothers_keeps_no_client_from_starting() -> None:
    other = record_of(PublishedContract("house", "0" * 32, "{}"))
    assert not check_contract(other, plant())
    assert not check_contract(other._replace(value=b"?"), plant())
    assert check_contract(record_of(PublishedContract.of(resolve(plant()))), plant())

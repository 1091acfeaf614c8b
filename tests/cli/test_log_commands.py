"""`shoal topics` and `shoal rejected` on every transport, as an operator uses them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shoal.config.settings import Config, load_config
from shoal.protocol.messages import Update
from shoal.transports import open_log
from shoal.transports.base import TopicSettings
from tests.forked_python import ForkedPython
from tests.house.small_federation import (
    create_federation,
    final_model,
    run_to_end,
    updates_by_client,
    write_federation,
)

Shoal = Callable[..., subprocess.CompletedProcess[bytes]]
Done = Callable[..., bytes]


@pytest.fixture(scope="module")
def shoal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoal]:
    """Runs a command in a process of its own."""
    with closing(ForkedPython()) as commands:
        yield commands.run


@pytest.fixture(scope="module")
def done(shoal: Shoal) -> Done:
    """Runs a command that must succeed, and returns what it wrote."""

    def run(*words: str | Path) -> bytes:
        ended = shoal(*words)
        assert ended.returncode == 0, ended.stderr.decode()
        return ended.stdout

    return run


@pytest.fixture(params=["sqlite", "kafka"])
def address(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return "sqlite:federation.db"
    return f"kafka://{request.getfixturevalue('kafka_bootstrap')}"


def listed(done: Done, file: Path) -> list[dict[str, object]]:
    return [
        json.loads(line)
        for line in done("rejected", "list", "--config", file, "--json").splitlines()
    ]


def hand_in(config: Config, value: bytes, headers: tuple[tuple[str, bytes], ...]) -> None:
    with closing(open_log(config.log)) as log:
        log.publish(config.contract.updates_topic, value, b"clusters", headers)


def test_topics_are_created_once_and_checked_after_that(
    done: Done, tmp_path: Path, address: str
) -> None:
    file = write_federation(tmp_path, address=address)
    name = load_config(file).contract.federation
    first = json.loads(done("topics", "ensure", "--config", file, "--json"))
    assert set(first) == {
        f"{name}.{kind}" for kind in ("updates", "snapshots", "events", "history", "rejected")
    }
    assert json.loads(done("topics", "ensure", "--config", file, "--json")) == first
    assert b"1 partition, 0 offsets kept" in done("topics", "ensure", "--config", file)


def test_a_topic_with_other_settings_is_an_error_that_names_every_difference(
    shoal: Shoal, tmp_path: Path, address: str
) -> None:
    file = write_federation(tmp_path, address=address)
    config = load_config(file)
    with closing(open_log(config.log)) as log:
        log.ensure(
            config.contract.updates_topic, TopicSettings(partitions=2, record_bytes_max=1000)
        )
    ended = shoal("topics", "ensure", "--config", file)
    assert ended.returncode == 4
    for named in (
        config.contract.updates_topic,
        "partitions is 2",
        "record_bytes_max is 1000",
        "retain_s is None",
    ):
        assert named in ended.stderr.decode()


KEPT = """[log]
partitions = 3
updates_retention_s = 3600
updates_retention_bytes = 5000000
rejected_retention_bytes = 7000000
update_bytes_max = 200000
snapshot_bytes_max = 300000
"""


def test_topics_have_the_settings_of_the_file(
    shoal: Shoal, done: Done, tmp_path: Path, address: str
) -> None:
    file = write_federation(tmp_path, address=address)
    file.write_text(file.read_text(encoding="utf-8").replace("[log]\n", KEPT), encoding="utf-8")
    config = load_config(file)
    result = json.loads(done("topics", "ensure", "--config", file, "--json"))
    assert result[config.contract.updates_topic] == [[0, 0]] * 3
    declared = {
        config.contract.updates_topic: TopicSettings(3, False, 5_000_000, 3600.0, 200_000),
        config.contract.snapshots_topic: TopicSettings(1, True, None, None, 300_000),
        config.contract.rejected_topic: TopicSettings(1, True, 7_000_000, None, 200_000 + 2**20),
    }
    with closing(open_log(config.log.address)) as log:
        for name, settings in declared.items():
            log.ensure(name, settings)
    file.write_text(file.read_text(encoding="utf-8").replace("= 3600", "= 0"), encoding="utf-8")
    ended = shoal("topics", "ensure", "--config", file)
    assert ended.returncode == 4
    assert b"retain_s is 3600.0, not None" in ended.stderr


def test_nothing_rejected_is_an_empty_list(shoal: Shoal, tmp_path: Path, address: str) -> None:
    file = write_federation(tmp_path, address=address)
    listed = shoal("rejected", "list", "--config", file)
    assert (listed.returncode, listed.stdout) == (0, b"")
    assert b"No message has been rejected." in listed.stderr
    ended = shoal("rejected", "show", "--config", file, "house.updates/0/0")
    assert ended.returncode == 4
    assert b"shoal rejected list" in ended.stderr


def test_a_rejected_message_is_shown_whole_and_can_be_published_again(
    done: Done, tmp_path: Path, address: str
) -> None:
    file = create_federation(tmp_path, readings=100, address=address)
    config = load_config(file)
    run_to_end(file)
    before = final_model(file)
    (good,) = updates_by_client(config)["attic"][1]
    fine = good.encode()
    hand_in(config, fine, (("type", b"update"), ("v", b"999")))
    hand_in(config, b"\x00garbage\xff\x1b[2J", (("type", b"upd\x1b[2Jate"), ("v", b"1")))
    run_to_end(file)

    found = listed(done, file)
    assert [entry["reason"] for entry in found] == ["version", "type"]
    assert [entry["bytes"] for entry in found] == [len(fine), len(b"\x00garbage\xff\x1b[2J")]
    origins = [str(entry["origin"]) for entry in found]
    assert done("rejected", "show", "--config", file, origins[0], "--raw") == fine
    shown = done("rejected", "show", "--config", file, origins[1])
    assert b"\x1b" not in shown
    assert b"original.type: upd\\x1b[2Jate" in shown

    done("rejected", "requeue", "--config", file, origins[1])
    assert [entry["origin"] for entry in listed(done, file)] == origins[:1]
    run_to_end(file)
    (again, other) = listed(done, file)
    assert again["origin"] == origins[0]
    assert (other["reason"], other["origin"] != origins[1]) == ("type", True)
    assert final_model(file) == before


def test_a_message_published_again_is_as_it_was(done: Done, tmp_path: Path, address: str) -> None:
    file = create_federation(tmp_path, readings=100, address=address)
    config = load_config(file)
    run_to_end(file)
    hand_in(config, b"unreadable", Update.headers())
    run_to_end(file)
    (entry,) = listed(done, file)
    done("rejected", "requeue", "--config", file, str(entry["origin"]))
    with closing(open_log(config.log)) as log:
        topic = config.contract.updates_topic
        end = log.bounds(topic)[0][1]
        ((record,), _) = log.read(topic, {0: end - 1})
    assert (record.value, record.key, record.headers) == (
        b"unreadable",
        b"clusters",
        Update.headers(),
    )


def test_records_that_no_server_rejected_are_listed_and_not_published(
    shoal: Shoal, done: Done, tmp_path: Path, address: str
) -> None:
    file = write_federation(tmp_path, address=address)
    config = load_config(file)
    done("topics", "ensure", "--config", file)
    updates = config.contract.updates_topic
    origins = ["junk", "elsewhere/0/3", f"{updates}/first/3", f"{updates}/0"]
    with closing(open_log(config.log)) as log:
        for origin in origins:
            log.publish(config.contract.rejected_topic, b"made up", origin.encode())
        log.flush()
        assert [entry["origin"] for entry in listed(done, file)] == origins
        for origin in origins:
            ended = shoal("rejected", "requeue", "--config", file, origin)
            assert ended.returncode == 3
            assert b"no server has rejected this" in ended.stderr
        assert log.bounds(updates) == {0: (0, 0)}

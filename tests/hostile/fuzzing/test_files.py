"""Changed files: the federation file, readings, rules, keys, checkpoints and the embedded log, and
MQTT's payloads.

Whatever is in a file, reading it ends with one of shoal's own errors, or with a value.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from shoal.config.settings import load_config
from shoal.errors import ShoalError
from shoal.producers.files.tables import open_table
from shoal.producers.messages import TopicField, parse_payload
from shoal.producers.mqtt.settings import MqttSettings
from shoal.protocol.signatures import read_keys
from shoal.runtime.checkpoint import Checkpoint
from shoal.server_node.outputs.alert_rules import load_rules
from shoal.transports.base import beginning
from shoal.transports.sqlite.log import SqliteLog
from tests.hostile.fuzzing import corpus, keeping, numbers
from tests.hostile.fuzzing.mutations import changed_bytes, changed_text

EXAMPLE = files("shoal.config").joinpath("example.toml").read_text(encoding="utf-8")
ROUNDS = """
[[models]]
name = "fuzzy"
algorithm = "fcm"
options = { clusters = 3, fuzzifier = 2 }
[models.rounds]
quorum = 0.8
between = "cache"
robust = "median"
"""
WORDS = (
    "federation",
    "features",
    "privacy",
    "models",
    "log",
    "server",
    "name",
    "algorithm",
    "options",
    "rounds",
    "fcac",
    "kmeans",
    "gmm",
    "kfed",
    "formal",
    "off",
    "epsilon_per_reading",
    "low",
    "high",
    "true",
    "clusters",
)
CSV = b"temperature,humidity,time\n" + b"".join(
    b"%d.5,%d,2024-01-01T00:%02d:00Z\n" % (n, n, n) for n in range(20)
)
JSON_LINES = b"".join(
    b'{"temperature": %d.5, "humidity": %d, "time": %d}\n' % (n, n, 10**9 + n) for n in range(20)
)
RULES = b'[[rule]]\nname = "new"\nevents = ["birth", "gone"]\nmodel = "clusters"\n'


def attempt(target: str, number: int | str, content: bytes, read: Callable[[], Any]) -> bool:
    """Whether the content could be read. Raises `AssertionError` for any error but shoal's own."""
    with keeping(target, number, lambda: content):
        try:
            read()
        except ShoalError:
            return False
        except Exception as wrong:
            raise AssertionError(f"case {number}") from wrong
    return True


def test_no_changed_federation_file_makes_its_reader_fail(tmp_path: Path) -> None:
    file = tmp_path / "plant.toml"
    could = Counter[bool]()

    def read() -> None:
        config = load_config(file)
        config.resolved.mode.describe().text()

    def case(number: int | str, content: bytes) -> None:
        file.write_bytes(content)
        could[attempt("federation", number, content, read)] += 1

    for name, content in corpus("federation").items():
        case(name, content)
    for number in numbers("federation", 0.04):
        text = changed_text(
            random.Random(number), EXAMPLE.replace("[log]", f"{ROUNDS}\n[log]", 1), WORDS
        )
        case(number, text.encode("utf-8", "surrogatepass"))
    assert could[False], "some of them are wrong"
    assert could[True], "and some are not"


def test_no_changed_file_of_readings_makes_its_reader_fail(tmp_path: Path) -> None:
    kinds = (("readings.csv", CSV), ("readings.jsonl", JSON_LINES), ("readings.csv.gz", CSV))

    def case(name: str, number: int | str, content: bytes) -> None:
        file = tmp_path / name
        file.write_bytes(content)

        def read() -> None:
            table = open_table(file, Counter())
            table.count()
            for _ in table.rows(
                [column for column in ("temperature", "humidity") if column in table.columns]
            ):
                pass

        attempt(f"table-{name}", number, content, read)

    for name, _ in kinds:
        for found, content in corpus(f"table-{name}").items():
            case(name, found, content)
    for number in numbers("table", 0.03):
        rng = random.Random(number)
        name, whole = rng.choice(kinds)
        case(name, number, changed_bytes(rng, whole, [CSV, JSON_LINES, b"\xff\xfe\0", b'"' * 100]))


def test_no_changed_rules_or_keys_make_their_reader_fail(tmp_path: Path) -> None:
    rules = tmp_path / "alerts.toml"
    key = tmp_path / "attic.key"

    def rules_case(number: int | str, content: bytes) -> None:
        rules.write_bytes(content)
        attempt("rules", number, content, lambda: load_rules(rules))

    def key_case(number: int | str, content: bytes) -> None:
        key.write_bytes(content)
        key.chmod(0o600)
        attempt("key", number, content, lambda: read_keys(key))

    for name, content in corpus("rules").items():
        rules_case(name, content)
    for name, content in corpus("key").items():
        key_case(name, content)
    for number in numbers("rules", 0.01):
        rng = random.Random(number)
        rules_case(number, changed_bytes(rng, RULES, [RULES, EXAMPLE.encode()]))
        key_case(number, changed_bytes(rng, b"0f" * 32 + b"\n", [b"\n", b"zz" * 40]))


def test_no_payload_makes_the_mqtt_producer_fail() -> None:
    settings = MqttSettings()
    wanted = [TopicField(0, "a.b"), TopicField(1, "c")]
    payloads = [b'{"a": {"b": 1.5}, "c": "2"}', b"21.5", b'{"a": [1], "c": null}', b"[" * 2000]

    def case(number: int | str, payload: bytes) -> None:
        for topic in (wanted, [TopicField(0, "")]):
            read = partial(parse_payload, payload, topic, settings, 1e9)
            assert attempt("payload", number, payload, read)

    for name, content in corpus("payload").items():
        case(name, content)
    for number in numbers("payload", 0.02):
        rng = random.Random(number)
        case(number, changed_bytes(rng, rng.choice(payloads), payloads))


@pytest.mark.parametrize("kind", ["checkpoint", "log"])
def test_no_damaged_database_makes_its_reader_fail(tmp_path: Path, kind: str) -> None:
    whole = tmp_path / "whole.db"
    if kind == "checkpoint":
        with Checkpoint(whole, "a test") as checkpoint:
            checkpoint.save({"version": 1, "rows": [1, 2, 3]})
    else:
        with closing(SqliteLog(whole, durable=False)) as log:
            log.ensure("plant.updates")
            for number in range(50):
                log.publish("plant.updates", b"x" * 40, str(number).encode())
            log.flush()
    content = whole.read_bytes()

    def case(number: int | str, damaged: bytes) -> None:
        file = tmp_path / f"{number}.db"
        file.write_bytes(damaged)

        def read() -> None:
            if kind == "checkpoint":
                with Checkpoint(file, "a test") as checkpoint:
                    assert checkpoint.load() in (None, {"version": 1, "rows": [1, 2, 3]})
                return
            with closing(SqliteLog(file, durable=False)) as log:
                at = beginning(log, "plant.updates")
                log.read("plant.updates", at)
                log.bounds("plant.updates")

        attempt(kind, number, damaged, read)
        for left in tmp_path.glob(f"{number}.db*"):
            left.unlink()

    for name, damaged in corpus(kind).items():
        case(name, damaged)
    for number in numbers(kind, 0.005):
        rng = random.Random(number)
        case(number, changed_bytes(rng, changed_bytes(rng, content, [content]), [content]))

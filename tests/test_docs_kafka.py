"""The operating page's words about Kafka, held against what is declared."""

from __future__ import annotations

from pathlib import Path

from small_plant import plant

from server_node.joining import PATIENCE_PARTS, WAITING_BYTES_MAX, WAITING_MAX
from shoal.messages import PARTS_MAX
from shoal.parts import UPDATE_BYTES_MAX
from shoal.running import WAIT_FIRST_S, WAIT_MAX_S
from shoal.settings import ClientSettings, LogSettings
from shoal.topics import declared_topics
from shoal.transports.kafka import IN_FLIGHT_BYTES_MAX
from shoal.transports.kafka_settings import MIB, configs_of
from shoal.transports.kafka_trouble import _FOR_GOOD, _FOR_NOW

UPDATES, SNAPSHOTS, REJECTED = declared_topics(plant(), LogSettings()).values()
PAGE = " ".join((Path(__file__).parent.parent / "docs" / "operating.md").read_text(encoding="utf-8").split())


def test_the_table_of_topics_is_the_one_that_is_declared() -> None:
    days = UPDATES.retain_s
    assert days is not None
    largest = [s.record_bytes_max // 1024 for s in (UPDATES, SNAPSHOTS, REJECTED)]
    assert f"| model | 1 | {days / 86400:.0f} days | {largest[0]} KiB |" in PAGE
    assert f"| model | 1 | newest per model (compacted) | {largest[1] // 1024} MiB |" in PAGE
    kept = (REJECTED.retain_bytes or 0) // MIB
    assert f"| topic/partition/offset | 1 | newest per key, {kept} MiB | {largest[2]} KiB |" in PAGE


def test_the_limits_that_the_page_gives_are_those_of_the_code() -> None:
    spool_gib = ClientSettings().readings_bytes_max // 1024**3
    assert f"`readings_bytes_max` of `[client]` (by default {spool_gib} GiB" in PAGE
    assert f"at most {IN_FLIGHT_BYTES_MAX // MIB} MiB are on their way" in PAGE
    assert f"tries again after {WAIT_FIRST_S} s, then at most every {WAIT_MAX_S:.0f} s" in PAGE
    assert configs_of(UPDATES, 3)["min.insync.replicas"] == "2"
    assert "min.insync.replicas" not in configs_of(UPDATES, 0)


def test_the_bounds_of_updates_in_parts_are_those_of_the_code() -> None:
    assert f"An update may have {UPDATE_BYTES_MAX // MIB} MiB in {PARTS_MAX} parts" in PAGE
    assert f"No more than {WAITING_MAX} updates and {WAITING_BYTES_MAX // MIB} MiB wait" in PAGE
    assert f"nothing was heard for {PATIENCE_PARTS} parts" in PAGE


def test_each_reason_that_a_broker_gives_can_be_looked_up() -> None:
    for meaning in ("do not accept the user or the secret", "certificate is not one we trust"):
        assert meaning in PAGE
        assert any(meaning in said for said in _FOR_GOOD.values())
    for meaning in ("nobody listens there", "the host's name is not known", "they hang up when spoken to"):
        assert meaning in PAGE
        assert any(meaning in said for said in _FOR_NOW.values())


def test_every_setting_of_the_log_is_on_the_page() -> None:
    shown = {"certificate_file", "key_file", "user", "address", "secret_file", "ca_file"}
    of_topics = set(LogSettings.model_fields) - shown
    assert [name for name in sorted(of_topics) if f"`{name}" not in PAGE and f"`[log] {name}" not in PAGE] == []

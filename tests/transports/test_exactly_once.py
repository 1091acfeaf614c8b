"""The check of the brokers' transactions at the start of a replica, and of a host of a group."""

from __future__ import annotations

from contextlib import closing

import pytest

from shoal.errors import SettingsError

pytest.importorskip("kafka")

from kafka import KafkaAdminClient

from shoal.transports.kafka.exactly_once import (
    CONFIGS,
    OFFSETS_VERIFIED,
    RECORDS_VERIFIED,
    check_transactions,
    newest_metadata_version,
    weaknesses,
)
from shoal.transports.kafka.settings import KafkaSettings

SAFE = dict(zip(CONFIGS, ("true", "false", "2"), strict=True))
VERIFIES, UNCLEAN, IN_SYNC = CONFIGS


def test_brokers_as_they_should_be_have_no_weakness() -> None:
    assert weaknesses(dict.fromkeys("123", SAFE), 30) == []
    assert weaknesses({"1": {**SAFE, IN_SYNC: "1"}}, 30) == [], "one broker has no other to confirm"


def test_brokers_that_do_not_verify_transactions_are_refused() -> None:
    without = {name: value for name, value in SAFE.items() if name != VERIFIES}
    with pytest.raises(SettingsError, match="brokers 2 are older"):
        weaknesses({"1": SAFE, "2": without}, 30)
    with pytest.raises(SettingsError, match="is off on the brokers 2"):
        weaknesses({"1": SAFE, "2": {**SAFE, VERIFIES: "false"}}, 30)


@pytest.mark.parametrize(
    ("change", "level", "said"),
    [({}, 14, "Kafka 3.6"), ({UNCLEAN: "true"}, 30, UNCLEAN), ({IN_SYNC: "1"}, 30, IN_SYNC)],
)
def test_what_is_weaker_than_it_could_be_is_said(
    change: dict[str, str], level: int, said: str
) -> None:
    (reason,) = weaknesses({number: {**SAFE, **change} for number in "123"}, level)
    assert said in reason


def test_a_real_broker_is_read(kafka_bootstrap: str, caplog: pytest.LogCaptureFixture) -> None:
    check_transactions(f"//{kafka_bootstrap}", KafkaSettings())
    assert not caplog.records


def test_the_version_of_brokers_is_known_without_a_right(kafka_bootstrap: str) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin:
        features = admin.describe_features()
    assert newest_metadata_version(features) > OFFSETS_VERIFIED > RECORDS_VERIFIED
    assert newest_metadata_version({"metadata.version": {"supported": (1, 11)}}) == 11
    assert newest_metadata_version({}) == OFFSETS_VERIFIED


def test_brokers_of_another_level_are_refused_before_any_right_is_asked_for(
    kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the newest Kafka were the first that verifies: all that there are would be too old.
    monkeypatch.setattr("shoal.transports.kafka.exactly_once.RECORDS_VERIFIED", 10**6)
    with pytest.raises(SettingsError, match=r"older than Kafka 3\.6"):
        check_transactions(f"//{kafka_bootstrap}", KafkaSettings())

"""The check of the brokers' transactions at the start of a replica."""

from __future__ import annotations

import pytest

from shoal.config.settings import LogSettings
from shoal.errors import SettingsError

pytest.importorskip("kafka")

from shoal.server_node.replicas.exactly_once import CONFIGS, check_transactions, weaknesses
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
    check_transactions(LogSettings(address=f"kafka://{kafka_bootstrap}"), KafkaSettings())
    assert not caplog.records

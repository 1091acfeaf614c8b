"""`shoal wake` starts new rounds of a sleeping model by a message in the log."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.config.settings import load_config
from shoal.errors import SettingsError
from shoal.onebox.federation import OneBox
from shoal.protocol.messages import Wake
from shoal.server_node.models.rounds import RoundsModel
from shoal.server_node.outputs.wake_command import wake
from shoal.transports import open_log
from tests.house.rounds_federation import KMEANS, create_rounds_federation
from tests.house.small_federation import CLIENTS, all_records, clock, create_federation

FCAC = '[[models]]\nname = "clusters"\nalgorithm = "fcac"\n'


def version_of(box: OneBox) -> int:
    model = box.server.models()["heaps"]
    assert isinstance(model, RoundsModel)
    assert model.sleeping
    assert model.snapshot is not None
    return model.snapshot.version


def test_a_federation_without_models_in_rounds_has_nothing_to_wake(tmp_path: Path) -> None:
    ended = CliRunner().invoke(wake, ["--config", str(create_federation(tmp_path)), "--json"])
    assert json.loads(ended.output) == {"wake_requested": []}


def test_a_sleeping_model_starts_new_rounds_once_when_it_is_woken(tmp_path: Path) -> None:
    file = create_rounds_federation(tmp_path, FCAC + KMEANS)
    with OneBox(load_config(file), CLIENTS, clock) as box:
        box.run_until_idle()
        before = version_of(box)
        ended = CliRunner().invoke(wake, ["--config", str(file)])
        assert (ended.exit_code, ended.output) == (0, "wake requested: heaps\n")
        box.run_until_idle()
        assert version_of(box) > before
        after = version_of(box)
        box.run_until_idle()
        assert version_of(box) == after


def test_a_server_that_was_away_reads_the_wake_when_it_returns(tmp_path: Path) -> None:
    file = create_rounds_federation(tmp_path, KMEANS)
    with OneBox(load_config(file), CLIENTS, clock) as box:
        box.run_until_idle()
        before = version_of(box)
    assert CliRunner().invoke(wake, ["--config", str(file), "--model", "heaps"]).exit_code == 0
    with OneBox(load_config(file), CLIENTS, clock) as box:
        box.run_until_idle()
        assert version_of(box) > before


def test_a_model_without_rounds_cannot_be_woken(tmp_path: Path) -> None:
    file = create_rounds_federation(tmp_path, FCAC + KMEANS)
    for name in ("clusters", "nobody"):
        ended = CliRunner().invoke(wake, ["--config", str(file), "--model", name])
        assert isinstance(ended.exception, SettingsError)
        assert "in rounds: heaps" in str(ended.exception)


@pytest.mark.parametrize(
    ("reason", "wrong"),
    [("model", {"model": "clusters"}), ("model", {"model": "no"}), ("contract", {"contract": "0"})],
)
def test_an_invalid_wake_is_rejected(tmp_path: Path, reason: str, wrong: dict[str, str]) -> None:
    config = load_config(create_rounds_federation(tmp_path, FCAC + KMEANS))
    parts = {"federation": "house", "contract": config.contract.digest, "model": "heaps", **wrong}
    with OneBox(config, CLIENTS, clock) as box, closing(open_log(config.log)) as log:
        log.publish(
            config.contract.updates_topic,
            Wake(**parts, made_at=1.0).encode(),
            b"heaps",
            Wake.headers(),
        )
        log.flush()
        box.run_until_idle()
    [rejected] = all_records(config.log.address, config.contract.rejected_topic)
    assert dict(rejected.headers)["reason"] == reason.encode()

"""A model is the same bit for bit on Kafka or embedded, on one partition or several."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path

import pytest

from shoal.config.settings import Config, load_config
from shoal.errors import LogError
from shoal.onebox.federation import OneBox
from shoal.protocol.codec import pack
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.models.rounds import RoundsModel
from shoal.transports.base import partition_of
from tests.house.rounds_federation import create_rounds_federation
from tests.house.small_federation import CLIENTS, all_records, clock

NAMES = ("clusters", "heaps", "fuzzy")
MODELS = """
[[models]]
name = "clusters"
algorithm = "fcac"

[[models]]
name = "heaps"
algorithm = "kmeans"
source = "clusters"
options = { clusters = 5 }
[models.rounds]
quorum = 1

[[models]]
name = "fuzzy"
algorithm = "fcm"
source = "clusters"
options = { clusters = 3 }
[models.rounds]
quorum = 1
"""


def on_partitions(file: Path, partitions: int) -> Config:
    config = load_config(file)
    return config.model_copy(
        update={"log": config.log.model_copy(update={"partitions": partitions})}
    )


def spreading_name() -> str:
    """A new name of a federation whose three models belong to three different partitions."""
    while True:
        name = f"house-{uuid.uuid4().hex}"
        if len({partition_of(f"{name}/{model}".encode(), 3) for model in NAMES}) == 3:
            return name


def models_after(config: Config) -> dict[str, bytes]:
    """name -> state of the model, encoded, when all processes are idle."""
    with OneBox(config, CLIENTS, clock) as box:
        box.run_until_idle()
        return {
            name: pack(model.params if isinstance(model, RoundsModel) else model.state()["half"])
            for name, model in box.server.models().items()
        }


@pytest.mark.parametrize(
    ("where", "partitions"),
    [
        ("sqlite", 3),
        pytest.param("kafka", 1, marks=pytest.mark.integration),
        ("kafka", 3),
    ],
)
def test_models_on_kafka_with_three_partitions_are_those_of_one_embedded_partition(
    where: str, partitions: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    # The random start depends on the federation's name, so both have the same.
    name = spreading_name()
    for folder in (one := tmp_path / "one", other := tmp_path / "other"):
        folder.mkdir()
        file = create_rounds_federation(folder, MODELS)
        file.write_text(
            file.read_text(encoding="utf-8").replace('name = "house"', f'name = "{name}"'), "utf-8"
        )
    config = on_partitions(other / "federation.toml", partitions)
    if where == "kafka":
        address = f"kafka://{request.getfixturevalue('kafka_bootstrap')}"
        config = config.model_copy(
            update={"log": config.log.model_copy(update={"address": address})}
        )
    alone = models_after(on_partitions(one / "federation.toml", 1))
    assert models_after(config) == alone
    assert len(alone) == 3
    places = Counter(
        (r.partition, r.key) for r in all_records(config.log.address, config.contract.updates_topic)
    )
    assert {partition for partition, _ in places} == set(range(partitions))
    assert all(partition == partition_of(key, partitions) for partition, key in places)


def test_a_log_with_another_number_of_partitions_is_refused(tmp_path: Path) -> None:
    file = create_rounds_federation(tmp_path, MODELS)
    with resumed(open_server(on_partitions(file, 1), clock=clock)):
        pass
    with (
        pytest.raises(LogError, match="partitions is 1, not 3"),
        resumed(open_server(on_partitions(file, 3))),
    ):
        pass

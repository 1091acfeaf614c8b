"""The builder of federation files for tests writes TOML that shoal reads as it was meant."""

from __future__ import annotations

import tomllib
from pathlib import Path

from shoal.config.settings import load_config
from tests.federation_text import WARM, federation_text


def test_what_is_not_named_is_a_plant_that_shoal_accepts(tmp_path: Path) -> None:
    file = tmp_path / "plant.toml"
    file.write_text(federation_text(), encoding="utf-8")
    contract = load_config(file).contract
    assert contract.federation == "plant"
    assert [feature.name for feature in contract.features] == ["warm", "damp"]
    assert [model.name for model in contract.models] == ["clusters"]


def test_every_kind_of_value_comes_back_from_toml() -> None:
    text = federation_text(
        'a "name"',
        features=[{**WARM, "unit": "°C", "values": ["a", "b"]}],
        models=[{"name": "m", "options": {"grow_readings": 3, "share": 0.5}}],
        log={"sync": True, "retain_bytes": 10},
        kafka={},
    )
    read = tomllib.loads(text)
    assert read["federation"] == {"name": 'a "name"'}
    assert read["features"] == [{**WARM, "unit": "°C", "values": ["a", "b"]}]
    assert read["models"] == [{"name": "m", "options": {"grow_readings": 3, "share": 0.5}}]
    assert read["log"] == {"sync": True, "retain_bytes": 10}
    assert read["kafka"] == {}
    assert list(read) == ["federation", "features", "privacy", "models", "log", "kafka"]

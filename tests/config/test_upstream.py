"""The upstream federation of a region: what must be the same, and what is refused with the
difference in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.check import check
from shoal.config.settings import load_config
from shoal.config.upstream import load_upstream
from shoal.errors import SettingsError

FEDERATION = """
[federation]
name = "{name}"
[[features]]
name = "warm"
low = -10
high = {high}
[privacy]
mode = "formal"
epsilon_per_reading = 4
counts_epsilon = {epsilon}
[[models]]
name = "rooms"
algorithm = "{algorithm}"
readings_max = {most}
[[models]]
name = "{second}"
algorithm = "{second_algorithm}"
"""
DEFAULTS = {
    "high": 50,
    "epsilon": 4,
    "algorithm": "density_tree",
    "most": 10**6,
    "second": "others",
    "second_algorithm": "cluster_tree",
}


def write(folder: Path, name: str, above: str = "", **changed: object) -> Path:
    """The file of a federation, below another one if that is named."""
    file = folder / f"{name}.toml"
    text = FEDERATION.format(name=name, **{**DEFAULTS, **changed})
    for algorithm in ("kmeans", "kfed"):
        text = text.replace(f'"{algorithm}"\n', f'"{algorithm}"\nsource = "rooms"\n')
    file.write_text(
        text + (f'[upstream]\nfile = "{above}.toml"\n' if above else ""), encoding="utf-8"
    )
    return file


def test_a_federation_without_the_section_has_no_upstream_federation(tmp_path: Path) -> None:
    assert load_upstream(load_config(write(tmp_path, "north"))) is None


def test_a_region_contributes_to_the_models_of_the_same_name(tmp_path: Path) -> None:
    write(tmp_path, "world", second="elsewhere")
    upstream = load_upstream(load_config(write(tmp_path, "north", "world")))
    assert upstream is not None
    assert upstream.config.contract.federation == "world"
    assert upstream.models == ("rooms",)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"high": 60}, "feature warm: high is 50.0, there it is 60.0"),
        ({"epsilon": 2}, "[privacy]: counts_epsilon is 4.0, there it is 2.0"),
        (
            {"algorithm": "cluster_tree"},
            "model rooms: algorithm is density_tree, there it is cluster_tree",
        ),
        ({"most": 10**5}, "model rooms: readings_max is 1000000, above 100000 there"),
        (
            {"second": "a", "algorithm": "fcac"},
            "model rooms: algorithm is density_tree, there it is fcac",
        ),
    ],
)
def test_contracts_that_do_not_fit_are_refused_with_what_differs(
    tmp_path: Path, changed: dict[str, object], said: str
) -> None:
    write(tmp_path, "world", **changed)
    with pytest.raises(SettingsError, match="north cannot be a region of world") as refused:
        load_upstream(load_config(write(tmp_path, "north", "world")))
    assert said in str(refused.value)


def test_other_features_and_no_common_model_are_named(tmp_path: Path) -> None:
    world = write(tmp_path, "world", second="a")
    text = (
        world.read_text(encoding="utf-8").replace('"warm"', '"cold"').replace('"rooms"', '"halls"')
    )
    world.write_text(text, encoding="utf-8")
    with pytest.raises(
        SettingsError,
        match="its features are warm, there they are cold; no model has the same name",
    ):
        load_upstream(load_config(write(tmp_path, "north", "world")))


@pytest.mark.parametrize("algorithm", ["dbscan", "kfed", "cluster_tree_from_counts"])
def test_an_algorithm_that_regions_cannot_contribute_to_is_refused(
    tmp_path: Path, algorithm: str
) -> None:
    write(tmp_path, "world", second_algorithm=algorithm)
    with pytest.raises(
        SettingsError, match=f"model others: a region cannot contribute to {algorithm} "
    ):
        load_upstream(load_config(write(tmp_path, "north", "world", second_algorithm=algorithm)))


def test_a_region_does_not_combine_answers_robustly(tmp_path: Path) -> None:
    write(tmp_path, "world", second_algorithm="kmeans")
    region = write(tmp_path, "north", "world", second_algorithm="kmeans")
    text = region.read_text(encoding="utf-8")
    robust = '"kmeans"\nreadings_max = 1000\nrounds = { robust = "median" }\n'
    region.write_text(text.replace('"kmeans"\n', robust), encoding="utf-8")
    with pytest.raises(
        SettingsError, match='model others: robust is "median", but a region adds up'
    ):
        load_upstream(load_config(region))


def test_such_a_model_may_stay_in_the_region_under_another_name(tmp_path: Path) -> None:
    write(tmp_path, "world", second_algorithm="kmeans")
    upstream = load_upstream(
        load_config(write(tmp_path, "north", "world", second="own", second_algorithm="kmeans"))
    )
    assert upstream is not None
    assert upstream.models == ("rooms",)


@pytest.mark.parametrize("above", [["north"], ["world", "north"], ["world", "continent", "world"]])
def test_federations_in_a_circle_are_refused(tmp_path: Path, above: list[str]) -> None:
    names = ["north", *above]
    for name, next_one in zip(names, above, strict=False):
        write(tmp_path, name, next_one)
    with pytest.raises(SettingsError, match=f"{' -> '.join(names)} is a circle"):
        load_upstream(load_config(tmp_path / "north.toml"))


def test_several_levels_are_no_circle(tmp_path: Path) -> None:
    write(tmp_path, "world")
    write(tmp_path, "continent", "world")
    assert load_upstream(load_config(write(tmp_path, "north", "continent"))) is not None


def test_the_file_of_a_level_further_up_need_not_be_on_this_machine(tmp_path: Path) -> None:
    write(tmp_path, "continent", "elsewhere")
    assert load_upstream(load_config(write(tmp_path, "north", "continent"))) is not None


def test_shoal_check_says_what_the_region_contributes_to_or_what_is_wrong(tmp_path: Path) -> None:
    write(tmp_path, "world")
    file = write(tmp_path, "north", "world")
    said = CliRunner().invoke(check, [str(file), "--all"], catch_exceptions=False).output
    assert "region of   world" in said
    assert "contributes to rooms, others" in said
    assert "upstream    publish_readings = 10000" in said
    assert '"models": [\n      "rooms",' in CliRunner().invoke(check, [str(file), "--json"]).output
    write(tmp_path, "world", high=60)
    refused = CliRunner().invoke(check, [str(file)])
    assert isinstance(refused.exception, SettingsError)

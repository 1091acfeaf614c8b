"""The contract: every error is one line that names the place and what would be right, and the
digest identifies it."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

import pytest

from shoal.config.base import check_client_name
from shoal.config.contract import FEATURES_MAX, load_contract, parse_contract
from shoal.errors import SettingsError
from tests.federation_text import federation_text

WHOLE = federation_text(
    features=[
        {"name": "temperature", "unit": "°C", "low": -10, "high": 50.5, "share": 2},
        {"name": "humidity", "low": 0, "high": 100},
    ],
    privacy={"mode": "formal", "epsilon_per_reading": 4},
    models=[
        {
            "name": "clusters",
            "algorithm": "fcac",
            "options": {"edge_factor": 1, "similarity": "cae"},
        }
    ],
)


def tables() -> dict[str, Any]:
    return tomllib.loads(WHOLE)


def put(path: str, value: Any) -> dict[str, Any]:
    """The tables with one entry replaced; None removes it."""
    *way, last = path.split(".")
    changed = place = tables()
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place[step]
    if value is None:
        del place[last]
    elif isinstance(place, list):
        place[int(last)] = value
    else:
        place[last] = value
    return changed


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "federation.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_an_empty_file_is_an_error_that_lists_everything_missing() -> None:
    with pytest.raises(SettingsError) as rejected:
        parse_contract({}, "x.toml")
    expected = (
        "x.toml: federation.name: is missing; features: is missing; privacy: is missing; models: is"
        " missing"
    )
    assert str(rejected.value) == expected


def test_a_complete_file_becomes_the_contract(tmp_path: Path) -> None:
    contract = load_contract(written(tmp_path, WHOLE))
    assert (contract.federation, contract.width) == ("plant", 2)
    assert contract.features[0].unit == "°C"
    assert contract.features[1].share == 1.0
    model = contract.model("clusters")
    assert model is not None
    assert model.options == {"edge_factor": 1, "similarity": "cae"}
    assert contract.model("others") is None
    assert contract.updates_topic == "plant.updates"


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("federation.name", "Plant", "federation.name: must be 1 to 64 of a-z"),
        ("federation.name", "plant-", "federation.name: must be 1 to 64 of a-z"),
        ("federation.name", "p" * 65, "federation.name: must be 1 to 64 of a-z"),
        ("federation.name", 7, "federation.name: should be a valid string"),
        ("federation.topic", "t", "[federation] holds `name`, `revision` and nothing else"),
        ("federation", "plant", "[federation] holds `name`, `revision` and nothing else"),
        ("features", [], "features: at least 1 is needed"),
        ("features", {}, "features: must be a list of tables"),
        ("features.0", 5, "features[1]: must be a table"),
        ("features.0.name", None, "features[1].name: is missing"),
        ("features.0.name", "", "features[1].name: String should have at least 1 character"),
        (
            "features.0.name",
            "a\nb",
            "features[1].name: contains a character that cannot be printed",
        ),
        ("features.0.name", "n" * 65, "features[1].name: String should have at most 64 characters"),
        (
            "features.0.unit",
            "\x1b[31m",
            "features[1].unit: contains a character that cannot be printed",
        ),
        ("features.0.low", None, "features[1].low: is missing"),
        ("features.0.low", "low", "features[1].low: should be a valid number"),
        ("features.0.low", "0", "features[1].low: should be a valid number"),
        ("features.0.low", True, "features[1].low: should be a valid number"),
        ("features.0.low", float("nan"), "features[1].low: should be a finite number"),
        ("features.0.low", float("-inf"), "features[1].low: should be a finite number"),
        ("features.0.low", 50.5, "features[1]: low 50.5 is not below high 50.5"),
        ("features.1.high", -1, "features[2]: low 0 is not below high -1"),
        ("features.0.high", 10**400, "features[1].high: should be a valid number"),
        ("features.0.share", 0, "features[1].share: should be greater than 0"),
        ("features.0.share", 2e6, "features[1].share: should be less than or equal to 1000000"),
        ("features.0.hihg", 3, "features[1].hihg: unknown name; remove it or correct its spelling"),
        ("features.1.name", "temperature", "there are two features 'temperature'"),
        ("features.1.name", " temperature ", "there are two features 'temperature'"),
        ("privacy", None, "privacy: is missing"),
        ("privacy", "off", "privacy: must be a table"),
        ("privacy.mode", None, "privacy.mode: is missing"),
        (
            "privacy.mode",
            "none",
            "privacy: unknown privacy mode 'none'; there are: formal, masked, off, paper",
        ),
        (
            "privacy.mode",
            "off",
            'privacy: epsilon_per_reading means nothing in mode = "off"; leave it out',
        ),
        (
            "privacy.mode",
            "paper",
            'privacy: epsilon_per_reading means nothing in mode = "paper"; leave it out',
        ),
        ("privacy", {"mode": "paper"}, 'privacy: mode = "paper" needs epsilon_nominal_per_feature'),
        ("privacy.epsilon_per_reading", None, 'privacy: mode = "formal" needs epsilon_per_reading'),
        (
            "privacy.epsilon_per_reading",
            0,
            "privacy: epsilon_per_reading must be above 0 and at most 1e+06",
        ),
        ("privacy.epsilon_per_reading", float("inf"), "privacy.epsilon_per_reading: should be"),
        (
            "privacy.epsilon_per_reading",
            1e7,
            "privacy: epsilon_per_reading must be above 0 and at most 1e+06",
        ),
        (
            "privacy.epsilon_nominal_per_feature",
            1,
            "privacy: epsilon_nominal_per_feature means nothing",
        ),
        ("models", [], "models: at least 1 is needed"),
        ("models.0.name", "Clusters", "models[1].name: must be 1 to 64 of a-z"),
        ("models.0.algorithm", None, "models[1].algorithm: is missing"),
        ("models.0.options", 3, "models[1].options: must be a table"),
        (
            "models.0.options.x",
            [1],
            "models[1].options: x must be true or false, a finite number, or a text",
        ),
        (
            "models.0.options.x",
            float("nan"),
            "models[1].options: x must be true or false, a finite number",
        ),
    ],
)
def test_every_error_names_the_place_and_what_would_be_right(
    path: str, value: Any, expected: str
) -> None:
    with pytest.raises(SettingsError) as rejected:
        parse_contract(put(path, value), "x.toml")
    line = str(rejected.value)
    assert line.startswith(f"x.toml: {expected}")
    assert "\n" not in line
    assert rejected.value.exit_code == 2


def test_an_error_in_the_only_feature_is_not_reported_as_a_missing_feature() -> None:
    one = put("features", [{"name": "a", "low": 1, "high": 0}])
    with pytest.raises(SettingsError) as rejected:
        parse_contract(one, "x.toml")
    assert str(rejected.value).startswith("x.toml: features[1]: low 1 ")
    assert str(rejected.value).endswith(" high 0")


def test_bounds_too_far_apart_to_calculate_with_are_an_error() -> None:
    with pytest.raises(SettingsError, match="too far apart"):
        parse_contract(put("features.0", {"name": "a", "low": -1e308, "high": 1e308}))


def test_ten_thousand_features_are_one_short_error() -> None:
    features = [{"name": f"f{i}", "low": 0, "high": 1} for i in range(10_000)]
    with pytest.raises(
        SettingsError, match=f"features: there are .* at most {FEATURES_MAX} are possible"
    ):
        parse_contract(put("features", features))


def test_the_largest_number_of_features_is_accepted() -> None:
    features = [{"name": f"f{i}", "low": 0, "high": 1} for i in range(FEATURES_MAX)]
    assert parse_contract(put("features", features)).width == FEATURES_MAX


def test_many_errors_are_one_line_of_limited_length() -> None:
    features = [{"name": f"f{i}", "low": 0} for i in range(FEATURES_MAX)]
    with pytest.raises(SettingsError) as rejected:
        parse_contract(put("features", features), "x.toml")
    assert str(rejected.value).endswith(f"; and {FEATURES_MAX - 10} more")
    assert len(str(rejected.value)) < 1000


def test_no_more_than_64_models() -> None:
    models = [{"name": f"m{i}", "algorithm": "fcac"} for i in range(65)]
    with pytest.raises(SettingsError, match="models: there are 65, at most 64 are possible"):
        parse_contract(put("models", models))
    assert parse_contract(put("models", models[:64]))
    with pytest.raises(SettingsError, match="there are two models 'm1'"):
        parse_contract(put("models", [*models[:3], models[1]]))


def test_a_contract_never_changes() -> None:
    contract = parse_contract(tables())
    with pytest.raises(ValueError, match="frozen"):
        contract.federation = "other"


# The digest.


def digest_of(changed: dict[str, Any]) -> str:
    return parse_contract(changed).digest


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("features.0.low", -10.0),
        ("features.0.share", 2.0),
        ("features.1.share", 1),
        ("features.1.unit", ""),
        ("privacy.epsilon_per_reading", 4.0),
        ("models.0.options.edge_factor", 1.0),
        ("features.0.name", "temperature "),
    ],
)
def test_the_digest_does_not_depend_on_how_a_value_is_written(path: str, value: Any) -> None:
    assert digest_of(put(path, value)) == digest_of(tables())


def test_the_digest_does_not_depend_on_the_order_of_names() -> None:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: turned(value[name]) for name in reversed(value)}
        return [turned(inner) for inner in value] if isinstance(value, list) else value

    assert list(turned(tables())["features"][0]) != list(tables()["features"][0])
    assert digest_of(turned(tables())) == digest_of(tables())


def test_empty_options_are_no_options() -> None:
    assert digest_of(put("models.0.options", {})) == digest_of(put("models.0.options", None))


def test_other_sections_are_not_part_of_the_digest() -> None:
    assert digest_of(
        tables() | {"log": {"address": "sqlite:x.db"}, "client": {"label": True}}
    ) == digest_of(tables())


CHANGES = [
    ("federation.name", "plant2"),
    ("features.0.name", "temp"),
    ("features.0.unit", "K"),
    ("features.0.low", -10.000000000000002),
    ("features.0.high", 51),
    ("features.0.share", 1),
    ("privacy.epsilon_per_reading", 4.0000000000000009),
    ("privacy", {"mode": "off"}),
    ("privacy", {"mode": "paper", "epsilon_nominal_per_feature": 4}),
    ("models.0.name", "c"),
    ("models.0.algorithm", "other"),
    ("models.0.options.edge_factor", 2),
    ("models.0.options.edge_factor", True),
    ("models.0.options.edge_factor", "1"),
    ("models.0.options.similarity", None),
    ("models.0.options.nodes_max", 100),
]


def test_the_digest_differs_for_every_difference_in_the_contract() -> None:
    reordered = put("features", list(reversed(tables()["features"])))
    fewer = put("features", tables()["features"][:1])
    more = put("models", [*tables()["models"], {"name": "second", "algorithm": "fcac"}])
    digests = [digest_of(put(path, value)) for path, value in CHANGES]
    digests += [digest_of(changed) for changed in (tables(), reordered, fewer, more)]
    assert len(set(digests)) == len(CHANGES) + 4


def test_the_digest_is_the_same_in_every_release() -> None:
    # Contracts outlive releases: a digest that moved would part every federation from its own
    # messages.
    assert parse_contract(tables()).digest == "7afdbbad2ff3c31b5056ecf6516d7a44"
    assert parse_contract(copy.deepcopy(tables())) == parse_contract(tables())


def test_a_changed_copy_has_its_own_digest() -> None:
    contract = parse_contract(tables())
    before = contract.digest
    assert contract.model_copy(update={"federation": "other"}).digest != before


# The file.


def test_a_missing_file_is_an_error_that_says_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such file; `shoal check --example` prints one"):
        load_contract(tmp_path / "none.toml")


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        load_contract(tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xff\xfe[\x00f\x00", "not UTF-8 text at byte 0; save it as UTF-8"),
        (
            WHOLE.encode().replace("°".encode(), b"\xb0"),
            f"not UTF-8 text at byte {WHOLE.encode().index('°'.encode())}; save it as UTF-8",
        ),
        ("federation = ", "not TOML: "),
        ("a = 1\na = 2", "not TOML: "),
        ("\x00", "not TOML: "),
        ('{"json": 1}', "not TOML: "),
        ("low = " + "9" * 5000, "cannot be read: "),
        ("low = " + "[" * 5000 + "]" * 5000, "cannot be read: "),
    ],
    ids=["utf-16", "latin-1", "cut", "twice", "nul", "json", "digits", "brackets"],
)
def test_a_file_that_is_not_toml_is_a_one_line_error(
    tmp_path: Path, content: str | bytes, expected: str
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(SettingsError) as rejected:
        load_contract(path)
    assert str(rejected.value).startswith(f"{path}: {expected}")
    assert "\n" not in str(rejected.value)


def test_an_impossible_path_is_an_error() -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load_contract(Path("a\0b"))


def test_a_file_with_windows_line_ends_is_the_same_contract(tmp_path: Path) -> None:
    assert load_contract(written(tmp_path, WHOLE.replace("\n", "\r\n"))) == parse_contract(tables())


# Clients.


@pytest.mark.parametrize("name", ["a", "0", "a-b_c", "a" * 64])
def test_a_valid_client_name_is_accepted(name: str) -> None:
    assert check_client_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "A", "a" * 65, "-a", "a_", "a b", "../a", "a/b", "a\n", " a", "ä", "a\0"]
)
def test_an_invalid_client_name_is_an_error(name: str) -> None:
    with pytest.raises(SettingsError, match="1 to 64 of a-z"):
        check_client_name(name)

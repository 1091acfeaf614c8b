"""Row F1: a federation file that is huge, endless, or full of numbers too large or too close to
calculate with."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.config.base import TOML_BYTES_MAX, read_toml
from shoal.config.contract import load_contract
from shoal.errors import SettingsError
from tests.federation_text import federation_text

WHOLE = federation_text(
    features=[{"name": "t", "low": 0, "high": 40}],
    models=[{"name": "m", "algorithm": "cluster_tree"}],
)


def refused(path: Path, content: str) -> str:
    path.write_text(content)
    with pytest.raises(SettingsError) as wrong:
        load_contract(path)
    line = str(wrong.value)
    assert len(line) < 400
    assert "\n" not in line
    return line.removeprefix(f"{path}: ")


def test_a_file_beyond_the_limit_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    assert refused(path, WHOLE + "#" * TOML_BYTES_MAX).startswith("has more than 4 MiB")
    path.write_text(WHOLE + "#" * (TOML_BYTES_MAX - len(WHOLE)))
    assert load_contract(path).federation == "plant"
    with pytest.raises(SettingsError, match="has more than 4 MiB"):
        read_toml(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("instead", "line"),
    [
        (
            "high = 5e-324",
            "features[1]: low 0 and high 4.94066e-324 are too near to calculate with",
        ),
        ("high = " + "9" * 4000, "features[1].high: should be a valid number"),
        ("high = nan", "features[1].high: should be a finite number"),
        ("high = 0x" + "f" * 90_000, "features[1].high: should be a valid number"),
    ],
    ids=["denormal", "4000 digits", "nan", "90000 hexadecimal digits"],
)
def test_bounds_that_nobody_can_calculate_with_are_refused(
    tmp_path: Path, instead: str, line: str
) -> None:
    assert refused(tmp_path / "federation.toml", WHOLE.replace("high = 40", instead)) == line


@pytest.mark.parametrize(
    "digits", ["9223372036854775808", "-" + "9" * 4000], ids=["2^63", "4000 digits"]
)
def test_an_option_that_no_checkpoint_can_hold_is_refused(tmp_path: Path, digits: str) -> None:
    line = refused(tmp_path / "federation.toml", WHOLE + f"options = {{points_max = {digits}}}\n")
    assert line == "models[1].options: points_max must be a number of at most 2^53"


def test_thousands_of_models_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    more = '[[models]]\nname = "m"\nalgorithm = "fcac"\n' * 5000
    assert refused(path, WHOLE + more) == "models: there are 5001, at most 64 are possible"

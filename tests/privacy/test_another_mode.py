"""A mode of another package: contract, table of settings, messages, page and `shoal check` use it
unchanged."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from click.testing import CliRunner

from shoal import plugins
from shoal.cli.check import check
from shoal.cli.settings_table import settings_table
from shoal.config.contract import parse_contract
from shoal.config.resolved import resolve
from shoal.errors import SettingsError
from shoal.plugins import Plugins
from shoal.privacy import Description, Mechanism, PrivacyMode, RowRange, Term, base
from shoal.privacy.off import NoNoise
from shoal.server_node.report.privacy import privacy_text
from tests.federation_text import federation_text

FILE = federation_text(
    features=[{"name": "warm", "low": 0.0, "high": 10.0}], privacy={"mode": "coarse", "steps": 4}
)


class Coarse(PrivacyMode):
    """Rounds readings to a few steps; here it only has to be found and asked."""

    name = "coarse"
    summary = "rounded to steps"
    mechanism_name = "rounding"
    terms: ClassVar = {"steps": Term("steps over the range", above=1, at_most=100)}

    def epsilon_per_feature(self) -> tuple[float, ...]:
        return ()

    def mechanism(self, key: bytes | None, client: str, source: bytes) -> Mechanism:
        return NoNoise(self.bounds)

    def row_range(self) -> RowRange:
        return RowRange(np.zeros(self.bounds.d), np.ones(self.bounds.d))

    def describe(self) -> Description:
        return Description(
            "Rounded readings", "bad", (f"Readings have {self.values['steps']:g} steps.",), ()
        )


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry point that the other package would have."""

    def all_points(group: str) -> list[EntryPoint]:
        added = (
            [EntryPoint("coarse", f"{__name__}:Coarse", group)] if group == "shoal.privacy" else []
        )
        return [*entry_points(group=group), *added]

    monkeypatch.setattr(plugins, "points_of", all_points)
    modes = Plugins("shoal.privacy", "privacy mode", base._is_mode, "a subclass of PrivacyMode")
    monkeypatch.setattr(base, "_MODES", modes)


def tables(**privacy: object) -> dict[str, object]:
    return {
        "federation": {"name": "plant"},
        "features": [{"name": "warm", "low": 0, "high": 10}],
        "privacy": {"mode": "coarse", **privacy},
        "models": [{"name": "clusters", "algorithm": "fcac"}],
    }


def test_a_contract_has_its_terms_and_its_statement_travels() -> None:
    contract = parse_contract(tables(steps=4))
    assert contract.digest != parse_contract(tables(steps=5)).digest
    assert resolve(contract).statement["mechanism"] == "rounding"


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({}, 'privacy: mode = "coarse" needs steps'),
        ({"steps": 1}, "privacy: steps must be above 1 and at most 100"),
        ({"steps": "4"}, "privacy.steps: should be a valid number"),
        (
            {"steps": 4, "epsilon_per_reading": 1},
            'epsilon_per_reading means nothing in mode = "coarse"',
        ),
    ],
)
def test_its_terms_are_checked(privacy: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        parse_contract(tables(**privacy))
    assert message in str(error.value)


def test_the_table_of_settings_lists_its_terms() -> None:
    assert (
        "| `[privacy]` with `coarse` | `steps` | required | > 1, ≤ 100 | steps over the range |"
        in settings_table()
    )


def test_the_page_and_the_command_line_describe_it(tmp_path: Path) -> None:
    panel = privacy_text(resolve(parse_contract(tables(steps=4))))
    assert (panel["title"], panel["sentences"]) == ("Rounded readings", ["Readings have 4 steps."])
    file = tmp_path / "plant.toml"
    file.write_text(FILE, encoding="utf-8")
    checked = CliRunner().invoke(check, [str(file)], catch_exceptions=False)
    assert "privacy     Rounded readings\n            Readings have 4 steps.\n" in checked.output

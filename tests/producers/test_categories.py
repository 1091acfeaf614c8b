"""Categories: text values of files and messages become places of the declared values, and come back
as texts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.streaming import Contribution
from shoal.client_nodes.labelling.labelled_readings import LabelledBlock
from shoal.client_nodes.labelling.writers import CsvWriter
from shoal.config.contract import Contract, parse_contract, range_text, value_text
from shoal.config.settings import load_config
from shoal.errors import SettingsError
from shoal.producers.column_types import Sample
from shoal.producers.columns import understand
from shoal.producers.files.form import FileForm
from shoal.producers.files.replay import Columns, Replay
from shoal.producers.files.split import split_of
from shoal.producers.files.times import TimeOptions
from shoal.producers.init_command import init_command
from shoal.producers.messages import TopicField, parse_payload
from shoal.producers.mqtt.settings import MqttSettings
from shoal.producers.values import Categories
from shoal.protocol.readings import Codes, codes_of
from shoal.server_node.report.description import describe

VALUES = ["closed", "half", "open"]


def agreed(valve: dict[str, Any] | None = None) -> Contract:
    return parse_contract(
        {
            "federation": {"name": "plant"},
            "features": [
                {"name": "warm", "unit": "°C", "low": 0, "high": 40},
                {"name": "valve", **(valve or {"kind": "category", "values": VALUES})},
            ],
            "privacy": {"mode": "off"},
            "models": [{"name": "clusters", "algorithm": "cluster_tree"}],
        }
    )


def test_a_value_is_the_middle_of_an_equal_part_of_the_range() -> None:
    bounds = agreed().bounds
    np.testing.assert_allclose(
        bounds.to_unit(np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]]))[:, 1], [1 / 6, 0.5, 5 / 6]
    )


def test_values_are_spread_so_little_that_the_gaps_between_them_stay() -> None:
    assert agreed().steps.tolist() == [0.0, 0.25]


@pytest.mark.parametrize(
    ("valve", "why"),
    [
        ({"kind": "category"}, "needs values, two or more"),
        ({"kind": "category", "values": ["one"]}, "needs values, two or more"),
        ({"kind": "category", "values": ["a", "a"]}, "must be different texts"),
        ({"kind": "category", "values": ["a", ""]}, "must be different texts"),
        ({"kind": "category", "values": VALUES, "low": 0}, "has no low, high and step"),
        ({"kind": "category", "values": VALUES, "step": 1}, "has no low, high and step"),
        ({"values": VALUES, "low": 0, "high": 1}, 'for kind = "category"'),
        ({"kind": "category", "values": [str(n) for n in range(17)]}, "values"),
        ({"kind": "switch", "low": 0, "high": 1}, "kind"),
    ],
)
def test_a_category_that_cannot_be_is_refused(valve: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        agreed(valve)


def test_the_values_and_their_order_are_agreed_on() -> None:
    digests = {
        agreed(valve).digest
        for valve in (
            None,
            {"kind": "category", "values": VALUES[::-1]},
            {"low": -0.5, "high": 2.5},
        )
    }
    assert len(digests) == 3


def test_a_text_is_compared_as_written_and_a_number_by_its_value() -> None:
    for written in (("False", "True"), ("false", "true"), ("FALSE", "TRUE")):
        assert [Codes(written).place(cell) for cell in (False, True, "False", "true", "TRUE")] == [
            0,
            1,
            0,
            1,
            1,
        ]
    assert Codes(("on", "off")).place("On") is None, "other texts are compared as they are written"
    codes = Codes(("off", "1", "2.5", "true"))
    cells = ["off", " off ", "OFF", 1.0, "1", "01", 2.5, True, None, np.nan, "", 7.0]
    assert [codes.place(cell) for cell in cells] == [
        0,
        0,
        None,
        1,
        1,
        1,
        2,
        3,
        None,
        None,
        None,
        None,
    ]


def test_rows_of_texts_become_rows_of_numbers_and_undeclared_values_are_missing_and_counted() -> (
    None
):
    faults: Counter[str] = Counter()
    categories = Categories(codes_of(agreed()), faults)
    found = categories.treat([[1.0, "open"], [2.0, "gone"], [], [3.0, None]])
    assert [list(row) for row in found] == [[1.0, 2.0], [2.0, None], [], [3.0, None]]
    assert faults == {"undeclared": 1}
    assert isinstance(categories.treat([[1.0, "open"], [2.0, "half"]]), np.ndarray)
    given = np.ones((2, 2))
    assert Categories({}, faults).treat(given) is given


def test_files_and_messages_give_the_same_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("warm,valve\n20,open\n21,closed\n22,ajar\n")
    codes = codes_of(agreed())
    source = Replay(
        [tmp_path / "a.csv"],
        Columns(("warm", "valve"), codes=codes),
        split_of("round-robin", 1, 0),
        form=FileForm(missing="learn", learns_gaps=True),
    )
    np.testing.assert_equal(np.array(source.read(10).values), [[20, 2], [21, 0], [22, np.nan]])
    assert source.faults["undeclared"] == 1
    wanted = [TopicField(0, "warm"), TopicField(1, "valve", codes[1])]
    parsed = [
        parse_payload(
            json.dumps({"warm": 20, "valve": valve}).encode(), wanted, MqttSettings(), 0.0
        )
        for valve in ("open", "ajar", None)
    ]
    assert [dict(feature.values.values) for feature in parsed if feature.values] == [
        {0: 20.0, 1: 2.0},
        {0: 20.0},
        {0: 20.0},
    ]
    assert [list(feature.faults) for feature in parsed] == [[], ["undeclared"], ["missing"]]


def test_values_are_named_in_texts_and_exports(tmp_path: Path) -> None:
    warm, valve = agreed().features
    assert value_text(2.2, valve) == "open"
    assert (range_text(0.1, -0.4, valve), range_text(0.0, 2.0, valve)) == (
        "closed",
        "closed or open",
    )
    with (tmp_path / "out.csv").open("w") as file:
        CsvWriter(file, [warm, valve]).write(
            LabelledBlock([0.0, 1.0], np.array([[20.0, 1.0], [21.0, np.nan]]), [None] * 2)
        )
    assert [line.split(",")[2] for line in (tmp_path / "out.csv").read_text().splitlines()] == [
        "valve",
        "half",
        "",
    ]


def test_descriptions_and_names_say_the_value() -> None:
    algorithm = streaming_algorithm("cluster_tree")
    server = algorithm.server({}, 2)
    generator = np.random.default_rng(0)
    rows = np.array([[0.5, 1 / 6], [0.5, 5 / 6]])[np.arange(2000) % 2] + generator.normal(
        0, [0.1, 1e-4], (2000, 2)
    )
    server.absorb(
        [Contribution("a", 1, {"point": rows, "count": np.ones(2000, dtype=np.int64)})], b""
    )
    described = describe(algorithm.view(server.snapshot()), agreed())
    assert sorted(feature.label for feature in described.values()) == ["valve closed", "valve open"]
    assert {feature.text(agreed()) for feature in described.values()} == {
        "valve closed, elsewhere open",
        "valve open, elsewhere closed",
    }


def test_init_proposes_a_category_for_texts_that_are_few_and_come_back() -> None:
    rows = [[str(n % 37), VALUES[n % 3], f"id-{n}", "same", ["a", "b"][n == 7]] for n in range(200)]
    found = understand(
        Sample(["warm", "valve", "id", "always", "nearly"], rows, 200), TimeOptions()
    )
    kinds = {column.name: (column.kind, column.values) for column in found.columns}
    assert kinds["valve"] == ("feature", tuple(VALUES))
    assert [kinds[name][0] for name in ("id", "always", "nearly")] == ["left out"] * 3
    assert found.missing == 0.0


def test_a_file_with_a_category_leads_to_a_federation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"{20 + n % 3}.{n % 10},{VALUES[n % 3] if n % 9 else ''}" for n in range(300)]
    (tmp_path / "a.csv").write_text("warm,valve\n" + "\n".join(lines) + "\n")
    ran = CliRunner().invoke(init_command, ["a.csv", "--public"], catch_exceptions=False)
    assert "feature, a category: closed, half, open" in ran.output
    config = load_config(tmp_path / "a.toml")
    assert config.contract.features[1].values == tuple(VALUES)
    assert config.contract.learns_gaps

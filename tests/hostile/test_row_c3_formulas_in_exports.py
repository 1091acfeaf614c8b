"""Row C3: the name of a cluster is no formula in the spreadsheet that opens an export."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from shoal.client_nodes.labelling.labelled_readings import LabelledBlock
from shoal.client_nodes.labelling.writers import CsvWriter
from shoal.config.contract import Feature
from shoal.protocol.labels import Label
from shoal.server_node.outputs.history_command import COLUMNS, write_rows

FORMULAS = ['=HYPERLINK("http://evil.example")', "+1", "-1", "@SUM(A1)", "\t=1"]


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_name_that_begins_as_a_formula_is_a_text_in_an_export_of_the_history(
    tmp_path: Path, formula: str
) -> None:
    out = tmp_path / "history.csv"
    what = next(column for column, columns in COLUMNS.items() if "name" in columns)
    row = [0, *([formula if name == "name" else -1 for name in list(COLUMNS[what])[1:]])]
    write_rows([row], "csv", out, what)
    (found,) = csv.DictReader(io.StringIO(out.read_text(encoding="utf-8")))
    assert found["name"] == f"'{formula}"
    assert found["time"] == "1970-01-01T00:00:00Z"
    assert "'-1" not in found.values() or formula == "-1", "numbers stay numbers"


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_name_that_begins_as_a_formula_is_a_text_in_an_export_of_labels(formula: str) -> None:
    out = io.StringIO()
    label = Label(cluster=1, identity=7, name=formula, novelty=0.5, version=1, time=None)
    CsvWriter(out, [Feature(name="warm", low=-10.0, high=50.0)]).write(
        LabelledBlock([0.0], np.array([[-2.5]]), [label])
    )
    (found,) = csv.DictReader(io.StringIO(out.getvalue()))
    assert (found["name"], found["warm"]) == (f"'{formula}", "-2.5")


@pytest.mark.parametrize("formula", ["=cmd|calc!A1", "+1", "@sum", "-1"])
def test_a_column_whose_name_is_a_formula_is_a_text_in_the_header_of_an_export(
    formula: str,
) -> None:
    """The names of features are those of columns of somebody's file."""
    out = io.StringIO()
    CsvWriter(out, [Feature(name=formula, low=-10.0, high=50.0)])
    assert next(csv.reader(io.StringIO(out.getvalue())))[1] == f"'{formula}"

"""Files of others, as they come: gaps, text, extra columns, aliases, nothing at all."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from reproduction import datasets
from shoal.errors import InvalidData, SettingsError


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize(
    "text", ["", "label\n1\n", "a,b\n1,2\n", "a,label\n", "word,label\nyes,1\n"]
)
def test_a_file_without_features_labels_or_rows_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidData):
        datasets.read(written(tmp_path, "empty.csv", text))


def test_a_plain_file_is_read_as_it_is(tmp_path: Path) -> None:
    read = datasets.read(written(tmp_path, "two.csv.gz", "a,b,label\n1,2.5,x\n-3,4e2,y\n\n5,6,x\n"))
    assert read.name == "two"
    assert read.rows.tolist() == [[1, 2.5], [-3, 400], [5, 6]]
    assert read.labels.tolist() == [0, 1, 0]
    assert read.classes == ("x", "y")
    assert read.notes == ()


def test_labels_that_are_numbers_are_sorted_by_value(tmp_path: Path) -> None:
    read = datasets.read(written(tmp_path, "n.csv", "a,label\n1,10\n2,9\n3,-1\n4,9.0\n"))
    assert read.labels.tolist() == [2, 1, 0, 1]
    assert read.classes == ("-1", "9", "10")


def test_columns_of_text_are_left_out_with_a_note(tmp_path: Path) -> None:
    read = datasets.read(written(tmp_path, "t.csv", "day,a,wind,label\nMon,1,5,0\nTue,2,NW,1\n"))
    assert read.rows.tolist() == [[1], [2]]
    assert read.notes == ("t: columns left out, as they are not features: day, wind",)


def test_the_row_number_of_magic_is_left_out(tmp_path: Path) -> None:
    read = datasets.read(
        written(tmp_path, "magic_telescope.csv.gz", "ID,fLength,label\n1,2,0\n2,3,1\n")
    )
    assert read.rows.tolist() == [[2], [3]]


def test_missing_cells_are_counted_and_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "gaps.csv", "a,b,label\n1,,0\n?,2,1\n3,4,1\nnan,NA,1\n")
    with pytest.raises(InvalidData, match="4 missing cells in 3 rows"):
        datasets.read(path)


def test_missing_cells_are_filled_with_the_mean_of_their_column(tmp_path: Path) -> None:
    path = written(tmp_path, "gaps.csv", "a,b,label\n1,,0\n?,2,1\n3,4,1\n")
    assert datasets.read(path, "mean").rows.tolist() == [[1, 3], [2, 2], [3, 4]]


def test_rows_with_missing_cells_are_left_out_and_classes_stay_without_holes(
    tmp_path: Path,
) -> None:
    read = datasets.read(written(tmp_path, "gaps.csv", "a,b,label\n1,,0\n5,2,1\n3,4,2\n"), "drop")
    assert read.rows.tolist() == [[5, 2], [3, 4]]
    assert read.labels.tolist() == [0, 1]


def test_a_column_without_any_value_cannot_be_filled(tmp_path: Path) -> None:
    path = written(tmp_path, "gaps.csv", "a,b,label\n1,,0\n2,,1\n")
    for fill in ("mean", "drop"):
        with pytest.raises(InvalidData):
            datasets.read(path, fill)


def test_ozone_declares_how_its_gaps_are_filled(tmp_path: Path) -> None:
    read = datasets.read(
        written(tmp_path, "ozone_8hr.csv", "date,V1,label\n1998-01-01,1,0\n1998-01-02,,1\n,3,1\n")
    )
    assert read.rows.tolist() == [[1], [2], [3]]
    assert any("1 missing cells" in note for note in read.notes)


@pytest.mark.parametrize("cell", ["inf", "-Infinity", "1e999"])
def test_infinite_cells_are_refused(tmp_path: Path, cell: str) -> None:
    with pytest.raises(InvalidData, match="infinite"):
        datasets.read(written(tmp_path, "i.csv", f"a,label\n{cell},0\n"))


def test_rows_without_a_label_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="1 rows without a label"):
        datasets.read(written(tmp_path, "l.csv", "a,label\n1,\n2,0\n"))


def test_a_line_with_too_few_cells_is_refused_with_its_number(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="line 3"):
        datasets.read(written(tmp_path, "short.csv", "a,b,label\n1,2,0\n1,0\n"))


def test_a_file_that_only_pretends_to_be_compressed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.csv.gz"
    path.write_bytes(b"a,label\n1,0\n")
    with pytest.raises(SettingsError, match="cannot be read"):
        datasets.read(path)


def test_grey_values_are_brought_to_the_range_of_the_papers_program(tmp_path: Path) -> None:
    read = datasets.read(
        written(tmp_path, "fashion-mnist.csv.gz", "p1,p2,label\n0,255,0\n51,204,1\n")
    )
    np.testing.assert_allclose(read.rows, [[-1, 1], [-0.6, 0.6]], atol=1e-15)


@pytest.mark.parametrize(
    ("asked", "file"),
    [
        ("magic", "magic_telescope.csv.gz"),
        ("hill-valley", "hill_valley.csv.gz"),
        ("Hill_Valley", "hillvalley.csv.gz"),
        ("fashion-mnist", "fmnist.csv"),
        ("skin", "skin_segmentation.csv.gz"),
        ("my own", "my-own.csv"),
    ],
)
def test_a_data_set_is_found_under_its_other_names(tmp_path: Path, asked: str, file: str) -> None:
    written(tmp_path, "another.csv", "a,label\n1,0\n")
    path = written(tmp_path, file, "a,label\n1,0\n")
    assert datasets.find(tmp_path, asked) == path


def test_a_missing_data_set_is_named_with_what_there_is(tmp_path: Path) -> None:
    written(tmp_path, "another.csv", "a,label\n1,0\n")
    with pytest.raises(SettingsError, match=r"no optdigits\.csv\.gz in it; it holds another"):
        datasets.find(tmp_path, "optdigits")
    with pytest.raises(SettingsError, match="no such folder"):
        datasets.find(tmp_path / "nowhere", "optdigits")


def test_of_several_data_sets_those_in_the_folder_are_found_in_the_order_of_the_names(
    tmp_path: Path,
) -> None:
    with pytest.raises(SettingsError):
        datasets.find_any(tmp_path, tuple(datasets.FCAC_DATASETS))
    for name in ("skin.csv", "elec2.csv.gz", "magic.csv.gz", "phoneme.csv", "phoneme.csv.gz"):
        written(tmp_path, name, "a,label\n1,0\n")
    found = datasets.find_any(tmp_path, tuple(datasets.FCAC_DATASETS))
    assert [path.name for path in found] == ["phoneme.csv.gz", "magic.csv.gz", "skin.csv"]

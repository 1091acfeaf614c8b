"""`shoal picture`: what is drawn, of real records in a log, and what is said where nothing
can be."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from shoal.algorithms.view import ClusteringView
from shoal.cli.main import shoal
from shoal.config.contract import parse_contract
from shoal.config.resolved import resolve
from shoal.config.settings import Config, load_config
from shoal.errors import SettingsError
from shoal.protocol.history import COARSE_S, DAY_S, FINE_S, NO_CLUSTER, HistoryBin
from shoal.protocol.messages import Snapshot
from shoal.protocol.topics import ensure_topics
from shoal.server_node.outputs.figures import wrapped
from shoal.server_node.outputs.picture_data import (
    BARS_MAX,
    Picture,
    PicturedCluster,
    bands_of,
    read_picture,
)
from shoal.server_node.outputs.pictures import (
    TITLE_CHARS,
    TITLE_LINES,
    axis_title,
    distinct_features,
)
from shoal.server_node.report.description import describe
from shoal.server_node.report.lineage.published import published_identities
from shoal.transports import open_log
from tests.house.small_federation import write_federation
from tests.server_node.web_statuses import a_lineage, a_snapshot, some_nodes

START = 1_800_000_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A federation of two features."""
    return write_federation(tmp_path)


@pytest.fixture
def config(file: Path) -> Config:
    """Its configuration; its log has no snapshot yet."""
    config = load_config(file)
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
    return config


def a_bin(
    config: Config, start: int, clusters: dict[int, int], width: int = COARSE_S
) -> HistoryBin:
    flat = [number for pair in clusters.items() for number in pair]
    contract = config.contract
    model = config.contract.models[0].name
    return HistoryBin.of(contract.federation, contract.digest, model, width, start, 1, flat, [], [])


def publish(config: Config, clusters: int, *bins: HistoryBin) -> None:
    contract = config.contract
    plain = a_snapshot(
        contract, some_nodes(2, clusters, 20 * clusters), model=contract.models[0].name
    )
    identities = [list(cluster) for cluster in published_identities(a_lineage(plain))]
    snapshot = Snapshot(**{**vars(plain), "identities": identities})
    with closing(open_log(config.log)) as log:
        log.publish(
            contract.snapshots_topic, snapshot.encode(), snapshot.model.encode(), Snapshot.headers()
        )
        for history_bin in bins:
            log.publish(
                contract.history_topic,
                history_bin.encode(),
                history_bin.record_key,
                HistoryBin.headers(),
            )
        log.flush()


def read(config: Config) -> Picture:
    with closing(open_log(config.log)) as log:
        return read_picture(log, resolve(config.contract), config.contract.models[0].name)


def run(file: Path, *options: str) -> Result:
    return CliRunner().invoke(shoal, ["picture", "--config", str(file), *options])


def texts(path: Path) -> str:
    """The words of an SVG: matplotlib keeps each as a comment beside its outline."""
    return " ".join(
        str(node.text)
        for node in ET.parse(path, ET.XMLParser(target=ET.TreeBuilder(insert_comments=True))).iter()
    )


@pytest.mark.parametrize("what", ["overview", "timeline"])
def test_a_picture_names_every_cluster(
    file: Path, config: Config, tmp_path: Path, what: str
) -> None:
    bins = [a_bin(config, START + COARSE_S * place, {0: 30, 1: 10 + place}) for place in range(30)]
    publish(config, 3, *bins)
    out = tmp_path / "report.svg"
    ran = run(file, "--out", str(out), "--of", what)
    assert ran.exit_code == 0, ran.output
    words = texts(out)
    assert "house: 3 clusters now, 3 known" in words
    for cluster in read(config).clusters:
        assert all(line in words for line in wrapped(cluster.title, TITLE_CHARS).splitlines())
    assert "48,000 readings" in words


def test_one_cluster_is_drawn_with_what_sets_it_apart(
    file: Path, config: Config, tmp_path: Path
) -> None:
    publish(config, 2, a_bin(config, START, {1: 10}))
    out = tmp_path / "cluster.svg"
    assert run(file, "--out", str(out), "--cluster", "1").exit_code == 0
    cluster = read(config).cluster(1)
    assert all(
        line in texts(out)
        for line in wrapped(cluster.description.text(config.contract), 130).splitlines()
    )


def test_values_of_a_category_stand_along_its_chart_by_their_names(
    file: Path, tmp_path: Path
) -> None:
    category = 'kind = "category"\nvalues = ["closed", "half open", "wide open"]\n'
    file.write_text(file.read_text().replace('unit = "%"\nlow = 0\nhigh = 100\n', category))
    config = load_config(file)
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
    publish(config, 2, a_bin(config, START, {1: 10}))
    out = tmp_path / "overview.svg"
    assert run(file, "--out", str(out)).exit_code == 0
    assert {"closed", "half open", "wide open"} <= {text.strip() for text in texts(out).split("  ")}


def test_the_features_drawn_are_those_that_set_clusters_apart() -> None:
    names = [f"f{j}" for j in range(9)]
    features = [{"name": name, "low": 0, "high": 1} for name in names]
    model = {"name": "found", "algorithm": "fcac"}
    tables = {
        "federation": {"name": "plant"},
        "features": features,
        "models": [model],
        "privacy": {"mode": "off"},
    }
    contract = resolve(parse_contract(tables))
    nodes = np.full((40, 9), 0.5)
    nodes[:, 7] += np.repeat([0.0, 0.3], 20)
    nodes[:, 5] += np.tile(np.linspace(0, 0.3, 20), 2) + np.repeat([0.0, 0.1], 20)
    view = ClusteringView.from_nodes(nodes, np.ones(40), np.repeat([0, 1], 20))
    described = describe(view, contract.contract)
    clusters = [
        PicturedCluster(n, "", n, True, 0.5, n, description) for n, description in described.items()
    ]
    picture = Picture(contract, cast("Any", None), view, clusters, None)
    assert distinct_features(picture)[:2] == [7, 5]
    assert distinct_features(picture, clusters[1])[:2] == [7, 5]
    assert len(distinct_features(picture)) == 6


@pytest.mark.parametrize(("suffix", "format_"), [("png", "PNG"), ("PNG", "PNG")])
def test_the_suffix_gives_the_format(
    file: Path, config: Config, tmp_path: Path, suffix: str, format_: str
) -> None:
    publish(config, 1)
    out = tmp_path / f"report.{suffix}"
    assert run(file, "--out", str(out)).exit_code == 0
    with Image.open(out) as image:
        assert image.format == format_
        assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 10, (
            "it is not blank"
        )


def test_of_sixty_clusters_the_largest_are_drawn_and_the_others_counted(
    file: Path, config: Config, tmp_path: Path
) -> None:
    publish(config, 60, a_bin(config, START, dict.fromkeys(range(60), 5)))
    out = tmp_path / "report.svg"
    assert run(file, "--out", str(out)).exit_code == 0
    assert "60 clusters now, 60 known; 48 not drawn" in texts(out)


def test_a_long_title_has_three_lines_beside_its_row_and_keeps_its_number() -> None:
    name = " and ".join(f"line {n} pump station flow (avg, 15 min) low" for n in range(3))
    cluster = PicturedCluster(17, f"{name} (17)", 0, True, 0.5, 0, cast("Any", None))
    lines = axis_title(cluster).splitlines()
    assert len(lines) == TITLE_LINES
    assert lines[-1].endswith("… (17)")
    assert all(len(line) <= TITLE_CHARS for line in lines)


def test_bands_hold_the_share_of_each_cluster_and_nothing_where_there_were_no_readings(
    config: Config,
) -> None:
    bins = [a_bin(config, START + FINE_S * place, {0: 3, 1: 1}, FINE_S) for place in (0, 1, 3, 4)]
    bands = bands_of([*bins, a_bin(config, START + FINE_S * 5, {NO_CLUSTER: 5}, FINE_S)])
    assert bands.width_s == FINE_S
    assert bands.starts.tolist() == [START + FINE_S * place for place in range(6)]
    np.testing.assert_allclose(bands.shares[0], [0.75, 0.75, np.nan, 0.75, 0.75, 0.0])
    assert NO_CLUSTER not in bands.shares


def test_a_year_of_bins_is_joined_into_a_hundred_bars_without_losing_a_reading(
    config: Config,
) -> None:
    bins = [a_bin(config, START + COARSE_S * place, {place % 2: 5}) for place in range(17_520)]
    bands = bands_of(bins)
    assert BARS_MAX / 2 < len(bands.starts) <= BARS_MAX
    np.testing.assert_allclose(bands.shares[0] + bands.shares[1], 1.0)
    np.testing.assert_allclose(bands.shares[0], 0.5, atol=0.01)


def test_a_young_history_is_drawn_in_fine_bins(config: Config) -> None:
    fine = [a_bin(config, START + FINE_S * place, {0: 1}, FINE_S) for place in range(3)]
    publish(config, 1, a_bin(config, START, {0: 3}), *fine)
    bands = read(config).bands
    assert bands is not None
    assert (bands.width_s, len(bands.starts)) == (FINE_S, 3)


@pytest.mark.parametrize(("days", "width"), [(1, COARSE_S), (400, DAY_S)])
def test_a_history_is_drawn_in_the_finest_bins_that_hold_all_of_it(
    config: Config, days: int, width: int
) -> None:
    """Bins of 30 minutes are kept for a year, those of a day for twenty."""
    first = START // DAY_S * DAY_S + COARSE_S
    half_hours = [
        a_bin(config, first + max(0, days - 365) * DAY_S + COARSE_S * place, {0: 1})
        for place in range(40)
    ]
    whole = [
        a_bin(config, first // DAY_S * DAY_S + DAY_S * place, {0: 1}, DAY_S)
        for place in (0, days - 1)
    ]
    publish(config, 1, *half_hours, *whole)
    bands = read(config).bands
    assert bands is not None
    assert bands.width_s % width == 0
    assert bands.starts[0] == (first if width == COARSE_S else whole[0].start)


def test_before_the_first_snapshot_it_says_what_to_do(
    file: Path, config: Config, tmp_path: Path
) -> None:
    out = tmp_path / "report.svg"
    error = run(file, "--out", str(out)).exception
    assert isinstance(error, SettingsError)
    assert "start `shoal server`" in str(error)
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["--out", "report.jpg"], "must end in .svg, .png or .pdf"),
        (["--out", "report.svg", "--model", "other"], "no such model"),
        (["--out", "report.svg", "--cluster", "9"], "it has 0, 1"),
        (["--out", "report.svg", "--of", "cluster"], "needs --cluster ID"),
        (["--out", "no/such/folder/report.svg"], "cannot be written"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    file: Path, config: Config, options: list[str], advice: str
) -> None:
    publish(config, 2)
    error = run(file, *options).exception
    assert isinstance(error, SettingsError)
    assert advice in str(error)

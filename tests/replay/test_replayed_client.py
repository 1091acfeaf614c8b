"""A replayed client makes the very updates of a live client node that reads every reading at the
reading's time."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shoal.errors import InvalidData
from shoal.onebox.replay.client import Stages, make_updates
from shoal.onebox.replay.parquet import schema_of
from shoal.onebox.replay.plan import ReplayPlan, make_plan
from shoal.protocol.readings import NUMBER, Reading, number_contents
from shoal.protocol.topics import READINGS, readings_settings
from shoal.transports.sqlite.log import SqliteLog
from tests.client_nodes.site import Site
from tests.replay.plant_files import COLUMNS, FORMAL, KEY, config, readings

CLIENT = "room-1"
STREAMING = [
    {"name": "clusters", "algorithm": "fcac"},
    {"name": "tree", "algorithm": "cluster_tree"},
]
PRIVACY = {
    # A log states when a record came, which is now for a live client and long ago for a replay.
    "formal": {**FORMAL, "times": "public"},
    "paper": {"mode": "paper", "epsilon_nominal_per_feature": 20},
    "off": {"mode": "off"},
}


def plan_of(**settings: Any) -> ReplayPlan:
    return make_plan(config(**settings), COLUMNS, [], Path("unused"), KEY)


def batches(
    times: np.ndarray, values: np.ndarray, cuts: list[int], client: str = CLIENT
) -> list[pa.RecordBatch]:
    """The readings of one client, cut into batches at these places."""
    columns = [pa.array([client] * len(times)), times, np.arange(len(times)), *values.T]
    whole = pa.record_batch(columns, schema=schema_of(values.shape[1]))
    bounds = [0, *cuts, len(times)]
    return [whole.slice(start, stop - start) for start, stop in pairwise(bounds)]


def updates(plan: ReplayPlan, readings_of_clients: list[pa.RecordBatch]) -> list[tuple[str, bytes]]:
    """(client, value) of each update, in the order they were made."""
    made = make_updates(readings_of_clients, Stages(plan))
    return [(row["client"], row["value"]) for batch in made for row in batch.to_pylist()]


def live_updates(
    folder: Path, plan: ReplayPlan, times: np.ndarray, values: np.ndarray
) -> list[bytes]:
    """What a client node publishes whose clock shows the time of each reading when it reads it, one
    after the other."""
    folder.mkdir()
    # The noise depends on the log's identity.
    with closing(SqliteLog(folder / "readings.db", new_identity=lambda: plan.source)) as log:
        log.ensure(READINGS, readings_settings(plan.settings))
    settings = plan.settings.model_dump(exclude={"folder"}) | {"batch_readings_max": 1}
    site = Site(folder, plan.contract.contract, CLIENT, **settings)
    pairs = zip(times.tolist(), values, strict=True)
    for number, (time, value) in enumerate(pairs):
        [noted] = number_contents([number], [time])
        site.add_records((Reading(time, value).encode(), (*Reading.headers(), (NUMBER, noted))))
    site.clock.now = float(times[0])
    with site.node(key=plan.client_key(CLIENT)) as node:
        for time in times.tolist():
            site.clock.now = time
            assert node.step()
        # No reading comes any more: what is left is due `publish_s` after the updates before, or
        # after the start.
        made = [update.made_at for update in site.updates()]
        site.clock.now = max([float(times[0]), *made]) + plan.settings.publish_s
        node.step()
    return [record.value or b"" for record in site.published()]


@pytest.mark.parametrize("mode", PRIVACY)
@pytest.mark.parametrize("drop_repeats", [False, True])
def test_a_replayed_client_makes_the_updates_of_a_live_one_bit_for_bit(
    tmp_path: Path, mode: str, drop_repeats: bool
) -> None:
    plan = plan_of(privacy=PRIVACY[mode], models=STREAMING, drop_repeats=drop_repeats, step=2.0)
    times, values = readings(150)
    live = live_updates(tmp_path / "live", plan, times, values)
    assert len(live) > 10
    assert [value for _, value in updates(plan, batches(times, values, []))] == live


@pytest.mark.parametrize("mode", ["off", "formal"])
def test_readings_that_lack_values_are_replayed_as_a_live_client_learns_them(
    tmp_path: Path, mode: str
) -> None:
    plan = plan_of(privacy={**PRIVACY[mode], "missing": "learn"}, models=STREAMING, step=2.0)
    times, values = readings(150)
    values[np.random.default_rng(0).random(values.shape) < 0.3] = np.nan
    live = live_updates(tmp_path / "live", plan, times, values)
    assert len(live) > 5
    assert [value for _, value in updates(plan, batches(times, values, [40]))] == live


@pytest.mark.parametrize("cuts", [[1], [40, 41], [7, 7, 100], list(range(1, 200))], ids=str)
def test_how_readings_are_cut_into_batches_makes_no_difference(cuts: list[int]) -> None:
    plan = plan_of(models=STREAMING)
    times, values = readings(200)
    assert updates(plan, batches(times, values, cuts)) == updates(plan, batches(times, values, []))


def test_clients_do_not_depend_on_each_other() -> None:
    plan = plan_of(models=STREAMING)
    attic = batches(*readings(90, 1), [30], "attic")
    cellar = batches(*readings(80, 2), [], "cellar")
    assert updates(plan, attic + cellar) == updates(plan, attic) + updates(plan, cellar)


def test_a_client_has_noise_of_its_own() -> None:
    plan = plan_of(models=STREAMING)
    times, values = readings(50)
    attic, cellar = (
        updates(plan, batches(times, values, [], client)) for client in ("attic", "cellar")
    )
    arrays = [value.split(b"arrays")[1] for _, value in (attic[0], cellar[0])]
    assert arrays[0] != arrays[1]


def test_no_readings_make_no_updates() -> None:
    times, values = readings(1)
    assert updates(plan_of(), []) == []
    assert updates(plan_of(), batches(times[:0], values[:0], [])) == []


@pytest.mark.parametrize("n", [1, 2, 40, 41])
def test_few_readings_make_the_updates_of_a_live_client_too(tmp_path: Path, n: int) -> None:
    plan = plan_of(privacy=PRIVACY["formal"], models=STREAMING)
    times, values = readings(n, seed=3)
    live = live_updates(tmp_path / "live", plan, times, values)
    assert [value for _, value in updates(plan, batches(times, values, []))] == live


def test_rejected_readings_alone_make_no_update_but_are_counted() -> None:
    times, values = readings(60)
    stages = Stages(plan_of(models=STREAMING))
    assert list(make_updates(batches(times, values * np.inf, []), stages)) == []
    assert (stages.counts.readings, stages.counts.rejected, stages.counts.clients) == (60, 60, 1)


def test_readings_out_of_order_are_refused_and_not_learnt_in_another_order() -> None:
    times, values = readings(50)
    with pytest.raises(InvalidData, match="not in the order of their times"):
        updates(plan_of(), batches(times[::-1], values, []))
    with pytest.raises(InvalidData, match="not in the order of their times"):
        updates(
            plan_of(),
            [*batches(times[25:], values[25:], []), *batches(times[:25], values[:25], [])],
        )


def test_a_client_whose_readings_are_not_together_is_refused() -> None:
    times, values = readings(50)
    attic = batches(times, values, [], "attic")
    cellar = batches(times, values, [], "cellar")
    with pytest.raises(InvalidData, match="client attic are not all together"):
        updates(plan_of(), attic + cellar + attic)

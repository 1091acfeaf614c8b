"""The client node: each reading is learnt once, after privacy, and updates depend on the readings
alone."""

from __future__ import annotations

import logging
import math
import re
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import generate_latest

from shoal.client_nodes.intake import Reason
from shoal.client_nodes.node import ClientNode
from shoal.config.resolved import resolve
from shoal.errors import InvalidState, OffsetOutOfRange, SettingsError
from shoal.protocol.codec import pack
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS_SETTINGS
from shoal.protocol.validation import Validator
from shoal.telemetry.metrics import ClientMetrics
from tests.client_nodes.site import Site, readings
from tests.small_plant import FORMAL, OFF, PAPER, plant

HEADERS = Reading.headers()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def copies(site: Site, *changes: dict[str, int]) -> list[Site]:
    """Copies of a site with its readings and key, one for each change of its settings."""
    made = []
    for number, change in enumerate(changes):
        folder = site.folder.parent / f"copy-{number}"
        shutil.copytree(site.folder, folder)
        copy = Site(folder, site.contract, site.client)
        copy.settings = site.settings.model_copy(update=change)
        made.append(copy)
    return made


# The checkpoint is not stored at every step.


def learnt_after_restart(site: Site, steps: int) -> int:
    """Learn seven readings a step, abandon the client, and return how many readings the next client
    has learnt."""
    with site.node() as node:
        for _ in range(steps):
            site.add_readings(readings(7))
            assert node.step()
    with site.node() as node:
        return node.totals["learned"]


def test_a_few_readings_at_a_time_do_not_store_the_checkpoint_each_time(site: Site) -> None:
    assert learnt_after_restart(site, 4) == 7, "the first were stored at once, the others not yet"


def test_readings_learnt_but_not_stored_are_learnt_again_to_the_same_updates(site: Site) -> None:
    for privacy in (FORMAL, PAPER, OFF):
        killed = Site(site.folder / privacy["mode"], plant(privacy=privacy))
        learnt_after_restart(killed, 4)
        learnt_after_restart(killed, 6)
        [undisturbed] = copies(killed, {})
        for file in undisturbed.folder.glob("checkpoint.db*"):
            file.unlink()
        (undisturbed.folder / "federation.db").unlink()
        killed.run()
        undisturbed.run()
        assert len(undisturbed.published()) == 1
        assert {record.value for record in killed.published()} == {
            record.value for record in undisturbed.published()
        }
        shutil.rmtree(undisturbed.folder)


def test_an_idle_client_stores_what_it_has_learnt(site: Site) -> None:
    with site.node() as node:
        for _ in range(4):
            site.add_readings(readings(7))
            assert node.step()
        assert not node.step()
    with site.node() as node:
        assert node.totals["learned"] == 28


def test_a_client_that_is_behind_stores_updates_together_and_a_kill_meanwhile_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.client_nodes.node.READINGS_READ_MAX", 50)
    site = Site(tmp_path / "behind")
    site.add_readings(readings(170))
    [each_alone] = copies(site, {"batch_readings_max": 50})
    with site.node() as node:
        assert node.step()
        assert len(site.published()) == 1, "nothing was ever stored"
        assert node.step()
        assert len(site.published()) == node.totals["updates"] == 1
        assert not node.up_to_date
    with site.node() as node:
        assert node.step()
        assert node.step()
        assert {update.sequence for update in site.updates()} == {1, 2}
        assert node.step()
        assert {update.sequence for update in site.updates()} == {1, 2, 3}, (
            "there is no more to learn"
        )
        assert node.totals["updates"] == 3
    each_alone.run()
    assert {record.value for record in site.published()} == {
        record.value for record in each_alone.published()
    }


# No readings, and too few.


def test_a_client_without_readings_publishes_nothing(site: Site) -> None:
    with site.node() as node:
        assert not node.step()
        site.clock.now += 1e6
        assert not node.step()
        assert set(node.totals.values()) == {0}
        assert node.up_to_date
        assert node.nodes == 0
    assert site.published() == []


def test_too_few_readings_for_a_node_publish_nothing_and_are_kept(site: Site) -> None:
    site.settings = site.settings.model_copy(update={"publish_readings": 3})
    site.add_readings(readings(9))
    with site.node() as node:
        while node.step():
            pass
    assert site.published() == []
    site.add_readings(readings(3, seed=1))
    site.run()
    assert [update.readings for update in site.updates()] == [12]


@pytest.mark.parametrize(
    "privacy", [{"mode": "off"}, PAPER, FORMAL], ids=lambda privacy: privacy["mode"]
)
def test_of_rejected_readings_alone_their_number_is_published_and_none_where_it_is_private(
    privacy: dict[str, object], tmp_path: Path
) -> None:
    site = Site(tmp_path, plant(privacy), publish_readings=50)
    site.add_records(*[(b"junk", HEADERS)] * 100)
    assert site.run()["rejected"] == 100
    found = [(update.readings, update.rejected, len(update.arrays)) for update in site.updates()]
    assert found == ([] if privacy is FORMAL else [(0, 50, 0), (0, 100, 0)])
    site.run()
    assert len({update.sequence for update in site.updates()}) == len(found), (
        "nothing more, as none was rejected since"
    )


# Publishing.


def test_an_update_is_due_after_a_number_of_readings(site: Site) -> None:
    site.add_readings(readings(170))
    totals = site.run()
    assert [update.readings for update in site.updates()] == [50, 50, 50]
    assert [update.sequence for update in site.updates()] == [1, 2, 3]
    assert (totals["learned"], totals["updates"]) == (170, 3)
    with site.node() as node:
        assert not node.up_to_date, "20 readings are not published yet"


def test_an_update_has_no_more_readings_than_its_algorithm_has_room_for(tmp_path: Path) -> None:
    contract = plant(algorithm="cluster_tree", options={"points_max": 8})
    site = Site(tmp_path, contract, publish_readings=100)
    site.add_readings(readings(200))
    site.run()
    assert [update.readings for update in site.updates()] == [64, 64, 64]


def test_a_client_whose_updates_are_to_be_smaller_publishes_at_once_what_waits(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, plant(OFF), publish_readings=100)
    site.add_readings(readings(60))
    site.run()
    site.settings = site.settings.model_copy(update={"publish_readings": 20})
    site.add_readings(readings(30))
    totals = site.run()
    assert [update.readings for update in site.updates()] == [60, 20]
    assert (totals["learned"], totals["rejected"]) == (90, 0)


def test_an_update_passes_validation_and_names_its_client_and_model(site: Site) -> None:
    site.add_readings(readings(50))
    site.run()
    (update,) = site.updates()
    Validator(resolve(site.contract)).check_update(update)
    assert (update.client, update.model, update.made_at) == ("attic", "clusters", 1e9)
    assert update.newest_reading_at == 1e9 + 49
    (record,) = site.published()
    assert record.key == b"plant/clusters"


@pytest.mark.parametrize("privacy", [OFF, FORMAL, PAPER], ids=lambda privacy: privacy["mode"])
def test_updates_do_not_depend_on_how_readings_are_batched(
    tmp_path: Path, privacy: dict[str, object]
) -> None:
    site = Site(tmp_path / "site", plant(privacy), publish_readings=37)
    values = list(readings(150))
    for place in (0, 7, 40, 90):
        values[place] = ["wet"]
    site.add_readings(values)
    sites = copies(site, *({"batch_readings_max": batch} for batch in (1, 7, 36, 37, 38, 1000)))
    for copy in sites:
        copy.run()
    first, *others = [copy.publications() for copy in sites]
    assert len(first) == 4, "every 37 places, rejected readings among them"
    rejected = [update.rejected for update in sites[0].updates()]
    # Noise of the mode paper needs a range, so the first reading is withheld.
    known = {"off": [2, 3, 4, 4], "paper": [3, 4, 5, 5], "formal": [None] * 4}
    assert rejected == known[str(privacy["mode"])], "formal says nothing of validity"
    for other in others:
        assert other == first


def test_the_event_time_lag_grows_while_no_reading_arrives_and_over_a_restart(site: Site) -> None:
    def lag_s(node: ClientNode) -> float | None:
        return node.metrics.registry.get_sample_value("shoal_event_time_lag_seconds")

    with site.node() as node:
        assert math.isnan(lag_s(node) or 0.0), "unknown before the first reading"
        site.add_readings(readings(10), started_at=site.clock.now - 100)
        node.step()
        assert lag_s(node) == 91
        site.clock.now += 500
        assert not node.step()
        assert lag_s(node) == 591
        node.step()
        site.add_readings(readings(1), started_at=site.clock.now - 1)
        node.step()
        assert lag_s(node) == 1
    site.clock.now += 60
    with site.node() as node:
        assert lag_s(node) == 61


def test_an_update_names_the_oldest_and_the_newest_event_time_of_its_own_readings(
    site: Site,
) -> None:
    site.add_readings(readings(30), started_at=None)
    site.add_readings(readings(30), started_at=1e9)
    site.add_readings(readings(40), started_at=1e9 - 1000)
    site.run()
    spans = [(update.oldest_reading_at, update.newest_reading_at) for update in site.updates()]
    assert spans == [(1e9, 1e9 + 19), (1e9 - 1000, 1e9 + 29)]


def test_readings_without_a_time_are_learnt(site: Site) -> None:
    site.add_readings(readings(50), started_at=None)
    site.run()
    assert [update.newest_reading_at for update in site.updates()] == [None]


def test_an_update_is_due_after_the_interval_if_anything_was_learnt(site: Site) -> None:
    site.settings = site.settings.model_copy(update={"publish_s": 10.0})
    site.add_readings(readings(20))
    with site.node() as node:
        node.step()
        assert site.published() == []
        site.clock.now += 9.9
        assert not node.step()
        site.clock.now += 0.2
        assert node.step()
        assert [update.readings for update in site.updates()] == [20]
        site.clock.now += 100
        assert not node.step(), "nothing new, nothing published"
        site.add_readings(readings(45, seed=1))
        assert node.step()
        assert [update.readings for update in site.updates()] == [20, 45], (
            "an overdue update at once"
        )


def test_an_update_published_after_the_interval_is_in_the_checkpoint(site: Site) -> None:
    site.settings = site.settings.model_copy(update={"publish_s": 10.0})
    site.add_readings(readings(20))
    with site.node() as node:
        node.step()
        site.clock.now += 10
        node.step()
    site.add_readings(readings(50, seed=1))
    site.clock.now -= 10
    site.run()
    assert [update.readings for update in site.updates()] == [20, 20, 50], (
        "the newest is repeated, not made again"
    )
    assert site.updates()[0].sequence == site.updates()[1].sequence


def test_a_clock_that_is_set_back_does_not_delay_updates(site: Site) -> None:
    site.settings = site.settings.model_copy(update={"publish_s": 10.0})
    site.clock.now = 4e9
    site.add_readings(readings(20))
    with site.node() as node:
        node.step()
        site.clock.now = 1e9
        assert not node.step()
        site.clock.now += 10
        assert node.step()
    assert len(site.updates()) == 1


def test_every_model_has_updates_of_its_own_in_the_order_of_the_contract(tmp_path: Path) -> None:
    site = Site(tmp_path, plant(models=("left", "right")))
    site.add_readings(readings(100))
    site.run()
    assert [(update.model, update.sequence) for update in site.updates()] == [
        ("left", 1),
        ("right", 1),
        ("left", 2),
        ("right", 2),
    ]


# The checkpoint.


@pytest.mark.parametrize("privacy", [FORMAL, PAPER], ids=lambda privacy: privacy["mode"])
def test_a_restart_at_any_step_changes_no_update(
    tmp_path: Path, privacy: dict[str, object]
) -> None:
    site = Site(tmp_path / "site", plant(privacy), batch_readings_max=23)
    site.add_readings([*readings(60), ["wet"], *readings(120, seed=1)])
    whole, broken = copies(site, {}, {})
    expected = whole.run()
    while True:
        with broken.node() as node:
            if not node.step():
                assert node.totals == expected
                break
    # Repeated updates have the same bytes.
    published = {(update.sequence): update.encode() for update in broken.updates()}
    assert [published[update.sequence] for update in whole.updates()] == [
        update.encode() for update in whole.updates()
    ]
    assert {update.encode() for update in broken.updates()} == {
        update.encode() for update in whole.updates()
    }
    assert broken.rejected().keys() == whole.rejected().keys() == {b"0/60"}


def test_updates_stored_but_not_published_follow_after_a_restart(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_readings(readings(100))
    with site.node() as node:
        monkeypatch.setattr(node._outbox, "publish_pending", lambda: pytest.fail("cut"))
        with pytest.raises(pytest.fail.Exception):
            node.step()
    assert site.published() == []
    assert site.run()["learned"] == 100
    assert [update.sequence for update in site.updates()] == [1, 2]


def test_readings_not_stored_are_learnt_again_after_a_restart(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_readings([*readings(100), ["wet"]])
    (quiet,) = copies(site, {})
    with site.node() as node:
        monkeypatch.setattr(node._outbox, "store", lambda *_: pytest.fail("cut"))
        with pytest.raises(pytest.fail.Exception):
            node.step()
    assert site.run() == quiet.run()
    assert site.publications() == quiet.publications()
    assert list(site.rejected()) == list(quiet.rejected())


def test_the_checkpoint_of_another_contract_is_refused(site: Site) -> None:
    site.add_readings(readings(20))
    site.run()
    with pytest.raises(InvalidState, match="another contract"), site.node(plant(FORMAL)):
        pass


def test_a_readings_log_that_was_created_anew_is_refused(site: Site) -> None:
    site.add_readings(readings(20))
    site.run()
    for file in site.folder.glob("readings.db*"):
        file.unlink()
    with pytest.raises(InvalidState, match="readings log was created anew"), site.node():
        pass


def test_a_federation_log_that_was_created_anew_gets_everything_once_more(tmp_path: Path) -> None:
    site = Site(tmp_path, publish_readings=20, publish_s=1.0)
    site.add_readings(readings(60))
    with site.node() as node:
        while node.step():
            pass
        nodes = node.nodes
    before = site.updates()
    assert len(before[-1].arrays["weight"]) < nodes, "it holds what changed"
    for file in site.folder.glob("federation.db*"):
        file.unlink()
    with site.node() as node:
        site.clock.now += 2.0
        assert not node.up_to_date
        assert node.step(), "without a single new reading"
        assert node.up_to_date
    *repeated, published = site.updates()
    assert [update.encode() for update in repeated] == [update.encode() for update in before], (
        "as at every start"
    )
    assert len(published.arrays["weight"]) == nodes
    assert published.sequence == before[-1].sequence + 1
    with site.node() as node:
        site.clock.now += 2.0
        assert not node.step(), "only once"


def test_publishing_everything_again_survives_a_kill_before_it_is_published(tmp_path: Path) -> None:
    site = Site(tmp_path, publish_readings=20, publish_s=1.0)
    site.add_readings(readings(60))
    site.run()
    for file in site.folder.glob("federation.db*"):
        file.unlink()
    site.add_readings([["wet"]])
    with site.node() as node:
        assert node.step(), "the rejected reading"
        assert not node.step(), "the interval is not over; the checkpoint is stored"
        nodes = node.nodes
    before = len(site.updates())
    with site.node() as node:
        site.clock.now += 2.0
        assert not node.up_to_date
        assert node.step()
        assert node.up_to_date
    newest = site.updates()[-1]
    assert len(site.updates()) > before
    assert len(newest.arrays["weight"]) == nodes


def test_another_noise_key_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path, plant(FORMAL))
    site.add_readings(readings(20))
    site.run()
    with pytest.raises(InvalidState, match="noise key"), site.node(key=bytes(32)):
        pass


def test_without_a_noise_key_only_mode_off_works(tmp_path: Path) -> None:
    with (
        pytest.raises(SettingsError, match="needs the client's noise key"),
        Site(tmp_path / "formal", plant(FORMAL)).node(key=None),
    ):
        pass
    with Site(tmp_path / "off").node(key=None) as node:
        assert not node.step()


@pytest.mark.parametrize("name", ["Attic", "", "../attic", "a b"])
def test_an_invalid_client_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="client name"), Site(tmp_path, client=name).node():
        pass


def test_readings_removed_before_they_were_learnt_raise_unless_gaps_are_accepted(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, readings_bytes_max=5000)
    site.add_readings(readings(10))
    site.run()
    for seed in range(5):
        site.add_readings(readings(50, seed))
    with site.node() as node, pytest.raises(OffsetOutOfRange, match="accept_gap = true"):
        node.step()
    site.settings = site.settings.model_copy(update={"accept_gap": True})
    assert 10 < site.run()["learned"] < 260


# Privacy.


def test_in_mode_off_readings_are_clipped_to_their_bounds(site: Site) -> None:
    values = readings(50)
    values[3] = [1e9, -1e9]
    site.add_readings(values)
    assert site.run()["clipped"] == 1
    (update,) = site.updates()
    assert update.arrays["weight"].min() >= 0.0
    assert update.arrays["weight"].max() <= 1.0


def test_in_mode_paper_readings_without_a_range_are_withheld_and_counted(tmp_path: Path) -> None:
    site = Site(tmp_path, plant(PAPER), publish_readings=60)
    site.add_readings(np.array([[20.0, 50.0]] * 5 + [[20.0, 51.0]] * 5))
    site.add_readings(readings(50))
    totals = site.run()
    assert totals["withheld"] == 10, "the tenth still had no range of its first feature"
    assert totals["learned"] == 50
    assert [update.readings for update in site.updates()] == [50], (
        "the withheld ones count among none"
    )


def test_of_withheld_readings_alone_their_number_is_published_once(tmp_path: Path) -> None:
    site = Site(tmp_path, plant(PAPER), publish_s=1.0)
    site.add_readings(np.array([[20.0, 50.0]] * 100))
    with site.node() as node:
        node.step()
        site.clock.now += 10
        assert not node.step()
        assert [update.rejected for update in site.updates()] == [50, 100]
        assert node.totals == {
            "read": 100,
            "refused": 0,
            "learned": 0,
            "rejected": 0,
            "withheld": 100,
            "clipped": 0,
            "updates": 2,
        }


SENTINEL = 17.123456789
WORD = "gibberish8675309"
CLOCKS = ("created", "msecs", "relativeCreated")


@pytest.mark.parametrize("privacy", [FORMAL, PAPER], ids=lambda privacy: privacy["mode"])
def test_no_raw_value_is_in_a_log_line_a_metric_or_a_message(
    tmp_path: Path, privacy: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path, plant(privacy), label=True, publish_readings=20)
    odd = [
        [SENTINEL],
        [SENTINEL, WORD],
        [SENTINEL, math.nan],
        [SENTINEL, None],
        [math.inf, SENTINEL],
        [SENTINEL, [WORD]],
    ]
    site.add_readings(
        [*readings(60), *[[SENTINEL, 100 * SENTINEL]] * 3, *odd, *readings(60, seed=1)]
    )
    site.add_records((pack(WORD), HEADERS), (WORD.encode(), ()))
    with caplog.at_level(logging.DEBUG), site.node() as node:
        while node.step():
            pass
        page = generate_latest(node.metrics.registry).decode()
    # Without the clocks of the logging library, whose digits may be any.
    lines = str(
        [
            {name: value for name, value in vars(record).items() if name not in CLOCKS}
            for record in caplog.records
        ]
    )
    published = b"".join(
        part for record in site.published() for part in (record.key or b"", record.value or b"")
    )
    assert len(site.published()) == 6
    assert len(site.rejected()) == 8
    # Not preceded by a digit: these may be the last digits of a time.
    for text in (r"(?<!\d)17\.1234", r"(?<!\d)1712\.34", WORD):
        assert re.search(text, lines + page) is None
        assert re.search(text.encode(), published) is None
    unit = (SENTINEL + 10) / 60
    for number in (SENTINEL, 100 * SENTINEL, unit):
        assert struct.pack("<d", number) not in published
        assert struct.pack("<d", number) not in page.encode()


# Rejected readings.


def test_a_rejected_reading_is_kept_locally_with_its_bytes_and_reason_under_its_place(
    site: Site,
) -> None:
    odd: list[tuple[bytes | None, Reason]] = [
        (None, "malformed"),
        (b"junk", "malformed"),
        (pack({"time": None, "values": [1.0]}), "width"),
        (pack({"time": None, "values": [1.0, None]}), "missing"),
        (pack({"time": None, "values": [1.0, "wet"]}), "not_a_number"),
        (pack({"time": None, "values": np.array([math.inf, 0.0])}), "infinite"),
    ]
    site.add_readings(readings(30))
    site.add_records(*((value, HEADERS) for value, _ in odd))
    site.add_readings(readings(30, seed=1))
    totals = site.run()
    assert (totals["learned"], totals["rejected"]) == (60, len(odd))
    aside = site.rejected()
    assert len(aside) == len(odd)
    for number, (value, reason) in enumerate(odd, 30):
        record = aside[f"0/{number}".encode()]
        assert record.value == (value or b"")
        assert dict(record.headers)["reason"].decode() == reason
    site.run()
    assert site.rejected() == aside


def test_the_largest_record_can_be_kept_as_rejected(site: Site) -> None:
    headers = (*HEADERS, ("h", bytes(1000)))
    room = READINGS_SETTINGS.record_bytes_max - sum(
        len(name) + len(value) for name, value in headers
    )
    site.add_records((bytes(room), headers))
    site.add_readings(readings(50))
    assert site.run()["rejected"] == 1
    assert len(site.updates()) == 1


# Metrics.


def test_metrics_count_readings_by_result_also_over_a_restart(tmp_path: Path) -> None:
    site = Site(tmp_path, plant(PAPER))
    still: list[object] = [[20.0, 50.0]] * 4
    site.add_readings([*still, ["wet"], *readings(46), [1e6, 50.0]])
    with site.node() as node:
        while node.step():
            pass
        value = node.metrics.registry.get_sample_value
        counted = {
            result: value("shoal_readings_total", {"result": result})
            for result in ("learned", "rejected", "withheld", "clipped")
        }
        assert counted == {"learned": 47, "rejected": 1, "withheld": 4, "clipped": 1}
        assert value("shoal_readings_total", {"result": "repeated"}) == 0
        assert value("shoal_checkpoint_timestamp_seconds") == site.clock()
        assert value("shoal_nodes", {"model": "clusters"}) == node.nodes > 0
        assert value("shoal_consumer_lag_records", {"topic": "readings"}) == 0
        assert value("shoal_privacy_epsilon_spent") == math.inf
        assert value("shoal_privacy_epsilon_limit") == math.inf, "no guarantee, no limit"
    site.add_readings(readings(10, seed=3))
    with site.node() as node:
        while node.step():
            pass
        assert (
            node.metrics.registry.get_sample_value("shoal_readings_total", {"result": "learned"})
            == 10
        )


def test_the_lag_is_what_is_left_to_read_and_nothing_once_a_read_has_found_none(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, plant(OFF), batch_readings_max=20)

    def lag(node: ClientNode) -> float | None:
        return node.metrics.registry.get_sample_value(
            "shoal_consumer_lag_records", {"topic": "readings"}
        )

    with site.node() as node:
        site.add_readings(readings(30))
        node.step()
        assert lag(node) == 10
        while node.step():
            pass
        assert lag(node) == 0
        site.add_readings(readings(30, seed=2))
        node.step()
        assert lag(node) == 10, "an earlier read that found none does not count"


def test_readings_learnt_again_after_a_lost_store_count_once(tmp_path: Path) -> None:
    site = Site(tmp_path, plant(OFF))
    metrics = ClientMetrics()
    value = metrics.registry.get_sample_value
    site.add_readings(readings(30))
    with site.node(metrics=metrics) as node:
        node.step()
    saved = {path: path.read_bytes() for path in tmp_path.rglob("checkpoint.db*")}
    site.add_readings(readings(15, seed=1))
    with site.node(metrics=metrics) as node:
        node.step()
    # The newest store is lost, as after a kill before it.
    for path in tmp_path.rglob("checkpoint.db*"):
        path.unlink()
    for path, content in saved.items():
        path.write_bytes(content)
    with site.node(metrics=metrics) as node:
        assert value("shoal_readings_total", {"result": "repeated"}) == 15
        assert value("shoal_consumer_lag_records", {"topic": "readings"}) == 15, (
            "also before the first step"
        )
        node.step()
        site.add_readings(readings(7, seed=2))
        node.step()
    assert value("shoal_readings_total", {"result": "learned"}) == 52
    assert value("shoal_readings_total", {"result": "repeated"}) == 15


@pytest.mark.parametrize("epsilon", [0.5, 8.0, 100.0])
def test_the_epsilon_spent_on_a_reading_is_at_most_what_the_contract_allows_and_hardly_less(
    tmp_path: Path, epsilon: float
) -> None:
    with Site(tmp_path, plant({"mode": "formal", "epsilon_per_reading": epsilon})).node() as node:
        value = node.metrics.registry.get_sample_value
        spent = value("shoal_privacy_epsilon_spent")
        limit = value("shoal_privacy_epsilon_limit")
    assert limit == epsilon
    assert spent is not None
    assert 0.99 * epsilon < spent <= epsilon


def test_whether_a_reading_is_rejected_moves_no_update_of_noisy_rows(tmp_path: Path) -> None:
    """One reading in another's place, valid or not: the updates have the same numbers, places and
    times."""
    seen = []
    for name, value in (
        ("valid", [20.0, 50.0]),
        ("rejected", [20.0, "wet"]),
        ("missing", [None, 50.0]),
    ):
        privacy = {**FORMAL, "times": "public"}
        site = Site(tmp_path / name, plant(privacy), publish_readings=20, batch_readings_max=13)
        values = [list(row) for row in readings(100).tolist()]
        values[19] = value
        site.add_readings(values)
        site.run()
        seen.append(
            [
                (update.sequence, update.readings, update.newest_reading_at)
                for update in site.updates()
            ]
        )
    assert seen[0] == seen[1] == seen[2]
    assert [(readings_of, at) for _, readings_of, at in seen[0]] == [
        (20, 1e9 + 20 * n - 1) for n in range(1, 6)
    ]

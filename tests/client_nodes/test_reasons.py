"""Reasons of novel readings: the features outside the usual values of a cluster, streaks, and where
both may go."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from shoal.client_nodes.labelling.labelled_readings import LabelledBlock
from shoal.client_nodes.labelling.novelty import KNOWN_MAX, KNOWN_MIN
from shoal.client_nodes.labelling.streaks import Streaks
from shoal.client_nodes.labelling.usual_values import VALUE_BINS, UsualValues
from shoal.client_nodes.labelling.writers import CsvWriter
from shoal.config.contract import rounded
from shoal.config.settings import load_config
from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.codec import pack, unpack
from shoal.protocol.events import SiteEvent
from shoal.protocol.labels import Label, Reason
from shoal.protocol.topics import SITE_EVENTS, ensure_local_topics
from shoal.runtime.logs import open_client_log
from shoal.server_node.outputs.alert_rules import Rule
from shoal.server_node.outputs.events_command import events as events_command
from shoal.transports.base import latest
from tests.client_nodes.known_clusters import FIRST_IDENTITY, known_snapshot, near_nodes, publish
from tests.client_nodes.site import Site
from tests.house.small_federation import create_federation
from tests.server_node.test_forwarding import Receiver
from tests.small_plant import plant

CONTRACT = plant()
FEATURES = CONTRACT.features


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def usual(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform([0.4, 0.2], [0.6, 0.3], (n, 2))


def asked(
    values: UsualValues, unit: list[list[float]], novel: bool = True
) -> dict[int, list[tuple[int, bool]]]:
    n = len(unit)
    found = values.reasons(
        np.full(n, 7), np.array(unit), np.full(n, novel), np.zeros(n, dtype=bool)
    )
    return {place: [faults[:2] for faults in several] for place, several in found.items()}


def learnt(n: int, pieces: int = 1) -> UsualValues:
    values = UsualValues(2)
    for piece in np.array_split(usual(n), pieces):
        there = np.ones(len(piece), dtype=bool)
        assert values.reasons(np.full(len(piece), 7), piece, ~there, there) == {}
    return values


def test_the_feature_farthest_outside_comes_first_and_what_is_usual_is_not_named() -> None:
    values = learnt(1000)
    rows = [[0.5, 0.9], [0.1, 0.25], [0.95, 0.45], [0.5, 0.25], [np.nan, 0.9]]
    assert asked(values, rows) == {
        0: [(1, True)],
        1: [(0, False)],
        2: [(0, True), (1, True)],
        3: [],
        4: [(1, True)],
    }
    assert asked(values, rows, novel=False) == {}
    (outside,) = values.reasons(
        np.array([7]), np.array([[0.5, 0.9]]), np.array([True]), np.array([False])
    )[0]
    assert outside.low == pytest.approx(0.201, abs=1 / VALUE_BINS)
    assert outside.high == pytest.approx(0.299, abs=1 / VALUE_BINS)
    (outside,) = values.reasons(
        np.array([7]), np.array([[1.4, 0.25]]), np.array([True]), np.array([False])
    )[0]
    assert outside.low == pytest.approx(0.402, abs=1 / VALUE_BINS)
    assert outside.high == pytest.approx(0.598, abs=1 / VALUE_BINS)


def test_nothing_is_usual_before_enough_readings_and_nothing_is_known_of_no_cluster() -> None:
    assert asked(learnt(KNOWN_MIN - 1), [[0.5, 0.9]]) == {}
    assert asked(learnt(KNOWN_MIN), [[0.5, 0.9]]) == {0: [(1, True)]}
    nobody = UsualValues(2).reasons(
        np.array([-1]), np.array([[0.5, 0.9]]), np.array([True]), np.array([False])
    )
    assert nobody == {}
    assert (
        UsualValues(2).reasons(
            np.empty(0, int), np.empty((0, 2)), np.empty(0, bool), np.empty(0, bool)
        )
        == {}
    )


def test_any_batching_gives_the_same_also_across_a_halving_and_a_restart() -> None:
    n = KNOWN_MAX + 500
    rng = np.random.default_rng(1)
    unit = usual(n)
    novel = rng.random(n) < 0.001
    reference = rng.integers(3, 5, n)

    def run(cuts: list[int], restart: bool) -> tuple[dict[int, object], bytes]:
        values = UsualValues(2)
        found = {}
        start = 0
        for end in [*cuts, n]:
            here = slice(start, end)
            found |= {
                start + place: several
                for place, several in values.reasons(
                    reference[here], unit[here], novel[here], ~novel[here]
                ).items()
            }
            if restart:
                state = unpack(pack(values.state()))
                values = UsualValues(2)
                values.restore(state)
            start = end
        return found, pack(values.state())

    whole = run([], restart=False)
    assert len(whole[0]) > 10
    assert run([1, 700, 20_000], restart=True) == whole


def test_old_readings_lose_weight_so_that_slow_change_becomes_usual() -> None:
    counted = [learnt(n).state()["count"].sum() for n in (KNOWN_MAX - 1, KNOWN_MAX)]
    assert counted[0] == 2 * (KNOWN_MAX - 1)
    assert counted[1] <= KNOWN_MAX, "half of those of two features"


def test_memory_is_bounded_and_a_damaged_state_is_refused() -> None:
    values = UsualValues(2)
    row = np.array([[0.5, 0.5]])
    there = np.array([True])
    for identity in range(values._clusters_max + 3):
        values.reasons(np.array([identity]), row, ~there, there)
    state = values.state()
    assert len(state["identities"]) == values._clusters_max
    assert state["identities"][0] == 3
    for name, damage in {"count": -1, "cell": 10**6, "known": KNOWN_MAX + 1}.items():
        entries = state[name]
        damaged = [damage] * len(entries)
        if isinstance(entries, np.ndarray):
            damaged = np.full_like(entries, damage)
        with pytest.raises(InvalidState):
            UsualValues(2).restore({**state, name: damaged})


OUTSIDE = Reason(0, True, 1.0, 2.0)


def label(novel: bool, reasons: tuple[Reason, ...] = (OUTSIDE,)) -> Label:
    return Label(
        0,
        3,
        "day",
        0.9999 if novel else 0.5,
        4,
        1e9,
        "day" if novel else "",
        reasons if novel else (),
    )


def kinds(streak: Streaks, pattern: str) -> list[str]:
    labels = [label(mark == "x") for mark in pattern]
    places = [(0, n) for n in range(len(labels))]
    return [event.kind for event in streak.follow(labels, places, ["0"] * len(labels))]


def test_a_streak_begins_and_ends_after_as_many_readings_in_a_row() -> None:
    streak = Streaks(CONTRACT, "attic", "clusters", 3)
    assert kinds(streak, "xx.xx..xx.") == []
    assert kinds(streak, "xxx") == ["novel_streak"]
    assert kinds(streak, "xx..x..") == []
    assert kinds(streak, ".") == ["novel_streak_ended"]
    assert kinds(streak, "....xx") == []


def test_a_streak_goes_on_after_a_restart_and_says_why_without_any_value() -> None:
    streak, other = (Streaks(CONTRACT, "attic", "clusters", 3) for _ in range(2))
    kinds(streak, "xx")
    other.restore(unpack(pack(streak.state())))
    (event,) = other.follow([label(True)], [(0, 12)], ["0"])
    assert asdict(event) == asdict(SiteEvent.decode(event.encode()))
    assert (event.id, event.readings) == ("clusters/0/12/novel_streak", 3)
    assert event.outside == {FEATURES[0].name: "above"}
    assert (
        event.text
        == f"3 readings in a row are novel: {FEATURES[0].name} above its usual 1.0-2.0 in day"
    )
    plain = Streaks(CONTRACT, "attic", "clusters", 2)
    (event,) = plain.follow([label(True, ())] * 2, [(0, 1), (0, 2)], ["0", "0"])
    assert event.text.endswith("their combination is not")
    with pytest.raises(InvalidState, match="begun"):
        other.restore({"devices": [{"device": "0", "begun": 1}]})


def test_readings_of_one_device_do_not_interrupt_the_streak_of_another() -> None:
    streaks = Streaks(CONTRACT, "attic", "clusters", 3)
    labels = [label(mark == "x") for mark in "x.x.x.x....."]
    places = [(0, n) for n in range(len(labels))]
    in_turn = ["broken", "good"] * 6
    events = streaks.follow(labels, places, in_turn)
    assert [(event.kind, event.id) for event in events] == [
        ("novel_streak", "clusters/0/4/novel_streak")
    ]
    assert streaks.follow(labels[-1:], [(0, 12)], ["good"]) == []
    (ended,) = streaks.follow(labels[-1:], [(0, 13)], ["broken"])
    assert (ended.kind, ended.readings) == ("novel_streak_ended", 4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "birth"},
        {"client": "no name!"},
        {"readings": -1},
        {"outside": {"warm": "left"}},
        {"at": 1e99},
        {"model": ""},
        {"feature": "warm"},
        {"kind": "stuck", "feature": "warm"},
        {"kind": "stuck", "model": "", "version": 0},
        {"kind": "drift", "feature": ""},
        {"kind": "drift", "feature": "warm", "model": ""},
    ],
)
def test_a_site_event_that_cannot_be_true_is_refused(wrong: dict[str, object]) -> None:
    good = SiteEvent("a/0/1/k", "novel_streak", "f", "c", "m", 1, 3, None)
    assert SiteEvent.decode(good.encode()) == good
    stuck = SiteEvent("stuck/0/1/k/0", "stuck", "f", "c", "", 0, 3, None, feature="warm")
    assert SiteEvent.decode(stuck.encode()) == stuck
    with pytest.raises(MessageRejected):
        SiteEvent.decode(json.dumps({**json.loads(good.encode()), **wrong}).encode())


def test_novel_readings_get_reasons_that_are_exported_with_values_and_published_without(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, label=True, publish_labels=True, novelty_quantile=0.99, novel_streak=5)
    snapshot = known_snapshot(site.contract)
    publish(site, snapshot)
    ordinary = near_nodes(snapshot, site.contract, 3000)
    strange = np.tile([39.5, 99.0], (8, 1))
    site.add_readings(np.concatenate([ordinary, strange, ordinary[:40]]))
    site.run()
    own = [Label.decode(pack(site.labels()[f"clusters/0/{n}".encode()])) for n in range(3000, 3008)]
    assert all(reason.usual_in and reason.reasons for reason in own)
    published = site.published_labels()[b"attic/clusters/0/3000"]
    assert published["outside"]
    assert set(published["outside"].values()) <= {"above", "below"}
    assert "39.5" not in str(published)
    with site.readings() as log:
        found = {
            key.decode(): SiteEvent.decode(record.value)
            for key, record in latest(log, SITE_EVENTS).items()
        }
    assert [reason.kind for reason in found.values()] == ["novel_streak", "novel_streak_ended"]
    begun = found["clusters/0/3004/novel_streak"]
    assert set(begun.outside or {}) <= {feature.name for feature in site.contract.features}
    assert "39.5" not in begun.text
    text = io.StringIO()
    CsvWriter(text, site.contract.features).write(LabelledBlock([1e9], strange[:1], [own[0]]))
    (row,) = csv.DictReader(io.StringIO(text.getvalue()))
    first = FEATURES[own[0].reasons[0].feature]
    value = {"warm": "39.5", "damp": "99"}[first.name]
    assert row["reason"].startswith(f"{first.name} {value}")
    assert row["reason"].endswith(f" in {own[0].usual_in}")


def test_a_reason_has_the_unit_once_where_the_name_of_the_feature_ends_with_it() -> None:
    feature = FEATURES[0].model_copy(update={"name": "Flow [l/s]", "unit": "l/s"})
    features = (feature, *FEATURES[1:])
    text = io.StringIO()
    values = np.full((1, len(features)), 9.0)
    CsvWriter(text, features).write(LabelledBlock([1e9], values, [label(True)]))
    (row,) = csv.DictReader(io.StringIO(text.getvalue()))
    assert row["reason"].startswith("Flow 9.0 l/s: usual")
    streaks = Streaks(CONTRACT.model_copy(update={"features": features}), "attic", "clusters", 1)
    (event,) = streaks.follow([label(True)], [(0, 1)], ["0"])
    assert "novel: Flow above its usual" in event.text


def test_a_reason_names_no_feature_that_is_as_usual_as_it_is_shown(tmp_path: Path) -> None:
    site = Site(tmp_path, label=True, novelty_quantile=0.99)
    snapshot = known_snapshot(site.contract)
    publish(site, snapshot)
    usual_rows = near_nodes(snapshot, site.contract, 3000)
    site.add_readings(np.concatenate([usual_rows, usual_rows]))
    site.run()
    labels = site.labels()
    named = 0
    for place, row in enumerate(usual_rows):
        label = Label.decode(pack(labels[f"clusters/0/{3000 + place}".encode()]))
        for reason in label.reasons:
            feature = site.contract.features[reason.feature]
            value, low, high = rounded([row[reason.feature], reason.low, reason.high], feature)
            named += 1
            assert float(value) > float(high) if reason.above else float(value) < float(low)
    assert named > 0


def test_the_site_events_of_a_client_are_listed_match_rules_and_go_to_the_sinks_of_the_site_only(
    tmp_path: Path, receiver: Receiver
) -> None:
    file = create_federation(tmp_path, readings=5)
    client = "attic"
    more = f'[events]\nfolder = "forwarded"\n[events.webhook]\nurl = "{receiver.url}"\n'
    file.write_text(file.read_text(encoding="utf-8") + more, encoding="utf-8")
    config = load_config(file)
    event = SiteEvent(
        "m/0/9/novel_streak",
        "novel_streak",
        "f",
        client,
        "clusters",
        1,
        10,
        1e9,
        FIRST_IDENTITY,
        "cellar",
    )
    run = CliRunner()
    words = ["list", "--config", str(file), "--client", client]
    assert run.invoke(events_command, words).stdout == ""
    with closing(open_client_log(config, client)) as log:
        # As a client does at its start: a command that reads declares nothing.
        ensure_local_topics(log, config.client)
        log.publish(SITE_EVENTS, event.encode(), event.id.encode(), event.headers())
        log.flush()
    assert (
        run.invoke(events_command, words).output == "2001-09-09T01:46:40Z clusters novel_streak\n"
    )
    forward = ["forward", "--config", str(file), "--until-idle", "0.1"]
    for words in (forward, [*forward, "--client", client], [*forward, "--client", client]):
        assert run.invoke(events_command, words).exit_code == 0
    assert receiver.ids == [event.id], "once, and not by the forwarder of the federation's events"
    assert receiver.alerts[0]["event"]["kind"] == "novel_streak"
    words = ["list", "--config", str(file), "--client", client]
    absent = run.invoke(events_command, [*words[:-1], "nobody"])
    assert "has no readings" in str(absent.exception)
    assert Rule(name="a", events=["novel_streak"], cluster="cellar").matches(event)
    assert not Rule(name="a", events=["birth"]).matches(event)
    assert not Rule(name="a", share_min=0.1).matches(event)

"""Audits of faults that an earlier version had: each makes the situation again in which one
showed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import zip_longest
from pathlib import Path
from typing import Final, cast

import numpy as np

from shoal.client_nodes.bootstrap import CHECKPOINT, NOISE_KEY, open_client
from shoal.client_nodes.own_updates import OwnUpdates
from shoal.config.contract import Model, Privacy
from shoal.config.privacy_report import spent_in_a_day
from shoal.config.resolved import resolve
from shoal.config.sections import ClientSettings
from shoal.config.settings import Config, LogSettings, ReadingsSettings
from shoal.errors import InvalidState, LogError, SettingsError
from shoal.kernels.arrays import Floats
from shoal.onebox.audit.client import NAME, NOW, AuditedClient, in_folder, new_records
from shoal.onebox.audit.statistics import EventFinding
from shoal.onebox.audit.windows import CountsAttack
from shoal.privacy.formal import beliefs
from shoal.privacy.ledger import LEDGER, read_spending
from shoal.protocol.codec import pack
from shoal.protocol.conflicts import CONFLICTS_KEY, ConflictList, PublishedDigests
from shoal.protocol.messages import Update
from shoal.protocol.readings import USER_ID, Reading
from shoal.protocol.topics import READINGS, readings_settings
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.transports import open_log
from shoal.transports.base import Log, beginning, latest
from shoal.transports.sqlite.log import SqliteLog

WINDOWS: Final = 3
LOST: Final = (
    (CHECKPOINT, NOISE_KEY, LEDGER),
    (CHECKPOINT, LEDGER),
    (CHECKPOINT, NOISE_KEY),
    (CHECKPOINT,),
    (NOISE_KEY,),
    (LEDGER,),
)
"""files of a client that are deleted, while its readings stay"""
CLOCK_WINDOWS = 10
CLOCK_WINDOW_S = 60.0
ON_SHARED_COUNTS: Final = "cluster_tree_from_counts"
RATES: Final = (1.0, 96.0, 1440.0, 86_400.0)
"""readings of a device a day"""


def audit_regressions(
    config: Config, folder: Path, generator: np.random.Generator
) -> Iterator[EventFinding]:
    """All that fit models of private counts of the contract, in scratch folders below `folder`."""
    readings = _readings(config, generator)
    yield audit_lost_state(config, folder / "lost", readings)
    yield audit_copies(config, folder / "copies", readings)
    yield audit_unseen(config, folder / "unseen")
    yield audit_shared_ledger(config, folder / "shared", readings)
    yield audit_presence(config, folder / "presence", generator)
    yield audit_stream_names(config)
    yield audit_library(generator)
    yield audit_words(config)


def _counting(config: Config, folder: Path) -> Config:
    """The federation in a scratch folder with its models of private counts alone."""
    return in_folder(config, folder, [model.declared for model in config.resolved.counted])


def _readings(config: Config, generator: np.random.Generator) -> Floats:
    size = WINDOWS * config.contract.privacy.window_readings
    return config.resolved.bounds.from_unit(
        generator.uniform(0.1, 0.9, (size, config.contract.width))
    )


def audit_lost_state(config: Config, folder: Path, readings: Floats) -> EventFinding:
    """Whether a client that has lost files, and kept its readings, publishes what it has published
    once more."""
    twice = 0
    for number, lost in enumerate(LOST):
        audited = _counting(config, folder / str(number))
        with AuditedClient(audited) as client:
            client.publish(readings)
        before = len(_updates(audited))
        for name in lost:
            (audited.client.folder / NAME / name).unlink()
        twice += _starts_and_publishes(audited, before)
    return EventFinding(
        "files lost",
        "client",
        len(LOST),
        "losses",
        twice,
        "after which readings were published twice",
    )


def _starts_and_publishes(config: Config, before: int) -> bool:
    try:
        with resumed(open_client(config, NAME, clock=lambda: NOW)) as node:
            while node.step():
                pass
    # A client that refuses to start publishes nothing twice, which is what it should do.
    except (InvalidState, SettingsError):
        pass
    return len(_updates(config)) > before


def _updates(config: Config) -> list[Update]:
    topic = config.contract.updates_topic
    with closing(open_log(config.log)) as log:
        records, _ = new_records(log, topic, beginning(log, topic))
    return [Update.decode(record.value, record.headers) for record in records]


def audit_copies(config: Config, folder: Path, readings: Floats) -> EventFinding:
    """Whether two processes that run from copies of one folder go unnoticed by the server."""
    audited = _counting(config, folder)
    audited = audited.model_copy(
        update={"client": audited.client.model_copy(update={"label": False})}
    )
    with AuditedClient(audited) as client:
        client.publish(readings)
    copy = audited.model_copy(
        update={"client": audited.client.model_copy(update={"folder": folder / "copy"})}
    )
    shutil.copytree(audited.client.folder, copy.client.folder)
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(resumed(open_client(config, NAME, clock=lambda: NOW)))
            for config in (audited, copy)
        ]
        # The older process publishes something new after the newer one.
        for number, (site, node) in enumerate(
            ((audited, nodes[0]), (copy, nodes[1]), (audited, nodes[0])), start=1
        ):
            _write(site, np.roll(readings, number, axis=0))
            while node.step():
                pass
    with resumed(open_server(audited, clock=lambda: NOW)) as server:
        while server.step():
            pass
    with closing(open_log(audited.log)) as log:
        record = latest(log, audited.contract.snapshots_topic).get(CONFLICTS_KEY)
    named = set()
    if record is not None:
        conflicts = ConflictList.decode(record.value, record.headers)
        named = {copied.model for copied in conflicts.copies}
    missed = len({model.name for model in audited.resolved.counted} - named)
    return EventFinding(
        "copies of a client", "server", len(named) + missed, "models", missed, "without an alarm"
    )


def _write(config: Config, values: Floats, clock: Callable[[], float] = lambda: NOW) -> None:
    """Readings (n, d) into a client's log, each of a user of its own."""
    with closing(
        # Not durable: the scratch folder of an audit that a power cut ends is of no use.
        SqliteLog(config.client.folder / NAME / "readings.db", durable=False, clock=clock)
    ) as log:
        log.ensure(READINGS, readings_settings(config.client))
        for number, value in enumerate(values):
            user = (USER_ID, f"{clock()} {number}".encode())
            log.publish(
                READINGS,
                Reading(clock() + number / 1e3, value).encode(),
                headers=(*Reading.headers(), user),
            )
        log.flush()


class _Unreadable:
    """A log whose updates this client has no right to read."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def bounds(self, topic: str) -> object:
        return self._log.bounds(topic)

    def read(self, *_: object) -> object:
        raise LogError("not authorised to read")


def audit_unseen(config: Config, folder: Path) -> EventFinding:
    """Whether a client that may not read what it has published starts nevertheless."""
    audited = _counting(config, folder)
    with closing(open_log(audited.log)) as log:
        log.ensure(audited.contract.updates_topic)
        log.publish(audited.contract.updates_topic, b"", b"")
        log.flush()
        own = OwnUpdates(cast("Log", _Unreadable(log)), audited.resolved, NAME, bytes(32))
        try:
            own.check(PublishedDigests(), {})
            started = 1
        except SettingsError:
            started = 0
    return EventFinding(
        "right to read", "client", 1, "starts", started, "without a look at its own updates"
    )


def audit_shared_ledger(config: Config, folder: Path, readings: Floats) -> EventFinding:
    """Whether what two federations publish of the same readings is more than the one ledger of the
    site holds."""
    first = _counting(config, folder)
    second = first.model_copy(
        update={
            "contract": first.contract.model_copy(
                update={"federation": f"{first.contract.federation[:50]}-other"}
            ),
            "log": LogSettings(address=f"sqlite:{folder / 'other.db'}"),
            "client": ClientSettings(folder=folder / "others", publish_s=86400),
            "readings": ReadingsSettings(folder=first.client.folder),
        }
    )
    with AuditedClient(first) as client:
        client.publish(readings)
    with resumed(open_client(second, NAME, clock=lambda: NOW)) as node:
        while node.step():
            pass
    accounts = read_spending(first.client.folder / NAME / LEDGER)
    published = len(_updates(first)) + len(_updates(second))
    charged = sum(model.windows for account in accounts.values() for model in account.models)
    return EventFinding(
        "one ledger",
        "two federations",
        published,
        "windows published",
        max(0, published - charged),
        "that the ledger lacks",
    )


def audit_presence(config: Config, folder: Path, generator: np.random.Generator) -> EventFinding:
    """Whether, with `hide_presence`, anything but counts tells a client with readings from one
    without."""
    privacy = config.contract.privacy
    epsilon = privacy.counts_epsilon or next(iter(config.resolved.counted)).epsilon
    terms = {
        "mode": privacy.mode, "counts_epsilon": epsilon, "window_readings": privacy.window_readings,
        "window_s": CLOCK_WINDOW_S, "hide_presence": True,
    }  # fmt: skip
    seen = []
    for present in (True, False):
        audited = _counting(config, folder / str(present))
        contract = audited.contract.model_copy(update={"privacy": Privacy.model_validate(terms)})
        client = audited.client.model_copy(update={"drop_repeats": False})
        audited = audited.model_copy(update={"contract": contract, "client": client})
        attacks = {
            model.name: CountsAttack(audited.resolved, model) for model in audited.resolved.counted
        }
        seen.append(
            [
                attacks[update.model].public_part(update)
                for update in _by_the_clock(audited, present, generator)
            ]
        )
    different = sum(public != other for public, other in zip_longest(*seen))
    return EventFinding(
        "hidden presence", "client", len(seen[0]), "updates", different, "that tell of readings"
    )


def _by_the_clock(config: Config, present: bool, generator: np.random.Generator) -> list[Update]:
    """Updates of a client in some windows by the clock."""
    now = [NOW]
    (config.client.folder / NAME).mkdir(parents=True)
    with resumed(open_client(config, NAME, clock=lambda: now[0])) as node:
        for _ in range(CLOCK_WINDOWS):
            now[0] += CLOCK_WINDOW_S
            if present:
                unit = generator.uniform(
                    0.1, 0.9, (generator.integers(1, 20), config.contract.width)
                )
                _write(config, config.resolved.bounds.from_unit(unit), lambda: now[0])
            while node.step():
                pass
    return _updates(config)


def audit_stream_names(config: Config) -> EventFinding:
    """Whether counts at two epsilons that are printed alike are one stream, which would have one
    noise."""
    pairs = [(1.0000002, 1.0000004), (4.0, 4.0000001)]
    shared = 0
    for pair in pairs:
        named = set()
        for epsilon in pair:
            privacy = Privacy.model_validate({"mode": "formal", "counts_epsilon": epsilon})
            model = Model.model_validate({"name": "probe", "algorithm": ON_SHARED_COUNTS})
            terms = {
                "privacy": privacy,
                "models": (model,),
                "features": config.contract.features[:1],
            }
            (found,) = resolve(config.contract.model_copy(update=terms)).counted
            named.add("" if found.counts is None else found.counts.stream)
        shared += len(named) < len(pair)
    return EventFinding(
        "names of streams", "contract", len(pairs), "pairs of epsilons", shared, "with one name"
    )


def audit_library(generator: np.random.Generator) -> EventFinding:
    """Whether a stranger who fits DensityTree with its defaults makes the same noise."""
    # scikit-learn takes a second to load.
    from shoal.estimators.density_tree import DensityTree  # noqa: PLC0415 - slow

    rows = generator.uniform(0.0, 1.0, (2000, 2))
    first, second = (pack(DensityTree().fit(rows).state()) for _ in range(2))
    return EventFinding(
        "noise of the library",
        "DensityTree",
        1,
        "fits",
        int(first == second),
        "made again by others",
    )


def audit_words(config: Config) -> EventFinding:
    """Whether what is said of a device is of less than it spends in a day."""
    contract = config.resolved
    wrong = 0
    for rate in RATES:
        day = spent_in_a_day(contract, rate)
        wrong += day is not None and not day.text.endswith(beliefs(day.epsilon))
        if day is not None and not contract.mode.unit.is_user:
            wrong += day.epsilon < (contract.total_epsilon or 0.0) * rate
    return EventFinding(
        "words", "shoal check", len(RATES), "rates", wrong, "called more private than they are"
    )

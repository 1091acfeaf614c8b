"""Three hosts of a site on a real broker, killed again and again within a call that a seed draws,
and a check of what they leave.

    python -m tests.house.host_kills --kills 1000

A kill raises within the call and ends the host as it is: nothing of it is stored or published any
more. The calls are those by which a step stores, charges, commits and publishes, each before and
after it, and the sends of a transaction in the middle. After each kill the changelog, from which
the next host goes on, must have charged all that is published. At the end every update is, to the
bit, that of a client that was never disturbed, and each ledger has charged each window once.

Which host is to have a partition is drawn as well, and a host learns late that it has lost one: a
consumer group would take seconds for each kill, and only says what hosts are to do. What keeps two
of them apart is real: transactions, epochs and the changelog of the broker.
"""

from __future__ import annotations

import itertools
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import pytest
from kafka import KafkaProducer

from benchmarks.machine import facts, one_line
from benchmarks.results import table, write
from shoal.client_nodes.group_host import GroupHost
from shoal.client_nodes.partition_state import PartitionState
from shoal.client_nodes.releases import Releases
from shoal.client_nodes.shared_files import SharedLog
from shoal.config.settings import Config
from shoal.privacy.ledger import Ledger, LedgersFile, Spending
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.site_readings import SiteReadings
from shoal.transports.base import Positions
from shoal.transports.kafka.changelog import PartitionChangelog
from tests.house.small_federation import clock
from tests.house.test_group_hosts import (
    PARTITIONS,
    SENT,
    charged_in_changelog,
    charges,
    charges_alone,
    check_charges,
    kill,
    of_host,
    publish_alone,
    send,
    site_of_small_steps,
    updates_of,
)
from tests.kafka_broker import Broker

HOSTS: Final = 3
KILLED_AT: Final = (
    (SiteReadings, "take_in"),
    (Checkpoint, "save"),
    (Checkpoint, "delete_published"),
    (Ledger, "charge"),
    (Ledger, "charge_rows"),
    (LedgersFile, "restore"),
    (PartitionState, "restore"),
    (PartitionState, "prepare"),
    (PartitionState, "commit"),
    (PartitionChangelog, "open"),
    (PartitionChangelog, "commit"),
    (KafkaProducer, "send"),
    (KafkaProducer, "commit_transaction"),
    (SharedLog, "publish"),
    (SharedLog, "end"),
    (Releases, "note"),
)
"""calls before and after which a host is killed"""
LEARNS: Final = 0.3
"""chance with which a host learns in a step which partitions are its own by now"""
SKIPPED_MAX: Final = 2
"""most calls of the kind that was drawn that go by before the one in which the host is killed"""
PATIENCE: Final = 3
"""steps after which another call is drawn: not every call comes at every time"""


class Division:
    """Divides the partitions among the hosts that are there, anew when one comes or goes."""

    def __init__(self, seed: int) -> None:
        self._generator = random.Random(seed)
        self._members: list[Member] = []
        self._owners: dict[int, Member] = {}

    def join(self, _: Config) -> Member:
        """A new member, which gets some partition or none."""
        member = Member(self, self._generator)
        self._members.append(member)
        for partition in range(PARTITIONS):
            is_taken = self._generator.random() < 1.0 / len(self._members)
            if partition not in self._owners or is_taken:
                self._owners[partition] = member
        return member

    def leave(self, member: Member) -> None:
        """What this one has goes to the others."""
        if member in self._members:
            self._members.remove(member)
        for partition, owner in list(self._owners.items()):
            if owner is member:
                del self._owners[partition]
                if self._members:
                    self._owners[partition] = self._generator.choice(self._members)

    def of(self, member: Member) -> frozenset[int]:
        """The partitions of a member."""
        return frozenset(place for place, owner in self._owners.items() if owner is member)


class Member:
    """A `Group`: a member that learns late what has changed."""

    def __init__(self, division: Division, generator: random.Random) -> None:
        self._division = division
        self._generator = generator
        self._known: frozenset[int] | None = None

    def assigned(self, timeout_s: float = 0.0) -> frozenset[int] | None:
        """The partitions that it knows to be its own."""
        time.sleep(timeout_s)
        if self._generator.random() < LEARNS:
            self._known = self._division.of(self)
        return self._known

    def commit(self, at: Positions, note: str) -> bool:
        """Nothing: no tool looks on."""
        return True

    def has(self, partition: int) -> bool:
        """Whether a partition is its own now."""
        return partition in self._division.of(self)

    def close(self) -> None:
        """Leave."""
        self._division.leave(self)


class Killed(BaseException):
    """Ends a host in the middle of a call; nothing of it goes on."""


class Kills:
    """Kills the host that makes a call that is drawn, before it or after it."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: Counter[str] = Counter()
        """kills by the call"""
        self._generator = random.Random(seed)
        self._place = ""
        """the call of the next kill; none: no kill is to come"""
        self._skips = 0
        """calls of this kind that go by before"""
        self._patience = 0
        for owner, name in KILLED_AT:
            call = self._killing(f"{owner.__name__}.{name}", getattr(owner, name))
            monkeypatch.setattr(owner, name, call)

    def arm(self) -> None:
        """Draw the next call, unless one was drawn a short time ago. Before each step."""
        self._patience -= 1
        if self._place and self._patience > 0:
            return
        owner, name = self._generator.choice(KILLED_AT)
        side = self._generator.choice(("before", "after"))
        self._place = f"{side} {owner.__name__}.{name}"
        self._skips = self._generator.randint(0, SKIPPED_MAX)
        self._patience = PATIENCE

    def disarm(self) -> None:
        """Kill no more."""
        self._place = ""

    def _killing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def killing(*args: Any, **named: Any) -> Any:
            self._meet(f"before {name}")
            result = call(*args, **named)
            self._meet(f"after {name}")
            return result

        return killing

    def _meet(self, place: str) -> None:
        if place != self._place:
            return
        if self._skips:
            self._skips -= 1
            return
        self._place = ""
        self.done[place] += 1
        raise Killed


def run_kills(
    config: Config,
    folder: Path,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    kills_min: int = 0,
) -> Kills:
    """Kill hosts until they have learnt all that was sent, and so many kills have fallen within
    calls. Raises AssertionError where what they leave is not as it must be."""
    send(config, seed)
    alone = publish_alone(config, folder / "alone")
    expected = updates_of(alone)
    kills = Kills(seed, monkeypatch)
    division = Division(seed)
    hosts: dict[int, GroupHost] = {}
    for number in itertools.cycle(range(HOSTS)):
        if number not in hosts:
            # In the folder of before its kill, with what is left there.
            own = of_host(config, f"host-{number}")
            hosts[number] = GroupHost(own, clock=clock, make_group=division.join)
        is_learnt = sum(host.totals()["learned"] for host in hosts.values()) >= SENT
        if is_learnt and kills.done.total() < kills_min:
            # Hosts without anything to do make no calls: those that take over from one do.
            kill(hosts.pop(number))
            continue
        if is_learnt:
            kills.disarm()
            # One that has not learnt yet that it has lost a partition counts its clients as well.
            held = sorted(partition for host in hosts.values() for partition in host.partitions)
            if held == list(range(PARTITIONS)) and updates_of(config) == expected:
                break
        else:
            kills.arm()
        try:
            hosts[number].step(0.02)
        except Killed:
            kill(hosts.pop(number))
            check_ledgers_are_ahead(config)
    found: dict[str, Spending] = {}
    for host in hosts.values():
        found |= charges(host)
        host.close()
    check_charges(found, charges_alone(alone))
    assert updates_of(config) == expected
    return kills


def check_ledgers_are_ahead(config: Config) -> None:
    """What is published now is charged in the changelog, from which the next host goes on."""
    published: Counter[str] = Counter()
    for name, model, *_ in updates_of(config):
        if model == "tree":
            published[name] += 1
    charged = charged_in_changelog(config)
    for name, windows in published.items():
        assert charged[name] >= windows, f"client {name} has published more than is charged"


@contextmanager
def federation(bootstrap: str, seed: int) -> Iterator[tuple[Config, Path, pytest.MonkeyPatch]]:
    """A federation in a folder of its own, as the tests have it."""
    with (
        tempfile.TemporaryDirectory(prefix=f"shoal-host-kills-{seed}-") as folder,
        pytest.MonkeyPatch.context() as monkeypatch,
    ):
        yield site_of_small_steps(Path(folder), bootstrap, monkeypatch), Path(folder), monkeypatch


def kills_of(bootstrap: str, seed: int) -> dict[str, int]:
    """The kills of one seed by call, in a process of its own."""
    with federation(bootstrap, seed) as (config, folder, monkeypatch):
        return dict(run_kills(config, folder, seed, monkeypatch).done)


def page(result: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = []
    for owner, name in KILLED_AT:
        call = f"{owner.__name__}.{name}"
        sides = [f"{result['calls'].get(f'{side} {call}', 0):,}" for side in ("before", "after")]
        lines.append([f"`{call}`", *sides])
    return (
        f"# Kills of hosts\n\nMade by `{result['made_by']}`; do not edit. {HOSTS} hosts of a group"
        f" on a real broker: {result['kills']:,} kills in {result['seeds']} runs, each within a"
        " call that a seed drew. After each kill the changelog had charged all windows that were"
        " published. At the end of each run every update was to the bit that of a client that was"
        " never disturbed, no reading was lost or learnt twice, and each ledger had charged each"
        f" window once.\n\n{table(['killed', 'before', 'after'], lines)}\n"
        f"{one_line(result['machine'])}\n"
    )


@click.command()
@click.option("--kills", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--first-seed", type=int, default=100, show_default=True)
@click.option("--at-once", type=click.IntRange(1), default=2, show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of host_kills.json and host_kills.md.",
)
def main(kills: int, first_seed: int, at_once: int, out: Path | None) -> None:
    """Run seeds until so many kills were made; exit code 1 at the first one that fails."""
    calls: Counter[str] = Counter()
    seeds = 0
    with tempfile.TemporaryDirectory(prefix="shoal-host-kills-broker-") as folder:
        broker = Broker(Path(folder))
        try:
            with ProcessPoolExecutor(at_once) as pool:
                run = partial(kills_of, broker.bootstrap)
                while calls.total() < kills:
                    of_seeds = range(first_seed + seeds, first_seed + seeds + at_once)
                    for done in pool.map(run, of_seeds):
                        calls.update(done)
                    seeds += at_once
                    click.echo(f"{calls.total()} kills, {seeds} seeds", err=True)
        finally:
            broker.stop()
    result = {
        "made_by": f"python -m tests.house.host_kills --kills {kills} --first-seed {first_seed}",
        "kills": calls.total(),
        "seeds": seeds,
        "calls": dict(sorted(calls.items())),
        "machine": facts(("shoal", "kafka-python")),
    }
    click.echo(json.dumps(result))
    if out is not None:
        write(out, "host_kills", result, page(result))


if __name__ == "__main__":
    main()

"""Replicas that share regions through Kafka: how long until all updates show after replicas were
started and killed."""

from __future__ import annotations

import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, quick_option, rounded, table, write
from deploy.kafka.broker import what_is_missing
from shoal.config.resolved import resolve
from shoal.server_node.replicas.region_model import RegionModel, absorb
from shoal.transports import open_log
from shoal.transports.base import Log
from tests.house.processes import Process, killed_on_exit, wait_until
from tests.house.regions import (
    Committed,
    Region,
    assigned,
    assignments,
    make_regions,
    place_of,
    replica,
    snapshot_values,
)
from tests.house.small_federation import all_records
from tests.kafka_broker import Broker

NAMES: Final = ("one", "two", "three", "four")
TAKEOVER_S: Final = 20.0
"""the goal: at most, from a kill until every update that was fed before and after it shows in a
committed snapshot"""


class Trial:
    """Regions, their replicas, and a log to feed the regions through."""

    def __init__(
        self, regions: Sequence[Region], committed: Committed, log: Log, part: int, seed: int
    ) -> None:
        """`part` updates are fed to each region at a time."""
        self.regions = regions
        self._committed = committed
        self._log = log
        self._part = part
        self._chance = random.Random(seed)
        self.replicas: list[Process] = []
        self.steps: list[dict[str, Any]] = []

    def run(self, kills: int) -> dict[str, Any]:
        """One replica, then four, kills, a pause, and down to one; how long each step took, and
        what was committed."""
        for number in (1, 2, 4):
            self.start(number)
        for _ in range(kills):
            self.kill()
        self.pause()
        self.stop(1)
        return {"steps": self.steps, **self.check()}

    def start(self, number: int) -> None:
        """Start replicas until there are `number`."""

        def all_have_regions() -> bool:
            return all(assigned(replica) for replica in self.replicas)

        while len(self.replicas) < number:
            self.replicas.append(replica(self.regions, NAMES[len(self.replicas)]))
        self._measured(f"start replicas, {number} in all", lambda: wait_until(all_have_regions))

    def kill(self) -> None:
        """Kill one of them in the middle of its work, then start it again."""
        place = self.replicas.index(self._busy())
        self._measured("kill one replica", self.replicas[place].kill, feed_first=True)
        before = assignments(self.replicas[place])
        self.replicas[place] = again = self.replicas[place].restarted()
        self._measured("start it again", lambda: wait_until(lambda: assignments(again) > before))

    def pause(self) -> None:
        """Stop the process of one of them until the others have its regions, then let it go on:
        Kafka must fence it."""
        paused = self._busy()
        self._measured("pause one replica", lambda: paused.send(signal.SIGSTOP), feed_first=True)
        before = assignments(paused)

        def let_go_on() -> None:
            paused.send(signal.SIGCONT)
            wait_until(lambda: assignments(paused) > before)

        self._measured("let it go on", let_go_on)

    def stop(self, number: int) -> None:
        """Stop replicas in order until `number` are left."""

        def stop_some() -> None:
            while len(self.replicas) > number:
                ended = self.replicas.pop()
                if ended.stop():
                    raise click.ClickException(
                        f"a replica did not end in order:\n{ended.log_text()[-4000:]}"
                    )

        self._measured(f"stop replicas, {number} left", stop_some, feed_first=True)

    def check(self) -> dict[str, Any]:
        """What was committed, beside what one process publishes that is never killed."""
        found = [self._committed.snapshots[region] for region in self.regions]
        expected = [snapshot_values(region, region.expected()) for region in self.regions]
        return {
            "updates": sum(region.fed for region in self.regions),
            "snapshots": sum(map(len, found)),
            "twice": sum(len(updates) - len(set(updates)) for updates in found),
            "same_bits": found == expected,
        }

    def _busy(self) -> Process:
        """One of those that have a model: others could go without being missed."""
        places = {place_of(region) for region in self.regions}

        def busy() -> list[Process]:
            return [replica for replica in self.replicas if assigned(replica) & places]

        wait_until(lambda: bool(busy()))
        return self._chance.choice(busy())

    def _measured(self, what: str, act: Callable[[], object], feed_first: bool = False) -> None:
        """Do it while updates come in, and wait until all of them show."""
        if feed_first:
            self._feed()
        began = time.monotonic()
        act()
        if not feed_first:
            self._feed()
        self._committed.wait(self.regions)
        self.steps.append({"step": what, "s": time.monotonic() - began})
        click.echo(f"{what}: {self.steps[-1]['s']:.1f} s")

    def _feed(self) -> None:
        for region in self.regions:
            region.feed(self._log, self._part)


def run_trial(
    folder: Path, bootstrap: str, regions: int, kills: int, part: int, seed: int
) -> dict[str, Any]:
    """The trial on new regions, and what `absorb` costs alone."""
    parts = 6 + 2 * kills
    made = make_regions(folder, bootstrap, regions, readings_each=10 * -(-part * parts // 3) + 20)
    with (
        closing(Committed(bootstrap, made)) as committed,
        closing(open_log(made[0].config.log)) as log,
    ):
        trial = Trial(made, committed, log, part, seed)
        with killed_on_exit(trial.replicas):
            result = trial.run(kills)
    result["takeovers_s"] = [step["s"] for step in trial.steps if step["step"].startswith("kill")]
    result["absorb"] = absorbing(made[0])
    return result


def absorbing(region: Region) -> dict[str, Any]:
    """What it costs one process to absorb an update, with its state as bytes before and after."""
    contract = resolve(region.config.contract)
    (model,) = contract.models.values()
    records = all_records(region.config.log.address, region.config.contract.updates_topic)
    one = RegionModel(region.config, contract, model, bytes(16))
    state = None
    began = time.process_time()
    for record in records:
        state = absorb(one, state, record).state
    took = time.process_time() - began
    return {
        "ms": 1000 * took / len(records),
        "state_bytes": len(state or b""),
        "records": len(records),
    }


@click.command(context_settings={"max_content_width": 100})
@quick_option("Two regions and one kill")
@click.option("--bootstrap", help="host:port of a broker. [default: one is started]")
@click.option("--seed", default=1, show_default=True, help="Decides which replicas are killed.")
@out_option("regions")
def main(quick: bool, bootstrap: str | None, seed: int, out: Path) -> None:
    """Measure takeovers of regions by replicas. Takes about six minutes.

    It needs Quix Streams, and a broker or what one is started with (Java 17 and Maven). Where one
    of them is missing, nothing is measured, and the reason is printed.
    """
    if why := _missing(bootstrap):
        click.echo(f"not measured: {why}")
        return
    started = time.monotonic()
    machine = facts(("shoal", "numpy", "quixstreams"))
    regions, kills, part = (2, 1, 6) if quick else (8, 5, 15)
    with tempfile.TemporaryDirectory() as scratch:
        broker = None if bootstrap else Broker(Path(scratch) / "kafka")
        try:
            where = bootstrap or (broker.bootstrap if broker else "")
            found = run_trial(Path(scratch), where, regions, kills, part, seed)
        finally:
            if broker is not None:
                broker.stop()
    result: dict[str, Any] = {
        "made_by": "python -m benchmarks regions" + " --quick" * quick,
        "took_s": round(time.monotonic() - started),
        "machine": machine,
        "regions": regions,
        **found,
        "goal": {"takeover_s": TAKEOVER_S},
        "reached": (
            max(found["takeovers_s"]) <= TAKEOVER_S and found["same_bits"] and not found["twice"]
        ),
    }
    write(out, "regions", result, markdown(result))
    click.echo(f"written to {out}/regions.json and {out}/regions.md")


def _missing(bootstrap: str | None) -> str | None:
    """What cannot be done without here; None if everything is there."""
    if find_spec("quixstreams") is None:
        return "Quix Streams is not installed: pip install '.[scale]' in a clone of shoal"
    return None if bootstrap else what_is_missing()


def markdown(result: dict[str, Any]) -> str:
    """The results as a page."""
    takeovers = result["takeovers_s"]
    cost = result["absorb"]
    return "\n".join(
        [
            "# Replicas that share regions through Kafka",
            "",
            f"Made by `{result['made_by']}` in {result['took_s']} s. {one_line(result['machine'])}",
            "",
            (
                f"{result['regions']} regions with a model each, one broker, all on this machine."
                " In each step updates are fed to all regions while it happens; the seconds are"
                " until every update shows in a committed snapshot."
            ),
            "",
            table(("step", "s"), [(step["step"], rounded(step["s"])) for step in result["steps"]]),
            (
                f"After a kill: {min(takeovers):.1f} to {max(takeovers):.1f} s, median"
                f" {statistics.median(takeovers):.1f} s (goal: at most {TAKEOVER_S:.0f} s)."
            ),
            "",
            (
                f"{result['updates']} updates, {result['snapshots']} snapshots committed,"
                f" {result['twice']} of them twice; {'all' if result['same_bits'] else 'NOT all'}"
                " are, bit for bit and in order, those of one process that is never killed."
            ),
            "",
            (
                f"To absorb an update takes {cost['ms']:.2f} ms of the processor, with the whole"
                f" state of the model as bytes ({cost['state_bytes'] / 1024:.0f} KiB) before and"
                " after it."
            ),
            "",
        ]
    )

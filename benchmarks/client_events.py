"""Events of clients on fleets made of sensor files: false alarms a month and delays of a client
that is in a state in which it has never been, or unlike its fellows, beside ADWIN and Page-Hinkley.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import numpy as np
from sklearn.cluster import KMeans

from benchmarks.feature_events import FILES, MONTH_DAYS, filled, read
from benchmarks.machine import facts, one_line
from benchmarks.results import data_option, out_option, quick_option, table, write
from shoal.client_nodes.labelling.visits import Visits, day_of
from shoal.config.base import DAY_S
from shoal.config.contract import Contract
from shoal.config.resolved import resolve
from shoal.config.sections import ClientSettings, ServerSettings
from shoal.kernels.arrays import Floats, Ints
from shoal.protocol.history import PLACES_S, HistoryBin
from shoal.server_node.history.store import HistoryRecord, HistoryStore
from shoal.server_node.history.unlike import UnlikeWatch

SEED: Final = 4101
FLEETS: Final = (
    "air quality, 8 features",
    "weather and dust, 7 features",
    "electricity, 5 features",
)
CLIENTS: Final = 5
APART_DAYS: Final = 7
"""a client has the rows of the file so many days after the client before it: the same hours of the
same days of the week"""
STATES: Final = 4
"""groups of k-means: cluster_tree finds one cluster in each of these files"""
FOREIGN: Final = STATES
"""a state in which other clients are known to be, and none of these ever was"""
FAULTS: Final = 10
"""faults of each kind that are planted in a fleet, in one client each, one at a time"""
OUTAGE_S: Final = 12 * 3600.0
"""how long a client is in the foreign state"""
UNLIKE_DAYS: Final = 7
"""days on which a client has the state of its first reading of them"""
WITHIN_S: Final = {"new_here": OUTAGE_S, "unlike": UNLIKE_DAYS * DAY_S + DAY_S}
"""seconds in which a fault must be found: a day is compared when it is over"""
MODEL: Final = "states"
SIZES: Final = (0.2, 0.4, 0.6, 0.8)
"""bounds of the sizes of faults in the table by size"""


class Fleet(NamedTuple):
    """A file as the clients of a federation have it."""

    name: str
    times: Floats
    """(n,) seconds since 1970, the same for each client"""
    rows: Floats
    """(clients, n, d) in unit coordinates"""
    states: Ints
    """(clients, n)"""

    @property
    def months(self) -> float:
        return float(self.times[-1] - self.times[0]) / DAY_S / MONTH_DAYS


class Alarm(NamedTuple):
    """An alarm of one method."""

    at: float
    client: int


class Fault(NamedTuple):
    """A planted fault."""

    kind: str
    client: int
    at: float
    """seconds since 1970"""
    states: Ints
    """(clients, n) with the fault"""
    size: float
    """part of the client's readings, from its first to its last, that are in another state"""


@click.command(context_settings={"max_content_width": 100})
@data_option
@quick_option("One fleet and fault")
@out_option("client_events")
def main(data: Path, quick: bool, out: Path) -> None:
    """Measure false alarms and delays of events of clients on three fleets. Five minutes."""
    names = FLEETS[-1:] if quick else FLEETS
    result: dict[str, Any] = {
        "made_by": "python -m benchmarks client_events --data FOLDER" + " --quick" * quick,
        "machine": facts(("shoal", "numpy", "scikit-learn", "river")),
        "fleets": [measured(fleet_of(data, name), 1 if quick else FAULTS) for name in names],
    }
    write(out, "client_events", result, markdown(result))
    click.echo(f"written to {out}/client_events.json and {out}/client_events.md")


def fleet_of(data: Path, name: str) -> Fleet:
    """The fleet of a file."""
    stream = read(data, name)
    rows = filled(stream.rows, np.nanmedian(stream.rows, axis=0))
    states = KMeans(STATES, n_init=4, random_state=0).fit_predict(rows).astype(np.int64)
    shift = round(APART_DAYS * DAY_S / FILES[name].step_s)
    n = len(rows) - (CLIENTS - 1) * shift
    starts = [client * shift for client in range(CLIENTS)]
    return Fleet(
        name,
        stream.times[:n],
        np.stack([rows[start : start + n] for start in starts]),
        np.stack([states[start : start + n] for start in starts]),
    )


def faults(fleet: Fleet, number: int) -> Iterator[Fault]:
    """Faults of random clients at random times from a third of the stream on."""
    rng = np.random.default_rng([SEED, len(fleet.times)])
    first = fleet.times[0] + (fleet.times[-1] - fleet.times[0]) / 3
    for kind, within in WITHIN_S.items():
        for _ in range(number):
            client = int(rng.integers(CLIENTS))
            at = float(rng.uniform(first, fleet.times[-1] - within))
            if kind == "unlike":
                # Whole days: those of which some hours are as usual are another fault.
                at = float(np.ceil(at / DAY_S) * DAY_S)
            states = fleet.states.copy()
            here = fleet.times >= at
            if kind == "new_here":
                span = here & (fleet.times < at + OUTAGE_S)
                states[client, span] = FOREIGN
            else:
                span = here & (fleet.times < at + UNLIKE_DAYS * DAY_S)
                states[client, span] = states[client, here][0]
            size = float(np.mean(states[client, span] != fleet.states[client, span]))
            yield Fault(kind, client, at, states, size)


def new_here_alarms(fleet: Fleet, states: Ints, clients: Sequence[int]) -> list[Alarm]:
    """The site events `new_here` of these clients, at the defaults."""
    settings = ClientSettings()
    found = []
    days = np.array([day_of(time) for time in fleet.times.tolist()])
    starts = np.append(0, np.flatnonzero(np.diff(days)) + 1).tolist()
    for client in clients:
        own = states[client]
        visits = Visits(fleet.rows.shape[2], settings.novel_streak, settings.new_here_per_month)

        def relabel(rows: Floats, client: int = client, own: Ints = own) -> Ints:
            # The kept rows are those of the fleet: what they were labelled is what they are.
            place = [int((fleet.rows[client] == row).all(axis=1).argmax()) for row in rows]
            return own[place]

        for start, end in zip(starts, [*starts[1:], len(days)], strict=True):
            here = slice(start, end)
            keys = [(0, start + number) for number in range(end - start)]
            devices = [""] * (end - start)
            rows = fleet.rows[client, here]
            visit = visits.follow(own[here], rows, keys, devices, int(days[start]), relabel)
            if visit is not None:
                found.append(Alarm(float(fleet.times[start + visit.position]), client))
    return sorted(found)


def unlike_alarms(fleet: Fleet, states: Ints) -> list[Alarm]:
    """The events of clients that are unlike their fellows, at the default; at the end of the day
    that shows it, when it can be known."""
    contract = resolve(
        Contract.model_validate(
            {
                "federation": "bench",
                "features": [{"name": "f", "low": 0.0, "high": 1.0}],
                "privacy": {"mode": "off"},
                "models": [{"name": MODEL, "algorithm": "cluster_tree"}],
            }
        )
    )
    per_month = ServerSettings().unlike_per_month
    found = []
    watch = UnlikeWatch()
    bins = (fleet.times // PLACES_S).astype(np.int64) * PLACES_S
    known = range(FOREIGN + 1)
    with closing(HistoryStore(contract)) as store:
        for start in np.unique(bins).tolist():
            counted = bin_of(contract.contract.digest, start, states[:, bins == start])
            store.apply([HistoryRecord(counted.record_key, counted)])
            for finding in watch.look(store, MODEL, start, known, per_month):
                if finding.unlike:
                    found.append(Alarm(float(start), finding.client))
    return found


def bin_of(digest: str, start: int, states: Ints) -> HistoryBin:
    """The bin of six hours from `start` on, of states (clients, m)."""
    clusters: list[int] = []
    clients: list[int] = []
    cells: list[int] = []
    for state, readings in zip(*np.unique(states, return_counts=True), strict=True):
        clusters += [int(state), int(readings)]
    for client, own in enumerate(states):
        clients += [client, len(own)]
        for state, readings in zip(*np.unique(own, return_counts=True), strict=True):
            cells += [client, int(state), int(readings)]
    return HistoryBin.of("bench", digest, MODEL, PLACES_S, start, 1, clusters, clients, cells)


def detector_alarms(name: str, fleet: Fleet, states: Ints, clients: Sequence[int]) -> list[Alarm]:
    """Those of a detector of river on whether a client is in a state, one for each of these clients
    and each state, with its defaults; those of a client within a day are one."""
    from river import drift  # noqa: PLC0415 - an optional peer

    found = []
    for client in clients:
        times: list[float] = []
        for state in range(FOREIGN + 1):
            detector = getattr(drift, name)()
            of_state = (states[client] == state).tolist()
            for time, is_there in zip(fleet.times.tolist(), of_state, strict=True):
                detector.update(float(is_there))
                if detector.drift_detected:
                    times.append(time)
        newest = -np.inf
        for time in sorted(times):
            if time - newest >= DAY_S:
                newest = time
                found.append(Alarm(time, client))
    return sorted(found)


def alarms_of(
    fleet: Fleet, states: Ints, method: str, clients: Sequence[int] = range(CLIENTS)
) -> list[Alarm]:
    """The alarms of a method for these clients, or more."""
    if method == "new_here":
        return new_here_alarms(fleet, states, clients)
    if method == "unlike":
        return unlike_alarms(fleet, states)
    return detector_alarms(method, fleet, states, clients)


def detectors() -> list[str]:
    """River's, where it is installed."""
    return [] if find_spec("river") is None else ["ADWIN", "PageHinkley"]


def measured(fleet: Fleet, number: int) -> dict[str, Any]:
    """Alarms of a fleet as it is, and the delay after each fault."""
    plain = {
        method: len(alarms_of(fleet, fleet.states, method)) for method in (*WITHIN_S, *detectors())
    }
    found: list[dict[str, Any]] = []
    for fault in faults(fleet, number):
        delays: dict[str, float | None] = {}
        for method in (fault.kind, *detectors()):
            alarms = alarms_of(fleet, fault.states, method, [fault.client])
            delays[method] = delay_of(fault, alarms)
        found.append(
            {"kind": fault.kind, "client": fault.client, "size": fault.size, "delay_h": delays}
        )
    click.echo(f"{fleet.name}: {plain}", err=True)
    return {"name": fleet.name, "months": fleet.months, "alarms": plain, "faults": found}


def delay_of(fault: Fault, alarms: Sequence[Alarm]) -> float | None:
    """Hours from a fault to the first alarm of its client; None within the time it has."""
    for alarm in alarms:
        is_within = fault.at <= alarm.at <= fault.at + WITHIN_S[fault.kind]
        if alarm.client == fault.client and is_within:
            return (alarm.at - fault.at) / 3600
    return None


def by_size(found: Sequence[dict[str, Any]], methods: Sequence[str]) -> str:
    """The table of faults of a kind by their size: how many each method has found."""
    places = np.digitize([fault["size"] for fault in found], SIZES)
    edges = [0.0, *SIZES, 1.0]
    rows = []
    for place in range(len(SIZES) + 1):
        here = [fault["delay_h"] for fault, own in zip(found, places, strict=True) if own == place]
        counts = [sum(delay[name] is not None for delay in here) for name in methods]
        rows.append(
            [f"{edges[place]:g} to {edges[place + 1]:g}", str(len(here)), *map(str, counts)]
        )
    head = ["part of the readings in another state", "planted"]
    return table([*head, *(f"{name}: found" for name in methods)], rows)


def markdown(result: dict[str, Any]) -> str:
    """The report."""
    methods = list(result["fleets"][0]["alarms"])
    lines = []
    for fleet in result["fleets"]:
        months = CLIENTS * fleet["months"]
        rates = [f"{fleet['alarms'][method] / months:.2f}" for method in methods]
        lines.append([fleet["name"], f"{months:.0f}", *rates])
    head = ["fleet", "months of clients", *(f"{name}: alarms a month" for name in methods)]
    text = "# Clients in a state that is new to them, or unlike their fellows\n\n"
    text += f"Made by `{result['made_by']}`; do not edit.\n\n{table(head, lines)}\n"
    every = [fault for fleet in result["fleets"] for fault in fleet["faults"]]
    peers = [method for method in methods if method not in WITHIN_S]
    rows = []
    for kind in WITHIN_S:
        own = [fault["delay_h"] for fault in every if fault["kind"] == kind]
        row = [f"{kind}, of {len(own)}"]
        for method in (kind, *peers):
            delays = [delay[method] for delay in own if delay[method] is not None]
            middle = f"{np.median(delays):.0f} h" if delays else "-"
            row.append(f"{len(delays)} ({middle})")
        rows.append(row)
    head = ["planted", *(f"{name}: found (median delay)" for name in ("shoal", *peers))]
    unlike = [fault for fault in every if fault["kind"] == "unlike"]
    text += (
        f"{table(head, rows)}\nFaults `unlike` by size:\n\n{by_size(unlike, ['unlike', *peers])}"
        f"\nEach file is {CLIENTS} clients, whose rows are {APART_DAYS} days"
        f" apart, with {STATES} states by k-means. Alarms a month: of each client, in the file as"
        " it is; shoal's at the defaults, which aim at 1. Planted at a random time of a random"
        f" client: `new_here`, {OUTAGE_S / 3600:g} hours in a state that the model knows and in"
        f" which no client of the fleet ever was; `unlike`, {UNLIKE_DAYS} days in the state of"
        " their first reading. Found: an alarm of that client within these hours, or within a day"
        " after these days, as a day is compared when six hours of the next are over. River's"
        " detectors see whether a client is in a state, one for each state, with their defaults,"
        " and their alarms of a client within a day are one.\n"
    )
    return f"{text}\n{one_line(result['machine'])}\n"

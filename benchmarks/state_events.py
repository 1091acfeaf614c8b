"""Site events of states: false alarms in streams without states and in steady ones, and delays of
what is planted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import numpy as np

from benchmarks.machine import facts, one_line
from benchmarks.results import folder_option, out_option, quick_option, table, write
from benchmarks.states_streams import CLIENTS, FEATURES, NULLS, autoregressive, dwells, levels, null
from benchmarks.steadiness.sensors import SENSORS, read
from shoal.algorithms.states.client_half import StatesClient
from shoal.algorithms.states.served import STATES
from shoal.algorithms.states.server_half import StatesServer
from shoal.algorithms.streaming import Contribution
from shoal.client_nodes.intake import Batch
from shoal.client_nodes.labelling.dwells import Dwells, States
from shoal.client_nodes.labelling.waiting import WaitingReadings
from shoal.config.contract import Contract
from shoal.config.sections import ClientSettings
from shoal.kernels.arrays import Floats, Ints
from shoal.protocol.events import SiteEvent
from shoal.protocol.labels import Label

SEEDS: Final = (7101, 7202, 7303, 7404)
"""seeds of the published figures; nothing was chosen on them"""
STEP: Final = 100
"""readings of a client between two updates"""
READINGS: Final = 6_000
"""readings of a client in streams with states"""
KINDS: Final = ("state_changed", "unseen_change", "unusual_dwell", "usual_elsewhere")


class Found(NamedTuple):
    """An event as a client reports it."""

    kind: str
    place: int
    """the reading at which it was found"""
    reported: int
    """the newest reading when it was"""


def contract_of(width: int) -> Contract:
    """Features within 0 and 1."""
    features = [{"name": f"f{n}", "low": 0.0, "high": 1.0} for n in range(width)]
    return Contract.model_validate(
        {"federation": "bench", "features": features, "privacy": {"mode": "off"}, "models": []}
        | {"models": [{"name": "m", "algorithm": "states"}]}
    )


class Site:
    """One client: learns, and labels its readings as a client node does."""

    def __init__(self, rows: Floats, settings: ClientSettings) -> None:
        """Rows (n, d) in unit coordinates."""
        self.rows = rows
        self.half = StatesClient(rows.shape[1])
        self._waiting = WaitingReadings(rows.shape[1])
        self._dwells = Dwells(contract_of(rows.shape[1]), "c", "m", settings)
        self.found: list[Found] = []
        self.windows: list[int] = []

    def label(self, first: int, snapshot: dict[str, Any]) -> None:
        """Label the readings from `first` on that come in one step."""
        rows = self.rows[first : first + STEP]
        view = STATES.view(snapshot)
        labels = self.half.sequence_labels(snapshot)
        assert view.states is not None
        assert view.identity is not None
        states = States.of(view.states, view.identity.tolist(), labels.digest, labels.window)
        # One by one, so that it is known when an event is reported.
        for place, row in enumerate(rows, first):
            self._waiting.add(Batch(row[None], [(0, place)], [None], []), row[None])
            ready, numbers = self._waiting.take(labels)
            named = [
                Label(int(n), int(view.identity[n]) if n >= 0 else None, "", None, 1, None)
                for n in numbers
            ]
            events = self._dwells.follow(named, ready.values, ready.places, states)
            self.found += [Found(event.kind, _offset(event), place) for event in events]
        self.windows.append(labels.window)


def _offset(event: SiteEvent) -> int:
    return int(event.id.split("/")[2])


def run(parts: Sequence[Floats], settings: ClientSettings) -> list[Site]:
    """A federation of clients with these rows (n, d), in unit coordinates; a snapshot after every
    step."""
    sites = [Site(rows, settings) for rows in parts]
    server = StatesServer(parts[0].shape[1])
    sequence = Counter[int]()
    for first in range(0, max(map(len, parts)), STEP):
        for site in sites:
            site.half.learn(site.rows[first : first + STEP])
        for number, site in enumerate(sites):
            arrays = site.half.contribute()
            if any(map(len, arrays.values())):
                sequence[number] += 1
                server.absorb([Contribution(f"c{number}", sequence[number], arrays)], b"key")
        snapshot = dict(server.snapshot())
        for site in sites:
            site.label(first, snapshot)
    return sites


def in_unit(rows: Floats) -> Floats:
    """Rows scaled to 0..1 by twice the range in which almost all lie, as declared bounds
    would be."""
    low, high = np.nanquantile(rows, [0.001, 0.999], axis=0)
    span = np.where(high > low, high - low, 1.0)
    unit: Floats = np.clip((rows - low + span / 2) / (2 * span), 0, 1)
    return unit


def changes_of(truth: Ints) -> Ints:
    """Places of the first reading of each later stay."""
    return np.flatnonzero(np.diff(truth)) + 1


def matched(site: Site, truth: Ints) -> tuple[int, int, list[int]]:
    """Reported changes, those of them that are none, and the delays of the others.

    A change is one where the state has changed since the one reported before it.
    """
    true = list(changes_of(truth))
    false = 0
    delays = list[int]()
    last = 0
    reported = [event for event in site.found if event.kind == "state_changed"]
    for event in reported:
        own = [at for at in true if last <= at <= event.place]
        if own:
            delays.append(event.reported - own[-1])
        else:
            false += 1
        last = event.place
    return len(reported), false, delays


Planted = Callable[[np.random.Generator, int], tuple[Floats, int]]
"""generator, readings -> rows, and the reading at which something begins that was never so before
"""
MEANS: Final = 3 / np.sqrt(2) * np.eye(FEATURES)
"""of states that are 3 sd apart"""
DWELL: Final = 150
PLANTED_CLIENTS: Final = 12
"""as many as make a hundred changes from each state"""


def in_turn(rng: np.random.Generator, n: int, ways: Sequence[int] = (1, 2, 0)) -> Ints:
    """(n,) states of which each is always followed by the same one, for gamma-distributed
    times."""
    out = list[int]()
    now = 0
    while len(out) < n:
        out += [now] * int(rng.gamma(4, DWELL / 4) + 3)
        now = ways[now]
    return np.array(out[:n])


def planted(kind: str, rng: np.random.Generator) -> tuple[Floats, int]:
    """Rows (n, d) in which something begins once, near the end, and where it begins."""
    truth = in_turn(rng, READINGS)
    at = int(changes_of(truth)[-12])
    before = truth[:at]
    rest = truth[at:]
    if kind == "unusual_dwell":
        truth = np.concatenate([before, np.full(8 * DWELL, truth[at]), rest])[:READINGS]
    elif kind == "unseen_change":
        # Where it always went on to the next state, it goes back.
        truth = np.concatenate([before, np.full(DWELL, (truth[at] + 1) % 3), rest])[:READINGS]
    elif kind == "usual_elsewhere":
        middle = at + DWELL // 2
        truth = np.concatenate([before, np.full(DWELL, truth[at]), rest])[:READINGS].copy()
        truth[middle : middle + 12] = (truth[at] + 1) % 3
        at = middle
    return autoregressive(rng, READINGS, FEATURES, 0.5) + MEANS[truth], at


def measure_planted(seeds: Sequence[int], settings: ClientSettings) -> Iterator[dict[str, Any]]:
    """For each kind of event, how often it is found where it is planted, with the delay, and how
    often elsewhere."""
    for kind in KINDS[1:]:
        found = 0
        delays = list[int]()
        elsewhere = Counter[str]()
        clients = 0
        for seed in seeds:
            rng = np.random.default_rng(seed)
            made = [planted(kind, rng) for _ in range(PLANTED_CLIENTS)]
            for site, (_, at) in zip(
                run([in_unit(rows) for rows, _ in made], settings), made, strict=True
            ):
                own = [
                    event
                    for event in site.found
                    if event.kind == kind and at <= event.place < at + 12 * DWELL
                ]
                found += bool(own)
                delays += [own[0].reported - at] if own else []
                elsewhere.update(
                    event.kind
                    for event in site.found
                    if event not in own and event.kind != "state_changed"
                )
                clients += 1
        delay = int(np.median(delays)) if delays else None
        line = {
            "kind": kind,
            "clients": clients,
            "found": found,
            "delay": delay,
            "elsewhere": dict(elsewhere),
        }
        click.echo(f"planted {line}")
        yield line


def measure_steady(seeds: Sequence[int], settings: ClientSettings) -> Iterator[dict[str, Any]]:
    """Streams whose states do not change their ways: each event but a true change is false."""
    for sd, dwell, k in ((3.0, 100.0, 2), (3.0, 100.0, 3), (2.0, 500.0, 2), (3.0, 200.0, 4)):
        counts = Counter[str]()
        delays = list[int]()
        false = 0
        reported = 0
        true = 0
        windows = set[int]()
        for seed in seeds:
            data = levels(seed, sd, dwell, k)
            rng = np.random.default_rng(seed)
            truth = [dwells(rng, READINGS, k, dwell) for _ in range(CLIENTS)]
            means = np.stack([data.rows[data.truth == state].mean(axis=0) for state in range(k)])
            parts = [
                autoregressive(rng, READINGS, FEATURES, 0.5) + means[states] for states in truth
            ]
            for site, states in zip(
                run([in_unit(rows) for rows in parts], settings), truth, strict=True
            ):
                counts.update(event.kind for event in site.found)
                n, wrong, own = matched(site, states)
                reported = reported + n
                false = false + wrong
                delays = delays + own
                true += len(changes_of(states))
                windows.add(site.windows[-1])
        line = {
            "stream": f"{sd:g} sd, K = {k}, dwell {dwell:g}",
            "readings": READINGS * CLIENTS * len(seeds),
            "true": true,
            "reported": reported,
            "false": false,
            "delay": int(np.median(delays)) if delays else None,
            "windows": sorted(windows),
            **{kind: counts[kind] for kind in KINDS[1:]},
        }
        click.echo(f"steady {line}")
        yield line


def measure_nulls(seeds: Sequence[int], settings: ClientSettings) -> Iterator[dict[str, Any]]:
    """Streams in which nothing stays: every event is false."""
    for name in NULLS:
        counts = Counter[str]()
        streams = 0
        readings = 0
        for seed in seeds:
            data = null(name, seed)
            parts = [
                in_unit(data.rows)[data.clients == client] for client in np.unique(data.clients)
            ]
            sites = run(parts, settings)
            own = Counter(event.kind for site in sites for event in site.found)
            counts.update(own)
            streams += bool(own)
            readings += len(data.rows)
        line = {
            "stream": name,
            "readings": readings,
            "streams": streams,
            **{kind: counts[kind] for kind in KINDS},
        }
        click.echo(f"null {line}")
        yield line


def measure_sensors(folder: Path, settings: ClientSettings) -> Iterator[dict[str, Any]]:
    """What is reported of sensors, by kind."""
    for name, source in SENSORS.items():
        rows, _ = read(folder, source)
        (site,) = run([in_unit(rows)], settings)
        counts = Counter(event.kind for event in site.found)
        line = {"stream": name, "readings": len(rows), **{kind: counts[kind] for kind in KINDS}}
        click.echo(f"sensor {line}")
        yield line


def markdown(result: dict[str, Any]) -> str:
    """The page."""
    rest = [*KINDS[1:]]
    steady = [
        [
            *(
                str(stream[key])
                for key in ("stream", "readings", "true", "reported", "false", "delay", *rest)
            )
        ]
        for stream in result["steady"]
    ]
    planted = [
        [
            stream["kind"],
            f"{stream['found']} of {stream['clients']}",
            str(stream["delay"]),
            str(sum(stream["elsewhere"].values())),
        ]
        for stream in result["planted"]
    ]
    nulls = [
        [str(stream[key]) for key in ("stream", "readings", *KINDS)]
        for stream in result["nulls"]
        if any(stream[kind] for kind in KINDS)
    ]
    sensors = [
        [str(stream[key]) for key in ("stream", "readings", *KINDS)] for stream in result["sensors"]
    ]
    total = sum(stream["readings"] for stream in result["nulls"])
    text = (
        f"# Site events of states\n\nMade by `{result['made_by']}`, with the default settings."
        " Delays are median readings from what was so to when the client reports it.\n\n## Streams"
        " whose states keep their ways\n\nOf the changes, *true* are in the stream; a reported"
        " one is *false* if there was none since the one reported before. Every other event is"
        " false.\n\n"
        + table(["stream", "readings", "true", "reported", "false", "delay", *rest], steady)
        + "\n## Planted once in each client\n\nThree states in turn, 150 readings each: a change"
        " back, a dwell of eight times the mean, twelve readings of another state.\n\n"
        + table(["event", "found", "delay", "other events"], planted)
        + f"\n## Streams without states\n\n{len(result['nulls'])} kinds, {total} readings; those"
        " with any event.\n\n" + table(["stream", "readings", *KINDS], nulls)
    )
    if sensors:
        text += "\n## Sensors\n\nEach as one client.\n\n" + table(
            ["sensor", "readings", *KINDS], sensors
        )
    return f"{text}\n{one_line(result['machine'])}\n"


@click.command(context_settings={"max_content_width": 100})
@quick_option("One seed and one sensor at most")
@folder_option("--data", "Folder of data sets.")
@click.option(
    "--seed",
    "seeds",
    type=int,
    multiple=True,
    help="Other seeds than those of the published figures.",
)
@out_option("state_events")
def main(quick: bool, data: Path | None, seeds: tuple[int, ...], out: Path) -> None:
    """Measure false alarms and delays of the site events of states."""
    settings = ClientSettings(label=True)
    own = seeds or SEEDS
    chosen = own[:1] if quick else own
    result = {
        "made_by": (
            "python -m benchmarks state_events"
            + " --quick" * quick
            + " --data FOLDER" * (data is not None)
        ),
        "machine": facts(("shoal", "numpy")),
        "steady": list(measure_steady(chosen, settings)),
        "planted": list(measure_planted(chosen, settings)),
        "nulls": (
            [] if quick else list(measure_nulls([seed % 1000 + 9_101 for seed in chosen], settings))
        ),
        "sensors": [] if data is None else list(measure_sensors(data, settings)),
    }
    write(out, "state_events", result, markdown(result))
    click.echo(f"written to {out}/state_events.json and {out}/state_events.md")

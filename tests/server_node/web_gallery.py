"""Takes a screenshot of every state of the live page in every width and theme, to look at: it needs
Chromium.

python -m tests.server_node.web_gallery FOLDER [STATE...]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry

from shoal.config.resolved import resolve
from shoal.protocol.history import COARSE_S, FINE_S, NO_CLUSTER, HistoryBin, HistoryNames
from shoal.protocol.regions import Region
from shoal.server_node.history.store import (
    HISTORY_FILE,
    HistoryReader,
    HistoryRecord,
    HistoryStore,
)
from shoal.server_node.outputs.web import page_server
from shoal.server_node.report.lineage.clusters import Lineage
from shoal.server_node.report.status import ClientStatus, RecentEvent, ServerStatus, StatusBoard
from tests.server_node.web_browser import Tab, browsing
from tests.server_node.web_statuses import NOW, a_contract, a_snapshot, a_status, some_nodes

CONTRACT = a_contract(4, models=("rooms", "other"), name="office")
HOUR = 3600
DAY = 86_400
LOOKS = (
    ("light", 1280),
    ("dark", 1280),
    ("light", 800),
    ("light", 360),
    ("dark", 360),
    ("print", 800),
)
NAMES = ("occupied", "sun, occupied", "", "empty at night", "", "empty, cool", "", "stale air")
QUIET_FROM = 3
"""clusters from this place on have no readings now, where there are at most eight"""


@dataclass(frozen=True)
class State:
    """What a page shows, and how it comes to show it."""

    status: ServerStatus
    days: float = 0.0
    """of history; without any for 0"""
    then: Callable[[Tab], None] = lambda tab: None
    gone: bool = False
    """whether the server stops once the page shows something"""


def clustered(number: int, clients: Sequence[ClientStatus], **parts: object) -> ServerStatus:
    """A status with `number` clusters: some parted from others and, where they are few, some are
    quiet."""
    snapshot = a_snapshot(CONTRACT, some_nodes(4, number, 20 * number), model="rooms")
    status = a_status(CONTRACT, [snapshot], clients=tuple(clients), **parts)
    model = status.models["rooms"]
    lineage = with_ages(model.lineage, number)
    active = len([1 for cluster in lineage.known if cluster.active])
    snapshot = replace(snapshot, active=active)
    model = replace(model, lineage=lineage, snapshot=snapshot, events=events(number))
    return replace(status, models={**status.models, "rooms": model})


def with_ages(lineage: Lineage, number: int) -> Lineage:
    clusters = {}
    for identity, cluster in lineage.clusters.items():
        active = number > len(NAMES) or identity < QUIET_FROM or number == 1
        clusters[identity] = replace(
            cluster,
            name=(
                NAMES[identity]
                if number <= len(NAMES)
                else ""
                if identity % 3
                else f"line {identity}, night"
            ),
            active=active,
            recent_share=share_of(identity, number, NOW),
            since=born(identity, number),
            parent=identity - 2 if identity % 3 == 2 else None,
        )
    return replace(lineage, clusters=clusters)


def born(identity: int, number: int) -> float:
    """When a cluster was new; the first ones at the beginning."""
    days = 29 if number > len(NAMES) else 6
    return (
        NOW - days * DAY
        if identity < 2
        else NOW - days * DAY + 0.6 * days * DAY * identity / number
    )


def share_of(identity: int, number: int, at: float) -> float:
    """Its share of the readings: a few have turns in the day, each of many swells once a day."""
    if at < born(identity, number):
        return 0.0
    if number == 1:
        return 1.0
    hour = at / HOUR % 24
    if number > len(NAMES):
        return max(0.0, 0.02 + 0.02 * np.cos((hour - identity * 5) / 24 * 2 * np.pi)) / (
            1 + identity / 12
        )
    day = 7 <= hour < 18
    weight = (
        (0.6, 0.22, 0.18)[identity]
        if identity < QUIET_FROM
        else (0.4, 0.2, 0.2, 0.1, 0.1)[identity - QUIET_FROM]
    )
    return weight if day == (identity < QUIET_FROM) else 0.0


def events(number: int) -> tuple[RecentEvent, ...]:
    listed = [
        RecentEvent(
            born(k, number), "parted", k, k - 2, f"cluster {k} has parted from cluster {k - 2}"
        )
        for k in range(2, number, 3)
    ]
    listed.append(
        RecentEvent(
            NOW - 3000, "quiet", 1, None, "cluster 1 is quiet: no readings fall to it at present"
        )
    )
    listed.append(
        RecentEvent(
            NOW - 300, "returned", 0, None, "cluster 0 is back: 60 % of the recent readings"
        )
    )
    if number > 1:
        listed.append(
            RecentEvent(NOW - 2 * DAY, "merged", 900, 0, "cluster 900 has merged into cluster 0")
        )
    return tuple(sorted(listed, key=lambda event: event.at))


def history(folder: Path, status: ServerStatus, days: float) -> HistoryReader:
    """Readings of `days` days by cluster and client; there are readings of no known cluster before
    each is born."""
    number = len(status.models["rooms"].lineage.known)
    origin = (CONTRACT.federation, CONTRACT.digest, "rooms")
    clients = [client.client for client in status.clients]
    names: list[list[int | str]] = [[900, "", "humidity low"]]
    bins: list[HistoryBin | HistoryNames] = [HistoryNames(*origin, clients, names)]
    for width, kept in ((FINE_S, 2 * DAY), (COARSE_S, 365 * DAY)):
        newest = int(NOW) // width * width
        for start in range(newest - int(min(kept, days * DAY)) // width * width, newest + 1, width):
            shares = {k: share_of(k, number, start) for k in range(number)}
            if number > 1 and NOW - 4 * DAY < start < NOW - 2 * DAY:
                shares[900] = 0.15
            shares[NO_CLUSTER] = 0.002 + 0.3 * sum(
                0 < born(k, number) - start < 3 * HOUR for k in range(2, number, 3)
            )
            counts = {
                k: round(width * share / sum(shares.values()))
                for k, share in sorted(shares.items())
            }
            parts = [value for pair in counts.items() if pair[1] for value in pair]
            cells = [
                value
                for i in range(len(clients))
                for k in (i % number, (3 * i + int(start // HOUR)) % number)
                for value in (i, k, counts[k])
                if counts[k]
            ]
            unique = {
                (a, b): c for a, b, c in zip(cells[::3], cells[1::3], cells[2::3], strict=True)
            }
            flat = (
                [value for (a, b), c in sorted(unique.items()) for value in (a, b, c)]
                if width == FINE_S
                else []
            )
            bins.append(HistoryBin.of(*origin, width, start, 1, parts, [0, width], flat))
    store = HistoryStore(resolve(CONTRACT), folder / HISTORY_FILE)
    store.apply([HistoryRecord(history_bin.record_key, history_bin) for history_bin in bins])
    store.close()
    return HistoryReader(folder / HISTORY_FILE)


def states() -> dict[str, State]:
    """name -> state"""
    five = [ClientStatus(f"room-{i}", NOW - i, 410, 164_000, 1.3) for i in range(1, 6)]
    silent = [*five[:4], replace_seen(five[4], NOW - 2400)]
    many = [ClientStatus(f"sensor-{i:03}", NOW - i % 20, 410, 164_000, 1.3) for i in range(200)]
    regions = (
        Region("north", 40),
        Region("north/harbour", 12),
        Region("north/hill", 3),
        Region("south", 75),
    )
    regional = [
        ClientStatus("north", NOW - 3, 900, 1_640_000, 92.0),
        ClientStatus("south", NOW - 95, 900, 640_000, 0),
    ]
    return {
        "office": State(clustered(8, five), 6),
        "chosen": State(clustered(8, five), 6, choose_first),
        "young": State(clustered(8, five), 0.02),
        "empty": State(a_status(CONTRACT)),
        "one": State(clustered(1, five), 0.5),
        "crowded": State(clustered(60, many), 29),
        "silent": State(clustered(8, silent), 6),
        "gone": State(clustered(8, five), 6, gone=True),
        "regions": State(clustered(8, regional, regions=regions), 6),
    }


def replace_seen(client: ClientStatus, seen: float) -> ClientStatus:
    return client._replace(last_seen=seen)


def choose_first(tab: Tab) -> None:
    tab.value_of("document.querySelector('#timeline .pin').click()")
    tab.until("document.querySelector('#timeline .histograms figure') !== null")


def main(folder: Path, names: Sequence[str]) -> None:
    """Save FOLDER/STATE-THEME-WIDTH.png, the whole page each."""
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if chromium is None:
        sys.exit("there is no chromium on the PATH; on Debian: apt install chromium")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "browser").mkdir()
        with browsing(chromium, Path(scratch) / "browser") as browser:
            for name, state in states().items():
                if not names or name in names:
                    (Path(scratch) / name).mkdir()
                    take(browser.tab(), name, state, Path(scratch) / name, folder)


def take(tab: Tab, name: str, state: State, scratch: Path, folder: Path) -> None:
    past = history(scratch, state.status, state.days) if state.days else None
    web = page_server(StatusBoard(state.status), CollectorRegistry(), history=past)
    tab.resize(1280, 2400)
    tab.call("Emulation.setScrollbarsHidden", hidden=True)
    try:
        tab.open(f"http://127.0.0.1:{web.start()}/#model=rooms")
        tab.until("document.querySelectorAll('#answers div').length === 4")
        if past is not None:
            tab.until(
                "[...document.querySelectorAll('#timeline path')].some(path =>"
                " path.getAttribute('d'))"
            )
        state.then(tab)
        if state.gone:
            web.stop()
            tab.until("document.body.classList.contains('stale')")
        assert not tab.console_errors() or state.gone, tab.console_errors()
        for look, width in LOOKS:
            picture(tab, look, width, folder / f"{name}-{look}-{width}.png")
    finally:
        web.stop()


def picture(tab: Tab, look: str, width: int, out: Path) -> None:
    """The whole page, once it has settled."""
    tab.prefer("dark" if look == "dark" else "light", "print" if look == "print" else "")
    tab.resize(width, 800)
    tab.until(f"innerWidth === {width}")
    height = tab.value_of("document.documentElement.scrollHeight")
    tab.resize(width, height)
    frames = (
        "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() =>"
        " setTimeout(done, 300))))"
    )
    tab.value_of(frames)
    tab.resize(width, tab.value_of("document.documentElement.scrollHeight"))
    tab.value_of(frames)
    out.write_bytes(tab.screenshot())
    print(f"{out}: {out.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

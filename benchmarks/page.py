"""The live page in Chromium with 1000 nodes: from a press to the picture that it changes, and what
takes longest.

    python -m benchmarks page           half a minute; needs Chromium

The page is that of the server, with its own scripts, served as the server serves it.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from prometheus_client import CollectorRegistry

from benchmarks.machine import facts, one_line
from benchmarks.results import out_option, quick_option, rounded, spread, table, write
from shoal.config.contract import Contract
from shoal.config.resolved import resolve
from shoal.protocol.history import COARSE_S, FINE_S, HistoryBin, HistoryNames
from shoal.server_node.history.store import (
    HISTORY_FILE,
    HistoryReader,
    HistoryRecord,
    HistoryStore,
)
from shoal.server_node.outputs.web import page_server
from shoal.server_node.report.status import ClientStatus, StatusBoard
from tests.server_node.web_browser import Tab, browsing
from tests.server_node.web_statuses import NOW, a_contract, a_snapshot, a_status, some_nodes

CLUSTERS = 60
NODES = 1000
CLIENTS = 200
FEATURES = 4
MODELS = ("fcac", "other")
BINS = {FINE_S: 288, COARSE_S: 1440}
"""a day and a month"""
GOAL_MS = 50.0
WIDTH = 1280
HEIGHT = 2600
"""size of the window, high enough that the map is on the screen: else its nodes would not be drawn
"""
SAMPLING_US = 100
SLOWEST = 8
"""functions that are named"""
MEASURE = """void (() => {
window.measured = {paints: [], frames: [], tasks: []};
const note = (event) => requestAnimationFrame(() => {
  // The task after a frame begins when it has been painted.
  const {port1, port2} = new MessageChannel();
  port1.onmessage = () => measured.paints.push(performance.now() - event.timeStamp);
  port2.postMessage(0);
});
for (const name of ['click', 'input', 'keydown']) addEventListener(name, note, {capture: true});
new PerformanceObserver(list => list.getEntries().forEach(({duration, scripts}) =>
  measured.frames.push([duration, scripts.map(({sourceFunctionName, sourceURL, duration: took}) =>
    `${sourceFunctionName || 'script'} of ${sourceURL.split('/').pop()} ${Math.round(took)} ms`)])
)).observe({type: 'long-animation-frame'});
new PerformanceObserver(list => list.getEntries()
    .forEach(({duration}) => measured.tasks.push(duration)))
  .observe({type: 'longtask'});
})()"""
"""`measured`: milliseconds from a click or an input to the end of the frame that shows it; frames,
tasks over 50 ms"""
VERSION_SHOWN = "Number(document.getElementById('counters').lastChild.children[1].textContent)"
"""version of the snapshot, the last of the counters"""
SETTLED = (
    "new Promise(done => requestAnimationFrame(() => setTimeout(() => requestIdleCallback(() =>"
    " done(true)), 50)))"
)


def press(tab: Tab, element: str) -> None:
    """Click on the middle of an element, as a person would."""
    x, y = tab.value_of(
        f"(() => {{ const element = {element}; element.scrollIntoView({{block: 'center'}});"
        "const {left, top, width, height} = element.getBoundingClientRect();"
        "return [left + width / 2, top + height / 2]; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        tab.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


def choose_cluster(tab: Tab, turn: int) -> None:
    """Press the name of a cluster: it opens, and the others fade."""
    press(tab, f"document.querySelectorAll('#timeline-rows button.pin')[{turn % 10}]")


def move_along_time(tab: Tab, turn: int) -> None:
    """Move the slider of the moment by a bar."""
    if turn == 0:
        tab.value_of("document.getElementById('moment').focus()")
    tab.press("ArrowLeft")


def switch_tab(tab: Tab, turn: int) -> None:
    """Press the tab of the other model, and wait until it is shown with its map."""
    press(tab, f"document.querySelectorAll('#models [role=tab]')[{(turn + 1) % len(MODELS)}]")


def zoom(tab: Tab, turn: int) -> None:
    """Press another span of time."""
    press(tab, f"document.querySelectorAll('#spans button[aria-pressed]')[{turn % 4}]")


def move_window(tab: Tab, turn: int) -> None:
    """Move the time shown within all of the history by a key."""
    if turn == 0:
        zoom(tab, 1)
        tab.until("!document.getElementById('overview-row').hidden")
        tab.value_of("document.getElementById('overview').focus()")
    tab.press("ArrowLeft" if turn % 40 < 20 else "ArrowRight")


INTERACTIONS: Final[dict[str, Callable[[Tab, int], None]]] = {
    "choose a cluster": choose_cluster,
    "move along the time": move_along_time,
    "zoom": zoom,
    "move the time shown": move_window,
    "switch tabs": switch_tab,
}


@click.command(context_settings={"max_content_width": 100})
@quick_option("Few turns, in seconds")
@out_option("page")
def main(quick: bool, out: Path) -> None:
    """Measure interactions with the live page in Chromium, about half a minute; without Chromium
    nothing."""
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if chromium is None:
        click.echo(
            "not measured: there is no chromium on the PATH; on Debian: apt install chromium"
        )
        return
    turns = 3 if quick else 40
    started = time.monotonic()
    machine = facts(("shoal", "starlette", "uvicorn"))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "browser").mkdir()
        with (
            served_page(Path(folder)) as (url, board),
            browsing(chromium, Path(folder) / "browser") as browser,
        ):
            version = browser.call("Browser.getVersion")["product"]
            tab = browser.tab()
            tab.resize(WIDTH, HEIGHT)
            tab.open(url)
            found = {name: measure(tab, act, turns) for name, act in opened(tab).items()}
            updates = follow_updates(tab, board, turns)
    result = {
        "made_by": "python -m benchmarks page" + " --quick" * quick,
        "took_s": round(time.monotonic() - started),
        "machine": machine,
        "browser": version,
        "page": {
            "clusters": CLUSTERS,
            "nodes": NODES,
            "clients": CLIENTS,
            "features": FEATURES,
            "turns": turns,
        },
        "interactions": found,
        "updates": updates,
        "goal": {
            "ms": GOAL_MS,
            "reached": all(interaction["ms"]["median"] < GOAL_MS for interaction in found.values()),
        },
    }
    write(out, "page", result, markdown(result))
    click.echo(f"written to {out}/page.json and {out}/page.md")


def opened(tab: Tab) -> dict[str, Callable[[Tab, int], None]]:
    """The interactions, once the page shows everything."""
    tab.until("document.querySelectorAll('#timeline-rows tr').length > 5")
    tab.until(
        "[...document.querySelectorAll('#timeline-rows path')].some(path => path.getAttribute('d'))"
    )
    tab.until("document.querySelectorAll('#models [role=tab]').length === 2")
    tab.until("!document.getElementById('axes').hidden")  # the map is drawn
    tab.value_of(MEASURE)
    return INTERACTIONS


def measure(tab: Tab, act: Callable[[Tab, int], None], turns: int) -> dict[str, Any]:
    """Interact `turns` times: once to warm up and profile, then to measure."""
    slowest = profiled(tab, act, turns)
    tab.value_of("void (measured.paints.length = measured.frames.length = 0)")
    times = []
    for turn in range(turns):
        act(tab, turn)
        tab.until("measured.paints.length")
        times.append(tab.value_of("measured.paints.splice(0).at(-1)"))
        tab.value_of(SETTLED)
    frames = tab.value_of("measured.frames.splice(0)")
    return {
        "ms": spread(times),
        "over_goal": sum(milliseconds >= GOAL_MS for milliseconds in times),
        "long_frames": len(frames),
        "longest_frame": max(frames, default=None),
        "slowest_functions": slowest,
    }


def follow_updates(tab: Tab, board: StatusBoard, updates: int) -> dict[str, Any]:
    """Publish snapshots in which every node has moved, each once the one before is shown; the tasks
    over 50 ms."""
    tab.value_of("void (measured.tasks.length = 0)")
    status = board.status
    contract = status.contract.contract
    arrays = some_nodes(FEATURES, CLUSTERS, NODES)
    for version in range(2, updates + 2):
        moved = {**arrays, "weight": arrays["weight"] + 0.0002 * version}
        snapshots = [a_snapshot(contract, moved, version, model) for model in MODELS]
        board.post(a_status(contract, snapshots, clients=status.clients))
        tab.until(f"{VERSION_SHOWN} >= {version}")
    tab.value_of(SETTLED)
    tasks = tab.value_of("measured.tasks.splice(0)")
    return {
        "number": updates,
        "long_tasks": len(tasks),
        "longest_task_ms": max(tasks, default=None),
    }


def profiled(tab: Tab, act: Callable[[Tab, int], None], turns: int) -> list[dict[str, Any]]:
    """The slowest functions while interacting `turns` times, repeated until at least one is known.

    A profile is a sample of moments. On a busy machine they are few, and all may miss a short
    function.
    """
    tab.call("Profiler.enable")
    tab.call("Profiler.setSamplingInterval", interval=SAMPLING_US)
    slowest: list[dict[str, Any]] = []
    while not slowest:
        tab.call("Profiler.start")
        for turn in range(turns):
            act(tab, turn)
            tab.value_of(SETTLED)
        slowest = functions_of(tab.call("Profiler.stop")["profile"], turns)
    tab.call("Profiler.disable")
    return slowest


def functions_of(profile: dict[str, Any], turns: int) -> list[dict[str, Any]]:
    """The named functions of the page's scripts in which most time passes, per turn, what they call
    included."""
    nodes = {node["id"]: node for node in profile["nodes"]}
    parents = {child: node["id"] for node in profile["nodes"] for child in node.get("children", ())}
    spent: Counter[str] = Counter()
    for sample, took_us in zip(profile["samples"], profile["timeDeltas"], strict=True):
        names = set()
        at = sample
        while at in nodes:
            frame = nodes[at]["callFrame"]
            if "127.0.0.1" in frame["url"] and frame["functionName"]:
                names.add(f"{frame['functionName']} ({frame['url'].rpartition('/')[2] or 'page'})")
            at = parents.get(at, -1)
        for name in names:
            spent[name] += took_us
    return [{"name": name, "ms": took / 1000 / turns} for name, took in spent.most_common(SLOWEST)]


@contextmanager
def served_page(folder: Path) -> Iterator[tuple[str, StatusBoard]]:
    """A page with two models of `CLUSTERS` clusters and `NODES` nodes, and a month of history: its
    URL, its status."""
    contract = a_contract(FEATURES, models=MODELS)
    arrays = some_nodes(FEATURES, CLUSTERS, NODES)
    clients = tuple(
        ClientStatus(f"client-{i:03}", NOW - i % 7, 410, 164_000, 9.3) for i in range(CLIENTS)
    )
    status = a_status(
        contract, [a_snapshot(contract, arrays, model=model) for model in MODELS], clients=clients
    )
    board = StatusBoard(status)
    web = page_server(board, CollectorRegistry(), history=history(contract, folder))
    port = web.start()
    try:
        yield f"http://127.0.0.1:{port}/", board
    finally:
        web.stop()


def history(contract: Contract, folder: Path) -> HistoryReader:
    """Bins in which all clusters have readings of all clients."""
    rng = np.random.default_rng(1)
    store = HistoryStore(resolve(contract), folder / HISTORY_FILE)
    clusters: list[list[int | str]] = [
        [number, f"cluster number {number}", "Light high"] for number in range(CLUSTERS)
    ]
    names = [f"client-{i:03}" for i in range(CLIENTS)]
    for model in MODELS:
        origin = (contract.federation, contract.digest, model)
        bins: list[HistoryBin | HistoryNames] = [HistoryNames(*origin, names, clusters)]
        for width, number in BINS.items():
            newest = int(NOW) // width * width
            for start in range(newest - (number - 1) * width, newest + 1, width):
                parts = rng.poisson(width, CLUSTERS).tolist()
                sent = rng.poisson(width, CLIENTS).tolist()
                cells = (
                    [value for i in range(CLIENTS) for value in (i, i % CLUSTERS, sent[i])]
                    if width == FINE_S
                    else []
                )
                bins.append(HistoryBin.of(*origin, width, start, 1, flat(parts), flat(sent), cells))
        store.apply([HistoryRecord(message.record_key, message) for message in bins])
    store.close()
    return HistoryReader(folder / HISTORY_FILE)


def flat(counts: list[int]) -> list[int]:
    return [value for pair in enumerate(counts) for value in pair]


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    shown = result["page"]
    updates = result["updates"]
    lines = [
        [
            name,
            *(rounded(interaction["ms"][which]) for which in ("median", "high")),
            f"{interaction['over_goal']} of {shown['turns']}",
            ", ".join(
                f"{function['name']} {function['ms']:.1f}"
                for function in interaction["slowest_functions"][:3]
            ),
        ]
        for name, interaction in result["interactions"].items()
    ]
    long_frames = sum(interaction["long_frames"] for interaction in result["interactions"].values())
    return "\n".join(
        [
            f"# The live page in a browser\n\nMade by `{result['made_by']}`; do not edit.\n",
            table(
                ["interaction", "median, ms", "most, ms", f"over {GOAL_MS:g} ms", "where, ms"],
                lines,
            ),
            (
                f"{shown['nodes']} nodes in {shown['clusters']} clusters, {shown['clients']}"
                f" clients, {len(MODELS)} models and a month of history in {result['browser']}, a"
                f" window of {WIDTH} x {HEIGHT}. From the event to the end of the frame that shows"
                " it, which comes up to 17 ms later by itself; of a zoom or a move the frame that"
                " shows what was chosen, as bands and nodes come with the server's answer. Frames"
                " over 50 ms in all turns:"
                f" {long_frames}. Where:"
                " milliseconds of a turn within these functions, by a profile of other turns.\n"
            ),
            (
                f"Tasks over 50 ms in {updates['number']} updates of all nodes:"
                f" {updates['long_tasks']}.\n"
            ),
            (
                f"Goal, under {GOAL_MS:g} ms:"
                f" {'reached' if result['goal']['reached'] else 'missed'}.\n"
            ),
            one_line(result["machine"]) + "\n",
        ]
    )

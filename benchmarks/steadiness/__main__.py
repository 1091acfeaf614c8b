"""How steady streaming clusterers are, on streams whose true clusters are known at every moment."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from benchmarks.machine import facts, one_line
from benchmarks.results import folder_option, out_option, quick_option, table, write
from benchmarks.steadiness import speed
from benchmarks.steadiness.judge import STEP_ROWS, WARM_ROWS, Verdict, judge
from benchmarks.steadiness.learners import OURS, PEERS, Peer
from benchmarks.steadiness.sensors import REPEATED, SENSORS, SHUFFLED, again, at_random, sensor
from benchmarks.steadiness.streams import Stream, changing, every, stationary

CHOOSING = (100, 101, 102)
"""seeds on which options and rules were chosen"""
REPORTING = (9001, 9102)
"""seeds of the published figures; no option was chosen on them. One fault was found on the first
one and mended (a birth beside a cluster that has long been quiet)"""
PEER_SEEDS = 1
"""number of these seeds on which the peers are run, which are slow"""
QUICK = ("blobs K=5 d=2", "births")


@click.command(context_settings={"max_content_width": 100})
@quick_option("Two short streams and two peers")
@click.option(
    "--choosing", is_flag=True, help="The seeds for choosing instead of those for reporting."
)
@click.option("--ours", "ours_alone", is_flag=True, help="cluster_tree alone, without the peers.")
@click.option(
    "--peers-from",
    "earlier",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help=(
        "steadiness.json of an earlier run, whose verdicts on the peers are kept: only cluster_tree"
        " is run."
    ),
)
@click.option("--stream", "wanted", multiple=True, help="Only streams whose name contains this.")
@folder_option(
    "--data", "Folder of NAME.csv.gz files for the real streams; without it there are none."
)
@out_option("steadiness")
def main(
    quick: bool,
    choosing: bool,
    ours_alone: bool,
    earlier: Path | None,
    wanted: tuple[str, ...],
    data: Path | None,
    out: Path,
) -> None:
    """Measure how steady cluster_tree, FCAC and peers are.

    A full run takes half an hour or more, most of it for the peers.
    """
    started = time.monotonic()
    machine = facts(("shoal", "numpy", "numba", "scikit-learn", "river"))
    seeds = (CHOOSING if choosing else REPORTING)[: 1 if quick else None]
    judged_by = {
        "step_rows": STEP_ROWS,
        "warm_rows": WARM_ROWS,
        "seeds": list(seeds),
        "peer_seeds": PEER_SEEDS,
    }
    kept = (
        None
        if earlier is None
        else kept_peers(json.loads(earlier.read_text(encoding="utf-8")), judged_by)
    )
    peers: Sequence[Peer] = () if ours_alone or kept else PEERS[:2] if quick else PEERS
    measured: list[dict[str, Any]] = []
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # raised within the peers
        warnings.simplefilter("ignore", (RuntimeWarning, UserWarning, FutureWarning))
        for number, seed in enumerate(seeds):
            for stream in streams(seed, quick, data, wanted, first=number == 0):
                is_compared = number < PEER_SEEDS and stream.family != "repeated"
                beside = [peer for peer in peers if is_compared and peer.takes(stream)]
                measured += judged(stream, seed, (OURS, *beside))
        costs = speed.measure((2,) if quick else (2, 16, 64), 3 if quick else 9)
    result = {
        "made_by": (
            "python -m benchmarks steadiness"
            + " --quick" * quick
            + " --choosing" * choosing
            + " --ours" * ours_alone
            + " --peers-from FILE" * (kept is not None)
            + " --data FOLDER" * (data is not None)
        ),
        "took_s": round(time.monotonic() - started),
        "machine": machine,
        "judged": judged_by,
        "learners": {peer.name: peer.parameters for peer in (OURS, *peers)},
        "goal": speed.GOAL,
        "speed": costs,
        "verdicts": measured,
    }
    if kept is not None:
        result["learners"] |= kept["learners"]
        result["peers_measured_at"] = kept["measured_at"]
        measured += [
            verdict for verdict in kept["verdicts"] if _is_wanted(verdict["stream"], wanted)
        ]
    write(out, "steadiness", result, markdown(result))
    click.echo(f"written to {out}/steadiness.json and {out}/steadiness.md")


def kept_peers(earlier: dict[str, Any], judged_by: dict[str, Any]) -> dict[str, Any]:
    """The peers of an earlier result: learners, verdicts, and when they were measured.

    Raises `click.UsageError` unless the result was judged alike, on the same seeds.
    """
    if earlier["judged"] != judged_by:
        raise click.UsageError(
            f"--peers-from: that result was judged by {earlier['judged']}, this one by {judged_by}"
        )
    return {
        "learners": {name: text for name, text in earlier["learners"].items() if name != OURS.name},
        "verdicts": [verdict for verdict in earlier["verdicts"] if verdict["learner"] != OURS.name],
        "measured_at": earlier.get("peers_measured_at", earlier["machine"]["measured_at"]),
    }


def streams(
    seed: int, quick: bool, data: Path | None, wanted: Sequence[str], first: bool
) -> Iterator[Stream]:
    """All streams of one seed; the sensors, which have no seed, with the first one."""
    size = 3000 if quick else 10_000
    for name, make in every([stationary(size), changing(size)]).items():
        if _is_wanted(name, QUICK if quick else wanted):
            yield make(seed)
    if data is not None and not quick:
        for name in SENSORS if first else ():
            if _is_wanted(name, wanted):
                yield sensor(data, name)
        for name in SHUFFLED:
            if _is_wanted(f"{name}, shuffled", wanted):
                yield at_random(data, name, seed)
        for name in REPEATED:
            if _is_wanted(f"{name}, repeated", wanted):
                yield again(data, name, seed)


def _is_wanted(name: str, wanted: Sequence[str]) -> bool:
    return not wanted or any(part in name for part in wanted)


def judged(stream: Stream, seed: int, learners: Iterable[Peer]) -> list[dict[str, Any]]:
    """The verdicts on a stream, each with its stream, seed and learner."""
    found = []
    for peer in learners:
        started = time.process_time()
        try:
            verdict = judge(peer.make(stream), stream)
        except (
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
        ) as failed:  # raised by river on streams it cannot learn
            click.echo(f"{stream.name}, {peer.name}: failed, {type(failed).__name__}")
            continue
        took = time.process_time() - started
        of = {"stream": stream.name, "family": stream.family, "seed": seed, "learner": peer.name}
        found.append({**of, "took_s": round(took, 1), **verdict.as_dict()})
        click.echo(_progress(stream, peer, verdict, took))
    return found


def markdown(result: dict[str, Any]) -> str:
    """The result as a page: all learners on each family of streams, cluster_tree on each stream,
    cost, definitions."""
    verdicts = result["verdicts"]
    parts = [f"# How steady the clusters are\n\nMade by `{result['made_by']}`; do not edit.\n"]
    peer_seeds = set(result["judged"]["seeds"][: result["judged"]["peer_seeds"]])
    for family in dict.fromkeys(verdict["family"] for verdict in verdicts):
        own = [verdict for verdict in verdicts if verdict["family"] == family]
        compared = [verdict for verdict in own if verdict["seed"] in peer_seeds]
        parts.append(f"## {family.capitalize()} streams\n\n{_of_learners(compared)}")
        ours = [verdict for verdict in own if verdict["learner"] == OURS.name]
        parts.append(_of_streams(ours))
        if family == "repeated":
            parts.append(_of_growth(ours))
    parts.append("## Cost\n\n" + speed.cost_table(result["speed"]))
    parts.append(
        f"Checked every {result['judged']['step_rows']} rows, the first"
        f" {result['judged']['warm_rows']} not counted. Count error: how far the number shown is"
        " outside of what is true (clusters of the last 1 000 rows to clusters so far), as a share"
        " of the former. Changes: of the number shown, per 1 000 rows. Still: spans of 1 000 rows"
        " without one. Switches: a true cluster received another label; peers without lasting"
        " labels are judged by the labels they give. Delay: rows until a birth, split or merge is"
        " shown (rows of that cluster); blobs that move are two while 6 standard deviations apart,"
        " and the second number is counted from the moment when the density has another number of"
        " modes, 2 apart. Repeated: the rows of a table again and again, each time in another"
        " order.\n"
    )
    parts.append(
        "".join(f"- **{name}**: {parameters}.\n" for name, parameters in result["learners"].items())
    )
    if "peers_measured_at" in result:
        parts.append(
            f"All learners but cluster_tree were measured earlier, {result['peers_measured_at']}.\n"
        )
    return "\n".join([*parts, one_line(result["machine"]) + "\n"])


def _of_learners(verdicts: list[dict[str, Any]]) -> str:
    head = [
        "learner",
        "streams",
        "ARI",
        "ARI at the end",
        "count error",
        "changes",
        "still",
        "switches",
    ]
    lines = []
    for name in dict.fromkeys(verdict["learner"] for verdict in verdicts):
        own = [verdict for verdict in verdicts if verdict["learner"] == name]
        same = {verdict["stream"] for verdict in own}
        ours = [
            verdict
            for verdict in verdicts
            if verdict["learner"] == OURS.name and verdict["stream"] in same
        ]
        lines.append([name, str(len(own)), *_figures(own), *_figures(ours)[::3]])
    # Not every learner is run on every stream, so each line has cluster_tree on the streams of that
    # line.
    return table([*head, "cluster_tree there: ARI", "changes"], lines)


def _of_streams(verdicts: list[dict[str, Any]]) -> str:
    head = [
        "cluster_tree on",
        "seeds",
        "ARI",
        "ARI at the end",
        "count error",
        "changes",
        "still",
        "switches",
    ]
    lines = []
    for name in dict.fromkeys(verdict["stream"] for verdict in verdicts):
        own = [verdict for verdict in verdicts if verdict["stream"] == name]
        counts = ", ".join(dict.fromkeys(str(verdict["count_end"]) for verdict in own))
        delays = [
            _delay(*of_event)
            for verdict in own
            for of_event in zip(
                verdict["delays"], verdict["delays_own"], verdict["delays_modes"], strict=True
            )
        ]
        lines.append([name, str(len(own)), *_figures(own), counts, ", ".join(delays)])
    return table([*head, "clusters at the end", "delays"], lines)


def _delay(delay: int | None, own_rows: int | None, since_modes: int | None) -> str:
    if delay is None:
        return "never"
    return f"{delay} ({own_rows})" + f" or {since_modes}" * (since_modes != delay)


def _of_growth(verdicts: list[dict[str, Any]]) -> str:
    """The number of clusters after every 2,500 rows."""
    every_rows = 2500
    ends = range(every_rows, max(verdict["rows"] for verdict in verdicts) + 1, every_rows)
    lines = [
        [
            verdict["stream"],
            str(verdict["seed"]),
            *(str(verdict["counts"][end // STEP_ROWS - 1]) for end in ends),
        ]
        for verdict in verdicts
    ]
    return table(["clusters after rows", "seed", *map(str, ends)], lines)


def _figures(verdicts: list[dict[str, Any]]) -> list[str]:
    def mean(name: str, form: str) -> str:
        return format(float(np.mean([verdict[name] for verdict in verdicts])), form)

    def total(name: str) -> int:
        return sum(verdict[name] for verdict in verdicts)

    return [
        mean("ari", ".3f"),
        mean("ari_end", ".3f"),
        mean("count_error", ".0%"),
        mean("changes", ".3f"),
        mean("still", ".1%"),
        f"{total('switches')} of {total('switches_possible')}",
    ]


def _progress(stream: Stream, peer: Peer, verdict: Verdict, took: float) -> str:
    return (
        f"{stream.name}, {peer.name}: ARI {verdict.ari:.3f}, {verdict.count_end} clusters,"
        f" {verdict.changes:.2f} changes, {verdict.switches} of {verdict.switches_possible}"
        f" switches; {took:.1f} s"
    )

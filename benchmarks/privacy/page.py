"""The result as a page: accuracy by epsilon, goals, cost, definitions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from benchmarks.machine import one_line
from benchmarks.results import table

Cell = dict[str, Any]


def markdown(result: dict[str, Any]) -> str:
    """The whole page."""
    cells = result["cells"]
    parts = [f"# Clusters from private readings\n\nMade by `{result['made_by']}`; do not edit.\n"]
    parts.append(
        "Adjusted Rand index (ARI) between the true clusters and the labels of the readings as"
        " measured: the mean over the seeds, and the lowest in brackets. Only learners given K know"
        " the number of clusters.\n"
    )
    for learner in result["learners"]:
        own = [cell for cell in cells if cell["learner"] == learner and cell["ari"]]
        if not own:
            continue
        seeds = max(cell["seeds"] for cell in own)
        parts.append(f"## {_title(learner)}\n\n{by_epsilon(own, 'ari')}\nSeeds: {seeds}.\n")
    parts.append("## Agreement with its own result without noise, and clusters found\n")
    parts.append(_clusters([cell for cell in cells if cell["learner"] == "density_tree"]))
    parts.append("## Goals\n\n" + _goals(result["goals"]))
    parts.append("## Cost for a client\n\n" + costs(result["cost"], result["cost_goal"]))
    parts.append(
        "".join(f"- **{name}**: {parameters}.\n" for name, parameters in result["learners"].items())
    )
    return "\n".join([*parts, one_line(result["machine"]) + "\n"])


def by_epsilon(cells: Sequence[Cell], score: str) -> str:
    """A line for each stream, a column for each epsilon."""
    epsilons = list(dict.fromkeys(cell["epsilon"] for cell in cells))
    lines = []
    for name in dict.fromkeys(cell["stream"] for cell in cells):
        own = {cell["epsilon"]: cell for cell in cells if cell["stream"] == name}
        first = next(iter(own.values()))
        lines.append(
            [name, str(first["k"] or ""), *(_score(own[epsilon][score]) for epsilon in epsilons)]
        )
    return table(["stream", "K", *map(_epsilon, epsilons)], lines)


def _clusters(cells: Sequence[Cell]) -> str:
    epsilons = list(dict.fromkeys(cell["epsilon"] for cell in cells))
    lines = []
    for name in dict.fromkeys(cell["stream"] for cell in cells):
        own = {cell["epsilon"]: cell for cell in cells if cell["stream"] == name}
        found = [
            f"{own[epsilon]['ari_to_no_noise']['mean']:.2f}; {_range(own[epsilon]['clusters'])}"
            for epsilon in epsilons
        ]
        lines.append([name, str(next(iter(own.values()))["k"] or ""), *found])
    return table(["density_tree on", "K", *map(_epsilon, epsilons)], lines)


def _goals(goals: Sequence[dict[str, Any]]) -> str:
    lines = [
        [
            f"{goal['stream']}, {goal['learner']}",
            f"{goal['epsilon']:g}",
            f"{goal['least']:.2f}",
            f"{goal['ari']:.3f}",
            "reached" if goal["reached"] else "missed",
        ]
        for goal in goals
    ]
    return table(["stream", "ε", "goal", "ARI", ""], lines)


def costs(measured: Sequence[dict[str, Any]], goal: dict[str, float]) -> str:
    """The costs of density_tree as a Markdown table, and the goals."""
    lines = [
        [
            str(cost["d"]),
            str(cost["leaves"]),
            *(
                f"{cost[name]['median']:.3f}"
                for name in ("window_ms", "compiled_window_ms", "grow_ms", "compiled_grow_ms")
            ),
            f"{cost['window_kib']:.0f}",
            f"{cost['bytes_per_reading']:.1f}",
            f"{cost['compressed_bytes_per_reading']:.1f}",
            f"{cost['snapshot_bytes'] / 1024:.1f}",
        ]
        for cost in measured
    ]
    times = ["window, ms", "compiled", "growing, ms", "compiled"]
    head = [
        "d",
        "leaves",
        *times,
        "memory, KiB",
        "bytes up per reading",
        "compressed",
        "snapshot, KiB",
    ]
    return (
        table(head, lines)
        + "\nA window is 400 readings at an epsilon of 4: counted, made private, and made an"
        f" update. Goals: {goal['window_ms']:g} ms with 16 features and 40 leaves,"
        f" {goal['compiled_window_ms']:g} ms in the compiled form of the kernels, fewer than"
        f" {goal['bytes_per_reading']:g} bytes per reading. Growing: the server looks for valleys"
        " in all leaves, changes the tree and makes a snapshot. Memory: for a window, in the"
        " NumPy form. Compressed: by zlib, as a broker with compression does.\n"
    )


def _title(learner: str) -> str:
    return (
        learner
        if learner.startswith(("density_tree", "cluster_tree"))
        else learner[0].upper() + learner[1:]
    )


def _epsilon(epsilon: float | None) -> str:
    return "no noise" if epsilon is None else f"ε {epsilon:g}"


def _score(score: dict[str, float]) -> str:
    return f"{score['mean']:.2f} ({score['low']:.2f})"


def _range(numbers: Sequence[int]) -> str:
    return (
        f"{min(numbers)}" if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"
    )


IN_DOCS = (
    (
        "density_tree",
        ("blobs d=2", "blobs d=8", "blobs d=16", "hard d=2", "hard d=4", "hard d=8", "hard d=16"),
    ),
    (
        "density_tree",
        (
            "unequal d=8",
            "skewed blobs d=8",
            "skewed hard d=8",
            "class by class d=8",
            "moving d=8",
            "office",
        ),
    ),
    ("cluster_tree on a grid of private counts", ("hard d=2", "moons d=2", "bars d=2")),
)
"""what the page for operators shows: learners and streams"""
PEERS_IN_DOCS = (
    ("FCAC on noisy rows", "FCAC, noisy rows"),
    ("k-means on noisy rows, given K", "k-means, noisy rows, given K"),
    ("diffprivlib k-means, central, given K", "diffprivlib, central, given K"),
)
DOCS_EPSILONS = (1.0, 2.0, 4.0, None)
PEERS_EPSILON = 4.0


def docs_table(cells: Sequence[Cell]) -> str:
    """The table of docs/explanation/privacy.md."""
    score = {
        (cell["stream"], cell["learner"], cell["epsilon"]): cell["ari"]["mean"]
        for cell in cells
        if cell["ari"]
    }

    def figure(*key: Any) -> str:
        return f"{score[key]:.2f}" if key in score else ""

    lines = [
        [
            name + (", on a grid" if learner != "density_tree" else ""),
            *(figure(name, learner, epsilon) for epsilon in DOCS_EPSILONS),
            *(figure(name, peer, PEERS_EPSILON) for peer, _ in PEERS_IN_DOCS),
        ]
        for learner, names in IN_DOCS
        for name in names
        if (name, learner, PEERS_EPSILON) in score
    ]
    peers = [f"{short}, ε {PEERS_EPSILON:g}" for _, short in PEERS_IN_DOCS]
    return table(["readings", *map(_epsilon, DOCS_EPSILONS), *peers], lines)


def streams_table(cells: Sequence[Cell]) -> str:
    """Real streams of `python -m benchmarks privacy.density_tree`, as in
    docs/explanation/privacy.md too."""
    own = [cell for cell in cells if cell["part"] == "streams"]
    lines = []
    for name in dict.fromkeys(cell["stream"] for cell in own):
        here = [cell for cell in own if cell["stream"] == name]
        line = [name, str(here[0]["features"]), str(here[0]["readings"])]
        for learner in (1.0, 4.0, None, "cluster_tree"):
            some = [cell for cell in here if cell["learner"] == learner]
            scores = [cell["ari"] for cell in some if cell["ari"] is not None]
            line.append(numbers(some) + (f" ({mean(scores):.2f})" if scores else ""))
        lines.append(line)
    return table(
        ["stream", "features", "readings", "ε 1", "ε 4", "no noise", "cluster_tree"], lines
    )


def numbers(cells: Sequence[Cell]) -> str:
    """Fewest to most clusters."""
    found = sorted({cell["clusters"] for cell in cells})
    return f"{found[0]}" if len(found) == 1 else f"{found[0]} to {found[-1]}"

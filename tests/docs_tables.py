"""Tables of the docs that are made from declarations: commands, metrics, settings, guarantees. To
make them anew, after a change of a declaration: `python -m tests.docs_tables`."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from prometheus_client import CollectorRegistry

from shoal.cli.main import shoal
from shoal.cli.settings_table import settings_table
from shoal.client_nodes.host_metrics import HostMetrics
from shoal.config.contract import parse_contract
from shoal.config.resolved import resolve
from shoal.helper_node.metrics import HelperMetrics
from shoal.privacy.base import GUARANTEE_HEADINGS, Description
from shoal.privacy.formal import PRIOR_BELIEFS, belief_after, percent
from shoal.server_node.outputs.web import create_app, predict
from shoal.server_node.report.status import ServerStatus, StatusBoard
from shoal.telemetry.metrics import ClientMetrics, ServerMetrics
from tests.asyncapi import document
from tests.small_plant import plant

PAGES = Path(__file__).parent.parent / "docs" / "reference"
PRIVACY = PAGES.parent / "explanation" / "privacy.md"
ASYNCAPI = PAGES / "asyncapi.json"


def made_tables() -> dict[Path, tuple[str, ...]]:
    """Page -> its tables as the declarations have them."""
    return {
        PAGES / "commands.md": (commands_table(),),
        PAGES / "http.md": (http_table(),),
        PAGES / "metrics.md": (metrics_table(),),
        PAGES / "settings.md": (settings_table(),),
        PRIVACY: (beliefs_table(), guarantees_table()),
    }


EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 10.0)
EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "private counts of readings": {"mode": "formal", "counts_epsilon": 4},
    "private counts of users": {
        "mode": "formal",
        "counts_epsilon": 4,
        "unit": "user",
        "readings_per_window_max": 1,
    },
    "masked counts": {
        "mode": "masked",
        "unit": "client",
        "epsilon": 4,
        "budget_windows": 120,
        "budget_days": 30,
        "helpers": [{"name": "h1", "key": "1" * 128}],
    },
}
"""[privacy] of the contracts whose guarantees are shown"""


def beliefs_table() -> str:
    """What somebody may believe afterwards, by epsilon and by what was believed beforehand."""
    head = " | ".join(f"of somebody {100 * belief:g} % sure" for belief in PRIOR_BELIEFS)
    lines = [f"| ε | {head} |", "|---" * (1 + len(PRIOR_BELIEFS)) + "|"]
    for epsilon in EPSILONS:
        afterwards = [percent(belief_after(belief, epsilon)) for belief in PRIOR_BELIEFS]
        lines.append(f"| {epsilon:g} | {' | '.join(afterwards)} |")
    return "\n".join(lines)


def guarantees_table() -> str:
    """The rows of a guarantee, as `shoal check` and the page have them, at an epsilon of 4."""
    descriptions = example_descriptions().values()
    lines = [f"| at ε 4 | {' | '.join(EXAMPLES)} |", "|---" * (1 + len(EXAMPLES)) + "|"]
    for place, heading in enumerate(GUARANTEE_HEADINGS):
        texts = [description.rows()[place][1] for description in descriptions]
        lines.append(f"| **{heading}** | {' | '.join(texts)} |")
    gaps = [" ".join(description.not_covered) for description in descriptions]
    lines.append(f"| **not covered** | {' | '.join(gaps)} |")
    return "\n".join(lines)


def example_descriptions() -> dict[str, Description]:
    """What each of the examples guarantees."""
    descriptions = {}
    for name, privacy in EXAMPLES.items():
        contract = parse_contract(
            {
                "federation": {"name": "plant"},
                "features": [{"name": "warm", "low": -10, "high": 50}],
                "privacy": privacy,
                "models": [{"name": "clusters", "algorithm": "density_tree"}],
            }
        )
        descriptions[name] = resolve(contract).mode.describe()
    return descriptions


def http_table() -> str:
    """Every operation under `/v1` with what its endpoint says of it."""
    board = StatusBoard(ServerStatus(resolve(plant()), 0.0, 0.0))
    lines = ["| request | answer |", "|---|---|"]
    for operation in create_app(board, CollectorRegistry(), predict).state.operations:
        query = "?" * bool(operation.query) + "&".join(
            f"{field.name}={field.name.upper()}" for field in operation.query
        )
        text = " ".join((inspect.getdoc(operation.endpoint) or "").split())
        path = operation.path.replace("{identity}", "IDENTITY")
        lines.append(f"| `{operation.method} {path}{query}` | {text} |")
    return "\n".join(lines)


def asyncapi_text() -> str:
    """The document of the topics, as its file has it."""
    return json.dumps(document(), ensure_ascii=False, indent=1) + "\n"


def commands_table() -> str:
    """Every command with its arguments, and the first paragraph of its help text."""
    lines = ["| command | what it does |", "|---|---|"]
    for path, command, context in _commands(shoal, ["shoal"], click.Context(shoal)):
        arguments = [
            part.make_metavar(context)
            for part in command.params
            if isinstance(part, click.Argument)
        ]
        help_text = " ".join((command.help or "").split("\n\n")[0].split())
        lines.append(f"| `{' '.join(path + arguments)}` | {help_text} |")
    return "\n".join(lines)


def _commands(
    command: click.Command, path: list[str], context: click.Context
) -> Iterator[tuple[list[str], click.Command, click.Context]]:
    if not isinstance(command, click.Group):
        yield path, command, context
        return
    for name in command.list_commands(context):
        member = command.get_command(context, name)
        assert member is not None
        yield from _commands(
            member, [*path, name], click.Context(member, parent=context, info_name=name)
        )


def metrics_table() -> str:
    """Every metric with its labels, the processes that serve it, and its help text."""
    rows: dict[tuple[str, str], list[str]] = {}
    for process, metrics in (
        ("client", ClientMetrics()),
        ("server", ServerMetrics()),
        ("host", HostMetrics()),
        ("helper", HelperMetrics()),
    ):
        for metric in metrics.registry._collector_to_names:
            for family in metric.describe() if hasattr(metric, "describe") else metric.collect():
                if not family.name.startswith("process_"):
                    labels = ",".join(metric._labelnames)
                    end = {"counter": "_total", "info": "_info"}.get(family.type, "")
                    name = family.name + end + (f"{{{labels}}}" if labels else "")
                    rows.setdefault((name, family.documentation), []).append(process)
    lines = ["| metric | of | meaning |", "|---|---|---|"]
    lines += [
        f"| `{name}` | {', '.join(served)} | {text} |"
        for (name, text), served in sorted(rows.items())
    ]
    return "\n".join(lines)


def with_table(page: str, table: str) -> str:
    """The text of a page with `table` in the place of the table that has the same first line."""
    header = re.escape(table.partition("\n")[0])
    new, found = re.subn(rf"^{header}\n(\|.*\n)+", lambda _: f"{table}\n", page, flags=re.MULTILINE)
    assert found == 1, f"{found} tables begin with {header}"
    return new


if __name__ == "__main__":
    for file, tables in made_tables().items():
        for table in tables:
            page = with_table(file.read_text(encoding="utf-8"), table)
            file.write_text(page, encoding="utf-8")
    ASYNCAPI.write_text(asyncapi_text(), encoding="utf-8")

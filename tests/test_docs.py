"""The commands and examples of the README and docs/ are run, their links and tables compared with
the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import click
import pytest

from shoal.cli.main import shoal
from shoal.server_node.outputs.alert_rules import load_rules
from tests.docs_tables import ASYNCAPI, asyncapi_text, made_tables
from tests.forked_python import nodes
from tests.kafka_broker import Broker

HERE = Path(__file__).parent.parent
PAGES = sorted(
    [
        HERE / "README.md",
        *HERE.glob("docs/**/*.md"),
        *HERE.glob("reproduction/**/*.md"),
        HERE / "benchmarks" / "performance.md",
        HERE / "benchmarks" / "steadiness" / "steady_clusters.md",
    ]
)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return page.relative_to(HERE).with_suffix("").as_posix()


def blocks(page: Path, language: str) -> list[str]:
    return [
        text for found, text in BLOCK.findall(page.read_text(encoding="utf-8")) if found == language
    ]


def environment() -> dict[str, str]:
    """The commands of this environment first, and nothing of CI in it."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


LONG_PAGES = [
    HERE / "docs" / "how-to" / name for name in ("audit-privacy.md", "backup.md", "replay.md")
]
"""pages whose commands take half a minute and more, and have tests of their own"""


def run_commands(page: Path, folder: Path, **more: str) -> None:
    script = "set -euo pipefail\n" + "\n".join(blocks(page, "bash"))
    ended = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment() | more,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr, ended.stderr


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "bash") and page not in LONG_PAGES],
    ids=name_of,
)
def test_the_commands_of_a_page_run_from_top_to_bottom(page: Path, memory_folder: Path) -> None:
    run_commands(page, memory_folder, TMPDIR=str(memory_folder))


@pytest.mark.integration
@pytest.mark.parametrize("page", LONG_PAGES, ids=name_of)
def test_the_commands_of_a_long_page_run_from_top_to_bottom(
    page: Path, memory_folder: Path
) -> None:
    run_commands(page, memory_folder, TMPDIR=str(memory_folder))


@pytest.mark.integration
def test_the_commands_of_the_backup_page_run_on_brokers_too(
    own_broker: Broker, tmp_path: Path
) -> None:
    run_commands(
        HERE / "docs" / "how-to" / "backup.md",
        tmp_path,
        SHOAL_LOG_ADDRESS=f"kafka://{own_broker.bootstrap}",
    )


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    readings = "time,temperature,humidity\n" + "".join(
        f"{i},{20 + i % 3 * 5},{40 + i % 2 * 20}\n" for i in range(2000)
    )
    # the user's own file that the README reads
    (tmp_path / "readings.csv").write_text(readings, encoding="utf-8")
    for example in blocks(page, "python"):
        subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(example)],
            cwd=tmp_path,
            check=True,
        )


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=name_of)
def test_the_toml_files_of_a_page_are_valid(page: Path, tmp_path: Path) -> None:
    for number, text in enumerate(blocks(page, "toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(text, encoding="utf-8")
        tables = tomllib.loads(text)
        if "rule" in tables:
            assert load_rules(file)
        elif "build-system" in tables:
            assert page.stem == "extending", (
                "tests/extending compares that page with the package that it installs"
            )
        else:
            ended = nodes().run_text("check", file)
            assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("page", made_tables(), ids=name_of)
def test_a_table_that_is_made_from_declarations_agrees_with_them(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for table in made_tables()[page]:
        assert table in text, "make it anew: python -m tests.docs_tables"


def test_the_asyncapi_document_agrees_with_the_declarations() -> None:
    assert asyncapi_text() == ASYNCAPI.read_text(encoding="utf-8"), (
        "make it anew: python -m tests.docs_tables"
    )


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_commands_that_a_page_names_are_there(page: Path) -> None:
    context = click.Context(shoal)
    text = page.read_text(encoding="utf-8")
    for name, inner in re.findall(r"`shoal ([a-z][a-z-]*)\b(?! \d)(?: ([a-z][a-z-]*))?", text):
        command = shoal.get_command(context, name)
        assert command is not None, f"shoal {name}"
        if isinstance(command, click.Group) and inner:
            assert command.get_command(context, inner) is not None, f"shoal {name} {inner}"


def anchors_of(page: Path) -> set[str]:
    """The names under which GitHub finds the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_lead_to_files(page: Path) -> None:
    for place, anchor in re.findall(
        r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8")
    ):
        if place.startswith("http"):
            continue
        there = page.parent / place if place else page
        assert there.exists(), f"{name_of(page)} points to {place}"
        if anchor:
            assert anchor in anchors_of(there), f"{name_of(page)} points to {place}#{anchor}"

"""The page on regions, followed with real processes and a real browser: what it says is seen is
seen."""

from __future__ import annotations

import json
import re
import textwrap
import urllib.request
from pathlib import Path

from click.testing import CliRunner

from shoal.cli.main import shoal
from shoal.config.settings import load_config
from shoal.config.upstream import load_upstream
from tests.house.counting_federation import rooms
from tests.house.processes import TIMEOUT_S, Process, killed_on_exit, wait_until
from tests.server_node.web_browser import browsing

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "regions.md").read_text(encoding="utf-8")
READINGS = 3000
TREE = """[...document.querySelectorAll('#regions tbody tr')]
    .map(row => [...row.cells].map(cell => cell.textContent))"""


def world_file() -> str:
    found = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


def region_file(name: str, above: str = "world") -> str:
    """As the page says: the upstream file with another name and what the page adds; contributes
    every half second."""
    found = re.search(r"^(    \[upstream\]\n.*?\n)\n`file`", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    added = textwrap.dedent(found[1])
    alone, _, _ = world_file().partition("[server]")
    text = alone.replace('name = "world"', f'name = "{name}"') + added.replace(
        "../world/", f"../{above}/"
    )
    return text.replace("[upstream]", "[upstream]\npublish_s = 0.5")


def commands(word: str) -> list[list[str]]:
    """The arguments of every `shoal WORD ...` that the page gives."""
    return [
        line.split()[1:] for line in re.findall(rf"^    (shoal {word} .*)$", PAGE, re.MULTILINE)
    ]


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).mkdir()
    (folder / name / "federation.toml").write_text(text, encoding="utf-8")


def address_of(server: Process) -> str:
    """Where its page is, as it logs."""
    wait_until(lambda: " page_served " in server.log_text())
    found = re.search(r"page_served address=(http://127\.0\.0\.1:\d+/)", server.log_text())
    assert found
    return found[1]


def fetch(server: Process, path: str) -> str:
    with urllib.request.urlopen(address_of(server) + path, timeout=TIMEOUT_S) as answer:
        return str(answer.read().decode())


def readings(server: Process) -> dict[str, int]:
    """client or region -> readings that the server has of it."""
    clients = json.loads(fetch(server, "v1/status"))["clients"]
    return dict(zip(clients["client"], clients["readings"], strict=True))


def test_the_page_can_be_followed_and_the_tree_of_regions_is_seen(
    tmp_path: Path, chromium: str
) -> None:
    files = {
        "world": world_file(),
        "north": region_file("north"),
        "harbour": region_file("harbour", "north"),
    }
    for name, text in files.items():
        # Any free port: other tests run beside this one.
        below = '["harbour"]' if name == "north" else '["north", "south"]'
        alone = re.sub(r"\[server\]\n(port|regions) = .*\n", "", text)
        write(tmp_path, name, alone + f"\n[server]\nport = 0\nregions = {below}\n")
    checked = CliRunner().invoke(shoal, ["check", str(tmp_path / "north" / "federation.toml")])
    assert "region of   world" in checked.output
    assert "contributes to rooms" in checked.output
    rows = "\n".join(f"{warm:.3f},{damp:.3f}" for warm, damp in rooms(READINGS, 1))
    (tmp_path / "readings.csv").write_text(f"temperature,humidity\n{rows}\n", encoding="utf-8")
    world, north, _south = commands("server")
    (client,) = commands("client")
    (producer,) = commands("producer")

    def below(arguments: list[str]) -> list[str]:
        return [word.replace("north/", "harbour/") for word in arguments]

    def start(name: str, arguments: list[str]) -> Process:
        processes.append(Process(arguments, tmp_path / f"{name}.txt"))
        return processes[-1]

    processes: list[Process] = []
    (tmp_path / "browser").mkdir()
    with killed_on_exit(processes), browsing(chromium, tmp_path / "browser") as browser:
        # In any order: the lowest first, when nothing is there yet of the federations above.
        lowest = start("harbour", below(north))
        wait_until(lambda: "upstream_unavailable" in lowest.log_text())
        middle = start("north", north)
        top = start("world", world)
        for arguments in (producer, below(producer)):
            start("producer", arguments).end()
        clients = [start("client", client), start("client", below(client))]

        def all_is_in_the_world() -> bool:
            below_north = readings(lowest)
            in_north = readings(middle)
            of_harbour = below_north.get("client-1")
            complete = (
                set(in_north) == {"client-1", "harbour"} and in_north["harbour"] == of_harbour
            )
            return complete and readings(top) == {"north": sum(in_north.values())}

        wait_until(all_is_in_the_world)
        below_world = [{"path": "north", "clients": 1}, {"path": "north/harbour", "clients": 1}]
        assert json.loads(fetch(top, "v1/status"))["regions"] == below_world
        assert json.loads(fetch(middle, "v1/status"))["regions"] == [
            {"path": "harbour", "clients": 1}
        ]
        metrics = fetch(top, "metrics")
        assert 'shoal_region_clients{region="north"} 1.0' in metrics
        assert 'shoal_region_clients{region="north/harbour"} 1.0' in metrics
        assert 'shoal_consumer_lag_records{topic="north.contributions"} 0.0' in fetch(
            middle, "metrics"
        )

        tab = browser.tab()
        tab.resize(1280, 1000)
        tab.open(address_of(top))
        tab.until(f"{TREE}.length === 2")
        seen, harbour = tab.value_of(TREE)
        assert seen[:2] == ["north", "1"]
        assert seen[3].replace(",", "") == str(readings(top)["north"])
        assert harbour == ["north: harbour", "1", "–", "–"]
        assert tab.value_of("document.getElementById('regions-note').textContent").startswith(
            "2 clients in 2 regions."
        )
        assert tab.console_errors() == []
        for client in (*clients, lowest, middle, top):
            assert client.stop() == 0, client.log_text()


def test_the_files_of_the_page_are_a_world_and_its_region(tmp_path: Path) -> None:
    write(tmp_path, "world", world_file())
    write(tmp_path, "north", region_file("north"))
    north = load_config(tmp_path / "north" / "federation.toml")
    upstream = load_upstream(north)
    assert upstream is not None
    assert upstream.config.contract.federation == "world"
    assert upstream.models == ("rooms",)
    assert north.server.port != upstream.config.server.port

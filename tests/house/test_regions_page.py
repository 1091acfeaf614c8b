"""The page on regions: its files are those of a world and a region, and what it promises of them holds."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from shoal.config.settings import load_config
from shoal.config.upstream import load_upstream

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "regions.md").read_text(encoding="utf-8")


def test_the_files_of_the_page_are_a_world_and_its_region(tmp_path: Path) -> None:
    found = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    section = re.search(r"^(    \[upstream\]\n    file = .*\n)", PAGE, re.MULTILINE)
    assert found
    assert section
    world = found[1]
    region = world.replace('"world"', '"north"') + textwrap.dedent(section[1])
    for name, text in (("world", world), ("north", region)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "federation.toml").write_text(text, encoding="utf-8")
    upstream = load_upstream(load_config(tmp_path / "north" / "federation.toml"))
    assert upstream is not None
    assert upstream.config.contract.federation == "world"
    assert upstream.models == ("rooms",)

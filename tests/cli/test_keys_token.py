"""`shoal keys token`: a token that the server takes, made once and never printed."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from click.testing import CliRunner

from shoal.cli.main import shoal
from shoal.server_node.outputs.web.access import read_token


def run(*arguments: str) -> str:
    ended = CliRunner().invoke(shoal, ["keys", "token", *arguments])
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_a_token_is_made_for_the_owner_only_and_the_server_takes_it(tmp_path: Path) -> None:
    file = tmp_path / "new" / "token"
    output = run(str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    token = read_token(file)
    assert len(token) >= 40
    assert token not in output
    assert str(file) in output


def test_a_token_that_exists_is_kept_and_every_other_file_gets_one_of_its_own(
    tmp_path: Path,
) -> None:
    first = tmp_path / "first"
    second = tmp_path / "second"
    run(str(first))
    before = read_token(first)
    made = json.loads(run("--readable", "--json", str(first), str(second)))["made"]
    assert made == [str(second)]
    assert read_token(first) == before != read_token(second)
    assert stat.S_IMODE(second.stat().st_mode) == 0o644


def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = CliRunner().invoke(shoal, ["keys", "token", str(tmp_path / "file" / "token")])
    assert ended.exit_code != 0
    assert "name another folder" in str(ended.exception or ended.output)

"""Row F2: installed packages whose plug-ins fail, end the process, or take the names of others;
real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.test_row_f1_federation_files import WHOLE


def shoal(
    folder: Path, group: str, name: str, module: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run `shoal` beside a package that offers `name` in an entry-point group, and has this
    module."""
    metadata = folder / "site" / "odd-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "site" / "odd.py").write_text(module)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = odd:IT\n")
    (folder / "plant.toml").write_text(WHOLE.replace("cluster_tree", "fcac"))
    command = [sys.executable, "-m", "shoal", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder / "site")}
    return subprocess.run(
        command,
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.mark.parametrize("module", ["raise RuntimeError('boom')", "raise SystemExit(0)", "IT = 3"])
def test_a_broken_source_of_another_package_stops_no_producer_of_files(
    tmp_path: Path, module: str
) -> None:
    run = shoal(
        tmp_path,
        "shoal.sources",
        "odd",
        module,
        "producer",
        "--synthetic",
        "plant",
        "--print-federation",
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("[federation]") or "[federation]" in run.stdout
    assert "left out: source of readings 'odd' of package odd (odd:IT)" in run.stderr
    assert "Traceback" not in run.stderr


def test_an_algorithm_under_a_name_of_shoal_is_refused_by_both_names(tmp_path: Path) -> None:
    run = shoal(tmp_path, "shoal.algorithms", "fcac", "raise SystemExit(0)", "check", "plant.toml")
    assert run.returncode == 2
    assert "two installed packages offer the same algorithm 'fcac': " in run.stderr
    assert "odd (odd:IT)" in run.stderr

"""What the benchmark of the footprint installs is what the project's own settings name."""

from __future__ import annotations

import tomllib
from pathlib import Path

from benchmarks.installation import copy_sources

ROOT = Path(__file__).parents[2]


def test_every_package_and_file_of_a_build_is_where_the_settings_of_the_copy_say(
    tmp_path: Path,
) -> None:
    copy = copy_sources(ROOT, tmp_path / "sources")
    built = tomllib.loads((copy / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]
    for package in built["packages"]:
        folder = Path(*package.split("."))
        for prefix, place in built["package-dir"].items():
            if package == prefix or package.startswith(f"{prefix}."):
                folder = Path(place, *package.removeprefix(prefix).strip(".").split("."))
        assert (copy / folder / "__init__.py").is_file(), package
    for names in built["data-files"].values():
        assert all((copy / name).is_file() for name in names), names

"""What `pip install shoal` installs in an empty environment: distributions and megabytes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

INSTALLER = ("pip", "setuptools", "wheel")
"""distributions in an environment before shoal is installed"""
_LIST = (
    "import json, importlib.metadata as m; "
    "print(json.dumps({d.name: [d.version, sum(f.locate().stat().st_size for f in d.files or [] "
    "if f.locate().exists())] for d in m.distributions()}))"
)


def install(source: Path, folder: Path) -> Path:
    """A fresh environment in `folder` with the distribution at `source`, without extras; its
    Python."""
    copy = copy_sources(source, folder.with_name("sources"))
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(copy)],
        check=True,
    )
    return python


def weigh(python: Path) -> dict[str, Any]:
    """The distributions of an environment, without the installer's own, and their size in MB (10^6
    bytes)."""
    listed = subprocess.run(
        [python, "-c", _LIST], check=True, capture_output=True, text=True
    ).stdout
    found = {
        name: what for name, what in json.loads(listed).items() if name.lower() not in INSTALLER
    }
    return {
        "distributions": len(found),
        "mb": round(sum(size for _, size in found.values()) / 1e6, 1),
        "of_which_mb": {
            f"{name} {version}": round(size / 1e6, 1)
            for name, (version, size) in sorted(found.items())
        },
    }


def copy_sources(source: Path, folder: Path) -> Path:
    """Copy what a build needs to `folder`: a build leaves files beside its sources that a later one
    would include."""
    folder.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(source / name, folder)
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
    data_files = project["tool"]["setuptools"]["data-files"].values()
    for names_of_folder in data_files:
        for name in names_of_folder:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, folder / name)
    built = project["tool"]["setuptools"]
    names = {package.partition(".")[0] for package in built["packages"]}
    names.update(built["package-dir"].values())
    for name in sorted(names):
        # With their links, as a checkout has them: a folder behind a link would be there twice.
        shutil.copytree(
            source / name,
            folder / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    return folder

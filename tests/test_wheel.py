"""The wheel puts one package into site-packages, which no folder of a user's takes the place of."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("producers", "client_nodes", "helper_node", "server_node", "onebox")

pytestmark = pytest.mark.long


def copy_sources(folder: Path) -> Path:
    """Copy all that the wheel is built from into a folder: building leaves folders behind, whose
    old entry points Python would find in the root of the repository."""
    folder.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, folder)
    for name in ("shoal", "deploy/completion", *FOLDERS):
        # Links stay links, as in a clone.
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
    return folder


def build_wheel(sources: Path, built: Path) -> Path:
    """Build the wheel of a tree into a folder."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--no-build-isolation", "--wheel-dir", built, sources], check=True)
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    sources = copy_sources(tmp_path_factory.mktemp("sources") / "shoal")
    return build_wheel(sources, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel was unpacked into, as an installer does."""
    folder = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_the_wheel_has_one_package_with_every_file_of_the_folders_once(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    top = {name.split("/")[0] for name in names}
    (metadata,) = (name for name in top if name.endswith(".dist-info"))
    data = metadata.removesuffix(".dist-info") + ".data"
    assert top == {"shoal", metadata, data}
    assert {
        name.removeprefix(f"{data}/data/share/") for name in names if name.startswith(data)
    } == {
        "bash-completion/completions/shoal",
        "fish/vendor_completions.d/shoal.fish",
        "zsh/site-functions/_shoal",
    }
    expected = {
        f"shoal/{path.relative_to(ROOT)}"
        for name in FOLDERS
        for path in (ROOT / name).rglob("*.py")
    }
    expected |= {str(path.relative_to(ROOT)) for path in (ROOT / "shoal").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == expected


def test_every_file_that_is_no_program_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    folders = setuptools["package-dir"]
    for package, patterns in setuptools["package-data"].items():
        parent, _, rest = package.partition(".")
        top, _, below = rest.partition(".")
        name = f"{parent}.{top}" if top else parent
        folder = ROOT / folders.get(name, name) / below.replace(".", "/")
        for pattern in patterns:
            files = list(folder.glob(pattern))
            assert files, f"{package} has no {pattern}"
            for file in files:
                assert f"{package.replace('.', '/')}/{file.relative_to(folder)}" in names


@pytest.mark.parametrize(
    "command", [["-m", "shoal"], ["-c", "from shoal.cli.main import main; main()"]]
)
def test_folders_of_a_user_with_the_names_of_shoals_are_not_imported(
    installed: Path, tmp_path: Path, command: list[str]
) -> None:
    for number, name in enumerate(FOLDERS):
        (tmp_path / name).mkdir()
        # One is an empty folder, which Python takes for a package too.
        if number:
            (tmp_path / name / "__init__.py").write_text("raise SystemExit('the user\\'s own')\n")
    readings = "\n".join(
        f"2024-01-01 00:{row // 60:02}:{row % 60:02},{row % 7}" for row in range(600)
    )
    (tmp_path / "kiln.csv").write_text(f"time,heat\n{readings}\n", encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{installed}"}
    for arguments in (["init", "kiln.csv"], ["check", "kiln.toml"], ["client", "--help"]):
        ended = subprocess.run(
            [sys.executable, *command, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
    where = "import shoal.producers; print(shoal.producers.__file__)"
    shown = subprocess.run(
        [sys.executable, "-c", where],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(shown.stdout.strip()).is_relative_to(installed)

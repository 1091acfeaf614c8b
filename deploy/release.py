#!/usr/bin/env python3
"""Builds a release into dist/: sdist and wheel, notes, bill of materials, signed checksums. It
publishes nothing.

    release.py [--key FILE] [--out DIR] [--draft]

Sdist and wheel are built twice from the last commit, in two folders, and must have equal bytes. The
wheel is installed into an empty environment, in which the commands and examples of the README run;
the CycloneDX bill of materials is that of this environment. SHA256SUMS is signed with an SSH key
(`ssh-keygen -Y sign`):

    ssh-keygen -Y verify -f allowed_signers -I shoal -n shoal-release -s SHA256SUMS.sig < SHA256SUMS

--draft: a trial; the changelog needs no section of the version, and without --key nothing is
signed.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
NAMESPACE = "shoal-release"
"""namespace of the signature, so that one made for something else is none of a release"""
EXTRAS = "server,kafka,mqtt"
"""extras in the environment that is tried, and so in the bill of materials"""


class ReleaseError(Exception):
    """A release that must not be made. The message says why, and what to do."""


def version_of(root: Path = ROOT) -> str:
    """The version, which stands in shoal/__init__.py alone."""
    found = re.search(
        r'^__version__ = "([^"]+)"$',
        (root / "shoal" / "__init__.py").read_text("utf-8"),
        re.MULTILINE,
    )
    if found is None:
        raise ReleaseError("shoal/__init__.py has no __version__")
    return found[1]


def notes_of(changelog: str, version: str, *, draft: bool = False) -> str:
    """The section of a version in CHANGELOG.md, which has a date; in a draft that of what is not
    released yet.

    Raises `ReleaseError` where it is missing or empty, or where changes are left that no version
    has.
    """
    parts = re.split(r"^## (\[.+)$", changelog, flags=re.MULTILINE)
    sections = {
        title.strip(): text.strip() for title, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    if draft:
        return sections.get("[Unreleased]", "") or "Nothing."
    titles = [
        title
        for title in sections
        if re.fullmatch(rf"\[{re.escape(version)}\] - \d{{4}}-\d{{2}}-\d{{2}}", title)
    ]
    if not titles or not sections[titles[0]]:
        raise ReleaseError(
            f"CHANGELOG.md has no section '## [{version}] - DATE'; name the changes of this version"
            " there"
        )
    if sections.get("[Unreleased]"):
        raise ReleaseError(
            f"CHANGELOG.md has changes under [Unreleased]; move them into [{version}], or to a"
            " later one"
        )
    return sections[titles[0]]


def normalised(archive: bytes, moment: int) -> bytes:
    """A .tar.gz with the same files in the order of their names, all with one time and no owner.

    setuptools writes the times of files and the user into an sdist, SOURCE_DATE_EPOCH or not.
    """
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as given,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(given.getmembers(), key=lambda one: one.name):
            content = given.extractfile(member) if member.isfile() else None
            member.mtime = moment
            member.uid = 0
            member.gid = 0
            member.uname = ""
            member.gname = ""
            member.mode = 0o755 if member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, content)
    return gzip.compress(packed.getvalue(), mtime=moment)


def run(*words: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a program; `more` are keywords of `subprocess.run`. Raises `ReleaseError` with what it
    has printed."""
    ended: subprocess.CompletedProcess[str] = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, **more
    )
    if ended.returncode:
        raise ReleaseError(f"{' '.join(map(str, words))} failed:\n{ended.stdout}{ended.stderr}")
    return ended


def build(out: Path, moment: int) -> list[Path]:
    """Sdist and wheel of the last commit in `out`, from a copy of its own."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "shoal"
        source.mkdir()
        packed = subprocess.run(
            ["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(source, filter="data")
        environment = os.environ | {
            "SOURCE_DATE_EPOCH": str(moment),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LC_ALL": "C",
        }
        environment.pop("PYTHONPATH", None)
        run(
            sys.executable,
            "-m",
            "build",
            "--no-isolation",
            "--outdir",
            out,
            source,
            env=environment,
        )
    (sdist,) = out.glob("*.tar.gz")
    sdist.write_bytes(normalised(sdist.read_bytes(), moment))
    (wheel,) = out.glob("*.whl")
    return [sdist, wheel]


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tried(wheel: Path, folder: Path, out: Path) -> None:
    """Install the wheel into an empty environment, run the README there, and write the bill of
    materials of it."""
    run(sys.executable, "-m", "venv", folder / "venv")
    programs = folder / "venv" / "bin"
    pinned = ("-c", ROOT / "constraints.txt")
    run(programs / "python", "-m", "pip", "install", "--quiet", *pinned, f"{wheel}[{EXTRAS}]")
    environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    lines = (f"{i},{20 + i % 3 * 5},{40 + i % 2 * 20}\n" for i in range(2000))
    (folder / "readings.csv").write_text("time,temperature,humidity\n" + "".join(lines))
    readme = (ROOT / "README.md").read_text("utf-8")
    for language, program in (("python", programs / "python"), ("bash", Path("bash"))):
        for block in re.findall(rf"^```{language}\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL):
            text = block if language == "python" else f"set -euo pipefail\n{block}"
            run(program, "-c", text, cwd=folder, env=environment)
    words = (
        "environment",
        "--output-reproducible",
        "--pyproject",
        ROOT / "pyproject.toml",
        programs / "python",
    )
    run(Path(sys.executable).parent / "cyclonedx-py", *words, "--output-file", out)


def sign(sums: Path, key: Path) -> None:
    """Write SHA256SUMS.sig, and allowed_signers with the public key, by which it can be checked."""
    sums.with_name("SHA256SUMS.sig").unlink(missing_ok=True)
    run("ssh-keygen", "-Y", "sign", "-f", key, "-n", NAMESPACE, sums)
    public = run("ssh-keygen", "-y", "-f", key).stdout.split()
    sums.with_name("allowed_signers").write_text(
        f'shoal namespaces="{NAMESPACE}" {" ".join(public[:2])}\n'
    )


def release(out: Path, key: Path | None, *, draft: bool) -> list[Path]:
    """Make the release in an empty folder; its files. Raises `ReleaseError`."""
    version = version_of()
    notes = notes_of((ROOT / "CHANGELOG.md").read_text("utf-8"), version, draft=draft)
    if key is None and not draft:
        raise ReleaseError(
            "name the SSH key that signs: --key FILE (ssh-keygen -t ed25519 makes one)"
        )
    if not draft and run("git", "status", "--porcelain", "--untracked-files=no", cwd=ROOT).stdout:
        raise ReleaseError("there are changes that are not committed; a release is of a commit")
    if out.exists() and any(out.iterdir()):
        raise ReleaseError(f"{out} is not empty; move it away")
    out.mkdir(parents=True, exist_ok=True)
    moment = int(run("git", "log", "-1", "--format=%ct", cwd=ROOT).stdout)
    with tempfile.TemporaryDirectory() as folder:
        files = build(out, moment)
        again = build(Path(folder) / "again", moment)
        for one, other in zip(files, again, strict=True):
            if one.name != other.name or digest(one) != digest(other):
                raise ReleaseError(f"{one.name} has other bytes when it is built again")
        bill = out / f"shoal-{version}.cdx.json"
        tried(files[1], Path(folder), bill)
    (out / "NOTES.md").write_text(f"# shoal {version}\n\n{notes}\n", "utf-8")
    files += [bill, out / "NOTES.md"]
    sums = out / "SHA256SUMS"
    sums.write_text("".join(f"{digest(file)}  {file.name}\n" for file in files))
    if key is not None:
        sign(sums, key)
    return files


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Build a release into a folder; nothing is published."
    )
    parser.add_argument("--key", type=Path, help="the SSH key that signs the checksums")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="an empty folder (dist)")
    parser.add_argument(
        "--draft", action="store_true", help="a trial, of changes that are not released"
    )
    given = parser.parse_args()
    try:
        for file in release(given.out, given.key, draft=given.draft):
            print(digest(file), file)
    except ReleaseError as wrong:
        sys.exit(f"release: {wrong}")


if __name__ == "__main__":
    main()

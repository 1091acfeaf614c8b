#!/usr/bin/env python3
"""Builds a release into dist/: sdist and wheel, notes, bill of materials, signed checksums. It
publishes nothing.

    release.py [--key FILE] [--url URL] [--out DIR] [--draft]

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
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from shoal.cli.formats import kept_numbers

ROOT = Path(__file__).parent.parent
PROMISED = ROOT / "tests" / "house" / "promised" / "releases"
NAMESPACE = "shoal-release"
"""namespace of the signature, so that one made for something else is none of a release"""
EXTRAS = "server,kafka,mqtt"
"""extras in the environment that is tried, and so in the bill of materials"""


class ReleaseError(Exception):
    """A release that must not be made. The message says why, and what to do."""


def version_of(root: Path = ROOT) -> str:
    """The version, which stands in shoal/__init__.py alone."""
    text = (root / "shoal" / "__init__.py").read_text("utf-8")
    version = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if version is None:
        raise ReleaseError("shoal/__init__.py has no __version__")
    return version[1]


def notes_of(changelog: str, version: str, *, draft: bool = False) -> str:
    """The section of a version in CHANGELOG.md; in a draft that of what is not released yet.

    Raises `ReleaseError` where it is missing or empty, or where changes are left that no version
    has.
    """
    parts = re.split(r"^## (\[.+)$", changelog, flags=re.MULTILINE)
    # What was split is the text before the first title, and then titles and texts in turn.
    titles = [title.strip() for title in parts[1::2]]
    texts = [text.strip() for text in parts[2::2]]
    sections = dict(zip(titles, texts, strict=True))
    if draft:
        return sections.get("[Unreleased]", "") or "Nothing."
    dated = re.compile(rf"\[{re.escape(version)}\] - \d{{4}}-\d{{2}}-\d{{2}}")
    of_version = [text for title, text in sections.items() if dated.fullmatch(title)]
    if not of_version or not of_version[0]:
        raise ReleaseError(
            f"CHANGELOG.md has no section '## [{version}] - DATE'; name the changes of this version"
            " there"
        )
    if sections.get("[Unreleased]"):
        raise ReleaseError(
            f"CHANGELOG.md has changes under [Unreleased]; move them into [{version}], or to a"
            " later one"
        )
    return of_version[0]


def check_promised(archive: Path) -> None:
    """Raises `ReleaseError` unless the archive has what this version writes.

    Later versions promise to upgrade that, and their tests can try it on nothing else.
    """
    if not archive.exists():
        raise ReleaseError(f"there is no {archive.relative_to(ROOT)}; run `make promised`")
    with tarfile.open(archive) as packed:
        listed = packed.extractfile("formats.json")
        assert listed is not None
        made_with = json.load(listed)
    for kept, number in kept_numbers().items():
        # None: this environment lacks the extra.
        if number is not None and made_with.get(kept) != number:
            raise ReleaseError(
                f"{archive.name} was made with other formats ({kept}: {made_with.get(kept)}, now"
                f" {number}); run `make promised`"
            )


def normalised(archive: bytes, moment: int) -> bytes:
    """A .tar.gz with the same files in the order of their names, all with one time and no owner.

    setuptools writes the times of files and the user into an sdist, SOURCE_DATE_EPOCH or not.
    """
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as original,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(original.getmembers(), key=lambda member: member.name):
            content = original.extractfile(member) if member.isfile() else None
            member.mtime = moment
            member.uid = 0
            member.gid = 0
            member.uname = ""
            member.gname = ""
            member.mode = 0o755 if member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, content)
    return gzip.compress(packed.getvalue(), mtime=moment)


def with_urls(project: str, url: str, version: str) -> str:
    """pyproject.toml with the links of the package, all made from the address of the repository."""
    address = url.rstrip("/")
    if not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", address):
        raise ReleaseError(f"--url {url}: give the https address of the repository")
    pages = f"{address}/blob/v{version}"
    return (
        f"{project}\n[project.urls]\n"
        f'Homepage = "{address}"\n'
        f'Documentation = "{pages}/docs/index.md"\n'
        f'Changelog = "{pages}/CHANGELOG.md"\n'
        f'Issues = "{address}/issues"\n'
    )


def run(*words: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a program; `more` are keywords of `subprocess.run`.

    Raises `ReleaseError` with what it has printed.
    """
    ended: subprocess.CompletedProcess[str] = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, **more
    )
    if ended.returncode:
        raise ReleaseError(f"{' '.join(map(str, words))} failed:\n{ended.stdout}{ended.stderr}")
    return ended


def build(out: Path, moment: int, url: str) -> list[Path]:
    """Sdist and wheel of the last commit in `out`, from a copy of its own; without `url` the
    package has no links."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "shoal"
        source.mkdir()
        packed = subprocess.run(
            ["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(source, filter="data")
        if url:
            project = source / "pyproject.toml"
            text = with_urls(project.read_text("utf-8"), url, version_of(source))
            project.write_text(text, "utf-8")
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


def try_wheel(wheel: Path, folder: Path, out: Path) -> None:
    """Install the wheel into an empty environment and run the README there.

    The bill of materials of the environment is written to `out`.
    """
    run(sys.executable, "-m", "venv", folder / "venv")
    programs = folder / "venv" / "bin"
    pinned = ("-c", ROOT / "constraints.txt")
    run(programs / "python", "-m", "pip", "install", "--quiet", *pinned, f"{wheel}[{EXTRAS}]")
    environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    # The data that the examples of the README read: three temperatures by two humidities.
    lines = ["time,temperature,humidity\n"]
    for i in range(2000):
        lines.append(f"{i},{20 + i % 3 * 5},{40 + i % 2 * 20}\n")
    (folder / "readings.csv").write_text("".join(lines))
    readme = (ROOT / "README.md").read_text("utf-8")
    for language, program in (("python", programs / "python"), ("bash", Path("bash"))):
        for block in re.findall(rf"^```{language}\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL):
            # A shell goes on after a command that failed, unless it is told otherwise.
            text = block if language == "python" else f"set -euo pipefail\n{block}"
            run(program, "-c", text, cwd=folder, env=environment)
    run(
        Path(sys.executable).parent / "cyclonedx-py",
        "environment",
        "--output-reproducible",
        "--pyproject",
        ROOT / "pyproject.toml",
        programs / "python",
        "--output-file",
        out,
    )


def sign(sums: Path, key: Path) -> None:
    """Write SHA256SUMS.sig, and allowed_signers with the public key, by which it can be checked."""
    sums.with_name("SHA256SUMS.sig").unlink(missing_ok=True)
    run("ssh-keygen", "-Y", "sign", "-f", key, "-n", NAMESPACE, sums)
    public = run("ssh-keygen", "-y", "-f", key).stdout.split()
    sums.with_name("allowed_signers").write_text(
        f'shoal namespaces="{NAMESPACE}" {" ".join(public[:2])}\n'
    )


def release(out: Path, key: Path | None, url: str = "", *, draft: bool) -> list[Path]:
    """Make the release in an empty folder; its files. Raises `ReleaseError`."""
    version = version_of()
    notes = notes_of((ROOT / "CHANGELOG.md").read_text("utf-8"), version, draft=draft)
    if not draft:
        check_promised(PROMISED / f"{version}.tar.xz")
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
        files = build(out, moment, url)
        again = build(Path(folder) / "again", moment, url)
        for first, second in zip(files, again, strict=True):
            if first.name != second.name or digest(first) != digest(second):
                raise ReleaseError(f"{first.name} has other bytes when it is built again")
        bill = out / f"shoal-{version}.cdx.json"
        try_wheel(files[1], Path(folder), bill)
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
    parser.add_argument("--url", default="", help="https address of the repository, for its links")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="an empty folder (dist)")
    parser.add_argument(
        "--draft", action="store_true", help="a trial, of changes that are not released"
    )
    arguments = parser.parse_args()
    try:
        for file in release(arguments.out, arguments.key, arguments.url, draft=arguments.draft):
            print(digest(file), file)
    except ReleaseError as error:
        sys.exit(f"release: {error}")


if __name__ == "__main__":
    main()

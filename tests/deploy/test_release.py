"""The release: equal bytes whenever it is built, notes from the changelog, checksums that show
every change."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

import shoal
from deploy import release
from deploy.release import (
    NAMESPACE,
    ReleaseError,
    normalised,
    notes_of,
    version_of,
    with_urls,
)

ROOT = Path(__file__).parent.parent.parent
CHANGELOG = (
    "# Changelog\n\n## [Unreleased]\n{}\n## [1.1.0] - 2026-02-01\n\n- new\n\n## [1.0.0] -"
    " 2026-01-01\n\n- first\n"
)


def packed(names: list[str], moment: int, user: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 3
            member.mtime = moment
            member.uname = user
            member.mode = 0o664
            archive.addfile(member, io.BytesIO(b"abc"))
    return out.getvalue()


def test_the_version_stands_in_one_place() -> None:
    assert version_of() == shoal.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    for file in ("docker-compose.yml", "deploy/compose/production.yml"):
        assert f"shoal:{shoal.__version__}\n" in (ROOT / file).read_text(encoding="utf-8"), file


def test_an_sdist_has_the_same_bytes_whoever_has_built_it_when() -> None:
    one = normalised(packed(["a/b", "a/c"], 5, "me"), 99)
    assert one == normalised(packed(["a/c", "a/b"], 7, "you"), 99)
    with tarfile.open(fileobj=io.BytesIO(one)) as archive:
        assert [(member.name, member.mtime, member.uname, member.mode) for member in archive] == [
            ("a/b", 99, "", 0o644),
            ("a/c", 99, "", 0o644),
        ]


def test_the_notes_are_the_section_of_the_version() -> None:
    assert notes_of(CHANGELOG.format(""), "1.1.0") == "- new"
    assert notes_of(CHANGELOG.format("\n- later\n"), "1.2.0", draft=True) == "- later"
    with pytest.raises(ReleaseError, match=r"no section '## \[1.2.0\] - DATE'"):
        notes_of(CHANGELOG.format(""), "1.2.0")
    with pytest.raises(ReleaseError, match=r"under \[Unreleased\]"):
        notes_of(CHANGELOG.format("\n- later\n"), "1.1.0")


def test_the_links_of_the_package_are_made_from_the_address_of_the_repository() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    linked = with_urls(project, "https://forge.example/a/b/", "0.2.0")
    urls = tomllib.loads(linked)["project"]["urls"]
    assert urls["Homepage"] == "https://forge.example/a/b"
    assert urls["Changelog"] == "https://forge.example/a/b/blob/v0.2.0/CHANGELOG.md"
    for wrong in ("http://forge.example/a", "https://forge.example", 'https://forge.example/a"b'):
        with pytest.raises(ReleaseError, match="address of the repository"):
            with_urls(project, wrong, "0.2.0")


def test_a_release_has_the_archive_of_its_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "ROOT", tmp_path)
    archive = tmp_path / "1.0.tar.xz"
    with pytest.raises(ReleaseError, match=r"there is no 1\.0\.tar\.xz; run `make promised`"):
        release.check_promised(archive)
    (tmp_path / "formats.json").write_text(json.dumps({"client": 1, "helper": 2}))
    with tarfile.open(archive, "w:xz") as packed:
        packed.add(tmp_path / "formats.json", "formats.json")
    monkeypatch.setattr(release, "kept_numbers", lambda: {"client": 1, "helper": None})
    release.check_promised(archive)
    monkeypatch.setattr(release, "kept_numbers", lambda: {"client": 2, "helper": 2})
    with pytest.raises(ReleaseError, match=r"client: 1, now 2"):
        release.check_promised(archive)


@pytest.mark.integration
def test_a_release_is_built_tried_and_signed(tmp_path: Path) -> None:
    """Two builds of equal bytes, and the README in an empty environment: `release.py` ends with an
    error otherwise."""
    key = tmp_path / "key"
    out = tmp_path / "dist"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    words = [sys.executable, ROOT / "deploy" / "release.py", "--draft", "--key", key, "--out", out]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    bill = json.loads((out / f"shoal-{shoal.__version__}.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    named = {component["name"].lower() for component in bill["components"]}
    assert {"numpy", "msgpack", "pydantic", "click", "starlette", "kafka-python"} <= named
    verify = [
        "ssh-keygen",
        "-Y",
        "verify",
        "-f",
        out / "allowed_signers",
        "-I",
        "shoal",
        "-n",
        NAMESPACE,
    ]
    sums = out / "SHA256SUMS"
    checked = [*verify, "-s", out / "SHA256SUMS.sig"]
    subprocess.run(checked, input=sums.read_bytes(), check=True, capture_output=True)
    assert subprocess.run(
        checked, input=b"x" + sums.read_bytes(), check=False, capture_output=True
    ).returncode
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=out, check=True)

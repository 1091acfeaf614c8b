"""Hooks of the documentation site (mkdocs.yml): navigation, API reference, and files outside docs/
that pages link to.

The pages of docs/ link to each other and to files of the repository as in any clone. What they link
to outside of docs/ becomes part of the site under `repository/`, and so does what those pages link
to.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import posixpath
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import shoal

ROOT = Path(__file__).parent.parent
REPOSITORY = "repository/"
API = "reference/api.md"
GROUPS = ("Tutorial", "How-to", "Reference", "Explanation")
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DRAWN_BY = "@mermaid-js/mermaid-cli@11.16.0"
"""of which `npx` runs the program `mmdc`"""
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]+)?(\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation: the groups of docs/index.md, in its order; then what it does not list."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    sections = dict(
        re.findall(r"^## ([\w-]+)[^\n]*\n(.*?)(?=^## |\Z)", index, re.MULTILINE | re.DOTALL)
    )
    navigation: list[Any] = [{"Start": "index.md"}]
    for group in GROUPS:
        pages = [
            place
            for _, place, _, _ in LINK.findall(sections[group])
            if not place.startswith((".", "http"))
        ]
        listed = list(dict.fromkeys(place for place in pages if place.endswith(".md")))
        navigation.append({group: [*listed, API] if group == "Reference" else listed})
    known = {page for group in navigation[1:] for pages in group.values() for page in pages} | {
        "index.md"
    }
    others = sorted(
        path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")
    )
    more = [page for page in others if page not in known]
    navigation.append(
        {"More": [*more, *(REPOSITORY + name for name in outside() if name.endswith(".md"))]}
    )
    config["nav"] = navigation
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the API reference, and the files outside of docs/."""
    files.append(File.generated(config, API, content=api_page()))
    for name in outside():
        files.append(File.generated(config, REPOSITORY + name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links lead to where their files are in the site; those to folders become text."""
    here = in_repository(page.file.src_uri)

    def moved(found: re.Match[str]) -> str:
        before, place, anchor, after = found.groups()
        if is_elsewhere(place):
            return found[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(here), place))
        # A folder has no page; and what the repository's other pages link to need not be there yet.
        if (ROOT / there).is_dir() or (
            here.split("/")[0] != "docs" and not (ROOT / there).exists()
        ):
            return "]"
        relative = posixpath.relpath(in_site(there), posixpath.dirname(page.file.src_uri) or ".")
        return f"{before}{relative}{anchor or ''}{after}"

    return LINK.sub(moved, with_pictures(markdown, here))


def with_pictures(markdown: str, here: str) -> str:
    """The page `here` with the committed picture in the place of each diagram; a warning where its
    text has changed."""
    for text, picture in diagrams(markdown, here):
        path = ROOT / picture
        if not path.exists() or drawn_from(text) not in path.read_text(encoding="utf-8"):
            logging.getLogger("mkdocs").warning(
                "%s: not the diagram of %s; run make screenshots", picture, here
            )
        relative = posixpath.relpath(picture, posixpath.dirname(here))
        markdown = markdown.replace(f"```mermaid\n{text}```", f"![Diagram]({relative})", 1)
    return markdown


def diagrams(markdown: str, here: str) -> Iterator[tuple[str, str]]:
    """The text of each diagram of the page `here`, and the path of its picture in the
    repository."""
    for number, found in enumerate(DIAGRAM.finditer(markdown), 1):
        yield found[1], f"docs/pictures/{Path(here).stem}{'' if number == 1 else f'-{number}'}.svg"


def drawn_from(text: str) -> str:
    """The comment of a picture that says from which text it has been drawn."""
    return f"<!-- drawn from {hashlib.sha256(text.encode()).hexdigest()} -->"


def outside() -> list[str]:
    """The files of the repository outside of docs/ that pages link to, and those that these link
    to."""
    found: dict[str, None] = {}
    waiting = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
    while waiting:
        name = waiting.pop(0)
        text = (ROOT / name).read_text(encoding="utf-8")
        for _, place, _, _ in LINK.findall(text):
            there = posixpath.normpath(posixpath.join(posixpath.dirname(name), place))
            new = not is_elsewhere(place) and not there.startswith("docs/") and there not in found
            if new and (ROOT / there).is_file():
                found[there] = None
                if there.endswith(".md"):
                    waiting.append(there)
    return list(found)


def is_elsewhere(place: str) -> bool:
    """Whether a link leads to another site, or is no path."""
    return place.startswith(("http:", "https:", "mailto:", "/"))


def in_repository(uri: str) -> str:
    """The path in the repository of a file of the site."""
    return uri.removeprefix(REPOSITORY) if uri.startswith(REPOSITORY) else f"docs/{uri}"


def in_site(path: str) -> str:
    """The path in the site of a file of the repository."""
    return path.removeprefix("docs/") if path.startswith("docs/") else REPOSITORY + path


def api_page() -> str:
    """The reference of what `import shoal` offers: signatures, docstrings, and the examples that
    tests run."""
    parts = [
        "# API reference",
        "What `import shoal` offers. The examples are run by tests as they are printed here.",
    ]
    for name in sorted(set(shoal.__all__) - {"__version__"}):
        value = getattr(shoal, name)
        parts += [f"## {name}", described(name, value)]
        if inspect.isclass(value):
            parts += [method_text(name, value, method) for method in methods_of(value)]
    return "\n\n".join(parts)


def methods_of(value: type) -> list[str]:
    """Public methods and properties with docstrings, those of base classes first."""
    kinds_of = [kind for kind in reversed(value.__mro__) if kind.__module__.startswith("shoal")]
    found = {name: one for kind in kinds_of for name, one in vars(kind).items()}
    kinds = (property, classmethod, staticmethod, cached_property)
    return [
        name
        for name, one in found.items()
        if not name.startswith("_")
        and (inspect.isfunction(one) or isinstance(one, kinds))
        and inspect.getdoc(one)
    ]


def method_text(owner: str, value: type, name: str) -> str:
    """A method with its signature and docstring."""
    return f"### {owner}.{name}\n\n{described(name, getattr(value, name))}"


def described(name: str, value: Any) -> str:
    """Signature, and the docstring with its examples as blocks of code."""
    text = with_examples(inspect.getdoc(value) or "")
    return f"```python\n{signature_of(name, value)}\n```\n\n{text}" if callable(value) else text


def signature_of(name: str, value: Callable[..., Any]) -> str:
    """The signature, without the types' modules."""
    try:
        return f"{name}{inspect.signature(value)}".replace("numpy.typing.", "").replace(
            "typing.", ""
        )
    except ValueError:
        return f"{name}(...)"


def with_examples(docstring: str) -> str:
    """A docstring in the form of NumPy's as Markdown: titles, lists of parameters, and examples as
    blocks of code."""
    lines = []
    listed = False
    inside = False
    text = docstring.splitlines()
    for line, after in zip(text, [*text[1:], ""], strict=True):
        if re.fullmatch(r"-{3,}", line):
            continue
        if re.fullmatch(r"-{3,}", after):
            listed = line in ("Parameters", "Attributes", "Returns", "Raises")
            lines += ["", f"**{line}**", ""]
            continue
        if line.startswith(">>> ") and not inside:
            lines += ["", "```pycon"]
            inside = True
        if inside and not line.strip():
            lines.append("```")
            inside = False
        if inside:
            lines.append(line)
        elif listed and line and not line[0].isspace():
            name, _, kind = line.partition(" : ")
            lines.append(f"- `{name}`" + (f" ({kind})" if kind else ""))
        else:
            # What Markdown would take for HTML is left as it is.
            lines.append(line.replace("<", "&lt;"))
    return "\n".join([*lines, "```"] if inside else lines)


def main() -> None:
    """Draw each diagram of docs/."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for text, picture in diagrams(
            page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()
        ):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                (folder / "browser.json").write_text(
                    json.dumps({"executablePath": browser, "args": ["--no-sandbox"]})
                )
                style = {"theme": "neutral", "htmlLabels": False, "deterministicIds": True}
                (folder / "style.json").write_text(json.dumps(style))
                (folder / "diagram.mmd").write_text(text, encoding="utf-8")
                words = [
                    "npx",
                    "--yes",
                    "--package",
                    DRAWN_BY,
                    "mmdc",
                    "-p",
                    "browser.json",
                    "-c",
                    "style.json",
                ]
                words += ["-b", "white", "-i", "diagram.mmd", "-o", "diagram.svg"]
                subprocess.run(
                    words, cwd=folder, check=True, env=os.environ | {"PUPPETEER_SKIP_DOWNLOAD": "1"}
                )
                drawn = (folder / "diagram.svg").read_text(encoding="utf-8")
            (ROOT / picture).write_text(f"{drawn}\n{drawn_from(text)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

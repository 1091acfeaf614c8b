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
SEARCH_WORKER = "assets/iframe-worker.js"
"""the script of `site_worker.js` in the site, as mkdocs.yml names it"""
DRAWN_BY = "@mermaid-js/mermaid-cli@11.16.0"
"""of which `npx` runs the program `mmdc`"""
SECTION = re.compile(r"^## ([\w-]+)[^\n]*\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]+)?(\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation: the groups of docs/contents.md, in its order; then what it does not list."""
    contents = (ROOT / "docs" / "contents.md").read_text(encoding="utf-8")
    sections = dict(SECTION.findall(contents))
    navigation: list[Any] = [{"Start": "index.md"}]
    listed = {"index.md"}
    for group in GROUPS:
        pages = linked_pages(sections[group])
        if group == "Reference":
            pages.append(API)
        navigation.append({group: pages})
        listed.update(pages)
    more: list[str] = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        page = path.relative_to(ROOT / "docs").as_posix()
        if page not in listed:
            more.append(page)
    more += [REPOSITORY + name for name in outside() if name.endswith(".md")]
    navigation.append({"More": more})
    config["nav"] = navigation
    return config


def linked_pages(markdown: str) -> list[str]:
    """The pages of docs/ that a section of docs/contents.md links to, each once, in its order."""
    pages: list[str] = []
    for _, target, _, _ in LINK.findall(markdown):
        if target.endswith(".md") and not target.startswith((".", "http")) and target not in pages:
            pages.append(target)
    return pages


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the API reference, the list of pages for language models, the script with which the
    search works from a folder, and the files outside of docs/."""
    files.append(File.generated(config, API, content=api_page()))
    files.append(File.generated(config, "llms.txt", content=llms_page(config.site_description)))
    worker = ROOT / "deploy" / "site_worker.js"
    files.append(File.generated(config, SEARCH_WORKER, abs_src_path=str(worker)))
    for name in outside():
        files.append(File.generated(config, REPOSITORY + name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links lead to where their files are in the site; those to folders become text."""
    here = in_repository(page.file.src_uri)

    is_of_docs = here.split("/")[0] == "docs"

    def moved(link: re.Match[str]) -> str:
        before, target, anchor, after = link.groups()
        if is_elsewhere(target):
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        # A folder has no page; and what the repository's other pages link to need not be there yet.
        is_missing = not is_of_docs and not (ROOT / path).exists()
        if (ROOT / path).is_dir() or is_missing:
            return "]"
        relative = posixpath.relpath(in_site(path), posixpath.dirname(page.file.src_uri) or ".")
        return f"{before}{relative}{anchor or ''}{after}"

    return LINK.sub(moved, with_pictures(markdown, here))


def with_pictures(markdown: str, here: str) -> str:
    """The page `here` with the committed picture in the place of each diagram.

    Warns where the text of a diagram has changed since its picture was drawn.
    """
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
    name = Path(here).stem
    for number, diagram in enumerate(DIAGRAM.finditer(markdown), 1):
        suffix = "" if number == 1 else f"-{number}"
        yield diagram[1], f"docs/pictures/{name}{suffix}.svg"


def drawn_from(text: str) -> str:
    """The comment of a picture that says from which text it has been drawn."""
    return f"<!-- drawn from {hashlib.sha256(text.encode()).hexdigest()} -->"


def outside() -> list[str]:
    """The files of the repository outside of docs/ that pages link to, and those that these link
    to."""
    files: list[str] = []
    unread = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
    while unread:
        page = unread.pop(0)
        for _, target, _, _ in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
            if is_elsewhere(target) or path.startswith("docs/") or path in files:
                continue
            if (ROOT / path).is_file():
                files.append(path)
                if path.endswith(".md"):
                    unread.append(path)
    return files


def is_elsewhere(target: str) -> bool:
    """Whether a link leads to another site, or is no path."""
    return target.startswith(("http:", "https:", "mailto:", "/"))


def in_repository(uri: str) -> str:
    """The path in the repository of a file of the site."""
    return uri.removeprefix(REPOSITORY) if uri.startswith(REPOSITORY) else f"docs/{uri}"


def in_site(path: str) -> str:
    """The path in the site of a file of the repository."""
    return path.removeprefix("docs/") if path.startswith("docs/") else REPOSITORY + path


def api_page() -> str:
    """The reference of what `import shoal` offers: signatures, docstrings and examples."""
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


def llms_page(description: str) -> str:
    """The list of all pages in the form that programs with language models look for (llmstxt.org):
    docs/contents.md, with links to the pages of the site."""
    contents = (ROOT / "docs" / "contents.md").read_text(encoding="utf-8")

    def page_of(link: re.Match[str]) -> str:
        before, target, anchor, after = link.groups()
        if is_elsewhere(target):
            return link[0]
        path = in_site(posixpath.normpath(posixpath.join("docs", target))).removesuffix(".md")
        # A page of this name is the index of its folder in the site.
        path = re.sub(r"(^|/)README$", r"\1index", path)
        return f"{before}{path}.html{anchor or ''}{after}"

    _, _, sections = contents.partition("\n## ")
    return f"# shoal\n\n> {description}\n\n## {LINK.sub(page_of, sections)}"


def methods_of(value: type) -> list[str]:
    """Public methods and properties with docstrings, those of base classes first."""
    members: dict[str, Any] = {}
    for base in reversed(value.__mro__):
        if base.__module__.startswith("shoal"):
            members |= vars(base)
    kinds = (property, classmethod, staticmethod, cached_property)
    methods: list[str] = []
    for name, member in members.items():
        is_method = inspect.isfunction(member) or isinstance(member, kinds)
        if is_method and not name.startswith("_") and inspect.getdoc(member):
            methods.append(name)
    return methods


def method_text(owner: str, value: type, name: str) -> str:
    """A method with its signature and docstring."""
    return f"### {owner}.{name}\n\n{described(name, getattr(value, name))}"


def described(name: str, value: Any) -> str:
    """Signature, and the docstring with its examples as blocks of code."""
    text = with_examples(inspect.getdoc(value) or "")
    if not callable(value):
        return text
    return f"```python\n{signature_of(name, value)}\n```\n\n{text}"


def signature_of(name: str, value: Callable[..., Any]) -> str:
    """The signature, without the types' modules."""
    try:
        signature = str(inspect.signature(value))
    except ValueError:
        # Python cannot tell it of all that is compiled.
        return f"{name}(...)"
    return name + signature.replace("numpy.typing.", "").replace("typing.", "")


def with_examples(docstring: str) -> str:
    """A docstring in the form of NumPy's as Markdown: titles, lists of parameters, and examples as
    blocks of code."""
    lines: list[str] = []
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
            lines.append(f"- `{name}` ({kind})" if kind else f"- `{name}`")
        else:
            # What Markdown would take for HTML is left as it is.
            lines.append(line.replace("<", "&lt;"))
    if inside:
        lines.append("```")
    return "\n".join(lines)


def draw(diagram: str) -> str:
    """The picture of a diagram, as SVG."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    # Without ids that are the same each time, every picture would change with each drawing.
    style = {"theme": "neutral", "htmlLabels": False, "deterministicIds": True}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "browser.json").write_text(
            json.dumps({"executablePath": browser, "args": ["--no-sandbox"]})
        )
        (folder / "style.json").write_text(json.dumps(style))
        (folder / "diagram.mmd").write_text(diagram, encoding="utf-8")
        command = ["npx", "--yes", "--package", DRAWN_BY, "mmdc"]
        command += ["-p", "browser.json", "-c", "style.json", "-b", "white"]
        command += ["-i", "diagram.mmd", "-o", "diagram.svg"]
        # The browser of this machine is used, so that none is downloaded.
        environment = os.environ | {"PUPPETEER_SKIP_DOWNLOAD": "1"}
        subprocess.run(command, cwd=folder, check=True, env=environment)
        return (folder / "diagram.svg").read_text(encoding="utf-8")


def main() -> None:
    """Draw each diagram of docs/."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        markdown = page.read_text(encoding="utf-8")
        for text, picture in diagrams(markdown, page.relative_to(ROOT).as_posix()):
            svg = draw(text)
            (ROOT / picture).write_text(f"{svg}\n{drawn_from(text)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

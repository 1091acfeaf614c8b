"""The documentation site: `make docs` builds it without a warning, and what others link to is
there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from tests.server_node.web_browser import browsing

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "WARNING" not in ended.stderr
    return folder


@pytest.mark.integration
def test_alerts_lead_to_a_section_of_the_site(site: Path) -> None:
    rules = (ROOT / "deploy" / "prometheus" / "rules.yml").read_text(encoding="utf-8")
    page = (site / "how-to" / "alerts.html").read_text(encoding="utf-8")
    sections = re.findall(r"how-to/alerts.html#(\w+)", rules)
    assert len(sections) > 20
    assert [name for name in sections if f'id="{name}"' not in page] == []


@pytest.mark.integration
def test_every_public_name_is_in_the_api_reference_with_its_examples(site: Path) -> None:
    page = (site / "reference" / "api.html").read_text(encoding="utf-8")
    names = sorted(set(shoal.__all__) - {"__version__"})
    assert [name for name in names if f'id="{name.lower()}"' not in page] == []
    assert page.count('class="gp"') >= 30, "prompts of examples"


@pytest.mark.integration
def test_pages_load_nothing_from_elsewhere_and_can_be_searched(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|img|iframe)[^>]+src="https?:', text), page
        assert not re.findall(
            r'<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="https?:', text
        ), page
    assert "density_tree" in (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert (site / "pictures" / "page.png").exists()


@pytest.mark.integration
def test_the_search_works_from_a_folder(site: Path, chromium: str, tmp_path: Path) -> None:
    with browsing(chromium, tmp_path) as browser:
        tab = browser.tab()
        tab.open(f"{(site / 'how-to' / 'alerts.html').as_uri()}?q=density_tree")
        found = "[...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
        links = tab.until(f"({found}).length && {found}")
        assert any("/reference/algorithms.html" in link for link in links)
        assert tab.console_errors() == []


@pytest.mark.integration
def test_language_models_find_all_pages(site: Path) -> None:
    listed = (site / "llms.txt").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([^)#]+)", listed))
    assert "reference/http.html" in linked
    assert {page for page in linked if not (site / page).is_file()} == set()


@pytest.mark.integration
def test_diagrams_are_pictures_that_were_drawn_from_their_text(site: Path) -> None:
    page = (site / "explanation" / "design.html").read_text(encoding="utf-8")
    assert "flowchart TB" not in page
    assert 'src="../pictures/design.svg"' in page
    picture = (site / "pictures" / "design.svg").read_text(encoding="utf-8")
    assert "reassemble" in picture
    # The build, where each warning is an error, compares the text with the picture.
    hooks = pytest.importorskip("deploy.site_hooks")
    text, _ = next(
        hooks.diagrams(
            (ROOT / "docs/explanation/design.md").read_text(encoding="utf-8"), "docs/design.md"
        )
    )
    assert hooks.drawn_from(text) in picture
    assert hooks.drawn_from(text + "producers --> ingest\n") not in picture

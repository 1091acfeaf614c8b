"""Renews the screenshots of the live page in docs/pictures/: `make screenshots`. It needs Chromium
and a minute."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from tests.server_node.web_browser import Tab, browsing

DOCS = Path(__file__).parents[2] / "docs" / "pictures"
SCREENSHOTS = {"page.png": (1180, 1440, "light"), "page-narrow.png": (390, 1086, "dark")}
"""file -> width, height, theme"""
READINGS = 15_000
"""of 20,560: enough to see clusters while the demo is still running"""
READINGS_SHOWN = (
    "Number([...document.querySelectorAll('#counters dt')].find(name => name.textContent ==="
    " 'Readings')"
)
READINGS_SHOWN += "?.nextSibling.textContent.replaceAll(',', '') ?? 0)"


def main() -> None:
    """Run the demo and save screenshots of its page."""
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if chromium is None:
        sys.exit("there is no chromium on the PATH; on Debian: apt install chromium")
    with tempfile.TemporaryDirectory() as folder:
        command = ["demo", "--folder", f"{folder}/demo", "--port", "0", "--seconds", "40", "--json"]
        (Path(folder) / "browser").mkdir()
        demo = subprocess.Popen(
            [sys.executable, "-m", "shoal", *command], stderr=subprocess.PIPE, text=True
        )
        try:
            with browsing(chromium, Path(folder) / "browser") as browser:
                take_screenshots(browser.tab(), page_url(demo))
        finally:
            demo.terminate()
            demo.communicate()


def page_url(demo: subprocess.Popen[str]) -> str:
    """The URL of the demo's page, once the demo has printed it."""
    assert demo.stderr is not None
    for line in demo.stderr:
        if line.startswith("The live page: "):
            return line.removeprefix("The live page: ").strip()
    sys.exit("the demo ended before it showed a page")


def take_screenshots(tab: Tab, url: str) -> None:
    tab.resize(*SCREENSHOTS["page.png"][:2])
    tab.call("Emulation.setScrollbarsHidden", hidden=True)
    tab.open(url)
    # on a busy machine all of them take longer than one wait may
    for number in range(1000, READINGS + 1, 1000):
        tab.until(f"{READINGS_SHOWN} >= {number}")
    for name, (width, height, scheme) in SCREENSHOTS.items():
        tab.resize(width, height)
        tab.prefer(scheme)
        tab.until(
            f"innerWidth === {width} && document.documentElement.dataset.theme === '{scheme}'"
        )
        tab.value_of(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        Image.open(io.BytesIO(tab.screenshot())).convert("RGB").save(DOCS / name, optimize=True)
        print(f"{DOCS / name}: {(DOCS / name).stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()

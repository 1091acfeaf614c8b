"""Renews the screenshots of the live page in docs/pictures/: `make screenshots`. It needs Chromium
and a minute."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.server_node.web_browser import Tab, browsing

DOCS = Path(__file__).parents[2] / "docs" / "pictures"
SCREENSHOTS = {"page.png": (1180, 1440, "light"), "page-narrow.png": (390, 1086, "dark")}
"""file -> width, height, theme"""
READINGS = 19_000
"""of 20,560: nearly all of the sixteen days, while the demo still shows its page"""
READINGS_COUNTED = (
    "fetch('/v1/status').then(answer => answer.json()).then(status => status.models[0].readings)"
)
AXIS = "[...document.querySelectorAll('#timeline-axis span')].map(label => label.textContent)"
AXIS_TEXT = "Axis of time"
"""text in the file of a picture: the words on the axis of the clusters over time, as JSON"""


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
    for number in range(500, READINGS + 1, 500):
        tab.until(f"{READINGS_COUNTED}.then(readings => readings >= {number})")
    for name, (width, height, scheme) in SCREENSHOTS.items():
        tab.resize(width, height)
        tab.prefer(scheme)
        tab.until(
            f"innerWidth === {width} && document.documentElement.dataset.theme === '{scheme}'"
        )
        tab.value_of(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        claims = PngInfo()
        claims.add_itxt(AXIS_TEXT, json.dumps(tab.value_of(AXIS), ensure_ascii=False))
        picture = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
        picture.save(DOCS / name, optimize=True, pnginfo=claims)
        print(f"{DOCS / name}: {(DOCS / name).stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()

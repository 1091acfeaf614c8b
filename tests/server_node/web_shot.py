"""Draw the pictures of the live page in docs/pictures anew: `make picture`. It needs Chromium and half a minute."""

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
SHOTS = {"page.png": (1180, 1148, "light"), "page-narrow.png": (390, 1086, "dark")}
"""file -> width, height, colours"""
READINGS = 15_000
"""of 20,560: enough has been learnt, and the demo is still running"""
READ = "Number([...document.querySelectorAll('#counters dt')].find(name => name.textContent === 'Readings')"
READ += "?.nextSibling.textContent.replaceAll(',', '') ?? 0)"


def main() -> None:
    """Run the demo, look at its page, keep what was seen."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("there is no chromium on the PATH; on Debian: apt install chromium")
    with tempfile.TemporaryDirectory() as folder:
        command = ["demo", "--folder", f"{folder}/demo", "--port", "0", "--seconds", "40", "--json"]
        (Path(folder) / "browser").mkdir()
        demo = subprocess.Popen([sys.executable, "-m", "shoal", *command], stderr=subprocess.PIPE, text=True)
        try:
            with browsing(chromium, Path(folder) / "browser") as browser:
                shoot(browser.tab(), address(demo))
        finally:
            demo.terminate()
            demo.communicate()


def address(demo: subprocess.Popen[str]) -> str:
    """Where the page of a demo is, once it says so."""
    assert demo.stderr is not None
    for line in demo.stderr:
        if line.startswith("The live page: "):
            return line.removeprefix("The live page: ").strip()
    sys.exit("the demo ended before it showed a page")


def shoot(tab: Tab, url: str) -> None:
    tab.resize(*SHOTS["page.png"][:2])
    tab.call("Emulation.setScrollbarsHidden", hidden=True)
    tab.open(url)
    tab.until(f"{READ} >= {READINGS}")
    for name, (width, height, scheme) in SHOTS.items():
        tab.resize(width, height)
        tab.prefer(scheme)
        tab.until(f"innerWidth === {width} && document.documentElement.dataset.theme === '{scheme}'")
        tab.value_of("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        Image.open(io.BytesIO(tab.picture())).convert("RGB").save(DOCS / name, optimize=True)
        print(f"{DOCS / name}: {(DOCS / name).stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()

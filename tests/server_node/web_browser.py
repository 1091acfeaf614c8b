"""A real browser, driven over a pipe by the DevTools protocol: nothing to install but the browser itself."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
PATIENCE_S = 60.0


class Tab:
    """One open page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        for part in ("Page", "Runtime", "Log"):
            self.call(f"{part}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def open_once_it_answers(self, url: str) -> None:
        """For a server that is only starting."""
        deadline = time.monotonic() + PATIENCE_S
        while self.call("Page.navigate", url=url).get("errorText"):
            assert time.monotonic() < deadline, f"nobody ever answered at {url}"
            time.sleep(0.05)

    def value_of(self, expression: str) -> Any:
        """What a JavaScript expression is worth in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until the expression is truthy in the page; its value."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := self.value_of(expression)):
            assert time.monotonic() < deadline, f"the page never came to {expression}: {self.value_of(TEXT)}"
            time.sleep(0.02)
        return found

    def shows(self, text: str) -> None:
        """Wait until the page shows `text`."""
        self.until(f"{TEXT}.includes({json.dumps(text)})")

    def press(self, key: str) -> None:
        more = {"text": "\r", "windowsVirtualKeyCode": 13} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **more)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )

    def prefer(self, scheme: str) -> None:
        """ "light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self) -> bytes:
        """What is in the window, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def complaints(self) -> list[str]:
        """What the page wrote to the console as warnings and errors, and exceptions nobody caught."""
        self.value_of("0")  # events stand in the pipe before the answer
        return [said for session, said in self._browser.complaints if session == self._session]


TEXT = '(document.body?.innerText ?? "")'


class Browser:
    """A running headless browser."""

    def __init__(self, out: int, back: int) -> None:
        self._out, self._back = out, back
        self._number = 0
        self._unread = b""
        self.complaints: list[tuple[str, str]] = []

    def tab(self) -> Tab:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        return Tab(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command; its result. What the page complains about meanwhile is kept."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._out, json.dumps(command).encode() + b"\0")
        while (message := self._next()).get("id") != self._number:
            self._note(message)
        assert "error" not in message, (method, message["error"])
        result: dict[str, Any] = message["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._back], [], [], PATIENCE_S)
            assert ready, "the browser says nothing"
            chunk = os.read(self._back, 1 << 20)
            assert chunk, "the browser is gone"
            self._unread += chunk
        line, self._unread = self._unread.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, told = message.get("method"), message.get("params", {})
        session = message.get("sessionId", "")
        if method == "Runtime.exceptionThrown":
            self.complaints.append((session, json.dumps(told["exceptionDetails"])))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append((session, json.dumps(told["args"])))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append((session, json.dumps(told["entry"])))


@contextlib.contextmanager
def browsing(chromium: str, folder: Path) -> Iterator[Browser]:
    """A browser with an empty profile in `folder`, closed at the end."""
    ours_in, theirs_out = os.pipe()
    theirs_in, ours_out = os.pipe()
    # The protocol wants file descriptors 3 and 4; a shell puts them there.
    script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
    command = ["/bin/bash", "-c", script, chromium, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    with (folder / "browser.log").open("wb") as said:
        process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), stdout=said, stderr=said)
        os.close(theirs_in)
        os.close(theirs_out)
        browser = Browser(ours_out, ours_in)
        try:
            yield browser
        finally:
            with contextlib.suppress(AssertionError, OSError):
                browser.call("Browser.close")
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(ours_out)
            os.close(ours_in)

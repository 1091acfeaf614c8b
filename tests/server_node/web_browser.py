"""A real browser, controlled over a pipe by the DevTools protocol; nothing but the browser needs to
be installed."""

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
TIMEOUT_S = 180.0


class PageReloaded(Exception):
    """The page was reloaded while it evaluated an expression."""


class Tab:
    """One open page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        for part in ("Page", "Runtime", "Log"):
            self.call(f"{part}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def open_with_retries(self, url: str) -> None:
        """Open the page of a server that is still starting."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.call("Page.navigate", url=url).get("errorText"):
            assert time.monotonic() < deadline, f"no response from {url}"
            time.sleep(0.05)

    def value_of(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until the expression is truthy in the page; its value."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := self._value_or_none(expression)):
            assert time.monotonic() < deadline, (
                f"never true: {expression}; the page shows: {self.value_of(TEXT)}"
            )
            time.sleep(0.02)
        return found

    def _value_or_none(self, expression: str) -> Any:
        """The value of the expression, None when the page was reloaded during its evaluation."""
        try:
            return self.value_of(expression)
        except PageReloaded:
            return None

    def shows(self, text: str) -> None:
        """Wait until the page shows `text`."""
        self.until(f"{TEXT}.includes({json.dumps(text)})")

    def unfold(self) -> None:
        """Show what the page has folded: text in it is not shown before."""
        self.value_of("document.querySelectorAll('details').forEach(part => { part.open = true; })")

    def press(self, key: str) -> None:
        more = {"text": "\r", "windowsVirtualKeyCode": 13} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **more)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    def prefer(self, scheme: str, medium: str = "") -> None:
        """ "light" or "dark"; `medium`: "print", or the screen."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=medium, features=features)

    def screenshot(self) -> bytes:
        """A PNG of the window."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def console_errors(self) -> list[str]:
        """Warnings and errors on the console of the page, and its uncaught exceptions."""
        self.value_of("0")  # earlier events are in the pipe before this result
        return [
            error for session, error in self._browser.console_errors if session == self._session
        ]


TEXT = '(document.body?.innerText ?? "")'


class Browser:
    """A running headless browser."""

    def __init__(self, out: int, back: int) -> None:
        self._out = out
        self._back = back
        self._context: dict[str, str] = {}
        """the profile of its tabs; empty: the one that it was started with"""
        self._number = 0
        self._unread = b""
        self.console_errors: list[tuple[str, str]] = []

    def tab(self) -> Tab:
        target = self.call("Target.createTarget", url="about:blank", **self._context)["targetId"]
        return Tab(
            self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        )

    @contextlib.contextmanager
    def profile(self) -> Iterator[Browser]:
        """The same browser with an empty profile, whose tabs are closed at the end."""
        before = self._context
        self._context = self.call("Target.createBrowserContext")
        created = self._context
        try:
            yield self
        finally:
            self._context = before
            self.call("Target.disposeBrowserContext", **created)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command; its result. Console errors that arrive meanwhile are kept."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._out, json.dumps(command).encode() + b"\0")
        while (message := self._next()).get("id") != self._number:
            self._note(message)
        if "navigated" in message.get("error", {}).get("message", ""):
            raise PageReloaded(method)
        assert "error" not in message, (method, message["error"])
        result: dict[str, Any] = message["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._back], [], [], TIMEOUT_S)
            assert ready, "the browser does not respond"
            chunk = os.read(self._back, 1 << 20)
            assert chunk, "the browser has ended"
            self._unread += chunk
        line, self._unread = self._unread.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method = message.get("method")
        event = message.get("params", {})
        session = message.get("sessionId", "")
        if method == "Runtime.exceptionThrown":
            self.console_errors.append((session, json.dumps(event["exceptionDetails"])))
        elif method == "Runtime.consoleAPICalled" and event["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.console_errors.append((session, json.dumps(event["args"])))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.console_errors.append((session, json.dumps(event["entry"])))


@contextlib.contextmanager
def browsing(chromium: str, folder: Path) -> Iterator[Browser]:
    """A browser with an empty profile in `folder`, closed at the end."""
    ours_in, theirs_out = os.pipe()
    theirs_in, ours_out = os.pipe()
    # The protocol wants file descriptors 3 and 4; a shell puts them there.
    script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
    command = [
        "/bin/bash",
        "-c",
        script,
        chromium,
        *FLAGS,
        f"--user-data-dir={folder}",
        "about:blank",
    ]
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            command, pass_fds=(theirs_in, theirs_out), stdout=log, stderr=log
        )
        os.close(theirs_in)
        os.close(theirs_out)
        browser = Browser(ours_out, ours_in)
        try:
            yield browser
        finally:
            with contextlib.suppress(AssertionError, OSError):
                browser.call("Browser.close")
            try:
                process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(ours_out)
            os.close(ours_in)

"""A headless Chromium driven through its DevTools pipe: no port, no driver, no package."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]


def find_chromium() -> str | None:
    """The program's path; None where there is none."""
    return next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )


@dataclass(slots=True)
class Browser:
    """A browser's DevTools pipe."""

    to_browser: int
    from_browser: int
    _last: int = 0
    _buffer: bytes = b""

    def send(self, method: str, params: dict[str, Any], session: str) -> int:
        """Asks for a DevTools method, of the browser's own where ``session`` is empty; its id."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        return self._last

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """The next answer or event, of whichever session.

        Raises:
            TimeoutError: None came.
        """
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self.from_browser], [], [], timeout_s)
            if not ready:
                raise TimeoutError("Chromium said nothing")
            chunk = os.read(self.from_browser, 1 << 20)
            assert chunk, "Chromium went away"
            self._buffer += chunk
        text, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        return message


@dataclass(slots=True)
class Page:
    """One tab: what it logged, what it asked the network for."""

    browser: Browser
    session: str = ""
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    loaded: bool = False

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a DevTools method; events that come meanwhile are noted."""
        number = self.browser.send(method, params, self.session)
        while True:
            answer = self._receive(30.0)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, page: Path | str, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Loads a file, or an address, and waits until its scripts have run."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = "dark" if dark else "light"
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.loaded = False
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while not self.loaded:
            self._receive(30.0)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Writes the whole page as a PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def settle(self, seconds: float = 0.3) -> None:
        """Takes in what the page still says for a while."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                self._receive(left)

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        message = self.browser.receive(timeout_s)
        if message.get("sessionId", "") == self.session:  # not of a tab before
            self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.console.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Log.entryAdded":
            self.console.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.console.append(json.dumps(params["args"])[:500])


def _pipe() -> tuple[int, int]:
    """A pipe whose ends lie clear of the descriptors 3 and 4 that the browser's shell sets."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


@contextlib.contextmanager
def new_page(browser: Browser) -> Iterator[Page]:
    """A tab that shares nothing with others: cookies, caches and storage are its own."""
    own = Page(browser)
    context = own.call("Target.createBrowserContext")["browserContextId"]
    try:
        target = own.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = own.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = Page(browser, attached["sessionId"])
        for domain in ("Page", "Network", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        yield page
    finally:
        # Not waited for: of a tab that is just loading something else the answer may never come.
        browser.send("Target.disposeBrowserContext", {"browserContextId": context}, "")


@contextlib.contextmanager
def chromium_page(program: str) -> Iterator[Page]:
    """A fresh browser with one tab; it is gone, with its profile, afterwards."""
    with chromium_browser(program) as browser, new_page(browser) as page:
        yield page


@contextlib.contextmanager
def chromium_browser(program: str) -> Iterator[Browser]:
    """A fresh browser; it is gone, with its profile, afterwards."""
    browser_reads, we_write = _pipe()
    we_read, browser_writes = _pipe()

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The pipe's ends are descriptors 3 and 4 in the browser, by its own convention.
        process = subprocess.Popen(
            [
                "bash",
                "-c",
                f'exec "$@" 3<&{browser_reads} 4>&{browser_writes}',
                "bash",
                program,
                *FLAGS,
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            pass_fds=(browser_reads, browser_writes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(browser_reads)
        os.close(browser_writes)
        try:
            yield Browser(to_browser=we_write, from_browser=we_read)
        finally:
            os.close(we_write)
            os.close(we_read)
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

"""A headless Chromium, driven through its DevTools protocol. Where there is none, tests that ask for it are skipped with the reason."""

from __future__ import annotations

import base64
import contextlib
import json
import pathlib
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 60.0
"""Seconds to wait for the browser; machines that run tests are busy."""


class Browser:
    """One page of a browser."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._number = socket, 0
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.requests: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls one method of the protocol and returns its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        """Remembers what went wrong in the page, and what it asked the network for."""
        kind, what = message.get("method"), message.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.problems.append(str(what["exceptionDetails"]))
        elif kind == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.problems.append(str(what["args"]))
        elif kind == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.problems.append(str(what["entry"]))
        elif kind == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])

    def run(self, script: str) -> Any:
        """Runs JavaScript in the page and returns its value; what it throws fails the test."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def open(self, path: pathlib.Path) -> float:
        """Opens a file and returns the seconds until it could be used: loaded, its scripts run, and drawn."""
        self.problems, self.requests = [], []
        start = time.perf_counter()
        self.call("Page.navigate", url=path.as_uri())
        self.wait("document.readyState === 'complete'")
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        return time.perf_counter() - start

    def wait(self, condition: str) -> None:
        """Waits until JavaScript says that something is true."""
        end = time.perf_counter() + PATIENCE
        while not self.run(condition):
            assert time.perf_counter() < end, f"not true after {PATIENCE} seconds: {condition}"
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """Clicks in the middle of the first element that `selector` finds, as a mouse does."""
        self.run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        self.click_at(f"document.querySelector({selector!r})")

    def click_at(self, element: str) -> None:
        """Clicks at the top of an element that a JavaScript expression gives."""
        x, y = self.run(f"(() => {{ const r = ({element}).getBoundingClientRect(); return [r.x + r.width / 2, r.y + Math.min(r.height / 2, 12)]; }})()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def write(self, selector: str, text: str) -> None:
        """Replaces the text of a field, key by key."""
        self.run(f"document.querySelector({selector!r}).select()")
        self.run(f"document.querySelector({selector!r}).focus()")
        self.call("Input.dispatchKeyEvent", type="keyDown", key="Delete", code="Delete", windowsVirtualKeyCode=46)
        self.call("Input.insertText", text=text)

    def roll(self, selector: str, pixels: int) -> None:
        """Turns the mouse wheel over an element."""
        self.run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        x, y = self.run(f"(() => {{ const r = document.querySelector({selector!r}).getBoundingClientRect(); return [r.x + 60, r.y + r.height / 2]; }})()")
        self.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=pixels)

    def picture(self, path: pathlib.Path, whole: bool = False) -> None:
        """Saves a screenshot: what is seen, or the whole page."""
        clip: dict[str, Any] = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"captureBeyondViewport": True, "clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **clip)["data"]))


@contextlib.contextmanager
def chromium(profile: pathlib.Path) -> Iterator[Browser]:
    """Yields a browser; skips the test if there is none. `profile` is an empty folder for its files."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"there is no headless browser to look at the page with (none of {', '.join(NAMES)}); on Debian: apt-get install chromium")
    websocket = pytest.importorskip("websocket", reason="websocket-client, of tfmp's extra 'test', is not installed")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--window-size=1440,960"]
    with subprocess.Popen(
        [program, *options, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            socket = websocket.create_connection(_address(profile, process), suppress_origin=True, timeout=PATIENCE)
            with contextlib.closing(socket):
                yield Browser(socket)
        finally:
            process.terminate()


def _address(profile: pathlib.Path, process: subprocess.Popen[bytes]) -> str:
    port_file, end = profile / "DevToolsActivePort", time.perf_counter() + PATIENCE
    while time.perf_counter() < end:
        assert process.poll() is None, f"the browser ended with exit code {process.returncode}"
        if port_file.exists() and (text := port_file.read_text(encoding="utf-8").split()):
            with urllib.request.urlopen(f"http://127.0.0.1:{text[0]}/json", timeout=PATIENCE) as answer:
                pages = [target for target in json.load(answer) if target["type"] == "page"]
            if pages:
                address: str = pages[0]["webSocketDebuggerUrl"]
                return address
        time.sleep(0.05)
    raise AssertionError(f"the browser was not ready after {PATIENCE} seconds")

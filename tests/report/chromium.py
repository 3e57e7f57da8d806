"""Chromium without a screen, spoken to over two pipes: what a page looks like, says and does."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_LIMIT_S = 60.0


class Chromium:
    """One browser with one page open; a context manager that leaves nothing running."""

    def __init__(self, profile: Path) -> None:
        """profile: a folder of its own, to be made."""
        assert PROGRAM
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()

        def at_three_and_four() -> None:
            read, write = os.dup(to_read), os.dup(to_write)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self._process = subprocess.Popen(
            [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run", "about:blank"],
            preexec_fn=at_three_and_four, close_fds=False, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._held, self._number, self._session = b"", 0, None
        self.said: list[str] = []
        """What the page wrote to its console, and what the browser found wrong with it."""
        (page,) = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One method of the DevTools protocol; AssertionError with what it complains of."""
        self._number += 1
        words: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            words["sessionId"] = self._session
        os.write(self._write, json.dumps(words).encode() + b"\0")
        while (told := self._next()).get("id") != self._number:
            self._note(told)
        assert "error" not in told, told["error"]
        return told["result"]

    def _next(self) -> dict[str, Any]:
        ends = time.monotonic() + _LIMIT_S
        while b"\0" not in self._held:
            ready, _, _ = select.select([self._read], [], [], max(0.0, ends - time.monotonic()))
            assert ready, "Chromium does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "Chromium has ended"
            self._held += piece
        message, _, self._held = self._held.partition(b"\0")
        return json.loads(message)

    def _note(self, told: dict[str, Any]) -> None:
        method, said = told.get("method"), told.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.said.append(str([one.get("value") for one in said["args"]]))
        elif method == "Runtime.exceptionThrown":
            self.said.append(said["exceptionDetails"]["text"])
        elif method == "Log.entryAdded":
            self.said.append(said["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not said["request"]["url"].startswith(("file:", "data:")):
            self.said.append(f"asks the network for {said['request']['url']}")

    def open(self, page: Path, *, width: int, dark: bool = False) -> None:
        """Shows a file as a window of that width (CSS pixels) would."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])
        self.call("Page.navigate", url=page.resolve().as_uri())
        ends = time.monotonic() + _LIMIT_S
        here = json.dumps(page.resolve().as_uri())
        while not self.evaluate(f"document.readyState === 'complete' && location.href.split('#')[0] === {here}"):
            assert time.monotonic() < ends, "the page does not load"
            time.sleep(0.02)

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def screenshot(self, file: Path) -> None:
        """The whole page, as PNG."""
        told = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(told["data"]))

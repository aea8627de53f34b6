"""Headless Chromium, driven through the pipe of its own debugging protocol: no driver, no port."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PROGRAM = next((found for name in NAMES if (found := shutil.which(name))), None)
needs_browser = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium: apt-get install chromium-headless-shell"
)


class Browser:
    """One page. `errors` holds what the console and the page complained of."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        down, self._to = os.pipe()
        self._from, up = os.pipe()
        flags = "--headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run"
        command = [str(PROGRAM), *flags.split(), f"--user-data-dir={self._folder.name}"]
        shell = f'exec "$0" "$@" 3<&{down} 4>&{up}'  # it reads from 3 and writes to 4
        self._process = subprocess.Popen(
            ["bash", "-c", shell, *command, "--remote-debugging-pipe", "about:blank"],
            pass_fds=(down, up), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        os.close(down)
        os.close(up)
        self._read, self._count, self._session = b"", 0, ""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        made = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = made["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)  # its renderers, too
        self._process.wait()
        end = time.monotonic() + 30
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < end:  # until then they write into the folder
                os.killpg(self._process.pid, 0)
                time.sleep(0.01)
        os.close(self._to)
        os.close(self._from)
        self._folder.cleanup()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(180.0)
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer}"
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while b"\0" not in self._read:
            left = deadline - time.monotonic()
            if not select.select([self._from], [], [], max(left, 0))[0]:
                raise TimeoutError(f"Chromium said nothing for {seconds} s")
            self._read += os.read(self._from, 1 << 20)
        line, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, event: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(event["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "assert"):
            self.errors.append(json.dumps(event["args"])[:500])
        elif method == "Log.entryAdded" and event["entry"]["level"] == "error":
            self.errors.append(f"{event['entry']['text']} {event['entry'].get('url', '')}"[:500])

    def size(self, width: int, height: int, *, phone: bool = False, dark: bool = False) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                 deviceScaleFactor=1, mobile=phone)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str | Path) -> None:
        url = address.as_uri() if isinstance(address, Path) else address
        self.ask("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def says(self, expression: str, frame: str | None = None) -> Any:
        """The value of an expression in the page, or in one of its frames."""
        where = {}
        if frame is not None:
            world = self.ask("Page.createIsolatedWorld", frameId=frame)
            where = {"contextId": world["executionContextId"]}
        asked = self.ask("Runtime.evaluate", expression=expression, returnByValue=True,
                         awaitPromise=True, **where)  # fmt: skip
        assert "exceptionDetails" not in asked, asked
        return asked["result"].get("value")

    def until(self, expression: str, seconds: float = 180.0, frame: str | None = None) -> Any:
        """Wait until an expression is true."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                value = self.says(expression, frame)
            except AssertionError as error:
                if "Cannot find context" not in str(error):  # the page has just been left
                    raise
                value = None
            if value:
                return value
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.2)

    def frames(self) -> list[str]:
        """The frames within the page."""
        tree = self.ask("Page.getFrameTree")["frameTree"]
        return [child["frame"]["id"] for child in tree.get("childFrames", ())]

    def press(self, key: str) -> None:
        """Press a key that is no letter: "Tab", "Enter"."""
        code = {"Tab": 9, "Enter": 13}[key]
        more = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                     windowsVirtualKeyCode=code, **(more if kind == "keyDown" else {}))  # fmt: skip

    def picture(self, file: Path) -> None:
        data = self.ask("Page.captureScreenshot", format="png")["data"]
        file.write_bytes(base64.b64decode(data))

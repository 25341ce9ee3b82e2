"""A real headless Chromium, driven by its DevTools protocol over two pipes, for tests of the console."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.waiting import can_read

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""The program, None where none is installed."""
_DEADLINE_S = 120.0
_FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--hide-scrollbars", "--mute-audio", "--force-color-profile=srgb",
)  # fmt: skip


class PageFailed(AssertionError):
    """A script of the page raised, or what a test waits for has not come."""


class Browser:
    """One browser process; a context manager."""

    def __init__(self) -> None:
        assert CHROMIUM is not None, "Chromium is not installed"
        self._profile = Path(tempfile.mkdtemp(prefix="reput-chromium-"))
        from_us, to_browser = os.pipe()
        from_browser, to_us = os.pipe()
        arguments = [CHROMIUM, *_FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        script = f'exec "$@" 3<&{from_us} 4>&{to_us}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *arguments],
            pass_fds=(from_us, to_us),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(to_us)
        self._in, self._out = from_browser, to_browser
        self._received = b""
        self._last_id = 0
        self._pages: dict[str, Page] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._profile, ignore_errors=True)

    def page(self, width: int = 1280, height: int = 900, *, dark: bool = False) -> Page:
        """Open an empty page of this size, with its own cookies."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", {"url": "about:blank", "browserContextId": context})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self._pages[session] = Page(self, session, context)
        page.set_up(width, height, dark)
        return page

    def call(self, method: str, params: Mapping[str, Any] | None = None, session: str | None = None) -> dict[str, Any]:
        """Make a call and return its result; events that come meanwhile go to their pages."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": dict(params or {})}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        ends_at = time.monotonic() + _DEADLINE_S
        while True:
            answer = self._next(ends_at, method)
            if answer.get("id") != self._last_id:
                self._note(answer)
            elif "error" in answer:
                raise PageFailed(f"{method}: {answer['error']}")
            else:
                return dict(answer["result"])

    def _next(self, ends_at: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._received:
            if not can_read(self._in, within_s=max(0.0, ends_at - time.monotonic())):
                raise PageFailed(f"Chromium has not answered {what} within {_DEADLINE_S:g} s")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise PageFailed(f"Chromium ended during {what}")
            self._received += data
        message, _, self._received = self._received.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: Mapping[str, Any]) -> None:
        page = self._pages.get(event.get("sessionId", ""))
        if page is not None and "method" in event:  # else the answer to a call that was given up
            page.note(event["method"], event["params"])


class Page:
    """One page.

    Attributes:
        problems: what its console reports as an error or warning: exceptions, refused loads, violations of its policy.
    """

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self.problems: list[str] = []
        self._browser = browser
        self._session = session
        self._context = context

    def set_up(self, width: int, height: int, dark: bool) -> None:
        """Choose size and colours, and start to listen."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", {"features": [scheme]})

    def resize(self, width: int, height: int) -> None:
        """Change the size; a narrow page is a phone's."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", size)

    def call(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Make a call for this page."""
        return self._browser.call(method, params, self._session)

    def note(self, method: str, params: Mapping[str, Any]) -> None:
        """Take an event."""
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(arg.get("value", arg)) for arg in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            entry = params["entry"]
            self.problems.append(f"{entry['text']} {entry.get('url', '')}".strip())

    def open(self, url: str) -> None:
        """Go to a URL."""
        self.call("Page.navigate", {"url": url})

    def run(self, script: str) -> Any:
        """Return the value of an expression, awaited if it is a promise."""
        options = {"expression": script, "awaitPromise": True, "returnByValue": True, "userGesture": True}
        answer = self.call("Runtime.evaluate", options)
        if "exceptionDetails" in answer:
            raise PageFailed(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, condition: str, *, pressing: str | None = None) -> None:
        """Wait until an expression is true; a key may be pressed again and again for it, as a person would."""
        ends_at = time.monotonic() + _DEADLINE_S
        while not self._is_true(condition):
            if pressing is not None:
                self.press(pressing)
            if time.monotonic() > ends_at:
                text = self.run("document.body.innerText.slice(0, 2000)")
                raise PageFailed(f"not true in time: {condition}\n{self.problems}\n{text}")
            time.sleep(0.03)

    def _is_true(self, condition: str) -> bool:
        try:
            return bool(self.run(f"Boolean({condition})"))
        except PageFailed:  # the page is not loaded yet
            return False

    def shows(self, text: str) -> None:
        """Wait until the page has this text."""
        self.until(f"document.body.innerText.includes({json.dumps(text)})")

    def click(self, selector: str, text: str | None = None) -> None:
        """Click the first element of a CSS selector, or the first with this text."""
        all_of = f"[...document.querySelectorAll({json.dumps(selector)})]"
        found = f"{all_of}.find((one) => {'true' if text is None else f'one.textContent === {json.dumps(text)}'})"
        self.until(found)
        self.run(f"{found}.click()")

    def click_in_row(self, selector: str, row: str = "") -> None:
        """Click the first element of a CSS selector, of those in a table's row with a text if one is given."""
        all_of = f"[...document.querySelectorAll({json.dumps(selector)})]"
        found = f"{all_of}.find((one) => !{json.dumps(row)} || one.closest('tr').innerText.includes({json.dumps(row)}))"
        self.until(found)
        self.run(f"{found}.click()")

    def fill(self, selector: str, value: str | bool, *, is_box: bool = False) -> None:
        """Give a field of a form a value, as a person would: the form notices."""
        attribute = "checked" if is_box else "value"
        self.run(
            f"(() => {{ const field = document.querySelector({json.dumps(selector)}); "
            f"field.{attribute} = {json.dumps(value)}; "
            "field.dispatchEvent(new Event('input', { bubbles: true })); })()"
        )

    def drag(self, selector: str, start: float, end: float) -> None:
        """Drag the mouse over the first element of a CSS selector, between two shares of its width."""
        script = (
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            " one.scrollIntoView({block: 'center'}); const box = one.getBoundingClientRect();"
            " return [box.left, box.top, box.width, box.height]; })()"
        )
        left, top, width, height = self.run(script)
        mouse = {"y": top + height / 2, "button": "left", "clickCount": 1}
        for kind, share in (("Pressed", start), ("Moved", (start + end) / 2), ("Moved", end), ("Released", end)):
            place = {"x": left + width * share, "buttons": 0 if kind == "Released" else 1}
            self.call("Input.dispatchMouseEvent", {"type": f"mouse{kind}", **mouse, **place})

    def write(self, text: str) -> None:
        """Press a key for each character."""
        for character in text:
            self.press(character)

    def press(self, key: str) -> None:
        """Press and release a key."""
        code = {"key": key, "text": key} if len(key) == 1 else {"key": key, "code": key}
        if key == "Enter":
            code["text"] = "\r"
        if key in _VIRTUAL_CODES:
            code["windowsVirtualKeyCode"] = _VIRTUAL_CODES[key]  # type: ignore[assignment]
        self.call("Input.dispatchKeyEvent", {"type": "keyDown", **code})
        self.call("Input.dispatchKeyEvent", {"type": "keyUp", **code})

    def save_downloads(self, directory: Path) -> None:
        """Write what the page downloads to a directory."""
        options = {"behavior": "allow", "downloadPath": str(directory), "browserContextId": self._context}
        self._browser.call("Browser.setDownloadBehavior", options)

    def picture(self, path: Path, *, height_max: int | None = None) -> None:
        """Write what is visible to a PNG file; with `height_max` also what is below, up to this many pixels."""
        options: dict[str, Any] = {"format": "png", "optimizeForSpeed": False}
        if height_max is not None:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": min(height_max, size["height"])}
            options |= {"captureBeyondViewport": True, "clip": {**clip, "scale": 1}}
        data = self.call("Page.captureScreenshot", options)["data"]
        path.write_bytes(base64.b64decode(data))


_VIRTUAL_CODES = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}

"""A real browser, driven through the DevTools protocol over pipes."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 60.0
"""Seconds after which a condition counts as never true; the machine may be busy."""
NAMED = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
SHIFT, CONTROL = 8, 2


class Browser:
    """One process of the browser; `tab` opens pages in it."""

    def __init__(self, profile: Path) -> None:
        assert BROWSER
        ours_read, theirs_write = os.pipe()
        theirs_read, ours_write = os.pipe()
        read, write = (fcntl.fcntl(fd, fcntl.F_DUPFD, 60) for fd in (theirs_read, theirs_write))
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--hide-scrollbars"]
        options += ["--disable-background-networking", "--no-first-run", f"--user-data-dir={profile}"]
        script = f"import os, sys; os.dup2({read}, 3); os.dup2({write}, 4); os.execv(sys.argv[1], sys.argv[1:])"
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, BROWSER, *options, "about:blank"],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (theirs_read, theirs_write, read, write):
            os.close(fd)
        self.read_fd, self.write_fd = ours_read, ours_write
        self.buffer, self.number = b"", 0
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        """End the browser."""
        self.process.terminate()
        self.process.wait(20)
        os.close(self.read_fd)
        os.close(self.write_fd)

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        os.write(self.write_fd, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            answer = self.receive(end - time.monotonic())
            if answer is not None and answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
        raise TimeoutError(method)

    def receive(self, patience: float) -> dict[str, Any] | None:
        """Return the next answer; events are kept aside."""
        while b"\0" not in self.buffer:
            if not select.select([self.read_fd], [], [], patience)[0]:
                return None
            data = os.read(self.read_fd, 2**16)
            assert data, "the browser has ended"
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def tab(self, address: str, width: int = 1200, height: int = 800, *, phone: bool = False) -> "Tab":
        """Open a page of this size and wait until it is ready."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        tab.call("Emulation.setDeviceMetricsOverride", **size)
        tab.call("Emulation.setFocusEmulationEnabled", enabled=True)  # also for tabs in the background
        if phone:
            tab.call("Emulation.setTouchEmulationEnabled", enabled=True)
        tab.open(address)
        return tab


class Tab:
    """One page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self.session = browser, session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol for this page."""
        return self.browser.call(method, self.session, **parameters)

    def open(self, address: str) -> None:
        """Go to an address and wait until the label page is ready."""
        self.call("Page.navigate", url=address)
        self.until('document.body && document.body.dataset.ready === "yes"')

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression, which may be a promise."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str, patience: float = PATIENCE) -> Any:
        """Wait until a JavaScript expression is true, and return its value."""
        return wait(lambda: self.run(script), script, patience)

    def text(self, selector: str) -> str:
        """Return the visible text of an element."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press a key."""
        code = NAMED.get(key, ord(key.upper()) if len(key) == 1 else 0)
        event = {"key": key, "modifiers": modifiers, "windowsVirtualKeyCode": code}
        typed = {"text": key} if len(key) == 1 and not modifiers & CONTROL else {}
        if key == "Enter":
            typed = {"text": "\r"}
        self.call("Input.dispatchKeyEvent", type="keyDown" if typed else "rawKeyDown", **event, **typed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text: str) -> None:
        """Type a text into the element with the focus."""
        self.call("Input.insertText", text=text)

    def middle(self, selector: str) -> list[float]:
        """Return where the middle of an element is, as soon as it is visible."""
        found = json.dumps(selector)
        self.until(f"document.querySelector({found}) && document.querySelector({found}).offsetParent !== null")
        script = f"(() => {{ const box = document.querySelector({found}).getBoundingClientRect(); "
        return self.run(script + "return [box.x + box.width / 2, box.y + box.height / 2]; })()")

    def click(self, selector: str, modifiers: int = 0) -> None:
        """Click the middle of an element."""
        x, y = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            event = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1, "modifiers": modifiers}
            self.call("Input.dispatchMouseEvent", **event)

    def tap(self, selector: str) -> None:
        """Touch the middle of an element."""
        x, y = self.middle(selector)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def errors(self) -> list[str]:
        """Return what the browser logged as errors of this page so far."""
        self.run("1")  # receives what is on its way
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            method, values = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                found.append(json.dumps(values["exceptionDetails"])[:500])
            elif method == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(values["args"])[:500])
            elif method == "Log.entryAdded" and values["entry"]["level"] == "error":
                found.append(f"{values['entry']['text']} {values['entry'].get('url', '')}")
        return found


def wait(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Wait until a condition is true, and return its value."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"never true: {what}")

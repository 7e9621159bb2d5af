"""Chromium without a window, led by its DevTools: just enough to fill in a form and look at it."""

import base64
import itertools
import json
import subprocess
import time
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

import websocket

from tests.kfp.lab import until
from tests.kfp.settings import Settings

_FLAGS = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run"
_FLAGS += " --remote-debugging-port=0 --remote-allow-origins=* --window-size=1600,1400"
_SECONDS = 60
# The smallest visible element with a text, or the one of a selector.
_FIND = """(wanted => {
  const shown = it => it.getClientRects().length > 0
  if (/^[#.\\[]|^(input|iframe)/.test(wanted)) return document.querySelector(wanted)
  const same = [...document.querySelectorAll('*')].filter(
    it => shown(it) && it.textContent.trim() === wanted)
  return same.find(it => !same.some(other => other !== it && it.contains(other)))
})"""


class Browser:
    """One page of the UI, in a browser with its files in `folder`."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings, self._ids = settings, itertools.count(1)
        command = [settings.chromium, *_FLAGS.split(), f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            port = folder / "DevToolsActivePort"
            until("the browser", lambda: port.is_file() and port.read_text(), _SECONDS)
            with urlopen(f"http://127.0.0.1:{port.read_text().split()[0]}/json/list") as reply:
                page = next(it for it in json.load(reply) if it["type"] == "page")
            self._socket = websocket.create_connection(
                page["webSocketDebuggerUrl"], timeout=_SECONDS, http_no_proxy=["127.0.0.1"]
            )
        except BaseException:
            self._process.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait()

    def go(self, route: str) -> None:
        """Open a page of the UI, for example `/pipelines`."""
        self._call("Page.navigate", url="about:blank")  # a route alone loads nothing
        self._call("Page.navigate", url=f"{self._settings.ui}/#{route}")

    @property
    def route(self) -> str:
        return str(self.run("location.hash")).removeprefix("#")

    def run(self, script: str) -> Any:
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def has(self, wanted: str) -> bool:
        """Tell whether there is an element with a text or a selector that can be used."""
        return bool(self.run(f"(it => !!it && !it.disabled)({_find(wanted)})"))

    def wait(self, wanted: str) -> None:
        until(f"{wanted!r} on {self._settings.ui}", lambda: self.has(wanted), _SECONDS)

    def click(self, wanted: str) -> bool:
        """Click an element, wherever it is; False if it is not there."""
        clicked = self.run(f"(it => {{if (it) it.click(); return !!it}})({_find(wanted)})")
        time.sleep(1)  # for what it opens
        return bool(clicked)

    def open(self, *wanted: str, shows: str) -> None:
        """Click elements in turn until another one shows.

        A node that is clicked before the page has its data stays empty, so all is tried again.
        """

        def look() -> bool:
            return self.has(shows) or (all(map(self.click, wanted)) and self.has(shows))

        until(f"{shows!r} after {wanted}", look, _SECONDS)

    def type(self, wanted: str, text: str) -> None:
        self.wait(wanted)
        self.run(f"(it => {{it.focus(); it.select()}})({_find(wanted)})")
        self._call("Input.insertText", text=text)
        assert self.run(f"({_find(wanted)}).value") == text

    def choose_file(self, wanted: str, file: str) -> None:
        root = self._call("DOM.getDocument")["root"]["nodeId"]
        found = self._call("DOM.querySelector", nodeId=root, selector=wanted)["nodeId"]
        self._call("DOM.setFileInputFiles", nodeId=found, files=[file])

    def shoot(self, name: str) -> Path:
        data = self._call("Page.captureScreenshot", format="png")["data"]
        file = Path(self._settings.pictures, f"{name}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(data))
        return file

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:  # events come between the answers
            answer = json.loads(self._socket.recv())
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]


def _find(wanted: str) -> str:
    return f"{_FIND}({json.dumps(wanted)})"

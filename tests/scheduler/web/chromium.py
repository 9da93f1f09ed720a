"""Debian's Chromium without a display, controlled by the DevTools protocol over a pair of pipes."""
import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 60  # seconds


def find():
    """Returns the path of the browser; None if it is not installed."""
    return next((path for path in map(shutil.which, PROGRAMS) if path), None)


class Chromium:
    """Runs for the duration of `with`, with a profile of its own."""

    def __init__(self, log):
        self.log = log
        self.number, self.answers, self.events, self.rest = 0, {}, [], b""

    def __enter__(self):
        self.profile = tempfile.TemporaryDirectory(prefix="gpupool-chromium-", ignore_cleanup_errors=True)
        to_browser, self.out = os.pipe()
        self.back, from_browser = os.pipe()
        # Chromium reads commands from descriptor 3 and writes answers to 4. Its sandbox does not run as root, and /dev/shm is small in
        # containers.
        words = [find(), "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}", "--no-sandbox", "--disable-gpu",
                 "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--no-proxy-server", "--lang=en-US", "about:blank"]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(["sh", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "sh", *words], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, pass_fds=(to_browser, from_browser), start_new_session=True,
                                            env={**os.environ, "HOME": self.profile.name, "TZ": "Europe/Berlin"})
        os.close(to_browser)
        os.close(from_browser)
        return self

    def __exit__(self, *_):
        try:
            self.call("Browser.close")
            self.process.wait(20)
        except (OSError, EOFError, TimeoutError, AssertionError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        os.close(self.back)
        self.profile.cleanup()

    def call(self, method, session=None, **parameters):
        """Calls a method of the protocol and returns its result."""
        self.number += 1
        number = self.number
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self.out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while number not in self.answers:
            self.receive(end, method)
        answer = self.answers.pop(number)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def receive(self, end, what):
        ready, _, _ = select.select([self.back], [], [], max(0, end - time.monotonic()))
        if not ready:
            raise TimeoutError(f"Chromium did not answer {what} within {PATIENCE} s; its log is {self.log}")
        data = os.read(self.back, 1 << 20)
        if not data:
            raise EOFError(f"Chromium has ended; its log is {self.log}")
        *messages, self.rest = (self.rest + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self.answers[message["id"]] = message
            else:
                self.events.append(message)

    def page(self):
        """Opens a tab with storage of its own."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        return Page(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])


class Page:
    def __init__(self, browser, session):
        self.browser, self.session = browser, session
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        self.resize(1440, 900)
        self.colour_scheme("light")

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def resize(self, width, height, scale=1, mobile=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile)

    def colour_scheme(self, scheme):
        # Without motion, so that colours are final as soon as they are set.
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme},
                                                          {"name": "prefers-reduced-motion", "value": "reduce"}])

    def open(self, url):
        self.call("Page.navigate", url=url)

    def evaluate(self, expression):
        """Returns the value of a JavaScript expression."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise AssertionError(f"{expression}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def wait(self, expression, patience=PATIENCE):
        """Waits until an expression is true, and returns its value."""
        end = time.monotonic() + patience
        while not (value := self.evaluate(expression)):
            if time.monotonic() > end:
                raise AssertionError(f"timed out waiting until {expression}; the page says:\n{self.text()[:3000]}")
            time.sleep(0.1)
        return value

    def text(self):
        return self.evaluate("document.body ? document.body.innerText : ''")

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode={"Tab": 9, "Enter": 13}[key],
                      **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}))

    def complaints(self):
        """Returns exceptions, console errors and violations of the content security policy so far."""
        own = [event for event in self.browser.events if event.get("sessionId") == self.session]
        thrown = [event["params"]["exceptionDetails"] for event in own if event["method"] == "Runtime.exceptionThrown"]
        logged = [event["params"]["entry"] for event in own if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error"]
        return [*map(str, thrown), *(f"{one['text']} {one.get('url', '')}" for one in logged)]

    def screenshot(self, path):
        """Writes the visible part."""
        pathlib.Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

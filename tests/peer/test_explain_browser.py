"""The pages of explain in a real browser: no error, nothing wider than a phone, and the picture can be followed by clicking.

Chromium is driven by its driver's own protocol (WebDriver). PODWIRE_SHOTS=FOLDER keeps what it looked like.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from explain_pages import pages

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="chromium and chromedriver are not installed",
    ),
]

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
]  # fmt: skip
KINDS = ["packet", "port", "service", "rules"]


class Browser:
    """A session of chromedriver."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with (folder / "chromedriver.log").open("w") as log:
            self.process = subprocess.Popen(
                ["chromedriver", f"--port={self.url.rpartition(':')[2]}"],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        try:
            self._wait()
            options = {"args": [*FLAGS, f"--user-data-dir={folder}/profile"], "binary": shutil.which("chromium")}
            wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self.url += f"/session/{made['sessionId']}"
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def _wait(self):
        end = time.monotonic() + 20
        while True:
            try:
                self._ask("GET", "/status")
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
            else:
                return

    def _ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def close(self):
        try:
            self._ask("DELETE", "")
        finally:
            self.process.terminate()
            self.process.wait(10)

    def cdp(self, command, **parameters):
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, path, width, *, dark=False, script=True):
        self.cdp("Emulation.setScriptExecutionDisabled", value=not script)
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", features=[scheme])
        self._ask("POST", "/url", {"url": path.as_uri()})

    def run(self, script):
        return self._ask("POST", "/execute/sync", {"script": script, "args": []})

    def messages(self):
        return [one["message"] for one in self._ask("POST", "/se/log", {"type": "browser"})]

    def click(self, selector):
        element = self._ask("POST", "/element", {"using": "css selector", "value": selector})
        (name,) = element.values()
        self._ask("POST", f"/element/{name}/click", {})

    def shot(self):
        return base64.b64decode(self._ask("GET", "/screenshot"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    made = Browser(tmp_path_factory.mktemp("browser"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for kind, text in pages(folder / "input").items():
        made[kind] = folder / f"{kind}.html"
        made[kind].write_text(text)
    return made


def keep(browser, name):
    shots = os.environ.get("PODWIRE_SHOTS")
    image = browser.shot()
    if shots:
        (Path(shots) / f"{name}.png").write_bytes(image)
    assert image.startswith(b"\x89PNG")
    assert len(image) > 5000


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_fits_its_window_without_an_error(browser, files, kind, width, dark):
    browser.open(files[kind], width, dark=dark)
    keep(browser, f"{kind}-{width}{'-dark' if dark else ''}")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run("return document.documentElement.classList.contains('js')")
    assert browser.messages() == []
    lightness = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (int(re.search(r"\d+", lightness)[0]) < 128) == dark


def test_the_ways_of_a_packet_can_be_followed_by_clicking(browser, files):
    browser.open(files["packet"], 1280)
    lit = "return document.querySelectorAll('svg .box.on').length"
    now = "var one = document.querySelector('svg .box.now text.t'); return one && one.textContent"
    said = "return document.querySelector('.said').textContent"
    steps = []
    for _ in range(30):
        browser.click("button.on")
        steps.append(browser.run(now))
        if browser.run("return document.querySelector('button.on').disabled"):
            break
    assert steps[:4] == ["198.51.100.7", "PREROUTING", "KUBE-SERVICES", "KUBE-NODEPORTS"]
    assert steps[-1] == "dnat 10.244.1.5:8080"
    browser.click("button.back")
    assert browser.run(now) == steps[-2]
    assert "KUBE-POSTROUTING" in browser.run(said)
    browser.run(
        "Array.from(document.querySelectorAll('svg .box')).find(one => one.textContent.includes('KUBE-SEP-NTDC')).dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}))"
    )
    assert "-j DNAT --to-destination 10.244.3.4:8080" in browser.run(said)
    one_way = browser.run(lit)
    assert 5 < one_way < browser.run("return document.querySelectorAll('svg .box').length")
    keep(browser, "packet-clicked")
    browser.click("button.all")
    assert browser.run(lit) == 0


def test_a_service_in_the_picture_of_all_rules_lights_what_leads_to_it(browser, files):
    browser.open(files["rules"], 1280)
    browser.run(
        "Array.from(document.querySelectorAll('svg .box')).find(one => one.textContent.includes('shop/cart:http')).dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}))"
    )
    names = browser.run(
        "return Array.from(document.querySelectorAll('svg .box.on text.t')).map(one => one.textContent)"
    )
    assert {"PREROUTING", "OUTPUT", "services", "shop/cart:http", "10.244.1.5:8080", "10.244.2.9:8080"} <= set(names)
    assert "shop/edge:https" not in names
    assert "POSTROUTING" not in names
    keep(browser, "rules-clicked")


def test_without_scripts_a_box_leads_to_its_rule(browser, files):
    browser.open(files["packet"], 390, script=False)
    box = browser.run("var one = document.querySelector('svg a.chain'); return one.getAttribute('href')")
    assert browser.run(f"return document.querySelector('{box}').textContent.includes('-A PREROUTING')")
    assert browser.run("return getComputedStyle(document.querySelector('.bar')).display") == "none"
    browser.cdp("Emulation.setScriptExecutionDisabled", value=False)
